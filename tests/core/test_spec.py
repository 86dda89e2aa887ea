from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from melodeon.core.errors import UsageError
from melodeon.core.jobs import Goal
from melodeon.core.spec import READERS, Spec, moment, read_spec

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp()


def job(**fields: object) -> dict[str, Any]:
    return {"name": "cnn", "run": "train.py --lr 0.1", "steps": 100, **fields}


def test_a_short_file_says_all_that_is_needed() -> None:
    spec = read_spec(job())
    assert spec == Spec(name="cnn", run=("train.py", "--lr", "0.1"), steps=100)
    assert spec.goal is Goal.BEST_EFFORT
    assert spec.deadline_at(NOW) is None


def test_every_field_is_read() -> None:
    spec = read_spec(
        job(
            run=["-m", "pkg.train", "--name", "a b"],
            virtual_workers=8,
            workers="2-8",
            deadline="1h30m",
            on_miss="soft",
            until="loss<0.10",
            priority=2,
            order="ddp",
            determinism="D2",
            threads=2,
            devices="A100, V100",
            checkpoint=50,
            env={"LR": 0.1},
            workdir="here",
            curve={"1": 2.0, "4": 6.5},
            memory="4G",
            restarts=0,
        )
    )
    assert spec.run == ("-m", "pkg.train", "--name", "a b")
    assert (spec.min_workers, spec.max_workers) == (2, 8)
    assert spec.goal is Goal.SOFT
    assert spec.deadline_at(NOW) == NOW + 5400
    assert spec.until == "loss < 0.1"
    assert spec.devices == ("A100", "V100")
    assert spec.env == {"LR": "0.1"}
    assert spec.curve == {1: 2.0, 4: 6.5}
    assert spec.memory == 4 << 30
    assert spec.restarts == 0


@pytest.mark.parametrize(
    ("given", "bounds"), [(3, (3, 3)), ("3", (3, 3)), ("1-8", (1, 8)), ("2-", (2, None)), (" 1 - 4 ", (1, 4))]
)
def test_workers_are_a_number_or_a_range(given: object, bounds: tuple[int, int | None]) -> None:
    spec = read_spec(job(workers=given))
    assert (spec.min_workers, spec.max_workers) == bounds


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("30m", 1800), ("5 min", 300), ("2d", 172800), ("0.5h", 1800)]
)
def test_a_deadline_counts_from_submission(text: str, seconds: float) -> None:
    assert moment(text, NOW) == NOW + seconds


def test_a_deadline_may_be_a_date() -> None:
    date = datetime.fromtimestamp(NOW, UTC) + timedelta(hours=6)
    assert moment(date.isoformat(), NOW) == NOW + 6 * 3600
    assert moment(date.astimezone().replace(tzinfo=None).isoformat(), NOW) == NOW + 6 * 3600
    assert read_spec(job(deadline=date)).deadline_at(NOW) == NOW + 6 * 3600


def test_a_deadline_in_the_past_is_refused() -> None:
    with pytest.raises(UsageError, match="'2020-01-01' is past: give a time to come"):
        moment("2020-01-01", NOW)


@pytest.mark.parametrize("text", ["400000d", "999999999999d", f"{'9' * 400}d", "9000-01-01"])
def test_a_deadline_that_nobody_will_see_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is more than a thousand years away: give a nearer one, or none"):
        moment(text, NOW)


@pytest.mark.parametrize("text", ["0001-01-01T00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_date_that_not_every_zone_has_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no time"):
        read_spec(job(deadline=text))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "../etc"}, "name: '../etc' must be"),
        ({"name": "A"}, "name: 'A' must be"),
        ({"name": None}, "'name' is missing"),
        ({"run": ""}, "'run' is missing"),
        ({"run": "train.py 'x"}, "close the quotes"),
        ({"run": ["a", 1]}, "run: .* must be a script"),
        ({"run": "--lr 1"}, "'--lr' is no script"),
        ({"run": "-m"}, "'-m' is no script"),
        ({"nmae": "x"}, "did you mean 'name'"),
        ({"workers": "8-1"}, "ends before it begins"),
        ({"workers": 0}, "workers: 0 must be"),
        ({"workers": True}, "workers: True must be"),
        ({"deadline": "soon"}, "'soon' is no time"),
        ({"deadline": 5}, "deadline: 5 must be"),
        ({"on_miss": "cry"}, "'cry' is not one of reject, soft"),
        ({"steps": 0}, "steps: 0 must be"),
        ({"threads": 100_000}, "threads=100000 must be a whole number from 1 to 1,024"),
        ({"steps": 1.5}, "steps: 1.5 must be"),
        ({"steps": 1 << 60}, "too large"),
        ({"steps": None}, "neither steps nor epochs"),
        ({"epochs": 2}, "both given"),
        ({"until": "loss"}, "must compare"),
        ({"until": "loss < nan"}, "'nan' is no number"),
        ({"priority": 0}, "priority: 0 must be"),
        ({"priority": "inf"}, "priority: 'inf' must be"),
        ({"order": "ring"}, "'ring' is not one of tree, ddp"),
        ({"determinism": "D9"}, "'D9' is not one of D0, D1, D2"),
        ({"devices": ["a b"]}, "must list device types"),
        ({"env": {"A-B": "1"}}, "'A-B' cannot be set"),
        ({"env": {"MELODEON_LAUNCH": "1"}}, "'MELODEON_LAUNCH' cannot be set"),
        ({"env": {"A": [1]}}, "no text"),
        ({"env": "A=1"}, "must be a table"),
        ({"workdir": "a\0b"}, "workdir: .* must be text"),
        ({"curve": {"0": 1.0}}, "curve workers: 0 must be"),
        ({"curve": {"1": -1}}, "curve rate: -1 must be"),
        ({"memory": "lots"}, "memory: 'lots' must be"),
        ({"virtual_workers": 2, "workers": "3-4"}, "3 workers cannot share 2"),
        ({"virtual_workers": 2, "workers": "1-4"}, "up to 4 workers cannot share 2"),
    ],
)
def test_each_mistake_is_named_with_its_field(fields: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        read_spec(job(**fields))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("raw", [None, [], "name: x", 3])
def test_what_is_no_table_is_refused(raw: object) -> None:
    with pytest.raises(UsageError, match="a job is a table of fields"):
        read_spec(raw)


def test_what_is_written_is_read_again() -> None:
    spec = read_spec(job(workers="2-", deadline="6h", env={"A": "1"}, curve={2: 3.0}, devices=["cpu"], restarts=0))
    assert read_spec(spec.to_json()) == spec


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(sorted(READERS)), ANY))
def test_whatever_comes_is_read_or_refused_in_one_sentence(fields: dict[str, object]) -> None:
    try:
        spec = read_spec(job(**fields))
    except UsageError:
        return
    assert read_spec(spec.to_json()) == spec
