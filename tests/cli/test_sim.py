import csv
import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from melodeon.cli.simtraces import policy_of
from tests.cli.conftest import Melodeon, terminal


def row_of(n: int) -> str:
    return f"job{n},{40 * n},{200 + 50 * n},{1 << n % 3}\n"


RAW = "job_id,submission_time,duration,num_gpu\n" + "".join(map(row_of, range(12)))


HEAD = RAW.partition("\n")[0] + "\n"


@pytest.fixture
def trace(place: Path) -> Path:
    path = place / "small.csv"
    path.write_text(RAW)
    return path


def test_tables_of_eighty_columns_with_a_row_a_policy(trace: Path, melodeon: Melodeon) -> None:
    code, out, err = melodeon("sim", trace, "-p", "elasticflow,edf,elastic-backfill", "-c", "2x4:A100", "-j", 1)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert out.startswith("small: 12 jobs on 2x4:A100, seed 0, a decision every 60 s at most\n")
    assert sum(line.startswith("elasticflow ") for line in out.splitlines()) == 3
    assert "there are no throughput tables, so curves are linear" in err


def test_json_and_csv_say_the_same(trace: Path, melodeon: Melodeon) -> None:
    rows = json.loads(melodeon("sim", trace, "-p", "edf,fifo", "-o", "json", "-j", 1)[1])["results"]
    lines = list(csv.DictReader(io.StringIO(melodeon("sim", trace, "-p", "edf,fifo", "-o", "csv", "-j", 1)[1])))
    assert [row["policy"] for row in rows] == [row["policy"] for row in lines] == ["edf", "fifo"]
    for row, line in zip(rows, lines, strict=True):
        assert float(line["jct_mean_s"]) == pytest.approx(row["jct_mean_s"])
        assert row["num_jobs"] == 12
        assert {"deadline_ratio", "cluster_efficiency", "jct_p99_s", "jct_small_mean_s", "makespan_s"} <= set(row)
        assert {"pending_mean_s", "utilisation", "fairness_mean", "num_migrations", "decision_mean_ms"} <= set(row)


def test_processes_find_what_one_finds_and_keep_results(trace: Path, place: Path) -> None:
    found = []
    for jobs, folder in (("1", "one"), ("2", "two")):
        command = ["sim", trace, "-p", "edf,fifo,tiresias", "-o", "json", "-j", jobs, "--save", folder]
        done = subprocess.run(
            [sys.executable, "-m", "melodeon", *map(str, command)],
            capture_output=True,
            text=True,
            check=True,
            cwd=place,
        )
        rows = json.loads(done.stdout)["results"]
        found.append([(row["policy"], row["jct_mean_s"], row["num_missed"]) for row in rows])
        kept = sorted(path.name for path in (place / folder).iterdir())
        assert kept == ["small-edf.sim.jsonl", "small-fifo.sim.jsonl", "small-tiresias.sim.jsonl"]
    assert found[0] == found[1]


def test_stopping_on_the_way_to_show_progress_changes_nothing(place: Path) -> None:
    from dataclasses import replace

    from melodeon.cli.simruns import Task, simulate
    from melodeon.cli.simtraces import draw, parse_cluster

    jobs = draw("philly:60:gap=2min", [], parse_cluster("2x4"), seed=1).trace.jobs
    for policy in ("elasticflow", "tiresias"):
        told: list[int] = []

        def tell(_: Task, count: int, said: list[int] = told) -> None:
            said.append(count)

        task = Task(number=0, trace=0, trace_name="x", policy=policy, cluster="2x4", seed=1, slot_s=60.0)
        quiet = simulate(task, jobs, tell)
        assert not told
        loud = simulate(replace(task, tell=True), jobs, tell)
        assert told
        for key, value in quiet.values.items():
            if not key.startswith("decision"):
                assert loud.values[key] == pytest.approx(value), key


def test_a_terminal_shows_how_far_all_are_and_each_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from melodeon.cli.sim import _bars
    from melodeon.cli.simruns import Task

    screen = terminal(monkeypatch)
    tasks = [
        Task(number=number, trace=0, trace_name="small", policy=policy, cluster="2x4", seed=1, slot_s=60.0)
        for number, policy in enumerate(("edf", "fifo"))
    ]
    with _bars(tasks, [60]) as tell:
        tell(tasks[0], 30)
        tell(tasks[1], 6)
    lines = [line.split() for line in re.sub(r"\x1b\[[\d;?]*[A-Za-z]", " ", screen.getvalue()).splitlines()]
    for name, count in (("jobs", "36/120"), ("edf", "30/60"), ("fifo", "6/60")):
        assert any(name in line and count in line for line in lines), screen.getvalue()


def test_traces_are_drawn_by_their_seed(place: Path, melodeon: Melodeon) -> None:
    def drawn(seed: int, text: str = "poisson:20:gap=5min:best-effort=0.5") -> object:
        out = melodeon("sim", "--generate", text, "--seed", seed, "-c", "1x8", "-p", "fifo", "-o", "json", "-j", 1)[1]
        (row,) = json.loads(out)["results"]
        return row["num_jobs"], row["num_deadlines"], row["jct_mean_s"]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_bad_rows_stop_or_are_counted(trace: Path, melodeon: Melodeon) -> None:
    trace.write_text(RAW + "bad,soon,10,1\n")
    code, _, err = melodeon("sim", trace, "-j", 1)
    assert (code, err) == (2, f"error: {trace}, line 14, column 'submission_time': 'soon' is not a number\n")
    code, _, err = melodeon("sim", trace, "--skip-bad", "-c", "2x4", "-j", 1)
    assert code == 0
    assert f"1 row is bad and left out, the first at {trace}, line 14, column 'submission_time'" in err


def test_a_bad_row_is_named_by_the_file_that_it_is_in(place: Path, melodeon: Melodeon) -> None:
    (place / "pai_job_table.csv").write_text("".join(f"{name},i,u,Terminated,10,200\n" for name in "ab"))
    row = "{},worker,1,Terminated,10,200,600,29,{},T4\n"
    (place / "pai_task_table.csv").write_text(row.format("a", "100") + row.format("b", "much"))
    code, _, err = melodeon("sim", "pai_job_table.csv", "--skip-bad", "-p", "fifo", "-c", "1x4", "-j", 1)
    assert code == 0
    assert "pai_job_table: 1 row is bad and left out, the first at pai_task_table.csv, line 2, column 'plan_gpu'" in err


def test_tables_beside_a_trace_are_used(trace: Path, place: Path, melodeon: Melodeon) -> None:
    tables = place / "throughputs_A100"
    tables.mkdir()
    (tables / "bert.csv").write_text("global_batch_size,1,2,4\n64,1.0,1.8,3.0\n")
    err = melodeon("sim", trace, "-c", "2x4:A100", "-p", "fifo", "-j", 1)[2]
    assert "curves are of the tables in" in err
    assert "linear" not in err


@pytest.fixture
def two_tables(place: Path) -> None:
    for kind in ("A100", "T4"):
        (place / f"throughputs_{kind}").mkdir()
        (place / f"throughputs_{kind}" / "bert.csv").write_text("global_batch_size,1,2,4\n64,1.0,1.8,3.0\n")


@pytest.mark.usefixtures("trace", "two_tables")
@pytest.mark.parametrize(
    ("cluster", "given", "said"),
    [
        ("2x4:T4", ("throughputs_A100",), "is of A100, which the cluster has not: write T4=throughputs_A100 to take"),
        ("2x4:A100", ("throughputs_A100", "throughputs_T4"), "throughputs_T4 is of T4, which the cluster has not"),
        (
            "2x4:A100",
            ("A100=throughputs_A100", "A100=throughputs_T4"),
            "A100=throughputs_T4 is of A100, and so is A100=throughputs_A100: give the tables of a type once",
        ),
        ("2x4:V100", ("gavel.json", "again.json"), "again.json is of V100, and so is gavel.json"),
        ("2x4:V100", ("gavel.json", "V100=throughputs_T4"), "throughputs_T4 is of V100, and so is gavel.json"),
    ],
)
def test_tables_of_another_type_or_of_one_type_twice_are_refused(
    melodeon: Melodeon, cluster: str, given: tuple[str, ...], said: str
) -> None:
    for name in ("gavel.json", "again.json"):
        Path(name).write_text('{"v100": {"(\'A3C\', 1)": {"null": 2.0}}}')
    code, _, err = melodeon("sim", "small.csv", "-c", cluster, *(part for table in given for part in ("-t", table)))
    assert (code, said in err) == (2, True), err


@pytest.mark.usefixtures("trace", "two_tables")
@pytest.mark.parametrize(
    ("cluster", "given"),
    [
        ("2x4:T4", ("T4=throughputs_A100",)),
        ("2x4", ("throughputs_A100",)),
        ("1x4:A100,1x4:T4", ("throughputs_A100", "throughputs_T4")),
    ],
)
def test_tables_of_another_type_can_be_meant(melodeon: Melodeon, cluster: str, given: tuple[str, ...]) -> None:
    tables = [part for table in given for part in ("-t", table)]
    assert melodeon("sim", "small.csv", "-c", cluster, *tables, "-p", "fifo", "-j", 1)[0] == 0


def test_a_cluster_spec_and_node_failures(trace: Path, place: Path, melodeon: Melodeon) -> None:
    (place / "spec.csv").write_text("num_switch,num_node_p_switch,num_gpu_p_node\n1,2,4\n")
    code, out, _ = melodeon("sim", trace, "-c", "spec.csv:A100", "-p", "fifo", "--failures", "10min,2min", "-j", 1)
    assert code == 0
    assert "on spec.csv:A100" in out


def test_options_of_policies(trace: Path, melodeon: Melodeon) -> None:
    code, out, _ = melodeon("sim", trace, "-p", "elasticflow:reserve=2:quote=no", "-c", "2x4", "-o", "json", "-j", 1)
    assert (code, json.loads(out)["results"][0]["policy"]) == (0, "elasticflow:reserve=2:quote=no")


def test_policies_may_be_named_by_comma_and_one_by_one(trace: Path, melodeon: Melodeon) -> None:
    code, out, _ = melodeon("sim", trace, "-p", "edf,fifo", "-p", "wfs", "-c", "2x4", "-o", "json", "-j", 1)
    assert (code, [one["policy"] for one in json.loads(out)["results"]]) == (0, ["edf", "fifo", "wfs"])


@pytest.mark.parametrize(("given", "held"), [("10+200.5", (10, 200.5)), ("10", (10,))])
def test_an_option_of_several_numbers(given: str, held: tuple[float, ...]) -> None:
    assert policy_of(f"tiresias:thresholds_s={given}").thresholds_s == held  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), 2, "there is nothing to simulate"),
        (("missing.csv",), 4, "missing.csv is not there"),
        (("small.csv", "-p", "edff"), 2, "did you mean 'edf'?"),
        (("small.csv", "-p", "edf,edf"), 2, "names 'edf' twice"),
        (("small.csv", "-p", "edf:widest"), 2, "options are written NAME:option=value"),
        (("small.csv", "-p", "tiresias:thresholds_s=20+10"), 2, "thresholds_s=(20, 10) cannot be: they are numbers"),
        (("small.csv", "-p", "tiresias:thresholds_s=ten"), 2, "thresholds_s=ten cannot be: they are numbers"),
        (("small.csv", "-c", "3x"), 2, "cluster '3x' cannot be read"),
        (("small.csv", "-c", "small.csv:"), 2, "write a spec file as FILE.csv or FILE.csv:TYPE"),
        (("small.csv", "-o", "xml"), 2, "-o xml is not one of table, json, csv"),
        (("small.csv", "--slot", "soon"), 2, "--slot soon is not a length of time"),
        (("small.csv", "--slot", "9" * 310), 2, "9… is too long: no time may be above 1e+12 seconds"),
        (("small.csv", "--jobs", "0"), 2, "--jobs 0 must be at least 1"),
        (("small.csv", "--first", "0"), 2, "--first 0 must be at least 1"),
        (("small.csv", "--failures", "3d"), 2, "needs two times"),
        (("small.csv", "--failures", "3d,0"), 2, "--failures 3d,0 must be two times above 0"),
        (("small.csv", "--save", "small.csv"), 2, "--save small.csv cannot be made (File exists): name another folder"),
        (("small.csv", "--format", "heliox"), 2, "did you mean 'helios'?"),
        (("small.csv", "-c", "1x1:A,1x1:B", "-t", "."), 2, "does not say which type it is of"),
        (("--generate", "poison:3"), 2, "--generate poison:3 cannot be read"),
        (("--generate", "poisson:\u00b2"), 2, "--generate poisson:\u00b2 cannot be read"),
        (("--generate", "poisson:" + "9" * 4400), 2, "9… cannot be read: write poisson|philly:JOBS"),
        (("--generate", "poisson:3", "--format", "pai"), 2, "--format pai is of trace files, and none is named"),
        (("--generate", "poisson:3:tightness=0.5-inf"), 2, "tightness=0.5-inf must be two numbers above 0"),
        (("--generate", "poisson:3:gap=x"), 2, "is not a length of time"),
        (("--generate", "poisson:0"), 2, "jobs=0, gap=900, duration=3600 and spread=0.5 cannot be drawn"),
        (("--generate", "poisson:3:best-effort=2"), 2, "best-effort=2 is a share of jobs"),
        (("--generate", "poisson:3:tightness=2-1"), 2, "tightness=2-1 must be two numbers above 0, the lower first"),
        ((".",), 2, ". is a folder: name a file in it"),
        (("torn.csv.gz",), 2, "torn.csv.gz breaks off before its end"),
        (("small.csv", "-c", "torn.csv"), 2, "torn.csv is not a text file"),
        (("small.csv", "-t", "torn.json"), 2, "torn.json is not a text file"),
        (("/dev/null",), 2, "/dev/null is no ordinary file, and a trace is read more than once: save it as one"),
        (("some.trace",), 2, "there are no throughput tables: give Gavel's by --throughputs"),
        (("none.csv",), 2, "none.csv has no job to simulate: 0 rows are bad, 1 row is no job that held a device"),
        (("small.csv", "-t", "deep.json"), 2, "deep.json is not JSON that can be read"),
        (("small.csv", "-t", "long.json"), 2, "long.json is not JSON that can be read"),
        (("small.csv", "-t", "list.json"), 2, "list.json must be a JSON object of device types"),
        (("quoted.csv",), 2, "quoted.csv, line 2: it is not csv"),
        (("open.csv",), 2, "open.csv, line 2: it is not csv (a quote is never closed)"),
        (("semicolons.csv",), 2, "semicolons.csv has 1 column, 'job_id;submission_time;duration;num_gpu': separate"),
        (("--generate", "poisson:1000001"), 2, "jobs=1000001 are too many to draw: at most 1,000,000"),
        (("small.csv", "-p", "elasticflow:reserve=-1"), 2, "reserve=-1 and spare_pauses=0 must not be negative"),
    ],
)
def test_mistakes_are_one_sentence(
    trace: Path, melodeon: Melodeon, arguments: tuple[str, ...], code: int, said: str
) -> None:
    # Long enough to break where only its reader comes by, and not where its format is found out.
    Path("torn.csv.gz").write_bytes(gzip.compress((HEAD + "".join(map(row_of, range(20_000)))).encode())[:60_000])
    for name in ("torn.csv", "torn.json"):
        Path(name).write_bytes(b"\xff\xfe\x00")
    Path("list.json").write_text("[1]")
    Path("deep.json").write_text("[" * 100_000)
    Path("long.json").write_text('{"v100": {"(\'A3C\', 1)": {"null": ' + "9" * 6000 + "}}}")
    Path("none.csv").write_text("job_id,submission_time,duration,num_gpu\na,0,0,1\n")
    Path("some.trace").write_text("A3C\tcommand\t--steps\t0\t100\t0.0\t1\n")
    Path("quoted.csv").write_text(HEAD + '"' + "x" * 200_000)
    Path("open.csv").write_text(HEAD + '"' + row_of(1))
    Path("semicolons.csv").write_text("job_id;submission_time;duration;num_gpu\na;0;1;1\n")
    found, out, err = melodeon("sim", *arguments)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert said in err


def test_traces_of_one_name_are_told_apart(trace: Path, place: Path, melodeon: Melodeon) -> None:
    (place / "other").mkdir()
    again, numbered = place / "other" / "small.csv", place / "small-1.csv"
    for copy in (again, numbered):
        copy.write_text(RAW)
    out = melodeon("sim", trace, again, numbered, "-p", "fifo", "-o", "json", "-j", 1, "--save", "kept")[1]
    names = [row["trace"] for row in json.loads(out)["results"]]
    assert len(set(names)) == len(list((place / "kept").iterdir())) == 3, names


def test_names_that_are_alike_as_files_are_all_kept(trace: Path, place: Path, melodeon: Melodeon) -> None:
    for name in ("a b.csv", "a_b.csv", "a_b-elastic.csv"):
        (place / name).write_text(RAW)
    traces = ("a b.csv", "a_b.csv", "a_b-elastic.csv")
    out = melodeon("sim", *traces, "-p", "fifo,elastic-fifo", "-o", "json", "-j", 1, "--save", "kept")[1]
    rows = json.loads(out)["results"]
    assert [row["trace"] for row in rows[::2]] == ["a b", "a_b", "a_b-elastic"]
    assert len(list((place / "kept").iterdir())) == len(rows) == 6
    for row in rows:
        told = melodeon("explain", row["file"], "job0")[1]
        assert told.startswith(f"job job0 of {row['trace']} under {row['policy']} on")


@pytest.mark.parametrize("more", ["", ":quote=no"])
def test_policies_that_differ_in_their_options_are_told_apart(trace: Path, melodeon: Melodeon, more: str) -> None:
    reserves = [f"elasticflow:reserve={count}{more}" for count in (4, 8, 128)]
    out = melodeon("sim", trace, "-p", ",".join(reserves), "-c", "32x8", "-j", 1)[1]
    assert max(map(len, out.splitlines())) <= 80
    rows = [line.split()[0] for line in out.splitlines() if line.startswith("e")]
    for table in (rows[:3], rows[3:6], rows[6:]):
        assert len(set(table)) == 3, out


def test_what_a_terminal_would_obey_is_shown_and_not_sent(place: Path, melodeon: Melodeon) -> None:
    escape = "\x1b[31m"
    (place / "some.csv").write_text(HEAD + f"a{escape},0,500,2\na{escape}b,5,900,4\n")
    assert melodeon("sim", "some.csv", "-c", "1x4", "-p", "fifo", "-j", 1, "--save", "kept")[0] == 0
    code, out, _ = melodeon("explain", "kept", f"a{escape}b")
    assert (code, "\x1b" in out) == (0, False)
    assert out.startswith("job a\N{REPLACEMENT CHARACTER}[31mb of some under fifo")
    code, _, err = melodeon("explain", "kept", "a")
    assert (code, "could be any of a\N{REPLACEMENT CHARACTER}[31m, " in err, "\x1b" in err) == (4, True, False)
    for file in ("x.svg", "x.png"):
        assert melodeon("plot", "kept", "-o", file)[0] == 0
    ET.parse("x.svg")
    (place / "bad.csv").write_text(f"job_id,{escape}\na,b\n")
    assert "\x1b" not in melodeon("sim", "bad.csv")[2]


def test_a_process_that_dies_costs_its_own_figures_only(place: Path) -> None:
    from melodeon.cli.simruns import Task, _Desk
    from melodeon.cli.simtraces import draw, parse_cluster

    jobs = draw("poisson:10", [], parse_cluster("1x4"), seed=1).trace.jobs
    tasks = [
        Task(number=n, trace_name="x", policy=p, cluster="1x4", seed=1, slot_s=60.0)
        for n, p in enumerate(("fifo", "edf"))
    ]
    desk = _Desk(tasks, [jobs], lambda *_: None)
    try:
        desk.hire()
        (process,) = desk._workers.values()
        os.kill(process.pid or 0, signal.SIGKILL)
        died, other = desk.finish()
    finally:
        desk.close()
    assert (died.problem or "").startswith("the process of fifo on x ended with -9")
    assert (other.problem, other.values["num_jobs"]) == (None, 10)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks /proc for a process's signals")
def test_a_process_never_hears_ctrl_c_not_even_while_it_starts() -> None:
    from melodeon.cli.simruns import _Desk

    desk = _Desk([], [], lambda *_: None)
    try:
        desk.hire()
        (process,) = desk._workers.values()
        status = Path(f"/proc/{process.pid}/status").read_text()
    finally:
        desk.close()
    (blocked,) = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigBlk")]
    assert blocked >> (signal.SIGINT - 1) & 1
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, []), "the parent still hears it"


def test_a_title_fits_eighty_columns(place: Path, melodeon: Melodeon) -> None:
    folder = place / "a_folder_with_a_name_that_is_long" / "and_another_one_in_it_with_a_longer_one"
    folder.mkdir(parents=True)
    (folder / "spec.csv").write_text("num_switch,num_node_p_switch,num_gpu_p_node\n1,2,4\n")
    (place / "one.csv").write_text(HEAD + row_of(0))
    policy = "elasticflow:reserve=2:quote=no"
    code, out, _ = melodeon("sim", "one.csv", "-c", folder / "spec.csv", "-p", policy, "-j", 1, "--save", "kept")
    assert (code, out.splitlines()[0]) == (0, "one: 1 job on spec.csv, seed 0, a decision every 60 s at most")
    told = melodeon("explain", "kept", "job0")[1].splitlines()[0]
    assert told == f"job job0 of one under {policy} on spec.csv"
    assert melodeon("plot", "kept", "-o", "x.svg")[0] == 0
    assert f"one under {policy} on spec.csv: devices over time" in Path("x.svg").read_text()


@pytest.mark.parametrize(("seconds", "said"), [(9.998 * 86_400, "10.0 d"), (59.7, "1.0 min"), (99.97 * 3600, "4.17 d")])
def test_lengths_are_rounded_to_three_digits_and_into_the_next_unit(seconds: float, said: str) -> None:
    from melodeon.cli.simtable import _length

    assert _length(seconds) == said


def test_a_simulation_imports_neither_torch_nor_numpy(trace: Path) -> None:
    program = (
        "import sys; from melodeon.cli.main import app;"
        f"app(['sim', {str(trace)!r}, '-p', 'elasticflow', '-c', '2x4', '-j', '1'], standalone_mode=False);"
        "print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
