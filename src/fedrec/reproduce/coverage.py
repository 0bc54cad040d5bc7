"""How much of what a paper prints was measured here, how far apart the two are, and why the rest is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedrec.reproduce.cells import Cell, cells
from fedrec.reproduce.definition import Row, Table, names, tables
from fedrec.reproduce.estimate import Estimate, estimated
from fedrec.reproduce.figures import figure_name
from fedrec.reproduce.measured import MeasuredRun, still_asked_for
from fedrec.reproduce.printed import Names, PrintedCell, printed_cells

State = Literal["measured", "unavailable", "not run", "elsewhere"]
STATES: dict[State, str] = {
    "measured": "measured", "unavailable": "data not available", "not run": "not run yet",
    "elsewhere": "another kind of figure",
}  # fmt: skip
NEAR, SHARE = 0.01, 0.1
"""Within tolerance is a figure at most this far from print, or this share of it, whichever is more."""


@dataclass(frozen=True)
class Found:
    """One row's figure beside the printed one."""

    table: str
    row: str
    value: float
    seeds: int
    printed: float
    earlier: str = ""
    """The version of fedrec that a mean without its runs is of."""

    @property
    def difference(self) -> float:
        return self.value - self.printed

    @property
    def within(self) -> bool:
        return abs(self.difference) <= max(NEAR, SHARE * abs(self.printed)) + 1e-12


@dataclass(frozen=True)
class Reached:
    """What became of a printed cell. `found` has a figure of every row that stands for it, in the order of tables."""

    cell: PrintedCell
    state: State
    found: Sequence[Found] = ()
    why: str = ""
    time: Estimate | None = None


@dataclass(frozen=True)
class Claim:
    """A row that stands for a printed cell."""

    table: Table
    row: Row
    dataset: str
    metric: str


def coverage(paper: str, runs: Sequence[MeasuredRun], device: str = "cpu",
             timed: Sequence[MeasuredRun] = ()) -> list[Reached]:  # fmt: skip
    """Every printed cell of a paper, in print's order. `runs` of settings that changed since do not count, but say how
    long others take; so do those of other papers, `timed`."""
    known, called = tables(paper), names(paper)
    planned = planned_cells(known.values(), device)
    counted = still_asked_for(runs, planned)
    by_row: dict[tuple[str, str, str], list[MeasuredRun]] = {}
    for run in counted:
        if run.protocol == known[run.table].published:
            by_row.setdefault((run.table, run.row, run.dataset), []).append(run)
    first = {(table, cell.row, cell.dataset): cell for table, cell in reversed(planned)
             if cell.protocol == known[table].published}  # fmt: skip
    claims = _claims(known.values())
    made = [
        _reached(cell, claims.get(cell, ()), called, by_row, first, [*runs, *timed]) for cell in printed_cells(paper)
    ]
    return _with_gains(made, called)


def planned_cells(known: Iterable[Table], device: str) -> list[tuple[str, Cell]]:
    return [(table.name, cell) for table in known for cell in cells(table, Path(), device, "8G")]


def counts(reached: Iterable[Reached]) -> Counter[State]:
    return Counter(one.state for one in reached)


def _claims(known: Iterable[Table]) -> dict[PrintedCell, list[Claim]]:
    found: dict[PrintedCell, list[Claim]] = {}
    for table in known:
        for row in table.rows:
            for (dataset, metric), same in row.cells.items():
                for cell in same if dataset in (row.datasets or [dataset]) else ():
                    found.setdefault(cell, []).append(Claim(table, row, dataset, metric))
    return found


def _reached(cell: PrintedCell, claims: Sequence[Claim], called: Names,
             by_row: Mapping[tuple[str, str, str], Sequence[MeasuredRun]],
             first: Mapping[tuple[str, str, str], Cell], runs: Sequence[MeasuredRun]) -> Reached:  # fmt: skip
    found = [one for claim in claims if (one := _found(cell, claim, by_row)) is not None]
    if found:
        return Reached(cell, "measured", found)
    if cell.dataset in called.unavailable:
        return Reached(cell, "unavailable", why=called.unavailable[cell.dataset])
    if cell.table in called.elsewhere:
        return Reached(cell, "elsewhere", why=called.elsewhere[cell.table])
    asked = [first[key] for claim in claims if (key := (claim.table.name, claim.row.label, claim.dataset)) in first]
    why = f"fedrec reproduce: {claims[0].table.name}, {claims[0].row.label}" if claims else "no table has it"
    return Reached(cell, "not run", why=why, time=estimated(asked[0], runs) if asked else None)


def _found(cell: PrintedCell, claim: Claim, by_row: Mapping[tuple[str, str, str], Sequence[MeasuredRun]]
           ) -> Found | None:  # fmt: skip
    name = figure_name(claim.metric, claim.row.group)
    mine = by_row.get((claim.table.name, claim.row.label, claim.dataset), ())
    known = [run for run in mine if name in run.figures]
    if not known:
        return None
    seeds = sum(run.seeds for run in known)
    value = sum(run.seeds * run.figures[name] for run in known) / seeds
    earlier = ", ".join(sorted({run.fedrec for run in known if not run.seconds}))
    return Found(claim.table.name, claim.row.label, value, seeds, cell.number(), earlier)


def _with_gains(made: Sequence[Reached], called: Names) -> list[Reached]:
    """A printed gain follows from other cells of its table: the paper's own method against the best of the others."""
    return [_gain(one, made, called) if one.cell.metric in called.gains and one.state == "not run" else one
            for one in made]  # fmt: skip


def _gain(one: Reached, made: Sequence[Reached], called: Names) -> Reached:
    place = one.cell.table, one.cell.dataset, one.cell.metric.replace(" gain", "")
    beside = [other for other in made if (other.cell.table, other.cell.dataset, other.cell.metric) == place]
    missing = [other for other in beside if other.state != "measured"]
    if missing or not beside:
        slowest = max((other.time for other in missing if other.time), key=lambda time: time.seconds, default=None)
        return Reached(one.cell, "not run", why="follows from rows that were not run", time=slowest)
    own = [other.found[0].value for other in beside if other.cell.method == one.cell.method]
    best = max(other.found[0].value for other in beside if other.cell.method != one.cell.method)
    value = (own[0] - best) / best
    source = beside[-1].found[0]
    return Reached(one.cell, "measured", [Found(source.table, "gain over the best other", value, source.seeds,
                                                one.cell.number())])  # fmt: skip
