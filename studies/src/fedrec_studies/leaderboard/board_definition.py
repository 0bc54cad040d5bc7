"""What the leaderboard compares: rows, data, seeds and trials, read from `board.toml`; and what trials have found."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from fedrec.errors import FedrecError, unknown
from fedrec.experiment import (
    RunConfig,
    Space,
    Study,
    Trial,
    best_of,
    describe_space,
    dimension,
    folder_name,
    is_searchable,
    make_config,
    method_of,
    reads_order,
    space_of,
)
from fedrec.federation import Method
from fedrec.schema import Shape, damage_error, read_json
from fedrec_studies.reproduce import table_definition
from fedrec_studies.reproduce.cells import Cell, plan_cells, work_of

TRIALS = "trials"  # the folder of all studies
KEPT: Shape = {"trials": [{}], "searched": {}, "config": {}}  # of a study that is kept with the results
NOT_SEARCHED = "settings not searched"


@dataclass(frozen=True)
class Row:
    """One line: a method with its settings. `tuned`: it has the trials of the board, within `space` where given."""

    label: str
    run: Mapping[str, Any]
    tuned: bool = False
    space: Mapping[str, str] = field(default_factory=dict)
    start: Mapping[str, Any] = field(default_factory=dict)
    """Of the first trial, where it is not what the method has by itself."""
    printed: Mapping[str, str] = field(default_factory=dict)
    """By paper, what its table calls the method."""
    on: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings that differ by dataset."""
    datasets: Sequence[str] = ()
    """Empty: all of the board."""
    like: str = ""
    """Another row, whose trials have found what this one has."""
    chosen_from: int = 0
    """From how many settings its own were chosen, where trials of its own or of `like` did not find them."""
    trials_differ: str = ""
    """How some of its trials differ from the others."""
    set_aside: str = ""
    """Why it is not ranked although it has had its trials."""

    @property
    def source(self) -> str:
        """The row whose trials count."""
        return self.like or self.label


@dataclass(frozen=True)
class Board:
    protocol: str
    metrics: Sequence[str]
    tuned_on: str
    trials: int
    minutes: float
    """That a cell may take; longer ones stay empty."""
    datasets: Sequence[str]
    rows: Sequence[Row]
    new_items: Mapping[str, Any]
    print: Mapping[str, Mapping[str, str]]
    studies: Sequence[Row]
    """All rows with trials of their own, whichever rows are asked for."""
    seeds: Mapping[str, Sequence[int]] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)

    def every_dataset(self) -> list[str]:
        return [*self.datasets, self.new_items["dataset"]]

    def seeds_of(self, dataset: str) -> Sequence[int]:
        return self.seeds.get(dataset, [0])

    def metrics_on(self, dataset: str) -> Sequence[str]:
        found: Sequence[str] = self.new_items["metrics"] if dataset == self.new_items["dataset"] else self.metrics
        return found

    def table(self, dataset: str, found: Mapping[str, Trial]) -> table_definition.Table:
        """The rows on one dataset as a table that can be run; `found`: the best trial of rows that were tuned."""
        if dataset == self.new_items["dataset"]:
            table = _table_named(self.new_items["table"])
            return dataclasses.replace(
                table, name=dataset, protocols=[self.new_items["protocol"]], seeds=self.seeds_of(dataset)
            )
        here = [row for row in self.rows if dataset in (row.datasets or [dataset])]
        tried = [(row, _with_settings(row.run, found.get(row.source))) for row in here]
        rows = [table_definition.Row(row.label, run, on=row.on) for row, run in tried]
        return table_definition.Table(
            name=dataset,
            title=dataset,
            metrics=self.metrics,
            protocols=[self.protocol],
            datasets=[dataset],
            rows=rows,
            seeds=self.seeds_of(dataset),
        )

    def reason_to_skip(self, cell: Cell) -> str:
        """Why a row is not run on this data; empty where it is."""
        return self.skipped.get(cell.dataset, "") if reads_order(method_of(cell.config)) else ""

    def waiting(self, found: Mapping[str, Trial]) -> set[str]:
        """Rows that have not had all their trials."""
        return {row.label for row in self.rows if (row.tuned or row.like) and row.source not in found}

    def chosen_elsewhere(self) -> list[str]:
        """Rows whose settings are not what trials of the board found."""
        return [row.label for row in self.rows if row.chosen_from]

    def row(self, label: str) -> Row | None:
        """None for rows of another table."""
        return next((row for row in self.rows if row.label == label), None)

    def reason_not_to_rank(self, label: str, method: Method, trials: int) -> str:
        """Why a row has no rank; empty where it has one. Settings that nobody searched say little about a method."""
        row = self.row(label)
        aside: str = self.new_items.get("set_aside", "") if row is None else (self.row(row.source) or row).set_aside
        return aside or (NOT_SEARCHED if not trials and is_searchable(method) else "")

    def study(self, row: Row, folder: Path, device: str) -> Study:
        """The trials of a row."""
        config = self.config(row, device)
        return Study(folder / TRIALS / folder_name(row.label), config, self.space(row, config))

    def config(self, row: Row, device: str = "cpu") -> RunConfig:
        one = dataclasses.replace(self, rows=[row]).table(self.tuned_on, {})
        return dataclasses.replace(one.config(one.rows[0], self.tuned_on, self.protocol, 0), device=device)

    def space(self, row: Row, config: RunConfig) -> Space:
        method = method_of(config)
        if not row.space:
            return space_of(method, (), config.params)
        return {name: dimension(method, name, text) for name, text in row.space.items()}


def board() -> Board:
    """The leaderboard as it is defined."""
    text = (resources.files("fedrec_studies.leaderboard") / "board.toml").read_text(encoding="utf-8")
    values = tomllib.loads(text)
    rows = [_row(dict(row)) for row in values["rows"]]
    return Board(**values | {"rows": rows, "studies": [row for row in rows if row.tuned]})


def narrow_board(whole: Board, datasets: Sequence[str], rows: Sequence[str], seeds: Sequence[int] = ()) -> Board:
    """Keep the part that was asked for; a dataset with none of the seeds has nothing to run."""
    labels = [row.label for row in whole.rows]
    for kind, given, known in (("dataset", datasets, whole.every_dataset()), ("row", rows, labels)):
        for name in given:
            if name not in known:
                raise unknown(f"{kind} of the leaderboard", name, known)
    kept = [row for row in whole.rows if not rows or row.label in rows]
    here = [d for d in whole.datasets if not datasets or d in datasets]
    return dataclasses.replace(whole, datasets=here, rows=kept, seeds=_fewer(whole, seeds) if seeds else whole.seeds)


def _fewer(whole: Board, seeds: Sequence[int]) -> dict[str, list[int]]:
    """Of every dataset, those of its seeds that were asked for."""
    known = {dataset: whole.seeds_of(dataset) for dataset in whole.every_dataset()}
    every = sorted({seed for some in known.values() for seed in some})
    for seed in seeds:
        if seed not in every:
            raise FedrecError(f"the leaderboard has no seed {seed}; known: {', '.join(map(str, every))}")
    return {dataset: [seed for seed in some if seed in seeds] for dataset, some in known.items()}


def cells_of(whole: Board, dataset: str, found: Mapping[str, Trial], folder: Path, device: str) -> list[Cell]:
    """Every run of a dataset, those left out by a rule of the board too."""
    return plan_cells(whole.table(dataset, found), folder, device, "8G")


def trials_found(whole: Board, runs: Path, results: Path) -> dict[str, list[Trial]]:
    """The trials of every tuned row: those of the studies here, or those that are kept with the results."""
    found: dict[str, list[Trial]] = {}
    for row in whole.studies:
        here, kept = whole.study(row, runs, "cpu").read_trials(), read_trials(results, row.label)
        found[row.label] = here if len(here) >= len(kept) else kept
    return found


def best_trials(whole: Board, found: Mapping[str, Sequence[Trial]]) -> dict[str, Trial]:
    """The best trial of every row that has had all of them."""
    best = {label: best_of(trials[: whole.trials]) for label, trials in found.items() if len(trials) >= whole.trials}
    return {label: trial for label, trial in best.items() if trial is not None}


def read_trials(results: Path, label: str) -> list[Trial]:
    """Read the trials of a row from the results."""
    return [Trial(**values) for values in read_study(results, label)["trials"]]


def read_study(results: Path, label: str) -> dict[str, Any]:
    """Read the study of a row from the results; one without trials where there is none."""
    path = study_file(results, label)
    if not path.is_file():
        return {"trials": [], "searched": {}, "config": {}}
    try:
        found = dict(read_json(path, "trials", KEPT))
        for values in found["trials"]:
            Trial(**values)
    except (ValueError, TypeError, OSError) as error:
        raise damage_error(path, error) from None
    return found


def study_file(results: Path, label: str) -> Path:
    """Name the file of a row's study in the results."""
    return results / TRIALS / f"{folder_name(label)}.json"


def beginning(study: Study, results: Path, label: str) -> list[Trial]:
    """The trials that are kept with the results, for a study that goes on with them; refused where they are of another:
    begun afresh, the row would have had more trials than it says."""
    stored = read_study(results, label)
    if not stored["trials"]:
        return []
    same = stored["searched"] == describe_space(study.space)
    if not same or work_of(make_config(stored["config"])) != work_of(study.config):
        what = "other settings" if same else "another space"
        raise FedrecError(
            f"{study_file(results, label)} has trials with {what} than {label} has in board.toml; undo the change "
            "there, or move the file away to begin again"
        )
    return read_trials(results, label)


def _with_settings(run: Mapping[str, Any], trial: Trial | None) -> dict[str, Any]:
    return dict(run) if trial is None else {**run, "set": {**run.get("set", {}), **trial.params}}


def _table_named(target: str) -> table_definition.Table:
    _, (table,) = table_definition.select_tables(target)
    return table


def _row(values: dict[str, Any]) -> Row:
    known = {f.name for f in dataclasses.fields(Row)} - {"run"}
    parts = {key: values.pop(key) for key in list(values) if key in known}
    if "label" not in parts:
        raise FedrecError("a row of the leaderboard has no label; fix board.toml")
    return Row(run=values, **parts)
