from collections.abc import Iterator

import pytest

from tests.control.web.showing import Browser, Showing, showing


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Showing]:
    """One service for all tests of a file: they name jobs of their own."""
    with showing(tmp_path_factory.mktemp("service")) as made:
        yield made


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests of this process: it needs much of the machine."""
    made = Browser(tmp_path_factory.mktemp("profile"))
    try:
        yield made
    finally:
        made.quit()
