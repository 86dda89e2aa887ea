import hashlib
import json
import stat
import time
from pathlib import Path

import pytest
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from melodeon.control.api.auth import COOKIE_S, Auth, User, own_token, read_people
from melodeon.control.api.errors import Unauthorized
from melodeon.core.errors import UsageError
from melodeon.sched.quota import Quota

TOKEN, ANN = "t" * 32, "a" * 32


def people(path: Path, **users: object) -> Path:
    path.write_text(json.dumps({"users": users}))
    return path


def person(token: str, **more: object) -> dict[str, object]:
    return {"token_sha256": hashlib.sha256(token.encode()).hexdigest(), **more}


def cookie_of(auth: Auth, token: str) -> str:
    response = Response()
    auth.sign_in(response, token)
    return response.headers["set-cookie"].split(";")[0]


def test_the_token_is_made_once_and_for_its_owner(tmp_path: Path) -> None:
    token = own_token(tmp_path)
    assert len(token) >= 40
    assert own_token(tmp_path) == token
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


def test_a_token_that_others_can_read_is_refused(tmp_path: Path) -> None:
    own_token(tmp_path)
    (tmp_path / "token").chmod(0o640)
    with pytest.raises(UsageError, match="read by others"):
        own_token(tmp_path)
    (tmp_path / "token").chmod(0o600)
    (tmp_path / "token").write_text("short\n")
    with pytest.raises(UsageError, match="no token"):
        own_token(tmp_path)


def test_users_are_known_by_their_tokens(tmp_path: Path) -> None:
    auth = Auth(TOKEN, operator="root", users=people(tmp_path / "users.json", ann=person(ANN)))
    assert auth.by_token(TOKEN) == User(name="root", operator=True)
    assert auth.by_token(ANN) == User(name="ann", operator=False)
    for wrong in ("", "x", TOKEN + "x", hashlib.sha256(ANN.encode()).hexdigest(), "é"):
        assert auth.by_token(wrong) is None


def test_a_header_goes_before_a_cookie(tmp_path: Path) -> None:
    auth = Auth(TOKEN, users=people(tmp_path / "users.json", ann=person(ANN)))
    cookie = cookie_of(auth, TOKEN)
    by_cookie = auth.identify(Headers({"cookie": f"a=b; {cookie}"}))
    assert by_cookie is not None
    assert by_cookie.by_cookie
    both = auth.identify(Headers({"cookie": cookie, "authorization": f"bearer {ANN}"}))
    assert both is not None
    assert (both.user.name, both.by_cookie) == ("ann", False)
    assert auth.identify(Headers({"cookie": cookie, "authorization": "Bearer wrong"})) is None


def test_require_names_the_user_or_raises() -> None:
    auth = Auth(TOKEN)
    scope = {"type": "http", "headers": [(b"authorization", f"Bearer {TOKEN}".encode())]}
    assert auth.require(Request(scope)).operator
    with pytest.raises(Unauthorized):
        auth.require(Request({"type": "http", "headers": []}))


def test_cookies_survive_a_restart_and_end_with_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users = people(tmp_path / "users.json", ann=person(ANN))
    cookie = cookie_of(Auth(TOKEN, users=users), ANN)
    again = Auth(TOKEN, users=users)
    assert again.identify(Headers({"cookie": cookie})) is not None
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + COOKIE_S + 1)
    assert again.identify(Headers({"cookie": cookie})) is None
    monkeypatch.undo()
    people(users, ann=person("b" * 32), bob=person("c" * 32))
    assert again.identify(Headers({"cookie": cookie})) is None
    other = Auth("u" * 32, users=people(users, ann=person(ANN)))
    assert other.cookie != again.cookie
    assert other.by_cookie(cookie.partition("=")[2]) is None


def test_somebody_can_be_shut_out_without_a_restart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    users = people(tmp_path / "users.json", ann=person(ANN))
    auth = Auth(TOKEN, users=users)
    assert auth.by_token(ANN)
    users.write_text("{ half")
    assert auth.by_token(ANN)
    assert "those of before" in capsys.readouterr().err
    users.unlink()
    assert auth.by_token(ANN) is None
    assert auth.by_token(TOKEN)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[]", "does not list users"),
        ('{"users": {"ann": {}}}', "token_sha256"),
        ('{"users": {"ann": {"token_sha256": "abc"}}}', "64 small"),
        ('{"users": {"../x": {"token_sha256": "%s"}}}' % ("0" * 64), "'../x' must be"),
        ('{"users": {"ann": {"token_sha256": "%s", "opperator": true}}}' % ("0" * 64), "opperator"),
        ('{"users": {"ann": {"token_sha256": "%s", "active_jobs": -1}}}' % ("0" * 64), "negative"),
    ],
)
def test_a_wrong_list_of_users_is_refused_by_what_is_wrong(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "users.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=match):
        read_people(path)


def test_a_list_that_others_can_write_is_refused(tmp_path: Path) -> None:
    path = people(tmp_path / "users.json")
    path.chmod(0o666)
    with pytest.raises(UsageError, match="written by others"):
        read_people(path)


def test_quotas_follow_the_list_while_the_service_runs(tmp_path: Path) -> None:
    users = people(tmp_path / "users.json", ann=person(ANN))
    auth = Auth(TOKEN, operator="root", users=users)
    assert auth.quotas(Quota(active_jobs=5)).of("ann") == Quota(active_jobs=5)
    people(users, ann=person(ANN, active_jobs=1), bob=person("b" * 32, jobs_per_day=0))
    assert auth.quotas(Quota(active_jobs=5)).of("ann") == Quota(active_jobs=1)
    assert auth.quotas(Quota(active_jobs=5)).of("bob") == Quota(active_jobs=5, jobs_per_day=0)


def test_quotas_are_those_of_the_list_then_of_everybody(tmp_path: Path) -> None:
    users = people(
        tmp_path / "users.json",
        ann=person(ANN, active_jobs=3),
        bob=person("b" * 32),
        eve=person("e" * 32, operator=True),
    )
    quotas = Auth(TOKEN, operator="root", users=users).quotas(Quota(active_jobs=1, jobs_per_day=9))
    assert quotas.of("ann") == Quota(active_jobs=3, jobs_per_day=9)
    assert quotas.of("bob") == Quota(active_jobs=1, jobs_per_day=9)
    assert quotas.of("eve") == quotas.of("root") == Quota()
    assert quotas.of("somebody") == Quota(active_jobs=1, jobs_per_day=9)
