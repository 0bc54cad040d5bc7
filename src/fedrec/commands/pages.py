"""`fedrec compare` and `fedrec report`: finished runs as tables and pages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedrec.errors import FedrecError, visible

if TYPE_CHECKING:
    from fedrec.experiment.finished_run import FinishedRun

References = Annotated[
    bool | None,
    typer.Option(
        "--references/--no-references",
        help="Train popularity and local if missing, or leave them out; default: those that need no training.",
    ),
]


def compare_command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of run folders.")],
    metrics: Annotated[str | None, typer.Option(help="Comma-separated, e.g. recall@10,ndcg@10.")] = None,
    format_: Annotated[str | None, typer.Option("--format", help="markdown, csv, latex or json.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the table (format by ending: .md .csv .tex .json).")] = None,
    references: References = None,
    significance: Annotated[bool | None, typer.Option(help="Show every significance test, or none.")] = None,
    groups: Annotated[
        str | None, typer.Option(help="Break one metric down by activity, taste, popularity or silo.")
    ] = None,
    on: Annotated[
        str | None, typer.Option(help="test or valid; default: valid for settings of one method, else test.")
    ] = None,
) -> None:
    """Compare runs: mean and standard deviation over seeds, next to popularity, local and chance."""
    from fedrec.commands import console
    from fedrec.data.atomic import atomic_file
    from fedrec.experiment.finished_run import find_runs
    from fedrec.experiment.folder import require_harmless
    from fedrec.report import significance as testing
    from fedrec.report.comparison import choose_metrics, compare, part_shown
    from fedrec.report.groups import group_comparison
    from fedrec.report.tables import format_of, render, tables_with_titles

    require_harmless(out)
    kind = format_of(out, format_)
    found = find_runs(runs)
    # Refuses runs that cannot be compared, before any work is done.
    compare(found)
    # Users' figures are those of test.
    part = part_shown(found, on or ("test" if significance or groups else None))
    comparison = compare([*found, *_find_references(found, references)], part)
    chosen = choose_metrics(comparison, metrics)
    asked = chosen if metrics else []
    tests = None if significance is False else testing.significance(comparison, bool(significance), asked)
    by_default = testing.metric_to_test(comparison) or chosen[0]
    parts = group_comparison(comparison, groups, chosen[0] if metrics else by_default) if groups else None
    if out is None and format_ is None:
        for title, (header, *lines) in tables_with_titles(comparison, chosen, tests, parts, bool(significance)):
            console.table(header, lines, title=title)
        return
    text = render(comparison, chosen, kind, tests, parts, bool(significance))
    if out is None:
        # Control characters in names could change the terminal; in a file they do no harm.
        print(visible(text), end="")
        return
    with atomic_file(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    console.out.print(f"{out} written")


def report_command(
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders, or folders of run folders.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Default: report.html in the run folder; comparison.html in the first of several."),
    ] = None,
    references: References = None,
    users: Annotated[bool, typer.Option(help="Show a few users with their items.")] = True,
    figure: Annotated[
        str | None, typer.Option(help="One figure instead, as .html, .svg, .pdf or .png; `list` lists them.")
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Setting of the figure, key=value.")] = None,
    width: Annotated[float | None, typer.Option(help="Width of a figure for a paper, in millimetres.")] = None,
) -> None:
    """One self-contained HTML page about a run, its seeds, or several runs side by side; or a single figure."""
    from fedrec.commands import console
    from fedrec.data.file_formats import PAGE, ending_of
    from fedrec.experiment.finished_run import find_runs
    from fedrec.experiment.folder import require_harmless
    from fedrec.experiment.params import parse_settings
    from fedrec.report.comparison import compare
    from fedrec.report.figures import FIGURES, figure_class
    from fedrec.report.figures.write import ENDINGS, write_figure
    from fedrec.report.pages.report import write_report

    if figure == "list":
        print("\n".join(f"{name:<12} {kind.summary} (--set {kind.settings()})" for name, kind in FIGURES.items()))
        return
    require_harmless(out)
    kind = figure_class(figure) if figure else None
    if out is not None:
        ending_of(out, ENDINGS if kind else PAGE)
    if not runs:
        raise FedrecError("give the folder of a run, e.g. fedrec report runs/fedmf-ml-100k")
    if kind is not None:
        place = out or runs[0] / f"{kind.name}.html"
        path = write_figure(kind, parse_settings(set_ or []), find_runs(runs), place, width)
        console.out.print(f"{path} written")
        return
    if set_ or width:
        raise FedrecError("--set and --width apply to figures: add --figure NAME (--figure list shows them)")
    found = find_runs(runs)
    # The first run keeps its own report.
    name = "report.html" if len(runs) == 1 else "comparison.html"
    compare(found)  # refuses to mix before any work is done
    path = write_report([*found, *_find_references(found, references)], out or runs[0] / name, users)
    console.out.print(f"{path} written")


def _find_references(runs: list[FinishedRun], train: bool | None) -> list[FinishedRun]:
    """Return the references beside the runs; where one would have to be trained first, say how."""
    from fedrec.commands import console
    from fedrec.commands.progress import listener_of
    from fedrec.experiment.references import absent_references, find_references

    beside = find_references(runs, train, listener_of)
    if train is None and (absent := absent_references([*runs, *beside])):
        console.err.print(
            f"note: without {' and '.join(absent)}; add --references to train what is missing", style="dim"
        )
    return beside
