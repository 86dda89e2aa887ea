"""What an agent is started with, in tests of its parts."""

from pathlib import Path

from melodeon.coord.agent_config import AgentConfig
from melodeon.coord.master_state import JobConfig


def make_config(folder: Path) -> AgentConfig:
    config = AgentConfig(
        job="j",
        run="r",
        agent="a",
        host="h",
        slots=1,
        run_dir=str(folder),
        socket=str(folder / "a.sock"),
        store="",
        argv=(),
        job_config=JobConfig(job="j"),
        ttl_s=0.6,
    )
    config.node_dir.mkdir(parents=True)
    return config
