import re
from xml.etree import ElementTree as ET

import pytest

from melodeon.sim.svg import Chart, log_time_ticks

SVG = "{http://www.w3.org/2000/svg}"


def texts(chart: Chart) -> list[ET.Element]:
    return list(ET.fromstring(chart.render()).iter(f"{SVG}text"))


def test_characters_that_xml_cannot_hold_are_shown_as_such() -> None:
    chart = Chart("a\x1b\x00b")
    chart.axes([(0.0, "\x01")], [], x_title="x\x02", y_title="y\x03")
    chart.box((0.0, 1.0), (0.0, 1.0), "red", tip="t\uffff\x04")
    assert texts(chart)[0].text == "a\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}b"


def test_thirty_lines_are_told_apart() -> None:
    chart = Chart("many")
    for index in range(30):
        chart.line([(0.0, 0.0), (1.0, 1.0)], index)
    lines = list(ET.fromstring(chart.render()).iter(f"{SVG}polyline"))
    assert len({(line.get("stroke"), line.get("stroke-dasharray")) for line in lines}) == 30


def test_a_long_legend_leaves_the_frame_its_height() -> None:
    bare, full = Chart("x"), Chart("x", legend=[f"policy {n}" for n in range(24)])
    assert full.y(0) - full.y(1) == bare.y(0) - bare.y(1)
    places = {(text.get("x"), text.get("y")) for text in texts(full)}
    assert len(places) == 25, "a title and 24 names, each in a place of its own"
    assert max(float(text.get("y") or 0) for text in texts(full)) < full.y(1)


def test_long_names_get_wider_columns() -> None:
    names = [f"elasticflow:reserve=8:quote=no, philly_103959, seed {n}: 94.5 %" for n in range(3)]
    _, *shown = texts(Chart("x", legend=names))
    assert len({text.get("y") for text in shown}) == 3, "they would run into each other side by side"


def test_a_long_title_is_made_smaller_and_then_cut_in_its_middle() -> None:
    (short,), (longer,), (longest,) = (texts(Chart("t" * count)) for count in (60, 110, 400))
    assert (short.get("font-size"), longer.get("font-size")) == ("15", "11")
    assert longer.text == "t" * 110
    assert re.fullmatch(r"t{50,}…t{50,}", longest.text or "")
    assert len(longest.text or "") < 130


@pytest.mark.parametrize(
    ("low", "high", "told"),
    [
        (20.0, 4e4, ["1 min", "10 min", "1 h", "10 h"]),
        (38.0, 55.0, ["40 s", "45 s", "50 s", "55 s"]),
        (200 * 86_400.0, 400 * 86_400.0, ["200 d", "250 d", "300 d", "350 d", "400 d"]),
        (9 * 86_400.0, 2e8, ["10 d", "100 d", "1,000 d"]),
    ],
)
def test_a_scale_of_times_can_always_be_read(low: float, high: float, told: list[str]) -> None:
    ticks = log_time_ticks(low, high)
    assert all(low <= value <= high for value, _ in ticks)
    assert set(told) <= {label for _, label in ticks}
