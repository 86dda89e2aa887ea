"""What a verification found, for people (a table of 80 columns, a verdict, what to run next) and for programs."""

import shlex
from collections.abc import Sequence

from melodeon.cli.output import print_json, print_table, print_wrapped
from melodeon.cli.verify_runs import Done, Series
from melodeon.core.determinism import DEFAULT
from melodeon.core.launch import Launch
from melodeon.core.statediff import StateDifference, first_difference

COLUMNS = ("workers", "assignment", "order", "digest", "steps", "time", "equal")

DDP_NOTE = "order ddp for all runs: only that one is DistributedDataParallel's."
AUGMENTATION_NOTE = "note: a dataset that draws random numbers differs from stock DDP by design: compare without them."


def differences(reference: Done, others: Sequence[Done]) -> dict[str, StateDifference | None]:
    """By label, where each run leaves the reference, or None."""
    return {other.run.label: _difference(reference, other) for other in others}


def _difference(reference: Done, other: Done) -> StateDifference | None:
    there, here = reference.run.label, other.run.label
    found = first_difference({there: reference.states, here: other.states})
    if other.drift is not None and (found is None or found.missing_in == here):
        return StateDifference(other.steps + 1, there, here, (), 0, within=other.drift)
    return found


def show(
    series: Series, done: Sequence[Done], reference: Done, found: dict[str, StateDifference | None], *, kept: bool
) -> None:
    """The table and the verdict on stdout."""
    rows = [
        (
            str(each.run.assignment.num_workers),
            "stock DDP" if each.run.is_stock else str(each.run.assignment),
            each.order,
            (each.digest or "-")[:12],
            str(each.steps),
            f"{each.report.seconds:.1f} s",
            "reference" if each is reference else "no" if found[each.run.label] else "yes",
        )
        for each in done
    ]
    print_table(COLUMNS, rows)
    if any(each.run.is_stock for each in done):
        print(DDP_NOTE)
    first = earliest(found)
    if first is None:
        print(f"equal: {len(done)} runs have the same state after each of {len(reference.states)} steps")
    else:
        print_wrapped("different: " + first.sentence())
        for each in done:
            if each.drift is not None and each.drift != first.within:
                print_wrapped(f"{each.run.label} differs within itself: {each.drift}")
        for phrase in _definition_differences(done, first):
            print_wrapped("definition: " + phrase)
        if first.step == 1 and reference.run.is_stock:
            print_wrapped(AUGMENTATION_NOTE)
        print("next:\n  " + "\n  ".join(next_commands(series, done, first)))
    if kept:
        print("runs:\n  " + "\n  ".join(str(each.report.run_dir) for each in done))


def show_json(
    series: Series, done: Sequence[Done], reference: Done, found: dict[str, StateDifference | None], *, kept: bool
) -> None:
    """One JSON object on stdout."""
    first = earliest(found)
    print_json(
        {
            "equal": first is None,
            "script": series.script,
            "args": list(series.args),
            "virtual_workers": done[0].run.assignment.virtual_workers,
            "order": reference.order,
            "steps": len(reference.states),
            "reference": reference.run.label,
            "runs": [
                {
                    "label": each.run.label,
                    "engine": each.run.engine,
                    "num_workers": each.run.assignment.num_workers,
                    "assignment": str(each.run.assignment),
                    "digest": each.digest,
                    "steps": each.steps,
                    "seconds": round(each.report.seconds, 3),
                    "equal": each is reference or found[each.run.label] is None,
                    "drift": each.drift,
                    "run_dir": str(each.report.run_dir) if kept else None,
                }
                for each in done
            ],
            "difference": None
            if first is None
            else {
                "step": first.step,
                "run": first.other,
                "leaves": list(first.leaves),
                "definition": _definition_differences(done, first),
                "sentence": first.sentence(),
            },
            "next": [] if first is None else next_commands(series, done, first),
        }
    )


def earliest(found: dict[str, StateDifference | None]) -> StateDifference | None:
    """The difference of the lowest step, in the order of the runs; of two, the one whose tensors are named."""
    apart = [each for each in found.values() if each is not None]
    return min(apart, key=lambda each: (each.step, not each.leaves), default=None)


def next_commands(series: Series, done: Sequence[Done], first: StateDifference) -> list[str]:
    """What to type to find the operator in which the two runs part."""
    pair = [_of(done, first.reference), _of(done, first.other)]
    if any(each.run.is_stock for each in pair):  # its operators are other ones, so the states must do
        return [shlex.join(["melodeon", "diff", *(str(each.report.run_dir) for each in pair)])]
    launch, commands, names = series.launch, [], []
    for each in pair:
        names.append(f"{series.stamp}-ops-{each.run.slug}")
        options = ["--record-ops", "--no-resume", "--steps", str(max(first.step, 1))]
        options += ["--assignment", str(each.run.assignment), "--name", names[-1], *_settings(launch)]
        commands.append(shlex.join(["melodeon", "run", *options, series.script, *series.args]))
    root = ["--runs-root", launch.runs_root] if launch.runs_root != Launch().runs_root else []
    return [*commands, shlex.join(["melodeon", "diff", *root, *names])]


def _settings(launch: Launch) -> list[str]:
    given = {
        "--determinism": launch.determinism if launch.determinism != DEFAULT else None,
        "--threads": launch.threads,
        "--order": launch.order,
        "--runs-root": launch.runs_root if launch.runs_root != Launch().runs_root else None,
    }
    return [word for name, value in given.items() if value is not None for word in (name, str(value))]


def _definition_differences(done: Sequence[Done], first: StateDifference) -> list[str]:
    """Facts of the two runs that should have been the same: most often the reason."""
    there, here = _of(done, first.reference), _of(done, first.other)
    return there.definition.differences(here.definition)


def _of(done: Sequence[Done], label: str) -> Done:
    return next(each for each in done if each.run.label == label)
