"""A fleet that keeps a zygote, with real jobs; their workers count instead of training."""

import asyncio
from pathlib import Path

from melodeon.coord.marks import read_mark
from tests.backends.fleets import Watcher, processes, scripted, watching
from tests.coord.running import gone


def how(folder: Path, job: str) -> str:
    """The module that its nursery was started as."""
    pid = read_mark(folder / job / f"{job}.1" / "agents" / "node0" / "nursery.pid")
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return words[words.index(b"-m") + 1].decode().rpartition(".")[2]


def said(folder: Path, job: str) -> str:
    return (folder / job / f"{job}.1" / "agents" / "node0" / "nursery.log").read_text()


def zygote_of(watcher: Watcher) -> int:
    assert watcher.fleet._warmth is not None
    assert watcher.fleet._warmth._process is not None
    return watcher.fleet._warmth._process.pid


def test_jobs_are_forked_of_it_as_far_as_it_can_be(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching(state_dir=tmp_path) as watcher:
            await watcher.trains(scripted(tmp_path, job="a", env={"COLOUR": "green"}), steps=1)
            assert (how(tmp_path, "a"), said(tmp_path, "a")) == ("zygote", "")
            await watcher.trains(scripted(tmp_path, job="b", env={"OMP_NUM_THREADS": "3"}), steps=1)
            assert how(tmp_path, "b") == "nursery"
            assert "other values of OMP_NUM_THREADS are needed from the start" in said(tmp_path, "b")
            zygote = zygote_of(watcher)
        assert gone(zygote)

    asyncio.run(scenario())
    assert not processes(tmp_path)


def test_one_that_was_killed_is_replaced_and_its_jobs_go_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching(state_dir=tmp_path) as watcher:
            seen = await watcher.trains(scripted(tmp_path, job="a"), steps=1)
            first = zygote_of(watcher)
            assert watcher.fleet._warmth is not None
            assert watcher.fleet._warmth._process is not None
            watcher.fleet._warmth._process.kill()
            watcher.fleet._warmth._process.wait()
            await watcher.trains(scripted(tmp_path, job="b"), steps=1)
            assert how(tmp_path, "b") == "zygote"
            assert zygote_of(watcher) != first
            await watcher.until(lambda now: now.step > seen.step, "a")

    asyncio.run(scenario())


def test_where_none_can_be_kept_nothing_is_missed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with watching(state_dir=tmp_path / "missing") as watcher:
            await watcher.trains(scripted(tmp_path, job="a"), steps=1)
            assert (how(tmp_path, "a"), said(tmp_path, "a")) == ("nursery", "")
            assert watcher.fleet._warmth is not None
            assert watcher.fleet._warmth._process is None

    asyncio.run(scenario())
