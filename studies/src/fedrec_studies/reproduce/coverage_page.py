"""Coverage as a page and a picture: counts by table, what is missing and why, measured against print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from fedrec.data import atomic_file
from fedrec.report import Drawing, Panel, Points, as_svg, markdown_lines, scatter
from fedrec_studies.reproduce.coverage import BUDGET, NEAR, SHARE, STATES, CellCoverage, Comparison, State, counts
from fedrec_studies.reproduce.printed import PERCENT

TOLERANCE = f"{NEAR:g}, or {SHARE:.0%} of the printed figure where that is more"


def write_coverage(title: str, reached: Sequence[CellCoverage], folder: Path, notes: Sequence[str] = ()) -> list[Path]:
    """`coverage.md`, and `coverage.svg` where anything was measured."""
    folder.mkdir(parents=True, exist_ok=True)
    page, picture = folder / "coverage.md", folder / "coverage.svg"
    written = [(page, "\n".join(lines(title, reached, notes)) + "\n")]
    if any(fractions(reached)):
        written.append((picture, draw_scatter(title, reached)))
    for path, text in written:
        with atomic_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [path for path, _ in written]


def lines(title: str, reached: Sequence[CellCoverage], notes: Sequence[str] = ()) -> Iterable[str]:
    yield from (f"# {title}", "", summary_line(reached), "")
    for note in notes:
        yield from (note, "")
    if any(fractions(reached)):
        yield from ("![Printed against measured](coverage.svg)", "")
    yield from ("## By table", "", *markdown_lines(["table", *COLUMNS], by_table(reached)), "")
    yield from _missing(reached)
    yield from (
        "## Cell by cell",
        "",
        "All rows that correspond to a printed cell are listed, in the order of their tables.",
        "",
    )
    yield from markdown_lines(
        ["table", "row", "data", "metric", "printed", "measured", "difference", "", "by row", "seeds"], _cells(reached)
    )


COLUMNS = ["printed", *STATES.values(), "within tolerance", "beyond"]


def summary_line(reached: Sequence[CellCoverage]) -> str:
    found, first = counts(reached), [one.found[0] for one in reached if one.found]
    near, small = sum(one.within for one in first), sum(one.only_near for one in first)
    words = [f"{found[state]} {name}" for state, name in STATES.items() if found[state]]
    rest = f", {small} of them by the absolute {NEAR:g} alone" if small else ""
    return (
        f"{len(reached)} printed cells: {', '.join(words)}. Of those measured {near} are within tolerance "
        f"({TOLERANCE}) by the first corresponding row{rest}; {found['measured'] - near} are beyond."
    )


def by_table(reached: Sequence[CellCoverage]) -> list[list[str]]:
    """One line for each printed table, and one for all."""
    groups: dict[str, list[CellCoverage]] = {}
    for one in reached:
        groups.setdefault(one.cell.table, []).append(one)
    return [_count_row(name, some) for name, some in groups.items()] + [_count_row("all", reached)]


def missing_data(reached: Iterable[CellCoverage]) -> list[list[str]]:
    """Data that nobody here has: its name, the number of cells, where to get it."""
    found: dict[tuple[str, str], int] = {}
    for one in reached:
        if one.state == "unavailable":
            found[one.cell.dataset, one.why] = found.get((one.cell.dataset, one.why), 0) + 1
    return [[name, str(number), why] for (name, why), number in found.items()]


WAITING = ["table", "row", "data", "cells", "a seed takes about"]
TOO_LONG = "Too long"
NOT_RUN = "Not run yet, with estimated times"


def not_run(reached: Iterable[CellCoverage]) -> list[list[str]]:
    """Rows that were not run: the cells they correspond to, and how long a seed takes on which device."""
    return [[*place, str(len(some)), _time(some)] for place, some in _rows(reached, "not run")]


def too_long(reached: Iterable[CellCoverage]) -> list[list[str]]:
    """The same of rows that nobody will wait for, and why."""
    return [[*place, str(len(some)), _time(some), some[0].why] for place, some in _rows(reached, "too long")]


def _rows(reached: Iterable[CellCoverage], state: State) -> Iterable[tuple[tuple[str, str, str], list[CellCoverage]]]:
    found: dict[tuple[str, str, str], list[CellCoverage]] = {}
    for one in reached:
        if one.state == state:
            found.setdefault((one.cell.table, one.cell.row(), one.cell.dataset), []).append(one)
    return found.items()


def _time(some: Sequence[CellCoverage]) -> str:
    return next((one.time.describe() for one in some if one.time is not None), "unknown")


def _missing(reached: Sequence[CellCoverage]) -> Iterable[str]:
    if data := missing_data(reached):
        yield from (
            "## Data that is not available",
            "",
            *markdown_lines(["data", "cells", "why, and where to get it"], data),
            "",
        )
    if rows := too_long(reached):
        budget = (
            f"A table may take {BUDGET / 3600:g} h on two cores (cpu), and as long on a GPU (cuda), one seed of "
            "each row in its order. These rows do not fit, or say why they are left out."
        )
        reasons = Counter(one.why for one in reached if one.state == "too long")
        counted = [f"- {number} cells: {why}" for why, number in reasons.most_common()]
        yield from (f"## {TOO_LONG}", "", budget, "", *counted, "", *markdown_lines([*WAITING, "why"], rows), "")
    if rows := not_run(reached):
        yield from (f"## {NOT_RUN}", "", *markdown_lines(WAITING, rows), "")
    if other := sorted({(one.cell.table, one.why) for one in reached if one.state == "elsewhere"}):
        yield from ("## Another kind of figure", "", *(f"- {table}: {why}" for table, why in other), "")
        if rows := [
            [one.cell.table, one.cell.row(), one.cell.dataset, one.cell.value, f"{one.beside:.2g}"]
            for one in reached
            if one.beside is not None
        ]:
            yield from (*markdown_lines(["table", "row", "data", "printed", "here"], rows), "")


def _count_row(name: str, some: Sequence[CellCoverage]) -> list[str]:
    found, near = counts(some), sum(one.found[0].within for one in some if one.found)
    return [name, str(len(some)), *(str(found[state]) for state in STATES), str(near), str(found["measured"] - near)]


def _cells(reached: Iterable[CellCoverage]) -> list[list[str]]:
    return [_cell(one, found) for one in reached for found in one.found]


def _cell(one: CellCoverage, found: Comparison) -> list[str]:
    cell = one.cell
    metric = cell.metric.removesuffix(PERCENT)
    word = "" if found.within else "beyond"
    seeds = str(found.seeds) + (f" (fedrec {found.earlier})" if found.earlier else "")
    seeds += f", {found.diverged} diverged later" if found.diverged else ""
    return [
        cell.table,
        cell.row(),
        cell.dataset,
        metric,
        f"{found.printed:.4f}",
        f"{found.value:.4f}",
        f"{found.difference:+.4f}",
        word,
        f"{found.table}: {found.row}",
        seeds,
    ]


# -- the picture --


def fractions(reached: Iterable[CellCoverage]) -> tuple[list[Comparison], list[Comparison]]:
    """Figures between 0 and 1 that can share axes: within tolerance, and beyond."""
    found = [one for cell in reached for one in cell.found[:1] if 0 <= one.printed <= 1 and 0 <= one.value <= 1]
    return [one for one in found if one.within], [one for one in found if not one.within]


def draw_scatter(title: str, reached: Sequence[CellCoverage]) -> str:
    """A point for each printed fraction that was measured, by the first corresponding row."""
    near, far = fractions(reached)
    outside = sum(bool(one.found) for one in reached) - len(near) - len(far)
    sets = [
        Points(_points(some), label=f"{word}: {len(some)}", style=style, size=3.0)
        for some, word, style in ((far, "beyond", "s1"), (near, "within tolerance", "s0"))
        if some
    ]
    equal = np.linspace(0, 1, 200)
    sets.append(Points(np.stack([equal, equal], 1), colour="#999999", size=1.0))
    words = f"{title.partition(':')[0]}: printed and measured figures; the tolerance is {TOLERANCE}"
    words += f"; {outside} figures that are no fractions are not shown" if outside else ""
    svg = scatter(sets, title=words, x_label="printed", y_label="measured", span=(np.zeros(2), np.ones(2)))
    return as_svg(Drawing(title, "", (Panel(svg, words),)), ())


def _points(found: Sequence[Comparison]) -> np.ndarray:
    return np.array([[one.printed, one.value] for one in found])
