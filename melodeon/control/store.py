"""The log on disk: SQLite, one transaction for all that belongs together, durable before anybody hears of it.

    events     the truth: every fact with its number and its moment
    snapshots  the sum of the log up to a number, so that starting takes no time
    answers    what was said to whom, by request id, written with the facts that it stands for
    spans      who held which devices, from the same facts, for charts
    samples    progress and metrics of running jobs; losing some would lose no decision

What is older than `keep_s` goes when a snapshot is written: lines of the log that the snapshot before already holds,
answers, samples, and spans that have ended. The state itself forgets by a fact (`events.Forgotten`).

One process writes: a lock on the folder says so. Writes come from one thread, reads from another; WAL lets both work.
"""

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from melodeon.control.events import Entry, Fact, SlotTable, decode, encode, kind_of
from melodeon.control.state import State, fold_all
from melodeon.coord.failpoint import failpoint
from melodeon.core.errors import MelodeonError, UsageError
from melodeon.core.text import plain

APPLICATION = 0x4D454C4F
"""Marks the file as ours ("MELO")."""
VERSION = 2
KEEP_S = 30 * 86_400.0
"""How long the past is kept."""
SCHEMA = """
CREATE TABLE events (seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, job TEXT, body BLOB NOT NULL);
CREATE INDEX events_by_job ON events (job, seq) WHERE job IS NOT NULL;
CREATE TABLE snapshots (seq INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE answers (request TEXT PRIMARY KEY, asked TEXT NOT NULL, body BLOB NOT NULL, at REAL NOT NULL DEFAULT 0)
    WITHOUT ROWID;
CREATE TABLE spans (id INTEGER PRIMARY KEY, job TEXT NOT NULL, slots BLOB NOT NULL, began REAL NOT NULL, ended REAL,
    why TEXT NOT NULL);
CREATE INDEX spans_by_job ON spans (job, began);
CREATE INDEX spans_by_end ON spans (ended);
CREATE TABLE samples (job TEXT NOT NULL, at REAL NOT NULL, step INTEGER NOT NULL, metrics BLOB NOT NULL);
CREATE INDEX samples_by_job ON samples (job, at);
"""
FROM_1 = """
ALTER TABLE answers ADD COLUMN at REAL NOT NULL DEFAULT 0;
UPDATE answers SET at = unixepoch();
DROP INDEX IF EXISTS spans_open;
CREATE INDEX IF NOT EXISTS spans_by_job ON spans (job, began);
"""
"""Version 1 did not know how old an answer is, and looked through all spans for those of one job."""


class Answer(msgspec.Struct, frozen=True):
    """What was answered to a request."""

    request: str
    asked: str
    """What was asked: another question under the same id is a mistake."""
    body: bytes


class Holding(msgspec.Struct, frozen=True):
    """A job holds these devices from now on."""

    job: str
    slots: SlotTable
    why: str


class SpanRow(msgspec.Struct, frozen=True):
    """A job held some devices for a while."""

    job: str
    slots: SlotTable
    began: float
    ended: float | None
    why: str


class Sample(msgspec.Struct, frozen=True):
    """Where a job was."""

    job: str
    at: float
    step: int
    metrics: dict[str, float | None]


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """What is written together."""

    at: float
    facts: Sequence[Fact] = ()
    answers: Sequence[Answer] = ()
    holdings: Sequence[Holding] = ()
    samples: Sequence[Sample] = ()


class Store:
    """The cluster's log; opened by `Store(STATE / "cluster.db")`, one at a time."""

    def __init__(self, path: Path, *, snapshot_every: int = 1000, keep_s: float = KEEP_S) -> None:
        self.path, self._every, self.keep_s = path, snapshot_every, keep_s
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock_fd = _locked(path.parent / "lock")
        try:
            self._writer = self._opened()
            self._reader = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self.seq: int = self._reader.execute("SELECT coalesce(max(seq), 0) FROM events").fetchone()[0]
            self._snapshot_seq: int = self._reader.execute("SELECT coalesce(max(seq), 0) FROM snapshots").fetchone()[0]
        except BaseException:
            os.close(self._lock_fd)
            raise
        self._turn = threading.Lock()

    def close(self) -> None:
        """Let the next controller in."""
        with self._turn:
            self._reader.close()
            self._writer.close()
            os.close(self._lock_fd)

    # --- writing, in the writer's thread ---

    def append(self, batch: Batch) -> int:
        """Write a batch in one transaction; returns the log's newest number. Nothing of it is there if it raises."""
        with self._turn, self._said(), self._transaction():
            failpoint("store.append.begin")
            seq = self.seq
            rows = [(seq + i, batch.at, kind_of(f), f.job, encode(f)) for i, f in enumerate(batch.facts, start=1)]
            self._writer.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", rows)
            self._writer.executemany(
                "INSERT INTO answers VALUES (?, ?, ?, ?)",
                [(a.request, a.asked, a.body, batch.at) for a in batch.answers],
            )
            self._hold(batch)
            self._writer.executemany(
                "INSERT INTO samples VALUES (?, ?, ?, ?)",
                [(s.job, s.at, s.step, msgspec.json.encode(s.metrics)) for s in batch.samples],
            )
            failpoint("store.append.written")
        failpoint("store.append.committed")
        self.seq = seq + len(rows)
        return self.seq

    def snapshot_due(self, state: State) -> bool:
        """Whether enough has happened since the last one; large states are written less often."""
        return self.seq - self._snapshot_seq >= max(self._every, len(state.past) // 2)

    def snapshot(self, state: State, seq: int) -> None:
        """Keep the sum of the log up to `seq`, and drop what is too old; the snapshot before stays as well."""
        body = msgspec.json.encode(state)
        with self._turn, self._said(), self._transaction():
            self._writer.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?)", (seq, body))
            failpoint("store.snapshot.written")
            self._writer.execute("DELETE FROM snapshots WHERE seq < ?", (self._snapshot_seq,))
            self._prune(state.now - self.keep_s)
        failpoint("store.snapshot.committed")
        self._snapshot_seq = seq

    # --- reading, in the loop's thread ---

    def load(self) -> tuple[State, int]:
        """The state: the newest snapshot that can be read, and what came after."""
        with self._said():
            found, seq = State(), 0
            for number, body in self._reader.execute("SELECT seq, body FROM snapshots ORDER BY seq DESC"):
                try:
                    found, seq = msgspec.json.decode(body, type=State), number
                    break
                except msgspec.MsgspecError:
                    continue  # written by another version: the log itself is read from an earlier one
            for entry in self._entries("SELECT seq, at, body FROM events WHERE seq > ? ORDER BY seq", (seq,)):
                if entry.seq != seq + 1:
                    raise UsageError(
                        f"the log {str(self.path)!r} goes on at event {entry.seq} after {seq}: no snapshot of what "
                        "came before can be read by this version of melodeon; use the one that wrote it"
                    )
                fold_all(found, [entry])
                seq = entry.seq
            return found, seq

    def events(self, after: int = 0, job: str | None = None, limit: int = 200) -> tuple[Entry, ...]:
        """The log after a number, oldest first."""
        if job is None:
            query, values = "SELECT seq, at, body FROM events WHERE seq > ? ORDER BY seq LIMIT ?", (after, limit)
            return tuple(self._entries(query, values))
        query = "SELECT seq, at, body FROM events WHERE job = ? AND seq > ? ORDER BY seq LIMIT ?"
        return tuple(self._entries(query, (job, after, limit)))

    def answer(self, request: str) -> Answer | None:
        """What was answered to a request."""
        row = self._reader.execute("SELECT request, asked, body FROM answers WHERE request = ?", (request,)).fetchone()
        return Answer(*row) if row else None

    def spans(self, since: float, until: float, limit: int = 20_000) -> tuple[SpanRow, ...]:
        """Who held what at any time between two moments."""
        rows = self._reader.execute(
            "SELECT job, slots, began, ended, why FROM spans WHERE (ended IS NULL OR ended >= ?) AND began <= ? "
            "ORDER BY began LIMIT ?",
            (since, until, limit),
        )
        return tuple(SpanRow(j, msgspec.json.decode(s, type=SlotTable), b, e, w) for j, s, b, e, w in rows)

    def held(self, job: str) -> tuple[SpanRow, ...]:
        """What one job held, from its beginning."""
        rows = self._reader.execute(
            "SELECT job, slots, began, ended, why FROM spans WHERE job = ? ORDER BY began", (job,)
        )
        return tuple(SpanRow(j, msgspec.json.decode(s, type=SlotTable), b, e, w) for j, s, b, e, w in rows)

    def samples(self, job: str) -> tuple[Sample, ...]:
        """Where a job was, from its beginning."""
        rows = self._reader.execute("SELECT job, at, step, metrics FROM samples WHERE job = ? ORDER BY at", (job,))
        return tuple(
            Sample(j, at, step, msgspec.json.decode(m, type=dict[str, float | None])) for j, at, step, m in rows
        )

    # --- inside ---

    def _entries(self, query: str, values: tuple[object, ...]) -> Iterator[Entry]:
        for seq, at, body in self._reader.execute(query, values):
            try:
                yield Entry(seq, at, decode(body))
            except msgspec.MsgspecError as error:
                raise UsageError(
                    f"event {seq} in {self.path} cannot be read ({error}): it was written by another version of "
                    "melodeon, or the file is damaged"
                ) from error

    def _hold(self, batch: Batch) -> None:
        for holding in batch.holdings:
            self._writer.execute("UPDATE spans SET ended = ? WHERE job = ? AND ended IS NULL", (batch.at, holding.job))
            if holding.slots:
                self._writer.execute(
                    "INSERT INTO spans (job, slots, began, why) VALUES (?, ?, ?, ?)",
                    (holding.job, msgspec.json.encode(holding.slots), batch.at, holding.why),
                )

    def _prune(self, before: float) -> None:
        """Drop what is older; of the log only what the snapshot before holds, too, in case the new one is lost."""
        self._writer.execute("DELETE FROM events WHERE seq <= ? AND at < ?", (self._snapshot_seq, before))
        self._writer.execute("DELETE FROM answers WHERE at < ?", (before,))
        self._writer.execute("DELETE FROM samples WHERE at < ?", (before,))
        self._writer.execute("DELETE FROM spans WHERE ended < ?", (before,))

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._writer.execute("COMMIT")
        except BaseException:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
            raise

    @contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise MelodeonError(
                f"the cluster's log {str(self.path)!r} cannot be used ({error}): nothing was changed; see that its "
                "disk has room and can be written"
            ) from error

    def _opened(self) -> sqlite3.Connection:
        made = None
        try:
            # Before SQLite makes it: the files beside it, which hold the same, get its mode.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            made = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            (application,) = made.execute("PRAGMA application_id").fetchone()
            (version,) = made.execute("PRAGMA user_version").fetchone()
            tables = made.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if (application, version) == (APPLICATION, 1):
                made.executescript(f"BEGIN IMMEDIATE; {FROM_1} PRAGMA user_version = {VERSION}; COMMIT;")
                version = VERSION
            if (application, version) != (APPLICATION, VERSION) and (tables or application):
                raise UsageError(
                    f"{str(self.path)!r} is no cluster log of version {VERSION} (it says {application:#x}, version "
                    f"{version}): choose another --state"
                )
            self._set_up(made, fresh=not tables)
            (sound,) = made.execute("PRAGMA quick_check(1)").fetchone()
            if sound != "ok":
                raise UsageError(
                    f"the cluster's log {str(self.path)!r} is damaged ({plain(sound)}): restore it from a copy"
                )
        except (OSError, sqlite3.Error) as error:
            if made is not None:
                made.close()
            raise UsageError(
                f"{str(self.path)!r} cannot be opened as a cluster log ({error}): choose another --state"
            ) from error
        except UsageError:
            assert made is not None
            made.close()
            raise
        return made

    def _set_up(self, made: sqlite3.Connection, *, fresh: bool) -> None:
        made.execute("PRAGMA journal_mode = WAL")
        made.execute("PRAGMA synchronous = FULL")
        made.execute("PRAGMA busy_timeout = 5000")
        if fresh:
            script: Iterable[str] = (
                "BEGIN IMMEDIATE;",
                SCHEMA,
                f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {VERSION};",
                "COMMIT;",
            )
            made.executescript("".join(script))


def _locked(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise UsageError(
            f"another controller serves {str(path.parent)!r}: stop it first, or choose another --state"
        ) from None
    return fd
