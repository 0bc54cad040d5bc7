"""The flags of `fedrec leaderboard`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrec.commands import parse_seeds, split_words


def leaderboard_command(
    datasets: Annotated[str | None, typer.Option(help="Only these, separated by commas.")] = None,
    rows: Annotated[str | None, typer.Option(help="Only these rows, separated by semicolons.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Only these, separated by commas.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    jobs: Annotated[int, typer.Option(min=1, help="Number of runs in parallel.")] = 1,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.01, help="Time limit of a run, 20 if not given; beyond it the cell stays empty."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the commands; run nothing.")] = False,
    pages_only: Annotated[bool, typer.Option("--pages-only", help="Run nothing; write the finished results.")] = False,
    runs: Annotated[Path, typer.Option(help="Folder for all trials and runs.")] = Path("runs/leaderboard"),
    results: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("results/leaderboard"),
    page: Annotated[Path, typer.Option(help="The page; its figure is written next to it.")] = Path(
        "docs/leaderboard.md"
    ),
    readme: Annotated[Path, typer.Option(help="A page whose marked block is replaced.")] = Path("README.md"),
) -> None:
    """All methods on the same data with equal trials: run what is missing, write the results and the page."""
    from fedrec_studies.commands.leaderboard import LeaderboardRequest, leaderboard

    part = split_words(datasets, ","), split_words(rows, ";"), parse_seeds(seeds, None) or ()
    wanted = LeaderboardRequest(*part, device, jobs, minutes, runs, results, page, readme)
    leaderboard(wanted, dry_run, pages_only)
