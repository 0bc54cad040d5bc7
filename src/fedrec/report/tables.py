"""A comparison as Markdown, CSV, LaTeX or JSON, with its tests and by groups."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from fedrec.data.file_formats import ending_of
from fedrec.data.spreadsheet import write_rows
from fedrec.errors import FedrecError, unknown
from fedrec.evaluation.significance import LEVEL
from fedrec.report.comparison import Comparison, Row, count_diverged, count_in_words
from fedrec.report.groups import Grouped
from fedrec.report.markdown import markdown_lines
from fedrec.report.significance import Pair, Significance

MARK = "†"
"""On rows that are not significantly different from the best."""


def cells(comparison: Comparison, metrics: Sequence[str], tests: Significance | None = None) -> list[list[str]]:
    """Header, one line per configuration, chance last."""
    header = ["method", "seeds", *metrics]
    marked = tests.like_the_best() if tests else frozenset()
    lines = [
        [
            f"{row.label} {MARK}" if row.label in marked else row.label,
            count_in_words(row.summaries),
            *(_value(row, m) for m in metrics),
        ]
        for row in comparison.rows
    ]
    chance = [f"{comparison.chance[name]:.4f}" if name in comparison.chance else "-" for name in metrics]
    return [header, *lines, *([["chance", "-", *chance]] if comparison.chance else [])]


def _value(row: Row, metric: str) -> str:
    middle = row.mean(metric)
    return "-" if middle is None else spread_text(middle, row.std(metric))


def spread_text(middle: float, deviation: float | None) -> str:
    return f"{middle:.4f}" if deviation is None else f"{middle:.4f} ± {deviation:.4f}"


def value_text(values: Sequence[float]) -> str:
    """Values over seeds."""
    return spread_text(mean(values), stdev(values) if len(values) > 1 else None) if values else "–"


def caption(comparison: Comparison, tests: Significance | None = None) -> str:
    part = "test" if comparison.part == "test" else "validation (test: --on test)"
    text = f"{comparison.data}, protocol {comparison.protocol}, {part}, mean ± std over seeds"
    text += f"; tested on {comparison.tested}" if comparison.tested else ""
    text += "".join(f"; not honest: {leak}" for leak in comparison.leaks)
    return text if tests is None else f"{text}. {verdict(tests)}"


def verdict(tests: Significance) -> str:
    """What the tests allow to be said about the best row."""
    how = f"on {tests.metric} (paired bootstrap over {tests.users:,} users, Holm-corrected p >= {1 - LEVEL:.2f})"
    if tests.like_the_best():
        return f"{MARK} not significantly different from the best, {tests.best}, {how}"
    return f"Every other row is significantly different from the best, {tests.best}, {how.replace('>=', '<')}"


def pair_cells(tests: Significance) -> list[list[str]]:
    """One line per pair: difference, interval, and what each test says."""
    header = ["method", "against", "difference", f"{LEVEL:.0%} interval", "p", "p Holm", "p t", "p Wilcoxon"]
    return [header, *(_pair(pair) for pair in tests.pairs)]


def _pair(pair: Pair) -> list[str]:
    d = pair.difference
    numbers = (_p(value) for value in (d.p, pair.p_holm, pair.p_seeds, pair.p_wilcoxon))
    return [pair.row, pair.against, f"{d.mean:+.4f}", f"{d.low:+.4f}..{d.high:+.4f}", *numbers]


def _p(value: float | None) -> str:
    # Small values are bounded and not written as 0.0000, which would claim a certainty that no bootstrap gives.
    return "-" if value is None else f"{value:.4f}" if value >= 1e-4 else "<0.0001"


def group_cells(found: Grouped) -> list[list[str]]:
    """Header with the size of each group, one line per configuration."""
    header = ["method", "seeds", *(f"{name} ({size:,})" for name, size in zip(found.names, found.users, strict=True))]
    return [
        header,
        *([label, str(seeds), *(spread_text(*value) for value in values)] for label, seeds, values in found.rows),
    ]


def group_caption(comparison: Comparison, found: Grouped) -> str:
    return f"{found.metric} by {found.kind}; {found.meaning} (number of users). {caption(comparison)}"


def pair_caption(tests: Significance) -> str:
    return (
        f"Differences in {tests.metric}: paired bootstrap over {tests.users:,} users, each averaged over seeds; Holm "
        f"for {len(tests.pairs)} in all; also a paired t test over seeds, and Wilcoxon's over users"
    )


# -- formats --


def as_markdown(title: str, table: Sequence[Sequence[str]]) -> str:
    header, *rows = table
    return f"{title}\n\n" + "\n".join(markdown_lines(header, rows)) + "\n"


SIGNS = {
    "\\": r"\textbackslash{}",
    "_": r"\_",
    "%": r"\%",
    "&": r"\&",
    "#": r"\#",
    "$": r"\$",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": "--",
    "<": "$<$",
    ">": "$>$",
    "≥": r"$\ge$",
    MARK: r"$^\dagger$",
}


def latex_text(text: str) -> str:
    # Two signs become one before escaping, because single signs are what the table below knows.
    return "".join(SIGNS.get(sign, sign) for sign in text.replace(">=", "≥"))


def as_latex(title: str, table: Sequence[Sequence[str]], bold: frozenset[tuple[int, int]] = frozenset()) -> str:
    """A table with the rules of booktabs, its title as a note below; `bold`: rows and columns, from 0."""
    header, *rows = table

    def line(row: int, parts: Sequence[str]) -> str:
        words = [latex_text(part) for part in parts]
        cells = [rf"\textbf{{{word}}}" if (row, place) in bold else word for place, word in enumerate(words)]
        return " & ".join(cells) + r" \\"

    body = [line(place, row) for place, row in enumerate(rows)]
    # Numbers stand to the right, so that their decimal points lie below each other.
    columns = "l" + "r" * (len(header) - 1)
    lines = [
        # Said in the output itself, since without this package the rules are an error that names no reason.
        "% needs \\usepackage{booktabs}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        line(-1, header),
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        "",
        r"\smallskip",
        rf"{{\footnotesize {latex_text(title)}.}}",
    ]
    return "\n".join(lines) + "\n"


def winners(comparison: Comparison, metrics: Sequence[str], tests: Significance | None) -> frozenset[tuple[int, int]]:
    """The cell to set in bold: that of the row which is significantly best, in the metric that was tested."""
    # Bold claims a winner, so nothing is bold where the test does not tell the best from the others.
    if tests is None or tests.metric not in metrics or tests.like_the_best():
        return frozenset()
    row = [row.label for row in comparison.rows].index(tests.best)
    return frozenset({(row, 2 + list(metrics).index(tests.metric))})


def as_csv(comparison: Comparison, metrics: Sequence[str]) -> str:
    """Plain numbers: mean and std in columns of their own, data and protocol on every line."""
    # Plain numbers in columns of their own: a program cannot calculate with text such as 0.1 ± 0.02.
    lines: list[list[Any]] = [
        ["data", "protocol", "part", "method", "seeds", *(f"{m}{s}" for m in metrics for s in ("", "_std"))]
    ]
    for row in comparison.rows:
        values = [value for name in metrics for value in (row.mean(name), row.std(name))]
        lines.append([comparison.data, comparison.protocol, comparison.part, row.label, row.seeds, *values])
    chance = [value for name in metrics for value in (comparison.chance.get(name), None)]
    last = [comparison.data, comparison.protocol, comparison.part, "chance", "", *chance]
    return _csv([*lines, *([last] if comparison.chance else [])])


def _csv(lines: Sequence[Sequence[Any]]) -> str:
    text = io.StringIO()
    # Line ends of Unix in any case, so that the same comparison is the same bytes on every system.
    write_rows(text, lines, end="\n")
    return text.getvalue()


def as_json(
    comparison: Comparison, metrics: Sequence[str], tests: Significance | None = None, groups: Grouped | None = None
) -> str:
    rows = [
        {
            "method": row.label,
            "seeds": row.seeds,
            "diverged": count_diverged(row.summaries),
            "folders": [str(run.folder) for run in row.runs],
            **{name: {"mean": row.mean(name), "std": row.std(name), "values": row.values(name)} for name in metrics},
        }
        for row in comparison.rows
    ]
    about = {
        "data": comparison.data,
        "protocol": comparison.protocol,
        "part": comparison.part,
        "leaks": list(comparison.leaks),
        "tested": comparison.tested and comparison.tested.to_dict(),
    }
    found: dict[str, Any] = {**about, "rows": rows, "chance": comparison.chance}
    if tests is not None:
        found["significance"] = tests.to_dict()
    if groups is not None:
        found["groups"] = asdict(groups)
    return json.dumps(found, indent=2) + "\n"


Titled = tuple[str, list[list[str]]]


def tables_with_titles(
    comparison: Comparison, metrics: Sequence[str], tests: Significance | None, groups: Grouped | None, details: bool
) -> list[Titled]:
    """What a person is shown: the comparison or its groups, then the tests one by one if they were asked for."""
    if groups is not None:
        found = [(group_caption(comparison, groups), group_cells(groups))]
    else:
        found = [(caption(comparison, tests), cells(comparison, metrics, tests))]
    return [*found, (pair_caption(tests), pair_cells(tests))] if details and tests is not None else found


ENDINGS = {".md": "markdown", ".csv": "csv", ".tex": "latex", ".json": "json"}


def format_of(out: Path | None, named: str | None) -> str:
    """The format that was named, or that the ending of `out` says; an error where the two disagree."""
    if named is None:
        return "markdown" if out is None else ENDINGS[ending_of(out, ENDINGS)]
    # Short names are accepted because they are the endings of the files that people know.
    kind = {"md": "markdown", "tex": "latex"}.get(named, named)
    if kind not in ENDINGS.values():
        raise unknown("format", named, ENDINGS.values())
    said = None if out is None else ENDINGS.get(out.suffix.lower())
    # An ending that contradicts --format is more likely a slip than a wish, and the file would be misleading.
    if said not in (None, kind):
        raise FedrecError(f"--out {out} is the name of a {said} file, but --format says {kind}; give one of the two")
    return kind


def render(
    comparison: Comparison,
    metrics: Sequence[str],
    kind: str,
    tests: Significance | None = None,
    groups: Grouped | None = None,
    details: bool = False,
) -> str:
    chosen = format_of(None, kind)
    if chosen == "json":
        return as_json(comparison, metrics, tests, groups)
    if chosen == "csv":
        return as_csv(comparison, metrics) if groups is None else _csv(group_cells(groups))
    tables = tables_with_titles(comparison, metrics, tests, groups, details)
    if chosen == "markdown":
        return "\n".join(as_markdown(*table) for table in tables)
    # Groups and metrics lie in other columns, so a cell found for the comparison would mark the wrong one.
    bold = winners(comparison, metrics, tests) if groups is None else frozenset()
    return "\n".join(as_latex(*table, bold if place == 0 else frozenset()) for place, table in enumerate(tables))
