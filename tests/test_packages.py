"""What tests need is installed by one of them at a time."""

import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import packages


def test_no_two_install_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    both, met, installed = threading.Barrier(2), [], []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        if "install" in command:
            installed.append(command[-1])
            try:
                both.wait(timeout=0.5)
                met.append(command)
            except threading.BrokenBarrierError:
                both.reset()  # nobody else came: as it should be
            for name in ("etcd", "chromium", "chromedriver"):
                if packages.PACKAGES[name] in command:
                    (tmp_path / name).touch(mode=0o755)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(packages.find_programs, *names) for names in (["etcd"], ["etcd"], ["chromium"])]
        assert [answer.result() for answer in found] == [
            [str(tmp_path / "etcd")],
            [str(tmp_path / "etcd")],
            [str(tmp_path / "chromium")],
        ]
    assert not met
    assert sorted(installed) == ["chromium", "etcd-server"], "each of them once"


def test_what_cannot_be_installed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))

    def refuse(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 100, "", "reading\nE: are you root?\n")

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(
        packages.CannotInstall, match=r"need etcd-server, .*are you root\?\): apt-get install etcd-server"
    ):
        packages.find_programs("etcd")
