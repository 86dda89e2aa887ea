"""The same bits on one GPU shared by 1, 2 and 4 worker processes, in both orders, and against stock DDP on 4.

Every run's state is digested after every step. Runs on a CPU too, where there is no GPU; the report says which it was.

    python benchmarks/cuda_bits.py
"""

import json
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

import torch
from _common import progress, report

from melodeon.backends.runs import Request, perform
from melodeon.core.launch import Launch

SCRIPT = str(Path(__file__).parent / "_cuda_case.py")


def digests(root: str, model: str, precision: str, launch: Launch) -> list[str]:
    """The state's digest after every step of one run."""
    outcome = perform(Request(script=SCRIPT, args=[model, precision], launch=launch, command=["cuda_bits"]))
    if not outcome.outcome.ok:
        logs = "\n".join(path.read_text() for path in sorted(outcome.run_dir.glob("worker-*.log")))
        raise SystemExit(f"{model} {precision} failed: {outcome.outcome.reason}\n{logs[-4000:]}")
    lines = (outcome.run_dir / "states.jsonl").read_text().splitlines()
    return [json.loads(line)["digest"] for line in lines]


def main() -> None:
    """Run every combination and compare."""
    cases = []
    with tempfile.TemporaryDirectory() as root:
        for model in ("cnn", "gpt"):
            for precision in ("fp32", "bf16"):
                for order in ("tree", "ddp"):
                    runs = {}
                    for counts in ((4,), (2, 2), (3, 1), (1, 1, 1, 1)):
                        launch = Launch(
                            num_workers=len(counts), counts=counts, order=order, determinism="D1", record_states=True, runs_root=root
                        )
                        runs[",".join(map(str, counts))] = digests(root, model, precision, launch)
                    if order == "ddp":
                        stock = Launch(
                            num_workers=4, order=order, determinism="D1", record_states=True, runs_root=root, engine="stock-ddp"
                        )
                        runs["stock DDP"] = digests(root, model, precision, stock)
                    first = runs["4"]
                    equal = {name: found == first for name, found in runs.items()}
                    cases.append({"model": model, "precision": precision, "order": order, "steps": len(first), "equal": equal})
                    progress(json.dumps(cases[-1]))
    good = all(all(case["equal"].values()) for case in cases)
    report(
        benchmark="cuda_bits",
        metric="runs whose every step has the same digest",
        value=sum(sum(case["equal"].values()) for case in cases),
        peer="all runs",
        peer_value=sum(len(case["equal"]) for case in cases),
        ratio=1.0 if good else 0.0,
        device="cuda" if torch.cuda.is_available() else "cpu",
        cases=cases,
    )
    raise SystemExit(0 if good else 6)


if __name__ == "__main__":
    main()
