from collections.abc import Iterator

import pytest

from tests.control.api.serving import Serving, serving


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """One service for all tests of a file: they name jobs of their own."""
    with serving(tmp_path_factory.mktemp("service")) as made:
        yield made
