"""`fedrec recommend` and `fedrec cold-add`: lists out of a finished run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.errors import FedrecError

if TYPE_CHECKING:
    from fedrec.recommend import Recommendation


def recommend_command(
    run: Annotated[Path, typer.Argument(help="A finished run folder.")],
    user: Annotated[str | None, typer.Option(help="One user, by original id.")] = None,
    everybody: Annotated[bool, typer.Option("--all", help="All users.")] = False,
    history: Annotated[Path | None, typer.Option(help="A new user: CSV of items, or of user,item.")] = None,
    cold: Annotated[bool, typer.Option("--cold", help="Rank the items that training never met.")] = False,
    k: Annotated[int, typer.Option("-k", help="Length of the lists.")] = 10,
    out: Annotated[
        Path | None, typer.Option(help="Write them to a .csv, .tsv, .json, .jsonl or .parquet file.")
    ] = None,
) -> None:
    """Recommendations from a finished run."""
    from fedrec.experiment.folder import require_harmless
    from fedrec.recommend import Recommender, read_history
    from fedrec.written import require_format

    require_harmless(out, history)
    if out is not None:
        require_format(out)
    if (user is not None) + everybody + (history is not None) != 1:
        raise FedrecError("say for whom: --user ID, --all or --history FILE (one of them)")
    if everybody and out is None:
        raise FedrecError("--all needs a file to write to: add --out recs.csv")
    if cold and history is not None:
        raise FedrecError("--cold is for users of the run: give --user ID or --all with it")
    known = read_history(history) if history is not None else {}
    recommender = Recommender(run, cold)
    if user is not None:
        found = iter(recommender.for_user(user, k))
    elif everybody:
        found = recommender.for_all(k)
    else:
        found = (rec for name, items in known.items() for rec in recommender.for_history(items, k, name))
    _show(found, out)


def cold_add_command(
    run: Annotated[Path, typer.Argument(help="A finished run folder of a method that knows attributes.")],
    items: Annotated[Path, typer.Argument(help="CSV of new items, as for run --attributes.")],
    user: Annotated[str | None, typer.Option(help="One user, by original id; default: all, which needs --out.")] = None,
    k: Annotated[int, typer.Option("-k", help="Length of the lists.")] = 10,
    out: Annotated[
        Path | None, typer.Option(help="Write them to a .csv, .tsv, .json, .jsonl or .parquet file.")
    ] = None,
) -> None:
    """Rank items that arrived after training, from their attributes alone."""
    from fedrec import console
    from fedrec.experiment.folder import require_harmless
    from fedrec.recommend import Recommender, read_arrivals
    from fedrec.written import require_format

    require_harmless(out, items)
    if out is not None:
        require_format(out)
    if user is None and out is None:
        raise FedrecError("say for whom: --user ID, or everybody with --out recs.csv")
    arrivals = read_arrivals(items)
    recommender = Recommender(run)
    if unknown := recommender.add(arrivals):
        console.out.print(f"note: {unknown} of {len(arrivals)} items share no attribute with the items of the run")
    k = min(k, len(arrivals))
    _show(recommender.for_all(k) if user is None else iter(recommender.for_user(user, k)), out)


def _show(found: Iterator[Recommendation], out: Path | None) -> None:
    from fedrec import console
    from fedrec.written import write_recommendations

    if out is not None:
        console.out.print(f"{out}: {write_recommendations(out, found):,} recommendations")
        return
    rows = [[str(rec.user), rec.rank, str(rec.item), rec.title or "-", rec.score] for rec in found]
    console.table(["user", "rank", "item", "title", "score"], rows)
