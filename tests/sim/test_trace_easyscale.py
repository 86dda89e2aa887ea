from pathlib import Path

import pytest

from melodeon.core.cluster import Cluster, DeviceType
from melodeon.core.curve import ScalingCurve
from melodeon.core.errors import UsageError
from melodeon.core.jobs import Goal
from melodeon.sim.traces.easyscale_speeds import APPLICATIONS, CLUSTER, KINDS, P100, T4, V100, paying_d2
from melodeon.sim.traces.formats import read_trace
from melodeon.sim.traces.generate_easyscale import EasyScaleWorkload, generate_easyscale
from melodeon.sim.traces.rows import BadCell
from melodeon.sim.traces.throughputs import Throughputs

HEADER = "name,time,application,max_parallelism,batch_size,epochs,enable_heterogeneous_deterministic,preferred_gpu"
NONE = Throughputs({})


def write(tmp_path: Path, *rows: str, header: str = HEADER) -> Path:
    path = tmp_path / "workload.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_a_workload_is_read_by_its_columns(tmp_path: Path) -> None:
    rows = ["bert-0,115,bert,16,8,4,1,p100", "resnet50-1,90,resnet50,32,64,2,0,v100"]
    trace = read_trace(write(tmp_path, *rows), NONE)
    assert [job.id for job in trace.jobs] == ["resnet50-1", "bert-0"]
    resnet, bert = trace.jobs
    assert [kind for kind, _ in resnet.curves] == [V100], "no D2: its own type only"
    assert [kind for kind, _ in bert.curves] == [P100, V100, T4], "preferred first"
    assert (bert.requested_workers, bert.max_workers, bert.virtual_workers, bert.goal) == (16, 16, 16, Goal.BEST_EFFORT)
    assert bert.iterations == pytest.approx(4 * 0.01 * 88_641 / (8 * 16))
    # One P100 runs all 16 in turn, 5 run them in 4 turns, as 4 do.
    assert [bert.curves[0][1].rate(n) for n in (1, 4, 5, 16)] == pytest.approx([1 / 0.61 / t for t in (16, 4, 4, 1)])
    assert bert.duration_s == pytest.approx(bert.iterations * 0.61)


def test_the_published_header_s_trailing_column_and_short_rows_do_no_harm(tmp_path: Path) -> None:
    path = write(tmp_path, "a,1,bert,4,8,1,1,v100,0.4", "b,2,bert,4,8,1,40,v100", header=HEADER + ",")
    assert [len(job.curves) for job in read_trace(path, NONE).jobs] == [3, 3], "anything but 0 switches D2 on"


def test_a_name_used_twice_is_told_apart_by_its_line(tmp_path: Path) -> None:
    path = write(tmp_path, "a,1,bert,4,8,1,1,v100", "a,2,bert,4,8,1,1,v100", "a,3,bert,4,8,1,1,v100")
    assert [job.id for job in read_trace(path, NONE).jobs] == ["a", "a@3", "a@4"]


def test_measured_speeds_go_before_the_built_in_ones(tmp_path: Path) -> None:
    tables = Throughputs({("bert", 8): ((V100, ScalingCurve(((1, 5.0), (2, 8.0)))),)})
    job = read_trace(write(tmp_path, "a,1,bert,4,8,1,1,v100"), tables).jobs[0]
    assert job.rate(((V100, 1),)) == pytest.approx(5.0 / 4)
    assert job.rate(((T4, 1),)) == pytest.approx(1 / 0.68 / 4)


@pytest.mark.parametrize(
    ("row", "column", "problem"),
    [
        ("b,x,bert,4,8,1,1,v100", "time", "'x' is not a number"),
        ("b,1,bart,4,8,1,1,v100", "application", "'bart' is not known: there are bert"),
        ("b,1,bert,0,8,1,1,v100", "max_parallelism", "must be at least 1"),
        ("b,1,bert,4,8.5,1,1,v100", "batch_size", "not a whole number"),
        ("b,1,bert,4,8,0,1,v100", "epochs", "must be above 0"),
        ("b,1,bert,4,8,1,yes,v100", "enable_heterogeneous_deterministic", "'yes' is not a number"),
        ("b,1,bert,4,8,1,1,a100", "preferred_gpu", "'a100' is not one of v100, p100, t4"),
        ("b,1,bert,4,8,1,1", "preferred_gpu", "the row has none"),
        (",1,bert,4,8,1,1,v100", "name", "it is empty"),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_column_or_counted(
    tmp_path: Path, row: str, column: str, problem: str
) -> None:
    path = write(tmp_path, "ok,1,bert,4,8,1,1,v100", row)
    with pytest.raises(BadCell, match=problem) as caught:
        read_trace(path, NONE)
    assert str(caught.value).startswith(f"{path}, line 3, column {column!r}: ")
    trace = read_trace(path, NONE, skip_bad=True)
    assert len(trace.jobs) == 1
    assert [(bad.line, bad.column) for bad in trace.bad] == [(3, column)]


def test_d2_is_paid_by_jobs_that_may_mix_and_by_nobody_else(tmp_path: Path) -> None:
    rows = ["a,1,swintransformer,4,32,1,1,v100", "b,2,resnet50,4,64,1,0,v100", "c,3,resnet50,4,64,1,1,v100"]
    jobs = read_trace(write(tmp_path, *rows), NONE).jobs
    factors = [job.rate(((V100, 1),)) / paying_d2(job).rate(((V100, 1),)) for job in jobs]
    assert factors == pytest.approx([1.04, 1.0, 2.3])


def test_speeds_have_the_paper_s_ratios() -> None:
    def ratio(name: str) -> float:
        application = APPLICATIONS[name]
        return application.rate(V100, application.batch_size) / application.rate(T4, application.batch_size)

    assert ratio("resnet50") == pytest.approx(2.45, rel=0.01)
    assert ratio("bert") == pytest.approx(1.55, rel=0.01)
    assert dict(Cluster.parse(CLUSTER).capacity) == dict(zip(KINDS, (32, 16, 16), strict=True))


def test_a_generated_workload_is_its_seed_s() -> None:
    spec = EasyScaleWorkload(num_jobs=300, seed=4)
    trace = generate_easyscale(spec)
    assert trace == generate_easyscale(spec)
    assert trace != generate_easyscale(EasyScaleWorkload(num_jobs=300, seed=5))
    assert 60 < trace.jobs[-1].submit_s / 299 < 80
    room: dict[DeviceType, int] = dict(Cluster.parse(CLUSTER).capacity)
    for job in trace.jobs:
        assert job.requested_workers <= room[job.curves[0][0]], "a gang always fits"
        assert (len(job.curves) == 3) == APPLICATIONS[job.model].mixes
    with pytest.raises(UsageError):
        EasyScaleWorkload(num_jobs=0)
