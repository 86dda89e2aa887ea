"""What one incarnation does, folded from the lines of its events and from what its master answers.

Lines come from the job's own processes: what has the wrong shape is left out, and nothing in them can stop the reader.
"""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

import msgspec

from melodeon.backends.devices import SlotMap
from melodeon.backends.fleet_values import Ended, Seen
from melodeon.core.service import finite
from melodeon.core.text import plain

MOST_FIGURES, MOST_NAME = 100, 100
"""Metrics that are shown of a job, and characters of their names."""
MOST_WARNINGS, MOST_TEXT = 10, 500
"""Sentences that are passed on, and characters of each."""
_STEP = b'"kind": "step"'


class _Event(msgspec.Struct):
    """Every field that is looked at, of whatever kind of event."""

    kind: str
    worker: int | None = None
    slot: int = -1
    step: int | None = None
    total_steps: int | None = None
    steps_per_epoch: int | None = None
    virtual_workers: int | None = None
    pauses: dict[str, float] = {}
    metrics: dict[str, Any] = {}
    outcome: str = ""
    text: str = ""
    warning: bool = False


class _Worker(msgspec.Struct):
    """A worker in a status: one that may have a process."""

    worker: int


class _Status(msgspec.Struct):
    """What is looked at in a status."""

    workers: list[_Worker]

    step: int = 0
    total_steps: int | None = None
    steps_per_epoch: int | None = None
    virtual_workers: int | None = None
    rates: dict[int, float] = {}
    metrics: dict[str, Any] = {}


class Progress:
    """The state of one incarnation so far."""

    def __init__(self, devices: SlotMap, *, cuda: bool) -> None:
        self._devices, self._cuda = devices, cuda
        self.slots: dict[int, int] = {}
        """Worker -> its slot, for those that may have a process."""
        self._missing: set[int] = set()
        """Workers that the last status did not list."""
        self.training = False
        self.is_over = False
        """Its master has said so; its processes end."""
        self.step = 0
        self._known: dict[str, int] = {}
        """Its length and its virtual workers."""
        self._rates: dict[int, float] = {}
        self._metrics: dict[str, float | None] = {}
        self._warnings: dict[str, None] = {}
        self._pause_s = 0.0
        self._views = 0

    def lines(self, data: bytes) -> None:
        """Some whole lines of `events.jsonl`. Of steps only the newest matters, and most lines are steps."""
        rows = data.splitlines()
        newest = max((index for index, row in enumerate(rows) if _STEP in row), default=-1)
        for index, row in enumerate(rows):
            if index == newest or _STEP not in row:
                self._line(row)

    def _line(self, row: bytes) -> None:
        try:
            event = msgspec.convert(json.loads(row), _Event)
        except (ValueError, RecursionError):
            return  # half a line of an agent that was killed, or a script's own idea of an event
        self._event(event)

    def _event(self, event: _Event) -> None:
        if event.step is not None:
            self.step = max(self.step, event.step)
        match event.kind:
            case "worker_started" if event.worker is not None:
                self.slots[event.worker] = event.slot
            case "worker_gone" if event.worker is not None:
                self.slots.pop(event.worker, None)
            case "joined" | "begin":
                self._sizes(event)
            case "step":
                self._metrics |= _figures(event.metrics)
            case "view":
                self.training = True
                self._views += 1
                self._pause_s += max((s for s in event.pauses.values() if isfinite(s)), default=0.0)
            case "note" if event.warning and len(self._warnings) < MOST_WARNINGS:
                self._warnings[plain(event.text)[:MOST_TEXT]] = None
            case "restart":
                self.training = False
            case "end" if event.outcome:
                self.training, self.is_over = False, True

    def status(self, values: Mapping[str, Any]) -> None:
        """What the job's master answers when it is asked how it goes."""
        try:
            status = msgspec.convert(values, _Status, strict=False)
        except (ValueError, RecursionError):
            return
        self.step = max(self.step, status.step)
        self._sizes(status)
        # Few ends are in no event. A worker may be younger than the answer, but not than the one before it.
        missing = self.slots.keys() - {listed.worker for listed in status.workers}
        for worker in missing & self._missing:
            del self.slots[worker]
        self._missing = missing
        self._rates |= {workers: rate for workers, rate in status.rates.items() if isfinite(rate) and rate > 0}
        self._metrics |= _figures(status.metrics)

    def seen(self, job: str, incarnation: int, *, ended: Ended | None, stuck: str = "") -> Seen:
        """All of it as a value."""
        alive = ended is None
        return Seen(
            job=job,
            incarnation=incarnation,
            alive=alive,
            training=alive and self.training,
            ended=ended,
            slots=self._devices.to_nodes(list(self.slots.values()), cuda=self._cuda) if alive else {},
            step=self.step,
            total_steps=self._known.get("total_steps"),
            steps_per_epoch=self._known.get("steps_per_epoch"),
            virtual_workers=self._known.get("virtual_workers"),
            rates=dict(sorted(self._rates.items())),
            metrics=dict(self._metrics),
            pause_s=round(self._pause_s, 6),
            views=self._views,
            stuck=stuck,
            warnings=tuple(self._warnings),
        )

    def _sizes(self, said: _Event | _Status) -> None:
        """What is known stays known."""
        for name in ("total_steps", "steps_per_epoch", "virtual_workers"):
            value = getattr(said, name)
            if value is not None:
                self._known[name] = value


def _figures(raw: Mapping[str, Any]) -> dict[str, float | None]:
    """The logged means, None for one that is not finite; where they are from is said elsewhere."""
    figures = {
        plain(name)[:MOST_NAME]: finite(value)
        for name, value in raw.items()
        if name not in ("step", "epoch") and isinstance(value, int | float | None)
    }
    return dict(list(figures.items())[:MOST_FIGURES])
