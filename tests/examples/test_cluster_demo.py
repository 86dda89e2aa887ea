"""The cluster's demo as a person runs it: real processes, killed on the way."""

import os
from pathlib import Path

import pytest

from examples import cluster_demo
from melodeon.cli.jobfile import read_job
from melodeon.core.service import JobInfo, Phase
from melodeon.core.spec import read_spec


@pytest.mark.parametrize("file", sorted(cluster_demo.JOBS.glob("*.yaml")), ids=lambda file: file.name)
def test_every_job_file_can_be_read(file: Path) -> None:
    if file.name == "topology.yaml":
        from melodeon.backends.devices import read_topology

        assert sum(node.num_devices for node in read_topology(file).nodes) == 4
        return
    spec = read_job(str(file), {})
    assert (spec.workdir, spec.run[0]) == (str(cluster_demo.JOBS), "train.py")
    assert read_spec(spec.to_json()) == spec


def test_the_table_fits_eighty_columns() -> None:
    from rich.console import Console

    specs = [read_job(str(cluster_demo.JOBS / one.file), one.flags) for one in cluster_demo.six(9)]
    names = [f"{spec.name}-{number}" for number, spec in enumerate(specs, start=1)]
    ended = [
        JobInfo(
            id=name,
            name=name,
            user="ann",
            phase=Phase.REJECTED if name.startswith("tight") else Phase.DONE,
            goal="soft",
            submitted_at=0.0,
            deadline_at=10.0,
            finished_at=99.0,
            step=1000,
            digest=None if name.startswith("tight") else "ab" * 32,
        )
        for name in names
    ]
    console = Console(width=80)
    with console.capture() as made:
        console.print(cluster_demo.table(ended, {names[0]: "ab" * 32}), width=80)
    lines = made.get().splitlines()
    assert max(map(len, lines)) <= 80
    assert len([line for line in lines if line.strip()]) == 2 + len(ended), "no line is broken"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_jobs_survive_and_end_with_the_bits_of_undisturbed_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", os.environ.get("XDG_RUNTIME_DIR", ""))  # put back afterwards
    assert cluster_demo.main(["--steps", "60"]) == 0
    out = capsys.readouterr().out
    assert (out.count(" equal"), "tight-6" in out, out.count("(SIGKILL)")) == (5, True, 2)
