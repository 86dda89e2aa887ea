"""`melodeon verify --receipt`: run a script again as its receipt says, and check every entry."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import typer

from melodeon.cli.batches import HISTORY_FILE, read_history
from melodeon.cli.output import print_json, print_wrapped
from melodeon.cli.training import checked_launch
from melodeon.cli.verify_progress import choose_display
from melodeon.cli.verify_runs import Series, nothing_trained
from melodeon.core import receipt as receipts
from melodeon.core.determinism import DEFAULT
from melodeon.core.errors import NotBitwise, NotFound, UsageError
from melodeon.core.launch import Launch
from melodeon.core.receipt import Receipt
from melodeon.core.text import counted


def check_receipt(
    path: str, script: str, args: Sequence[str], counts: Sequence[int], runs_root: str, *, keep: bool, as_json: bool
) -> None:
    """Train up to the receipt's last step and compare; exit code 6 if an entry is not confirmed."""
    if len(counts) != 1:
        named = ",".join(map(str, counts))
        raise UsageError(f"--workers {named} names {len(counts)} counts: with --receipt one run is made, so name one")
    expected = _read(Path(path))
    if not expected.entries:
        raise UsageError(f"receipt {path} has no entry to check: let the run that writes it do at least one step")
    launch = _launch(expected, script, runs_root)
    if (Path(path).parent / HISTORY_FILE).is_file():  # its batch changed: as it did then
        launch = replace(launch, batch_history=read_history(str(Path(path).parent / HISTORY_FILE)))
    series = Series(script, args, replace(launch, num_workers=counts[0]), choose_display())
    try:
        report = series.start(series.launch, f"up to step {expected.entries[-1].step}", "receipt")
    finally:
        series.display.close()
    actual = report.run_dir / "receipt.jsonl"
    if not actual.is_file():
        raise nothing_trained(script)
    found = _read(actual)
    difference = receipts.compare(expected, found)
    drift = report.outcome.reason  # its workers came apart: any other failure has ended the command
    kept = keep or difference is not None or drift is not None
    reasons = expected.definition.differences(found.definition)
    if as_json:
        _show_json(path, expected, difference, reasons, drift, str(report.run_dir) if kept else None)
    else:
        if drift is not None:
            print_wrapped(f"different: the run differs within itself: {drift}")
        _show(expected, difference, reasons, counts[0], report.seconds)
        if kept:
            print(f"run: {report.run_dir}")
    if not kept:
        series.remove()
    if difference is not None or drift is not None:
        raise typer.Exit(NotBitwise.exit_code)


def _read(path: Path) -> Receipt:
    if path.is_dir():
        raise NotFound(f"receipt {str(path)!r} is a folder: name the receipt.jsonl in it")
    if not path.is_file():
        raise NotFound(f"receipt {str(path)!r} is not there: it is the receipt.jsonl in a run's folder")
    # What is no UTF-8 is damaged too, and refused by its line.
    with path.open(encoding="utf-8", errors="replace") as file:
        return receipts.parse(file)


def _launch(expected: Receipt, script: str, runs_root: str) -> Launch:
    """The receipt's own settings, as far as a launcher sets them; the script must bring the rest."""
    values = expected.definition.values
    level, threads, order = values.get("determinism"), values.get("threads"), values.get("order")
    return checked_launch(
        script,
        determinism=level if isinstance(level, str) else DEFAULT,
        threads=threads if isinstance(threads, int) else None,
        order=order if isinstance(order, str) else None,
        steps=expected.entries[-1].step,
        runs_root=runs_root,
    )


def _show(
    expected: Receipt,
    difference: receipts.ReceiptDifference | None,
    reasons: Sequence[str],
    num_workers: int,
    seconds: float,
) -> None:
    if expected.note:
        print_wrapped(f"note: {expected.note}")
    for reason in reasons:
        print_wrapped(f"definition: {reason} (there: the receipt, here: this run)")
    if difference is None:
        digests = f"{counted(len(expected.entries), 'digest')}, up to step {expected.entries[-1].step},"
        print_wrapped(f"equal: {digests} found again on {counted(num_workers, 'worker')} in {seconds:.1f} s")
        return
    confirmed = sum(entry.step < difference.step for entry in expected.entries)
    print_wrapped("different: " + replace(difference, definition=()).sentence())
    print_wrapped(f"{confirmed} of {len(expected.entries)} entries agree before it")
    if not reasons:
        print_wrapped(
            "the definitions agree, so the script, its arguments, its files or its data are not those of the receipt, "
            "or the receipt is not of such a run"
        )


def _show_json(
    path: str,
    expected: Receipt,
    difference: receipts.ReceiptDifference | None,
    reasons: Sequence[str],
    drift: str | None,
    run_dir: str | None,
) -> None:
    print_json(
        {
            "equal": difference is None and drift is None,
            "receipt": path,
            "entries": len(expected.entries),
            "steps": expected.entries[-1].step,
            "note": expected.note,
            "definition": list(reasons),
            "difference": None
            if difference is None
            else {"step": difference.step, "expected": difference.expected, "actual": difference.actual},
            "drift": drift,
            "run_dir": run_dir,
        }
    )
