"""The agent: one process for each job and node that starts, watches and ends the node's workers. Never imports torch.

    python -m melodeon.coord.agent CONFIG.json

It registers in the store under a lease, calls the master's agent, and campaigns to be that itself. Everything it knows
can be lost: started again, it finds its workers by their marks, and they call it. The decisions are made by
`AgentState` and `Master`; here is only who is connected with whom.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

import msgspec

from melodeon.coord import wire
from melodeon.coord.agent_config import AgentConfig, read_config
from melodeon.coord.agent_events import Events
from melodeon.coord.agent_links import Downlinks, Uplink, Whereabouts
from melodeon.coord.agent_master import Forgotten, MasterRunner
from melodeon.coord.agent_state import AgentState
from melodeon.coord.agent_workers import Workers, known_workers
from melodeon.coord.election import campaign
from melodeon.coord.failpoint import failpoint, identify
from melodeon.coord.lastwords import read_last_words
from melodeon.coord.lines import Brood, Line, Spoken, Watch
from melodeon.coord.messages import Ask, Orders, Status
from melodeon.coord.niceness import stand_back
from melodeon.coord.store import LeaseLost, Refused, Store, StoreError, StoreUnreachable, follow, open_store
from melodeon.core.errors import MelodeonError

LAZY_S = 0.02
"""Progress alone is reported so much later: workers tell of theirs all at once, and one report has it all."""
BEGIN_S = 120.0
"""A job that others see has its first master long before, or is over."""
FAREWELL_S = 10.0
"""How long the master's agent waits for others to hear that the job is over."""

_SPOKEN = msgspec.msgpack.Decoder(Spoken)


class Agent:
    """Everything of one agent, put together."""

    def __init__(self, config: AgentConfig, store: Store) -> None:
        self._config, self._store = config, store
        self._token = config.token()
        self._events = Events(Path(config.run_dir) / "events.jsonl")
        self._downlinks = Downlinks(self._token)
        self._workers: Workers
        self._uplink: Uplink
        self._runner: MasterRunner | None = None
        self._lease = 0
        self._report_due: asyncio.Handle | None = None
        self._over = asyncio.Event()
        """The job has ended, as far as this node knows."""
        self._orphaned = asyncio.Event()
        """The launcher is gone."""
        self._wanted_back = asyncio.Event()
        """This node shall take no part any more."""

    async def run(self) -> int:
        """Serve until the job is over; does not return if the launcher is gone."""
        config = self._config
        soon = asyncio.get_running_loop().call_soon_threadsafe
        identify(config.agent, spared=lambda found: found.getsockname() == config.socket, soon=soon)
        await self._downlinks.open(config.listen)
        state = await self._register()
        self._workers = Workers(config, state, on_news=self._on_news)
        self._uplink = Uplink(
            self._store,
            config.prefix + "master",
            agent=config.agent,
            token=self._token,
            report=state.report,
            on_orders=self._on_orders,
        )
        server = await asyncio.start_unix_server(self._serve, sock=_listen(config.socket))
        if config.lifeline_fd is not None:
            asyncio.get_running_loop().add_reader(config.lifeline_fd, self._lifeline)
        if config.guest:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._wanted_back.set)
        try:
            self._workers.open()
            return await self._work()
        finally:
            server.close()
            await self._workers.close()
            self._note_ends()
            await self._downlinks.close()
            self._events.close()

    async def _work(self) -> int:
        parts = [self._keep_lease(), self._follow_master(), self._campaign(), self._resend(), self._farewell()]
        if self._config.guest:
            parts.append(self._depart())
        tasks = [asyncio.create_task(part) for part in parts]
        orphaned = asyncio.create_task(self._orphaned.wait())
        try:
            done, _ = await asyncio.wait([*tasks, orphaned], return_when=asyncio.FIRST_COMPLETED)
            if orphaned in done:
                await self._abandon()
            for task in done:
                task.result()  # a part that failed fails the agent; it is started again
            return 0
        finally:
            for task in (*tasks, orphaned):
                task.cancel()
            await asyncio.gather(*tasks, orphaned, return_exceptions=True)

    async def _abandon(self) -> NoReturn:
        """The launcher is gone, and perhaps the store with it: end what runs here, and take leave of nobody."""
        await self._workers.close()
        os._exit(1)

    # -- being known ---------------------------------------------------------------------------------------------------

    async def _register(self) -> AgentState:
        config = self._config
        config.node_dir.mkdir(parents=True, exist_ok=True)
        incarnation = await self._enter_lease()
        failpoint("agent.registered")
        master = await self._store.get(config.prefix + "master")
        return AgentState(
            agent=config.agent,
            host=config.host,
            slots=config.slots,
            incarnation=incarnation,
            now=asyncio.get_running_loop().time(),
            fence=master.created if master else 0,
            adopted=known_workers(config),
            last_words=read_last_words(Path(config.run_dir)),
            silence_s=config.silence_s,
        )

    async def _enter_lease(self) -> int:
        config = self._config
        lease = await self._store.grant(config.ttl_s)
        value = msgspec.json.encode({"host": config.host, "address": self._downlinks.address, "socket": config.socket})
        revision = await self._store.put(f"{config.prefix}agents/{config.agent}", value, lease=lease)
        # Only now: a lease that was refreshed without the registration would hide that this agent is not known.
        self._lease = lease
        return revision

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(self._config.ttl_s / 3)
            failpoint("agent.lease")
            try:
                await self._store.refresh(self._lease)
            except LeaseLost:
                # We were away too long. Our workers have been given up; the master's orders will say so.
                with contextlib.suppress(StoreError):
                    await self._enter_lease()
            except StoreUnreachable:
                continue

    async def _depart(self) -> None:
        """Once this node is wanted back: offer no slots, have the workers leave in order, and be gone."""
        await self._wanted_back.wait()
        self._workers.give_back()
        self._report()
        await self._workers.empty.wait()
        with contextlib.suppress(StoreError):
            await self._store.revoke(self._lease)

    # -- the master ----------------------------------------------------------------------------------------------------

    async def _follow_master(self) -> None:
        """Be connected with the master, for as long as there is a store that tells who that is.

        Elsewhere another master may have taken over, and nobody else would end what runs here; but while the launcher
        hosts the store and stands still (Ctrl-Z, a debugger), there is no other master and the workers train on. Nor is
        there one when the job is over, and what scripts still do then needs none.
        """
        while True:
            try:
                return await self._uplink.run()
            except StoreUnreachable:
                if not (self._config.is_hosted or self._over.is_set()):
                    raise

    async def _campaign(self) -> None:
        config = self._config
        value = msgspec.json.encode(Whereabouts(agent=config.agent, address=self._downlinks.address))
        if config.guest and not await self._has_begun():
            return
        while True:
            try:
                term = await campaign(self._store, config.prefix + "master", value, config.ttl_s)
            except Refused:
                await self._let_be()
                continue
            except StoreError:
                continue  # the store itself waits before it gives up
            try:
                await self._rule(
                    MasterRunner(config, self._store, term.fence, self._events, self._send_orders), term.lost
                )
            except Forgotten:
                # This node was away when the job ended: nobody told it, and nobody will.
                self._on_orders(Orders(fence=term.number, number=1, agent=config.agent, end="stopped"))
                await self._workers.empty.wait()
                return
            except Refused:
                await self._let_be()
            except StoreError:
                pass  # fenced, or out of reach for too long: another term, perhaps another's
            finally:
                await term.resign()

    async def _let_be(self) -> None:
        """One that refuses does so at once: all agents would keep it busy."""
        await asyncio.sleep(self._config.ttl_s / 3)

    async def _has_begun(self) -> bool:
        """Whether there is a job to be master of, or soon is: whoever comes from elsewhere begins none."""
        key = self._config.prefix + "state"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(BEGIN_S), contextlib.aclosing(follow(self._store, key)) as changes:
                async for change in changes:
                    if change.key == key and change.entry is not None:
                        return True
        return False

    async def _rule(self, runner: MasterRunner, lost: asyncio.Event) -> None:
        ruling = asyncio.create_task(runner.run())
        losing = asyncio.create_task(lost.wait())
        self._runner = runner
        self._downlinks.be_local(runner)
        self._uplink.be_local(runner)
        try:
            await asyncio.wait([ruling, losing], return_when=asyncio.FIRST_COMPLETED)
            if ruling.done():
                ruling.result()
        finally:
            self._runner = None
            self._downlinks.be_local(None)
            self._uplink.be_local(None)
            for task in (ruling, losing):
                task.cancel()
            await asyncio.gather(ruling, losing, return_exceptions=True)

    def _send_orders(self, agent: str, orders: Orders) -> None:
        if agent == self._config.agent:
            self._on_orders(orders)
        else:
            self._downlinks.send(agent, orders)

    # -- the node ------------------------------------------------------------------------------------------------------

    def _on_orders(self, orders: Orders) -> None:
        failpoint("agent.orders")
        self._workers.on_orders(orders)

    def _on_news(self, urgent: bool) -> None:
        """Report soon: once for all that happens in this turn of the loop, later if it is progress alone."""
        if self._workers.state.end:
            self._over.set()
        if urgent and isinstance(self._report_due, asyncio.TimerHandle):
            self._report_due.cancel()
            self._report_due = None
        if self._report_due is None:
            loop = asyncio.get_running_loop()
            self._report_due = loop.call_soon(self._report) if urgent else loop.call_later(LAZY_S, self._report)

    def _report(self) -> None:
        self._report_due = None
        failpoint("agent.report")
        self._uplink.send_report()

    async def _resend(self) -> None:
        while True:
            await asyncio.sleep(self._config.resend_s)
            self._uplink.resend()

    async def _farewell(self) -> None:
        """The job is over when the master has said so, nobody runs here, and the others know."""
        await self._over.wait()
        failpoint("agent.over")
        await self._workers.empty.wait()
        if self._runner is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL_S):
                    await self._runner.farewell.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (message := await wire.read_frame(reader, _SPOKEN)) is not None:
                match message:
                    case Status():
                        failpoint("agent.status")
                        self._workers.on_status(message, writer)
                    case Line():
                        self._events.line(message)
                    case Brood():
                        self._workers.nursery.heard(message, writer)
                    case Ask():
                        failpoint("agent.ask")
                        self._uplink.ask(message, writer)
                    case Watch():
                        self._events.watch(writer)
                    case _:
                        break
        except (OSError, wire.FrameError):
            pass  # whoever it was calls again
        finally:
            self._workers.on_hang_up(writer)
            self._uplink.hang_up(writer)
            self._events.unwatch(writer)
            writer.close()

    def _lifeline(self) -> None:
        assert self._config.lifeline_fd is not None
        if not os.read(self._config.lifeline_fd, 1):
            asyncio.get_running_loop().remove_reader(self._config.lifeline_fd)
            self._orphaned.set()

    def _note_ends(self) -> None:
        """For the launcher: how the workers ended that it may have to answer for."""
        path = self._config.node_dir / "ends.json"
        temporary = path.with_name(".ends.json")
        temporary.write_bytes(msgspec.json.encode(self._workers.ends))
        temporary.replace(path)


def _listen(path: str) -> socket.socket:
    """A socket at that path, in place of what a dead agent left there."""
    Path(path).unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(path)
    Path(path).chmod(0o600)
    return server


async def _run(config: AgentConfig) -> int:
    async with open_store(config.store, token=config.token(), patience_s=config.store_s) as store:
        return await Agent(config, store).run()


def main(argv: list[str]) -> int:
    """Run one agent."""
    if len(argv) != 2:
        sys.stderr.write("usage: python -m melodeon.coord.agent CONFIG.json\n")
        return 2
    try:
        config = read_config(Path(argv[1]))
        stand_back()
        return asyncio.run(_run(config))
    except MelodeonError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv))
