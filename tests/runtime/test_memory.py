"""Memory that is freed stays with the process, so that a step does not fault it in again."""

import subprocess
import sys

STEPS = """
import ctypes, resource, sys
from melodeon.runtime.memory import keep_freed
if sys.argv[1] == "kept":
    keep_freed()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
libc.mallopt(-3, 128 << 10) if sys.argv[1] == "default" else None  # as long as no large block was freed
def step():
    blocks = [libc.malloc(16 << 20) for _ in range(4)]
    for block in blocks:
        libc.memset(block, 1, 16 << 20)
    for block in blocks:
        libc.free(block)
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    done = subprocess.run([sys.executable, "-c", STEPS, how], capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


def test_a_step_faults_nothing_in_that_the_one_before_has_freed() -> None:
    # 4 blocks of 4,096 pages each, 10 times; pages may be larger.
    assert faults("kept") < 100 < faults("default")
