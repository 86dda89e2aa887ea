"""Every test process stands on determinism D1 with one thread, as a launched worker would.

The variables are set before any test module imports torch, and child processes inherit them. Tests of other levels
start processes of their own.
"""

import os
import resource
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from melodeon.core.determinism import level_env

# What somebody has set for their own jobs and cluster is not for these.
for _name in ("LAUNCH", "FAILPOINTS", "ALLOWANCE_S", "URL", "TOKEN", "STATE"):
    os.environ.pop(f"MELODEON_{_name}", None)
os.environ.update(level_env("D1", threads=1))
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
# Jobs are found by the process that started them: others, and whoever runs the tests, may have some of the same name.
_FOUND_IN = tempfile.mkdtemp(prefix="melodeon-tests-")
os.environ["XDG_RUNTIME_DIR"] = _FOUND_IN
# Scripts that tests start find this checkout, installed or not.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))

# What a shell starts in the background ignores Ctrl-C, and so would all that is started from here; tests press it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Examples are drawn from a fixed seed: a failure here is a failure everywhere. No deadline: the machine is shared.
settings.register_profile("melodeon", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("melodeon")

_LIMITS = (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_DATA)


@pytest.fixture(autouse=True)
def _leaves_this_process_as_it_was() -> Iterator[None]:
    """A test that makes its own process less important, or limits it, does so to all tests after it."""
    before = _importance()
    yield
    assert _importance() == before, "what is limited or less important for good belongs into a process of its own"


def _importance() -> tuple[object, ...]:
    return os.getpriority(os.PRIO_PROCESS, 0), *map(resource.getrlimit, _LIMITS)


def pytest_unconfigure() -> None:
    """Leave nothing behind."""
    shutil.rmtree(_FOUND_IN, ignore_errors=True)
