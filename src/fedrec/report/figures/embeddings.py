"""Where the same items lie in the tables of three clients: apart, together, or all in one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedrec.experiment.finished_run import FinishedRun
from fedrec.report.charts import style_of
from fedrec.report.charts.scatter import Points, scatter
from fedrec.report.figures.figure import Drawing, Figure, Panel, Table, numbers
from fedrec.report.figures.geometry import principal_axes
from fedrec.report.figures.model import Model
from fedrec.report.figures.names import short_names

SIZES = (4.4, 3.2, 2.0)  # rings within rings: who lies in the same place is still seen


@dataclass(frozen=True)
class Embeddings(Figure):
    name: ClassVar[str] = "embeddings"
    summary: ClassVar[str] = "100 items in the tables of three clients, on common principal axes; several runs"

    clients: str | None = None  # e.g. 0,7,12 (column client of users.csv); none: the three with the most interactions
    items: int = 100
    axes: Literal["common", "own"] = "common"  # own: each run on its own axes and scale, where they differ too much

    def draw(self, runs: Sequence[FinishedRun]) -> Drawing:
        self.require(self.items >= 2, "items must be at least 2")
        models = [Model(run) for run in runs]
        chosen = numbers(self.clients) if self.clients else models[0].busiest(3).tolist()
        sizes = {model.simulator.world.items for model in models}
        self.require(
            len(sizes) == 1, f"runs with different numbers of items ({_join_sizes(sizes)}); give runs on one dataset"
        )
        # The same items in every run, drawn once, because the panels are compared with each other.
        items = torch.from_numpy(models[0].draw_clients(self.items, 1, sizes.pop()))
        # Doubles: principal axes of nearly equal tables are lost in float32.
        tables = [model.tables(chosen)[:, items].double() for model in models]
        planes, shares = self._planes(tables)
        every = np.concatenate([plane.reshape(-1, 2) for plane in planes])
        # One span for all panels, or a small cloud would look as wide as a large one.
        span = (every.min(0), every.max(0)) if self.axes == "common" else None
        names = short_names([run.label for run in runs])
        panels, rows = [], []
        for name, model, plane, share in zip(names, models, planes, shares, strict=True):
            sets = [
                Points(points, f"client {client}", style_of(index), SIZES[index % len(SIZES)])
                for index, (client, points) in enumerate(zip(chosen, plane, strict=True))
            ]
            title = f"{len(items)} items in the tables of {len(chosen)} clients under {name}"
            svg = scatter(sets, title=title, x_label="first principal axis", y_label="second axis", span=span)
            panels.append(Panel(svg, name if model.personal else f"{name}: one table for all clients"))
            rows.append((name, share, f"{_spread(plane, 1):.4g}", f"{_spread(plane, 0):.4g}"))
        same = "items, axes and scale" if self.axes == "common" else "items"
        lead = f"Each ring is an item in one client's table; all panels have the same {same}."
        facts = (("clients", ", ".join(map(str, chosen))), ("items", f"{len(items)}"))
        heads = (
            "run",
            "variance explained by the axes",
            "from the client's centre",
            "of one item from its mean over clients",
        )
        table = Table("Root mean square distance on the plane", heads, tuple(rows))
        return Drawing(f"The same items in the tables of {len(chosen)} clients", lead, tuple(panels), facts, (table,))

    def _planes(self, tables: Sequence[Tensor]) -> tuple[list[np.ndarray], list[str]]:
        """[clients, items, 2] of every run, and the part of its variance that lies on the two axes."""
        widths = {table.shape[2] for table in tables}
        mixed = self.axes == "common" and len(widths) > 1
        self.require(not mixed, f"tables of different widths ({_join_sizes(widths)}) have no common axes; set axes=own")
        planes, shares = [], []
        for table in tables:
            seen = tables if self.axes == "common" else [table]
            centre, axes = principal_axes(torch.cat([part.flatten(0, 1) for part in seen]))
            plane = ((table - centre) @ axes).numpy()
            # Around the population's mean: the share is of these very points and no estimate.
            whole = float(table.flatten(0, 1).var(0, correction=0).sum())
            planes.append(plane)
            shares.append(f"{100 * plane.reshape(-1, 2).var(0).sum() / (whole or 1.0):.1f} %")
        return planes, shares


def _join_sizes(sizes: set[int]) -> str:
    return ", ".join(map(str, sorted(sizes)))


def _spread(plane: np.ndarray, axis: int) -> float:
    """Around the mean over items (1) or over clients (0). `plane` is [clients, items, 2]."""
    away = plane - plane.mean(axis, keepdims=True)
    found = float(np.sqrt((away**2).sum(-1).mean()))
    # Anything smaller comes from rounding alone.
    return found if found > 1e-12 * float(np.abs(plane).max()) else 0.0
