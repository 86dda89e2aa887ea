"""Options that several commands have, each declared once: the same name, the same meaning, the same words in help.

What a job is, is said by `submit` and changed by `edit`; what defines the bits, by everything that trains.
"""

from typing import Annotated

import typer

MOST = 1_000_000
"""Workers, slots, agents or restarts: more than these were not meant, and far more would not fit a message."""

Deadline = Annotated[str | None, typer.Option(metavar="6h|DATE|none", help="By when; none: best effort.")]
OnMiss = Annotated[str | None, typer.Option(metavar="reject|soft", help="soft: admitted even if late.")]
Priority = Annotated[float | None, typer.Option(help="Its weight among others; 1 by default.")]
Range = Annotated[str | None, typer.Option(metavar="1-8", help="How few and how many it may have.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Stop after this many steps in all.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Stop after this many epochs.")]
Until = Annotated[str | None, typer.Option(metavar="AIM", help="Stop once a logged mean is good enough.")]

Script = Annotated[str, typer.Argument(metavar="SCRIPT", help="The training script.")]
Args = Annotated[list[str] | None, typer.Argument(metavar="ARGS", help="Passed to the script as is.")]
Order = Annotated[str | None, typer.Option(metavar="tree|ddp", help="Over the script's choice.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads per worker; defines the bits.")]
Determinism = Annotated[str | None, typer.Option(metavar="D0|D1|D2", help="D1 by default.")]

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
