"""Memory that is freed stays with the process, so that a step does not fault it in again, nor the first one at all."""

import mmap
import subprocess
import sys

import pytest

from melodeon.runtime.memory import own_pages

STEPS = """
import ctypes, resource, sys
from melodeon.runtime.memory import keep_freed, make_room
how, size = sys.argv[1], int(sys.argv[2])
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
if how == "default":
    libc.mallopt(-3, 128 << 10)  # as long as no large block was freed
else:
    keep_freed()
def step():
    blocks = [libc.malloc(size) for _ in range(4)]
    for block in blocks:
        libc.memset(block, 1, size)
    for block in blocks:
        libc.free(block)
if how == "roomy":
    make_room(4 * size + 65536)
else:
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
SIZES = [16 << 20, 64 << 20]
"""glibc treats blocks above 32 MiB in another way."""


def faults(how: str, size: int) -> int:
    command = [sys.executable, "-c", STEPS, how, str(size)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("how", ["kept", "roomy"])
def test_a_step_faults_nothing_in_that_was_there_before(how: str, size: int) -> None:
    # 4 blocks of at least 4,096 pages each, 10 times; pages may be larger.
    assert faults(how, size) < 100 < faults("default", size)


SNAPSHOTS = """
import sys, torch
from pathlib import Path
from melodeon.runtime.codec import clone_state
from melodeon.runtime.memory import keep_freed
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
keep_freed()
weights = torch.ones(64, 256, 32, 32).to(memory_format=getattr(torch, sys.argv[1]))
state = {"weights": weights}
before = resident()
held = clone_state(state)
during = resident()
del held
print(during - before, resident() - before)
"""


@pytest.mark.parametrize("layout", ["contiguous_format", "channels_last"])
def test_what_was_stored_is_given_back_to_the_system(layout: str) -> None:
    command = [sys.executable, "-c", SNAPSHOTS, layout]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    during, after = map(int, done.stdout.split())
    assert during >= 64 << 20
    assert after < 16 << 20


FORKED = """
import mmap, os, sys
import torch
from pathlib import Path
from melodeon.runtime.memory import reserve
from tests.runtime.descriptors import mapped_memory, open_memory
descriptor = reserve(1 << 20)
segment = torch.from_file(f"/proc/self/fd/{descriptor}", shared=True, size=1 << 20, dtype=torch.uint8)
ring = mmap.mmap(descriptor, 1 << 20)
segment[0] = 7
assert len(open_memory()) == 2  # the ring has a copy of the descriptor
assert len(mapped_memory()) == 2
if not os.fork():
    print(open_memory(), mapped_memory(), flush=True)
    segment[0] = 9  # whatever still points there has memory of its own
    del segment
    ring.close()
    os.close(descriptor)
    os._exit(0)
assert os.wait()[1] == 0
print(ring[0], len(open_memory()), len(mapped_memory()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no such memory")
def test_a_forked_process_holds_nothing_of_the_memory_that_workers_share() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["[] []", "7 2 2"], done.stderr


def test_a_kernel_without_huge_pages_gives_memory_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "MADV_HUGEPAGE", 9999)  # an advice that every kernel refuses
    memory = own_pages(1 << 20)
    memory[:3] = b"abc"
    assert memory[:4] == b"abc\0"
