"""Agents as processes: when another start would be of no use."""

import os
import selectors
from pathlib import Path

import msgspec

from melodeon.backends.agents import kept_agents
from melodeon.core.errors import NotFound
from tests.coord.agent_config import make_config


def test_an_agent_of_a_job_that_has_ended_is_not_started_again_and_again(tmp_path: Path) -> None:
    config = msgspec.structs.replace(make_config(tmp_path), guest=True, token_file=str(tmp_path / ".token"))
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
    assert str(agents.hopeless) == f"job j has ended: {tmp_path}/.token is gone with its launcher"
    assert len((config.node_dir / "agent.log").read_text().splitlines()) == 1
