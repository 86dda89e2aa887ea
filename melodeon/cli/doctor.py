"""`melodeon doctor`: what this machine can promise and why, and a check of it with real processes.

Works without torch, and then says what it could not check. Never imports torch: the checks are processes of their own,
each started under a level's environment as the launcher would start a worker.
"""

import json as jsonlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import Annotated

import typer

from melodeon.backends.machine import Machine, inspect
from melodeon.cli.options import Json
from melodeon.cli.output import print_json, print_table
from melodeon.core.determinism import D2_FLAGS, LEVELS, level_env
from melodeon.core.errors import NotBitwise

TIMEOUT_S = 120.0
"""For one check process; loading torch is most of it."""

OTHER_KIND = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
"""Makes this process compute like one on an AVX2 machine, which is another kind where there is AVX-512."""

WATCHED = (
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "MKL_CBWR"),
    *("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "CUBLAS_WORKSPACE_CONFIG"),
)
"""The variables that change bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """Whether a level holds on one kind of device here."""

    level: str
    device: str
    holds: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Two processes that were compared, and what was seen."""

    what: str
    must_agree: bool
    agreed: bool | None
    """None: one of them did not finish."""
    detail: str = ""

    @property
    def seen(self) -> str:
        """The result in a word or two."""
        if self.agreed is None:
            return "could not run"
        return "equal" if self.agreed else "differ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One process of the self-check."""

    level: str
    offset: int = 0
    device: str = "cpu"
    env: Mapping[str, str] = field(default_factory=dict)


def doctor(
    no_check: Annotated[bool, typer.Option("--no-check", help="Only look; start no processes.")] = False,
    json: Json = False,
) -> None:
    """Say what this machine can promise, and check it."""
    machine, torch_version = inspect(), _torch_version()
    checks: list[Check] = []
    gpus = list(machine.gpus)
    if torch_version is not None and not no_check:
        print("checking with real processes (some seconds) ...", file=sys.stderr)
        checks, gpus = run_checks(machine)
    levels = promises(machine, torch_version, gpus)
    if json:
        _print_json(machine, torch_version, gpus, levels, checks)
    else:
        _print_tables(machine, torch_version, gpus, levels, checks)
        _print_unchecked(torch_version, no_check)
    broken = [check for check in checks if check.must_agree and check.agreed is False]
    if broken:
        raise NotBitwise(f"this machine breaks a promise: {broken[0].what} differ, and must be equal")


def promises(machine: Machine, torch_version: str | None, gpus: Sequence[str]) -> list[Promise]:
    """Each level on each kind of device here, and why it holds or not."""
    found = []
    for level in LEVELS.values():
        holds, why = torch_version is not None, level.promise
        missing = [flag for flag in D2_FLAGS if flag not in machine.flags]
        if not holds:
            why = "needs torch: pip install 'melodeon[train]'"
        elif level.name == "D2" and missing:
            holds, why = False, f"its kernels are AVX2, and this CPU lacks {', '.join(missing)}"
        elif level.name == "D2":
            why = f"{level.promise}: x86 with AVX2; checked on this CPU only, other models are not seen from here"
        found.append(Promise(level=level.name, device="cpu", holds=holds, why=why))
        if gpus and torch_version is not None:
            on_gpu = level.name != "D2"
            reason = level.promise if on_gpu else "cuBLAS and cuDNN choose kernels by GPU: equal GPUs only, as D1"
            found.append(Promise(level=level.name, device="cuda", holds=on_gpu, why=reason))
    return found


def run_checks(machine: Machine) -> tuple[list[Check], list[str]]:
    """Train a small model in several processes and compare; also the GPUs that torch sees."""
    # What the comparisons share runs once, and all at the same time: loading torch is most of each.
    base, moved = Trial(level="D1"), Trial(level="D1", offset=3)
    trials = {"base": base, "moved": moved}
    can_d2 = all(flag in machine.flags for flag in D2_FLAGS)
    if can_d2:
        trials |= {"kind": Trial(level="D1", env=OTHER_KIND)}
        trials |= {"d2": Trial(level="D2"), "d2 moved": Trial(level="D2", offset=3)}
    results = run_trials(trials)
    gpus = _gpus(results)
    checks = [_compare("D1 on CPU: two processes, parameters moved in memory", results, "base", "moved")]
    if can_d2:
        kind = "D1 on CPU: this machine's kernels and an AVX2 machine's"
        checks.append(_compare(kind, results, "base", "kind", must_agree=False))
        checks.append(_compare("D2 on CPU: two processes, parameters moved in memory", results, "d2", "d2 moved"))
    if gpus:
        # Parameters that are not 16-byte aligned give other bits (an offset of 3 floats was seen to, on an H200), which
        # no level can pin; torch's allocator never gives less, so that is what is checked.
        on_gpu = {"gpu": Trial(level="D1", device="cuda"), "gpu again": Trial(level="D1", offset=4, device="cuda")}
        checks.append(
            _compare("D1 on CUDA: two processes, parameters moved by 16 bytes", run_trials(on_gpu), "gpu", "gpu again")
        )
    return checks, gpus


def run_trials(trials: Mapping[str, Trial]) -> dict[str, dict[str, object]]:
    """Start every trial, then collect: the parsed result, or `{"error": ...}`."""
    started = {name: _start(trial) for name, trial in trials.items()}
    return {name: _collect(process) for name, process in started.items()}


def _gpus(results: Mapping[str, Mapping[str, object]]) -> list[str]:
    lists = [result["gpus"] for result in results.values() if "gpus" in result]
    return [str(gpu) for gpu in lists[0]] if lists and isinstance(lists[0], list) else []


def _start(trial: Trial) -> "subprocess.Popen[str]":
    module = ["-m", "melodeon.runtime.selfcheck", trial.level]
    return subprocess.Popen(
        [sys.executable, *module, f"--offset={trial.offset}", f"--device={trial.device}"],
        env={**os.environ, **level_env(trial.level), **trial.env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _collect(process: "subprocess.Popen[str]") -> dict[str, object]:
    with process:
        try:
            out, err = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return {"error": f"no answer within {TIMEOUT_S:.0f} s"}
    if process.returncode != 0:
        return {"error": (err.strip().splitlines() or [f"exit code {process.returncode}"])[-1]}
    result: dict[str, object] = jsonlib.loads(out)
    return result


def _compare(
    what: str, results: Mapping[str, Mapping[str, object]], left: str, right: str, *, must_agree: bool = True
) -> Check:
    errors = [str(results[name]["error"]) for name in (left, right) if "error" in results[name]]
    if errors:
        return Check(what=what, must_agree=must_agree, agreed=None, detail=errors[0])
    agreed = results[left]["digest"] == results[right]["digest"]
    detail = "" if must_agree or agreed else "expected: D1 is for one kind; D2 pins this"
    return Check(what=what, must_agree=must_agree, agreed=agreed, detail=detail)


def _torch_version() -> str | None:
    if find_spec("torch") is None:
        return None
    from importlib.metadata import PackageNotFoundError, version  # here, because it is slow to load

    try:
        return version("torch")
    except PackageNotFoundError:
        return "unknown"


def _print_json(
    machine: Machine, torch_version: str | None, gpus: Sequence[str], levels: Sequence[Promise], checks: Sequence[Check]
) -> None:
    facts = {"cpu": machine.cpu, "architecture": machine.architecture, "cores": machine.cores, "gpus": list(gpus)}
    print_json(
        {
            "machine": {**facts, "instruction_sets": list(machine.instruction_sets)},
            "torch": torch_version,
            "env": {name: os.environ[name] for name in WATCHED if name in os.environ},
            "levels": [asdict(promise) for promise in levels],
            "checks": [{**asdict(check), "seen": check.seen} for check in checks],
        }
    )


def _print_tables(
    machine: Machine, torch_version: str | None, gpus: Sequence[str], levels: Sequence[Promise], checks: Sequence[Check]
) -> None:
    env = ", ".join(f"{name}={os.environ[name]}" for name in WATCHED if name in os.environ)
    rows = [
        ("CPU", f"{machine.cpu} ({machine.architecture}), {machine.cores} cores"),
        ("instruction sets", " ".join(machine.instruction_sets) or "unknown: the system does not list them"),
        ("GPUs", ", ".join(gpus) or "none"),
        ("torch", torch_version or "not installed"),
        ("environment", env or "nothing set that changes bits"),
    ]
    print_table(("this machine", ""), rows)
    print_table(
        ("level", "device", "holds", "promise, or why not"),
        [(promise.level, promise.device, "yes" if promise.holds else "no", promise.why) for promise in levels],
    )
    if checks:
        print_table(("checked", "seen", ""), [(check.what, check.seen, check.detail) for check in checks])


def _print_unchecked(torch_version: str | None, no_check: bool) -> None:
    if torch_version is None:
        print("Nothing was checked: without torch there are no kernels to compare.")
    elif no_check:
        print("Nothing was checked: run without --no-check to compare real processes.")
    else:
        print("This was a small model; `melodeon verify` checks a script of yours.")
