"""Result files: a simulation as JSON lines, gzipped if the name ends in .gz.

    {"kind": "sim", "version": 1, "trace": ..., "policy": ..., "cluster": ..., "nodes": [[id, type, devices]], ...}
    {"kind": "job", "id": ..., "submit_s": ..., "deadline_s": ..., "admitted": ..., "why": ..., "finished_s": ..., ...}
    {"kind": "change", "at_s": ..., "job": ..., "what": "resize", "blocks": [["A100", 0, 8]], "why": ..., ...}
    {"kind": "incident", "at_s": ..., "node": ..., "up": false}
    {"kind": "metrics", "values": {...}}

First the head, then the jobs by submission, the changes and incidents by time, and the figures last: a file without its
last line was not written to its end. A field that holds its default may be left out.
"""

import gzip
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from melodeon.core.cluster import Cluster, DeviceType
from melodeon.core.errors import MelodeonError, NotFound, UsageError
from melodeon.core.text import counted
from melodeon.placement.topology import topology_of
from melodeon.sim.record import VERSION, Change, Failure, Head, Job, Line, Metrics, Record, cluster_of

ENDING = ".sim.jsonl"
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Line)


def write_result(found: Record, path: Path) -> None:
    """Write a result file; it is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = b"".join(_ENCODER.encode(line) + b"\n" for line in _lines(found))
        temporary.write_bytes(gzip.compress(lines, mtime=0) if path.suffix == ".gz" else lines)
        temporary.replace(path)
    except OSError as error:
        raise MelodeonError(f"{path} cannot be written ({error.strerror}): choose another folder by --save") from error


def read_result(path: Path) -> Record:
    """Read a result file, or say what is wrong with which line."""
    if not path.is_file():
        raise NotFound(f"{path} is not there: write one by `melodeon sim TRACE --save DIR`")
    head: Head | None = None
    metrics: Metrics | None = None
    jobs: dict[str, Job] = {}
    changes: list[Change] = []
    failures: list[Failure] = []
    cluster: Cluster | None = None
    for number, line in _read(path):
        if isinstance(line, Head):
            head, cluster = line, _cluster(path, number, line)
            continue
        if cluster is None:
            raise UsageError(f"{path} does not begin as a result file: give one that `melodeon sim --save` wrote")
        match line:
            case Job():
                jobs[line.id] = line
            case Change():
                if line.job not in jobs:
                    raise UsageError(f"{path}, line {number}: job {line.job!r} changes and is nowhere described")
                _require_slots(path, number, line, cluster)
                changes.append(line)
            case Failure():
                if not any(node.id == line.node for node in cluster.nodes):
                    raise UsageError(f"{path}, line {number}: no node is named {line.node!r}: simulate again")
                failures.append(line)
            case Metrics():
                metrics = line
    if head is None or metrics is None:
        raise UsageError(f"{path} is not whole, its last line is missing: simulate again")
    return Record(head=head, jobs=jobs, changes=tuple(changes), failures=tuple(failures), metrics=metrics)


def find_results(path: Path) -> list[Path]:
    """A result file, or all of a folder, by name."""
    if not path.is_dir():
        return [path]
    found = sorted([*path.glob(f"*{ENDING}"), *path.glob(f"*{ENDING}.gz")])
    if not found:
        raise NotFound(f"{path} holds no result file (*{ENDING}): write one by `melodeon sim TRACE --save {path}`")
    return found


def _lines(found: Record) -> Iterator[Line]:
    yield found.head
    yield from found.jobs.values()
    moments: list[Change | Failure] = [*found.failures, *found.changes]
    yield from sorted(moments, key=lambda line: line.at_s)
    yield found.metrics


def _cluster(path: Path, number: int, head: Head) -> Cluster:
    if head.version != VERSION:
        raise UsageError(f"{path} is of version {head.version}, and {VERSION} is read: simulate again")
    try:
        return cluster_of(head)
    except UsageError as error:
        raise UsageError(f"{path}, line {number}: {error}") from error


def _require_slots(path: Path, number: int, change: Change, cluster: Cluster) -> None:
    """Refuse devices that the nodes of the head have not."""
    sizes = {line.kind: line.size for line in topology_of(cluster).lines}
    for kind, start, size in change.blocks:
        if start < 0 or size < 1 or start + size > sizes.get(DeviceType(kind), 0):
            raise UsageError(
                f"{path}, line {number}: its nodes have not {counted(size, 'device')} of type {kind!r} from slot "
                f"{start} on: simulate again"
            )


def _read(path: Path) -> Iterator[tuple[int, Line]]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, text in enumerate(file, 1):
                try:
                    yield number, _DECODER.decode(text)
                except msgspec.MsgspecError as error:
                    raise UsageError(
                        f"{path}, line {number} is not of a result file ({error}): simulate again"
                    ) from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(f"{path} is not a whole gzip file ({error}): simulate again") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): check the file, and your rights to it") from error
