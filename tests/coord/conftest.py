"""The stores that tests ask for, by name."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.coord.etcd_process import EtcdCluster, EtcdMember
from tests.coord.sites import SiteMaker, embedded_site, etcd_site


@pytest.fixture(scope="session")
def etcd_member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMember]:
    """One etcd for all tests of this process; each test uses keys of its own."""
    cluster = EtcdCluster(tmp_path_factory.mktemp("etcd"), 1)
    try:
        asyncio.run(cluster.start())
        yield cluster.members[0]
    finally:
        cluster.stop()


@pytest.fixture
def etcd_cluster(tmp_path: Path) -> Iterator[EtcdCluster]:
    """Three members of its own for a test."""
    cluster = EtcdCluster(tmp_path, 3)
    try:
        asyncio.run(cluster.start())
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(params=["embedded", "etcd"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> SiteMaker:
    """Makes the site inside the test's event loop: `async with site() as s`."""
    if request.param == "embedded":
        return lambda: embedded_site(tmp_path)
    member = request.getfixturevalue("etcd_member")
    return lambda: etcd_site(member, request.node.name)
