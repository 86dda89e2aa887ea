"""Where an operator call comes from: the module, the line of the user's script, forward or backward.

Modules are followed by global forward hooks, kept only while a micro-batch runs, so nothing is left on the user's
modules. A backward operator runs in no module and on no line of its own; it gets those of the forward operator whose
autograd node is running. Forward operators and nodes meet by autograd's sequence number: a node takes its number just
before its operator is dispatched, so the first operator that sees the counter at n + 1 is the one of node n.
"""

import sys
import sysconfig
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

Phase = Literal["forward", "backward", "commit"]

_NO_SEQUENCE = 2**64 - 1  # the number of nodes that belong to no operator: those that add into `.grad`

_TORCH = Path(torch.__file__).parent
_MELODEON = Path(__file__).parents[1]
_WATCHERS = tuple(
    Path(__file__).with_name(f"{name}.py") for name in ("oprecord", "oprecord_mode", "oprecord_where", "opscan")
)
_STANDARD = Path(sysconfig.get_paths()["stdlib"])
_PACKAGES = tuple({Path(sysconfig.get_paths()[key]) for key in ("purelib", "platlib")})


class Where(NamedTuple):
    """One operator call's place; `module` and `site` are empty where they can't be known."""

    module: str
    site: str
    phase: Phase


class Whereabouts:
    """Follows the modules of a job while a micro-batch runs, and answers where the present operator comes from."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._paths = module_paths(modules)
        # The modules are held so that no other object can take their id while it is a key here.
        self._held = tuple(modules.values())
        self._stack: list[str] = []
        self._handles: list[RemovableHandle] = []
        self._forward: dict[int, tuple[str, str]] = {}
        self._thread = 0
        self._commit = False

    def start(self, *, commit: bool = False) -> None:
        """Begin following, for a virtual worker's micro-batch or for the commit."""
        self._commit = commit
        self._thread = threading.get_ident()
        self._stack.clear()
        self._forward.clear()
        self._handles = [
            register_module_forward_pre_hook(self._on_enter),
            register_module_forward_hook(self._on_leave, always_call=True),
        ]

    def stop(self) -> None:
        """Take the hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def now(self) -> Where | None:
        """The present operator's place, or None for the sum of gradients over virtual workers.

        Whether a virtual worker meets a gradient to add to depends on who else runs on its worker, so that sum has no
        place in a record that is compared across assignments: neither where autograd adds into `.grad` nor where we do.
        """
        if torch._C._current_graph_task_id() == -1:
            site, is_ours = caller()
            if is_ours and not self._commit and not self._stack:
                return None
            return self._note(Where(self._module(), site, "commit" if self._commit else "forward"))
        node = torch._C._current_autograd_node()
        number = _NO_SEQUENCE if node is None else node._sequence_nr()
        if number == _NO_SEQUENCE:
            return None
        if self._stack:  # a forward run again inside the backward: activation checkpointing
            return self._note(Where(self._module(), caller().site, "backward"))
        module, site = self._forward.get(number, ("", ""))
        return Where(module, site, "backward")

    def _note(self, where: Where) -> Where:
        # Sequence numbers count per thread; another thread's would be taken for ours.
        if torch.is_grad_enabled() and threading.get_ident() == self._thread:
            number = torch._C._autograd._get_sequence_nr() - 1
            self._forward.setdefault(number, (where.module, where.site))
        return where

    def _module(self) -> str:
        return self._stack[-1] if self._stack else ""

    def _on_enter(self, module: nn.Module, _args: Any) -> None:
        if (path := self._paths.get(id(module))) is not None:
            self._stack.append(path)

    def _on_leave(self, module: nn.Module, _args: Any, _output: Any) -> None:
        if id(module) in self._paths and self._stack:
            self._stack.pop()


def module_paths(modules: Mapping[str, nn.Module]) -> dict[int, str]:
    """Every module's path by its id; the paths start with the model's own name only where there are several models."""
    paths: dict[int, str] = {}
    for name, root in modules.items():
        prefix = f"{name}." if len(modules) > 1 else ""
        for path, module in root.named_modules():
            paths.setdefault(id(module), f"{prefix}{path}" if path else name)
    return paths


def named_tensors(modules: Mapping[str, nn.Module], *, gradients: bool) -> dict[int, tuple[str, torch.Tensor]]:
    """Parameters and buffers, and gradients if asked, by the address of their data.

    The tensors come along so that whoever holds the result holds their memory too: nothing else can take the address.
    """
    named: dict[int, tuple[str, torch.Tensor]] = {}
    for name, root in modules.items():
        prefix = f"{name}." if len(modules) > 1 else ""
        for path, parameter in root.named_parameters():
            named.setdefault(parameter.data_ptr(), (f"{prefix}{path}", parameter))
            if gradients and parameter.grad is not None:
                named.setdefault(parameter.grad.data_ptr(), (f"{prefix}{path}.grad", parameter.grad))
        for path, buffer in root.named_buffers():
            named.setdefault(buffer.data_ptr(), (f"{prefix}{path}", buffer))
    named.pop(0, None)  # empty tensors have no address
    return named


class Caller(NamedTuple):
    """Who called the present operator from Python."""

    site: str
    """`file:line` of the innermost frame that is not torch's, ours or the standard library's, else empty."""
    is_ours: bool
    """Whether a frame of ours stands between that one and the operator."""


def caller() -> Caller:
    """Look up the stack from the operator that is being dispatched."""
    frame: FrameType | None = sys._getframe(1)
    is_ours = False
    while frame is not None:
        name = frame.f_code.co_filename
        if name not in _labels:
            _labels[name] = _label(name)
        label = _labels[name]
        if label not in (_HIDDEN, _OURS):
            return Caller(f"{label}:{frame.f_lineno}", is_ours)
        is_ours = is_ours or label is _OURS
        frame = frame.f_back
    return Caller("", is_ours)


_HIDDEN, _OURS = "hidden", "ours"  # in place of a label
_labels: dict[str, str] = {}


def _label(filename: str) -> str:
    path = Path(filename)
    if filename.startswith("<") or path.is_relative_to(_TORCH) or path in _WATCHERS:
        return _HIDDEN
    if path.is_relative_to(_MELODEON):
        return _OURS
    for folder in _PACKAGES:  # before the standard library, whose folder they lie in
        if path.is_relative_to(folder):
            return str(path.relative_to(folder))
    if path.is_relative_to(_STANDARD):
        return _HIDDEN
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else path.name
