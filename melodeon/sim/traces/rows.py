"""Rows of a trace file, read so that every mistake is named by file, line and column.

A reader turns each `Row` into a job with the row's getters, which raise `BadCell`; `jobs_of` decides whether the first
bad row stops the reading or bad rows are counted and left out.
"""

import csv
import gzip
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TextIO

from melodeon.core.errors import NotFound, UsageError
from melodeon.core.jobs import JobId, JobSpec


class BadCell(UsageError):
    """A value in a file that is not what its column must hold."""

    def __init__(self, path: Path, line: int, column: str, problem: str) -> None:
        super().__init__(f"{path}, line {line}, column {column!r}: {problem}")
        self.path, self.line, self.column, self.problem = path, line, column, problem


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that was left out, and why."""

    path: str
    line: int
    column: str
    problem: str


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs read from a file, in order of submission."""

    name: str
    jobs: tuple[JobSpec, ...]
    bad: tuple[BadRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a file, by column."""

    path: Path
    line: int
    cells: dict[str, str]

    def bad(self, column: str, problem: str) -> BadCell:
        """The error that names this row and a column."""
        return BadCell(self.path, self.line, column, problem)

    def text(self, *columns: str) -> str:
        """The first of these columns that the file has."""
        for column in columns:
            value = self.cells.get(column)
            if value is not None:
                if not value.strip():
                    raise self.bad(column, "it is empty, and must have a value")
                return value.strip()
        raise self.bad(columns[0], f"the row has none: it needs {' or '.join(columns)}")

    def has(self, column: str) -> bool:
        """Whether the row has a value there."""
        return bool((self.cells.get(column) or "").strip())

    def number(self, *columns: str, least: float | None = None, above: float | None = None) -> float:
        """A finite number, within bounds."""
        text = self.text(*columns)
        column = next(name for name in columns if name in self.cells)
        try:
            value = float(text)
        except ValueError:
            raise self.bad(column, f"{text!r} is not a number") from None
        if not isfinite(value):
            raise self.bad(column, f"{text!r} is not a finite number")
        if least is not None and value < least:
            raise self.bad(column, f"{text} must be at least {least:g}")
        if above is not None and value <= above:
            raise self.bad(column, f"{text} must be above {above:g}")
        return value

    def whole(self, *columns: str, least: int = 0) -> int:
        """A whole number."""
        value = self.number(*columns, least=least)
        if value != int(value):
            raise self.bad(next(name for name in columns if name in self.cells), f"{value:g} is not a whole number")
        return int(value)


def open_text(path: Path) -> TextIO:
    """Open a text file, gzipped or not."""
    if not path.is_file():
        raise NotFound(f"{path} is not there: give the path of a trace file")
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def csv_rows(path: Path, *, columns: Sequence[str] | None = None, delimiter: str = ",") -> Iterator[Row]:
    """The rows of a delimited file; `columns` names them where the file has no header."""
    with open_text(path) as file:
        reader = csv.reader(file, delimiter=delimiter)
        names = list(columns) if columns is not None else [name.strip() for name in next(reader, [])]
        if not names:
            raise UsageError(f"{path} is empty: a trace needs a header line and a row a job")
        for values in reader:
            if values:
                yield Row(path, reader.line_num, dict(zip(names, values, strict=False)))


def header_of(path: Path) -> tuple[str, ...]:
    """The first line's columns."""
    with open_text(path) as file:
        return tuple(name.strip() for name in next(csv.reader(file), []))


def jobs_of(name: str, rows: Iterable[Row], parse: Callable[[Row], JobSpec | None], *, skip_bad: bool = False) -> Trace:
    """Every row as a job (None: the row is no job, and no mistake), sorted by submission."""
    jobs: list[JobSpec] = []
    bad: list[BadRow] = []
    seen: dict[JobId, int] = {}
    for row in rows:
        try:
            job = _parsed(row, parse)
            if job is None:
                continue
            if job.id in seen:
                raise row.bad("job_id", f"{job.id!r} is also the id of line {seen[job.id]}")
        except BadCell as problem:
            if not skip_bad:
                raise
            bad.append(BadRow(str(problem.path), problem.line, problem.column, problem.problem))
            continue
        seen[job.id] = row.line
        jobs.append(job)
    return Trace(name, tuple(sorted(jobs, key=lambda job: job.submit_s)), tuple(bad))


def _parsed(row: Row, parse: Callable[[Row], JobSpec | None]) -> JobSpec | None:
    try:
        return parse(row)
    except BadCell:
        raise
    except UsageError as problem:
        # The job itself refused its values: no single column is to blame.
        raise row.bad("*", str(problem)) from problem
