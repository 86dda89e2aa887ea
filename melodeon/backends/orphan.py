"""The end of a job that has outlived its launcher, written into `run.json` by a machine that took part.

The launcher is gone with its machine, and the job trained on through a store elsewhere. All that the launcher would
have judged by is there: the master's last state in the store, the workers' exits and the events in the run's folder.
"""

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from melodeon.backends.elastic_end import reason_of
from melodeon.backends.local import Event
from melodeon.backends.runs import Heard, write_record
from melodeon.backends.tail import events_in
from melodeon.coord.agent_config import AgentConfig, read_config
from melodeon.coord.master_state import MasterState
from melodeon.coord.store import StoreError, open_store


async def write_end(host: AgentConfig, token: str) -> None:
    """Write how the job ended, if its launcher cannot; `host` is what the job's folder tells guests."""
    if host.store.startswith("tcp:"):
        return  # the launcher's own store: the job cannot outlive it
    run_dir = Path(host.run_dir)
    try:
        async with open_store(host.store, token=token) as store:
            stored = await store.get(f"{host.prefix}state")
    except StoreError:
        return
    configs = [read_config(path) for path in run_dir.glob("agents/*/agent.json")]
    launchers = [config.agent for config in configs if not config.guest]
    if stored is None or not is_orphan(msgspec.json.decode(stored.value, type=MasterState), launchers):
        return
    heard, errors = Heard(), list[Event]()
    for _, event in events_in((run_dir / "events.jsonl").read_bytes()):
        heard.hear(event)
        if event.get("kind") == "error":
            errors.append(event)
    outcome = reason_of(stored.value, run_dir, errors)
    if outcome is not None:
        record = json.loads((run_dir / "run.json").read_text())
        seconds = (datetime.now(UTC) - datetime.fromisoformat(record["created"])).total_seconds()
        write_record(run_dir, {**record, **heard.ending(outcome, seconds)})


def is_orphan(state: MasterState, agents: Iterable[str]) -> bool:
    """Whether the launcher is lost, by its agents: one that lives starts them again."""
    return all(agent in state.agents and state.agents[agent].lost for agent in agents)
