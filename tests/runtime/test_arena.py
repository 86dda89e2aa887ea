"""Segments that several workers map, and that nobody can leave behind."""

from pathlib import Path

import pytest
import torch

from melodeon.runtime import arena
from melodeon.runtime.group import Group
from tests.runtime.descriptors import open_memory
from tests.runtime.threads import on_workers

SIZES = (1, 4096, 100_000)


def test_what_one_worker_writes_all_of_them_see() -> None:
    def work(group: Group) -> list[int]:
        segments = arena.map_segments(group, SIZES)
        assert segments is not None
        assert [segment.numel() for segment in segments] == list(SIZES)
        segments[group.rank].fill_(group.rank + 1)
        group.barrier()
        return [int(segment[-1]) for segment in segments]

    assert on_workers(3, work) == [[1, 2, 3]] * 3


def test_a_segment_has_no_name_and_no_open_file_after_its_view() -> None:
    def work(group: Group) -> torch.Tensor | None:
        segments = arena.map_segments(group, SIZES[:2])
        return None if segments is None else segments[group.rank]

    folder = Path("/dev/shm")
    named = set(folder.iterdir())
    segments = on_workers(2, work)
    assert None not in segments
    assert not [path for path in set(folder.iterdir()) - named if "melodeon" in path.name]
    assert not open_memory()


def test_a_second_segment_takes_the_place_of_the_first() -> None:
    def work(group: Group) -> list[str]:
        for _ in range(3):  # as a job does that cuts its buckets anew
            assert arena.map_segments(group, SIZES[:2]) is not None
        group.barrier()
        found = open_memory()
        group.barrier()
        return found

    assert [len(found) for found in on_workers(2, work)] == [2, 2]  # one for each of the two, who share this process


@pytest.mark.parametrize("hinder", ["memory", "another host"])
def test_if_one_cannot_all_take_sockets_and_keep_nothing(hinder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if hinder == "memory":
        reserve = arena.reserve
        monkeypatch.setattr(arena, "reserve", lambda size: None if size == SIZES[1] else reserve(size))
    else:
        hosts = iter(["one", "other"])
        monkeypatch.setattr(arena, "_host_id", lambda: next(hosts))

    def work(group: Group) -> tuple[list[torch.Tensor] | None, list[str]]:
        segments = arena.map_segments(group, SIZES[:2])
        group.barrier()
        return segments, open_memory()

    assert on_workers(2, work) == [(None, []), (None, [])]
