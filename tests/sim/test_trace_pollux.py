from pathlib import Path

import pytest

from melodeon.core.cluster import Cluster, DeviceType
from melodeon.core.errors import MelodeonError, NotFound
from melodeon.core.jobs import Goal
from melodeon.sched.pollux import Pollux
from melodeon.sim.engine import SimConfig, Simulation
from melodeon.sim.traces.formats import read_trace
from melodeon.sim.traces.pollux_tables import read_application
from melodeon.sim.traces.rows import BadCell
from melodeon.sim.traces.throughputs import Throughputs

HEADER = "name,time,application,num_replicas,batch_size\n"
NONE = Throughputs({}, kinds=(DeviceType("T4"),))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Steps of 0.1 s and 0.01 s an example; two replicas on one node wait 0.1 s, on two nodes 0.3 s."""
    folder = tmp_path / "traces" / "bert"
    folder.mkdir(parents=True)
    rows = ["placement,local_bsz,step_time,sync_time"]
    for placement, sync_s in (("1", 0.0), ("2", 0.1), ("11", 0.3), ("4", 0.2)):
        rows += [f"{placement},{local},{0.1 + 0.01 * local + sync_s},{sync_s}" for local in (8, 16)]
    (folder / "placements.csv").write_text("\n".join(rows) + "\n")
    (folder / "scalability.csv").write_text(
        "num_nodes,num_replicas,local_bsz,step_time,sync_time\n2,8,8,0.5,0.3\n2,8,16,0.6,0.3\n"
    )
    for batch, iterations in ((16, 1000), (64, 400)):
        (folder / f"validation-{batch}.csv").write_text(
            f"progress,iteration,metric,grad_sqr,grad_var\n500,1,0,1,1\n1000,{iterations},0,1,1\n"
        )
    (tmp_path / "workloads").mkdir()
    return tmp_path


def write(data: Path, rows: str) -> Path:
    path = data / "workloads" / "workload-1.csv"
    path.write_text(HEADER + rows)
    return path


def test_curves_come_from_the_measured_steps(data: Path) -> None:
    application = read_application(data / "traces" / "bert")
    curve = application.curve(32)
    assert curve is not None
    # One device does 32 in two passes of 16; two and four hold it; 4 examples each on 8 were never measured.
    assert dict(curve.points) == {1: pytest.approx(1 / 0.52), 2: pytest.approx(1 / 0.36), 4: pytest.approx(1 / 0.38)}
    assert dict(curve.spread)[2] == pytest.approx(1 / 0.56)
    assert application.curve(4) is None
    assert dict(application.curve(96).points)[8] == pytest.approx(1 / 0.55)  # type: ignore[union-attr]


def test_the_noise_scale_makes_training_as_long_as_it_was(data: Path) -> None:
    application = read_application(data / "traces" / "bert")
    assert application.iterations(16) == pytest.approx(1000)
    assert application.iterations(64) == pytest.approx(400)
    # An example at 64 is worth 1000 * 16 / (400 * 64) of one at 16.
    assert (application.noise_scale + 16) / (application.noise_scale + 64) == pytest.approx(0.625)
    model = application.goodput(32)
    assert (model.min_batch_size, model.batch_size, model.max_batch_size) == (16, 32, 64)
    assert model.compute == pytest.approx(0.32 / 0.52)


def test_a_workload_becomes_jobs_that_pollux_can_run(data: Path) -> None:
    trace = read_trace(write(data, "b,20,bert,2,32\na,10,bert,1,16\n"), NONE)
    assert [job.id for job in trace.jobs] == ["a", "b"]
    second = trace.jobs[1]
    assert (second.submit_s, second.requested_workers, second.batch_size, second.model) == (20.0, 2, 32, "bert")
    assert (second.goal, second.deadline_s) == (Goal.BEST_EFFORT, None)
    assert [kind for kind, _ in second.curves] == ["T4"]
    result = Simulation(SimConfig(cluster=Cluster.parse("1x4:T4")), trace.jobs, Pollux()).run().result()
    assert all(o.finished_s is not None for o in result.outcomes)


@pytest.mark.parametrize(
    ("row", "column", "problem"),
    [
        ("a,x,bert,1,16", "time", "'x' is not a number"),
        ("a,1,gpt,1,16", "application", "'gpt' was not measured: there are tables for bert"),
        ("a,1,bert,0,16", "num_replicas", "must be at least 1"),
        ("a,1,bert,1,4", "batch_size", "not measured below 8 examples"),
        ("a,1,bert,1", "batch_size", "the row has none"),
    ],
)
def test_a_bad_row_is_named(data: Path, row: str, column: str, problem: str) -> None:
    path = write(data, row + "\n")
    with pytest.raises(BadCell, match=problem) as caught:
        read_trace(path, NONE)
    assert str(caught.value).startswith(f"{path}, line 2, column {column!r}: ")
    assert len(read_trace(path, NONE, skip_bad=True).bad) == 1


def test_the_tables_are_found_from_inside_the_workloads_folder(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(data, "a,1,bert,1,16\n").parent)
    assert len(read_trace(Path("workload-1.csv"), NONE).jobs) == 1


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("validation-x.csv", "", "validation-x.csv is not named after a batch size"),
        ("placements.csv", "placement,local_bsz,step_time,sync_time\n4a,8,1,1\n", "'4a' must be a digit a node"),
        ("placements.csv", "placement,local_bsz,step_time,sync_time\n4,8,1,1\n", "has no step times of 1 replica"),
    ],
)
def test_damaged_tables_are_named(data: Path, file: str, text: str, problem: str) -> None:
    (data / "traces" / "bert" / file).write_text(text)
    with pytest.raises(MelodeonError, match=problem):
        read_application(data / "traces" / "bert")


def test_a_workload_without_its_tables_is_refused(tmp_path: Path) -> None:
    (tmp_path / "workloads").mkdir()
    with pytest.raises(NotFound, match="needs a folder of measurements"):
        read_trace(write(tmp_path, "a,1,bert,1,16\n"), NONE)
