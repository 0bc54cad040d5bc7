"""Coverage as a page and a picture: counts by table, what is missing and why, measured against print."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from fedrec.data import atomic_file
from fedrec.report import Drawing, Panel, Points, as_svg, markdown_lines, scatter
from fedrec_studies.reproduce.causes import AuthorsFigure, Findings
from fedrec_studies.reproduce.coverage import BUDGET, DEVIATIONS, SEEDS, SHARE, CellCoverage, Comparison, State
from fedrec_studies.reproduce.printed import PERCENT
from fedrec_studies.reproduce.verdicts import VERDICTS, Judgement, agreement, count_verdicts, judge

RULE = f"{SHARE:.0%} of print, or {DEVIATIONS:g} standard deviations over at least {SEEDS} seeds where that is more"


def write_coverage(
    title: str, reached: Sequence[CellCoverage], known: Findings, folder: Path, notes: Sequence[str] = ()
) -> list[Path]:
    """`coverage.md`, and `coverage.svg` where anything was measured."""
    folder.mkdir(parents=True, exist_ok=True)
    page, picture = folder / "coverage.md", folder / "coverage.svg"
    written = [(page, "\n".join(lines(title, reached, known, notes)) + "\n")]
    if any(fractions(reached)):
        written.append((picture, draw_scatter(title, reached)))
    for path, text in written:
        with atomic_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return [path for path, _ in written]


def lines(title: str, reached: Sequence[CellCoverage], known: Findings, notes: Sequence[str] = ()) -> Iterable[str]:
    judged = judge(reached, known)
    header, *rows = turn(by_table(judged), "verdict")
    yield from (f"# {title}", "")
    if known.sceptic:
        yield from (known.sceptic.strip(), "")
    yield from (wrap(summary_line(judged)), "")
    for note in notes:
        yield from (wrap(note), "")
    yield from ("## Verdicts", "", *markdown_lines(["verdict", "cells", "what it means"], _verdicts(judged)), "")
    if any(fractions(reached)):
        yield from ("![Printed against measured](coverage.svg)", "")
    yield from ("## By table", "", *markdown_lines(header, rows), "")
    yield from _causes(judged, known)
    yield from _missing(reached)
    words = (
        "All rows that correspond to a printed cell are listed, in the order of their tables. Any of them may serve: a "
        "cell agrees by the row in whose line the verdict stands. The number is that of the cause."
    )
    yield from ("## Cell by cell", "", wrap(words), "")
    yield from markdown_lines(
        ["table", "row", "data", "metric", "printed", "measured", "difference", "verdict", "by row", "seeds"],
        [_cell(one, found) for one in judged for found in one.coverage.found],
    )
    if known.settle:
        yield from ("", "## What would settle the rest", "", known.settle.strip())


def wrap(text: str) -> str:
    """Break a paragraph into lines as long as a manual page's may be."""
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


COLUMNS = ["printed", "not counted", *VERDICTS]


def summary_line(judged: Sequence[Judgement]) -> str:
    near, possible = agreement(judged)
    apart = sum(one.uncounted is not None for one in judged)
    share = f" ({near / possible:.0%})" if possible else ""
    aside = f" {apart} of them are derived from others or repeated, and not counted." if apart else ""
    open_cells = count_verdicts(judged)["not explained yet"]
    return (
        f"{len(judged)} printed cells.{aside} {near} agree ({RULE}), of {possible} whose data is here and whose print "
        f"is not the leak's{share}; {open_cells} are apart and not explained yet."
    )


def _verdicts(judged: Sequence[Judgement]) -> list[list[str]]:
    found = count_verdicts(judged)
    return [[word, str(found[word]), meaning] for word, meaning in VERDICTS.items() if found[word]]


def by_table(judged: Sequence[Judgement]) -> list[list[str]]:
    """One line for each printed table, and one for all."""
    groups: dict[str, list[Judgement]] = {}
    for one in judged:
        groups.setdefault(one.coverage.cell.table, []).append(one)
    return [count_row(name, some) for name, some in groups.items()] + [count_row("all", judged)]


def turn(counted: Sequence[Sequence[str]], corner: str) -> list[list[str]]:
    """A line for each verdict and a column for each part, the header first; verdicts that nothing has are left out."""
    heads, *figures = zip(*counted, strict=True)
    lines_of = [[word, *some] for word, some in zip(COLUMNS, figures, strict=True) if {*some} != {"0"}]
    return [[corner, *heads], *lines_of]


def _causes(judged: Sequence[Judgement], known: Findings) -> Iterable[str]:
    """Why cells do not agree, by the number that stands in their lines, and the figures of the authors' programs."""
    cells = Counter(one.number for one in judged if one.cause and one.uncounted is None)
    if rows := [
        [str(number), cause.verdict, str(cells[number]), cause.cells.describe(), cause.reason]
        for number, cause in enumerate(known.causes, 1)
    ]:
        header = ["", "verdict", "cells", "of", "why"]
        yield from ("## Causes", "", *markdown_lines(header, rows), "")
    if ran := [(one.coverage, figure) for one in judged if (figure := known.authors_figure(one.coverage.cell))]:
        yield from ("## The authors' own program", "")
        header = ["table", "row", "data", "metric", "printed", "their program", "measured here", "from"]
        yield from markdown_lines(header, [_authors_row(*one) for one in ran])
        yield ""


def _authors_row(one: CellCoverage, figure: AuthorsFigure) -> list[str]:
    cell = one.cell
    here = f"{one.best.value:.4f}" if one.found else "-"
    place = [cell.table, cell.row(), cell.dataset, cell.metric]
    return [*place, f"{cell.number():.4f}", f"{figure.value:.4f}", here, figure.source]


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


def count_row(name: str, some: Sequence[Judgement]) -> list[str]:
    found, apart = count_verdicts(some), sum(one.uncounted is not None for one in some)
    return [name, str(len(some)), str(apart), *(str(found[verdict]) for verdict in VERDICTS)]


def _cell(judgement: Judgement, found: Comparison) -> list[str]:
    cell = judgement.coverage.cell
    word = _verdict_words(judgement) if found is judgement.coverage.best else ""
    seeds = str(found.seeds) + (f" (fedrec {found.earlier})" if found.earlier else "")
    seeds += f", {found.diverged} diverged later" if found.diverged else ""
    spread = f" ± {found.deviation:.4f}" if found.deviation is not None else ""
    return [
        cell.table,
        cell.row(),
        cell.dataset,
        cell.metric.removesuffix(PERCENT),
        f"{found.printed:.4f}",
        f"{found.value:.4f}{spread}",
        f"{found.difference:+.4f}",
        word,
        f"{found.table}: {found.row}",
        seeds,
    ]


def _verdict_words(judgement: Judgement) -> str:
    number = f" ({judgement.number})" if judgement.cause else ""
    return judgement.verdict + number + (f", {judgement.uncounted}" if judgement.uncounted else "")


# -- the picture --


def fractions(reached: Iterable[CellCoverage]) -> tuple[list[Comparison], list[Comparison]]:
    """Figures between 0 and 1 that can share axes: those that agree, and the others."""
    best = [one.best for one in reached if one.found]
    found = [one for one in best if 0 <= one.printed <= 1 and 0 <= one.value <= 1]
    return [one for one in found if one.agrees], [one for one in found if not one.agrees]


def draw_scatter(title: str, reached: Sequence[CellCoverage]) -> str:
    """A point for each printed fraction that was measured, by the row that may serve."""
    near, far = fractions(reached)
    outside = sum(bool(one.found) for one in reached) - len(near) - len(far)
    sets = [
        Points(_points(some), label=f"{word}: {len(some)}", style=style, size=3.0)
        for some, word, style in ((far, "apart", "s1"), (near, "agrees", "s0"))
        if some
    ]
    equal = np.linspace(0, 1, 200)
    sets.append(Points(np.stack([equal, equal], 1), colour="#999999", size=1.0))
    words = f"{title.partition(':')[0]}: printed and measured figures; a figure agrees within {RULE}"
    words += f"; {outside} figures that are no fractions are not shown" if outside else ""
    svg = scatter(sets, title=words, x_label="printed", y_label="measured", span=(np.zeros(2), np.ones(2)))
    return as_svg(Drawing(title, "", (Panel(svg, words),)), ())


def _points(found: Sequence[Comparison]) -> np.ndarray:
    return np.array([[one.printed, one.value] for one in found])
