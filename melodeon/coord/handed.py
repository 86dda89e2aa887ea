"""Files by which one process tells another what to do: for their owner's eyes only, seen whole or not at all."""

import os
import secrets
from pathlib import Path
from typing import TypeVar

import msgspec

from melodeon.core.errors import UsageError

T = TypeVar("T")


def hand(path: Path, value: msgspec.Struct) -> None:
    """Write a value for whoever is started with the file's name."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "wb") as file:  # noqa: PTH123 - a descriptor, so that the mode is right from the start
        file.write(msgspec.json.encode(value))
    temporary.replace(path)


def read_handed(path: Path, kind: type[T], *, what: str, writer: str) -> T:
    """Read such a file; `what` it describes and who writes it are for people who give another."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): give the file that {writer} wrote") from error
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path} describes no {what} ({error}): is it of another version?") from error
