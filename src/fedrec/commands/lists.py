"""`fedrec recommend`, `fedrec cold-add` and `fedrec similar`: lists out of a finished run or a fitted model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.errors import FedrecError, list_few
from fedrec.experiment.command_line import command_line

if TYPE_CHECKING:
    from fedrec.serve import Recommendation, Recommender

FORMATS = "Write the lists to a .csv, .tsv, .json, .jsonl or .parquet file."


def recommend_command(
    run: Annotated[Path | None, typer.Argument(help="Folder of a finished run or a fitted model.")] = None,
    user: Annotated[str | None, typer.Option(help="One user, by original id.")] = None,
    state_dir: Annotated[Path | None, typer.Option(help="A node's state folder, to serve one of its users.")] = None,
    users: Annotated[Path | None, typer.Option(help="Several users: a file with one id per line.")] = None,
    everybody: Annotated[bool, typer.Option("--all", help="All users.")] = False,
    history: Annotated[Path | None, typer.Option(help="New users: a file with columns item, or user,item.")] = None,
    cold: Annotated[bool, typer.Option("--cold", help="Rank only the items that were not in training.")] = False,
    as_tested: Annotated[
        bool,
        typer.Option("--as-tested", help="The lists behind the test metrics, which may contain test items."),
    ] = False,
    k: Annotated[int, typer.Option("-k", help="Length of the lists.")] = 10,
    out: Annotated[Path | None, typer.Option(help=FORMATS)] = None,
    user_column: Annotated[str | None, typer.Option(help="Column of users in --history.")] = None,
    item_column: Annotated[str | None, typer.Option(help="Column of items in --history.")] = None,
    timestamp_column: Annotated[str | None, typer.Option(help="Column of times in --history.")] = None,
) -> None:
    """Recommendations from a finished run, a fitted model or a node; never items that the user already has."""
    from fedrec.data.roles import as_columns
    from fedrec.experiment.folder import require_harmless
    from fedrec.serve import Recommender, read_history, read_ids
    from fedrec.serve.list_files import require_format

    # Before any work: the output must not overwrite a file that is read.
    require_harmless(out, history, users)
    if out is not None:
        # A wrong ending is said before the model is opened.
        require_format(out)
    if (run is None) == (state_dir is None):
        raise FedrecError("give either the folder of a run or model, or --state-dir of a node")
    # Exactly one: two ways to choose users would leave open whose lists these are.
    if (user is not None) + everybody + (history is not None) + (users is not None) != 1:
        raise FedrecError("choose the users with one of --user ID, --users FILE, --all or --history FILE")
    if (everybody or users is not None) and out is None:
        raise FedrecError(f"{'--all' if everybody else '--users'} needs a file to write to: add --out recs.csv")
    if cold and history is not None:
        raise FedrecError("--cold is for users of the run: give --user ID or --all with it")
    if run is None:
        if history is not None or cold or as_tested:
            raise FedrecError("a node lists for users of its own file: --user ID, --users FILE or --all")
        _on_a_node(state_dir or Path(), user, users, k, out)
        return
    columns = as_columns({"user": user_column, "item": item_column, "timestamp": timestamp_column})
    if columns and history is None:
        raise FedrecError("--user-column, --item-column and --timestamp-column are those of --history FILE")
    known = read_history(history, columns, _columns_of(run), _note) if history is not None else {}
    # Ids are read before the model is opened, which takes far longer.
    wanted = read_ids(users, "user") if users is not None else []
    recommender = Recommender(run, cold, as_tested)
    if user is not None:
        found = iter(recommender.for_user(user, k))
    elif everybody:
        found = recommender.for_all(k)
    elif users is not None:
        found = recommender.for_ids(wanted, k)
    else:
        found = _fold_in_all(recommender, known, k)
    counted = _Counted(found)
    _show(counted, out)
    _explain(recommender, counted.users, history is not None, run)


def _columns_of(run: Path) -> dict[str, str | int]:
    """The columns of the file that a run was made from, whose names another file may have."""
    from fedrec.experiment.config import make_config
    from fedrec.experiment.folder import RunFolder

    columns = make_config(RunFolder.open(run).settings()).columns
    # Ratings play no part in a history, and a column number means something else in another file.
    return {role: column for role, column in columns.items() if role != "rating" and isinstance(column, str)}


def _note(text: str) -> None:
    from fedrec.commands import console

    console.err.print(f"note: {text}")


def _on_a_node(state_dir: Path, user: str | None, users: Path | None, k: int, out: Path | None) -> None:
    """List for one user of a node, for those of a file, or for all."""
    from fedrec.commands import console
    from fedrec.deploy.node_recommender import NodeLists
    from fedrec.serve import read_ids

    lists = NodeLists(state_dir)
    if user is not None:
        recommendations = iter(lists.for_user(user, k))
    else:
        recommendations = lists.for_all(k) if users is None else lists.for_ids(read_ids(users, "user"), k)
    counted = _Counted(recommendations)
    _show(counted, out)
    if counted.users["folded in"] or counted.users["popularity"]:
        console.err.print(
            f"note: {counted.users['trained']:,} users took part; {counted.users['folded in']:,} had too few items and "
            f"were folded in, {counted.users['popularity']:,} were served by what most users of this node have"
        )


def cold_add_command(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run of a method that uses item attributes.")],
    items: Annotated[Path, typer.Argument(help="CSV of new items, in the format of run --attributes.")],
    user: Annotated[
        str | None, typer.Option(help="One user, by original id; default: all users (needs --out).")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="List the best of all items, old and new, not only the new ones.")
    ] = False,
    k: Annotated[int, typer.Option("-k", help="Length of the lists.")] = 10,
    out: Annotated[Path | None, typer.Option(help=FORMATS)] = None,
) -> None:
    """Rank items that arrived after training among all items, from their attributes."""
    from fedrec.commands import console
    from fedrec.experiment.folder import require_harmless
    from fedrec.serve import Recommender, read_arrivals
    from fedrec.serve.list_files import require_format

    require_harmless(out, items)
    if out is not None:
        require_format(out)
    if user is None and out is None:
        raise FedrecError("give --user ID, or --out recs.csv for all users")
    arrivals = read_arrivals(items)
    recommender = Recommender(run)
    if unknown := recommender.add(arrivals):
        console.out.print(f"note: {unknown} of {len(arrivals)} items share no attribute with the items of the run")
    # A new item may stand anywhere in the whole list.
    length = k if whole else len(recommender.offered)
    found = recommender.for_all(length) if user is None else iter(recommender.for_user(user, length))
    _show(found if whole else _only({arrival.item for arrival in arrivals}, found, k), out)
    if not whole:
        console.err.print(
            f"note: ranks are among all {len(recommender.offered):,} items, old and new, that a user does not have"
        )


def similar_command(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run or a fitted model.")],
    item: Annotated[str, typer.Option(help="The item, by original id.")],
    k: Annotated[int, typer.Option("-k", help="Number of similar items.")] = 10,
) -> None:
    """Items similar to an item, by the model's item vectors or, where it has none, by shared users."""
    from fedrec.commands import console
    from fedrec.serve import Recommender

    recommender = Recommender(run)
    rows = [[one.rank, str(one.item), one.title or "-", one.score] for one in recommender.similar(item, k)]
    console.table(["rank", "item", "title", "cosine"], rows)
    console.err.print(f"note: by {recommender.space.kind}")


def _only(new: set[str], found: Iterator[Recommendation], k: int) -> Iterator[Recommendation]:
    """Of every user's list, the first k new items."""
    met: Counter[object] = Counter()
    for rec in found:
        # Counted by user, because the lists of all of them come one after another.
        if rec.item in new and met[rec.user] < k:
            met[rec.user] += 1
            yield rec


def _fold_in_all(recommender: Recommender, histories: dict[str, list[str]], k: int) -> Iterator[Recommendation]:
    from fedrec.commands import console

    for name, items in histories.items():
        folded = recommender.fold_in(items, k, name)
        if folded.unknown:
            who = "" if len(histories) == 1 else f" of {name}"
            # Three examples tell which kind of id is wrong; a list of thousands would hide the rest.
            more = f" and {len(folded.unknown) - 3:,} more" if len(folded.unknown) > 3 else ""
            console.err.print(
                f"note: {_items(len(folded.unknown))}{who} not in the model and skipped: "
                f"{list_few(folded.unknown)}{more}"
            )
        yield from folded.offers


def _items(count: int) -> str:
    return "1 item" if count == 1 else f"{count:,} items"


class _Counted:
    """Passes lists on and counts the users by how they were served."""

    def __init__(self, found: Iterator[Recommendation]) -> None:
        self.found, self.users, self.last = found, Counter[str](), object()

    def __iter__(self) -> Iterator[Recommendation]:
        return self

    def __next__(self) -> Recommendation:
        rec = next(self.found)
        # Lists of one user are neighbours, so a change of the user is enough to count.
        if rec.user != self.last:
            self.last = rec.user
            self.users[rec.served] += 1
        return rec


def _explain(recommender: Recommender, users: Counter[str], new: bool, run: Path) -> None:
    """How users were served who were not in training, and what was kept out of the lists."""
    from fedrec.commands import console

    prepared = recommender.run.prepared
    minimum = prepared.protocol.min_interactions_for(prepared.source.name)
    how = {"folded in": "folded in from their interactions", "popularity": "served by popularity"}
    # Who was new by the caller's own word needs no explanation.
    for served in how if not new else ():
        if users[served]:
            who = "1 user was" if users[served] == 1 else f"{users[served]:,} users were"
            console.err.print(f"note: {who} {how[served]}: this run trains on users with at least {minimum} items")
    if prepared.has_test and not new:
        console.err.print(f"note: {_describe_masks(recommender, run)}")


def _describe_masks(recommender: Recommender, run: Path) -> str:
    """What the lists of a run that was tested leave out, and why."""
    if recommender.as_tested:
        return (
            "lists as tested: training and validation items are left out, because users already have them; test items "
            "may appear in them, because they are what is tested"
        )
    return (
        "items that users already have (training, validation and test) are left out of the lists; the model "
        f"was trained on the training part only: to train on all interactions, use {command_line('fit', run)}"
    )


def _show(found: Iterator[Recommendation], out: Path | None) -> None:
    from fedrec.commands import console
    from fedrec.serve.list_files import write_recommendations

    if out is not None:
        console.out.print(f"{out}: {write_recommendations(out, found):,} recommendations")
        return
    rows = [[str(rec.user), rec.rank, str(rec.item), rec.title or "-", rec.score] for rec in found]
    console.table(["user", "rank", "item", "title", "score"], rows)
