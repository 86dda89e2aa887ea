import itertools
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import httpx
import pytest

from melodeon.client import Cluster
from melodeon.client.follow import blocks
from melodeon.client.transport import Patience, Transport, check, checked_url
from melodeon.core.errors import MelodeonError, NotFound, Rejected, Unreachable, UsageError
from melodeon.core.service import Phase, Submission
from melodeon.core.spec import read_spec
from tests.control.api.serving import ANN, TOKEN, Serving, serving


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tmp_path_factory.mktemp("service")) as made:
        yield made


@pytest.fixture(autouse=True)
def _nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("MELODEON_URL", "MELODEON_TOKEN", "MELODEON_STATE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cluster(service: Serving) -> Iterator[Cluster]:
    with Cluster(service.url, TOKEN) as made:
        yield made
        for phase in (Phase.WAITING, Phase.STARTING, Phase.RUNNING):
            for job in made.jobs(phase=phase):
                made.cancel(job.id)


class Flaky:
    """A line to the service that breaks: the first `breaks` connections are cut, before or after they were heard."""

    def __init__(self, port: int, breaks: int, *, heard: bool) -> None:
        self._port, self._breaks, self._heard = port, breaks, heard
        self.connections = 0
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                line, _ = self._door.accept()
                self.connections += 1
                threading.Thread(target=self._carry, args=(line, self.connections), daemon=True).start()

    def _carry(self, line: socket.socket, number: int) -> None:
        cut = number <= self._breaks
        with line, socket.create_connection(("127.0.0.1", self._port)) as far, suppress(OSError):
            request = _request(line)
            if cut and not self._heard:
                return
            far.sendall(request)
            answer = far.recv(1 << 20)
            if cut:
                return
            line.sendall(answer)
            while True:
                for ready in select.select([line, far], [], [])[0]:
                    if not (part := ready.recv(1 << 20)):
                        return
                    (far if ready is line else line).sendall(part)


def _request(line: socket.socket) -> bytes:
    """A whole request, with its body."""
    found = b""
    while b"\r\n\r\n" not in found:
        if not (part := line.recv(1 << 16)):
            return b""
        found += part
    head, _, body = found.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head.lower())
    while length and len(body) < int(length[1]):
        body += line.recv(1 << 16)
    return head + b"\r\n\r\n" + body


# --- a method for every route ---


def test_the_client_needs_no_server_and_no_torch() -> None:
    code = (
        "import sys, melodeon.client\n"
        "print(sorted({'fastapi', 'uvicorn', 'pydantic', 'starlette', 'torch', 'numpy', 'sqlite3'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


CALLS: dict[str, tuple[object, ...]] = {
    "submit": ({},),
    "edit": ("{job}", {}),
    "scale": ("{job}", 2),
    "set_node": ("{node}",),
    "set_policy": ("fifo",),
    **dict.fromkeys(("job", "cancel", "logs", "story", "series"), ("{job}",)),
    **dict.fromkeys(("jobs", "overview", "nodes", "events", "timeline", "policy", "policies", "whatif"), ()),
    **dict.fromkeys(("metrics", "is_well"), ()),
}
"""How to call each method that asks for one route."""
TOLD = {"close", "url", "wait", "follow_logs", "follow_events"}
"""The others; the stream is what `follow_events` reads."""


def test_every_route_has_a_method(service: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    class Asked(Exception):
        pass

    def ask(method: str, path: str) -> None:
        raise Asked(f"{method} {unquote(path)}")

    monkeypatch.setattr(Transport, "ask", lambda _, kind, method, path, **__: ask(method, path))
    monkeypatch.setattr(Transport, "fetch", lambda _, method, path, **__: ask(method, path))
    assert {name for name in vars(Cluster) if not name.startswith("_")} == CALLS.keys() | TOLD
    found = set()
    for name, values in CALLS.items():
        with pytest.raises(Asked) as caught:
            getattr(Cluster("http://x"), name)(*values)
        found.add(f"{caught.value}")
    described = service.app.openapi()["paths"].items()
    routes = {f"{method.upper()} {path.removeprefix('/api/v1')}" for path, methods in described for method in methods}
    assert found == routes - {"GET /stream"}


def test_a_jobs_life(service: Serving, cluster: Cluster) -> None:
    spec = read_spec(service.job("life", steps=3000))
    made = cluster.submit(spec)
    assert isinstance(made, Submission)
    name = made.job.id
    assert made.admitted
    assert cluster.job(name).user == "root"
    assert cluster.job("last").id == name
    assert cluster.submit(service.job("dry"), dry_run=True).dry_run
    assert cluster.edit(name, {"priority": 3}).job.priority == 3.0
    assert cluster.scale(name, 2).override == 2
    assert cluster.scale(name, None).override is None
    assert cluster.logs(name, wait_s=10).text.startswith("step 1 ")
    assert cluster.story(name)
    assert "step" in cluster.series(name).columns
    assert cluster.events(job=name)[0].job == name
    assert cluster.cancel(name).phase in (Phase.CANCELLING, Phase.CANCELLED)
    assert cluster.wait(name, 20).phase is Phase.CANCELLED


def test_a_job_is_followed_to_its_end(service: Serving, cluster: Cluster) -> None:
    name = cluster.submit(service.job("short", steps=20)).job.id
    text = "".join(cluster.follow_logs(name))
    assert text.count("\n") == 20
    assert cluster.wait(name).phase is Phase.DONE
    assert cluster.job(name).digest


def test_waiting_ends_in_time(service: Serving, cluster: Cluster) -> None:
    name = cluster.submit(service.job("long", steps=1_000_000)).job.id
    began = time.monotonic()
    assert cluster.wait(name, 0.5).phase in (Phase.STARTING, Phase.RUNNING, Phase.WAITING)
    assert 0.4 < time.monotonic() - began < 10


def test_the_cluster(service: Serving, cluster: Cluster) -> None:
    cluster.submit(service.job("some"))
    assert cluster.overview().num_devices == 8
    assert cluster.set_node("node001", drained=True).drained
    assert [node.drained for node in cluster.nodes()] == [False, True]
    cluster.set_node("node001", drained=False)
    assert cluster.timeline().capacity == 8
    assert cluster.policy() == "elasticflow"
    assert cluster.set_policy("fifo") == "fifo"
    assert cluster.set_policy("elasticflow") in cluster.policies()
    assert cluster.whatif(policy="edf").policy == "edf"
    assert "melodeon_jobs" in cluster.metrics()
    assert cluster.is_well()


def test_all_pages_of_a_list(service: Serving, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [cluster.submit(service.job(f"page-{number}")).job.id for number in range(5)]
    monkeypatch.setattr("melodeon.client.cluster.PAGE", 2)
    assert [job.id for job in cluster.jobs()][-5:] == names
    assert [job.id for job in cluster.jobs(after=names[1], limit=2)] == names[2:4]
    assert [job.id for job in cluster.jobs(user="nobody")] == []


def test_names_are_one_part_of_a_path(cluster: Cluster) -> None:
    for name in ("../overview", "a/b", "..", "%2e%2e", "?x=1", "#", "", "é", "\n"):
        with pytest.raises((NotFound, UsageError)):
            cluster.story(name)
    for path in (".", "..", "a/b", "../a"):
        with pytest.raises(NotFound, match=f"job '{re.escape(path)}' is not known here"):
            cluster.job(path)


# --- errors ---


def test_errors_are_those_of_the_tree(service: Serving, cluster: Cluster) -> None:
    with pytest.raises(NotFound, match="'nope' is not known"):
        cluster.job("nope")
    with pytest.raises(UsageError, match="steps"):
        cluster.submit(service.job("bad", steps=-1))
    with Cluster(service.url, ANN) as ann, pytest.raises(UsageError, match="no operator"):
        ann.set_policy("fifo")
    with (
        Cluster(service.url, "wrong" * 5) as liar,
        pytest.raises(UsageError, match="does not know your token: set MELODEON_TOKEN"),
    ):
        liar.overview()
    with pytest.raises(UsageError, match="no address"):
        Cluster("ftp://x").overview()


@pytest.mark.parametrize(
    "text",
    [
        *("http://exa_mple..com/", f"http://{'a' * 64}.com", "http://.", "http://xn--a", "http://a b", "http://a/ b"),
        *("http://h:99999", "http://h:-1", "http://h:0", "http://h:x", "http://:80", "http://[::1", "http://[zz]:80"),
        *("http://h/\0", "http://", "127.0.0.1:80", "h", "//h", " "),
    ],
)
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no address of a service: write one such as"):
        checked_url(text)


@pytest.mark.parametrize("text", ["http://[::1]:8470", "https://exa_mple.com", "http://h:65535", " http://h\n"])
def test_an_address_is_taken(text: str) -> None:
    assert checked_url(text) == text.strip()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"error": "x", "code": 3}', Rejected),
        (b'{"error": "x", "code": 5}', Unreachable),
        (b'{"error": "x", "code": 99}', MelodeonError),
        (b"<html>", Unreachable),
        (b"[]", Unreachable),
    ],
)
def test_codes_become_errors(body: bytes, kind: type[MelodeonError]) -> None:
    with pytest.raises(kind):
        check(500, body, "http://x")
    with pytest.raises(Unreachable, match="points elsewhere"):
        check(302, b"", "http://x")


def test_nobody_there_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(Unreachable, match="does not answer"):
        Cluster(f"http://127.0.0.1:{port}", "x" * 20, patience_s=0.3).overview()
    assert time.monotonic() - began < 10
    with pytest.raises(Unreachable, match="melodeon serve"):
        Cluster().overview()


@pytest.mark.parametrize("tick_s", [0.015, 0.02, 0.03, 0.05, 0.1])
def test_patience_that_ends_in_the_middle_of_an_attempt_is_unreachable(
    tick_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    clock = itertools.count()
    monkeypatch.setattr("melodeon.client.transport.time.monotonic", lambda: next(clock) * tick_s)
    with pytest.raises(Unreachable, match="does not answer"):
        Cluster(f"http://127.0.0.1:{port}", "x" * 20, patience_s=0.1).overview()


def test_one_that_takes_a_question_and_never_answers_is_not_asked_for_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        began = time.monotonic()
        with Cluster(f"http://127.0.0.1:{port}", "t", patience_s=0.5) as cluster, pytest.raises(Unreachable):
            cluster.overview()
        assert time.monotonic() - began < 10, "patience and one answer, not two answers of a minute"


def test_it_is_found_by_variables(service: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MELODEON_URL", service.url + "/")
    monkeypatch.setenv("MELODEON_TOKEN", TOKEN)
    with Cluster() as cluster:
        assert cluster.url == service.url
        assert cluster.overview().num_devices == 8
    assert checked_url("http://h:1/") == "http://h:1"


# --- lines that break ---


@pytest.mark.parametrize("heard", [False, True])
def test_a_submission_over_a_broken_line_is_one_job(service: Serving, heard: bool) -> None:
    flaky = Flaky(service.port, 3, heard=heard)
    try:
        with Cluster(flaky.url, TOKEN) as cluster:
            made = cluster.submit(service.job(f"once-{heard}".lower()))
        assert flaky.connections == 4
        with Cluster(service.url, TOKEN) as cluster:
            assert [job.id for job in cluster.jobs() if job.name == made.job.name] == [made.job.id]
            cluster.cancel(made.job.id)
    finally:
        flaky.close()


def test_what_may_have_been_heard_is_not_said_twice(service: Serving, cluster: Cluster) -> None:
    name = cluster.submit(service.job("edited")).job.id
    flaky = Flaky(service.port, 1, heard=True)
    try:
        with Cluster(flaky.url, TOKEN) as other, pytest.raises(Unreachable):
            other.edit(name, {"priority": 2})
        assert flaky.connections == 1
    finally:
        flaky.close()


def test_events_are_followed_through_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        port = first.port
        cluster = Cluster(first.url, TOKEN, patience_s=20)
        cluster.submit(first.job("before"))
        events = cluster.follow_events(0)
        seen = [next(events).seq for _ in range(2)]
    with serving(tmp_path, port=port) as second:
        cluster.submit(second.job("after"))
        known = [event.seq for event in cluster.events()]
        while seen[-1] < known[-1]:
            seen.append(next(events).seq)
        assert seen[: len(known)] == known
        events.close()  # type: ignore[attr-defined]
        cluster.close()


def test_a_stream_that_breaks_after_hours_is_waited_for_like_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    later_s, refused, found = 0.0, threading.Event(), []
    lost = Transport.lost

    def noted(self: Transport, error: httpx.TransportError, patience: Patience, *, again: bool) -> None:
        lost(self, error, patience, again=again)
        if isinstance(error, httpx.ConnectError):
            refused.set()

    monkeypatch.setattr(Transport, "lost", noted)
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later_s, sleep=time.sleep)
    monkeypatch.setattr("melodeon.client.transport.time", clock)

    def say(door: socket.socket, number: int) -> None:
        """One event to one reader, and then nothing: as from a service that is killed."""
        nonlocal later_s
        line, _ = door.accept()
        later_s += 3600.0
        with line:
            line.recv(1 << 16)
            event = f'id: {number}\ndata: {{"seq":{number},"at":0,"kind":"late","text":""}}\n\n'
            line.sendall(f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{len(event):x}\r\n{event}\r\n".encode())

    with (
        socket.create_server(("127.0.0.1", 0)) as door,
        Cluster(f"http://127.0.0.1:{door.getsockname()[1]}", TOKEN, patience_s=30) as cluster,
    ):
        events = cluster.follow_events(0)
        reader = threading.Thread(target=lambda: found.extend(next(events).seq for _ in range(2)))
        reader.start()
        say(door, 1)
        address = door.getsockname()
        door.close()
        assert refused.wait(20), "nobody is there, and it is asked again"
        with socket.create_server(address) as again:
            say(again, 2)
            reader.join(20)
        assert found == [1, 2]
        events.close()  # type: ignore[attr-defined]


def test_blocks_of_a_stream() -> None:
    lines = ["retry: 1000", "id: 7", "", ": still here", "", "id: 8", "data: a", "data:b", "", "id: x", "data: c", ""]
    assert list(blocks(lines)) == [(7, ""), (None, ""), (8, "a\nb"), (None, "c")]
