"""Segments that several workers map, and that nobody can leave behind."""

from pathlib import Path

import pytest
import torch

from melodeon.runtime import arena
from melodeon.runtime.group import Group
from tests.runtime.threads import on_workers

SIZES = (1, 4096, 100_000)


def open_segments() -> list[str]:
    opened = [path.readlink().name for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [name for name in opened if name.startswith("memfd:melodeon")]


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
    assert not open_segments()


@pytest.mark.parametrize("hinder", ["memory", "another host"])
def test_if_one_cannot_all_take_sockets(hinder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if hinder == "memory":
        made = arena._make
        monkeypatch.setattr(arena, "_make", lambda size: None if size == SIZES[1] else made(size))
    else:
        hosts = iter(["one", "other"])
        monkeypatch.setattr(arena, "_host_id", lambda: next(hosts))
    assert on_workers(2, lambda group: arena.map_segments(group, SIZES[:2])) == [None, None]
    assert not open_segments()
