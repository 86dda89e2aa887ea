"""Programs that tests run and pip does not bring, from Debian's packages: etcd, a browser, and what makes hosts.

    python -m tests.packages      installs what is missing

`make test` does this first, since a download may take longer than a test is allowed to. A test that is run by itself
installs what it needs when it needs it.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = {
    "etcd": "etcd-server",
    "chromium": "chromium",
    "chromedriver": "chromium-driver",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
}
"""Program to package."""
INSTALL_S = 600.0
_ENV = {"DEBIAN_FRONTEND": "noninteractive", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}


class CannotInstall(Exception):
    """A program is missing, and could not be had."""


def find_programs(*names: str) -> list[str]:
    """Where programs are, once those that were missing are installed.

    One process at a time looks and installs: apt-get refuses to run beside another, and what it is still unpacking
    can be found already and does not work yet.
    """
    with Path(tempfile.gettempdir(), f"melodeon-packages-{os.getuid()}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if missing := [PACKAGES[name] for name in names if shutil.which(name) is None]:
            _install(missing)
        return [_found(name) for name in names]


def _install(packages: list[str]) -> None:
    try:
        _apt_get("update")  # old lists may do where this fails
        done = _apt_get("install", "-y", "--no-install-recommends", *packages)
        why = "" if done.returncode == 0 else done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        why = str(error)
    if why:
        names = " ".join(packages)
        raise CannotInstall(f"tests need {names}, which could not be installed ({why}): apt-get install {names}")


def _apt_get(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["apt-get", "-o", "DPkg::Lock::Timeout=120", *arguments]
    return subprocess.run(command, env=_ENV, capture_output=True, text=True, timeout=INSTALL_S)


def _found(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise CannotInstall(f"tests need {name}: {PACKAGES[name]} is installed, and it is not on PATH")
    return path


if __name__ == "__main__":
    try:
        find_programs(*PACKAGES)
    except CannotInstall as error:
        print(f"warning: {error}; without them some tests fail", file=sys.stderr)
