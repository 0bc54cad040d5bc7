"""A dataset in numbers and pictures: who is active, which items carry the rows, how the degrees fall off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from fedrec.data import Interactions, datasets
from fedrec.html import write_page
from fedrec.report import charts
from fedrec.report.charts import Line
from fedrec.report.pages import PAGES

Array = np.ndarray[Any, np.dtype[Any]]
TIMES = {"real": "yes, comparable between users", "order": "only the order within each user", "none": "none"}


def facts(data: Interactions, origin: str) -> list[tuple[str, str]]:
    """Counts, sparsity, licence and where the files came from."""
    about = data.describe()
    degrees = f"{about.per_user_min:,} / {about.per_user_median:,g} / {about.per_user_max:,}"
    rows = [
        ("name", data.name),
        ("version", data.version),
        ("users", f"{about.users:,}"),
        ("items", f"{about.items:,}"),
        ("interactions", f"{about.interactions:,}"),
        ("sparsity", f"{100 * (1 - about.density):.4f} % of user-item pairs are empty"),
        ("per user", f"{degrees} (least / median / most)"),
        ("popularity", f"Gini {gini(item_counts(data)):.3f} over items"),
        ("times", TIMES[about.time]),
        ("ratings", ratings(data)),
        ("files", origin),
    ]
    known = next((entry for entry in datasets() if entry.name == data.name), None)
    if known is not None:
        rows += [("title", known.title), ("licence", known.licence), ("cite", known.citation), ("home", known.home)]
    else:
        rows.append(("licence", "not known to fedrec; please check yourself"))
    return [(name, value) for name, value in rows if value] + [("note", note) for note in data.notes]


def ratings(data: Interactions) -> str:
    if data.rating is None or not len(data.rating):
        return "none"
    return f"from {data.rating.min():g} to {data.rating.max():g}, mean {data.rating.mean():.2f}"


def item_counts(data: Interactions) -> Array:
    # With a minimal length, so that items without rows count: they are what makes popularity uneven.
    return np.bincount(data.item, minlength=data.n_items)


def gini(counts: Array) -> float:
    """0 where every item has equally many interactions, towards 1 where few items have them all."""
    values = np.sort(counts.astype(float))
    # Without any interaction the formula would divide by zero.
    if not values.sum():
        return 0.0
    n = len(values)
    # The closed form over sorted values; comparing all pairs of items would be quadratic.
    return float((2 * np.arange(1, n + 1) - n - 1) @ values / (n * values.sum()))


def write_data_page(data: Interactions, rows: list[tuple[str, str]], path: Path) -> Path:
    users, items = data.counts(), item_counts(data)
    pictures = [_activity(users), _lorenz(items), _degrees(users, items)]
    return write_page(
        path, "data.html", PAGES, title=f"{data.name}: the shape of the data", facts=rows, pictures=pictures
    )


def _activity(users: Array) -> dict[str, Any]:
    """Interactions of each user, from the most to the least active."""
    ordered = np.sort(users)[::-1]
    # 200 points are as fine as the chart can show, and keep the page small for millions of users.
    at = np.unique(np.round(np.linspace(0, len(ordered) - 1, 200)).astype(int)) if len(ordered) else np.zeros(0, int)
    # At least one user, so that tiny data has a busiest tenth too.
    busiest = max(1, len(ordered) // 10)
    share = 100 * ordered[:busiest].sum() / max(ordered.sum(), 1)
    svg = charts.line_chart(
        [Line("", 100 * (at + 1) / max(len(ordered), 1), ordered[at])],
        y_log=True,
        title=f"Interactions per user, most active first; the busiest tenth has {share:.0f} % of them",
        x_label="users, most active first, %",
        y_label="interactions",
    )
    return {"svg": Markup(svg), "name": "Activity", "caption": f"the busiest tenth of users has {share:.0f} %"}


def _lorenz(items: Array) -> dict[str, Any]:
    """Cumulated share of interactions over items from the least to the most popular."""
    ordered = np.sort(items)
    total = np.concatenate([[0], np.cumsum(ordered)]) / max(ordered.sum(), 1)
    at = np.unique(np.round(np.linspace(0, len(ordered), 200)).astype(int))
    value = gini(items)
    lines = [
        Line("equal", [0.0, 100.0], [0.0, 100.0], style="ref"),
        Line("items", 100 * at / max(len(ordered), 1), 100 * total[at]),
    ]
    top = max(1, len(ordered) // 10)
    share = 100 * ordered[-top:].sum() / max(ordered.sum(), 1)
    svg = charts.line_chart(
        lines,
        title=f"Lorenz curve of item popularity, Gini {value:.3f}",
        x_label="items, least popular first, %",
        y_label="% of interactions",
        y_zero=True,
        y_top=100,
    )
    caption = f"Gini {value:.3f}; the top tenth of items has {share:.0f} %"
    return {"svg": Markup(svg), "name": "Popularity", "caption": caption}


def _degrees(users: Array, items: Array) -> dict[str, Any]:
    """Share of users and of items with at least d interactions, both axes logarithmic."""
    lines = []
    for label, counts, style in (("users", users, "s0"), ("items", items, "s1")):
        # Zeros have no place on a logarithmic axis.
        values, often = np.unique(counts[counts > 0], return_counts=True)
        # Counted from the largest degree down, which gives the share with at least so many.
        share = often[::-1].cumsum()[::-1] / max(often.sum(), 1)
        # Evenly spaced on the logarithmic axis: most values lie at the small end otherwise.
        keep = np.unique(np.round(np.geomspace(1, max(len(values), 1), 150)).astype(int) - 1)[: len(values)]
        lines.append(Line(label, values[keep], 100 * share[keep], style=style))
    svg = charts.line_chart(
        lines,
        title="Degree distribution: share of users and items with at least d interactions",
        x_log=True,
        y_log=True,
        x_label="interactions, at least",
        y_label="% of users, of items",
    )
    return {"svg": Markup(svg), "name": "Degrees", "caption": "a straight line would be a power law"}
