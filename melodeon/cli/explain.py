"""`melodeon explain`: why a job of a simulation got what it got, in sentences."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from melodeon.cli.job import Output, wants_json
from melodeon.cli.output import WIDTH, print_json
from melodeon.core.errors import UsageError
from melodeon.core.text import plain

if TYPE_CHECKING:
    from melodeon.sim.explain import Sentence

MOST = 20
"""Changes that are told without --all."""


def explain(
    sim: Annotated[Path, typer.Argument(metavar="SIM", help="A result file, or a folder with one.")],
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's id, or the beginning of it.")],
    everything: Annotated[bool, typer.Option("--all", help="Tell every change, however many.")] = False,
    output: Output = "table",
) -> None:
    """Tell in sentences what became of a simulated job.

    When it got how much, where and why.
    """
    from melodeon.sim import explain as told
    from melodeon.sim.results import find_results, read_result

    as_json = wants_json(output)
    files = find_results(sim)
    if len(files) > 1:
        names = ", ".join(path.name for path in files[:4])
        raise UsageError(f"{sim} holds {len(files)} result files ({names}{', …' if len(files) > 4 else ''}): name one")
    found = read_result(files[0])
    known = told.find_job(found, job)
    sentences = told.explain(found, job)
    start_s = found.head.start_s
    if as_json:
        rows = [{"at_s": None if s.at_s is None else s.at_s - start_s, "text": s.text} for s in sentences]
        print_json({"job": known.id, "trace": found.head.trace, "policy": found.head.policy, "sentences": rows})
        return
    head = f"job {known.id} of {found.head.trace} under {found.head.policy} on {found.head.cluster_name}"
    print("\n".join(textwrap.wrap(plain(head), WIDTH, subsequent_indent="    ", break_on_hyphens=False)))
    print("\n".join(lines(sentences, start_s, everything=everything)))


def lines(sentences: "list[Sentence]", start_s: float, *, everything: bool = False) -> list[str]:
    """A time on the left, what happened on the right; the middle of a long story is left out."""
    from melodeon.sim.clock import moment

    changes = [index for index, sentence in enumerate(sentences) if sentence.is_change]
    hidden = range(0)
    if not everything and len(changes) > MOST:
        hidden = range(changes[MOST * 2 // 3], changes[-(MOST // 3)])
    times = ["" if sentence.at_s is None else moment(sentence.at_s - start_s) for sentence in sentences]
    wide = max(map(len, times))
    made: list[str] = []
    for index, (time, sentence) in enumerate(zip(times, sentences, strict=True)):
        if index in hidden:
            if index == hidden.start:
                left_out = sum(k in hidden for k in changes)
                made.append(f"{'…':>{wide}}  {left_out} more changes: --all tells them")
            continue
        made += textwrap.wrap(
            plain(sentence.text),
            WIDTH,
            initial_indent=f"{time:>{wide}}  ",
            subsequent_indent=" " * (wide + 2),
            break_long_words=False,
            break_on_hyphens=False,
        )
    return made
