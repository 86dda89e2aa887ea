"""Where the service is found: a small file in its state folder, and one for the user who started it.

    STATE/address.json                 the running service of this state folder
    (runtime folder)/cluster.json      the one that this user started last, wherever its folder is

Written when it answers, removed when it stops. One that was left behind is known by its process being gone.
"""

import os
from pathlib import Path

import msgspec

from melodeon.coord import registry
from melodeon.coord.marks import started

FILE = "address.json"
STATE = Path(".melodeon/cluster")
"""The state folder where none is named."""


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """A running service."""

    url: str
    pid: int
    started: int
    """When its process started, by the kernel's count: tells it from a later process of the same number."""
    state: str
    """Its state folder, where the token is."""

    @property
    def is_alive(self) -> bool:
        """Whether its process still runs."""
        return started(self.pid) == self.started

    def token(self) -> str | None:
        """The operator's token, for whoever may read it."""
        try:
            return (Path(self.state) / "token").read_text().strip()
        except OSError:
            return None


def pointer() -> Path:
    """The file that says where this user's service is."""
    return registry.folder().parent / "cluster.json"


def here(url: str, state_dir: Path) -> Address:
    """The address of a service in this process."""
    pid = os.getpid()
    return Address(url=url, pid=pid, started=started(pid) or 0, state=str(state_dir.absolute()))


def publish(address: Address) -> None:
    """Let clients find the service."""
    for path in (Path(address.state) / FILE, pointer()):
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor, so that the mode is right from the start
            file.write(msgspec.json.encode(address))
        temporary.replace(path)


def withdraw(address: Address) -> None:
    """Say no longer that it is there; what another service has said meanwhile stays."""
    for path in (Path(address.state) / FILE, pointer()):
        if read(path) == address:
            path.unlink(missing_ok=True)


def read(path: Path) -> Address | None:
    """What a file says; None where there is none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Address)
    except (OSError, msgspec.MsgspecError):
        return None


def find(state_dir: Path | None = None) -> Address | None:
    """The running service: of a state folder; else of the one in this folder; else this user's."""
    paths = [state_dir / FILE] if state_dir is not None else [STATE / FILE, pointer()]
    for path in paths:
        address = read(path)
        if address is not None and address.is_alive:
            return address
    return None
