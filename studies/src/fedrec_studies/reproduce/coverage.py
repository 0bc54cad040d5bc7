"""How much of what a paper prints was measured here, how far apart the two are, and why the rest is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import stdev
from typing import Literal

from fedrec_studies.reproduce.cells import Cell, plan_cells
from fedrec_studies.reproduce.estimate import Clock, Estimate
from fedrec_studies.reproduce.measured import MeasuredRun, read_stage_seconds, still_asked_for
from fedrec_studies.reproduce.printed import Names, PrintedCell, read_print
from fedrec_studies.reproduce.run_figures import figure_name
from fedrec_studies.reproduce.table_definition import Row, Table, names, tables

State = Literal["measured", "unavailable", "too long", "not run", "elsewhere"]
STATES: dict[State, str] = {
    "measured": "measured",
    "unavailable": "data not available",
    "too long": "too long",
    "not run": "not run yet",
    "elsewhere": "another kind of figure",
}
BUDGET = 3600.0
"""Seconds that a table may take on a device, one seed of each row: on two cores, or on a GPU that others are timed on.
A row that does not fit any more, in the table's order, takes too long."""
Place = tuple[str, str, str]  # table, row, dataset
STAGE = "stage="  # prefix of a printed setting that names a stage of a round
SHARE, DEVIATIONS, SEEDS = 0.1, 2.0, 3
"""A figure agrees that is at most this share of print away, or so many standard deviations over at least so many seeds,
whichever is more. There is no absolute floor, which small figures would pass at any distance."""


@dataclass(frozen=True)
class Comparison:
    """One row's figure beside the printed one."""

    table: str
    row: str
    value: float
    seeds: int
    printed: float
    earlier: str = ""
    """The version of fedrec that a mean without its runs is of."""
    diverged: int = 0
    """How many of its runs diverged after the chosen round."""
    deviation: float | None = None
    """Over seeds, where there are enough runs of one seed each."""

    @property
    def difference(self) -> float:
        return self.value - self.printed

    @property
    def agrees(self) -> bool:
        spread = DEVIATIONS * self.deviation if self.deviation is not None else 0.0
        return abs(self.difference) <= max(SHARE * abs(self.printed), spread) + 1e-12


@dataclass(frozen=True)
class CellCoverage:
    """What became of a printed cell. `found` has a figure of every row that stands for it, in the order of tables."""

    cell: PrintedCell
    state: State
    found: Sequence[Comparison] = ()
    why: str = ""
    time: Estimate | None = None
    beside: float | None = None
    """Of another kind of figure: ours, which tolerance means nothing to."""

    @property
    def best(self) -> Comparison:
        """The first row that agrees with print, as any that corresponds may serve; the first of all where none does."""
        return next((one for one in self.found if one.agrees), self.found[0])


@dataclass(frozen=True)
class Claim:
    """A row that stands for a printed cell."""

    table: Table
    row: Row
    dataset: str
    metric: str


def coverage(
    paper: str, runs: Sequence[MeasuredRun], device: str = "cpu", timed: Sequence[MeasuredRun] = ()
) -> list[CellCoverage]:
    """Every printed cell of a paper, in print's order. `runs` of settings that changed since do not count, but say how
    long others take; so do those of other papers, `timed`."""
    known, called = tables(paper), names(paper)
    planned = plan_all_cells(known.values(), device)
    counted = still_asked_for(runs, planned)
    by_row: dict[Place, list[MeasuredRun]] = {}
    for run in counted:
        if run.protocol == known[run.table].published:
            by_row.setdefault((run.table, run.row, run.dataset), []).append(run)
    claims, plans = _claims(known.values()), _plans(known, planned, by_row, Clock([*runs, *timed]))
    made = [_find_state(cell, claims.get(cell, ()), called, by_row, plans) for cell in read_print(paper)]
    return _with_stages(_with_gains(made, called), called, read_stage_seconds(paper))


@dataclass(frozen=True)
class Plan:
    """How long the first seed of a row takes on a dataset, and why that is too long; empty where it is not."""

    time: Estimate | None
    too_long: str = ""


def _plans(
    known: Mapping[str, Table],
    planned: Iterable[tuple[str, Cell]],
    by_row: Mapping[Place, Sequence[MeasuredRun]],
    clock: Clock,
) -> dict[Place, Plan]:
    """Of every row on every dataset under the protocol of print."""
    declared = {
        (table.name, row.label): {**table.too_long, **row.too_long} for table in known.values() for row in table.rows
    }
    spent: dict[tuple[str, str], float] = {}  # by table and device
    found: dict[Place, Plan] = {}
    for table, cell in planned:
        place = table, cell.row, cell.dataset
        if place in found or cell.protocol != known[table].published:
            continue
        done = next((Estimate(run.seconds, run.device) for run in by_row.get(place, ()) if run.seconds), None)
        time, why = done or clock.estimate(cell), declared[table, cell.row].get(cell.dataset, "")
        if time is not None:
            used = spent.get((table, time.device), 0.0) + time.seconds
            why = why if done or used <= BUDGET else f"beyond the {BUDGET / 3600:g} h of {table}"
            spent |= {(table, time.device): used} if done or not why else {}
        found[place] = Plan(time, why)
    return found


def plan_all_cells(known: Iterable[Table], device: str) -> list[tuple[str, Cell]]:
    return [(table.name, cell) for table in known for cell in plan_cells(table, Path(), device, "8G")]


def counts(reached: Iterable[CellCoverage]) -> Counter[State]:
    return Counter(one.state for one in reached)


def _claims(known: Iterable[Table]) -> dict[PrintedCell, list[Claim]]:
    found: dict[PrintedCell, list[Claim]] = {}
    for table in known:
        for row in table.rows:
            for (dataset, metric), same in row.cells.items():
                for cell in same if dataset in (row.datasets or [dataset]) else ():
                    found.setdefault(cell, []).append(Claim(table, row, dataset, metric))
    return found


def _find_state(
    cell: PrintedCell,
    claims: Sequence[Claim],
    called: Names,
    by_row: Mapping[Place, Sequence[MeasuredRun]],
    plans: Mapping[Place, Plan],
) -> CellCoverage:
    found = [one for claim in claims if (one := _compare_row(cell, claim, by_row)) is not None]
    if found:
        return CellCoverage(cell, "measured", found)
    if cell.dataset in called.unavailable:
        return CellCoverage(cell, "unavailable", why=called.unavailable[cell.dataset])
    if cell.table in called.elsewhere:
        return CellCoverage(cell, "elsewhere", why=called.elsewhere[cell.table])
    if not claims:
        return CellCoverage(cell, "not run", why="no table has it")
    places = [(claim.table.name, claim.row.label, claim.dataset) for claim in claims]
    plan = next((plans[place] for place in places if not plans[place].too_long), plans[places[0]])
    if plan.too_long:
        return CellCoverage(cell, "too long", why=plan.too_long, time=plan.time)
    return CellCoverage(cell, "not run", why=f"fedrec reproduce: {places[0][0]}, {places[0][1]}", time=plan.time)


def _compare_row(cell: PrintedCell, claim: Claim, by_row: Mapping[Place, Sequence[MeasuredRun]]) -> Comparison | None:
    name = figure_name(claim.metric, claim.row.group)
    mine = by_row.get((claim.table.name, claim.row.label, claim.dataset), ())
    known = [run for run in mine if name in run.figures]
    if not known:
        return None
    seeds = sum(run.seeds for run in known)
    value = sum(run.seeds * run.figures[name] for run in known) / seeds
    earlier = ", ".join(sorted({run.fedrec for run in known if not run.seconds}))
    diverged = sum(bool(run.diverged) for run in known)
    each = [run.figures[name] for run in known if run.seeds == 1]
    deviation = stdev(each) if len(each) >= SEEDS else None
    return Comparison(claim.table.name, claim.row.label, value, seeds, cell.number(), earlier, diverged, deviation)


def _with_stages(
    made: Sequence[CellCoverage], called: Names, known: Mapping[tuple[str, str], float]
) -> list[CellCoverage]:
    """Seconds of stages stand beside printed ones, of another machine."""
    places = [(called.datasets.get(one.cell.dataset, ""), one.cell.setting.removeprefix(STAGE)) for one in made]
    return [
        replace(one, beside=known.get(place)) if one.state == "elsewhere" else one
        for one, place in zip(made, places, strict=True)
    ]


def _with_gains(made: Sequence[CellCoverage], called: Names) -> list[CellCoverage]:
    """A printed gain follows from other cells of its table: the paper's own method against the best of the others."""
    return [
        _gain(one, made, called) if one.cell.metric in called.gains and one.state == "not run" else one for one in made
    ]


def _gain(one: CellCoverage, made: Sequence[CellCoverage], called: Names) -> CellCoverage:
    place = one.cell.table, one.cell.dataset, one.cell.metric.replace(" gain", "")
    beside = [other for other in made if (other.cell.table, other.cell.dataset, other.cell.metric) == place]
    missing = [other for other in beside if other.state != "measured"]
    if missing or not beside:
        slowest = max((other.time for other in missing if other.time), key=lambda time: time.seconds, default=None)
        if any(other.state == "not run" for other in missing) or not missing:
            return CellCoverage(one.cell, "not run", why="follows from rows that were not run", time=slowest)
        return CellCoverage(one.cell, "too long", why="follows from rows that take too long", time=slowest)
    own = [other.found[0].value for other in beside if other.cell.method == one.cell.method]
    best = max(other.found[0].value for other in beside if other.cell.method != one.cell.method)
    value = (own[0] - best) / best
    source = beside[-1].found[0]
    return CellCoverage(
        one.cell,
        "measured",
        [Comparison(source.table, "gain over the best other", value, source.seeds, one.cell.number())],
    )
