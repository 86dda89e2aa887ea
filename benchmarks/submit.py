"""How quickly a cluster answers while a thousand jobs are submitted within a minute, and its pages meanwhile.

A real service with real workers on two CPU slots; jobs have known speeds and deadlines far away, so all are admitted
and nearly all wait. The bound is 100 ms for 99 of 100 answers; the ratio is the bound over what was seen.

    python benchmarks/submit.py [--jobs 1000] [--seconds 60] [--devices 2]
"""

import threading
import time
from pathlib import Path

import httpx
from _cluster import Served
from _common import arguments, at_most, progress, report

BOUND_S = 0.1
SCRIPT = Path(__file__).parents[1] / "examples" / "cluster" / "train.py"


def job(number: int) -> dict[str, object]:
    """A third each has a hard deadline, a soft one and none."""
    made: dict[str, object] = {
        "name": f"job{number}",
        "run": [str(SCRIPT)],
        "workdir": str(SCRIPT.parent),
        "virtual_workers": 4,
        "workers": "1-2",
        "steps": 200 + number % 7,
        "curve": {"1": 20.0, "2": 36.0},
    }
    if number % 3 < 2:
        made |= {"deadline": "30d", "on_miss": ("reject", "soft")[number % 3]}
    return made


def watch_page(login_url: str, seen: list[float], done: threading.Event) -> None:
    """Open the overview once a second, as a browser would."""
    with httpx.Client(follow_redirects=True, timeout=30.0) as browser:
        browser.get(login_url).raise_for_status()
        page = login_url.partition("/login")[0] + "/"
        while not done.wait(1.0):
            began = time.perf_counter()
            browser.get(page).raise_for_status()
            seen.append(time.perf_counter() - began)


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed."""
    return sorted(values)[max(0, -int(-share * len(values) // 1) - 1)]


def main() -> None:
    """Submit, measure, and print the report."""
    parser = arguments(__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--devices", type=int, default=2)
    options = parser.parse_args()
    answers: list[float] = []
    pages: list[float] = []
    late, total_cpu_s = 0, 0.0
    with Served(["--devices", str(options.devices)], root=SCRIPT.parent) as served:
        done = threading.Event()
        browser = threading.Thread(target=watch_page, args=(served.login_url, pages, done))
        browser.start()
        began, cpu_s = time.monotonic(), served.cpu_s()
        pace = threading.Event()  # never set: waiting for it is the time to the next submission
        for number in range(options.jobs):
            wait_s = began + number * options.seconds / options.jobs - time.monotonic()
            late += wait_s < -1.0
            if wait_s > 0:
                pace.wait(wait_s)
            at = time.perf_counter()
            served.client.submit(job(number))
            answers.append(time.perf_counter() - at)
            if (number + 1) % 100 == 0:
                used_s, cpu_s = served.cpu_s() - cpu_s, served.cpu_s()
                total_cpu_s += used_s
                p99_ms = percentile(answers[-100:], 0.99) * 1000
                progress(f"{number + 1} jobs, the last hundred: p99 {p99_ms:.0f} ms, {used_s:.2f} s of processor time")
        taken_s = time.monotonic() - began
        done.set()
        browser.join()
        overview = served.client.overview()
        memory_mib = served.memory_mib()
        p99_s = percentile(answers, 0.99)
        progress("cancelling what still waits")
    report(
        benchmark="submit",
        metric=f"seconds to the answer of a submission, p99 of {options.jobs} in {taken_s:.0f} s",
        value=round(p99_s, 4),
        peer="bound",
        peer_value=BOUND_S,
        ratio=round(BOUND_S / p99_s, 2),
        p50_s=round(percentile(answers, 0.5), 4),
        max_s=round(max(answers), 4),
        submitted_late=late,
        page_p50_s=round(percentile(pages, 0.5), 4) if pages else None,
        page_max_s=round(max(pages), 4) if pages else None,
        round_ms=overview.round_ms,
        cpu_s=round(total_cpu_s, 1),
        memory_mib=round(memory_mib, 1),
        jobs=dict(overview.jobs),
        bounds=[
            at_most("p99 of answers", round(p99_s, 4), BOUND_S),
            at_most("submitted more than 1 s late", late, 0),
        ],
        check=options.check,
    )


if __name__ == "__main__":
    main()
