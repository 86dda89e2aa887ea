"""The same bits on one GPU shared by 1, 2 and 4 worker processes, in both orders, and against stock DDP on 4.

Every run's state is digested after every step. Runs on a CPU too, where there is no GPU; the report says which it was.

    python benchmarks/cuda_bits.py [--models cnn,gpt] [--precisions fp32,bf16] [--orders tree,ddp]
"""

import argparse
import json
import tempfile
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from _common import progress, report

from melodeon.backends.runs import Request, perform
from melodeon.core.launch import Launch

SCRIPT = str(Path(__file__).parent / "_cuda_case.py")


def digests(model: str, precision: str, launch: Launch) -> list[str]:
    """The state's digest after every step of one run."""
    outcome = perform(Request(script=SCRIPT, args=[model, precision], launch=launch, command=["cuda_bits"]))
    if not outcome.outcome.ok:
        logs = "\n".join(path.read_text() for path in sorted(outcome.run_dir.glob("worker-*.log")))
        raise SystemExit(f"{model} {precision} failed: {outcome.outcome.reason}\n{logs[-4000:]}")
    lines = (outcome.run_dir / "states.jsonl").read_text().splitlines()
    return [json.loads(line)["digest"] for line in lines]


def compare(model: str, precision: str, order: str, root: str) -> dict[str, Any]:
    """Train at every split, and with stock DDP where the order is DDP's."""
    common = Launch(order=order, determinism="D1", record_states=True, runs_root=root)
    runs = {}
    for counts in ((4,), (2, 2), (3, 1), (1, 1, 1, 1)):
        launch = replace(common, num_workers=len(counts), counts=counts)
        runs[",".join(map(str, counts))] = digests(model, precision, launch)
    if order == "ddp":
        runs["stock DDP"] = digests(model, precision, replace(common, num_workers=4, engine="stock-ddp"))
    first = runs["4"]
    equal = {name: found == first for name, found in runs.items()}
    return {"model": model, "precision": precision, "order": order, "steps": len(first), "equal": equal}


def main() -> None:
    """Run every combination and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="cnn,gpt")
    parser.add_argument("--precisions", default="fp32,bf16")
    parser.add_argument("--orders", default="tree,ddp")
    options = parser.parse_args()
    chosen = [text.split(",") for text in (options.models, options.precisions, options.orders)]
    cases = []
    with tempfile.TemporaryDirectory() as root:
        for model, precision, order in product(*chosen):
            cases.append(compare(model, precision, order, root))
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
