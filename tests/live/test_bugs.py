"""The seeded bugs fit the source, and each is caught."""

import pytest

from tests.coord.seeded_bugs import BUGS as PROTOCOL_BUGS
from tests.live.bugs import BUGS, check, hunt


def test_there_are_twenty() -> None:
    assert len(BUGS) >= 8
    assert len(BUGS) + len(PROTOCOL_BUGS) >= 20


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_fits_the_source(name: str) -> None:
    check(BUGS[name])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_caught(name: str) -> None:
    caught, said = hunt(name)
    assert caught, said
