"""What `status` answers: the whole job in plain values."""

from typing import Any

from melodeon.coord.master_state import MasterState, WorkerInfo
from melodeon.coord.messages import Phase
from melodeon.coord.pace import rates


def status_values(state: MasterState) -> dict[str, Any]:
    """For people and for programs."""
    changes = ([state.current] if state.current else []) + state.queue
    return {
        "job": state.config.job,
        "phase": state.outcome or str(state.phase),
        "generation": state.generation,
        "step": committed(state),
        "total_steps": state.total_steps,
        "steps_per_epoch": state.steps_per_epoch,
        "virtual_workers": state.virtual_workers or None,
        "metrics": state.metrics,
        "rates": {str(size): rate for size, rate in rates(state).items()},
        "slots": state.slots,
        "workers": [_worker(state, info) for info in state.workers.values() if info.phase is not Phase.GONE],
        "queue": [{"what": c.what, "reason": c.reason, "stage": str(c.stage), "notes": c.notes} for c in changes],
        "restarts_left": state.restarts_left,
        "history": state.history,
        "agents": [{"agent": a.agent, "host": a.host, "slots": a.slots, "lost": a.lost} for a in state.agents.values()],
        "batch_factor": state.batch[0],
        "text": state.text,
    }


def committed(state: MasterState) -> int:
    """The highest step that anybody has reported."""
    return max((info.step for info in state.workers.values()), default=-1)


def _worker(state: MasterState, info: WorkerInfo) -> dict[str, Any]:
    ranks = ""
    rank = state.view.rank_of(info.worker) if state.view else None
    if rank is not None and state.view is not None:
        run = state.view.assignment.ranks_of(rank)
        ranks = f"{run.start}-{run.stop - 1}" if len(run) > 1 else str(run.start)
    busy_s = sorted(info.busy_s)
    agent = state.agents.get(info.agent)
    return {
        "worker": info.worker,
        "agent": info.agent,
        "slot": info.slot,
        "host": agent.host if agent else "",
        "pid": info.pid,
        "phase": str(info.phase),
        "ranks": ranks,
        "step": info.step,
        "busy_ms": round(busy_s[len(busy_s) // 2] * 1000, 3) if busy_s else 0.0,
        "generation": info.generation,
        "released": info.released,
    }
