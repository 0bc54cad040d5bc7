"""The flags of `fedrec sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedrec.commands.columns import (
    Item,
    Rating,
    SeveralData,
    SiloColumn,
    Silos,
    SkipBad,
    Timestamp,
    User,
    name_data,
    ways_to_silos,
)


def sweep_command(
    method: Annotated[str, typer.Argument(help="See `fedrec methods`.")],
    set_: Annotated[list[str], typer.Option("--set", help="lr=0.1,0.5 is swept; dim=16 is fixed.")],
    data: SeveralData = None,
    protocol: Annotated[str | None, typer.Option(help="See `fedrec protocols`; name,field=value to override.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Model inside the method, e.g. mf or ncf.")] = None,
    preset: Annotated[str | None, typer.Option(help="Named parameter set of the method.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds of each run.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all runs.")] = None,
    silos: Silos = None,
    participation: Annotated[float | None, typer.Option(help="Share of clients per round.")] = None,
    eval_every: Annotated[int | None, typer.Option(help="Evaluate every N rounds.")] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after N evaluations without improvement.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory budget, e.g. 8G.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with the same keys; flags take precedence.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the sweep; default runs/sweep/...")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the table.")] = False,
    user: User = None,
    item: Item = None,
    rating: Rating = None,
    timestamp: Timestamp = None,
    skip_bad: SkipBad = False,
    silo_column: SiloColumn = None,
) -> None:
    """Run a method with every combination of listed values, judged on validation items; runs that are done stay."""
    from fedrec.commands.sweep import run_sweep
    from fedrec.experiment.config import make_config, read_config

    values: dict[str, Any] = read_config(config) if config else {}
    flags = {
        "method": method,
        "data": name_data(data),
        "protocol": protocol,
        "backbone": backbone,
        "preset": preset,
        "rounds": rounds,
        "seed": seed,
        **ways_to_silos(silos, silo_column),
        "participation": participation,
        "eval_every": eval_every,
        "patience": patience,
        "device": device,
        "memory": memory,
        "user": user,
        "item": item,
        "rating": rating,
        "timestamp": timestamp,
        "skip_bad": skip_bad or None,
    }
    values |= {name: value for name, value in flags.items() if value is not None}
    run_sweep(make_config(values), set_, out, quiet)
