"""A dispatch mode with a typed face: hands every operator call of this thread, and of its backward, to one function."""

from collections.abc import Callable, Mapping
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

Call = Callable[[Any, tuple[Any, ...], Mapping[str, Any]], Any]
"""Gets (operator, args, kwargs), runs the operator and returns what it gave."""


class Watch:
    """Calls go to `call` between `start` and `stop`; operators that `call` itself runs do not come back to it."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._mode: _Mode | None = None

    @property
    def running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._mode is not None

    def start(self) -> None:
        """Begin to watch."""
        assert self._mode is None, "started twice without a stop: every enter() needs its leave()"
        self._mode = _Mode(self._call)
        self._mode.__enter__()  # type: ignore[no-untyped-call]  # torch types none of its mode

    def stop(self) -> None:
        """Stop watching."""
        if self._mode is not None:
            self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # as above
            self._mode = None


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # as above
    def __init__(self, call: Call) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # as above
        self._call = call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._call(func, args, kwargs or {})
