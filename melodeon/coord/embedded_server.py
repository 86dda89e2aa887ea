"""The embedded store's server: one asyncio task a connection, all requests applied in turn by one `Data`.

It runs inside whichever process hosts a job (the launcher, a controller). It keeps nothing on disk by itself: the host
may write `snapshot()` from `on_commit`, which is called before anybody is told of a write.
"""

import asyncio
import hmac
import socket
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from melodeon.coord.closing import Closing
from melodeon.coord.embedded_data import Commit, Data
from melodeon.coord.embedded_values import (
    PROTOCOL,
    TO_SERVER,
    Failure,
    Happened,
    Hello,
    Refusal,
    Reply,
    Request,
    ToServer,
    Unwatch,
    WatchFrom,
    Welcome,
)
from melodeon.coord.store import Compacted, Refused
from melodeon.coord.wire import FrameError, pack, read_payload, unpack
from melodeon.core.errors import UsageError

HELLO_S = 5.0
"""How long a new connection may take to say who it is."""
HELLO_BYTES = 1 << 16
"""A stranger's first frame is not allowed more memory than this."""
BACKLOG_BYTES = 64 << 20
"""A client that does not read what it is sent is dropped at this; it comes back and goes on from where it was."""
LATE_S = 0.25
"""A timer later than this says that this process did not run, so nobody could refresh: leases begin again."""
UNIX_PATH_BYTES = 107
"""What the kernel allows for a Unix socket's path."""


class _Link:
    """One connection: where its answers go and what it watches."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.client = ""
        self.watches: dict[int, str] = {}

    def send(self, document: msgspec.Struct) -> None:
        try:
            data = pack(document)
        except FrameError as error:
            assert isinstance(document, Reply), "a change is no longer than the request that made it"
            data = pack(Reply(document.number, document.revision, failure=Failure.of(Refused(str(error)))))
        if self.writer.transport.get_write_buffer_size() > BACKLOG_BYTES:
            self.writer.transport.abort()
        elif not self.writer.is_closing():
            self.writer.write(data)


class EmbeddedServer(Closing):
    """Serves one store on any number of Unix and TCP sockets."""

    def __init__(
        self,
        *,
        token: str = "",
        clock: Callable[[], float] = time.monotonic,
        snapshot: bytes | None = None,
        on_commit: Callable[[int], None] | None = None,
        data: Data | None = None,
    ) -> None:
        """`clock` decides when leases end; with one that tests move, call `tick()` after moving it."""
        self._token = token.encode()
        self._clock = clock
        self._on_commit = on_commit
        self._data = data or Data(time.time_ns() // 1000)
        if snapshot is not None:
            self._data.restore(snapshot, clock())
        self._servers: list[asyncio.Server] = []
        self._paths: list[Path] = []
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None

    # -- the host's side

    async def listen_unix(self, path: Path) -> str:
        """Serve on a socket that only this user can open; its address."""
        if len(bytes(path)) > UNIX_PATH_BYTES:
            raise UsageError(
                f"{path} is too long for a Unix socket (at most {UNIX_PATH_BYTES} bytes): use a shorter one"
            )
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(path))
            path.chmod(0o600)  # nobody can connect before it listens
            self._servers.append(await asyncio.start_unix_server(self._connected, sock=listener))
        except BaseException:
            listener.close()
            raise
        self._paths.append(path)
        self._arm()
        return f"unix:{path}"

    async def listen_tcp(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Serve on a TCP port (0: a free one); its address. Needs a token, as anybody might connect."""
        if not self._token:
            raise UsageError(f"a store on {host} without a token is open to everybody: give EmbeddedServer a token")
        server = await asyncio.start_server(self._connected, host, port)
        self._servers.append(server)
        self._arm()
        return f"tcp:{host}:{server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Stop serving. The content stays, for `snapshot()`."""
        if self._timer is not None:
            self._timer.cancel()
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._servers, self._paths, self._timer = [], [], None

    def snapshot(self) -> bytes:
        """The whole content, for another server to begin with."""
        return self._data.snapshot()

    @property
    def revision(self) -> int:
        """The newest write's."""
        return self._data.revision

    def tick(self) -> None:
        """End the leases whose time is over."""
        self._data.expire(self._clock())
        self._publish()
        self._arm()

    # -- connections

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        link = _Link(writer)
        self._tasks.add(task)
        self._links.add(link)
        try:
            await self._serve(reader, link)
        except FrameError as error:
            link.send(Refusal(str(error)))
        except (OSError, TimeoutError):
            pass  # the other side is gone, or never spoke
        except asyncio.CancelledError:
            writer.transport.abort()  # this server is closing
        finally:
            self._links.discard(link)
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, link: _Link) -> None:
        async with asyncio.timeout(HELLO_S):
            payload = await read_payload(reader, HELLO_BYTES)
        if payload is None or not self._accept(unpack(payload, TO_SERVER), link):
            return
        while (payload := await read_payload(reader)) is not None:
            try:
                document = unpack(payload, TO_SERVER)
            except FrameError as error:
                link.send(Refusal(str(error)))  # the frame itself was whole, so the next one can be read
                continue
            self._take(link, document)

    def _accept(self, hello: ToServer, link: _Link) -> bool:
        if not isinstance(hello, Hello):
            why = "a connection begins with a hello"
        elif hello.protocol != PROTOCOL:
            why = f"protocol {hello.protocol} is not {PROTOCOL}: use one version of melodeon everywhere"
        elif not hmac.compare_digest(self._token, hello.token.encode()):
            why = "the token is not this store's: give the one that its host was started with"
        else:
            for old in [old for old in self._links if old.client == hello.client]:
                old.writer.transport.abort()  # the client has left it
            link.client = hello.client
            link.send(Welcome(self._data.revision))
            return True
        link.send(Refusal(why))
        return False

    def _take(self, link: _Link, document: ToServer) -> None:
        match document:
            case Request():
                reply = self._data.apply(link.client, document, self._clock())
                self._publish()  # first, so that a reply of revision r follows every change up to r
                self._arm()
                if reply is not None:
                    link.send(reply)
            case WatchFrom():
                self._watch(link, document)
            case Unwatch():
                link.watches.pop(document.watch, None)
            case Hello():
                link.send(Refusal("a connection has one hello, at its beginning"))

    def _watch(self, link: _Link, asked: WatchFrom) -> None:
        try:
            missed = self._data.since(asked.after)
        except Compacted as error:
            link.send(Happened(asked.watch, self._data.revision, failure=Failure.of(error)))
            return
        link.watches[asked.watch] = asked.prefix
        for commit in missed:
            self._tell(link, asked.watch, asked.prefix, commit)

    # -- changes and time

    def _publish(self) -> None:
        commits = self._data.take()
        if commits and self._on_commit is not None:
            self._on_commit(commits[-1].revision)
        for commit in commits:
            for link in self._links:
                for watch, prefix in link.watches.items():
                    self._tell(link, watch, prefix, commit)

    def _tell(self, link: _Link, watch: int, prefix: str, commit: Commit) -> None:
        changes = commit.under(prefix)
        if changes:
            link.send(Happened(watch, commit.revision, changes))

    def _arm(self) -> None:
        deadline = self._data.next_deadline
        if deadline is None or not self._servers:
            return
        loop = asyncio.get_running_loop()
        when = loop.time() + max(0.001, deadline - self._clock())
        if self._timer is not None and self._timer.when() <= when:
            return  # it will look again then
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(when, self._look, when)

    def _look(self, when: float) -> None:
        self._timer = None
        if asyncio.get_running_loop().time() - when > LATE_S:
            self._data.forgive(self._clock())
        self.tick()
