"""What a table of a paper consists of, read from `tables/PAPER.toml`: its rows, their runs, the printed figures."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from fedrec.errors import FedrecError, unknown
from fedrec.experiment import RunConfig, make_config
from fedrec.schema import TEXT, TEXTS, Shape, check
from fedrec_studies.reproduce.printed import Names, PrintedCell, read_print, select_cells

TABLE: Shape = {"title": TEXT, "metrics": TEXTS, "protocols": TEXTS, "datasets": TEXTS, "rows": [{"label": TEXT}]}
# rows differ in more than a parameter where a protocol or a privacy setting changes: their labels need a short word
NAME = "name"  # among the values of `each`: a word for labels alone
QUICK = "**A quick look** (`--quick`): one seed and a tenth of the rounds, so that no figure is that of the method."
PAPER = "paper"  # the section of a file that is no table
SETTINGS = {f.name for f in dataclasses.fields(RunConfig)}


@dataclass(frozen=True)
class Row:
    """One line of a table: a method with its settings, those that differ by dataset, and what is printed."""

    label: str
    run: Mapping[str, Any]
    only: Sequence[str] = ()  # protocols; empty: all of the table
    datasets: Sequence[str] = ()  # the same of datasets
    on: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    too_long: Mapping[str, str] = field(default_factory=dict)  # by dataset: why it is not run
    group: str = ""  # of users or clients: its figures are those of this group, by name
    print: Mapping[str, str] = field(default_factory=dict)  # which printed cells are its own
    printed: Mapping[str, Sequence[float | None]] = field(default_factory=dict)  # by dataset, in order of the metrics
    cells: Mapping[tuple[str, str], Sequence[PrintedCell]] = field(default_factory=dict)
    """By dataset and metric. The first is the one that is compared with; others are the same run in another table."""


@dataclass(frozen=True)
class Table:
    """`printed` figures were made under the first of `protocols`; the others show what the method is worth."""

    name: str
    title: str
    metrics: Sequence[str]
    protocols: Sequence[str]
    datasets: Sequence[str]
    rows: Sequence[Row]
    run: Mapping[str, Any] = field(default_factory=dict)
    under: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seeds: Sequence[int] = (0, 1, 2)
    notes: Sequence[str] = ()
    measured: Sequence[str] = ()  # metrics of the other protocols, where the published ones do not exist there
    published: str = ""  # the protocol of the printed figures; the first one, also when that is not asked for
    print: Mapping[str, str] = field(default_factory=dict)  # what the printed cells of all its rows have in common
    metric_names: Mapping[str, str] = field(default_factory=dict)  # where this table prints a metric by another name
    dataset_names: Mapping[str, str] = field(default_factory=dict)  # where it means another version of a dataset
    drawn: Sequence[str] = ()  # of a figure: the commands that draw it from the runs
    too_long: Mapping[str, str] = field(default_factory=dict)  # as of a row, for all that do not say it themselves

    def __post_init__(self) -> None:
        if not self.published:
            object.__setattr__(self, "published", self.protocols[0])

    def config(self, row: Row, dataset: str, protocol: str, seed: int) -> RunConfig:
        """The run of one cell: settings of the table < of the protocol < of the row < of the row on this dataset."""
        values: dict[str, Any] = {"data": dataset, "protocol": protocol, "seed": seed}
        params: dict[str, Any] = {}
        for layer in (self.run, self.under.get(protocol, {}), row.run, row.on.get(dataset, {})):
            params |= layer.get("set", {})
            values |= {name: value for name, value in layer.items() if name != "set"}
        return make_config({**values, "params": params})

    def has_print(self, protocol: str) -> bool:
        """Whether a protocol has printed figures to compare with."""
        return protocol == self.published and any(row.printed for row in self.rows)

    def metrics_under(self, protocol: str) -> Sequence[str]:
        return self.metrics if protocol == self.published or not self.measured else self.measured


def papers() -> list[str]:
    """The papers whose tables are defined."""
    folder = resources.files("fedrec_studies.reproduce") / "tables"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def names(paper: str) -> Names:
    """Return the paper's names of data and metrics, and the data that cannot be had."""
    return Names(**_read(paper).get(PAPER, {}))


def tables(paper: str) -> dict[str, Table]:
    """The tables of one paper by name."""
    called, cells = names(paper), read_print(paper)
    found = {name: _table(name, dict(values)) for name, values in _read(paper).items() if name != PAPER}
    return {name: _with_print(table, called, cells) for name, table in found.items()}


@cache
def _read(paper: str) -> dict[str, Any]:
    if paper not in papers():
        raise unknown("paper", paper, papers())
    return tomllib.loads(
        (resources.files("fedrec_studies.reproduce") / "tables" / f"{paper}.toml").read_text(encoding="utf-8")
    )


def _with_print(table: Table, called: Names, cells: Sequence[PrintedCell]) -> Table:
    """The table with the printed figures of its rows, and what the paper's words for them mean."""
    metrics, datasets = {**called.metrics, **table.metric_names}, {**called.datasets, **table.dataset_names}
    rows = [_row_with_print(table, row, datasets, metrics, cells) for row in table.rows]
    labels = {row.label.partition(",")[0] for row in rows}
    words = [meaning for word, meaning in called.words.items() if word in labels]
    return dataclasses.replace(table, rows=rows, notes=[*table.notes, *words])


def _row_with_print(
    table: Table, row: Row, datasets: Mapping[str, str], metrics: Mapping[str, str], cells: Sequence[PrintedCell]
) -> Row:
    if not row.print:
        return row
    found: dict[tuple[str, str], list[PrintedCell]] = {}
    for cell in select_cells(cells, {**table.print, **row.print}):
        place = datasets.get(cell.dataset, ""), metrics.get(cell.metric, "")
        if place[0] not in table.datasets or place[1] not in table.metrics:
            continue
        same = found.setdefault(place, [])
        if any(other.table == cell.table for other in same):
            raise FedrecError(f"row '{row.label}' of {table.name} has two printed figures for {' '.join(place)}")
        same.append(cell)
    printed = {data: [_number(found.get((data, metric), ())) for metric in table.metrics] for data, _ in found}
    return dataclasses.replace(row, cells=found, printed=printed)


def _number(cells: Sequence[PrintedCell]) -> float | None:
    return cells[0].number() if cells else None


def select_tables(target: str) -> tuple[str, list[Table]]:
    """Return the paper and the tables that `fedca` or `fedca/table2` means."""
    paper, slash, name = target.partition("/")
    known = tables(paper)
    if slash and name not in known:
        raise unknown(f"table of {paper}", name, known)
    return paper, [known[name]] if slash else list(known.values())


def narrow_tables(
    found: Sequence[Table],
    datasets: Sequence[str],
    protocols: Sequence[str],
    rows: Sequence[str],
    seeds: Sequence[int],
    quick: bool,
) -> list[Table]:
    """Keep the part of the tables that was asked for; `quick` is one seed and a tenth of the rounds."""
    _require_known("dataset", datasets, [name for table in found for name in table.datasets])
    _require_known("row", rows, [row.label for table in found for row in table.rows])
    parts = [_part(table, datasets, protocols, rows, seeds, quick) for table in found]
    return [table for table in parts if table.rows and table.datasets]


def _part(
    table: Table,
    datasets: Sequence[str],
    protocols: Sequence[str],
    rows: Sequence[str],
    seeds: Sequence[int],
    quick: bool,
) -> Table:
    kept = [row for row in table.rows if not rows or row.label in rows]
    return dataclasses.replace(
        table,
        datasets=[name for name in table.datasets if not datasets or name in datasets],
        protocols=protocols or table.protocols,
        rows=[_short(row, table.run) for row in kept] if quick else kept,
        notes=[*table.notes, QUICK] if quick else table.notes,
        seeds=seeds or (table.seeds[:1] if quick else table.seeds),
    )


def _short(row: Row, common: Mapping[str, Any]) -> Row:
    rounds = row.run.get("rounds", common.get("rounds", 100))
    on = {data: {k: v for k, v in values.items() if k != "rounds"} for data, values in row.on.items()}
    return dataclasses.replace(row, run={**row.run, "rounds": max(1, rounds // 10)}, on=on)


def _require_known(kind: str, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise unknown(kind, name, known)


def _table(name: str, values: dict[str, Any]) -> Table:
    try:
        check(name, values, TABLE)
    except ValueError as error:
        raise FedrecError(f"the table cannot be read: {error}; fix its TOML file") from None
    rows = [_row(own) for row in values.pop("rows") for own in _each(dict(row))]
    table = Table(name=name, rows=rows, **values)
    labels = [row.label for row in rows]
    if len(set(labels)) != len(labels):
        raise FedrecError(f"table {name} has two rows of the same label")
    return table


def _each(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A row as it is, or one for every value of what `each` lists side by side; its label has `{name}` for a value."""
    if "each" not in values:
        yield values
        return
    each = values.pop("each")
    if len({len(several) for several in each.values()}) != 1:
        raise FedrecError(f"row '{values['label']}': the lists of `each` must be of one length")
    for turn in zip(*each.values(), strict=True):
        own = dict(zip(each, turn, strict=True))
        run = {name: value for name, value in own.items() if name in SETTINGS}
        params = {name: value for name, value in own.items() if name not in SETTINGS and name != NAME}
        words = {"label": values["label"].format(**own)}
        if "print" in values:
            words["print"] = {key: value.format(**own) for key, value in values["print"].items()}
        yield {**values, **run, **words, "set": values.get("set", {}) | params}


def _row(values: dict[str, Any]) -> Row:
    known = {f.name for f in dataclasses.fields(Row)} - {"run", "printed", "cells"}
    parts = {key: values.pop(key) for key in list(values) if key in known}
    return Row(run=values, **parts)
