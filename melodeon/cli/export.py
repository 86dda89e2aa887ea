"""`melodeon export`: a checkpoint's model as a file that plain PyTorch loads."""

from pathlib import Path
from typing import Annotated

import typer

from melodeon.backends.machine import require_torch


def export(
    checkpoint: Annotated[
        Path,
        typer.Argument(metavar="CHECKPOINT", help="A .melodeon file, or a folder: the newest good one in it."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The .pt or .safetensors to write.")],
    model: Annotated[str | None, typer.Option(metavar="K", help="Which of several wrapped models: 0, 1, ...")] = None,
    registered: Annotated[
        str | None, typer.Option(metavar="NAME", help="Instead: what job.register was given by this name.")
    ] = None,
) -> None:
    """Write the model of a checkpoint as a plain state_dict."""
    require_torch("export")
    from melodeon.runtime.export import export_state_dict

    done = export_state_dict(checkpoint, output, model_key=model, registered=registered)
    for note in done.notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"wrote {done.output}: {done.num_tensors} tensors of step {done.step} from {done.checkpoint}")
