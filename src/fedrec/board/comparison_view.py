"""Runs side by side, with the tables and tests of `fedrec compare`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedrec.board.folders import FolderIndex
from fedrec.errors import FedrecError
from fedrec.experiment.command_line import command_line
from fedrec.experiment.finished_run import FinishedRun, read_run
from fedrec.report.comparison import Comparison, choose_metrics, compare, part_shown, selection
from fedrec.report.pages import report_charts
from fedrec.report.pages.cost import cost_table
from fedrec.report.pages.views import cutoff, views
from fedrec.report.significance import Significance, significance
from fedrec.report.tables import tables_with_titles

MOST = 60  # runs of one comparison: a table that somebody reads


def view_comparison(index: FolderIndex, names: Sequence[str], on: str = "") -> dict[str, Any]:
    """Make the page of a comparison. What cannot share a table is refused with the words of the command."""
    wanted = list(dict.fromkeys(names))
    if not wanted:
        raise FedrecError("nothing is selected: mark runs in the list, then compare them")
    if len(wanted) > MOST:
        raise FedrecError(f"{len(wanted)} runs are too many for one table; mark at most {MOST}")
    runs = [read_finished(index, name) for name in wanted]
    comparison = compare(runs, part_shown(runs, on or None))
    tests, not_tested = _find_tests(comparison)
    metrics = choose_metrics(comparison, None)
    shown = views(comparison)
    k = cutoff(comparison.metrics())
    metric, chosen_on = selection(comparison.protocol, k)
    first = comparison.rows[0].runs[0].summary
    return {
        "title": f"{len(comparison.rows)} configurations on {first['dataset']['name']}",
        "leaks": comparison.leaks,
        "tables": tables_with_titles(comparison, metrics, tests, None, details=True),
        "not_tested": not_tested,
        "key_figures": [
            (name, report_charts.key_figure(shown, comparison.chance, name))
            for name in (f"recall@{k}", f"ndcg@{k}")
            if comparison.part == "test" and name in comparison.metrics()
        ],
        "curves": report_charts.curves(shown, metric, chosen_on),
        "cost": cost_table(shown),
        "part": comparison.part,
        "on_other_part": "valid" if comparison.part == "test" else "test",
        "can_switch": all(run.summary["valid"] for run in runs),
        "runs": wanted,
        "command_text": _command(index, wanted, on),
    }


def read_finished(index: FolderIndex, name: str) -> FinishedRun:
    """Read a run of the list that has ended."""
    index.look_at(name)
    return read_run(index.path(name))


def _command(index: FolderIndex, names: Sequence[str], on: str) -> str:
    """The command that prints the same table: the board trains no references."""
    flags = ["--on", on] if on else []
    return command_line("compare", *(index.root / name for name in names), "--no-references", *flags)


def _find_tests(comparison: Comparison) -> tuple[Significance | None, str]:
    try:
        return significance(comparison), ""
    except FedrecError as error:
        return None, str(error)
