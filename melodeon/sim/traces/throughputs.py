"""ElasticFlow's throughput tables: one csv a model, a row a global batch size, a column a number of devices.

Counts that were not measured are empty, `nan` or 0, and are left out of the curve. Without any table readers make
linear curves instead.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path

from melodeon.core.cluster import DEFAULT_TYPE, DeviceType
from melodeon.core.curve import ScalingCurve
from melodeon.core.errors import NotFound
from melodeon.core.jobs import Curves
from melodeon.core.text import counted
from melodeon.sim.traces.rows import MOST_DEVICES, Row, csv_rows

BATCH = "global_batch_size"


@dataclass(frozen=True, slots=True)
class Throughputs:
    """Scaling curves by model, batch size and device type."""

    curves: Mapping[tuple[str, int], Curves]
    kinds: tuple[DeviceType, ...] = (DEFAULT_TYPE,)
    """The types that curves are made for where there is no table."""
    settings: tuple[tuple[str, int], ...] = field(init=False, repr=False, compare=False)
    """Every (model, batch size) that was measured, in order."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "settings", tuple(sorted(self.curves)))

    def settings_of(self, model: str) -> tuple[tuple[str, int], ...]:
        """Every setting of one model that was measured."""
        return tuple(setting for setting in self.settings if setting[0] == model) if model else ()

    def of(self, row: Row, model_column: str = "model_name", batch_column: str = "batch_size") -> Curves:
        """The curves for a trace row, or an error that names what the tables lack."""
        model, batch = row.text(model_column), row.whole(batch_column, least=1)
        found = self.curves.get((model, batch))
        if found is not None:
            return found
        batches = sorted(size for name, size in self.curves if name == model)
        if not batches:
            known = ", ".join(sorted({name for name, _ in self.curves}))
            raise row.bad(model_column, f"{model!r} has no throughput table: there are tables for {known}")
        raise row.bad(batch_column, f"{model} was not measured at {batch}: it was at {', '.join(map(str, batches))}")


def read_throughputs(folders: Mapping[DeviceType, Path]) -> Throughputs:
    """Read one folder of tables for each device type."""
    found: dict[tuple[str, int], list[tuple[DeviceType, ScalingCurve]]] = {}
    for kind, folder in folders.items():
        files = sorted(path for path in folder.glob("*.csv") if path.is_file())
        if not files:
            raise NotFound(f"{folder} has no throughput tables: it must hold one csv a model")
        for path in files:
            for batch, curve in _table(csv_rows(path)):
                found.setdefault((path.stem, batch), []).append((kind, curve))
    if folders and not found:
        names = ", ".join(map(str, folders.values()))
        raise NotFound(f"the tables in {names} have no row: each needs one for every batch size that was measured")
    return Throughputs({key: tuple(curves) for key, curves in found.items()})


def _table(rows: Iterable[Row]) -> Iterable[tuple[int, ScalingCurve]]:
    lines: dict[int, int] = {}
    for row in rows:
        points: dict[int, float] = {}
        for column in row.cells:
            if column == BATCH or not row.has(column):
                continue
            if not (column.isdecimal() and len(column) <= 7 and 1 <= int(column) <= MOST_DEVICES):
                raise row.bad(column, "it must be a number of devices")
            if int(column) in points:
                raise row.bad(
                    column, f"another column is of {counted(int(column), 'device')} too: each number must have one"
                )
            text = row.text(column)
            rate = float("nan") if text.lower() == "nan" else row.number(column, least=0)
            if not isnan(rate) and rate > 0:
                points[int(column)] = rate
        if not points:
            raise row.bad(BATCH, "no number of devices was measured: a row needs at least one rate above 0")
        batch = row.whole(BATCH, least=1)
        if batch in lines:
            raise row.bad(BATCH, f"{batch} is also the batch size of line {lines[batch]}: each must have one row")
        lines[batch] = row.line
        yield batch, ScalingCurve(tuple(sorted(points.items())))
