"""The addresses of this machine, as the machines of one job reach each other by them."""

import socket

from melodeon.core.errors import UsageError

_ANY = ("", "0.0.0.0", "::")  # noqa: S104 - these are refused


def require_own(address: str, option: str) -> str:
    """The address, if others can reach this machine by it and it can listen there."""
    if address in _ANY:
        raise UsageError(f"{option} {address!r} names no machine: give the address that others reach this one at")
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            raise UsageError(
                f"{option} {address} is no IPv4 address or name of this machine ({error.strerror or error}): give the "
                "one that others reach it at"
            ) from error
    return address


def own_towards(host: str) -> str:
    """The address of this machine that `host` sees. Nothing is sent: the kernel's routes tell."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, 9))
        except OSError as error:
            raise UsageError(
                f"no way leads from here to the job's machine, {host} ({error.strerror or error}): give --address"
            ) from error
        return str(probe.getsockname()[0])
