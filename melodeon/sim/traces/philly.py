"""Philly's `cluster_job_log`: one JSON list of jobs, each with its attempts.

    {"status": "Pass", "vc": ..., "jobid": ..., "submitted_time": "2017-10-07 01:11:39", "user": ...,
     "attempts": [{"start_time": ..., "end_time": ..., "detail": [{"ip": ..., "gpus": ["gpu0", ...]}]}]}

A job's duration is that of its attempts together, since each held devices; its size is that of the last one that ran.
Jobs of every status are kept; attempts without a start or an end (null or "None") are passed over, and jobs that never
ran, or on no device, are left out. A job's line is where its object starts; its columns are keys such as
`attempts[0].start_time`.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from melodeon.core.jobs import JobId
from melodeon.sim.traces.recorded import Recorded, recorded_trace
from melodeon.sim.traces.rows import BadCell, Row, Trace, head_of, open_text
from melodeon.sim.traces.throughputs import Throughputs

NOTHING = (None, "", "None")


def knows_philly(path: Path, _: tuple[str, ...]) -> bool:
    """Whether a file begins as a list of objects with Philly's keys."""
    head = head_of(path).lstrip()
    return head.startswith("[") and any(f'"{key}"' in head for key in ("jobid", "attempts", "submitted_time"))


def read_philly(path: Path, throughputs: Throughputs, *, seed: int = 0, skip_bad: bool = False) -> Trace:
    """The jobs of all virtual clusters."""
    objects: dict[int, object] = {}

    def rows() -> Iterator[Row]:
        for line, value in _objects(path):
            objects.clear()
            objects[line] = value
            yield Row(path, line, {})

    def parse(row: Row) -> Recorded | None:
        return _job(row, objects[row.line])

    return recorded_trace(path.name, rows(), parse, throughputs, seed=seed, skip_bad=skip_bad)


def _objects(path: Path) -> Iterator[tuple[int, object]]:
    """Every element of the list, with the line that it starts on."""
    with open_text(path) as file:
        text = file.read()
    decoder = json.JSONDecoder()
    at = _after(text, 0)
    if text[at : at + 1] != "[":
        raise BadCell(path, 1, "*", "it is not a JSON list of jobs")
    at, line, counted = _after(text, at + 1), 1, 0
    while text[at : at + 1] not in ("]", ""):
        line, counted = line + text.count("\n", counted, at), at
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            # Where JSON breaks, nothing tells where the next job starts: this cannot be skipped.
            raise BadCell(path, line, "*", f"it is not JSON ({error})") from None
        yield line, value
        at = _after(text, at)
        if text[at : at + 1] == ",":
            at = _after(text, at + 1)
    if at == len(text):
        raise BadCell(path, line, "*", "the list of jobs breaks off after this one: it must end in ]")
    rest = _after(text, at + 1)
    if rest < len(text):
        line += text.count("\n", counted, rest)
        raise BadCell(path, line, "*", f"{text[rest : rest + 20]!r} stands after the list of jobs: nothing may")


def _after(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _job(row: Row, value: object) -> Recorded | None:
    job = _object(row, "*", value)
    duration_s, workers = 0.0, 0
    for index, raw in enumerate(_list(row, "attempts", job.get("attempts"))):
        key = f"attempts[{index}]"
        attempt = _object(row, key, raw)
        start_s, end_s = (_moment(row, f"{key}.{edge}", attempt.get(edge)) for edge in ("start_time", "end_time"))
        devices = 0
        for number, part in enumerate(_list(row, f"{key}.detail", attempt.get("detail"))):
            where = f"{key}.detail[{number}]"
            devices += len(_list(row, f"{where}.gpus", _object(row, where, part).get("gpus")))
        if start_s is None or end_s is None or not devices:
            continue
        if end_s < start_s:
            raise row.bad(f"{key}.end_time", f"{attempt['end_time']} is before the start, {attempt['start_time']}")
        duration_s, workers = duration_s + end_s - start_s, devices
    if not duration_s:
        return None
    submit_s = _moment(row, "submitted_time", job.get("submitted_time"))
    if submit_s is None:
        raise row.bad("submitted_time", "there is none: a job needs the time of its submission")
    name = job.get("jobid")
    if not isinstance(name, str) or not name.strip() or _whole(name) != name:
        raise row.bad("jobid", f"{name!r} is no name: every job needs one")
    return Recorded(
        id=JobId(name.strip()),
        submit_s=submit_s,
        duration_s=duration_s,
        workers=workers,
        user=_whole(str(job.get("user") or "")),
    )


def _whole(text: str) -> str:
    """Text without halves of characters, which JSON can write and no file can hold."""
    return text.encode(errors="replace").decode()


def _object(row: Row, key: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise row.bad(key, f"{str(value)[:40]!r} is not a JSON object")
    return value


def _list(row: Row, key: str, value: object) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise row.bad(key, f"{str(value)[:40]!r} is not a JSON list")
    return value


def _moment(row: Row, key: str, value: object) -> float | None:
    if value in NOTHING:
        return None
    try:
        return datetime.fromisoformat(str(value)).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise row.bad(key, f"{value!r} is not a date and time like 2017-10-07 01:12:09") from None
