import gzip
from math import inf, nan
from pathlib import Path

import pytest

from melodeon.core.cluster import DeviceType
from melodeon.core.errors import NotFound, UsageError
from melodeon.core.jobs import Goal
from melodeon.sim.traces.formats import read_trace
from melodeon.sim.traces.generate import TraceSpec, generate
from melodeon.sim.traces.rows import BadCell
from melodeon.sim.traces.throughputs import Throughputs, read_throughputs

NEW = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration\n"
OLD = "job_id,submit_time,iteration,model_name,ddl,batch_size,num_gpu,duration,best_effort\n"


@pytest.fixture
def tables(tmp_path: Path) -> Throughputs:
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "bert.csv").write_text("global_batch_size,1,2,4\n64,1.0,1.8,3.0\n128,0.5,0.9,nan\n")
    (folder / "ncf.csv").write_text("global_batch_size,1,2,4\n32,2.0,,0\n")
    return read_throughputs({DeviceType("A100"): folder})


def write(tmp_path: Path, text: str, name: str = "trace.csv") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_tables_leave_out_what_was_not_measured(tables: Throughputs) -> None:
    assert tables.settings == (("bert", 64), ("bert", 128), ("ncf", 32))
    assert tables.curves["bert", 128][0][1].points == ((1, 0.5), (2, 0.9))
    assert tables.curves["ncf", 32][0][1].points == ((1, 2.0),)


@pytest.mark.parametrize("column", ["\u00b2", "0", "-1", "9" * 5000])
def test_a_column_of_a_table_that_is_no_number_of_devices_is_named(tmp_path: Path, column: str) -> None:
    write(tmp_path, f"global_batch_size,1,{column}\n64,1.0,1.8\n", "bert.csv")
    with pytest.raises(BadCell, match="it must be a number of devices"):
        read_throughputs({DeviceType("A100"): tmp_path})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("global_batch_size,1,01\n64,1.0,1.8\n", "line 2, column '01': another column is of 1 device too"),
        (
            "global_batch_size,1\n64,1.0\n32,1\n64,2.0\n",
            "line 4, column 'global_batch_size': 64 is also the batch size of",
        ),
    ],
)
def test_what_a_table_says_twice_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text, "bert.csv")
    with pytest.raises(BadCell) as caught:
        read_throughputs({DeviceType("A100"): tmp_path})
    assert str(caught.value).startswith(f"{path}, {said}")


def test_a_bad_row_sends_a_terminal_nothing(tmp_path: Path, tables: Throughputs) -> None:
    with pytest.raises(BadCell) as caught:
        read_trace(write(tmp_path, NEW + "a,8,100,bert,2000,64,2\x1b[1m,50,x\x1b\n"), tables)
    assert "\x1b" not in str(caught.value)
    (tmp_path / "tables" / "b\x1bt.csv").write_text("global_batch_size,1\n64,1.0\n")
    known = read_throughputs({DeviceType("A100"): tmp_path / "tables"})
    with pytest.raises(BadCell, match="there are tables for b\N{REPLACEMENT CHARACTER}t, bert") as caught:
        read_trace(write(tmp_path, NEW + "a,8,100,bart,2000,64,2,50\n"), known)


def test_both_headers_are_read_and_jobs_are_sorted(tmp_path: Path, tables: Throughputs) -> None:
    new = read_trace(write(tmp_path, NEW + "b,900,100,bert,2000,64,2,50\na,800,100,bert,2000,128,4,50\n"), tables)
    assert [job.id for job in new.jobs] == ["a", "b"]
    assert (new.jobs[1].requested_workers, new.jobs[1].deadline_s, new.jobs[1].goal) == (2, 2000.0, Goal.HARD)
    old = read_trace(write(tmp_path, OLD + "0,1,100,bert,20,64,2,50,1\n1,2,100,ncf,20,32,2,50,0\n"), tables)
    assert [job.goal for job in old.jobs] == [Goal.BEST_EFFORT, Goal.HARD]
    assert old.jobs[0].deadline_s is None


def test_a_gzipped_trace_is_read(tmp_path: Path, tables: Throughputs) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress((NEW + "a,800,100,bert,2000,128,4,50\n").encode()))
    assert len(read_trace(path, tables).jobs) == 1


@pytest.mark.parametrize(
    ("row", "column", "problem"),
    [
        ("a,x,100,bert,2000,64,2,50", "submission_time", "'x' is not a number"),
        ("a,8,100,bert,2000,64,2.5,50", "num_gpu", "2.5 is not a whole number"),
        ("a,8,0,bert,2000,64,2,50", "num_iteration", "must be above 0"),
        ("a,8,100,bert,nan,64,2,50", "deadline", "not a finite number"),
        ("a,8,100,bart,2000,64,2,50", "model_name", "'bart' has no throughput table"),
        ("a,8,100,bert,2000,65,2,50", "batch_size", "bert was not measured at 65: it was at 64, 128"),
        ("a,8,100,bert,2000,64,0,50", "num_gpu", "must be at least 1"),
        ("a,8,100,bert", "batch_size", "the row has none"),
        ("ok,8,100,bert,2000,64,2,50", "job_id", "also the id of line 2"),
        (",8,100,bert,2000,64,2,50", "job_id", "it is empty"),
        ("a,8,100,bert,2000,64,2,50,9", "duration", "the row has 9 values, and there are 8 columns"),
        ("a,1e300,100,bert,2000,64,2,50", "submission_time", "1e300 must be at most 1e\\+12"),
        ("a,8,100,bert,2000,64,1e8,50", "num_gpu", "1e8 must be at most 1e\\+06"),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_column_or_counted(
    tmp_path: Path, tables: Throughputs, row: str, column: str, problem: str
) -> None:
    path = write(tmp_path, NEW + "ok,8,100,bert,2000,64,2,50\n" + row + "\n")
    with pytest.raises(BadCell, match=problem) as caught:
        read_trace(path, tables)
    assert str(caught.value).startswith(f"{path}, line 3, column {column!r}: ")
    trace = read_trace(path, tables, skip_bad=True)
    assert len(trace.jobs) == 1
    assert [(bad.line, bad.column) for bad in trace.bad] == [(3, column)]


def test_a_raw_trace_gets_drawn_models_and_deadlines(tmp_path: Path, tables: Throughputs) -> None:
    path = write(tmp_path, "job_id,submission_time,duration,num_gpu\na,10,600,2\nb,20,0,1\nc,30,60,1\n")
    trace = read_trace(path, tables, seed=3)
    assert [job.id for job in trace.jobs] == ["a", "c"], "a job of no length is no job"
    first = trace.jobs[0]
    assert first.iterations == pytest.approx(600 * first.curves[0][1].rate(2))
    assert 310 <= (first.deadline_s or 0) <= 910
    assert read_trace(path, tables, seed=3) == trace
    assert read_trace(path, tables, seed=4) != trace


def test_unknown_columns_and_formats_are_answered(tmp_path: Path, tables: Throughputs) -> None:
    path = write(tmp_path, "x,y\n1,2\n")
    with pytest.raises(UsageError, match="has columns x, y, which no known format has"):
        read_trace(path, tables)
    with pytest.raises(UsageError, match="did you mean 'elasticflow'"):
        read_trace(path, tables, format_name="elastic-flow")
    with pytest.raises(NotFound, match=r"missing\.csv is not there"):
        read_trace(tmp_path / "missing.csv", tables)
    for nothing in ("", "\n\n"):
        with pytest.raises(UsageError, match=r"empty\.csv is empty: a trace needs a header line and a row a job"):
            read_trace(write(tmp_path, nothing, "empty.csv"), tables)
    with pytest.raises(NotFound, match="has no throughput tables"):
        read_throughputs({DeviceType("A100"): tmp_path / "nowhere"})


def test_a_mark_of_the_byte_order_is_no_part_of_the_first_column(tmp_path: Path, tables: Throughputs) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(NEW + "a,800,100,bert,2000,128,4,50\n", encoding="utf-8-sig")
    assert [job.id for job in read_trace(path, tables).jobs] == ["a"]


def test_a_quote_that_is_never_closed_is_not_counted_as_one_bad_row(tmp_path: Path, tables: Throughputs) -> None:
    rows = "a,8,100,bert,2000,64,2,50\n", '"b,8,100,bert,2000,64,2,50\n', "c,8,100,bert,2000,64,2,50\n"
    with pytest.raises(BadCell, match=r"line 3: it is not csv"):
        read_trace(write(tmp_path, NEW + "".join(rows)), tables, skip_bad=True)


def test_a_header_that_cannot_be_meant_is_refused(tmp_path: Path, tables: Throughputs) -> None:
    twice = write(tmp_path, NEW.replace("model_name", "num_gpu"))
    with pytest.raises(BadCell, match="line 1, column 'num_gpu': 2 columns have this name"):
        read_trace(twice, tables)
    with pytest.raises(BadCell, match=r"line 1: it is not csv"):
        read_trace(write(tmp_path, NEW.strip() + "," + "x" * 200_000 + "\n"), tables)


def test_a_generated_trace_is_its_seed_s(tables: Throughputs) -> None:
    spec = TraceSpec(num_jobs=400, mean_gap_s=100.0, best_effort=0.25, seed=5)
    trace = generate(spec, tables)
    assert trace == generate(spec, tables)
    gaps = trace.jobs[-1].submit_s / 399
    assert 80 < gaps < 120
    assert 60 < sum(job.goal is Goal.BEST_EFFORT for job in trace.jobs) < 140
    for job in trace.jobs:
        assert job.duration_s is not None
        if job.deadline_s is not None:
            assert 0.5 <= (job.deadline_s - job.submit_s) / job.duration_s <= 1.5


@pytest.mark.parametrize(
    "changes",
    [
        {"num_jobs": 0},
        {"best_effort": 2.0},
        {"tightness": (2.0, 1.0)},
        {"tightness": (0.5, inf)},
        {"tightness": (0.5, 1e308)},
        {"mean_gap_s": inf},
        {"median_duration_s": nan},
    ],
)
def test_a_trace_that_cannot_be_drawn_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        TraceSpec(**({"num_jobs": 1} | changes))  # type: ignore[arg-type]
