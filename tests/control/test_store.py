"""The log on disk: all of a batch or nothing, whatever happens to the process, the disk or the file."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from melodeon.control.events import CancelAsked, Planned, PolicySet, Submitted
from melodeon.control.state import State
from melodeon.control.store import Answer, Batch, Holding, Sample, Store
from melodeon.core.errors import MelodeonError, UsageError

SPEC = {"name": "a", "run": ["train.py"], "steps": 10}


def submitted(number: int) -> Submitted:
    name = f"a-{number}"
    return Submitted(job=name, number=number, user="ada", spec=SPEC, deadline_at=None, signature="s", measure=False)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "cluster.db")
    answer, sample = Answer("ada/1", "digest", b"{}"), Sample("a-1", 5.0, 3, {"loss": 0.5})
    batch = Batch(
        at=5.0,
        facts=[submitted(1)],
        answers=[answer],
        samples=[sample],
        holdings=[Holding("a-1", {"node0": (0, 1)}, "free")],
    )
    assert store.append(batch) == 1
    store.append(Batch(at=6.0, facts=[CancelAsked(job="a-1", user="ada")], holdings=[Holding("a-1", {}, "")]))
    store.close()
    store = Store(tmp_path / "cluster.db")
    state, seq = store.load()
    assert seq == 2
    assert state.past["a-1"].phase.value == "cancelled"
    assert store.answer("ada/1") == answer
    assert store.answer("ada/2") is None
    assert store.samples("a-1") == (sample,)
    (span,) = store.spans(0.0, 10.0)
    assert (span.job, span.slots, span.began, span.ended) == ("a-1", {"node0": (0, 1)}, 5.0, 6.0)
    assert store.spans(7.0, 10.0) == ()
    assert [entry.seq for entry in store.events(1)] == [2]
    assert [entry.seq for entry in store.events(0, "a-1", 1)] == [1]
    store.close()


def test_what_is_acknowledged_is_on_the_disk_before(tmp_path: Path) -> None:
    """Not only safe from the end of the process but from that of the machine."""
    store = Store(tmp_path / "cluster.db")
    settings = [store._writer.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    store.close()
    full = 2
    assert settings == ["wal", full]


def test_a_snapshot_and_the_rest_are_the_whole_log(tmp_path: Path) -> None:
    store = Store(tmp_path / "cluster.db", snapshot_every=10)
    for number in range(1, 35):
        seq = store.append(Batch(at=float(number), facts=[submitted(number)]))
        state, _ = store.load()
        if store.snapshot_due(state):
            store.snapshot(state, seq)
    store.close()
    database = sqlite3.connect(tmp_path / "cluster.db")
    assert database.execute("SELECT count(*) FROM snapshots").fetchone()[0] == 2
    store = Store(tmp_path / "cluster.db")
    quick, _ = store.load()
    database.execute("UPDATE snapshots SET body = '{}x'")
    database.commit()
    slow, _ = store.load()
    database.execute("DELETE FROM snapshots")
    database.commit()
    database.close()
    whole, seq = store.load()
    assert quick == slow == whole
    assert seq == len(whole.live) == 34
    store.close()


def rows(path: Path, table: str) -> int:
    database = sqlite3.connect(path)
    found = database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    database.close()
    return int(found)


def test_what_is_too_old_is_dropped_and_the_state_is_the_same(tmp_path: Path) -> None:
    path = tmp_path / "cluster.db"
    store = Store(path, snapshot_every=10, keep_s=5.0)
    for number in range(1, 61):
        name = f"a-{number}"
        facts = [submitted(number), CancelAsked(job=name, user="ada")]
        store.append(Batch(at=float(number), facts=facts, holdings=[Holding(name, {"node0": (0,)}, "free")]))
        batch = Batch(
            at=number + 0.5,
            answers=[Answer(f"ada/{number}", "digest", b"{}")],
            samples=[Sample(name, number + 0.5, 3, {})],
            holdings=[Holding(name, {}, "")],
        )
        seq = store.append(batch)
        state, _ = store.load()
        if store.snapshot_due(state):
            store.snapshot(state, seq)
    assert {table: rows(path, table) < 60 for table in ("events", "answers", "samples", "spans")} == {
        "events": True,
        "answers": True,
        "samples": True,
        "spans": True,
    }
    assert store.answer("ada/60") is not None
    assert store.answer("ada/1") is None
    store.close()
    store = Store(path)
    assert store.load() == (state, 120)
    database = sqlite3.connect(path)
    database.execute("DELETE FROM snapshots WHERE seq = (SELECT max(seq) FROM snapshots)")
    database.commit()
    assert store.load() == (state, 120), "the snapshot before is enough"
    database.execute("UPDATE snapshots SET body = '{}x'")
    database.commit()
    database.close()
    with pytest.raises(UsageError, match="goes on at event"):
        store.load()  # and never half a state
    store.close()


def test_a_log_of_the_first_version_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "cluster.db"
    store = Store(path)
    store.append(Batch(at=1.0, facts=[submitted(1)]))
    store.close()
    database = sqlite3.connect(path)
    database.executescript(
        "DROP TABLE answers; PRAGMA user_version = 1;"
        "CREATE TABLE answers (request TEXT PRIMARY KEY, asked TEXT NOT NULL, body BLOB NOT NULL) WITHOUT ROWID;"
        "INSERT INTO answers VALUES ('ada/1', 'digest', '{}');"
    )
    database.close()
    for _ in range(2):
        store = Store(path)
        found = store.answer("ada/1")
        assert found is not None
        assert found.asked == "digest"
        assert store.load()[1] == 1
        store.close()
    assert rows(path, "answers WHERE at > 0") == 1


def test_one_controller_at_a_time(tmp_path: Path) -> None:
    store = Store(tmp_path / "cluster.db")
    with pytest.raises(UsageError, match="another controller"):
        Store(tmp_path / "cluster.db")
    store.close()
    Store(tmp_path / "cluster.db").close()


def test_a_file_that_is_not_ours_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "cluster.db").write_bytes(b"this is no database at all, but a text" * 100)
    with pytest.raises(UsageError, match=r"cluster\.db"):
        Store(tmp_path / "cluster.db")
    other = tmp_path / "other"
    other.mkdir()
    database = sqlite3.connect(other / "cluster.db")
    database.execute("CREATE TABLE recipes (name TEXT)")
    database.commit()
    database.close()
    with pytest.raises(UsageError, match="no cluster log"):
        Store(other / "cluster.db")
    Store(tmp_path / "new" / "cluster.db").close()
    database = sqlite3.connect(tmp_path / "new" / "cluster.db")
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(UsageError, match="version 99"):
        Store(tmp_path / "new" / "cluster.db")


def test_a_full_disk_changes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "cluster.db")
    store.append(Batch(at=1.0, facts=[submitted(1)]))
    pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
    store._writer.execute(f"PRAGMA max_page_count = {pages}")
    large = Planned(job="a-1", counts=(), placement=(), slots={}, why="x" * 100_000)
    with pytest.raises(MelodeonError, match="nothing was changed"):
        store.append(Batch(at=2.0, facts=[CancelAsked(job="a-1", user="ada"), large], answers=[Answer("r", "", b"")]))
    assert store.load()[1] == 1
    assert store.answer("r") is None
    store._writer.execute("PRAGMA max_page_count = 1000000")
    assert store.append(Batch(at=3.0, facts=[PolicySet(policy="fifo", user="op")])) == 2
    store.close()


def test_a_damaged_file_is_told_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "cluster.db"
    store = Store(path)
    for number in range(1, 60):
        store.append(Batch(at=float(number), facts=[submitted(number)]))
    store.close()
    raw = bytearray(path.read_bytes())
    raw[3 * 4096 : 3 * 4096 + 2000] = b"\xff" * 2000
    path.write_bytes(raw)
    with pytest.raises(UsageError, match=r"is damaged .*: restore it from a copy") as caught:
        Store(path)
    assert "\n" not in str(caught.value)


CHILD = """
import os, sys
from pathlib import Path
from melodeon.control.store import Answer, Batch, Store
from tests.control.test_store import submitted
store = Store(Path(sys.argv[1]) / "cluster.db", snapshot_every=7)
state, seq = store.load()
number = state.number
while True:
    number += 1
    facts = [submitted(number), submitted(number + 1)]
    store.append(Batch(at=float(number), facts=facts, answers=[Answer(f"r{number}", "", b"{}")]))
    number += 1
    os.write(1, f"{number}\\n".encode())
    state, seq = store.load()
    if store.snapshot_due(state):
        store.snapshot(state, seq)
"""


def test_a_killed_writer_leaves_whole_batches_and_all_that_it_said(tmp_path: Path) -> None:
    said = 0
    for life in range(4):
        process = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        for _ in range(3 + 5 * life):
            said = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read().splitlines()
        process.wait()
        process.stdout.close()
        said = int(rest[-1]) if rest else said
        store = Store(tmp_path / "cluster.db")
        state, seq = store.load()
        assert seq == state.number == len(state.live)
        assert state.number >= said, "what was said is there"
        assert state.number % 2 == 0, "a batch is there whole or not at all"
        assert store.answer(f"r{state.number - 1}") is not None, "with its answer"
        assert store.answer(f"r{state.number + 1}") is None
        store.close()


def test_states_are_equal_only_if_all_of_them_is(tmp_path: Path) -> None:
    assert State() == State()
    assert State(number=1) != State()
