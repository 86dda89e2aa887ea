"""How an elastic job ended, from what it left: the master's last state, the workers' exits, the errors they sent."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from melodeon.backends.outcome import STOPPED, Exit, Outcome, judge
from melodeon.coord.agent_workers import End
from melodeon.coord.lastwords import read_last_words
from melodeon.coord.master_state import MasterState


def reason_of(stored: bytes | None, run_dir: Path, errors: Sequence[Mapping[str, object]]) -> Outcome | None:
    """The outcome, or None where the job had not come to one."""
    if stored is None:
        return None
    state = msgspec.json.decode(stored, type=MasterState)
    if not state.outcome:
        return None
    if state.outcome == "failed":
        if state.failed is not None:  # it may have been ended before its error event was written
            worker, code = state.failed
            return Outcome(exit_code=code or 1, worker=worker, reason=state.text)
        left = read_last_words(run_dir).values()
        told = [{"worker": one.worker, "text": one.error, "exit_code": one.exit_code} for one in left if one.error]
        return _failed(state.text, [*errors, *told])
    if state.outcome == "stopped":
        return STOPPED
    finished = {info.worker for info in state.workers.values() if info.finished}
    if not any((run_dir / f"worker-{worker}.log").exists() for worker in finished):
        text = "the store says that the job is done, but no worker of this run has trained: see agents/*/agent.log in"
        return Outcome(exit_code=1, reason=f"{text} {run_dir}")
    # Trained to the end; what a script does after that can still fail.
    exits = [
        Exit(worker=worker, code=end.code, told=False)
        for path in sorted(run_dir.glob("agents/*/ends.json"))
        for worker, end in msgspec.json.decode(path.read_bytes(), type=dict[int, End]).items()
        if worker in finished and end.code is not None
    ]
    return judge(exits, errors, cancelled=False)


def _failed(text: str, errors: Sequence[Mapping[str, object]]) -> Outcome:
    """The master knows the sentence; the worker's error event or last words say which exit code it stands for."""
    named = re.match(r"worker (\d+) (failed: )?", text)
    culprit = int(named[1]) if named else None
    for error in errors:
        told, worker = str(error.get("text", "")), error.get("worker")
        is_another = named is not None and named[2] is not None and worker != culprit  # with the same words
        if told and told in text and not is_another:
            code = error.get("exit_code")
            return Outcome(
                exit_code=code if isinstance(code, int) and code else 1,
                worker=worker if isinstance(worker, int) else None,
                reason=text,
            )
    return Outcome(exit_code=1, worker=culprit, reason=text)
