"""A person with a browser: opens the link, sees jobs move, opens one, follows its output, asks what if."""

from itertools import pairwise
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from melodeon.control.web.words import colour_of
from tests.control.web.showing import HOSTILE, Browser, Showing, eventually

pytestmark = [
    pytest.mark.timeout(400),  # the first may have to install the browser
    pytest.mark.xdist_group("browser"),  # one browser is enough for a small machine
]


@pytest.fixture
def walker(service: Showing, browser: Browser) -> Browser:
    """Signed in, on the overview, which is live."""
    browser.scheme("light")
    browser.width(1280)
    browser.open(service.login)
    browser.until("document.getElementById('stream')?.dataset.state === 'on'")
    assert browser.driver.current_url == f"{service.url}/", "the token is not in the address any more"
    browser.complaints()
    return browser


def pictures(browser: Browser, folder: Path, name: str) -> None:
    for scheme in ("light", "dark"):
        browser.scheme(scheme)
        browser.picture(folder / f"{name}-{scheme}.png")
    browser.width(400)
    # Nobody has to move a page sideways on a small screen, nor a table in it; charts are drawn anew for it.
    browser.until("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    browser.until("[...document.querySelectorAll('.scroll:has(.cards)')].every(e => e.scrollWidth <= e.clientWidth)")
    browser.until("(e => !e || e.width.baseVal.value <= 400)(document.querySelector('#gantt svg'))")  # drawn anew
    browser.picture(folder / f"{name}-400.png")
    browser.width(1280)
    browser.scheme("light")


def step(browser: Browser, job: str) -> int:
    text = browser.text(f"tr:has(#live-{job}) .progress .small")
    return int(text.split(" of ")[0].replace(",", "") or 0) if " of " in text else 0


def test_the_walk(service: Showing, walker: Browser, tmp_path: Path) -> None:
    name = "first-of-all-with-as-long-a-name-as-jobs"  # 40 letters, the longest
    first = service.submit(name, 30_000, deadline="1h")  # it trains for longer than the walk takes
    walker.until(f"document.getElementById('live-{first}') !== null")  # it comes by itself
    walker.until(f"document.querySelector('#gantt a.box.c{colour_of(first)} text')?.textContent.startsWith('fir')")
    walker.until(f"document.querySelector('#gantt a.box.planned.c{colour_of(first)}') !== null")  # and what will come
    began = eventually(lambda: step(walker, first))
    eventually(lambda: step(walker, first) > began)
    second = service.submit("second", 60)
    walker.until(f"document.getElementById('past-{second}') !== null")  # it came and went
    pictures(walker, tmp_path, "overview")

    walker.driver.execute_script(f"document.getElementById('live-{first}').click()")
    walker.until(f"document.body.dataset.job === '{first}'")
    for chart in ("metrics", "burn", "workers", "pauses"):
        walker.until(f"document.querySelector('#chart-{chart} canvas') !== null")
    walker.until("document.getElementById('logs').textContent.includes('loss')")
    seen = len(walker.text("#logs"))
    walker.until(f"document.getElementById('logs').textContent.length > {seen}")
    foot = "(e => e.scrollHeight - e.scrollTop - e.clientHeight < 30)(document.getElementById('logs'))"
    walker.until(foot)
    assert "admitted it" in walker.text("#story")
    walker.until("[...document.querySelectorAll('.facts div')].every(e => e.offsetHeight < 120)", within_s=5)
    assert HOSTILE in walker.text("#metric")
    pictures(walker, tmp_path, "job")

    walker.open(f"{service.url}/what-if")
    walker.one("#policy").send_keys("fifo")
    file = f"name: extra\nrun: train.py\nworkdir: {service.work}\nsteps: 400\ndeadline: 10m\ncurve: {{1: 20, 2: 38}}"
    walker.one("#job").send_keys(file)
    walker.click("#play")
    walker.until("document.querySelector('#result table.cards') !== null")
    assert "extra-new" in walker.text("#result")
    assert first in walker.text("#result")
    pictures(walker, tmp_path, "what-if")

    for page in ("cluster", "events", "jobs"):
        walker.open(f"{service.url}/{page}")
        walker.until("document.getElementById('stream').dataset.state === 'on'")
        assert first in walker.text("main")
        pictures(walker, tmp_path, page)
    assert walker.complaints() == []
    assert len(list(tmp_path.glob("*.png"))) == 18
    service.do(service.controller.cancel(first, user="root"))


def test_the_chart_is_zoomed_and_moved(service: Showing, walker: Browser) -> None:
    job = service.submit("zoomed", 20_000)
    walker.until(f"document.querySelector('#gantt a.box[href=\"/jobs/{job}\"]') !== null")
    span = "(d => d.until - d.since)(document.querySelector('#gantt svg').dataset)"
    before = float(walker.driver.execute_script(f"return {span}"))
    zoom_in = walker.one("#gantt-tools [data-do=in]")
    zoom_in.send_keys(Keys.ENTER)  # by keyboard, as by mouse
    after = float(walker.until(f"({span}) < {before} * 0.6 && ({span})"))
    chart = walker.one("#gantt")
    walker.driver.execute_script("arguments[0].focus()", chart)
    chart.send_keys("-")
    walker.until(f"({span}) > {after} * 1.5")
    assert walker.one("[data-do=now]").get_attribute("aria-pressed") == "true"
    chart.send_keys(Keys.ARROW_LEFT)
    assert walker.one("[data-do=now]").get_attribute("aria-pressed") == "false"
    since = "Number(document.querySelector('#gantt svg').dataset.since)"
    left = float(walker.driver.execute_script(f"return {since}"))
    # A wheel with a key held, and a drag to the right: earlier.
    walker.driver.execute_script(
        "const c = document.getElementById('gantt'), o = {bubbles: true, cancelable: true, clientX: 600, clientY: 300};"
        "c.dispatchEvent(new WheelEvent('wheel', {...o, deltaY: -200, ctrlKey: true}));"
        "c.dispatchEvent(new PointerEvent('pointerdown', {...o, button: 0}));"
        "dispatchEvent(new PointerEvent('pointermove', {...o, clientX: 900}));"
        "dispatchEvent(new PointerEvent('pointerup', {...o, clientX: 900}));"
    )
    walker.until(f"{since} !== {left}")
    walker.click("[data-do=now]")
    walker.until(f"document.querySelector('#gantt a.box[href=\"/jobs/{job}\"]') !== null")
    walker.driver.execute_script(
        "const b = document.querySelector('#gantt a.box rect');"
        "b.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: 400, clientY: 300}))"
    )
    assert " worker" in walker.text("#tip")
    assert walker.complaints() == []
    walker.open(f"{service.url}/jobs/{job}")
    walker.click("details.sure summary")
    walker.click("#cancel")
    walker.until("document.getElementById('said').textContent.includes('cancel')")
    walker.until("document.querySelector('#facts .phase')?.textContent === 'cancelled'")
    walker.until("document.querySelector('#actions .actions') === null")


RECORD = """
const context = CanvasRenderingContext2D.prototype, { fillText } = context;
context.fillText = function (text, x, y) {
  (this.canvas.drawn ??= []).push([text, x, y]);
  fillText.call(this, text, x, y);
};
"""
"""Keeps what is written on every canvas, and where."""


def labels(browser: Browser, chart: str) -> list[str]:
    """What stands below a chart, each place once however often it was drawn."""
    drawn = browser.until(f"document.querySelector('#chart-{chart} canvas')?.drawn")
    lowest = max(y for _, _, y in drawn)
    return [text for text, _ in {(text, x) for text, x, y in drawn if y == lowest and text}]


def heights(browser: Browser, chart: str) -> list[tuple[float, float]]:
    """The figures left of a chart, and where each stands."""
    drawn = browser.until(f"document.querySelector('#chart-{chart} canvas')?.drawn")
    lowest = max(y for _, _, y in drawn)
    return sorted({(y, float(text.replace(",", ""))) for text, _, y in drawn if y < lowest and text})


@pytest.mark.parametrize("width", [400, 1280, 3000])
def test_no_label_stands_twice_below_a_chart(service: Showing, walker: Browser, width: int) -> None:
    job = service.submit("brief", 20)
    service.until(lambda: service.controller.job(job).phase == "done")
    script = walker.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": RECORD})
    try:
        walker.width(width)
        walker.open(f"{service.url}/jobs/{job}")
        for chart in ("metrics", "burn", "workers", "pauses"):
            found = labels(walker, chart)
            assert found, chart
            assert len(found) == len(set(found)), (chart, found)
        assert all(":" in text for text in labels(walker, "pauses")), (
            "a pause alone is shown by the clock, not by years"
        )
    finally:
        walker.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
        walker.width(1280)


LOSSES = """
const fetched = window.fetch;
window.fetch = async (...asked) => {
  const answer = await fetched(...asked);
  if (!String(asked[0]).endsWith("chart.json")) return answer;
  const data = await answer.json();
  data.metrics = { names: ["loss"], step: [0, 10, 20], values: [LOSSES] };
  return new Response(JSON.stringify(data));
};
"""


@pytest.mark.parametrize("losses", ["[0, 0.5, 1.05]", "[0, 5, 10.5]", "[2, 2.00001, 2.00002]", "[1e-9, 2e-9, 3e-9]"])
def test_figures_left_of_a_chart_are_exact(service: Showing, walker: Browser, losses: str) -> None:
    job = service.submit("brief", 20)
    source = {"source": RECORD + LOSSES.replace("LOSSES", losses)}
    script = walker.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", source)
    try:
        walker.open(f"{service.url}/jobs/{job}")
        rows = heights(walker, "metrics")
        slopes = [(after - before) / (low - high) for (high, before), (low, after) in pairwise(rows)]
        assert len(slopes) > 1
        assert slopes == pytest.approx([slopes[0]] * len(slopes), rel=0.1), rows
    finally:
        walker.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


def test_hostile_output_is_text(service: Showing, walker: Browser) -> None:
    job = service.submit("hostile", 300, run=["train.py", HOSTILE])
    walker.open(f"{service.url}/jobs/{job}")
    walker.until("document.getElementById('logs').textContent.includes('<script>')")
    walker.until("document.querySelector('#chart-metrics canvas') !== null")
    walker.driver.execute_script(
        "const s = document.getElementById('metric'); s.selectedIndex = 1; s.dispatchEvent(new Event('change'))"
    )
    walker.until("document.querySelector('#chart-metrics canvas') !== null")
    assert walker.driver.title == f"{job} · Melodeon"
    assert walker.all("main img, main script, #owned") == []
    walker.until("document.getElementById('log-state').textContent === 'That is all.'")
    assert walker.complaints() == []


def test_forms_answer_on_the_page(service: Showing, walker: Browser) -> None:
    job = service.submit("formed", 50_000)
    walker.open(f"{service.url}/jobs/{job}")
    walker.until("document.getElementById('stream').dataset.state === 'on'")
    walker.type("#workers", "1")
    walker.click("#set-workers")
    walker.until("document.getElementById('said').textContent.includes('fixed at 1')")
    walker.until("document.getElementById('facts').textContent.includes('fixed at 1')")
    walker.type("#deadline", "nonsense" + Keys.ENTER)
    walker.until("document.querySelector('#said .bad')?.textContent.includes('nonsense')")
    complaints = walker.complaints()
    assert all("422" in text for text in complaints), complaints
    walker.open(f"{service.url}/cluster")
    walker.click("#drain-node001")
    walker.until("document.getElementById('drain-node001').textContent === 'Use again'")
    walker.click("#drain-node001")
    walker.until("document.getElementById('drain-node001').textContent === 'Drain'")
    walker.click("#sign-out")
    walker.until("document.getElementById('token') !== null")
    walker.type("#token", "wrong" + Keys.ENTER)
    walker.until("document.querySelector('.said.bad') !== null")
    service.do(service.controller.cancel(job, user="root"))


def test_a_label_stands_beside_its_field_on_a_phone(service: Showing, walker: Browser) -> None:
    try:
        walker.width(390)
        walker.open(f"{service.url}/events")
        apart = walker.until(
            "[...document.querySelectorAll('main label')].map(one => [one, document.getElementById(one.htmlFor)])"
            ".map(pair => pair.map(one => one.getBoundingClientRect()).map(box => box.top + box.height / 2))"
            ".map(([label, field]) => Math.abs(label - field))"
        )
        assert len(apart) == 2
        assert max(apart) < 3
    finally:
        walker.width(1280)
