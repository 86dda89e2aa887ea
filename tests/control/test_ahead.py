"""Planned shares: the cluster played forward, as times in which jobs hold devices."""

import asyncio
from pathlib import Path

import pytest

from melodeon.control.forecast import Standing
from melodeon.control.infos import to_come
from melodeon.core.service import Device, Span
from tests.control.stage import Stage


def test_planned_shares_go_on_from_now_to_every_end(tmp_path: Path) -> None:
    async def act() -> None:
        async with Stage(tmp_path) as stage:
            jobs = [await stage.submit(name, steps=3000) for name in ("a", "b", "c")]
            engine, now = stage.controller.engine, stage.clock.now
            progress = engine.sight.progress(engine.state)
            played = Standing.of(engine.state, engine.world, engine.memory, progress, now).played()
            for job in jobs:
                shares = [share for share in played.shares if share.job == job.id]
                assert shares[0].began_at == pytest.approx(now, abs=0.01)
                assert shares[-1].ended_at == pytest.approx(played.ends[job.id])
                assert shares[0].devices == stage.controller.job(job.id).devices, "from where it is"
            for moment in sorted({share.began_at for share in played.shares}):
                held = [
                    (device.node, device.index)
                    for share in played.shares
                    if share.began_at <= moment < (share.ended_at or moment)
                    for device in share.devices
                ]
                assert len(held) == len(set(held)) <= 8, "nobody holds what another does"
            assert max(len(share.devices) for share in played.shares) > len(played.shares[0].devices), "it grows"

    asyncio.run(act())


def test_what_is_left_of_a_plan_begins_now() -> None:
    def span(began: float, ended: float) -> Span:
        return Span(job="a-1", devices=(Device(node="n", index=0, type="cpu"),), began_at=began, ended_at=ended)

    found = to_come([span(0, 5), span(5, 20), span(20, 40), span(60, 70)], now=10, until=50)
    assert [(share.began_at, share.ended_at) for share in found] == [(10, 20), (20, 40)]
