from pathlib import Path

from melodeon.backends.machine import inspect


def test_cpuinfo_is_read(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    one = "processor : 0\nmodel name\t: Some CPU @ 2: GHz\nflags\t\t: fpu avx avx2 fma\n"
    cpuinfo.write_text(f"{one}\n{one}\n")
    machine = inspect(cpuinfo)
    assert machine.cpu == "Some CPU @ 2: GHz"
    assert machine.instruction_sets == ("avx", "avx2", "fma")
    assert machine.cores >= 1


def test_a_system_without_cpuinfo_still_answers(tmp_path: Path) -> None:
    machine = inspect(tmp_path / "none")
    assert machine.cpu
    assert machine.flags == frozenset()
