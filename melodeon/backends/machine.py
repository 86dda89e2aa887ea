"""What this machine is: CPU, instruction sets, cores, GPUs. Read from the system, without torch."""

import importlib.util
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from melodeon.core.errors import MissingTorch

CPUINFO = Path("/proc/cpuinfo")
NVIDIA = Path("/proc/driver/nvidia/gpus")

CHOOSING_FLAGS = (
    *("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16", "amx_tile"),
    *("asimd", "sve"),
)
"""What CPU kernels are chosen by, oldest first: x86, then ARM."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The facts that decide which levels hold here."""

    cpu: str
    architecture: str
    flags: frozenset[str]
    """Instruction sets, named as Linux names them (`avx2`, `avx512f`); empty where the system does not say."""
    cores: int
    """Those this process may use."""
    gpus: tuple[str, ...]

    @property
    def instruction_sets(self) -> tuple[str, ...]:
        """The flags that kernels are chosen by, oldest first."""
        return tuple(flag for flag in CHOOSING_FLAGS if flag in self.flags)


def inspect(cpuinfo: Path = CPUINFO) -> Machine:
    """Look at this machine."""
    fields = _cpuinfo(cpuinfo)
    return Machine(
        cpu=fields.get("model name") or platform.processor() or platform.machine() or "unknown CPU",
        architecture=platform.machine(),
        flags=frozenset((fields.get("flags") or fields.get("Features") or "").split()),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        gpus=_gpus(),
    )


def _cpuinfo(path: Path) -> dict[str, str]:
    """The first processor's fields; nothing where there is no such file (macOS)."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return {}
    first = text.split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _gpus() -> tuple[str, ...]:
    """The GPUs that the driver lists; torch may see fewer."""
    found = []
    for information in sorted(NVIDIA.glob("*/information")):
        lines = information.read_text(errors="replace").splitlines()
        found += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return tuple(found)


def require_torch(what: str = "training") -> None:
    """Refuse to start what needs torch where it is not installed; looks, never imports."""
    if importlib.util.find_spec("torch") is None:
        raise MissingTorch(what)
