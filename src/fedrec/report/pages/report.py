"""The report page: one self-contained HTML file about one configuration or several side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrec.data import Filtered
from fedrec.errors import FedrecError
from fedrec.experiment.finished_run import FinishedRun
from fedrec.experiment.opening import Chosen
from fedrec.experiment.tested import Tested
from fedrec.html import write_page
from fedrec.report.comparison import Comparison, Row, compare, selection
from fedrec.report.groups import group_comparison
from fedrec.report.pages import PAGES, report_charts
from fedrec.report.pages.cost import cost_table
from fedrec.report.pages.headline import headline, join_words
from fedrec.report.pages.samples import sample_users
from fedrec.report.pages.views import View, command, cutoff, settings, views
from fedrec.report.records import FIRST, per_user
from fedrec.report.significance import Significance, metric_to_test, significance
from fedrec.report.tables import MARK, pair_caption, pair_cells, spread_text, value_text, verdict


def write_report(runs: Sequence[FinishedRun], path: Path, users: bool = True, chosen: Chosen | None = None) -> Path:
    """Write a report on runs that may share a table, references among them.

    `users` includes a few users with their items. `chosen`: the run in memory, so that nothing is read again.
    """
    return write_page(path, "report.html", PAGES, **_content(compare(runs), users, chosen))


def _content(comparison: Comparison, users: bool, chosen: Chosen | None = None) -> dict[str, Any]:
    shown = views(comparison)
    asked = [view for view in shown if not view.reference]
    first = asked[0].row.runs[0]
    table = per_user(first)
    # hr@k equals recall@k where one item is held out; twice the same row would only lengthen the table.
    names = [name for name in comparison.rows[0].runs[0].summary["test"] if not name.startswith("hr@")]
    k = cutoff(names)
    single = "above" in table
    best = max(asked, key=lambda view: view.row.mean(f"recall@{k}") or 0.0)
    metric, on = selection(comparison.protocol, k)
    tests, not_tested = _tests(comparison, shown)
    samples, no_samples = sample_users(best.row.runs[0], chosen) if users else ([], "")
    return {
        "title": f"{_names(asked)} on {first.summary['dataset']['name']}",
        "facts": _facts(comparison, asked, first),
        "lead": headline(shown, comparison.chance, k, single, _describe_users(first, table), tests),
        "leaks": comparison.leaks,
        "key_figures": [
            (f"{name}@{k}", report_charts.key_figure(shown, comparison.chance, f"{name}@{k}"))
            for name in ("recall", "ndcg")
            if f"{name}@{k}" in names
        ],
        "curves": report_charts.curves(shown, metric, on),
        "per_round_note": _round_note(asked, on, metric),
        "users_charts": report_charts.user_charts(shown, comparison.chance, k),
        "tables": _tables(comparison, shown, names, tests),
        "significance": None if tests is None else _significance(tests, marked=len(asked) > 1),
        "not_tested": not_tested,
        "groups": _groups(comparison, shown) if len(asked) > 1 else [],
        "price": cost_table(shown),
        "samples": samples,
        "no_samples": no_samples,
        "sample_method": best.name,
        "configurations": [_configuration(view) for view in asked],
        # A set: the same remark of five seeds is read once.
        "notes": sorted({note for view in asked for run in view.row.runs for note in run.summary["notes"]}),
        "versions": _versions(asked),
        "seeds": max(view.row.seeds for view in asked),
        "several": len(asked) > 1,
    }


def _describe_users(run: FinishedRun, table: Mapping[str, list[str]]) -> str:
    """The users whose items were ranked, in words."""
    if (tested := Tested.from_summary(run.summary)) is not None:
        return tested.among
    return f"{len(table['user']) if 'user' in table else run.summary['dataset']['users']:,} users"


def _names(asked: Sequence[View]) -> str:
    names = list(dict.fromkeys(view.row.method for view in asked))
    if len(names) <= 3:
        return join_words(names)
    return f"{names[0]}, {names[1]} and {len(names) - 2} more"


def _tests(comparison: Comparison, shown: Sequence[View]) -> tuple[Significance | None, str]:
    """The tests of `fedrec compare`, with the names of this page, or why there are none."""
    try:
        found = significance(comparison)
    except FedrecError as error:
        # The end of the sentence tells `fedrec compare` what to do, which helps nobody on a page.
        return None, str(error).rpartition("; ")[0]
    if found is None:
        return None, "the runs have no ndcg@k" if len(shown) > 1 else ""
    return found.rename({view.row.label: view.name for view in shown}), ""


def _significance(tests: Significance, marked: bool) -> dict[str, Any]:
    """`marked`: a table above has the marks that the verdict explains."""
    header, *rows = pair_cells(tests)
    return {
        "verdict": f"{verdict(tests)}." if marked else "",
        "caption": pair_caption(tests),
        "heads": header,
        "rows": rows,
    }


def _groups(comparison: Comparison, shown: Sequence[View]) -> list[dict[str, Any]]:
    """Each grouping of `fedrec compare --groups` that the data allows, one column per configuration."""
    metric = metric_to_test(comparison)
    made = []
    for kind in ("activity", "popularity", "silo") if metric else ():
        try:
            found = group_comparison(comparison, kind, str(metric))
        # The data is gone, or has no such groups.
        except (FedrecError, OSError):
            continue
        columns = {label: [spread_text(*value) for value in values] for label, _, values in found.rows}
        table = {
            "first": "group",
            "caption": f"{metric} on test by {kind} ({found.meaning})",
            "heads": [view.name for view in shown],
            "rows": [
                (f"{name} ({users:,} users)", [columns[view.row.label][place] for view in shown])
                for place, (name, users) in enumerate(zip(found.names, found.users, strict=True))
            ],
        }
        # Nothing is bold by groups: no test was made within them.
        made.append(table | {"best": [None] * len(table["rows"])})
    return made


def _hardware(asked: Sequence[View]) -> list[tuple[str, str]]:
    """When and on what the runs were computed, where they say it."""
    summaries = [run.summary for view in asked for run in view.row.runs]
    days = sorted({str(summary["finished"]) for summary in summaries if "finished" in summary})
    # Runs of earlier versions do not say on what they were computed.
    machines = sorted({str(summary["hardware"]) for summary in summaries if "hardware" in summary})
    date = [("date", days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}")] if days else []
    return [*date, *([("hardware", "; ".join(machines))] if machines else [])]


def _facts(comparison: Comparison, asked: Sequence[View], first: FinishedRun) -> list[tuple[str, str]]:
    data = first.summary["dataset"]
    size = f"{data['users']:,} users, {data['items']:,} items, {data['interactions']:,} interactions"
    seeds = sorted({run.summary["seed"] for view in asked for run in view.row.runs})
    left_out = [("left out", str(Filtered.from_dict(record))) for record in first.summary.get("filtered", [])]
    tested = [("tested on", str(comparison.tested))] if comparison.tested else []
    facts = [
        ("data", comparison.data),
        ("size", size),
        *tested,
        *left_out,
        ("protocol", comparison.protocol),
        ("clients", _clients(asked)),
        # Each seed once, since configurations usually share theirs.
        ("seeds" if len(seeds) > 1 else "seed", ", ".join(map(str, seeds))),
        *_hardware(asked),
    ]
    return facts if len(asked) > 1 else [("method", asked[0].row.label), *facts]


def _clients(asked: Sequence[View]) -> str:
    counts = [view.row.runs[0].summary["clients"] for view in asked]
    if len(set(counts)) == 1:
        return f"{counts[0]:,}"
    return ", ".join(f"{view.name} {count:,}" for view, count in zip(asked, counts, strict=True))


def _round_note(asked: Sequence[View], on: str, metric: str) -> str:
    parts = []
    for view in asked:
        chosen = [run.summary["best_round"] + FIRST for run in view.row.runs]
        ran = [run.summary["rounds_run"] for run in view.row.runs]
        # A method of one round has nothing to choose between.
        if max(ran) > 1:
            parts.append(f"{view.name}: round {_join_with_and(chosen)} of {_join_with_and(ran)}")
    return f"Chosen by {metric} on {on}: {'; '.join(parts)}." if parts else ""


def _join_with_and(values: Sequence[int]) -> str:
    return ", ".join(str(value) for value in (values if len(set(values)) > 1 else values[:1]))


def _tables(
    comparison: Comparison, shown: Sequence[View], names: Sequence[str], tests: Significance | None
) -> list[dict[str, Any]]:
    """Test beside validation for one configuration; a table each for several."""
    asked = [view for view in shown if not view.reference]
    chance = [f"{comparison.chance[name]:.4f}" if name in comparison.chance else "–" for name in names]
    if len(asked) == 1:
        heads = ["test", "validation", *(f"{view.name}, test" for view in shown if view.reference), "chance"]
        columns = [
            _column(asked[0].row, "test", names),
            _column(asked[0].row, "valid", names),
            *(_column(view.row, "test", names) for view in shown if view.reference),
            chance,
        ]
        return [_table("All metrics", heads, columns, names)]
    alike = frozenset() if tests is None else tests.like_the_best()
    heads = [f"{view.name} {MARK}" if view.name in alike else view.name for view in shown]
    made = _table("Test", [*heads, "chance"], [*(_column(view.row, "test", names) for view in shown), chance], names)
    tables = [made | {"best": [_best(shown, name, tests) for name in names]}]
    columns = [_column(view.row, "valid", names) for view in shown]
    # A column of dashes alone says nothing: such runs had no validation part.
    if any(cell != "–" for column in columns for cell in column):
        tables.append(_table("Validation", [view.name for view in shown], columns, names))
    return tables


def _table(caption: str, heads: list[str], columns: list[list[str]], names: Sequence[str]) -> dict[str, Any]:
    rows = [(name, [column[i] for column in columns]) for i, name in enumerate(names)]
    return {"caption": caption, "first": "metric", "heads": heads, "rows": rows, "best": [None] * len(names)}


def _column(row: Row, part: str, names: Sequence[str]) -> list[str]:
    return [value_text(row.values(name, part)) for name in names]


def _best(shown: Sequence[View], name: str, tests: Significance | None) -> int | None:
    """The column to set in bold: the one that is significantly best, in the metric that was tested."""
    if tests is None or name != tests.metric or tests.like_the_best():
        return None
    return [view.name for view in shown].index(tests.best)


def _configuration(view: View) -> dict[str, Any]:
    return {
        "name": view.name if view.name == view.row.label else f"{view.name} ({view.row.label})",
        "settings": settings(view.row),
        "command": command(view.row),
        "folders": ", ".join(map(_folder, view.row.runs)),
    }


def _folder(run: FinishedRun) -> str:
    """Its name, with that of the folder around several seeds."""
    # Folders of seeds are all called seed0, seed1 and so on; only the name around them tells runs apart.
    return "/".join(run.folder.parts[-2:] if run.folder.name.startswith("seed") else run.folder.parts[-1:])


def _versions(asked: Sequence[View]) -> str:
    found = {
        f"{key} {value}" for view in asked for run in view.row.runs for key, value in run.summary["versions"].items()
    }
    return ", ".join(sorted(found))
