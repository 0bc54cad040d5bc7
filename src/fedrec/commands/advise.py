"""`fedrec advise`: which method to take for some data, and why."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from fedrec.experiment.advise import Advice, Attempt, Wishes
    from fedrec.experiment.config import RunConfig

DELTA = 1e-5  # of a budget of privacy whose delta was not given


def advise_command(
    data: SeveralData = None,
    minutes: Annotated[float, typer.Option(help="How long to try, in all; more go on where it stopped.")] = 10.0,
    silos: Silos = None,
    blind: Annotated[bool, typer.Option("--blind", help="The server may see nothing but sums over clients.")] = False,
    max_upload: Annotated[
        str | None, typer.Option(help="What a client may upload in the whole training, e.g. 5MB.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Privacy budget of a client: every try gets its noise.")] = None,
    delta: Annotated[float | None, typer.Option(help="Delta of the budget; default 1e-5.")] = None,
    protocol: Annotated[str | None, typer.Option(help="See `fedrec protocols`; name,field=value to override.")] = None,
    min_rating: Annotated[
        float | None, typer.Option(help="Ratings from this on are positives; default: all above 0.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything that is tried.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    memory: Annotated[str | None, typer.Option(help="Memory budget, e.g. 8G.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the advice; default runs/advise/...")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the answer.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="The answer as JSON.")] = False,
    train: Annotated[str | None, typer.Option(help="Your own split: training file.")] = None,
    valid: Annotated[str | None, typer.Option(help="Your own split: validation file.")] = None,
    test: Annotated[str | None, typer.Option(help="Your own split: test file.")] = None,
    user: User = None,
    item: Item = None,
    rating: Rating = None,
    timestamp: Timestamp = None,
    skip_bad: SkipBad = False,
    silo_column: SiloColumn = None,
) -> None:
    """Try what fits some data within a few minutes, on validation items alone, and say which method to take and why.

    The same command goes on where it stopped.
    """
    from fedrec.commands.run_flags import with_min_rating
    from fedrec.experiment.advise import Wishes
    from fedrec.experiment.config import make_config

    if data is None and train is None:
        raise FedrecError("say for which data: --data logs.csv, or a name of `fedrec data list`")
    if None not in (data, train):
        raise FedrecError("give --data or your own split (--train, --valid, --test), not both")
    if delta is not None and epsilon is None:
        raise FedrecError("--delta goes with --epsilon")
    if min_rating is not None:
        protocol = with_min_rating(protocol or "honest", min_rating)
    flags: dict[str, Any] = {
        "data": name_data(data),
        "protocol": protocol,
        **ways_to_silos(silos, silo_column),
        "epsilon": epsilon,
        # A budget without a delta has no meaning, and most who give an epsilon know none.
        "delta": delta or (None if epsilon is None else DELTA),
        "seed": seed,
        "device": device,
        "memory": memory,
        "train": train,
        "valid": valid,
        "test": test,
        "user": user,
        "item": item,
        "rating": rating,
        "timestamp": timestamp,
        "skip_bad": skip_bad or None,
    }
    values = {name: value for name, value in flags.items() if value is not None}
    wishes = Wishes(minutes, blind, None if max_upload is None else upload_size(max_upload))
    show_advice(make_config({"method": "popularity", **values}), wishes, out, quiet, json_)


def upload_size(text: str) -> int:
    """Bytes from `5MB`, `300K`, `1.5GiB`."""
    from fedrec.experiment.config import parse_size

    size = parse_size(text)
    # Zero and infinity are no limits that a client could keep.
    if not 0 < size < float("inf"):
        raise FedrecError(f"--max-upload {text}: write a size such as 5MB, 300K or 1.5GiB")
    return int(size)


def show_advice(config: RunConfig, wishes: Wishes, out: Path | None, quiet: bool, as_json: bool) -> None:
    """Try, then print the table, the two sentences and the command that goes on."""
    from fedrec.commands import console, progress
    from fedrec.commands.interrupted import says_how_to_go_on
    from fedrec.commands.tune import study_folder
    from fedrec.experiment.advise import advise
    from fedrec.experiment.driver import Listener
    from fedrec.report.pages.advice_page import write_advice

    # What changes the answer is part of the folder's name, so that other wishes begin a study of their own.
    more = [config.silos or "", f"epsilon{config.epsilon:g}" if config.epsilon else "", "blind" if wishes.blind else ""]
    folder = out or study_folder(config, "advise", "-".join(filter(None, more)), method="")

    noted = list[str]()

    def report(name: str, attempt: Attempt) -> None:
        if not quiet:
            console.err.print(f"{name}: {_outcome(attempt)}")

    def follow(label: str) -> Listener:
        # Notes on the data are the same for every try, so they are shown once.
        notes = not noted
        noted.append(label)
        return progress.listener(label, quiet, as_json=False, notes=notes)

    with says_how_to_go_on("the same command goes on after what was tried"):
        advice = advise(config, wishes, folder, heard=report, follow=follow)
    page = write_advice(advice, folder / "advice.html")
    if as_json:
        # Plain print: lines for programs must not be wrapped or coloured.
        print(json.dumps(_plain(advice) | {"page": str(page)}))
        return
    console.table(advice.heads, [line.cells for line in advice.best_lines], title=f"{advice.data}, on validation items")
    for reason in advice.not_tried:
        console.out.print(f"not tried: {reason}", style="dim")
    console.out.print(f"\n{advice.sentences}", style="bold")
    console.out.print(f"next: {advice.command}")
    console.out.print(f"page: {page}")


def _outcome(attempt: Attempt) -> str:
    """What has come of it so far."""
    if attempt.value is None:
        return attempt.note
    rounds = f", {attempt.rounds_run} of {attempt.rounds} rounds" if attempt.rounds > 1 else ""
    return f"{attempt.value:.4f}{rounds} ({attempt.seconds:.0f} s)"


def _plain(advice: Advice) -> dict[str, Any]:
    return {
        "method": advice.method,
        "sentences": advice.sentences,
        "command": advice.command,
        "config": advice.config.to_dict(),
        "attempts": [
            dataclasses.asdict(line.attempt) | {"server_sees": line.sees, "sum_tells": line.revealed.words}
            for line in advice.lines
        ],
        "not_tried": list(advice.not_tried),
        "folder": str(advice.folder),
    }
