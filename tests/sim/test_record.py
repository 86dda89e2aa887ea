"""What is kept of a simulation, written and read back, and what is drawn and told from it."""

import gzip
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from msgspec import structs

from melodeon.core.cluster import DEFAULT_TYPE, Cluster
from melodeon.core.curve import ScalingCurve
from melodeon.core.errors import NotFound, UsageError
from melodeon.core.jobs import JobSpec
from melodeon.sched.elasticflow import ElasticFlow
from melodeon.sched.fifo import Fifo
from melodeon.sched.policy import Policy
from melodeon.sim.clock import length, moment
from melodeon.sim.engine import SimConfig, Simulation
from melodeon.sim.explain import explain
from melodeon.sim.incidents import Incident
from melodeon.sim.plots import KINDS, held_share, plot
from melodeon.sim.record import Change, Record, record, spans
from melodeon.sim.results import find_results, read_result, write_result
from tests.sched.draws import job

LINEAR = ScalingCurve.linear(1.0, 4)


def made(jobs: list[JobSpec], policy: Policy, cluster: str = "2x2", incidents: tuple[Incident, ...] = ()) -> Record:
    config = SimConfig(cluster=Cluster.parse(cluster), incidents=incidents)
    result = Simulation(config, jobs, policy).run().result()
    return record(result, trace="made", policy=type(policy).__name__.lower(), cluster=cluster, seed=0)


def some_jobs() -> list[JobSpec]:
    return [
        job("a", 400.0, LINEAR, deadline_s=1000.0, requested_workers=4, duration_s=1000.0),
        job("b", 100.0, LINEAR, submit_s=10.0, deadline_s=900.0, requested_workers=2, duration_s=900.0),
        job("c", 900.0, LINEAR, submit_s=20.0, deadline_s=60.0, requested_workers=2, duration_s=80.0),
    ]


def failing() -> Record:
    node = Cluster.parse("2x2").nodes[0].id
    down = (Incident(30.0, node, up=False), Incident(60.0, node))
    return made([job("a", 400.0, LINEAR, requested_workers=4)], Fifo(), incidents=down)


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    for name in ("x.sim.jsonl", "y.sim.jsonl.gz"):
        found = made(some_jobs(), ElasticFlow())
        write_result(found, tmp_path / "deep" / name)
        assert read_result(tmp_path / "deep" / name) == found
    assert [path.name for path in find_results(tmp_path / "deep")] == ["x.sim.jsonl", "y.sim.jsonl.gz"]


@pytest.mark.parametrize("found", [made(some_jobs(), ElasticFlow()), made(some_jobs(), Fifo()), failing()])
def test_spans_add_up_to_the_service_that_the_engine_counted(found: Record) -> None:
    held: dict[str, float] = {}
    for span in spans(found):
        held[span.job] = held.get(span.job, 0.0) + span.change.devices * (span.to_s - span.from_s)
    for kept in found.jobs.values():
        assert held.get(kept.id, 0.0) == pytest.approx(kept.service_s)


def test_devices_that_a_failing_node_takes_are_on_record() -> None:
    found = failing()
    lost = next(change for change in found.changes if change.what == "lose")
    assert (lost.at_s, lost.job, lost.devices) == (30.0, "a", 0)
    told = [sentence.text for sentence in explain(found, "a")]
    assert any(text.startswith("lost its devices: node000 failed") for text in told)
    assert any(text.startswith("went on with") for text in told)


def test_a_file_that_is_not_whole_or_not_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.sim.jsonl"
    write_result(made(some_jobs(), Fifo()), path)
    text = path.read_text()
    path.write_text("".join(text.splitlines(keepends=True)[:-1]))
    with pytest.raises(UsageError, match="is not whole, its last line is missing"):
        read_result(path)
    path.write_text("".join(text.splitlines(keepends=True)[1:]))
    with pytest.raises(UsageError, match="does not begin as a result file"):
        read_result(path)
    path.write_text("job_id,duration\n")
    with pytest.raises(UsageError, match="line 1 is not of a result file"):
        read_result(path)
    path.write_text(text.replace('"version":1', '"version":9', 1))
    with pytest.raises(UsageError, match="is of version 9, and 1 is read"):
        read_result(path)
    torn = tmp_path / "y.sim.jsonl.gz"
    torn.write_bytes(gzip.compress(text.encode())[:-20])
    with pytest.raises(UsageError, match="is not a whole gzip file"):
        read_result(torn)
    torn.write_bytes(gzip.compress(text.encode())[:10] + b"\xff" * 40)
    with pytest.raises(UsageError, match="is not a whole gzip file"):
        read_result(torn)
    with pytest.raises(NotFound, match="is not there: write one by"):
        read_result(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            '"blocks":[["gpu",0,4]]',
            '"blocks":[["T9",0,4]]',
            "line 3: its nodes have not 4 devices of type 'T9' from slot 0",
        ),
        (
            '"blocks":[["gpu",0,4]]',
            '"blocks":[["gpu",2,4]]',
            "line 3: its nodes have not 4 devices of type 'gpu' from slot 2",
        ),
        ('"node":"node000"', '"node":"node009"', "line 4: no node is named 'node009'"),
        ('["node000","gpu",2', '["node000","gpu",0', "line 1: node 'node000' has 0 devices"),
    ],
)
def test_what_the_cluster_has_not_is_named_by_its_line(tmp_path: Path, old: str, new: str, problem: str) -> None:
    path = tmp_path / "x.sim.jsonl"
    write_result(failing(), path)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(UsageError, match=re.escape(f"{path}, {problem}")):
        read_result(path)


def test_a_deadline_before_the_submission_is_told_as_such() -> None:
    late = job("late", 10.0, LINEAR, submit_s=10.0, deadline_s=5.0, requested_workers=1, duration_s=10.0)
    asked = explain(made([job("first", 10.0, LINEAR), late], Fifo()), "late")[0].text
    assert asked.endswith("; deadline 0:00:05, 5 s before its submission")


def test_a_resize_over_several_types_says_both_amounts_by_type() -> None:
    found = made(some_jobs(), Fifo(), cluster="1x4:A100,1x4:T4")
    one = Change(at_s=5.0, job="a", what="start", blocks=(("A100", 0, 2),))
    both = Change(at_s=9.0, job="a", what="resize", blocks=(("A100", 0, 2), ("T4", 0, 1)))
    more = Change(at_s=9.0, job="a", what="resize", blocks=(("A100", 0, 4),))
    for second, said in ((both, "grew from 2 A100 to 2 A100 and 1 T4, "), (more, "grew from 2 to 4 A100, ")):
        told = [sentence.text for sentence in explain(structs.replace(found, changes=(one, second)), "a")]
        assert any(text.startswith(said) for text in told), told


def test_a_rejected_job_is_told_what_would_have_been_accepted() -> None:
    found = made(some_jobs(), ElasticFlow())
    asked, answered = explain(found, "c")
    assert "deadline 0:01:00" in asked.text
    assert "turned it away" in answered.text
    assert "would have been accepted" in answered.text
    assert "0.50 of that length" in asked.text


@pytest.mark.parametrize("iterations", [14_400.0, 14_401.6])
def test_a_deadline_that_would_have_been_accepted_is_not_told_as_one_that_was_refused(iterations: float) -> None:
    found = made([job("a", iterations, LINEAR, deadline_s=3600.0)], ElasticFlow())
    assert "A deadline of 1:00:01 would have been accepted, 1 s later" in explain(found, "a")[1].text


def test_a_job_that_waits_is_told_who_held_the_devices() -> None:
    told = [sentence.text for sentence in explain(made(some_jobs(), Fifo()), "b")]
    assert any(text.startswith("waited 1.5 min: 4 of 4 devices were held, most by jobs a (4)") for text in told)
    assert told[-1].startswith("finished")
    # Its curve is of one type only: that another is idle does not help it.
    told = [sentence.text for sentence in explain(made(some_jobs(), Fifo(), "2x2,1x4:T4"), "b")]
    held = f"4 of 4 {DEFAULT_TYPE} and 0 of 4 T4 were held, most by jobs a (4)"
    assert any(text.startswith(f"waited 1.5 min: {held}") for text in told), told


@pytest.mark.parametrize("kind", KINDS)
def test_every_picture_is_well_formed(kind: str) -> None:
    text = plot(kind, [made(some_jobs(), ElasticFlow())])
    assert ET.fromstring(text).tag.endswith("svg")
    assert "nan" not in text.lower()


def test_several_simulations_share_a_picture_but_not_a_gantt() -> None:
    both = [made(some_jobs(), ElasticFlow()), made(some_jobs(), Fifo())]
    told = {"jct": ("2 jobs", "3 jobs"), "utilisation": ("100 %", "64 %"), "deadlines": ("66.7 %", "66.7 %")}
    for kind, (first, second) in told.items():
        text = plot(kind, both)
        assert f">elasticflow: {first}<" in text
        assert f">fifo: {second}<" in text
    with pytest.raises(UsageError, match="shows 1 simulation and 2 were given"):
        plot("gantt", both)
    with pytest.raises(UsageError, match="nothing lies after"):
        plot("gantt", both[:1], (1e9, None))


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ((1.6, 1.7), ["1.60 to 1.62", "1.62 to 1.64", "1.64 to 1.66", "1.66 to 1.68", "1.68 to 1.70"]),
        ((0.0001, 0.0001), ["9e-05 to 0.00011"]),
        ((3.0, 3.0), ["2.7 to 3.3"]),
        ((1e6, 1e6 + 3e-10), ["9e+05 to 1.1e+06"]),
        ((0.5, 700.0), ["0.0 to 100.0", "100.0 to 200.0", "600.0 to 700.0"]),
    ],
)
def test_classes_of_tightness_are_few_and_told_apart(values: tuple[float, ...], told: list[str]) -> None:
    jobs = [
        job(f"j{at}", 10.0, LINEAR, submit_s=3.0 * at, deadline_s=3.0 * at + 700.0 * value, duration_s=700.0)
        for at, value in enumerate(values)
    ]
    labels = re.findall(r">([\de+.-]+ to [\de+.-]+)<", plot("deadlines", [made(jobs, Fifo())]))
    assert len(set(labels)) == len(labels) <= 10
    assert set(told) <= set(labels)


def test_completion_times_go_up_in_stairs_and_one_job_is_seen() -> None:
    found = made([job("a", 46.0, LINEAR, requested_workers=1)], Fifo())
    text = plot("jct", [found])
    assert ">fifo: 1 job<" in text
    (line,) = re.findall("polyline points='([^']+)'", text)
    points = [point.split(",") for point in line.split()]
    assert len({x for x, _ in points}) == 1
    assert float(points[0][1]) > float(points[-1][1]), "from nobody to everybody"


def test_the_share_held_is_what_the_metrics_say() -> None:
    found = made(some_jobs(), Fifo())
    shares = held_share(found, 0.0, found.head.end_s - found.head.start_s)
    assert sum(shares) / len(shares) == pytest.approx(found.metrics.values["utilisation"])


def test_times_are_said_as_people_say_them() -> None:
    assert [moment(s) for s in (0, 3725, 86_400 * 2 + 60, -60)] == ["0:00:00", "1:02:05", "2 d 00:01:00", "-0:01:00"]
    assert [length(s) for s in (8, 270, 1200, 12_240, 181_440)] == ["8 s", "4.5 min", "20 min", "3.4 h", "2.1 d"]
