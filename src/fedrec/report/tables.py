"""A comparison as Markdown, CSV, LaTeX or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence

from fedrec.errors import unknown
from fedrec.report.comparison import Comparison, Row


def cells(comparison: Comparison, metrics: Sequence[str]) -> list[list[str]]:
    """Header, one line per configuration, chance last."""
    header = ["method", "seeds", *metrics]
    lines = [[row.label, str(row.seeds), *(_value(row, name) for name in metrics)] for row in comparison.rows]
    chance = [f"{comparison.chance[name]:.4f}" if name in comparison.chance else "-" for name in metrics]
    return [header, *lines, ["chance", "-", *chance]]


def _value(row: Row, metric: str) -> str:
    middle, spread = row.mean(metric), row.std(metric)
    if middle is None:
        return "-"
    return f"{middle:.4f}" if spread is None else f"{middle:.4f} ± {spread:.4f}"


def caption(comparison: Comparison) -> str:
    text = f"{comparison.data}, protocol {comparison.protocol}, test, mean ± std over seeds"
    return text + "".join(f"; not honest: {leak}" for leak in comparison.leaks)


def markdown(comparison: Comparison, metrics: Sequence[str]) -> str:
    header, *rows = cells(comparison, metrics)
    lines = ["| " + " | ".join(line) + " |" for line in (header, ["---"] * len(header), *rows)]
    return f"{caption(comparison)}\n\n" + "\n".join(lines) + "\n"


def latex(comparison: Comparison, metrics: Sequence[str]) -> str:
    header, *rows = cells(comparison, metrics)

    def line(parts: Sequence[str]) -> str:
        escaped = (part.replace("_", r"\_").replace("%", r"\%").replace("±", r"$\pm$") for part in parts)
        return " & ".join(escaped) + r" \\"

    body = "\n".join(line(row) for row in rows)
    columns = "lr" + "r" * len(metrics)
    return (
        f"% {caption(comparison)}\n\\begin{{tabular}}{{{columns}}}\n\\hline\n{line(header)}\n\\hline\n"
        f"{body}\n\\hline\n\\end{{tabular}}\n"
    )


def as_csv(comparison: Comparison, metrics: Sequence[str]) -> str:
    """Plain numbers: mean and std in columns of their own, data and protocol on every line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["data", "protocol", "method", "seeds", *(f"{m}{s}" for m in metrics for s in ("", "_std"))])
    for row in comparison.rows:
        values = [value for name in metrics for value in (row.mean(name), row.std(name))]
        writer.writerow([comparison.data, comparison.protocol, row.label, row.seeds, *values])
    chance = [value for name in metrics for value in (comparison.chance.get(name), None)]
    writer.writerow([comparison.data, comparison.protocol, "chance", "", *chance])
    return text.getvalue()


def as_json(comparison: Comparison, metrics: Sequence[str]) -> str:
    rows = [
        {
            "method": row.label,
            "seeds": row.seeds,
            "folders": [str(run.folder) for run in row.runs],
            **{name: {"mean": row.mean(name), "std": row.std(name), "values": row.values(name)} for name in metrics},
        }
        for row in comparison.rows
    ]
    about = {"data": comparison.data, "protocol": comparison.protocol, "leaks": list(comparison.leaks)}
    return json.dumps({**about, "rows": rows, "chance": comparison.chance}, indent=2) + "\n"


FORMATS: dict[str, Callable[[Comparison, Sequence[str]], str]] = {
    "markdown": markdown,
    "csv": as_csv,
    "latex": latex,
    "json": as_json,
}


def render(comparison: Comparison, metrics: Sequence[str], kind: str) -> str:
    names = {"md": "markdown", "tex": "latex"}
    chosen = names.get(kind, kind)
    if chosen not in FORMATS:
        raise unknown("format", kind, FORMATS)
    return FORMATS[chosen](comparison, metrics)
