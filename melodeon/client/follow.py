"""The cluster's log as it grows, over connections that may break: each goes on where the last one ended."""

import time
from collections.abc import Generator, Iterable, Iterator

import httpx
import msgspec

from melodeon.client.transport import Transport
from melodeon.core.errors import MelodeonError, Unreachable
from melodeon.core.service import EventInfo

QUIET_S = 40.0
"""The service says something at least every 15 s; a connection on which nothing comes is dead."""


class Beat:
    """Nothing new, but the service is there."""


def follow(
    transport: Transport, after: int | None, job: str | None, *, quiet_s: float = QUIET_S
) -> Generator[EventInfo | Beat, None, None]:
    """Every event after a number (None: from now on), without an end; a `Beat` where there is nothing to tell.

    Begins with a beat, from which on nothing is missed. Another comes after `quiet_s` without news.
    """
    at = after
    while True:
        for patience in transport.attempts():
            was_there = False
            try:
                headers = {} if at is None else {"Last-Event-ID": str(at)}
                with transport.stream("/stream", {"job": job, "after": at}, headers, quiet_s) as response:
                    was_there = True
                    for number, data in blocks(response.iter_lines()):
                        at = number if number is not None else at
                        yield _event(data) if data else Beat()
                break  # it ended well, and the next begins with new patience
            except httpx.ReadTimeout:
                yield Beat()
                break
            except httpx.TransportError as error:
                if was_there:  # perhaps for hours: patience begins now
                    transport.close()
                    break
                transport.lost(error, patience, again=True)
            except Unreachable:
                if patience.over:
                    raise
        time.sleep(0.05)  # a service that cuts everybody at once shall not be stormed


def blocks(lines: Iterable[str]) -> Iterator[tuple[int | None, str]]:
    """(id, data) of every block of a stream of server-sent events; comments alone are (None, "")."""
    number: int | None = None
    data: list[str] = []
    for line in lines:
        if not line:
            yield number, "\n".join(data)
            number, data = None, []
        elif line.startswith("id:") and line[3:].strip().isdecimal():
            number = int(line[3:])
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))


def _event(data: str) -> EventInfo:
    try:
        return msgspec.json.decode(data, type=EventInfo)
    except msgspec.MsgspecError as error:
        raise MelodeonError(f"an event cannot be read ({error}): the service is of another version") from error
