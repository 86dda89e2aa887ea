"""Batch histories and scaling curves, from the files that people name."""

from pathlib import Path
from typing import Annotated

import msgspec

from melodeon.core.batches import BatchHistory, parse_history
from melodeon.core.errors import NotFound, UsageError

HISTORY_FILE = "batches.json"
Count = Annotated[int, msgspec.Meta(ge=1)]
Rate = Annotated[float, msgspec.Meta(gt=0)]
Curve = Annotated[dict[Count, Rate], msgspec.Meta(min_length=1)]
Curves = Annotated[dict[Count, Curve], msgspec.Meta(min_length=1)]


def read_history(where: str | None) -> BatchHistory | None:
    """The batch history of a run's folder, or in a file; a run that never changed its batch has an empty one."""
    if where is None:
        return None
    path = Path(where)
    if path.is_dir():
        if not (path / "run.json").is_file():
            raise NotFound(f"--batch-history {where} is no run's folder: it has no run.json")
        path /= HISTORY_FILE
        if not path.is_file():
            return ()
    return parse_history(_text(path, "--batch-history"), str(path))


def read_curves(where: str | None) -> dict[int, dict[int, float]]:
    """Batch factor -> workers -> steps a second."""
    if where is None:
        return {}
    try:
        curves = msgspec.json.decode(_text(Path(where), "--curves"), type=Curves)
    except msgspec.MsgspecError as error:
        raise UsageError(
            f'--curves {where} holds no scaling curves ({error}): they look like {{"1": {{"1": 9.5, "2": 17.0}}}}, '
            "batch factor, workers, steps a second"
        ) from error
    odd = next((factor for factor in curves if factor & (factor - 1)), None)
    if odd is not None:
        raise UsageError(f"--curves {where} has a curve of batch factor {odd}: batches are doubled, to 1, 2, 4, ...")
    return curves


def _text(path: Path, option: str) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(f"{option} {path} cannot be read ({error}): name a file") from error
