from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of running jobs is each test's own, for this process and for those that it starts."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
