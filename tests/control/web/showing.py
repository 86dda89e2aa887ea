"""A service whose jobs write what would hurt a careless page, and a browser to look at it with."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service as Driver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from melodeon.backends.fleet_values import Seen
from melodeon.core.overhead import Overheads, Pause
from melodeon.core.service import LogChunk
from tests.control.api.serving import TOKEN, WAIT_S, Serving, StrictFleet
from tests.packages import find_programs

T = TypeVar("T")

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
HOSTILE_LINE = "</pre><script>document.title='owned'</script><b id=owned>&amp; \"quoted\"\n"
CURVE = {1: 20.0, 2: 38.0, 4: 70.0, 8: 120.0}
PAUSES = Overheads(default=Pause(base_s=0.3, connect_s=0.1), first_start=True)


class HostileFleet(StrictFleet):
    """Names a metric, and writes a line, as nobody should."""

    def seen(self, job: str, incarnation: int) -> Seen:
        found = super().seen(job, incarnation)
        return replace(found, metrics={**found.metrics, HOSTILE: found.step * 0.5}) if found.metrics else found

    def logs(self, job_dir: Path, start: str, worker: int | None, limit: int = 65536) -> LogChunk:
        found = super().logs(job_dir, start, worker, limit)
        return LogChunk(text=found.text if start else HOSTILE_LINE + found.text, next=found.next, over=found.over)


class Showing(Serving):
    """A service to look at."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, **options)
        self.fleet = HostileFleet(curves={"*": CURVE}, overheads=PAUSES, every_s=0.2)

    def submit(self, name: str, steps: int, **fields: object) -> str:
        """A job that trains `steps` by `CURVE`."""
        curve = {str(size): rate for size, rate in CURVE.items()}
        job = self.job(name, steps=steps, virtual_workers=8, workers="1-8", curve=curve) | fields
        with self.client() as client:
            answer = client.post("/api/v1/jobs", json=job)
        assert answer.status_code in (200, 201), answer.text
        return str(answer.json()["job"]["id"])

    @property
    def login(self) -> str:
        return f"{self.url}/login?token={TOKEN}"


@contextmanager
def showing(folder: Path, **options: Any) -> Iterator[Showing]:
    made = Showing(folder, **options)
    made.start()
    try:
        yield made
    finally:
        made.stop()


def eventually(look: Callable[[], T], *, within_s: float = WAIT_S) -> T:
    """What a look finds, once it finds something. For what a browser shows: it can only be asked again."""
    until = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < until, f"not within {within_s} s"
        time.sleep(0.05)


class Browser:
    """Headless Chromium, with what tests do."""

    FLAGS = (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--disable-dev-shm-usage",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--window-size=1280,900",
    )

    def __init__(self, profile: Path) -> None:
        binary, driver = find_programs("chromium", "chromedriver")
        options = ChromeOptions()
        options.binary_location = binary
        for flag in (*self.FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = Chrome(options=options, service=Driver(driver))
        self.driver.set_page_load_timeout(60)

    def quit(self) -> None:
        self.driver.quit()

    def open(self, url: str) -> None:
        self.driver.get(url)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return eventually(lambda: self.all(selector))[0]

    def click(self, selector: str) -> None:
        """Found and clicked in one go, for the same reason as in `text`."""
        self.until("document.querySelector(arguments[0]) !== null", selector)
        self.driver.execute_script("document.querySelector(arguments[0]).click()", selector)

    def type(self, selector: str, text: str) -> None:
        """Into a field, which is left alone from the moment that somebody is in it."""
        self.until("(e => { e?.focus(); return e !== null })(document.querySelector(arguments[0]))", selector)
        self.driver.switch_to.active_element.send_keys(text)

    def text(self, selector: str) -> str:
        """The text of the first that fits; read in one go, since parts of a page are replaced while one looks."""
        found = self.driver.execute_script(
            "const e = document.querySelector(arguments[0]); return e ? e.textContent : ''", selector
        )
        return str(found)

    def until(self, script: str, *values: object, within_s: float = WAIT_S) -> Any:
        """What a script returns, once it is something."""
        return eventually(lambda: self.driver.execute_script(f"return {script}", *values), within_s=within_s)

    def complaints(self) -> list[str]:
        """What the browser's console says of errors since the last look."""
        return [
            json.dumps(entry) for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")
        ]

    def scheme(self, name: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def width(self, pixels: int, height: int = 900) -> None:
        metrics = {"width": pixels, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def picture(self, path: Path) -> None:
        """The whole page, however long."""
        tall = min(4000, int(self.driver.execute_script("return document.documentElement.scrollHeight")))
        wide = int(self.driver.execute_script("return document.documentElement.clientWidth"))
        self.width(wide, max(300, tall))
        path.write_bytes(self.driver.get_screenshot_as_png())
        self.width(wide)
