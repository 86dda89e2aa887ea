import hashlib
import re
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from melodeon.control.web import assets
from melodeon.control.web.site import FORM, templates
from melodeon.control.web.views import row_of
from melodeon.core.service import OVER, JobInfo, Phase
from tests.control.api.serving import ANN, TOKEN
from tests.control.web.reading import read
from tests.control.web.showing import HOSTILE, Showing, showing

PAGES = ("/", "/jobs", "/cluster", "/what-if", "/events")
AS_BROWSER = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
LISTED = re.compile(r"^\| `([^`]+)` .*`([0-9a-f]{64})` \|$", re.MULTILINE)
AS_SCRIPT = AS_BROWSER | {"HX-Request": "true"}


def fetch(service: Showing, path: str, token: str = TOKEN) -> httpx.Response:
    with service.client(token, headers=AS_BROWSER) as client:
        return client.get(path)


def send(service: Showing, path: str, token: str = TOKEN, *, script: bool = True, **fields: str) -> httpx.Response:
    with service.client(token, headers=AS_SCRIPT if script else AS_BROWSER) as client:
        return client.post(path, data=fields)


def phase(service: Showing, job: str) -> str:
    return service.controller.job(job).phase.value


# --- what is shown ---


def test_all_pages_are_whole_without_jobs(tmp_path: Path) -> None:
    with showing(tmp_path) as service:
        for path in PAGES:
            answer = fetch(service, path)
            assert answer.status_code == 200, path
            read(answer.text)
        assert "melodeon submit" in fetch(service, "/").text


def test_a_job_that_ends_after_the_calendar_breaks_no_page(tmp_path: Path) -> None:
    with showing(tmp_path) as service:
        job = service.submit("endless", steps=9_000_000_000_000, curve={"1": 0.1})
        for path in (*PAGES, f"/jobs/{job}", f"/jobs/{job}/facts", "/fragments/overview"):
            answer = fetch(service, path)
            assert answer.status_code == 200, path
        assert "after the year 9999" in fetch(service, f"/jobs/{job}").text


@pytest.mark.parametrize("name", list(Phase))
def test_every_phase_has_its_page(name: Phase) -> None:
    over = name in OVER
    job = JobInfo(
        id="cnn-3",
        name="cnn",
        user="ann",
        phase=name,
        why=HOSTILE,
        goal="hard",
        submitted_at=1000.0,
        deadline_at=2000.0,
        finished_at=1500.0 if over else None,
        planned_finish_at=None if over else 1800.0,
        earliest_deadline_at=3000.0 if name is Phase.REJECTED else None,
        metrics={HOSTILE: 0.5, "loss": None},
        step=5,
        total_steps=10,
        override=None if over else 2,
        exit_code=1 if name is Phase.FAILED else None,
        digest="ab" * 32 if name is Phase.DONE else None,
        curve={"1": 2.0},
    )
    row = row_of(job, 1600.0)
    user = {"name": "ann", "operator": True}
    values = {"row": row, "job": job, "now": 1600.0, "user": user}
    facts = templates().get_template("job_facts.html").render(values)
    assert "of 2<" in templates().get_template("job_facts.html").render(
        values | {"job": replace(job, min_workers=2, max_workers=2, override=None)}
    ), "no range where there is no choice"
    assert f">{name.value}<" in facts
    assert HOSTILE not in facts
    assert HOSTILE in read(facts).text
    assert "<dd>nan</dd>" in facts
    actions = templates().get_template("job_actions.html").render(values)
    assert (not actions.strip()) == (over or name is Phase.CANCELLING)
    read(actions)
    macros = templates().get_template("macros.html").module
    read(str(macros.jobs([row], 1600.0, "Jobs", "")))  # type: ignore[attr-defined]


def test_jobs_of_many_kinds_are_shown_on_every_page(service: Showing) -> None:
    short = service.submit("short", 40)
    late = service.submit("late", 50_000, deadline="2s")
    long = service.submit("long", 50_000, deadline="2h")
    gone = service.submit("gone", 50_000)
    assert send(service, f"/jobs/{gone}/cancel").status_code == 200
    service.until(lambda: phase(service, short) == "done" and phase(service, gone) == "cancelled")
    page = read(fetch(service, "/").text)
    for job in (short, late, long, gone):
        assert page.find("a", href=f"/jobs/{job}"), job
        read(fetch(service, f"/jobs/{job}").text)
        assert fetch(service, f"/jobs/{job}/chart.json").json()["metrics"] is not None
    assert "rejected" in page.text
    for part in ("/fragments/overview", "/fragments/gantt?width=400", "/fragments/cluster", "/fragments/events"):
        assert fetch(service, part).status_code == 200, part
    assert read(fetch(service, "/cluster").text).find("a", href=f"/jobs/{long}")
    done = read(fetch(service, "/jobs?phase=done").text)
    assert done.find("a", href=f"/jobs/{short}")
    assert not done.find("a", href=f"/jobs/{long}")
    events = read(fetch(service, f"/events?job={late}&kind=judged").text)
    assert "turned it away" in events.text
    assert "submitted by" not in events.text
    assert "submitted by" in fetch(service, "/events?before=8").text
    send(service, f"/jobs/{long}/cancel")


def test_a_job_is_found_by_the_beginning_of_its_name(service: Showing) -> None:
    job = service.submit("findable", 10)
    for path in ("/jobs?find=findab", "/jobs/findab"):
        answer = fetch(service, path)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{job}")
    answer = fetch(service, "/jobs?find=nobody-knows")
    assert answer.status_code == 404
    assert "not known here" in read(answer.text).text


# --- what hostile people write ---


def test_what_people_write_is_never_markup(service: Showing) -> None:
    job = service.submit("hostile", 2000, run=["train.py", HOSTILE, "</pre><script>1</script>"], env={"A": HOSTILE})
    service.until(lambda: HOSTILE in service.controller.job(job).metrics)
    for path in (f"/jobs/{job}", "/", f"/jobs/{job}/facts", "/events"):
        html = fetch(service, path).text
        assert "<img" not in html, path
        assert "<script>" not in html, path
        read(html)
    page = read(fetch(service, f"/jobs/{job}").text)
    assert HOSTILE in page.text
    service.until(lambda: HOSTILE in service.controller.series(job).columns)
    assert HOSTILE in fetch(service, f"/jobs/{job}/chart.json").json()["metrics"]["names"]
    for path in (f"/jobs/{HOSTILE}", f"/jobs?find={HOSTILE}", f"/events?job={HOSTILE}", f"/jobs?phase={HOSTILE}"):
        answer = fetch(service, path)
        assert "<img" not in answer.text, path
        assert answer.status_code in (200, 404, 422)
    answer = send(service, f"/jobs/{job}/edit", deadline=HOSTILE)
    assert answer.status_code == 422
    assert "<img" not in answer.text


def test_a_job_file_that_stands_for_more_than_it_says_is_refused(service: Showing) -> None:
    bomb = "a: &a [x, x]\n" + "\n".join(f"b{n}: &b{n} [*{'a' if not n else f'b{n - 1}'}, *a]" for n in range(60))
    for text in (
        bomb,
        "name: a\nname: b",
        "name: !!python/object:os.system x",
        "- 1\n- 2",
        "{" * 5000,
        "name: [",
        "x" * 70_000,
    ):
        answer = send(service, "/what-if", job=text)
        assert answer.status_code == 422, text[:50]
        assert 'class="said bad"' in answer.text


@pytest.mark.parametrize(
    "query", ["since=1&until=1", "since=5&until=1", "since=nan&until=2", "width=1", "width=99999", "since=x"]
)
def test_windows_that_cannot_be_shown(service: Showing, query: str) -> None:
    assert fetch(service, f"/fragments/gantt?{query}").status_code == 422


# --- what can be done ---


def test_forms_do_what_they_say_and_answer_in_a_sentence(service: Showing) -> None:
    job = service.submit("handled", 50_000)
    answer = send(service, f"/jobs/{job}/scale", workers="2")
    assert (answer.status_code, answer.headers["hx-retarget"]) == (200, "#said")
    assert "fixed at 2 workers" in answer.text
    service.until(lambda: service.controller.job(job).workers == 2)
    assert "fixed at 2" in fetch(service, f"/jobs/{job}/facts").text
    assert "back with the policy" in send(service, f"/jobs/{job}/scale", workers="").text
    assert send(service, f"/jobs/{job}/scale", workers="-3").status_code == 422
    assert send(service, f"/jobs/{job}/scale", workers="9999").status_code == 422
    answer = send(service, f"/jobs/{job}/edit", deadline="5h", on_miss="soft")
    assert "its deadline can be met" in answer.text
    assert service.controller.job(job).goal == "soft"
    answer = send(service, f"/jobs/{job}/edit", deadline="2s", on_miss="reject")
    assert "said bad" in answer.text
    assert service.controller.job(job).goal == "soft"
    page = read(send(service, f"/jobs/{job}/cancel", script=False).text)  # a browser without scripts gets the page
    assert f"{job} is cancel" in page.text
    assert page.find("div", id="charts")


def test_nodes_are_drained_and_used_again(service: Showing) -> None:
    assert "is drained" in send(service, "/nodes/node001", drained="yes").text
    assert "Use again" in fetch(service, "/cluster").text
    assert "4 devices down or drained" in fetch(service, "/").text
    assert "in use again" in read(send(service, "/nodes/node001", script=False, drained="no").text).text
    assert send(service, "/nodes/node001", drained="maybe").status_code == 422
    assert send(service, "/nodes/nowhere", drained="yes").status_code == 404


def test_what_if_compares_worlds(service: Showing) -> None:
    running = service.submit("running", 50_000)
    file = f"name: extra\nrun: train.py\nworkdir: {service.work}\nsteps: 400\ndeadline: 10m\ncurve: {{1: 20, 2: 38}}\n"
    answer = send(service, "/what-if", policy="fifo", job=file)
    assert answer.status_code == 200, answer.text
    part = read(answer.text)
    assert "extra-new" in part.text
    assert part.find("a", href=f"/jobs/{running}")
    assert "Decide by fifo" in part.text
    page = read(send(service, "/what-if", script=False, policy="", job="").text)
    assert "the same" in page.text
    assert send(service, "/what-if", policy="no-such").status_code == 422
    assert send(service, "/what-if", job=file.replace(str(service.work), "/etc")).status_code == 422
    assert "fifo decides" in send(service, "/policy", policy="fifo").text
    assert "elasticflow decides" in send(service, "/policy", policy="elasticflow").text
    send(service, f"/jobs/{running}/cancel")


def test_users_change_only_their_own(service: Showing) -> None:
    job = service.submit("roots", 50_000)
    for path, fields in (
        (f"/jobs/{job}/cancel", {}),
        (f"/jobs/{job}/edit", {"deadline": "5h"}),
        (f"/jobs/{job}/scale", {"workers": "1"}),
        ("/nodes/node000", {"drained": "yes"}),
        ("/policy", {"policy": "fifo"}),
    ):
        assert send(service, path, ANN, **fields).status_code == 403, path
    page = read(fetch(service, f"/jobs/{job}", ANN).text)
    assert not page.find("button", id="cancel")
    assert not page.find("button", id="set-workers")
    assert not [attrs for attrs in read(fetch(service, "/cluster", ANN).text).find("button") if "drain" in attrs["id"]]
    assert phase(service, job) != "cancelled"
    send(service, f"/jobs/{job}/cancel")


# --- the door ---


def test_a_browser_without_a_token_is_asked_for_one(service: Showing) -> None:
    with service.client(None, headers=AS_BROWSER) as client:
        for path in (*PAGES, "/jobs/x", "/nothing"):
            answer = client.get(path)
            assert answer.status_code == 401, path
            assert read(answer.text).find("input", id="token"), path
        wrong = client.post("/login", data={"token": "wrong"})
        assert wrong.status_code == 401
        assert "not known here" in wrong.text
        assert client.get("/login?token=wrong").status_code == 401
        assert not client.cookies
        right = client.post("/login", data={"token": TOKEN})
        assert (right.status_code, right.headers["location"]) == (303, "/")
        assert client.get("/").status_code == 200
        assert client.post("/logout", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
        assert client.post("/logout").headers["location"] == "/login"
        assert client.get("/").status_code == 401


def test_the_link_signs_in_and_leaves_no_token_behind(service: Showing) -> None:
    with service.client(None, headers=AS_BROWSER) as client:
        answer = client.get(f"/login?token={TOKEN}")
        assert answer.status_code == 200
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "SameSite=strict" in answer.headers["set-cookie"]
        assert TOKEN not in answer.text
        read(answer.text)
        assert client.get("/").status_code == 200


def test_pages_of_others_cannot_use_the_cookie(service: Showing) -> None:
    job = service.submit("precious", 50_000)
    with service.client(None, headers=AS_BROWSER) as client:
        client.get(f"/login?token={TOKEN}")
        for headers in ({"Origin": "https://elsewhere.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
            answer = client.post(f"/jobs/{job}/cancel", headers=headers)
            assert answer.status_code == 403, headers
    assert phase(service, job) != "cancelled"
    send(service, f"/jobs/{job}/cancel")


@pytest.mark.parametrize(
    ("body", "kind"), [(b"{}", "application/json"), (b"a=1&" * 30, FORM), ("job=\u00e9".encode(), FORM)]
)
def test_forms_of_another_kind_are_refused(service: Showing, body: bytes, kind: str) -> None:
    with service.client(headers=AS_BROWSER | {"Content-Type": kind}) as client:
        assert client.post("/what-if", content=body).status_code == 422


def test_a_script_that_is_signed_out_reloads_its_page(service: Showing) -> None:
    with service.client(None, headers=AS_SCRIPT) as client:
        answer = client.get("/fragments/overview")
    assert (answer.status_code, answer.headers["hx-refresh"]) == (401, "true")


# --- files ---


def test_files_are_served_to_all_and_kept_by_browsers(service: Showing) -> None:
    with service.client(None) as client:
        for name, asset in assets.assets().items():
            answer = client.get(assets.asset_url(name))
            assert answer.content == asset.body
            assert "immutable" in answer.headers["cache-control"]
            assert answer.headers["x-content-type-options"] == "nosniff"
        again = client.get("/static/live.js", headers={"If-None-Match": answer.headers["etag"]})
        assert again.headers["cache-control"] == "no-cache"
        for name in ("nothing.js", "../pages.py", "..%2f..%2fpages.py", "vendor/VENDORED.md", ""):
            assert client.get(f"/static/{name}").status_code in (401, 404), name


def test_vendored_files_are_those_that_are_listed() -> None:
    folder = assets.FOLDER / "vendor"
    listed = dict(LISTED.findall((folder / "VENDORED.md").read_text()))
    files = {path.name for path in folder.iterdir() if path.suffix in (".js", ".css")}
    assert set(listed) == files
    for name, digest in listed.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert all((folder / f"{name}.LICENSE").is_file() for name in ("htmx", "uplot"))


def test_nothing_is_fetched_from_elsewhere() -> None:
    own = [asset.body.decode() for name, asset in assets.assets().items() if not name.startswith("vendor/")]
    own += [path.read_text() for path in (assets.FOLDER.parent / "templates").iterdir()]
    for text in own:
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
        assert "|safe" not in text
        assert "| safe" not in text
