"""The service on this machine's GPUs: a job gives its devices to one with a deadline, and ends with the same bits.

A job of best effort has the whole cluster. One with a deadline comes; its speed is measured, it is admitted, and gets
what it needs, so the first one shrinks or is suspended, and goes on afterwards. Both are then trained once more, alone.
The figure is the number of jobs whose digest is the same. Runs on CPU slots too, where there is no GPU; the report says
which it was.

    python benchmarks/cuda_cluster.py [--steps 1500] [--urgent-steps 300]
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from _cluster import Served
from _common import ROOT, progress, report

from melodeon.client import Cluster
from melodeon.core.service import JobInfo, Phase

JOBS = ROOT / "examples" / "cluster"
LONGEST_S = 240.0


def job_file(name: str, steps: int, width: int, **more: object) -> dict[str, object]:
    """What is submitted."""
    run = ["train.py", "--width", str(width)]
    return {
        "name": name,
        "run": run,
        "workdir": str(JOBS),
        "virtual_workers": 4,
        "workers": "1-4",
        "steps": steps,
    } | more


def until_running(client: Cluster, job: str) -> None:
    """Follow the log until it trains."""
    for _ in client.follow_events(0, job=job):
        if client.job(job).phase is Phase.RUNNING:
            return


def alone(steps: int, width: int, folder: Path) -> str:
    """The digest of the same job, undisturbed, on one worker of the same kind of device."""
    command = [sys.executable, "-m", "melodeon", "run", "--json", "--quiet", "--runs-root", str(folder)]
    done = subprocess.run(
        [*command, "--steps", str(steps), str(JOBS / "train.py"), "--width", str(width)],
        capture_output=True,
        text=True,
        check=True,
    )
    return str(json.loads(done.stdout.splitlines()[-1])["digest"])


def main() -> None:
    """Two jobs, and the same two alone."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--urgent-steps", type=int, default=300)
    options = parser.parse_args()
    sizes = {"long": (options.steps, 512), "urgent": (options.urgent_steps, 256)}
    began = time.monotonic()
    with Served([], root=JOBS) as served:
        client = served.client
        nodes = [f"{node.id}: {node.num_devices} x {node.type}" for node in client.nodes()]
        progress(", ".join(nodes))
        first = client.submit(job_file("long", *sizes["long"])).job.id
        until_running(client, first)
        answer = client.submit(job_file("urgent", *sizes["urgent"], deadline="2m"))
        progress(answer.text.splitlines()[0])
        ended: dict[str, JobInfo] = {}
        for name, job in (("urgent", answer.job.id), ("long", first)):
            ended[name] = client.wait(job, LONGEST_S)
            progress(f"{time.monotonic() - began:.0f} s  {name} is {ended[name].phase.value}")
            for sentence in client.story(job):
                progress(f"        {sentence.text}")
        folder = served.state.parent / "alone"
        digests = {name: alone(*size, folder) for name, size in sizes.items()}
    equal = {name: job.digest == digests[name] for name, job in ended.items()}
    report(
        benchmark="cuda_cluster",
        metric="jobs of the service with the digest of an undisturbed run",
        value=sum(equal.values()),
        peer="the same jobs alone",
        peer_value=len(equal),
        ratio=sum(equal.values()) / len(equal),
        equal=equal,
        phases={name: job.phase.value for name, job in ended.items()},
        starts={name: job.incarnation for name, job in ended.items()},
        nodes=nodes,
    )
    if not all(equal.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
