"""Rows of a trace file, read so that every mistake is named by file, line and column.

A reader turns each `Row` into a job with the row's getters, which raise `BadCell`; `jobs_of` decides whether the first
bad row stops the reading or bad rows are counted and left out.
"""

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TextIO, TypeVar

from melodeon.core.errors import NotFound, UsageError
from melodeon.core.jobs import JobId, JobSpec
from melodeon.core.text import plain

if TYPE_CHECKING:
    from _csv import Reader as CsvReader


MOST = 1e12
"""No number of a trace is larger: in seconds 30,000 years, beyond which a clock no longer tells two slots apart."""
MOST_DEVICES = 1_000_000


def _said(path: object, line: int, column: str, problem: str) -> str:
    """What is wrong where; column `*` is the whole line."""
    return f"{path}, line {line}{'' if column == '*' else f', column {column!r}'}: {problem}"


class BadCell(UsageError):
    """A value in a file that is not what its column must hold."""

    def __init__(self, path: Path, line: int, column: str, problem: str) -> None:
        problem = plain(problem)
        super().__init__(_said(plain(path), line, column, problem))
        self.path, self.line, self.column, self.problem = path, line, column, problem


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that was left out, and why."""

    path: str
    line: int
    column: str
    problem: str

    @property
    def said(self) -> str:
        """The same in words."""
        return _said(self.path, self.line, self.column, self.problem)


@dataclass(frozen=True, slots=True)
class Trace:
    """Jobs read from a file, in order of submission."""

    name: str
    jobs: tuple[JobSpec, ...]
    bad: tuple[BadRow, ...] = ()
    num_other: int = 0
    """Rows that are right and no job to simulate: without a device, or never run."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a file, by column."""

    path: Path
    line: int
    cells: dict[str, str]
    num_surplus: int = 0
    """Values that stand beyond the last column."""

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

    def number(
        self, *columns: str, least: float | None = None, above: float | None = None, most: float = MOST
    ) -> float:
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
        if value > most:
            raise self.bad(column, f"{text} must be at most {most:g}")
        return value

    def moment(self, column: str) -> float:
        """A date and time such as 2017-10-07 01:12:09, as seconds; zones do not matter, only differences do."""
        text = self.text(column)
        try:
            return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
        except ValueError:
            raise self.bad(column, f"{text!r} is not a date and time like 2017-10-07 01:12:09") from None

    def whole(self, *columns: str, least: int = 0, most: float = MOST) -> int:
        """A whole number."""
        value = self.number(*columns, least=least, most=most)
        if value != int(value):
            raise self.bad(next(name for name in columns if name in self.cells), f"{value:g} is not a whole number")
        return int(value)

    def devices(self, *columns: str, least: int = 1) -> int:
        """A number of devices: curves are made for each up to it, so it cannot be just any."""
        return self.whole(*columns, least=least, most=MOST_DEVICES)


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """A text file, gzipped or not; one that cannot be read to where its reader goes is refused."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name a file in it")
    if not path.exists():
        raise NotFound(f"{path} is not there: name a file")
    if not path.is_file():
        raise UsageError(f"{path} is no ordinary file, and a trace is read more than once: save it as one")
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as raw:
            yield io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
    except (UnicodeDecodeError, gzip.BadGzipFile, zlib.error):
        raise UsageError(
            f"{path} is not a text file: what is read here is csv or JSON, gzipped if its name ends in .gz"
        ) from None
    except EOFError:
        raise UsageError(f"{path} breaks off before its end: unpack or fetch it again") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): check the file, and your rights to it") from error


def csv_rows(path: Path, *, columns: Sequence[str] | None = None, delimiter: str = ",") -> Iterator[Row]:
    """The rows of a delimited file; `columns` names them where the file has no header."""
    with open_text(path) as file:
        # Between tabs a quote is a letter like any other.
        quoting: Literal[0, 3] = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
        lines = _lines(path, csv.reader(file, delimiter=delimiter, strict=True, quoting=quoting))
        names = list(columns) if columns is not None else _names(path, lines)
        for line, values in lines:
            surplus = [value for value in values[len(names) :] if value.strip()]
            yield Row(path, line, dict(zip(names, values, strict=False)), len(surplus))


def _lines(path: Path, reader: "CsvReader") -> Iterator[tuple[int, list[str]]]:
    """Every row that holds anything, with the line that it ends on."""
    begins = 1
    try:
        for values in reader:
            if any(value.strip() for value in values):
                yield reader.line_num, values
            begins = reader.line_num + 1
    except csv.Error as error:
        # Where a quote is never closed, nothing tells where the next row starts: this cannot be skipped.
        why = "a quote is never closed" if "unexpected end" in str(error) else error
        raise BadCell(path, begins, "*", f"it is not csv ({why})") from None


def _names(path: Path, lines: Iterator[tuple[int, list[str]]]) -> list[str]:
    line, values = next(lines, (0, []))
    if not values:
        raise nothing_in(path)
    names = [value.strip() for value in values]
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise BadCell(path, line, twice, f"{names.count(twice)} columns have this name: which is meant?")
    return names


def nothing_in(path: Path) -> UsageError:
    """The error that a file says nothing."""
    return UsageError(f"{path} is empty: a trace needs a header line and a row a job")


def head_of(path: Path, most: int = 4096) -> str:
    """How the file begins; not even its first line need end there."""
    with open_text(path) as file:
        return file.read(most)


def header_of(path: Path) -> tuple[str, ...]:
    """The columns of the first line that holds anything."""
    lines = [line for line in head_of(path, 1 << 16).splitlines() if line.strip()]
    return tuple(name.strip() for name in next(csv.reader(lines[:1]), []))


class Named(Protocol):
    """What a row becomes."""

    @property
    def id(self) -> JobId:
        """The job's name."""
        ...


Found = TypeVar("Found", bound=Named)


@dataclass(frozen=True, slots=True)
class Collected(Generic[Found]):
    """What the rows of a file became."""

    found: tuple[Found, ...]
    bad: tuple[BadRow, ...]
    num_other: int


def collect(rows: Iterable[Row], parse: Callable[[Row], Found | None], *, skip_bad: bool = False) -> Collected[Found]:
    """Every row as what `parse` makes of it (None: the row is no job, and no mistake)."""
    found: list[Found] = []
    bad: list[BadRow] = []
    seen: dict[JobId, int] = {}
    num_other = 0
    for row in rows:
        try:
            made = _parsed(row, parse)
            if made is None:
                num_other += 1
                continue
            if made.id in seen:
                raise row.bad("job_id", f"{made.id!r} is also the id of line {seen[made.id]}")
        except BadCell as problem:
            if not skip_bad:
                raise
            bad.append(BadRow(str(problem.path), problem.line, problem.column, problem.problem))
            continue
        seen[made.id] = row.line
        found.append(made)
    return Collected(tuple(found), tuple(bad), num_other)


def jobs_of(name: str, rows: Iterable[Row], parse: Callable[[Row], JobSpec | None], *, skip_bad: bool = False) -> Trace:
    """Every row as a job (None: the row is no job, and no mistake), sorted by submission."""
    read = collect(rows, parse, skip_bad=skip_bad)
    return Trace(name, tuple(sorted(read.found, key=lambda job: job.submit_s)), read.bad, read.num_other)


def _parsed(row: Row, parse: Callable[[Row], Found | None]) -> Found | None:
    if row.num_surplus:
        count = len(row.cells)
        raise row.bad(
            list(row.cells)[-1],
            f"the row has {count + row.num_surplus} values, and there are {count} columns: is there a comma too many?",
        )
    try:
        return parse(row)
    except BadCell:
        raise
    except UsageError as problem:
        # The job itself refused its values: no single column is to blame.
        raise row.bad("*", str(problem)) from problem
