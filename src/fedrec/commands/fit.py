"""`fedrec fit`: a model to serve."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.errors import FedrecError

if TYPE_CHECKING:
    from fedrec.experiment.fit import Fitted


def fit_command(
    run: Annotated[Path | None, typer.Argument(help="A finished run, whose settings and rounds are used.")] = None,
    warm: Annotated[
        Path | None,
        typer.Option("--from", help="Continue from this run or fitted model, with the new rows of its data."),
    ] = None,
    data: Annotated[str | None, typer.Option(help="Data other than the run's, e.g. a longer log.")] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds; default: the run's chosen round, with --from a tenth of it.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the model; default RUN-fit.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")] = False,
) -> None:
    """Train a run's settings on all interactions, with nothing held out: a model for recommend, serve and export."""
    from fedrec import console
    from fedrec.commands import progress
    from fedrec.experiment.fit import fit
    from fedrec.experiment.interrupt import sigterm_interrupts

    source = run if run is not None else warm
    if source is None or (run is not None and warm is not None):
        raise FedrecError(
            "give the run whose settings to use: fedrec fit RUN, or fedrec fit --from RUN to continue from its model"
        )
    place = out if out is not None else _free(source)
    listener = progress.listener(f"fit {source.name}", quiet, as_json=False)
    with sigterm_interrupts():
        try:
            fitted = fit(source, place, warm=warm is not None, data=data, rounds=rounds, listener=listener)
        except KeyboardInterrupt:
            console.err.print("interrupted; an unfinished fit is not saved: run the command again")
            raise
    _show(fitted)


def _show(fitted: Fitted) -> None:
    from fedrec import console
    from fedrec.commands.summary import show_privacy

    data, rows, name = fitted.run.prepared.source, len(fitted.run.prepared.split.train), fitted.run.method.info.name
    console.out.print(
        f"{name} fitted to all {rows:,} interactions of {data.n_users:,} users and {data.n_items:,} items"
    )
    if fitted.carried is not None:
        new_users, new_items = data.n_users - fitted.carried.users, data.n_items - fitted.carried.items
        console.out.print(f"continued from {fitted.carried.users:,} users and {fitted.carried.items:,} items; "
                          f"{new_users:,} users and {new_items:,} items are new")  # fmt: skip
    if fitted.privacy is not None:
        show_privacy(fitted.privacy)
        console.out.print("  this covers the fit only: the earlier run spent its own budget on the same users")
    console.out.print(f"model: {fitted.folder}")


def _free(source: Path) -> Path:
    """RUN-fit next to the run, with a number appended if that is taken."""
    base = source.resolve()
    name = base.name if base.name.endswith("-fit") else f"{base.name}-fit"
    beside = source.parent if source.name else base.parent
    names = (name, *(f"{name}.{number}" for number in range(2, 10_000)))
    return next(path for path in (beside / text for text in names) if not path.exists())
