"""The flags of `fedrec tune`."""

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
from fedrec.errors import FedrecError


def tune_command(
    method: Annotated[str, typer.Argument(help="See `fedrec methods`.")],
    data: SeveralData = None,
    trials: Annotated[int, typer.Option(min=1, help="Number of settings to try, the defaults first.")] = 12,
    minutes: Annotated[float | None, typer.Option(help="No trial starts later than this, in minutes in total.")] = None,
    space: Annotated[list[str] | None, typer.Option(help="Search space: lr=0.001..0.1 or dim=16,32.")] = None,
    protocol: Annotated[str | None, typer.Option(help="See `fedrec protocols`; name,field=value to override.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Model inside the method, e.g. mf or ncf.")] = None,
    preset: Annotated[str | None, typer.Option(help="Named parameter set to start from.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A fixed parameter, key=value.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds per trial.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the trials and the search.")] = None,
    silos: Silos = None,
    participation: Annotated[float | None, typer.Option(help="Share of clients per round.")] = None,
    eval_every: Annotated[int | None, typer.Option(help="Evaluate every N rounds.")] = None,
    patience: Annotated[int | None, typer.Option(help="End a trial after N evaluations without improvement.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory budget, e.g. 8G.")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with the same keys; flags take precedence.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the study; default runs/tune/...")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
    user: User = None,
    item: Item = None,
    rating: Rating = None,
    timestamp: Timestamp = None,
    skip_bad: SkipBad = False,
    silo_column: SiloColumn = None,
) -> None:
    """Search a method's parameters on validation items within a budget; the same command goes on where it stopped."""
    from fedrec.commands.tune import tune
    from fedrec.experiment.config import make_config, read_config
    from fedrec.experiment.params import parse_settings
    from fedrec.experiment.tuning import Budget

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
    values["params"] = {**values.get("params", {}), **parse_settings(set_ or [])}
    if minutes is not None and not minutes > 0:
        raise FedrecError(f"--minutes {minutes} must be above 0")
    tune(make_config(values), space or [], Budget(trials, minutes), out, quiet)
