"""Readers of traces that say when, how long and on how many devices: Philly, Helios, Alibaba PAI, Tiresias."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from melodeon.core.cluster import DeviceType
from melodeon.core.curve import ScalingCurve
from melodeon.core.errors import NotFound, UsageError
from melodeon.sim.traces.formats import FORMATS, read_trace
from melodeon.sim.traces.rows import BadCell
from melodeon.sim.traces.throughputs import Throughputs
from melodeon.sim.traces.tiresias import read_cluster_spec

A100 = DeviceType("A100")
BERT = ScalingCurve(((1, 1.0), (2, 1.8), (4, 3.0)))
VGG = ScalingCurve(((1, 2.0), (2, 3.0), (4, 4.0)))
TABLES = Throughputs({("bert", 64): ((A100, BERT),), ("vgg16", 32): ((A100, VGG),)})
LINEAR = Throughputs({}, (A100,))

HELIOS = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
HELIOS_ROWS = (
    "7,u1,vc1,2,8,1,COMPLETED,2020-06-09 18:41:01,2020-06-09 18:42:01,2020-06-09 18:52:01,600,60\n"
    "8,u2,vc1,0,8,1,COMPLETED,2020-06-09 18:40:00,2020-06-09 18:42:01,2020-06-09 18:52:01,600,60\n"
    "9,u2,vc2,1,8,1,FAILED,2020-06-09 18:41:31,2020-06-09 18:42:01,2020-06-09 18:43:01,60,30\n"
    "10,u2,vc2,1,8,1,CANCELLED,2020-06-09 18:41:31,,,0,30\n"
)
TIRESIAS = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
PHILLY_CSV = "timestamp,duration,num_gpus,gpu_time,cluster\n"


def attempt(start: str | None, end: str | None, *gpus: int) -> dict[str, object]:
    return {
        "start_time": start and f"2017-10-07 {start}",
        "end_time": end and f"2017-10-07 {end}",
        "detail": [{"ip": f"m{n}", "gpus": [f"gpu{k}" for k in range(count)]} for n, count in enumerate(gpus)],
    }


def philly_job(name: str, submitted: str, *attempts: dict[str, object]) -> dict[str, object]:
    return {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": name,
        "attempts": list(attempts),
        "submitted_time": f"2017-10-07 {submitted}",
        "user": "ce2f4c",
    }


PHILLY = [
    philly_job("b", "01:10:00", attempt("01:20:00", "01:21:00", 8), attempt("01:30:00", "01:40:00", 8, 4)),
    philly_job("a", "01:00:00", attempt("01:00:30", "01:01:30", 1), attempt("01:01:40", None, 1)),
    philly_job("never", "00:30:00"),
    philly_job("lost", "00:30:00", attempt(None, "01:40:00", 2)),
]
"""Of the four, two ran: `a` for 60 s on 1 device, `b` for 60 + 600 s, at last on 12."""


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def write_pai(folder: Path, jobs: str, tasks: str) -> Path:
    write(folder, tasks, "pai_task_table.csv")
    return write(folder, jobs, "pai_job_table.csv")


PAI_JOBS = (
    "j1,i1,u1,Terminated,1000.0,1700.0\nj2,i2,u2,Failed,1100.0,\n"
    "j3,i3,u1,Terminated,900.0,950.0\nj4,i4,u1,Running,990.0,\n"
)
PAI_TASKS = (
    "j1,ps,1.0,Terminated,1010.0,1700.0,600.0,29.3,,\n"
    "j1,worker,4.0,Terminated,1010.0,1600.0,600.0,29.3,50.0,T4\n"
    "j1,chief,1.0,Terminated,1005.0,1610.0,600.0,29.3,25.0,T4\n"
    "j2,worker,2.0,Failed,1100.0,1200.0,600.0,29.3,100.0,V100\n"
    "j3,worker,2.0,Terminated,910.0,950.0,600.0,29.3,0.0,\n"
    "j4,worker,2.0,Running,995.0,,600.0,29.3,100.0,V100\n"
)


def test_helios(tmp_path: Path) -> None:
    trace = read_trace(write(tmp_path, HELIOS + HELIOS_ROWS), TABLES)
    found = [(job.id, job.submit_s, job.duration_s, job.requested_workers, job.user) for job in trace.jobs]
    assert found == [("7", 0.0, 600.0, 2, "u1"), ("9", 30.0, 60.0, 1, "u2")]
    assert (trace.num_other, trace.bad) == (2, ())


def test_philly(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps(PHILLY, indent=1), "cluster_job_log")
    trace = read_trace(path, TABLES)
    found = [(job.id, job.submit_s, job.duration_s, job.requested_workers, job.user) for job in trace.jobs]
    assert found == [("a", 0.0, 60.0, 1, "ce2f4c"), ("b", 600.0, 660.0, 12, "ce2f4c")]
    assert trace.num_other == 2


def test_philly_on_one_long_line_and_gzipped(tmp_path: Path) -> None:
    jobs = [philly_job(f"job{n}", "01:00:00", attempt("01:00:00", "01:00:10", 2)) for n in range(2000)]
    path = tmp_path / "cluster_job_log.gz"
    path.write_bytes(gzip.compress(json.dumps(jobs).encode()))
    assert len(read_trace(path, LINEAR).jobs) == 2000


def test_philly_as_csv(tmp_path: Path) -> None:
    rows = "2017-10-09 07:01:55,66.0,1,66.0,11cb48\n2017-10-09 06:13:03,2951.0,4,11804.0,6214e9\n"
    rows += "2017-10-09 06:13:03,0.0,2,0.0,6214e9\n"
    trace = read_trace(write(tmp_path, PHILLY_CSV + rows), TABLES)
    assert [(job.id, job.submit_s, job.user) for job in trace.jobs] == [
        ("line3", 0.0, "6214e9"),
        ("line2", 2932.0, "11cb48"),
    ]
    assert trace.num_other == 1, "one that never ran"


@pytest.mark.parametrize("given", ["pai_job_table.csv", "pai_task_table.csv"])
@pytest.mark.parametrize("with_header", [False, True])
def test_pai(tmp_path: Path, given: str, with_header: bool) -> None:
    jobs, tasks = PAI_JOBS, PAI_TASKS
    if with_header:
        jobs = "job_name,inst_id,user,status,start_time,end_time\n" + jobs
        tasks = "job_name,task_name,inst_num,status,start_time,end_time,plan_cpu,plan_mem,plan_gpu,gpu_type\n" + tasks
    write_pai(tmp_path, jobs, tasks)
    trace = read_trace(tmp_path / given, TABLES)
    found = [(job.id, job.submit_s, job.duration_s, job.requested_workers) for job in trace.jobs]
    # 4 x 0.5 + 0.25 devices, from the chief's start to its end; the job without a device and the running one are out.
    assert found == [("j1", 0.0, 605.0, 3), ("j2", 100.0, 100.0, 2)]
    assert trace.num_other == 2


def test_pai_finds_a_gzipped_partner_and_says_when_there_is_none(tmp_path: Path) -> None:
    path = write(tmp_path, PAI_JOBS, "pai_job_table.csv")
    with pytest.raises(NotFound, match=r"pai_task_table\.csv is not there: the two PAI tables must lie in one folder"):
        read_trace(path, TABLES)
    (tmp_path / "pai_task_table.csv.gz").write_bytes(gzip.compress(PAI_TASKS.encode()))
    assert len(read_trace(path, TABLES).jobs) == 2
    with pytest.raises(UsageError, match="has neither job_table nor task_table in its name"):
        read_trace(write(tmp_path, PAI_JOBS, "jobs.csv"), TABLES)


def test_tiresias_keeps_recorded_iterations_and_takes_a_table_s_shape(tmp_path: Path) -> None:
    path = write(tmp_path, TIRESIAS + "0,2,5,300,vgg16,100,30\n1,1,35,50,unheard,10,30\n")
    first, second = read_trace(path, TABLES).jobs
    assert (first.submit_s, first.iterations, first.model, first.batch_size) == (0.0, 300.0, "vgg16", 32)
    assert first.curves[0][1].rate(2) == pytest.approx(3.0)
    assert first.curves[0][1].rate(4) / first.curves[0][1].rate(2) == pytest.approx(4 / 3)
    assert (second.model, second.iterations) == ("unheard", 50.0)
    assert second.curves[0][1].rate(1) == pytest.approx(5.0)


def test_a_cluster_spec_is_a_cluster(tmp_path: Path) -> None:
    head = "num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node\n"
    cluster = read_cluster_spec(write(tmp_path, head + "2,3,4,64,256\n"), A100)
    assert cluster.capacity == ((A100, 24),)
    assert [node.rack for node in cluster.nodes] == ["rack00"] * 3 + ["rack01"] * 3
    with pytest.raises(BadCell, match="line 2, column 'num_switch': 0 must be at least 1"):
        read_cluster_spec(write(tmp_path, head + "0,3,4,64,256\n"))
    with pytest.raises(UsageError, match="has 0 lines below its header"):
        read_cluster_spec(write(tmp_path, head))
    with pytest.raises(UsageError, match=r"trace\.csv' has 1,001,000 devices: the most that can be is 1,000,000"):
        read_cluster_spec(write(tmp_path, head + "1001,1000,1,64,256\n"))


def test_what_a_trace_lacks_is_drawn_from_the_seed_and_the_job_alone(tmp_path: Path) -> None:
    path = write(tmp_path, HELIOS + HELIOS_ROWS)
    trace = read_trace(path, TABLES, seed=1)
    for job in trace.jobs:
        assert job.deadline_s is not None
        assert job.duration_s is not None
        assert 0.5 <= (job.deadline_s - job.submit_s) / job.duration_s <= 1.5
        assert job.iterations == pytest.approx(job.duration_s * job.curves[0][1].rate(job.requested_workers))
    assert read_trace(path, TABLES, seed=1) == trace
    assert read_trace(path, TABLES, seed=2) != trace
    lines = HELIOS_ROWS.splitlines(keepends=True)
    (kept,) = read_trace(write(tmp_path, HELIOS + lines[2]), TABLES, seed=1).jobs
    of_all = trace.jobs[1]
    assert (kept.model, kept.deadline_s) == (of_all.model, pytest.approx((of_all.deadline_s or 0) - of_all.submit_s))


def test_without_tables_curves_are_linear_to_a_node_or_to_the_request(tmp_path: Path) -> None:
    rows = HELIOS_ROWS.splitlines(keepends=True)[0]
    small, large = read_trace(write(tmp_path, HELIOS + rows + rows.replace("7,u1,vc1,2", "9,u1,vc1,12")), LINEAR).jobs
    assert small.curves[0][1].points == ((1, 1.0), (2, 2.0), (4, 4.0), (8, 8.0))
    assert small.iterations == 1200.0
    assert large.curves[0][1].points[-2:] == ((8, 8.0), (12, 12.0))
    known = "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration\n0,0,100,bert,60,64,2,50\n"
    (job,) = read_trace(write(tmp_path, known), LINEAR).jobs
    assert job.curves[0][1].rate(2) == pytest.approx(100 / 50)


def philly_text(change: Callable[[dict[str, object]], object]) -> str:
    bad = philly_job("bad", "01:00:00", attempt("01:00:30", "01:01:30", 1))
    return json.dumps([PHILLY[0], change(bad) or bad], indent=None).replace('}, {"status"', '},\n{"status"')


@pytest.mark.parametrize(
    ("text", "name", "line", "column", "problem"),
    [
        (HELIOS + HELIOS_ROWS.replace("2020-06-09 18:41:31", "soon", 1), "t.csv", 4, "submit_time", "'soon' is not a"),
        (HELIOS + HELIOS_ROWS.replace("18:43:01,60,", "18:43:01,long,"), "t.csv", 4, "duration", "'long' is not a"),
        (HELIOS + HELIOS_ROWS.replace("7,u1,vc1,2,", "7,u1,vc1,-2,"), "t.csv", 2, "gpu_num", "-2 must be at least 0"),
        (TIRESIAS + "0,2,5,300,vgg16,100,30\n1,0,5,300,vgg16,9,30\n", "t.csv", 3, "num_gpu", "0 must be at least 1"),
        (PHILLY_CSV + "2017-10-09 07:01:55,66.0,1.5,66.0,1\n", "t.csv", 2, "num_gpus", "1.5 is not a whole number"),
        (philly_text(lambda job: job.update(submitted_time="x")), "log", 2, "submitted_time", "'x' is not a date"),
        (philly_text(lambda job: job.update(submitted_time=None)), "log", 2, "submitted_time", "there is none"),
        (philly_text(lambda job: job.update(jobid=None)), "log", 2, "jobid", "None is no name"),
        (philly_text(lambda job: job.update(jobid="a\ud800")), "log", 2, "jobid", "'a\\ud800' is no name"),
        (philly_text(lambda job: job.update(attempts="x")), "log", 2, "attempts", "'x' is not a JSON list"),
        (
            philly_text(lambda job: job.update(attempts=[attempt("02:00:00", "01:00:00", 1)])),
            *("log", 2, "attempts[0].end_time", "2017-10-07 01:00:00 is before the start, 2017-10-07 02:00:00"),
        ),
        (philly_text(lambda job: [1]), "log", 1, "*", "is not a JSON object"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named_or_counted(
    tmp_path: Path, text: str, name: str, line: int, column: str, problem: str
) -> None:
    path = write(tmp_path, text, name)
    with pytest.raises(BadCell) as caught:
        read_trace(path, TABLES)
    where = "" if column == "*" else f", column {column!r}"
    assert str(caught.value).startswith(f"{path}, line {line}{where}: ")
    assert problem in str(caught.value)
    trace = read_trace(path, TABLES, skip_bad=True)
    assert [(bad.path, bad.line, bad.column) for bad in trace.bad] == [(str(path), line, column)]
    assert trace.bad[0].said == str(caught.value)


def test_a_bad_task_takes_its_job_with_it(tmp_path: Path) -> None:
    path = write_pai(tmp_path, PAI_JOBS, PAI_TASKS.replace("Failed,1100.0", "Failed,soon"))
    with pytest.raises(BadCell, match=r"pai_task_table\.csv, line 4, column 'start_time': 'soon' is not a number"):
        read_trace(path, TABLES)
    trace = read_trace(path, TABLES, skip_bad=True)
    assert [job.id for job in trace.jobs] == ["j1"]
    assert [(bad.line, bad.column) for bad in trace.bad] == [(4, "start_time")]


def test_a_list_that_is_cut_between_two_jobs_is_not_taken_for_whole(tmp_path: Path) -> None:
    whole = json.dumps(PHILLY)
    cut = whole[: whole.index('{"status"', 5)]
    with pytest.raises(BadCell, match="the list of jobs breaks off after this one"):
        read_trace(write(tmp_path, cut, "cluster_job_log"), TABLES, skip_bad=True)


def test_what_stands_after_the_list_of_jobs_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps(PHILLY) + "\n\nand more", "cluster_job_log")
    with pytest.raises(BadCell, match=r"line 3: 'and more' stands after the list of jobs"):
        read_trace(path, TABLES, skip_bad=True)


def test_json_that_breaks_off_cannot_be_skipped(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps(PHILLY, indent=1)[:-40], "cluster_job_log")
    with pytest.raises(BadCell, match="it is not JSON"):
        read_trace(path, TABLES, skip_bad=True)


def test_json_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cluster_job_log"
    path.write_text('[{"jobid": ' + "[" * 100_000)
    with pytest.raises(BadCell, match="it is not JSON"):
        read_trace(path, Throughputs({}))


def test_a_format_can_be_forced(tmp_path: Path) -> None:
    # It has the columns of both: only its own name tells a raw trace.
    path = write(tmp_path, "job_id,submission_time,duration,num_gpu,x\na,10,600,2,1\n")
    assert read_trace(path, TABLES, format_name="elasticflow-raw").jobs[0].id == "a"
    with pytest.raises(BadCell, match="column 'gpu_num': the row has none"):
        read_trace(path, TABLES, format_name="helios")


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "trace.bin"
    binary.write_bytes(bytes(range(256)) * 4)
    with pytest.raises(UsageError, match="is not a text file"):
        read_trace(binary, TABLES)
    not_gzipped = write(tmp_path, HELIOS, "trace.csv.gz")
    with pytest.raises(UsageError, match="is not a text file"):
        read_trace(not_gzipped, TABLES)
    late = tmp_path / "late.csv"
    late.write_bytes((HELIOS + HELIOS_ROWS * 1000).encode() + b"\xff\n")
    with pytest.raises(UsageError, match=r"late\.csv is not a text file"):
        read_trace(late, TABLES, skip_bad=True)


def test_every_format_s_reader_is_there() -> None:
    from importlib import import_module

    for known in FORMATS.values():
        module, _, function = known.reader.partition(":")
        assert callable(getattr(import_module(module), function))
