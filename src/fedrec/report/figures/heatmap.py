"""Item tables themselves: the same items, by cluster, in the tables of four clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedrec.experiment.finished_run import FinishedRun
from fedrec.report.charts.matrix import DIVERGING, Shades, heat_map
from fedrec.report.figures.figure import Drawing, Figure, Panel, numbers, only_run
from fedrec.report.figures.model import Model


@dataclass(frozen=True)
class HeatMap(Figure):
    name: ClassVar[str] = "heatmap"
    summary: ClassVar[str] = "rows of the same items in the tables of four clients, by cluster; one run"

    clients: str | None = None  # e.g. 0,7,12,30 (column client of users.csv); none: four drawn by the seed
    items: int = 200  # drawn by the seed
    clusters: int = 50  # of k-means, where the server has no labels

    def draw(self, runs: Sequence[FinishedRun]) -> Drawing:
        self.require(self.clusters >= 1, "clusters must be at least 1")
        self.require(self.items >= 1, "items must be at least 1")
        model = Model(only_run(self, runs))
        model.require_personal(self.name)
        chosen = numbers(self.clients) if self.clients else model.draw_clients(4).tolist()
        labels, origin = model.labels(self.clusters)
        some = model.draw_clients(min(self.items, len(labels)), 1, len(labels))
        shown = model.tables(chosen)[:, some[np.argsort(labels[some], kind="stable")]].cpu().numpy()
        limit = float(np.quantile(np.abs(shown), 0.99)) or 1.0
        panels = tuple(
            Panel(
                heat_map(
                    rows,
                    Shades(-limit, limit, DIVERGING),
                    title=f"Item rows of client {client}",
                    x_label="coordinates",
                    y_label="items, by cluster",
                ),
                model.describe(client),
            )
            for client, rows in zip(chosen, shown, strict=True)
        )
        lead = f"{len(some)} items, the same colours in all panels: similar rows look similar."
        return Drawing("The same items in four tables", lead, panels, facts=(("clusters", origin),))
