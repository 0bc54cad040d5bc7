"""`fedrec fit`: a model to serve."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.commands.columns import Item, Rating, SkipBad, Timestamp, User
from fedrec.errors import FedrecError
from fedrec.experiment.command_line import again

if TYPE_CHECKING:
    from fedrec.experiment.fitting import Fitted


def fit_command(
    run: Annotated[Path | None, typer.Argument(help="A finished run, whose settings and rounds are used.")] = None,
    warm: Annotated[
        Path | None,
        typer.Option("--from", help="Continue from this run or fitted model, whose log new rows are joined with."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="With --from: new rows, or a longer log; otherwise all rows, instead of the run's."),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="--data is the whole log: what it lacks of the earlier one is dropped.")
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds; default: the run's chosen round, with --from a tenth of it.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the model; default RUN-fit.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Of the run and all its fits together, where the run has a budget.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted fit, in --out or RUN-fit.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
    user: User = None,
    item: Item = None,
    rating: Rating = None,
    timestamp: Timestamp = None,
    skip_bad: SkipBad = False,
    attributes: Annotated[
        str | None, typer.Option(help="CSV that describes the items, new ones too; default: the one of the run.")
    ] = None,
) -> None:
    """Train a run's settings on all interactions, with nothing held out: a model for recommend, serve and export."""
    from fedrec.commands import progress
    from fedrec.commands.interrupted import says_how_to_go_on
    from fedrec.experiment.fitting import fit

    source = run if run is not None else warm
    # Exactly one source: a run gives settings alone, while --from also gives the model to go on with.
    if source is None or (run is not None and warm is not None):
        raise FedrecError(
            "give the run whose settings to use: fedrec fit RUN, or fedrec fit --from RUN to continue from its model"
        )
    if replace and warm is None:
        # Refused and not ignored: whoever writes it expects that something is dropped.
        raise FedrecError("--replace goes with --from; fedrec fit RUN --data FILE takes FILE for the whole log anyway")
    if replace and data is None:
        raise FedrecError("--replace needs --data FILE, the whole log")
    place = out if out is not None else _place(source, resume)
    flags = {"user": user, "item": item, "rating": rating, "timestamp": timestamp}
    # Only columns that were given, since the others are those of the run.
    columns = {role: column for role, column in flags.items() if column is not None}
    listener = progress.listener(f"fit {source.name}", quiet, as_json=False)
    with says_how_to_go_on(again(place)):
        fitted = fit(
            source,
            place,
            warm=warm is not None,
            data=data,
            replaces=replace,
            columns=columns,
            skip_bad=skip_bad,
            attributes=attributes,
            rounds=rounds,
            resume=resume,
            listener=listener,
            epsilon=epsilon,
        )
    _show(fitted)


def _show(fitted: Fitted) -> None:
    from fedrec.commands import console
    from fedrec.commands.summary import show_privacy

    data, rows, name = fitted.run.prepared.source, len(fitted.run.prepared.split.train), fitted.run.method.info.name
    console.out.print(
        f"{name} fitted to all {rows:,} interactions of {data.n_users:,} users and {data.n_items:,} items"
    )
    if fitted.rows.story:
        console.out.print(fitted.rows.story)
    if fitted.carried is not None:
        new_users, new_items = data.n_users - fitted.carried.users, data.n_items - fitted.carried.items
        console.out.print(
            f"continued from {fitted.carried.users:,} users and {fitted.carried.items:,} items; "
            f"new users: {new_users:,}, new items: {new_items:,}"
        )
    elif fitted.rows.joined is not None:
        new_users, new_items = fitted.rows.joined.users, fitted.rows.joined.items
        console.out.print(f"computed again from all of them; new users: {new_users:,}, new items: {new_items:,}")
    if fitted.privacy is not None:
        show_privacy(fitted.privacy)
        console.out.print("  this covers the fit only; spent.jsonl in its folder has what was spent on the same users")
    console.out.print(f"model: {fitted.folder}")


def _place(source: Path, resume: bool) -> Path:
    """RUN-fit next to the run, with a number appended if that is taken; to resume, the latest of them."""
    base = source.resolve()
    # A fit of a fit keeps its name and gets a number, instead of a longer name each time.
    name = base.name if base.name.endswith("-fit") else f"{base.name}-fit"
    beside = source.parent if source.name else base.parent
    names = (name, *(f"{name}.{number}" for number in range(2, 10_000)))
    # Numbers without gaps, so that the last that exists is the latest.
    taken = list(itertools.takewhile(Path.exists, (beside / text for text in names)))
    if resume:
        return taken[-1] if taken else beside / name
    return beside / names[len(taken)]
