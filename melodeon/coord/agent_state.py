"""The agent's half of the protocol, without IO: what runs on this node, what the master wants, and the difference.

A worker's number is started at most once on a node, ever: the caller leaves a mark before it starts one, and tells the
next incarnation of the agent which marks it found. Orders are taken by (fence, number), and only those made for this
incarnation; a worker that they do not list is killed. Who is GONE stays GONE, whatever it says later.
"""

from collections.abc import Iterable, Mapping

import msgspec

from melodeon.coord.messages import Notice, Orders, Phase, Report, Status, WorkerOrder

RESEND_S = 0.5
"""After how long a notice that the worker has not taken is sent again."""
MAKING_S = 300.0
"""How long a worker may wait for a process that can make it, before its time to speak runs."""


class Todo(msgspec.Struct, kw_only=True):
    """What the caller has to do now."""

    start: tuple[WorkerOrder, ...] = ()
    """Leave a mark for each, then start it."""
    kill: tuple[int, ...] = ()
    """SIGKILL, with all that it started; harmless if it has ended."""
    notices: dict[int, Notice] = {}
    """Worker -> notice to send."""
    report: bool = False
    """Something has changed that the master should hear soon."""
    end: str = ""
    """The job is over with this outcome: leave when no worker runs any more."""


class Charge(msgspec.Struct):
    """One worker in this agent's care."""

    status: Status
    heard_at: float
    heard: bool = False
    """It has spoken to this incarnation."""
    sent: int = 0
    sent_at: float = float("-inf")
    asked_at: float = float("-inf")
    """When this incarnation was told to start it."""


class AgentState:
    """Everything that an agent knows."""

    def __init__(
        self,
        *,
        agent: str,
        host: str,
        slots: int,
        incarnation: int,
        now: float = 0.0,
        fence: int = 0,
        adopted: Mapping[int, bool] | None = None,
        last_words: Mapping[int, Status] | None = None,
        silence_s: float = 5.0,
        start_s: float = 60.0,
    ) -> None:
        """`incarnation` grows with each start (say, the revision of its registration); `fence` is the present master's,
        read from the store at the start. `adopted` maps workers of earlier incarnations to whether they still run, and
        `last_words` those that ended by themselves to the status that they left on the disk, lest an end that no agent
        saw count as a loss.
        """
        self.agent, self.host, self.slots = agent, host, slots
        self.incarnation = f"{incarnation:012d}"
        self.silence_s, self.start_s = silence_s, start_s
        self.fence, self.number = fence, 0
        self.end = ""
        self._listed: dict[int, WorkerOrder] = {}
        self._charges: dict[int, Charge] = {}
        self._reports = 0
        for worker, runs in (adopted or {}).items():
            self._charges[worker] = Charge(Status(worker=worker, pid=0, number=0, phase=Phase.STARTING), now)
            if not runs:
                self._charges[worker].status = (last_words or {}).get(worker, self._charges[worker].status)
                self._gone(self._charges[worker], self._charges[worker].status.error, None)

    @property
    def running(self) -> tuple[int, ...]:
        """The workers that are not known to have ended."""
        return tuple(worker for worker, charge in self._charges.items() if charge.status.phase is not Phase.GONE)

    def status_of(self, worker: int) -> Status | None:
        """The newest status of a worker in this agent's care."""
        charge = self._charges.get(worker)
        return charge.status if charge else None

    def notice_for(self, worker: int) -> Notice | None:
        """The newest notice for a worker: send it when the worker connects."""
        order = self._listed.get(worker)
        return order.notice if order else None

    def on_orders(self, orders: Orders, now: float) -> Todo:
        """Take orders if they are newer than the last, made for this agent and this incarnation of it."""
        fresh = (orders.fence, orders.number) > (self.fence, self.number)
        if not fresh or orders.agent != self.agent or orders.incarnation not in ("", self.incarnation):
            return Todo()
        self.fence, self.number, self.end = orders.fence, orders.number, orders.end
        self._listed = {order.worker: order for order in orders.workers}
        start = tuple(order for order in orders.workers if order.worker not in self._charges)
        for order in start:
            status = Status(worker=order.worker, pid=0, number=0, phase=Phase.STARTING)
            self._charges[order.worker] = Charge(status, now, asked_at=now)
        kill = self._unlisted()
        # One that is not listed and has ended is known to the master as gone: it need not be told again.
        for worker in [w for w, c in self._charges.items() if c.status.phase is Phase.GONE and w not in self._listed]:
            del self._charges[worker]
        return Todo(start=start, kill=kill, notices=self._due_notices(now), report=True, end=self.end)

    def on_status(self, status: Status, now: float) -> Todo:
        """A worker has spoken: a repeated status is a sign of life, a newer one is news."""
        charge = self._charges.get(status.worker)
        if charge is None:
            if self.number and status.worker not in self._listed:
                return Todo(kill=(status.worker,))
            charge = self._charges[status.worker] = Charge(
                Status(worker=status.worker, pid=status.pid, number=0, phase=Phase.STARTING), now
            )
        if charge.status.phase is Phase.GONE:
            return Todo(kill=(status.worker,))
        charge.heard_at, charge.heard = now, True
        news = status.number > charge.status.number
        if news:
            charge.status = status
        order = self._listed.get(status.worker)
        notices: dict[int, Notice] = {}
        if order is not None and status.notice < order.notice.number:
            notices = self._send(status.worker, order.notice, now)
        return Todo(notices=notices, report=news, kill=self._unlisted(status.worker))

    def on_worker_exit(self, worker: int, code: int | None, error: str = "") -> Todo:
        """A worker's process has ended; `error` is the sentence of its script's own error, if it left one."""
        charge = self._charges.get(worker)
        if charge is None or charge.status.phase is Phase.GONE:
            return Todo()
        self._gone(charge, error or charge.status.error, code)
        if worker not in self._listed and self.number:
            del self._charges[worker]
        return Todo(report=True, end=self.end)

    def on_unmade(self, workers: Iterable[int], now: float) -> None:
        """These have no process yet: importing takes long on a busy machine, and is no silence of theirs."""
        for charge in (self._charges[worker] for worker in workers if worker in self._charges):
            if not charge.heard and now - charge.asked_at < MAKING_S:
                charge.heard_at = now

    def on_tick(self, now: float) -> Todo:
        """Kill the silent ones. One that has not spoken yet may be busy importing, and gets longer."""
        silent: list[int] = []
        for worker, charge in self._charges.items():
            patience = self.silence_s if charge.heard else self.start_s
            if charge.status.phase is not Phase.GONE and now - charge.heard_at >= patience:
                # What has trained to the end speaks no more while the rest of its script runs.
                if charge.status.phase is Phase.DONE:
                    continue
                self._gone(charge, "", None)
                silent.append(worker)
        return Todo(kill=(*silent, *self._unlisted()), report=bool(silent), end=self.end)

    def next_at(self) -> float | None:
        """When `on_tick` may find somebody silent."""
        times = [
            charge.heard_at + (self.silence_s if charge.heard else self.start_s)
            for charge in self._charges.values()
            if charge.status.phase not in (Phase.GONE, Phase.DONE)
        ]
        return min(times, default=None)

    def report(self) -> Report:
        """All that it knows."""
        self._reports += 1
        return Report(
            agent=self.agent,
            incarnation=self.incarnation,
            number=self._reports,
            host=self.host,
            slots=self.slots,
            workers=tuple(charge.status for charge in self._charges.values()),
            fence=self.fence,
            orders=self.number,
        )

    def _gone(self, charge: Charge, error: str, code: int | None) -> None:
        number = charge.status.number + 1
        charge.status = msgspec.structs.replace(
            charge.status, phase=Phase.GONE, number=number, error=error, exit_code=code
        )

    def _unlisted(self, only: int | None = None) -> tuple[int, ...]:
        """Those that run and are not wanted; at the end of the job, whoever is done may finish its script."""
        if not self.number:
            return ()
        workers = self._charges if only is None else [only]
        return tuple(
            worker
            for worker in workers
            if worker not in self._listed
            and self._charges[worker].status.phase is not Phase.GONE
            and not (self.end and self._charges[worker].status.phase is Phase.DONE)
        )

    def _due_notices(self, now: float) -> dict[int, Notice]:
        due: dict[int, Notice] = {}
        for worker, order in self._listed.items():
            charge = self._charges[worker]
            if charge.status.phase is not Phase.GONE and order.notice.number > max(charge.sent, charge.status.notice):
                due.update(self._send(worker, order.notice, now))
        return due

    def _send(self, worker: int, notice: Notice, now: float) -> dict[int, Notice]:
        charge = self._charges[worker]
        if notice.number == charge.sent and now - charge.sent_at < RESEND_S:
            return {}
        charge.sent, charge.sent_at = notice.number, now
        return {worker: notice}
