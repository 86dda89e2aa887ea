"""`melodeon plot`: pictures of simulations that were kept, as SVG or PNG."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from melodeon.cli.output import write_file
from melodeon.core.errors import UsageError

ZOOM = 2
"""PNG pixels for each SVG one, so that text stays sharp."""


def plot(
    sims: Annotated[list[Path], typer.Argument(metavar="SIM", help="Result files, or folders of them.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The .svg or .png to write.")],
    kind: Annotated[
        str, typer.Option("--kind", "-k", metavar="KIND", help="gantt, jct, utilisation or deadlines.")
    ] = "gantt",
    begin: Annotated[str | None, typer.Option("--from", metavar="TIME", help="Draw from here on, as 2h.")] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Draw up to here, as 3d.")] = None,
) -> None:
    """Draw simulations that `melodeon sim --save` kept.

    Several become lines of one picture; a gantt is of one.
    """
    from melodeon.cli.simtraces import seconds
    from melodeon.sim import plots
    from melodeon.sim.results import find_results, read_result

    if output.suffix not in (".svg", ".png"):
        raise UsageError(f"-o {output} must end in .svg or .png, which says what to write")
    window = (None if begin is None else seconds(begin, "--from"), None if end is None else seconds(end, "--to"))
    if kind not in plots.KINDS:
        raise UsageError(f"--kind {kind} is not one of {', '.join(plots.KINDS)}")
    files = [path for given in sims for path in find_results(given)]
    text = plots.plot(kind, [read_result(path) for path in files], window)
    write_file(output, text.encode() if output.suffix == ".svg" else png(text))
    print(f"wrote {output}", file=sys.stderr)


def png(svg: str) -> bytes:
    """An SVG as PNG."""
    from resvg_py import svg_to_bytes

    return bytes(svg_to_bytes(svg_string=svg, zoom=ZOOM))
