import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from melodeon.control.api.schemas import JOB_FIELDS
from melodeon.core.spec import READERS
from melodeon.sched.quota import Quota
from tests.control.api.serving import ANN, BOB, Serving, serving

API = "/api/v1"


@pytest.fixture
def root(service: Serving) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


@pytest.fixture
def ann(service: Serving) -> Iterator[httpx.Client]:
    with service.client(ANN) as client:
        yield client


@pytest.fixture
def bob(service: Serving) -> Iterator[httpx.Client]:
    with service.client(BOB) as client:
        yield client


@pytest.fixture(autouse=True)
def _room_for_the_next(service: Serving) -> Iterator[None]:
    yield
    with service.client() as client:
        for job in client.get(f"{API}/jobs", params={"limit": 1000}).json():
            if job["phase"] in ("waiting", "starting", "running", "profiling"):
                client.post(f"{API}/jobs/{job['id']}/cancel")


def test_the_description_lists_every_field_of_a_job() -> None:
    assert list(JOB_FIELDS) == list(READERS)


def test_an_admitted_job_is_created_and_runs(service: Serving, ann: httpx.Client) -> None:
    answer = ann.post(f"{API}/jobs", json=service.job("first"))
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert made["admitted"] is True
    assert made["job"]["user"] == "ann"
    name = made["job"]["id"]
    assert ann.get(f"{API}/jobs/{name}").json()["id"] == name
    assert ann.get(f"{API}/jobs/{name[:-1]}").json()["name"] == "first"
    assert name in [job["id"] for job in ann.get(f"{API}/jobs", params={"user": "ann"}).json()]


def test_a_deadline_that_cannot_be_kept_is_rejected_with_the_earliest(service: Serving, ann: httpx.Client) -> None:
    answer = ann.post(f"{API}/jobs", json=service.job("late", deadline="10s", steps=100_000))
    assert answer.status_code == 200
    made = answer.json()
    assert made["admitted"] is False
    assert made["job"]["earliest_deadline_at"] > made["job"]["submitted_at"]
    assert "--deadline" in made["next"]


def test_a_dry_run_leaves_nothing(service: Serving, ann: httpx.Client) -> None:
    answer = ann.post(f"{API}/jobs", params={"dry_run": True}, json=service.job("maybe"))
    assert answer.status_code == 200
    assert answer.json()["dry_run"] is True
    assert "maybe" not in [job["name"] for job in ann.get(f"{API}/jobs").json()]


def test_the_same_key_is_the_same_job(service: Serving, ann: httpx.Client, bob: httpx.Client) -> None:
    headers = {"Idempotency-Key": "abc"}
    one = ann.post(f"{API}/jobs", json=service.job("once"), headers=headers)
    two = ann.post(f"{API}/jobs", json=service.job("once"), headers=headers)
    assert (one.status_code, two.status_code) == (201, 201)
    assert one.json()["job"]["id"] == two.json()["job"]["id"]
    other = ann.post(f"{API}/jobs", json=service.job("once", steps=7), headers=headers)
    assert other.status_code == 422
    assert bob.post(f"{API}/jobs", json=service.job("once"), headers=headers).json()["job"]["user"] == "bob"


def test_a_bad_job_is_refused_by_its_field(service: Serving, ann: httpx.Client) -> None:
    answer = ann.post(f"{API}/jobs", json=service.job("x", workers="8-1"))
    assert answer.status_code == 422
    assert answer.json()["code"] == 2
    assert answer.json()["field"] == "workers"
    assert "smaller number first" in answer.json()["error"]
    answer = ann.post(f"{API}/jobs", json=service.job("x", stepz=1))
    assert answer.json()["field"] == "stepz"
    assert "did you mean 'steps'" in answer.json()["error"]


def test_users_see_all_jobs_and_change_their_own(
    service: Serving, root: httpx.Client, ann: httpx.Client, bob: httpx.Client
) -> None:
    name = ann.post(f"{API}/jobs", json=service.job("mine")).json()["job"]["id"]
    assert bob.get(f"{API}/jobs/{name}").status_code == 200
    for answer in (bob.post(f"{API}/jobs/{name}/cancel"), bob.patch(f"{API}/jobs/{name}", json={"priority": 2})):
        assert answer.status_code == 403
        assert f"job '{name}' belongs to 'ann', and you are 'bob': ask them" in answer.json()["error"]
    edited = ann.patch(f"{API}/jobs/{name}", json={"priority": 2})
    assert edited.status_code == 200
    assert edited.json()["job"]["priority"] == 2
    assert root.post(f"{API}/jobs/{name}/cancel").json()["phase"] in ("cancelling", "cancelled")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/jobs/{job}/scale", {"workers": 2}),
        ("POST", "/nodes/node001", {"drained": True}),
        ("PUT", "/policy", {"policy": "fifo"}),
    ],
)
def test_only_operators_turn_the_knobs(
    service: Serving, root: httpx.Client, ann: httpx.Client, method: str, path: str, body: object
) -> None:
    name = ann.post(f"{API}/jobs", json=service.job("knob")).json()["job"]["id"]
    path = API + path.format(job=name)
    assert ann.request(method, path, json=body).status_code == 403
    assert root.request(method, path, json=body).status_code == 200
    back = {"/scale": {"workers": None}, "node001": {"drained": False}, "policy": {"policy": "elasticflow"}}
    root.request(method, path, json=next(value for end, value in back.items() if path.endswith(end)))


def test_what_is_not_there_is_said(ann: httpx.Client) -> None:
    for path in ("/jobs/nope", "/jobs/nope/logs", "/jobs/nope/story", "/jobs/nope/series", "/nothing"):
        answer = ann.get(API + path)
        assert answer.status_code == 404, path
        assert answer.json()["code"] == 4
    assert ann.post(f"{API}/jobs/nope/cancel").status_code == 404
    assert ann.delete(f"{API}/jobs").status_code == 405


def test_questions_about_a_job(service: Serving, ann: httpx.Client) -> None:
    name = ann.post(f"{API}/jobs", json=service.job("asked")).json()["job"]["id"]
    chunk = ann.get(f"{API}/jobs/{name}/logs", params={"wait_s": 10}).json()
    assert chunk["text"].startswith("step 1 ")
    again = ann.get(f"{API}/jobs/{name}/logs", params={"from": chunk["next"], "wait_s": 10}).json()
    assert not again["text"].startswith("step 1 ")
    assert any("admitted" in sentence["text"] for sentence in ann.get(f"{API}/jobs/{name}/story").json())
    assert set(ann.get(f"{API}/jobs/{name}/series").json()["columns"]) >= {"step", "at", "workers"}


def test_questions_about_the_cluster(service: Serving, ann: httpx.Client) -> None:
    ann.post(f"{API}/jobs", json=service.job("any"))
    assert ann.get(f"{API}/overview").json()["num_devices"] == 8
    assert len(ann.get(f"{API}/nodes").json()) == 2
    events = ann.get(f"{API}/events", params={"limit": 3}).json()
    assert [event["seq"] for event in events] == [1, 2, 3]
    assert ann.get(f"{API}/events", params={"after": 3, "limit": 1}).json()[0]["seq"] == 4
    assert ann.get(f"{API}/timeline").json()["capacity"] == 8
    assert ann.get(f"{API}/timeline", params={"since": 5, "until": 4}).status_code == 422
    assert "elasticflow" in ann.get(f"{API}/policy").json()["policies"]
    assert ann.post(f"{API}/whatif", json={"policy": "fifo"}).json()["policy"] == "fifo"
    job = service.job("dream", deadline="2h")
    assert "dream-new" in [one["id"] for one in ann.post(f"{API}/whatif", json={"job": job}).json()["jobs"]]


def test_prometheus_is_told(service: Serving, ann: httpx.Client) -> None:
    ann.get(f"{API}/overview")
    for path in ("/metrics", f"{API}/metrics"):
        text = ann.get(path).text
        assert 'melodeon_jobs{phase="running"}' in text
        assert 'melodeon_devices{state="all"} 8.0' in text
        assert 'melodeon_http_requests_total{method="GET",route="/api/v1/overview",status="200"}' in text
    assert ann.get("/healthz").json()["status"] == "ok"


def test_a_quota_holds_from_when_it_is_written(tmp_path: Path) -> None:
    with serving(tmp_path) as other, other.client(ANN) as ann:
        assert ann.post(f"{API}/jobs", json=other.job("one")).json()["admitted"] is True
        users = other.state / "users.json"
        listed = json.loads(users.read_bytes())
        listed["users"]["ann"]["active_jobs"] = 1
        users.write_text(json.dumps(listed))
        refused = ann.post(f"{API}/jobs", json=other.job("two")).json()
        assert (refused["admitted"], "may have 1" in refused["text"]) == (False, True)


def test_a_quota_turns_jobs_away(tmp_path: Path) -> None:
    with (
        serving(tmp_path, quota=Quota(active_jobs=1)) as other,
        other.client(ANN) as ann,
        other.client() as root,
    ):
        assert ann.post(f"{API}/jobs", json=other.job("one")).json()["admitted"] is True
        refused = ann.post(f"{API}/jobs", json=other.job("two")).json()
        assert refused["admitted"] is False
        assert "may have 1" in refused["text"]
        for name in ("three", "four"):
            assert root.post(f"{API}/jobs", json=other.job(name)).json()["admitted"] is True
