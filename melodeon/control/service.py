"""`melodeon serve`: the store, the fleet, the controller and the HTTP server in one process and one event loop.

    lock the state folder -> open the port -> controller and server -> say where -> ... a signal -> stop; jobs go on

Whatever ends it, nothing has to be saved: the log is on disk, and jobs have launchers of their own.
"""

import asyncio
import contextlib
import os
import signal
import socket
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from pwd import struct_passwd

import uvicorn

from melodeon.backends.devices import Devices, find_devices
from melodeon.backends.fleet import Fleet
from melodeon.control import address
from melodeon.control.address import Address
from melodeon.control.api import Auth, make_app
from melodeon.control.api.auth import own_token
from melodeon.control.api.guard import ANY, LOOPBACK
from melodeon.control.api.stream import Hub
from melodeon.control.controller import Controller
from melodeon.control.store import Store
from melodeon.control.tidying import tidied
from melodeon.coord.limits import find_user
from melodeon.core.errors import UsageError
from melodeon.sched.quota import Quota
from melodeon.sched.registry import make_policy
from melodeon.sched.tick import Rules

GRACE_S = 3.0
"""How long requests in progress may take when the service stops."""
KEEP_ALIVE_S = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """How to serve."""

    state: Path = address.STATE
    host: str = "127.0.0.1"
    port: int = 8470
    """0: any that is free."""
    devices: int | None = None
    """So many CPU slots; without this, `cluster` and `topology`: what the machine has."""
    cluster: str | None = None
    """A text such as `2x4:cpu`."""
    topology: Path | None = None
    policy: str = "elasticflow"
    margin: float = 0.1
    """The part of the time to a deadline that is kept back when it is judged."""
    quota: Quota = field(default_factory=Quota)
    """Of everybody who is no operator, where `users.json` says nothing else."""
    roots: tuple[Path, ...] = ()
    """Folders in which jobs may run; empty: the working folder, and the user's home."""
    hosts: tuple[str, ...] = ()
    """Further names by which the service may be called."""
    run_as: str = ""
    """The operating system's user that jobs run as; empty: the same."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise UsageError(f"--port {self.port} must be from 0 (any that is free) to 65535")
        make_policy(self.policy)

    @property
    def is_exposed(self) -> bool:
        """Whether others than this machine can reach it."""
        return self.host not in LOOPBACK


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A service that answers."""

    address: Address
    login_url: str
    """Opens the pages, signed in as the operator."""
    devices: Devices
    policy: str


async def serve(config: ServeConfig, ready: Callable[[Ready], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT; `ready` is called once it answers. Jobs go on after that."""
    state = config.state.absolute()
    devices = find_devices(devices=config.devices, cluster=config.cluster, topology=config.topology)
    store = Store(state / "cluster.db")
    with contextlib.ExitStack() as undo:
        undo.callback(store.close)
        let_pass(state, config.run_as)
        require_reachable(config.run_as, (Path(os.__file__).resolve(), Path(__file__).resolve()))
        auth = Auth.load(state)
        sock = undo.enter_context(_listen(config.host, config.port))
        controller = Controller(
            store,
            Fleet(devices, run_as=config.run_as, state_dir=state),
            devices.cluster,
            policy=config.policy,
            state_dir=state,
            rules=lambda: Rules(quotas=auth.quotas(config.quota)),
            margin=config.margin,
        )
        undo.pop_all()  # the controller closes the store, and what comes now the port
    with sock:
        try:
            port = sock.getsockname()[1]
            app = make_app(
                controller,
                auth,
                host=config.host,
                port=port,
                hosts=config.hosts,
                roots=config.roots or None,
                audit=state / "audit.jsonl",
            )
            url = url_of(config.host, port)
            where = address.here(url, state)
            news = Ready(
                address=where,
                login_url=f"{url}/login?token={own_token(state)}",
                devices=devices,
                policy=controller.overview().policy,
            )
            server = _Server(app, where, lambda: ready(news) if ready is not None else None)
            await _run(controller, server, app.state.hub, sock)
        finally:
            await controller.close()


def let_pass(state: Path, run_as: str) -> None:
    """Let jobs that are another user's through to their own folders; what lies on the way they cannot read."""
    if not run_as:
        return
    user = find_user(run_as)
    if user.pw_uid == os.geteuid():
        return
    jobs = state / "jobs"
    jobs.mkdir(exist_ok=True)
    for folder in (state, jobs):
        folder.chmod(0o711)
    closed = _closed(state, user)
    if closed is not None:
        raise UsageError(
            f"user {run_as!r}, whose the jobs shall be, cannot enter {str(closed)!r}: choose a --state elsewhere"
        )


def require_reachable(run_as: str, files: Iterable[Path]) -> None:
    """Refuse a user who cannot reach what all jobs import: every job would fail, and none could say why."""
    if not run_as or (user := find_user(run_as)).pw_uid == os.geteuid():
        return
    closed = next(filter(None, (_closed(file, user) for file in files)), None)
    if closed is not None:
        raise UsageError(
            f"user {run_as!r}, whose the jobs shall be, cannot enter {str(closed)!r}, where Python or Melodeon is: "
            "install them elsewhere, or choose another --run-as"
        )


def _closed(path: Path, user: struct_passwd) -> Path | None:
    """The first folder on the way that the user cannot enter."""
    return next((folder for folder in reversed(path.parents) if not _may_pass(folder, user)), None)


def _may_pass(folder: Path, user: struct_passwd) -> bool:
    found = folder.stat()
    if found.st_uid == user.pw_uid:
        return bool(found.st_mode & stat.S_IXUSR)
    if found.st_gid in os.getgrouplist(user.pw_name, user.pw_gid):
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH)


async def _run(controller: Controller, server: "_Server", hub: Hub, sock: socket.socket) -> None:
    """Controller and server side by side, until one of them ends or a signal comes."""
    loop = asyncio.get_running_loop()
    deciding = loop.create_task(controller.run(), name="controller")
    serving = loop.create_task(_serve_found(controller, server, sock), name="server")

    def stop() -> None:
        if server.should_exit:
            server.force_exit = True  # asked twice: somebody is in a hurry
        hub.close()
        server.should_exit = True

    with _signals(loop, stop), tidied():
        try:
            await asyncio.wait({deciding, serving}, return_when=asyncio.FIRST_COMPLETED)
            stop()
            if controller.engine.found.is_set():
                await asyncio.wait({serving})
        finally:
            address.withdraw(server.address)
            for task in (serving, deciding):
                task.cancel()
            ends = await asyncio.gather(serving, deciding, return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
            raise end


async def _serve_found(controller: Controller, server: "_Server", sock: socket.socket) -> None:
    """Serve from when running jobs are found again: before, it would tell less of them than it once did."""
    await controller.engine.found.wait()
    await server.serve([sock])


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Iterator[None]:
    """Have SIGTERM and SIGINT stop the service; not possible, nor needed, outside of the main thread."""
    caught = []
    with contextlib.suppress(RuntimeError, ValueError):
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
            caught.append(number)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


class _Server(uvicorn.Server):
    """uvicorn without signals of its own; says where it is once it listens."""

    def __init__(self, app: object, where: Address, ready: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,  # type: ignore[arg-type] # an ASGI application, as uvicorn calls it
                lifespan="off",
                ws="none",
                access_log=False,
                log_config=None,
                log_level="critical",  # a reader that is cut is no error, and the door tells of those that are
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=int(GRACE_S),
            )
        )
        self.address, self._ready = where, ready

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the service."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then let others know."""
        await super().startup(sockets)
        address.publish(self.address)
        self._ready()


def url_of(host: str, port: int) -> str:
    """The address to open: of a service that listens everywhere, the one on this machine."""
    name = "127.0.0.1" if host in ANY else host
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, port), family=family, backlog=1024, dualstack_ipv6=host == "::")
        # Connections inherit it. Without, the second part of every answer waits for a receipt of the first, 40 ms; and
        # asyncio sets it only on sockets that were made for TCP by name.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    except (OSError, OverflowError, UnicodeError) as error:
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        if isinstance(error, OSError) and error.errno is not None and error.errno < 0:
            why = "no such host is known"  # the resolver counts its errors downwards, and strerror knows none of them
        raise UsageError(
            f"port {port} of {host!r} cannot be opened ({why}): choose another --port (0: any), or --host"
        ) from error


def serve_forever(config: ServeConfig, ready: Callable[[Ready], None] | None = None) -> None:
    """`serve` in an event loop of its own."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(config, ready))
