import gzip
import json
from pathlib import Path

import pytest

from melodeon.core.errors import UsageError
from melodeon.core.jobs import Goal
from melodeon.sim.traces.formats import read_trace
from melodeon.sim.traces.gavel import read_gavel_throughputs
from melodeon.sim.traces.rows import BadCell
from melodeon.sim.traces.throughputs import Throughputs

RESNET = "ResNet-18 (batch size 128)"
TABLE = {
    "k80": {
        f"('{RESNET}', 1)": {"null": 2.0, "('A3C', 1)": [1.0, 1.0]},
        f"('{RESNET}', 2)": {"null": 0.0},
        "('A3C', 1)": {"null": 3.0},
    },
    "v100": {
        f"('{RESNET}', 2)": {"null": 18.0},
        f"('{RESNET}', 1)": {"null": 10.0},
        "('A3C', 1)": {"null": 6.0},
    },
}


def ten(job_type: str, steps: str, scale: str, weight: str, slo: str, arrival: str) -> str:
    return "\t".join([job_type, "python3 main.py", "vision", "-n", "1", steps, scale, weight, slo, arrival]) + "\n"


def seven(job_type: str, steps: str, arrival: str, scale: str) -> str:
    return "\t".join([job_type, "cd x && python3 main.py", "-n", "1", steps, arrival, scale]) + "\n"


@pytest.fixture
def tables(tmp_path: Path) -> Throughputs:
    path = tmp_path / "throughputs.json.gz"
    path.write_bytes(gzip.compress(json.dumps(TABLE).encode()))
    return read_gavel_throughputs(path)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "some.trace"
    path.write_text(text)
    return path


def test_the_table_gives_curves_by_type_fastest_first_without_what_does_not_fit(tables: Throughputs) -> None:
    assert tables.settings == (("A3C", 0), ("ResNet-18", 128))
    (fast, curve), (slow, short) = tables.curves["ResNet-18", 128]
    assert (fast, slow) == ("V100", "K80")
    assert curve.points == ((1, 10.0), (2, 18.0))
    assert short.points == ((1, 2.0),)


def test_both_kinds_of_lines_are_known_and_read(tmp_path: Path, tables: Throughputs) -> None:
    text = ten(RESNET, "100", "1", "5", "-1.000000", "7") + ten("A3C", "60", "1", "1", "1.2", "3")
    first, second = read_trace(write(tmp_path, text), tables).jobs
    assert (first.id, first.model, first.batch_size, first.deadline_s) == ("1", "A3C", 0, 3 + 1.2 * 10)
    assert first.goal is Goal.HARD
    assert (second.weight, second.submit_s, second.iterations, second.goal) == (5.0, 7.0, 100.0, Goal.BEST_EFFORT)
    text = seven(RESNET, "100", "0.000000", "2") + seven("A3C", "60", "5.5", "1")
    first, second = read_trace(write(tmp_path, text), tables).jobs
    assert (first.requested_workers, first.weight, first.deadline_s) == (2, 1.0, None)
    assert [kind for kind, _ in first.curves] == ["V100"], "on K80 it does not fit on 2 devices"
    assert [kind for kind, _ in second.curves] == ["V100", "K80"]
    assert second.submit_s == 5.5


@pytest.mark.parametrize(
    ("line", "column", "problem"),
    [
        (ten(RESNET, "many", "1", "1", "-1", "0"), "total_steps", "'many' is not a number"),
        (ten(RESNET, "5", "1.5", "1", "-1", "0"), "scale_factor", "1.5 is not a whole number"),
        (ten(RESNET, "5", "8", "1", "-1", "0"), "scale_factor", "was not measured on 8 devices"),
        (ten("GPT-9", "5", "1", "1", "-1", "0"), "job_type", "'GPT-9' has no throughputs"),
        (ten(RESNET, "5", "1", "0", "-1", "0"), "priority_weight", "must be above 0"),
        (f"{RESNET}\tthree\tfields\n", "scale_factor", "the row has none: it needs scale_factor"),
    ],
)
def test_a_bad_line_is_named_or_counted(
    tmp_path: Path, tables: Throughputs, line: str, column: str, problem: str
) -> None:
    path = write(tmp_path, ten(RESNET, "100", "1", "1", "-1", "0") + line)
    with pytest.raises(BadCell, match=problem) as caught:
        read_trace(path, tables)
    assert (caught.value.line, caught.value.column) == (2, column)
    assert len(read_trace(path, tables, skip_bad=True).bad) == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "line 1"),
        ("[]", "must be a JSON object of device types"),
        ('{"k80": [1]}', "must be a JSON object of device types"),
        ('{"k80": {"A3C": {"null": 1}}}', "must be a job type and a scale factor"),
        ('{"k80": {"(\'A3C\', 1)": {"null": "x"}}}', "no number for 'null'"),
        ('{"k80": {"(\'A3C\', 1)": {}}}', "no number for 'null'"),
        ('{"k80": {"(\'A3C\', 1e999)": {"null": 1}}}', "must be a job type and a scale factor"),
        ('{"k80": {"(\'\', 1)": {"null": 1}}}', "must be a job type and a scale factor"),
        ('{"k80": {"(\'A3C\', 0)": {"null": 1}}}', "must be from 1 to 1,000,000"),
        ('{"k80": {"(\'A3C\', 1)": {"null": 1e999}}}', "the number for 'null' must be at most 1e\\+12"),
        ('{"k80": {"(\'A3C\', 1)": {"null": NaN}}}', "the number for 'null' must be at most 1e\\+12"),
        ('{"k80": {"(\'A3C\', 1)": {"null": 1}, "(\'A3C\',1)": {"null": 1}}}', "it stands there twice"),
    ],
)
def test_a_table_that_is_none_is_answered_in_one_sentence(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=problem) as caught:
        read_gavel_throughputs(path)
    assert str(path) in str(caught.value)
