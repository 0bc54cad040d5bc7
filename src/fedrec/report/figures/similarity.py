"""Do clients agree on which items are alike? Cosines between all items in the tables of four clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from fedrec.experiment.finished_run import FinishedRun
from fedrec.report.charts.matrix import DIVERGING, Shades, heat_map
from fedrec.report.figures.figure import Drawing, Figure, Panel, Table, numbers, only_run
from fedrec.report.figures.geometry import block_means, mean_of_pairs, structure_correlations, unit_rows
from fedrec.report.figures.model import Model

CELLS = 120  # along a side
COMPARED = 100  # clients whose structures are correlated, pair by pair


@dataclass(frozen=True)
class Similarity(Figure):
    name: ClassVar[str] = "similarity"
    summary: ClassVar[str] = "item-item cosines of four clients, by cluster, and how far clients agree; one run"

    clients: str | None = None  # e.g. 0,7,12,30 (column client of users.csv); none: the four with the most interactions
    clusters: int = 50  # of k-means, where the server has no labels

    def draw(self, runs: Sequence[FinishedRun]) -> Drawing:
        self.require(self.clusters >= 1, "clusters must be at least 1")
        model = Model(only_run(self, runs))
        model.require_personal(self.name)
        chosen = numbers(self.clients) if self.clients else model.busiest(4).tolist()
        shown = unit_rows(model.tables(chosen))
        labels, origin = model.labels(self.clusters)
        # Stable, so that items of one cluster stay in their order and the picture is reproducible.
        order = torch.from_numpy(np.argsort(labels, kind="stable"))
        means = [block_means(unit, order, min(CELLS, len(order))) for unit in shown]
        away = ~torch.eye(len(means[0]), dtype=torch.bool)
        # Off the diagonal and without the most extreme hundredth: a few cells would otherwise take all the colour.
        limit = max(float(cells[away].abs().quantile(0.99)) for cells in means) or 1.0
        shades = Shades(-limit, limit, DIVERGING)
        panels = tuple(
            Panel(
                heat_map(
                    cells.numpy(),
                    shades,
                    title=f"Cosines between items in the table of client {client}",
                    x_label="items, by cluster",
                    y_label="items, by cluster",
                ),
                model.describe(client),
            )
            for client, cells in zip(chosen, means, strict=True)
        )
        between = structure_correlations(shown)
        some = unit_rows(model.tables(model.draw_clients(COMPARED)))
        facts = (
            ("clusters", origin),
            ("agreement of those shown", f"{mean_of_pairs(between):.4f}"),
            (f"agreement of {len(some)} clients", f"{mean_of_pairs(structure_correlations(some)):.4f}"),
        )
        heads = ("correlation", *(f"client {client}" for client in chosen))
        rows = tuple(
            (f"client {client}", *(f"{value:.4f}" for value in row))
            for client, row in zip(chosen, between.tolist(), strict=True)
        )
        lead = (
            "Mean cosine between the items of a cell, the same colours in all panels. Agreement: the correlation "
            "between the item-item cosines of two clients, as a mean over pairs of clients."
        )
        table = Table("Correlation of item-item cosines", heads, rows)
        return Drawing(f"Item-item cosines of {len(chosen)} clients, {model.name}", lead, panels, facts, (table,))
