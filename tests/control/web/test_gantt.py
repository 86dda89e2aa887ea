from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from melodeon.control.web.gantt import LEFT, RIGHT, gantt
from melodeon.core.service import Device, NodeInfo, Span, Timeline

NOW = 1_700_000_000.0
NODES = [NodeInfo(id="node0", type="cpu", num_devices=4), NodeInfo(id="node1", type="cpu", num_devices=4, drained=True)]


def devices(*numbers: int) -> tuple[Device, ...]:
    return tuple(Device(node=f"node{number // 4}", index=number % 4, type="cpu") for number in numbers)


def drawn(
    spans: list[Span], since: float = NOW - 100, until: float = NOW, width: int = 960, planned: tuple[Span, ...] = ()
) -> ET.Element:
    line = Timeline(since=since, until=until, spans=tuple(spans), planned=planned, capacity=8)
    return ET.fromstring(gantt(line, NODES, now=NOW, first=NOW - 500, width=width))


def test_a_box_for_each_run_of_devices() -> None:
    svg = drawn([Span(job="cnn-3", devices=devices(0, 1, 3, 4), began_at=NOW - 50, why="it is due first")])
    (box,) = svg.iter("a")
    assert box.get("href") == "/jobs/cnn-3"
    assert "c3" in box.get("class", "")
    first, second = box.findall("rect")  # 0-1, and 3-4 across the nodes
    assert float(first.get("x", "0")) == float(second.get("x", "0"))
    assert abs(float(first.get("width", "0")) - (960 - LEFT - RIGHT) / 2) < 2
    assert box.findtext("text") == "cnn-3"
    assert box.findtext("title", "").startswith("cnn-3: 4 workers\n")
    assert box.findtext("title", "").endswith("to now (50 s)\nit is due first")


def test_what_a_job_says_is_text() -> None:
    hostile = "</title><script>alert(1)</script>\u202e'\""
    svg = drawn([Span(job='x"><script>', devices=devices(0), began_at=NOW - 50, ended_at=NOW - 1, why=hostile)])
    assert [part.tag for part in svg.iter("script")] == []
    (box,) = svg.iter("a")
    assert "<script>alert(1)</script>" in box.findtext("title", "")
    assert "\u202e" not in box.findtext("title", ""), "nothing that turns the rest around"


def test_what_is_planned_is_paler_and_right_of_now() -> None:
    held = Span(job="cnn-3", devices=devices(0, 1), began_at=NOW - 50)
    planned = Span(job="cnn-3", devices=devices(0, 1, 2, 3), began_at=NOW, ended_at=NOW + 50, why="4 that are free")
    svg = drawn([held], NOW - 100, NOW + 100, planned=(planned,))
    before, after = svg.iter("a")
    assert (before.get("class"), after.get("class")) == ("box c3", "box planned c3")
    first, then = before.find("rect"), after.find("rect")
    assert first is not None
    assert then is not None
    end = float(first.get("x", "0")) + float(first.get("width", "0"))
    assert 0 <= float(then.get("x", "0")) - end < 1, "one after the other"
    assert float(then.get("height", "0")) > 1.9 * float(first.get("height", "0"))
    assert "planned " in after.findtext("title", "")
    assert after.findtext("title", "").endswith("(50 s)\n4 that are free")
    assert float(svg.get("data-last", "0")) == NOW + 50
    assert [part.get("class") for part in svg.iter("path") if "use" in part.get("class", "")] == ["use", "use planned"]
    past = drawn([held], NOW - 100, NOW - 20, planned=(planned,))
    assert [box.get("class") for box in past.iter("a")] == ["box c3"], "not in a window that ends before now"


def test_a_drained_node_has_a_veil_and_all_have_names() -> None:
    svg = drawn([])
    assert len([part for part in svg.iter("rect") if part.get("class") == "away"]) == 1
    assert [part.text for part in svg.iter("text") if part.get("class") == "name"] == ["node0", "node1"]


def test_what_is_too_narrow_to_see_is_left_out() -> None:
    spans = [
        Span(job=f"job-{n}", devices=devices(0), began_at=NOW - 100 + n / 100, ended_at=NOW - 100 + (n + 1) / 100)
        for n in range(9000)
    ]
    svg = drawn(spans)
    assert len(list(svg.iter("a"))) < 2000


@given(
    spans=st.lists(
        st.builds(
            lambda began, took, held, job: Span(
                job=f"job-{job}",
                devices=devices(*held),
                began_at=NOW - began,
                ended_at=None if took is None else NOW - began + took,
            ),
            began=st.floats(0, 500),
            took=st.none() | st.floats(0, 300),
            held=st.sets(st.integers(0, 11), min_size=1),
            job=st.integers(0, 50),
        ),
        max_size=12,
    ),
    since=st.floats(-600, -1),
    length=st.floats(0.5, 100_000),
    width=st.integers(240, 2000),
)
def test_everything_lies_inside_the_frame(spans: list[Span], since: float, length: float, width: int) -> None:
    svg = drawn(spans, NOW + since, NOW + since + length, width)
    tall = float(svg.get("height", "0"))
    for rect in [rect for box in svg.iter("a") for rect in box.findall("rect")]:
        x, y, wide, high = (float(rect.get(name, "-1")) for name in ("x", "y", "width", "height"))
        assert LEFT - 0.1 <= x <= x + wide <= width - RIGHT + 0.8
        assert 0 <= y <= y + high <= tall
