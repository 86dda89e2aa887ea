"""A cluster to call commands of: a real service whose fleet plays jobs forward."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from melodeon.backends.fleet_values import Ended
from melodeon.control import address
from tests.control.api.serving import TOKEN, Serving, serving

JOB = """
name: cnn
run: train.py --lr 0.1
virtual_workers: 4
workers: 1-4
steps: 100000
curve: {1: 2.0, 2: 3.8, 4: 7.0}
"""
SHORT = ("--name", "short", "--steps", "20", "--curve", "1:10,4:40")


@contextmanager
def found(place: Path, **options: object) -> Iterator[Serving]:
    """A service that this user has started, found by its address, and a job's file in its folder."""
    with serving(place, **options) as made:
        token = made.state / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        where = address.here(made.url, made.state)
        address.publish(where)
        (made.work / "job.yaml").write_text(JOB)
        yield made
        address.withdraw(where)


def fail(cluster: Serving, job: str, reason: str) -> None:
    """Have the first start of a job fail."""

    async def end() -> None:
        cluster.fleet.end(job, 1, Ended(status="failed", exit_code=1, reason=reason))

    cluster.running(job)
    cluster.do(end())


def narrow(text: str) -> bool:
    """Whether it fits a small terminal."""
    return max(map(len, text.splitlines()), default=0) <= 80
