"""Partitions dealt to virtual workers: same batches on any split, each sample once an epoch, read ahead in a thread."""

import json
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from melodeon.core.errors import MelodeonError, NotFound, UsageError
from melodeon.core.launch import Launch
from melodeon.core.sampling import EpochPlan
from melodeon.data import Partitioned
from melodeon.runtime.partitioned_virtual import VirtualFeed
from tests.runtime.loop import partitioned_cases as cases
from tests.runtime.loop.crew import Ended, run

SPLITS = ((5,), (3, 2), (1, 3, 1))
EVEN = [10, 10, 10, 10]
UNEVEN = [13, 1, 0, 9, 2, 18]  # 43 samples for 5 virtual workers in batches of 2


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def numbered(sizes: list[int], *, stream: bool = False, block: int = 4) -> Partitioned:
    """Sample k of the set is k."""
    firsts = [sum(sizes[:number]) for number in range(len(sizes))]

    def rows(name: str) -> Iterator[int] | list[int]:
        number = int(name[1:])
        found = list(range(firsts[number], firsts[number] + sizes[number]))
        return iter(found) if stream else found

    return Partitioned([(f"p{number}", size) for number, size in enumerate(sizes)], rows, block=block)


def feed(data: Partitioned, plan: EpochPlan, *, shuffle: bool = True, **options: object) -> VirtualFeed:
    return data.feed(plan=plan, seed=3, shuffle=shuffle, **options)


Bits = dict[tuple[int, int], tuple[list[int], float, int]]


def take(source: VirtualFeed, cursors: range, ranks: range) -> Bits:
    batches = [source.take(cursor, rank) for cursor in cursors for rank in ranks]
    return {(b.cursor, b.rank): (b.data.tolist(), b.weight, b.num_samples) for b in batches}


def all_of(data: Partitioned, plan: EpochPlan, epochs: int, **options: object) -> Bits:
    source = feed(data, plan, **options)
    ranks = range(plan.virtual_workers)
    source.start(ranks, 0)
    found = take(source, range(plan.cursor(epochs)), ranks)
    source.close()
    return found


# -- real runs ---------------------------------------------------------------------------------------------------------


def seen(ended: Ended) -> dict[int, Counter[int]]:
    """Epoch -> how often each sample counted."""
    found: dict[int, Counter[int]] = {}
    for worker in range(len(ended.codes)):
        for row in ended.lines(f"seen-{worker}.jsonl"):
            found.setdefault(row["epoch"], Counter()).update(row["ids"] if row["counted"] else [])
    return found


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        (EVEN, {}),
        (UNEVEN, {}),
        (UNEVEN, {"stream": True}),
        (UNEVEN, {"order": "ddp", "uneven": "exact"}),
        ([1, 2], {"shuffle": False}),
    ],
    ids=["even", "uneven", "stream", "ddp", "few"],
)
def test_states_are_the_same_on_every_split_and_every_sample_counts_once(
    sizes: list[int], options: dict[str, object], tmp_path: Path
) -> None:
    cases.write_shards(tmp_path / "shards", sizes)
    states = []
    for number, split in enumerate(SPLITS):
        ended = run(cases.train, split, tmp_path / str(number), shards=str(tmp_path / "shards"), **options).well()
        states.append(ended.states)
        assert seen(ended) == {epoch: Counter(range(sum(sizes))) for epoch in range(2)}
    assert states[0]
    assert states == [states[0]] * len(SPLITS)


def test_streams_and_shards_of_any_block_give_the_samples_their_own_bits(tmp_path: Path) -> None:
    """A stream gives the bits of the same rows by number; the block is part of what defines the bits."""
    cases.write_shards(tmp_path / "shards", UNEVEN)
    shards = str(tmp_path / "shards")
    found = [
        run(cases.train, (5,), tmp_path / name, shards=shards, epochs=1, **options).well().states
        for name, options in {"a": {}, "b": {"stream": True}, "c": {"block": 7}}.items()
    ]
    assert found[0] == found[1] != found[2]


def test_a_run_stopped_in_an_epoch_goes_on_there_on_other_workers(tmp_path: Path) -> None:
    cases.write_shards(tmp_path / "shards", UNEVEN)
    options = {"shards": str(tmp_path / "shards"), "stream": True}
    whole = run(cases.train, (5,), tmp_path / "whole", **options).well()
    store = {**options, "store": str(tmp_path / "store")}
    short = Launch(record_states=True, max_steps=3)
    first = run(cases.train, (3, 2), tmp_path / "first", launch=short, **store).well()
    second = run(cases.train, (1, 3, 1), tmp_path / "second", **store).well()
    assert {**first.states, **second.states} == whole.states
    assert max(first.states) == 3 < max(second.states)


def test_another_list_of_partitions_is_another_definition(tmp_path: Path) -> None:
    for name, sizes in {"one": [10, 20], "other": [20, 10]}.items():
        cases.write_shards(tmp_path / name, sizes)
    store = {"store": str(tmp_path / "store")}
    run(cases.train, (5,), tmp_path / "a", shards=str(tmp_path / "one"), **store).well()
    refused = run(cases.train, (5,), tmp_path / "b", shards=str(tmp_path / "other"), epochs=3, **store)
    assert refused.codes == (2,)
    assert "loader0" in refused.errors[0]


# -- batches -----------------------------------------------------------------------------------------------------------

sizes_drawn = st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any)


@settings(max_examples=60)
@given(
    sizes=sizes_drawn,
    virtual_workers=st.integers(1, 5),
    batch_size=st.integers(1, 4),
    block=st.integers(1, 6),
    uneven=st.sampled_from(["exact", "pad", "drop"]),
    shuffle=st.booleans(),
)
def test_any_sizes_give_each_sample_once_with_the_weights_of_the_plan(
    sizes: list[int], virtual_workers: int, batch_size: int, block: int, uneven: str, shuffle: bool
) -> None:
    if uneven == "drop" and sum(sizes) < virtual_workers * batch_size:
        return
    plan = EpochPlan(sum(sizes), virtual_workers, batch_size, uneven)
    found = all_of(numbered(sizes, block=block), plan, 2, shuffle=shuffle)
    assert found == all_of(numbered(sizes, block=block, stream=True), plan, 2, shuffle=shuffle)
    for epoch in range(2):
        counts: Counter[int] = Counter()
        for step in range(plan.steps_per_epoch):
            for rank in range(virtual_workers):
                data, weight, counted = found[plan.cursor(epoch, step), rank]
                assert len(data) == len(plan.positions(step, rank))
                assert (weight, counted) == (plan.weight(step, rank), plan.num_counted(step, rank))
                counts.update(data[:counted])
        if uneven == "exact":
            assert counts == Counter(range(sum(sizes)))
        elif uneven == "pad":
            assert set(counts) <= set(range(sum(sizes)))
            assert len(counts) == sum(sizes)
        else:
            assert max(counts.values()) == 1


ranges = st.tuples(st.integers(0, 3), st.integers(1, 4)).map(lambda p: range(p[0], min(p[0] + p[1], 4)))


@settings(max_examples=40)
@given(
    stays=st.lists(st.tuples(ranges, st.integers(0, 5), st.integers(0, 3)), min_size=2, max_size=5),
    stream=st.booleans(),
    stop=st.sampled_from([None, 12]),
)
def test_reassign_keeps_the_batches(stays: list[tuple[range, int, int]], stream: bool, stop: int | None) -> None:
    """Each stay: ranks, full steps taken, then batches of the next step, which is run again under the new ranks."""
    plan = EpochPlan(22, 4, 2)  # 3 steps an epoch
    reference = all_of(numbered([7, 0, 11, 4]), plan, 4)
    source = feed(numbered([7, 0, 11, 4], stream=stream), plan)
    source.stop = stop
    source.start(range(4), 0)
    cursor = 0
    for ranks, steps, more in stays:
        source.reassign(ranks, cursor)
        end = min(cursor + steps, 11)
        found = take(source, range(cursor, end), ranks) | take(source, range(end, end + 1), ranks[:more])
        assert found == {slot: reference[slot] for slot in found}
        cursor = end
    source.close()


def test_epochs_differ_when_shuffled_and_follow_the_list_when_not() -> None:
    plan = EpochPlan(16, 2, 4)
    plain = all_of(numbered([6, 10]), plan, 2, shuffle=False)
    assert [plain[cursor, 0][0] for cursor in range(4)] == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2
    shuffled = all_of(numbered([6, 10]), plan, 2)
    assert [shuffled[cursor, 0] for cursor in range(2)] != [shuffled[cursor, 0] for cursor in range(2, 4)]


def test_batches_are_made_in_their_own_random_stream_and_leave_the_workers_alone() -> None:
    plan = EpochPlan(16, 2, 4)

    def draw(samples: list[int]) -> torch.Tensor:
        return torch.rand(2)

    drawn = []
    for ranks in (range(2), range(1, 2)):
        source = feed(numbered([16]), plan, collate_fn=draw)
        source.start(ranks, 0)
        torch.manual_seed(1)
        drawn.append([source.take(0, rank).data for rank in ranks][-1])
        after = torch.rand(1)
        torch.manual_seed(1)
        assert torch.equal(after, torch.rand(1))
        source.close()
    assert torch.equal(*drawn)


# -- reading ahead -----------------------------------------------------------------------------------------------------


def test_the_next_partition_is_read_while_this_one_is_used_and_no_more_than_that() -> None:
    opened: list[str] = []
    second = threading.Event()

    def rows(name: str) -> list[int]:
        opened.append(name)
        if name == "b":
            second.set()
        return [0, 1, 2, 3]

    source = feed(Partitioned(dict.fromkeys("abcd", 4), rows), EpochPlan(16, 1, 1), shuffle=False)
    source.start(range(1), 0)
    source.take(0, 0)
    assert second.wait(10)
    source.take(1, 0)
    assert opened == ["a", "b"]
    for cursor in range(2, 16):
        source.take(cursor, 0)
    source.close()
    assert opened[:4] == ["a", "b", "c", "d"]


def test_a_stream_is_opened_once_for_all_its_blocks() -> None:
    opened: list[str] = []

    def rows(name: str) -> Iterator[int]:
        opened.append(name)
        yield from range(20)

    source = feed(Partitioned({"a": 20, "b": 20}, rows, block=3), EpochPlan(40, 1, 2), shuffle=False)
    source.stop = 20
    source.start(range(1), 0)
    found = take(source, range(20), range(1))
    source.close()
    assert [sample for data, _, _ in found.values() for sample in data] == [*range(20), *range(20)]
    assert opened == ["a", "b"]


def test_closing_ends_the_thread() -> None:
    before = threading.active_count()
    source = feed(numbered([16]), EpochPlan(16, 2, 4))
    source.start(range(2), 0)
    source.take(0, 0)
    assert threading.active_count() == before + 1
    source.close()
    source.close()
    assert threading.active_count() == before


# -- files -------------------------------------------------------------------------------------------------------------


def test_lines_are_records(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.jsonl").write_bytes(b'{"x": 1}\r\n{"x": 2}\n\n')
    (tmp_path / "sub" / "a.jsonl").write_text('{"x": "\u00e9"}')
    (tmp_path / "note.txt").write_text("no record\n")
    data = Partitioned.lines(tmp_path, "**/*.jsonl", parse=lambda line: json.loads(line or "{}"))
    listed = [(partition.name, partition.num_samples) for partition in data.catalogue.partitions]
    assert listed == [("b.jsonl", 3), ("sub/a.jsonl", 1)]
    found = all_of(data, EpochPlan(4, 1, 1), 1, shuffle=False, collate_fn=_Listed)
    assert [data[0] for data, _, _ in found.values()] == [{"x": 1}, {"x": 2}, {}, {"x": "\u00e9"}]


class _Listed(list[object]):
    def tolist(self) -> list[object]:
        return list(self)


def test_shards_of_numbers_and_of_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    np.save(tmp_path / "b.npy", np.arange(3, 5))
    found = all_of(Partitioned.npy(tmp_path), EpochPlan(5, 1, 5), 1, shuffle=False)
    assert found[0, 0][0] == [0, 1, 2, 3, 4]
    rows = Partitioned.npy(tmp_path, counts={"a.npy": 3, "b.npy": 2})
    assert rows.describe() == Partitioned.npy(tmp_path).describe()


def test_a_shard_that_shrinks_while_it_is_read_is_named(tmp_path: Path) -> None:
    """In a process of its own, which the system would end by a bus error."""
    np.save(tmp_path / "a.npy", np.zeros((64, 1024)))
    program = """
import os, sys
from melodeon.core.errors import NotFound
from melodeon.core.sampling import EpochPlan
from melodeon.data import Partitioned
data = Partitioned.npy(sys.argv[1], block=8)
feed = data.feed(plan=EpochPlan(64, 1, 8), seed=0, shuffle=False)
feed.start(range(1), 0)
feed.take(0, 0)
os.truncate(sys.argv[1] + "/a.npy", 8192)
try:
    for cursor in range(1, 8):
        feed.take(cursor, 0)
except NotFound as error:
    print(error)
feed.close()
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert (
        "partition 'a.npy' cannot be read (its file has shrunk to 8192 bytes, and its rows took 524416)" in done.stdout
    )


# -- mistakes ----------------------------------------------------------------------------------------------------------


def first_batch(data: Partitioned) -> object:
    source = feed(data, EpochPlan(len(data), 1, len(data)), shuffle=False)
    source.start(range(1), 0)
    try:
        return source.take(0, 0).data
    finally:
        source.close()


@pytest.mark.parametrize("give", [list, iter], ids=["indexed", "stream"])
@pytest.mark.parametrize(("real", "said"), [(3, "3"), (5, "5")], ids=["short", "long"])
def test_a_partition_of_another_length_than_listed(give: type, real: int, said: str) -> None:
    with pytest.raises(UsageError, match=rf"partition 'b' has {said} (or more )?samples and is listed with 4"):
        first_batch(Partitioned({"a": 2, "b": 4}, lambda name: give(range(2 if name == "a" else real))))


def test_a_missing_partition_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\n")
    data = Partitioned.lines(tmp_path)
    (tmp_path / "a.txt").unlink()
    with pytest.raises(NotFound, match=r"partition 'a.txt' cannot be read .*No such file"):
        first_batch(Partitioned({"a.txt": 1}, lambda name: (tmp_path / name).read_text().splitlines()))
    with pytest.raises(NotFound, match=r"partition 'a.txt' cannot be read"):
        first_batch(data)


def test_an_error_of_the_users_comes_as_it_is_and_can_be_tried_again() -> None:
    broken = [True]

    def rows(name: str) -> Iterator[int]:
        yield 0
        if broken:
            raise ValueError("bad record")
        yield 1

    source = feed(Partitioned({"a": 2}, rows), EpochPlan(2, 1, 2), shuffle=False)
    source.start(range(1), 0)
    with pytest.raises(ValueError, match="bad record"):
        source.take(0, 0)
    broken.clear()
    assert source.take(0, 0).data.tolist() == [0, 1]
    source.close()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: Partitioned({}, list), "the set has no partitions"),
        (lambda path: Partitioned([("a", 1), ("a", 1)], list), "two partitions are named 'a'"),
        (lambda path: Partitioned({"a": 1}, list, mode="virtaul"), "mode='virtaul' is not known"),
        (lambda path: Partitioned({"a": 1}, list, block=0), "block=0 must be"),
        (lambda path: Partitioned({"a": 1}, "a"), "open='a' cannot be called"),
        (lambda path: Partitioned.lines(path / "none"), "is not a folder"),
        (lambda path: Partitioned.npy(path), "matches '*.npy'"),
        (lambda path: Partitioned.npy(path, "*.txt"), "is no .npy file"),
        (lambda path: Partitioned.npy(path, "*.dat"), "holds no rows"),
        (lambda path: Partitioned.npy(path, "*.none"), "z.none' is no .npy file that can be read in rows (No data"),
        (
            lambda path: first_batch(Partitioned.lines(path, "*.latin")),
            "x.latin' has a line that is not UTF-8 ('utf-8'",
        ),
        (lambda path: Partitioned({"\udcff": 1}, list), r"a partition is named '\udcff', which is not UTF-8"),
        (lambda path: Partitioned.lines(path, counts={"b": 1}), "counts has no number for 'a.txt'"),
        (lambda path: Partitioned(["a", "b"], list), "'a' in partitions is no pair of name and number"),
        (lambda path: Partitioned(["ab"], list), "'ab' in partitions is no pair"),
        (lambda path: Partitioned(5, list), "partitions=5 lists nothing"),
        (lambda path: Partitioned.npy(3), "folder=3 must be a path"),
        (lambda path: Partitioned.npy(path, pattern=3), "pattern=3 must be a text"),
        (lambda path: Partitioned.lines(path, ""), "pattern='' cannot be"),
        (lambda path: Partitioned.lines(path, "/abs"), "pattern='/abs' cannot be"),
        (lambda path: Partitioned.lines(path, "*.txt", parse=3), "parse=3 cannot be called"),
        (lambda path: Partitioned.lines(path, "*.txt", counts=3), "counts=3 must be a mapping"),
        (lambda path: Partitioned.lines(path, "*.txt", counts={"a.txt": 1, "b": 1}), "counts has a number for 'b'"),
        (lambda path: Partitioned({"a": 1}, list)[3], "sample 3 of a Partitioned set was asked for by number"),
        (lambda path: next(iter(DataLoader(Partitioned({"a": 1}, list)))), "asked for by number"),
        (lambda path: feed(numbered([4]), EpochPlan(4, 1, 1), num_workers=2), "num_workers=2 does not go with"),
        (lambda path: Partitioned({"a": 0}, list).plan(1, 1, "exact"), "the dataset has 0 samples"),
        (lambda path: Partitioned({"a": 9}, list, mode="on_demand").plan(1, 1, "pad"), "uneven='pad' does not go with"),
        (lambda path: first_batch(Partitioned({"a": 1}, lambda name: 7)), "opening partition 'a' gave a int"),
    ],
)
def test_mistakes_are_answered_with_one_sentence(make: object, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("not an array\n")
    (tmp_path / "z.none").touch()
    (tmp_path / "x.latin").write_bytes(b"caf\xe9\n")
    with (tmp_path / "scalar.dat").open("wb") as file:
        np.save(file, np.float32(1))
    with pytest.raises(MelodeonError, match=re.escape(sentence)) as found:
        make(tmp_path)  # type: ignore[operator]
    assert "\n" not in str(found.value)


def test_importing_the_package_imports_neither_torch_nor_numpy() -> None:
    program = "import sys, melodeon.data; print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
