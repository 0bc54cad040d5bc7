"""The flags of `fedrec reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrec.commands import parse_seeds, split_words
from fedrec.errors import FedrecError


def reproduce_command(
    target: Annotated[str | None, typer.Argument(help="PAPER or PAPER/TABLE; default: list all papers.")] = None,
    datasets: Annotated[str | None, typer.Option(help="Only these, separated by commas.")] = None,
    protocols: Annotated[str | None, typer.Option(help="Only these, separated by semicolons, e.g. honest.")] = None,
    rows: Annotated[str | None, typer.Option(help="Only these rows, separated by semicolons.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds instead of the table's own, e.g. 0,1,2.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One seed and a tenth of the rounds.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs and their estimated time; run nothing.")
    ] = False,
    coverage: Annotated[
        bool,
        typer.Option(
            "--coverage", help="The verdict on every printed figure, of all papers without PAPER; run nothing."
        ),
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Number of runs in parallel.")] = 1,
    drop_models: Annotated[
        bool, typer.Option("--drop-models", help="Keep results but not models, which take gigabytes.")
    ] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    memory: Annotated[str, typer.Option(help="Memory budget of a run.")] = "8G",
    out: Annotated[Path | None, typer.Option(help="Folder; default runs/reproduce/PAPER.")] = None,
) -> None:
    """Rerun a paper's tables, next to the printed figures and under the honest protocol; continues where it stopped."""
    from fedrec_studies.commands.reproduce import (
        ReproduceRequest,
        reproduce,
        show_coverage,
        show_overview,
        show_papers,
    )

    if coverage and (datasets or protocols or rows or seeds or quick):
        raise FedrecError(
            "--coverage is of all cells of a paper or table: leave --datasets, --protocols, --rows, "
            "--seeds and --quick out"
        )
    if target is None:
        if dry_run or quick:
            raise FedrecError("name a PAPER or PAPER/TABLE; `fedrec reproduce` lists them")
        if coverage:
            show_overview(out)
        else:
            show_papers()
        return
    if coverage:
        show_coverage(target, device, out)
        return
    wanted = ReproduceRequest(
        split_words(datasets),
        split_words(protocols, ";"),
        split_words(rows, ";"),
        parse_seeds(seeds, None) or [],
        quick,
        jobs,
        drop_models,
        device,
        memory,
    )
    if not reproduce(target, wanted, out, dry_run):
        raise typer.Exit(1)
