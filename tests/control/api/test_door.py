"""Who gets in: tokens, cookies, hosts, origins, bodies, and what is written down about it."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from melodeon.control.api.audit import Audit
from melodeon.control.api.cluster import root_router
from melodeon.control.api.guard import LARGEST_BODY, Hosts, host_of
from melodeon.control.web import router
from tests.control.api.serving import ANN, TOKEN, Serving

API = "/api/v1"
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


OPEN = {"/login", "/static/{name:path}"}
"""What a browser needs before it is signed in."""


def test_every_route_and_method_needs_a_token(service: Serving) -> None:
    pages = [*router(service.controller, service.auth).routes, *root_router.routes]
    known = {*service.app.openapi()["paths"], *(str(getattr(route, "path", "")) for route in pages)}
    assert known > {*OPEN, f"{API}/jobs", "/", "/jobs/{job}/cancel", "/metrics", "/healthz"}
    paths = [re.sub(r"\{\w+\}", "x", path) for path in sorted(known - OPEN)]
    paths += [f"{API}/openapi.json", "/nothing", f"{API}/nothing"]
    with service.client(None) as stranger, service.client("wrong-token-0123456789") as liar:
        for path in paths:
            for method in METHODS:
                for client in (stranger, liar):
                    answer = client.request(method, path)
                    assert answer.status_code == 401, (method, path)
                    assert answer.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN} {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        TOKEN,
    ],
)
def test_half_a_token_is_none(service: Serving, header: str) -> None:
    with service.client(None) as client:
        assert client.get(f"{API}/overview", headers={"Authorization": header}).status_code == 401


def test_a_token_in_the_query_opens_nothing_but_the_login(service: Serving) -> None:
    with service.client(None) as client:
        assert client.get(f"{API}/overview", params={"token": TOKEN}).status_code == 401


def test_no_token_is_ever_said(service: Serving) -> None:
    with service.client() as client:
        for path in (f"{API}/overview", "/metrics", "/healthz", f"{API}/openapi.json"):
            assert TOKEN not in client.get(path).text
        client.put(f"{API}/policy", json={"policy": "elasticflow"})
    noted = (service.state / "audit.jsonl").read_text()
    assert "set_policy" in noted
    assert TOKEN not in noted


# --- browsers ---


@contextmanager
def signed_in(service: Serving, token: str = TOKEN) -> Iterator[httpx.Client]:
    with service.client(None) as client:
        answer = client.get("/login", params={"token": token})
        assert answer.status_code in (200, 303)
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert token.lower() not in cookie
        yield client


def test_the_link_signs_a_browser_in(service: Serving) -> None:
    with signed_in(service, ANN) as browser:
        assert browser.get(f"{API}/overview").status_code == 200


def test_a_wrong_link_does_not(service: Serving) -> None:
    with service.client(None) as client:
        for token in ("", "wrong", "x" * 600):
            answer = client.get("/login", params={"token": token})
            assert answer.status_code < 500
            assert "set-cookie" not in answer.headers


def test_a_made_up_cookie_is_none(service: Serving) -> None:
    with signed_in(service) as browser:
        name, value = next(iter(browser.cookies.items()))
    expires, _, signature = value.partition(".")
    for wrong in (
        f"{int(expires) + 1}.{signature}",
        f"1.{signature}",
        f"{expires}.",
        signature,
        "",
        "..",
        f"{expires}.é",
    ):
        with service.client(None, headers={"Cookie": f"{name}={wrong}".encode()}) as client:
            assert client.get(f"{API}/overview").status_code == 401


def test_a_page_of_another_site_changes_nothing(service: Serving) -> None:
    with signed_in(service) as browser:
        path, body = f"{API}/policy", {"policy": "elasticflow"}
        for origin in (
            "http://evil.example",
            f"http://127.0.0.1:{service.port + 1}",
            "null",
            f"https://127.0.0.1.evil:{service.port}",
            "http://[",
        ):
            answer = browser.put(path, json=body, headers={"Origin": origin})
            assert answer.status_code == 403, origin
        assert browser.put(path, json=body).status_code == 403
        assert browser.put(path, json=body, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
        assert browser.put(path, json=body, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200
        assert browser.put(path, json=body, headers={"Origin": service.url}).status_code == 200
    with service.client() as program:
        assert program.put(path, json=body).status_code == 200


def test_no_other_site_is_told_that_it_may_read(service: Serving) -> None:
    with service.client() as client:
        answer = client.get(f"{API}/overview", headers={"Origin": "http://evil.example"})
        assert not [name for name in answer.headers if name.startswith("access-control")]
        asked = client.options(
            f"{API}/jobs", headers={"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
        )
        assert asked.status_code == 405
        assert not [name for name in asked.headers if name.startswith("access-control")]


def test_every_answer_has_the_headers(service: Serving) -> None:
    with service.client() as client, service.client(None) as stranger:
        for answer in (
            client.get(f"{API}/overview"),
            client.get("/nothing"),
            stranger.get("/"),
            stranger.get("/login"),
        ):
            assert "default-src 'self'" in answer.headers["content-security-policy"]
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"


# --- hosts ---


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "localhost@evil", "10.0.0.1"]
)
def test_another_host_is_not_answered(service: Serving, host: str) -> None:
    with service.client() as client:
        answer = client.get(f"{API}/overview", headers={"Host": host})
        assert answer.status_code in (400, 421)
        assert "num_devices" not in answer.text


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9999", "127.0.0.1", "[::1]:8470"])
def test_our_own_names_are(service: Serving, host: str) -> None:
    with service.client() as client:
        assert client.get(f"{API}/overview", headers={"Host": host}).status_code == 200


def test_a_service_for_everybody_is_called_by_addresses_and_its_names() -> None:
    hosts = Hosts("0.0.0.0", ["cluster.lan"])
    for good in ("10.1.2.3:8470", "[fe80::1]:1", "cluster.lan", socket.gethostname(), "localhost"):
        assert hosts.allow(good), good
    for bad in ("evil.example", None, "", "a b", "[", "10.0.0.1/x", "user@10.0.0.1"):
        assert not hosts.allow(bad), bad
    assert host_of("[::1]:80") == "::1"


def test_a_request_without_a_host_is_refused(service: Serving) -> None:
    with socket.create_connection(("127.0.0.1", service.port), timeout=5) as line:
        line.sendall(f"GET {API}/overview HTTP/1.0\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        assert b" 421 " in line.recv(4096).split(b"\r\n")[0]


# --- bodies ---


@pytest.mark.parametrize("how", ["whole", "chunked"])
def test_a_body_that_is_too_large_is_refused(service: Serving, how: str) -> None:
    large = b" " * (LARGEST_BODY + 1)
    with service.client() as client:
        answer = client.post(f"{API}/jobs", content=large if how == "whole" else iter([large[:1000], large[1000:]]))
        assert answer.status_code == 413
        assert answer.json()["code"] == 2


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b"[" * 500_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"name": "\\ud800", "run": "train.py", "steps": 1}',
        b'{"name": "a", "run": "train.py", "steps": 1' + b"0" * 5000 + b"}",
        b'{"name": "a", "run": ["train.py", "\\udfff"], "steps": 1}',
        b'{"name": "a", "run": "train.py", "steps": 1, "env": {"\\u0000": "x"}}',
        b'{"name": "a", "run": "train.py", "steps": 1, "workdir": "\\u0000"}',
        b'{"name": "a", "run": "train.py", "steps": NaN}',
        b"a=1&b=2",
    ],
)
def test_hostile_bodies_are_refused_in_a_sentence(service: Serving, body: bytes) -> None:
    with service.client() as client:
        for method, path in (("POST", "/jobs"), ("PUT", "/policy"), ("POST", "/whatif"), ("POST", "/nodes/node000")):
            answer = client.request(method, API + path, content=body)
            assert answer.status_code == 422, (path, answer.text)
            assert answer.json()["error"]


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "..%2f..%2fetc",
        "%00",
        "%ff",
        "a" * 5000,
        "<script>",
        "' OR 1=1 --",
        "..",
        "%0d%0aX: y",
        "last%20",
    ],
)
def test_hostile_names_lead_nowhere(service: Serving, name: str) -> None:
    with service.client() as client:
        for end in ("", "/logs", "/story", "/series"):
            answer = client.get(f"{API}/jobs/{name}{end}")
            assert answer.status_code in (404, 422), answer.text
            assert "root:" not in answer.text
            assert answer.headers["content-type"] == "application/json"


def test_hostile_marks_of_logs_are_refused(service: Serving) -> None:
    with service.client() as client:
        job = client.post(f"{API}/jobs", json=service.job("logs")).json()["job"]["id"]
        for start in ("../x", "x" * 9000, "-1", "\x00", "1~~~"):
            answer = client.get(f"{API}/jobs/{job}/logs", params={"from": start})
            assert answer.status_code == 422, (start, answer.text)


# --- paths ---


def test_jobs_run_inside_the_roots_only(service: Serving) -> None:
    outside = service.work.parent / "outside"
    outside.mkdir()
    (outside / "train.py").touch()
    (service.work / "link").symlink_to(outside)
    (service.work / "link.py").symlink_to(outside / "train.py")
    (service.work / "sub").mkdir()
    (service.work / "sub" / "train.py").touch()
    with service.client() as client:

        def refused(**fields: object) -> str:
            answer = client.post(f"{API}/jobs", params={"dry_run": True}, json=service.job("path", **fields))
            assert answer.status_code == 422, answer.text
            return str(answer.json()["error"])

        for folder in (
            str(outside),
            "/",
            "/etc",
            "/no/such",
            "..",
            f"{service.work}/../outside",
            f"{service.work}/link",
            "link",
        ):
            assert "outside of the folders" in refused(workdir=folder), folder
        assert "is no folder" in refused(workdir=f"{service.work}/train.py")
        for script in ("link.py", "../outside/train.py", str(outside / "train.py"), "link/train.py"):
            assert "outside of the job's folder" in refused(run=script), script
        assert "is no file" in refused(run="absent.py")
        assert "is no file" in refused(run="sub")
        for fields in (
            {"workdir": "sub"},
            {"workdir": f"{service.work}/sub"},
            {"run": "sub/train.py"},
            {"run": "-m training"},
        ):
            answer = client.post(f"{API}/jobs", params={"dry_run": True}, json=service.job("path", **fields))
            assert answer.status_code == 200, answer.text
            assert answer.json()["job"]["spec"]["workdir"].startswith(str(service.work))


# --- the audit log ---


def test_what_was_done_is_written_down(service: Serving) -> None:
    with service.client(ANN) as ann, service.client(None) as stranger:
        job = ann.post(f"{API}/jobs", json=service.job("noted")).json()["job"]["id"]
        ann.post(f"{API}/jobs/{job}/cancel")
        ann.put(f"{API}/policy", json={"policy": "fifo"})
        stranger.get(f"{API}/jobs")
        ann.get(f"{API}/jobs")
    path = service.state / "audit.jsonl"
    assert path.stat().st_mode & 0o777 == 0o600
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    mine = [(line["what"], line.get("job"), line["ok"]) for line in lines if line["user"] == "ann"][-3:]
    assert mine == [("submit", job, True), ("cancel", job, True), ("set_policy", None, False)]
    assert any(line["user"] is None and line["status"] == 401 for line in lines)
    assert all(line["from"] == "127.0.0.1" for line in lines)
    assert ANN not in path.read_text()
    assert TOKEN not in path.read_text()


def test_strangers_are_counted_by_how_they_were_turned_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("melodeon.control.api.audit.STRANGERS_S", 1e6)
    log = Audit(tmp_path / "audit.jsonl")
    for status in (421, 401, 401, 421):
        log.note(user=None, what="GET '/'", job=None, status=status, client="127.0.0.1")
    monkeypatch.setattr("melodeon.control.api.audit.STRANGERS_S", 0.0)
    log.note(user=None, what="GET '/'", job=None, status=401, client="127.0.0.1")
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [(line["status"], line.get("times", 1)) for line in lines] == [(421, 1), (401, 1), (401, 2)]


def test_answers_are_one_shape(service: Serving) -> None:
    with service.client() as client, service.client(None) as stranger:
        for answer in (
            stranger.get("/x"),
            client.get("/x"),
            client.get(f"{API}/jobs", params={"limit": "many"}),
            client.delete(f"{API}/jobs"),
            client.get(f"{API}/timeline", params={"since": "nan"}),
        ):
            values = msgspec.json.decode(answer.content)
            assert set(values) <= {"error", "code", "field"}
            assert isinstance(values["error"], str)
            assert values["code"] in (2, 4)
