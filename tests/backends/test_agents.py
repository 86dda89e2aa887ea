"""Agents as processes: when another start would be of no use."""

import os
import selectors
from pathlib import Path

from melodeon.backends.agents import kept_agents
from melodeon.coord.agent_config import AgentConfig
from melodeon.coord.master_state import JobConfig
from melodeon.core.errors import NotFound


def test_an_agent_of_a_job_that_has_ended_is_not_started_again_and_again(tmp_path: Path) -> None:
    config = AgentConfig(
        job="x",
        run="r",
        agent="guest",
        host="guest",
        slots=1,
        run_dir=str(tmp_path),
        socket=str(tmp_path / "agent"),
        store=f"unix:{tmp_path}/store",
        token_file=str(tmp_path / ".token"),
        argv=("train.py",),
        job_config=JobConfig(job="x"),
        guest=True,
    )
    with (
        selectors.DefaultSelector() as selector,
        kept_agents(dict(os.environ), selector, begun=lambda: True) as agents,
    ):
        agents.describe(config)
        agents.start()
        while agents.are_needed:
            for key, _ in selector.select():
                key.data()
    assert isinstance(agents.hopeless, NotFound)
    assert str(agents.hopeless) == f"job x has ended: {tmp_path}/.token is gone with its launcher"
    assert len((config.node_dir / "agent.log").read_text().splitlines()) == 1
