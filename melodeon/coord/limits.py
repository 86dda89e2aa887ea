"""What a job's processes may not do: set in its launcher, inherited by all that it starts."""

import os
import pwd
import resource

from melodeon.coord.niceness import stand_back
from melodeon.core.errors import UsageError
from melodeon.core.text import counted

MOST_FILES = 1 << 16
BEHIND = 10
"""How nice jobs are: on a machine that they keep busy, people are answered first."""


def apply(*, memory: int | None = None, cuda: bool = False) -> None:
    """Limit this process and its children: no core dumps, files for many workers, and `memory` bytes each; they stand
    back behind the service.

    Memory counts as address space. CUDA reserves far more of that than it ever uses, so there what counts is memory
    that can be written to.
    """
    stand_back(BEHIND)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    if memory is not None:
        kind = resource.RLIMIT_DATA if cuda else resource.RLIMIT_AS
        _, hard = resource.getrlimit(kind)
        most = memory if hard == resource.RLIM_INFINITY else min(memory, hard)
        resource.setrlimit(kind, (most, most))


def find_user(name: str) -> pwd.struct_passwd:
    """A user of this machine; only root may run jobs as another."""
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise UsageError(f"user {name!r} is not known on this machine: jobs cannot run as nobody") from None
    if os.geteuid() not in (0, user.pw_uid):
        raise UsageError(f"jobs cannot run as {name!r}: only root may start processes of others")
    return user


def become(user: pwd.struct_passwd) -> None:
    """From now on this process is that user's; there is no way back."""
    if os.geteuid() == 0:
        os.initgroups(user.pw_name, user.pw_gid)
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    os.environ.update({"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name})
    os.environ.pop("XDG_RUNTIME_DIR", None)  # it is the other user's


def in_words(size: int) -> str:
    """`512 MiB`, `4 GiB`, `1 byte`."""
    for unit, worth in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if size >= worth:
            return f"{size / worth:.3g} {unit}"
    return counted(size, "byte")
