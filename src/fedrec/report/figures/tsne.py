"""The tables of four clients on a plane, by t-SNE, with items coloured by cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedrec.errors import FedrecError
from fedrec.experiment.finished_run import FinishedRun
from fedrec.report.charts.scatter import Points, hue, scatter
from fedrec.report.figures.figure import Drawing, Figure, Panel, numbers, only_run
from fedrec.report.figures.model import Model


@dataclass(frozen=True)
class TSNE(Figure):
    name: ClassVar[str] = "tsne"
    summary: ClassVar[str] = "t-SNE of the item tables of four clients, items coloured by cluster; one run"

    clients: str | None = None  # e.g. 0,7,12,30 (column client of users.csv); none: the four with the most interactions
    clusters: int = 50  # of k-means, where the server has no labels
    items: int = 1000  # drawn at random where there are more
    perplexity: float = 30.0

    def draw(self, runs: Sequence[FinishedRun]) -> Drawing:
        self.require(self.clusters >= 1, "clusters must be at least 1")
        self.require(self.items >= 4, "items must be at least 4")
        self.require(self.perplexity > 0, "perplexity must be above 0")
        # Asked for first, so that a missing package is said before the model is loaded.
        embed = _tsne()
        model = Model(only_run(self, runs))
        model.require_personal(self.name)
        chosen = numbers(self.clients) if self.clients else model.busiest(4).tolist()
        tables = model.tables(chosen)
        labels, origin = model.labels(self.clusters)
        items = model.draw_clients(self.items, 1, tables.shape[1])
        # scikit-learn refuses a perplexity that the number of items cannot carry.
        perplexity = min(self.perplexity, (len(items) - 1) / 3)
        panels = []
        for client, table in zip(chosen, tables, strict=True):
            rows = table.double().numpy()[items]
            # Started from principal components and the run's seed: a random start gives another picture each time.
            made = embed(n_components=2, perplexity=perplexity, init="pca", random_state=model.seed % (1 << 31))
            plane = np.asarray(made.fit_transform(rows), float)
            sets = [
                Points(plane[labels[items] == label], colour=hue(int(label)), size=3.4)
                for label in np.unique(labels[items])
            ]
            title = f"t-SNE of {len(items)} items in the table of client {client}"
            panels.append(
                Panel(scatter(sets, title=title, x_label="t-SNE 1", y_label="t-SNE 2"), model.describe(client))
            )
        lead = (
            "A dot is an item; items of one cluster have the same colour in all panels. Nearby dots are close in "
            "the table; distances between distant dots are not meaningful."
        )
        facts = (("clusters", origin), ("items", f"{len(items):,}"), ("perplexity", f"{perplexity:g}"))
        return Drawing(f"Items in the tables of {len(chosen)} clients, {model.name}", lead, tuple(panels), facts)


def _tsne() -> Any:
    try:
        from sklearn.manifold import TSNE as Embedding
    except ImportError:
        raise FedrecError('tsne needs scikit-learn: pip install "fedrec[figures]"') from None
    return Embedding
