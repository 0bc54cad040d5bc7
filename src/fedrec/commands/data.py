"""`fedrec data`: list, show, check, get, import, split."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrec.commands.app import App
from fedrec.commands.columns import Item, Rating, SkipBad, Timestamp, User
from fedrec.errors import FedrecError
from fedrec.experiment.command_line import command_line

data_app = App(help="Datasets: list, show, check, get, import, split.", no_args_is_help=True)


@data_app.command("list")
def data_list() -> None:
    """The named datasets and whether their files are here."""
    from fedrec.commands import console
    from fedrec.data import datasets, list_published_splits
    from fedrec.data.imported import list_imports, path_of_import

    rows = []
    for entry in datasets():
        here = entry.available()
        rows.append([entry.name, str(here) if here else ("built in" if not entry.layouts else "missing"), entry.title])
    rows += [
        [split.name, str(split.available() or "missing"), f"published split: {split.citation}"]
        for split in list_published_splits()
    ]
    rows += [[name, str(path_of_import(name)), "imported"] for name in list_imports()]
    console.table(["name", "where", "what"], rows)


@data_app.command("show")
def data_show(
    spec: Annotated[str, typer.Argument(help="Dataset name or file.")],
    out: Annotated[Path | None, typer.Option(help="Write an HTML page with charts of the data.")] = None,
    user: User = None,
    item: Item = None,
    rating: Rating = None,
    timestamp: Timestamp = None,
    skip_bad: SkipBad = False,
) -> None:
    """Counts, sparsity, licence and origin of a dataset; --out FILE.html adds charts."""
    from fedrec.commands import console
    from fedrec.data import load
    from fedrec.data.file_formats import PAGE, ending_of
    from fedrec.data.located import describe_origin, locate
    from fedrec.data.roles import as_columns
    from fedrec.report.pages.data import facts, write_data_page

    if out is not None:
        ending_of(out, PAGE)
    # Asked before loading, since afterwards the files are here in any case.
    fresh = locate(spec) is None
    columns = {"user": user, "item": item, "rating": rating, "timestamp": timestamp}
    data = load(spec, progress=console.download, columns=as_columns(columns), skip_bad=skip_bad)
    rows = facts(data, describe_origin(spec, downloaded=fresh))
    # Written before anything is printed: whoever reads may have seen enough and break the pipe.
    page = None if out is None else write_data_page(data, rows, out)
    for name, value in rows:
        console.out.print(f"{name:>16}  {value}", markup=False)
    if page is not None:
        console.out.print(f"{page} written")


@data_app.command("check")
def data_check(
    file: Annotated[Path, typer.Argument(help="CSV, TSV, JSON Lines or Parquet file.")],
    out: Annotated[Path | None, typer.Option(help="Write the rows that cannot be used to this CSV file.")] = None,
    user: User = None,
    item: Item = None,
    rating: Rating = None,
    timestamp: Timestamp = None,
) -> None:
    """Look through a file of your own: every problem with its lines. Exit code 1 if rows cannot be used."""
    from fedrec.commands import console
    from fedrec.data.file_check import check_file
    from fedrec.data.roles import as_columns

    found = check_file(file, as_columns({"user": user, "item": item, "rating": rating, "timestamp": timestamp}))
    for name, value in found.facts:
        console.out.print(f"{name:>10}  {value}")
    for doubt in found.doubts:
        console.out.print(f"{'look at':>10}  {doubt}", style="yellow")
    for count, where in found.problems:
        console.out.print(f"{'cannot use':>10}  {count} ({where})", style="bold red")
    if not found.problems:
        console.out.print("every row can be used")
        return
    if out is not None:
        console.out.print(f"{found.bad.write(out)} written")
    console.out.print("add --skip-bad to a command that reads this file, and these rows are put aside and counted")
    # An exit code that a script can test, though nothing went wrong here.
    raise typer.Exit(1)


@data_app.command("get")
def data_get(spec: Annotated[str, typer.Argument(help="Dataset name.")]) -> None:
    """Download a dataset into the cache, unless it is already there."""
    from fedrec.commands import console
    from fedrec.data import load

    data = load(spec, progress=console.download)
    console.out.print(f"{data.label}: {data.n_users:,} users, {data.n_items:,} items, {len(data):,} rows")


@data_app.command("import")
def data_import(
    file: Annotated[Path, typer.Argument(help="CSV, TSV, JSON Lines or Parquet file.")],
    name: Annotated[str, typer.Option(help="Name of the dataset from now on.")],
    user: User = None,
    item: Item = None,
    rating: Rating = None,
    timestamp: Timestamp = None,
    title: Annotated[str | None, typer.Option(help="Column with the item's title, shown in lists.")] = None,
    skip_bad: SkipBad = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier import of that name.")] = False,
) -> None:
    """Read your own file once and store it under a name."""
    from fedrec.commands import console
    from fedrec.data import datasets, import_table, ratings_note
    from fedrec.data.imported import path_of_bad_rows
    from fedrec.data.roles import as_columns

    given = {"user": user, "item": item, "rating": rating, "timestamp": timestamp, "title": title}
    taken = tuple(entry.name for entry in datasets())
    data, _, path = import_table(file, name, as_columns(given), taken, skip_bad, force)
    for note in (*data.notes, *ratings_note(data)):
        console.out.print(note, markup=False)
    for record in data.filtered:
        console.out.print(f"{console.describe_left_out(record)}, kept in {path_of_bad_rows(name)}")
    console.out.print(f"{len(data):,} rows of {data.n_users:,} users and {data.n_items:,} items stored as {path}")
    console.out.print(f"use it with: {command_line('run', 'fedmf', '--data', name)}")


@data_app.command("split")
def data_split(
    spec: Annotated[str, typer.Argument(help="Dataset name or file.")],
    out: Annotated[Path, typer.Option(help="Folder for train.csv, valid.csv, test.csv.")],
    protocol: Annotated[str, typer.Option(help="The protocol whose filter and split rule are applied.")] = "honest",
    user: User = None,
    item: Item = None,
    rating: Rating = None,
    timestamp: Timestamp = None,
) -> None:
    """Write the training, validation and test parts as CSV files, with original ids."""
    from fedrec import evaluation
    from fedrec.commands import console
    from fedrec.data import load, write
    from fedrec.experiment.prepare import prepare

    # Never over an earlier split: results may refer to it.
    if there := [name for name in ("train.csv", "valid.csv", "test.csv") if (out / name).exists()]:
        raise FedrecError(f"{out} already holds {', '.join(there)}; remove them or choose another --out")
    data = load(spec, progress=console.download, user=user, item=item, rating=rating, timestamp=timestamp)
    prepared = prepare(data, evaluation.protocol(protocol))
    write(prepared.split, out)
    sizes = {part: len(getattr(prepared.split, part)) for part in ("train", "valid", "test")}
    for note in prepared.notes:
        console.err.print(f"note: {note}", style="dim")
    for record in prepared.filters:
        console.out.print(console.describe_left_out(record))
    console.out.print(f"{out}: " + ", ".join(f"{part}.csv {size:,} rows" for part, size in sizes.items()))
