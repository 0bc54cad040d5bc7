"""A figure as a page, or as one picture for a paper."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from fedrec.data.atomic import atomic_file
from fedrec.data.file_formats import ending_of
from fedrec.errors import visible
from fedrec.experiment.command_line import command_line
from fedrec.experiment.finished_run import FinishedRun
from fedrec.html import page_environment, style_sheet, write_page
from fedrec.report.charts.frame import WIDTH
from fedrec.report.comparison import count_diverged
from fedrec.report.figures.figure import Drawing, Figure, Panel
from fedrec.report.figures.printed import require_sheet, write_sheet

GAP, MARGIN, LINE = 28.0, 16.0, 17.0
SHEETS = (".svg", ".pdf", ".png")
ENDINGS = (".html", *SHEETS)


def write_figure(
    kind: type[Figure], settings: Mapping[str, str], runs: Sequence[FinishedRun], path: Path, width: float | None = None
) -> Path:
    """Draw and write; what the settings or the file's ending get wrong is said before any work is done.

    `width`: of a sheet for a paper, in millimetres.
    """
    ending = ending_of(path, ENDINGS)
    require_sheet(ending, width)
    # Built before drawing: a wrong setting is said at once instead of after minutes of work.
    drawing = kind.build(settings).draw(runs)
    leaks = list(dict.fromkeys(leak for run in runs for leak in run.summary["leaks"]))
    if ending in SHEETS:
        # XML, unlike HTML, forbids control characters.
        svg = visible(as_svg(drawing, _warnings(leaks, runs)))
        with atomic_file(path) as temporary:
            write_sheet(temporary, svg, ending, width)
        return path
    words: list[object] = ["report", *(run.folder for run in runs), "--figure", kind.name]
    words += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return write_page(
        path,
        "figure.html",
        "fedrec.report.figures",
        name=kind.name,
        title=drawing.title,
        drawing=drawing,
        leaks=leaks,
        facts=[*_facts(runs), *drawing.facts],
        command=command_line(*words),
    )


def _facts(runs: Sequence[FinishedRun]) -> list[tuple[str, str]]:
    """What all runs have in common, or all there is."""
    found = {
        "data": dict.fromkeys(run.data for run in runs),
        "protocol": dict.fromkeys(run.protocol for run in runs),
        "seeds": dict.fromkeys(str(seed) for seed in sorted({run.summary["seed"] for run in runs})),
        "diverged": dict.fromkeys(_describe_divergence(runs)),
    }
    facts = [(key, "; ".join(values) if key == "protocol" else ", ".join(values)) for key, values in found.items()]
    return [(key, value) for key, value in facts if value]


def _describe_divergence(runs: Sequence[FinishedRun]) -> list[str]:
    lost = count_diverged([run.summary for run in runs])
    return [f"{lost} of {len(runs)} runs; shown with a round chosen before that"] if lost else []


def _warnings(leaks: Sequence[str], runs: Sequence[FinishedRun]) -> list[str]:
    honest = [f"Not an honest measurement: {'; '.join(leaks)}"] if leaks else []
    return [*honest, *(f"Diverged: {words}" for words in _describe_divergence(runs))]


def as_svg(drawing: Drawing, warnings: Sequence[str]) -> str:
    """All panels on one white sheet, two in a row, in plain colours that every program understands."""
    columns = 1 if len(drawing.panels) == 1 else 3 if len(drawing.panels) == 3 else 2
    width = columns * (WIDTH + GAP) - GAP + 2 * MARGIN
    # The title is left to the paper's own caption.
    head = [line for text in warnings for line in textwrap.wrap(text, int(width / 7.2))]
    body, top = [_lines(head, MARGIN, MARGIN + 12, "name")], MARGIN + (LINE * len(head) + 10 if head else 0)
    for start in range(0, len(drawing.panels), columns):
        row = drawing.panels[start : start + columns]
        captions = [_caption(panel, drawing) for panel in row]
        under = top + LINE * max(map(len, captions)) + 4
        for column, (panel, caption) in enumerate(zip(row, captions, strict=True)):
            left = MARGIN + column * (WIDTH + GAP)
            body += [_lines(caption, left, top + 10, ""), _group(panel, left, under)]
        top = under + max(_height(panel) for panel in row) + GAP
    name = escape(drawing.title)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {top:.0f}" width="{width:.0f}" '
        f'height="{top:.0f}" role="img" aria-label="{name}" font-family="Helvetica, Arial, sans-serif">'
        f'<title>{name}</title><style>{_style()}</style><rect width="100%" height="100%" fill="#ffffff"/>'
        f"{''.join(body)}</svg>\n"
    )


def _caption(panel: Panel, drawing: Drawing) -> list[str]:
    """Nothing where it repeats the title, which a paper has in its caption."""
    return [] if panel.caption == drawing.title else textwrap.wrap(panel.caption, int(WIDTH / 6.4))


def _lines(lines: Sequence[str], left: float, top: float, kind: str) -> str:
    words = "".join(
        f'<text class="{kind}" x="{left:.0f}" y="{top + LINE * k:.0f}">{escape(line)}</text>'
        for k, line in enumerate(lines)
    )
    return f'<g class="chart">{words}</g>'


def _group(panel: Panel, left: float, top: float) -> str:
    """The panel without a frame of its own: nested pictures are drawn differently by different programs."""
    # The outer tags go: programs for papers draw nested pictures in different places, or not at all.
    inner = re.sub(r"^<svg [^>]*>|</svg>$", "", panel.svg)
    return f'<g class="chart" transform="translate({left:.0f} {top:.0f})">{inner}</g>'


def _height(panel: Panel) -> float:
    found = re.match(r'<svg [^>]*viewBox="0 0 [0-9]+ ([0-9]+)"', panel.svg)
    assert found is not None, "a chart says how high it is"
    return float(found[1])


def _style() -> str:
    """The style of charts with the colours of light paper written out."""
    colours = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]+);", style_sheet().split("}")[0]))
    style = page_environment().get_template("chart.css").render()
    # Colours are written out, because programs outside the browser do not know variables of a style sheet.
    style = re.sub(r"var\(--([a-z0-9-]+)\)", lambda name: colours[name[1]], style)
    return re.sub(r"\.chart \{[^}]*\}\n", "", style)
