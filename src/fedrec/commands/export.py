"""`fedrec export`: a model as a file for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrec.errors import FedrecError, unknown
from fedrec.experiment.command_line import command_line


def export_command(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run or a fitted model.")],
    to: Annotated[str, typer.Option("--to", help="onnx or npz.")],
    out: Annotated[
        Path | None, typer.Option(help="Output file; default: named after the folder, in the current one.")
    ] = None,
) -> None:
    """Write a model for other programs, as ONNX or plain arrays (inner-product models and sasrec)."""
    from fedrec.commands import console
    from fedrec.experiment.folder import require_harmless
    from fedrec.serve import FORMATS, Recommender, export

    if to not in FORMATS:
        raise unknown("format", to, FORMATS)
    place = out if out is not None else Path(f"{run.resolve().name}.{to}")
    if place.suffix != f".{to}":
        raise FedrecError(f"--out {place}: with --to {to} the file name must end in .{to}")
    require_harmless(place)
    recommender = Recommender(run)
    files = export(recommender, to, place)
    if recommender.run.prepared.has_test:
        console.err.print(
            "note: this model was trained on the training part only; to train on everything, use "
            f"{command_line('fit', run)}"
        )
    console.out.print(f"written: {', '.join(map(str, files))}")
