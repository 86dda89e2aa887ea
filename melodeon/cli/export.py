"""`melodeon export`: a checkpoint's model as a file that plain PyTorch loads."""

import importlib.util
from pathlib import Path
from typing import Annotated

import typer

from melodeon.core.errors import MissingTorch


def export(
    checkpoint: Annotated[
        Path, typer.Argument(help="A .melodeon file, or the folder of checkpoints to take the newest good one of.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write: .pt or .safetensors.")],
    model: Annotated[str | None, typer.Option(help="Which model, where the job wrapped several: 0, 1, ...")] = None,
    registered: Annotated[
        str | None, typer.Option(help="An object given to job.register, by its name, instead of a model.")
    ] = None,
) -> None:
    """Write the model of a checkpoint as a plain state_dict."""
    if importlib.util.find_spec("torch") is None:
        raise MissingTorch("export")
    from melodeon.runtime.export import export_state_dict

    done = export_state_dict(checkpoint, output, model_key=model, registered=registered)
    for note in done.notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"wrote {done.output}: {done.num_tensors} tensors of step {done.step} from {done.checkpoint}")
