"""How FedCA would mix ten clients: how alike they are, how they complement each other, and the weights that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from fedrec.experiment.finished_run import FinishedRun
from fedrec.federation.contract import Gather, Ups
from fedrec.methods.mixture.fedca import FedCA
from fedrec.report.charts.matrix import Shades, heat_map
from fedrec.report.figures.figure import Drawing, Figure, Panel, Table, numbers, only_run
from fedrec.report.figures.model import Model

COUNT = 10
CHOICES = ("alpha", "beta", "similarity", "complementarity", "outer", "weights")  # those that the method has


@dataclass(frozen=True)
class Aggregation(Figure):
    name: ClassVar[str] = "aggregation"
    summary: ClassVar[str] = "similarity, complementarity and weights among ten clients of a fedca run"

    clients: str | None = None  # e.g. 0,7,12,30 (column client of users.csv); none: ten at random

    def draw(self, runs: Sequence[FinishedRun]) -> Drawing:
        run = only_run(self, runs)
        self.require(
            run.summary["method"] == FedCA.info.name,
            f"{run.folder} is a run of {run.summary['method']}; give one of fedca",
        )
        model = Model(run)
        chosen = np.array(sorted(numbers(self.clients))) if self.clients else model.draw_clients(COUNT)
        self.require(2 <= len(chosen) <= 20, "give 2 to 20 clients")
        found = matrices(model, chosen)
        names = [str(client) for client in chosen]
        panels, tables = [], []
        for word, matrix in found.items():
            values = matrix.numpy()
            away = values[~np.eye(len(values), dtype=bool)]
            shades = Shades(float(away.min()), float(away.max()))
            svg = heat_map(
                values,
                shades,
                title=f"{word} between {len(names)} clients",
                x_label="client v",
                y_label="client u",
                names=names,
            )
            panels.append(Panel(svg, word))
            rows = tuple((name, *(f"{v:.4f}" for v in row)) for name, row in zip(names, values.tolist(), strict=True))
            tables.append(Table(word, ("client", *names), rows))
        method = model.run.method
        assert isinstance(method, FedCA)
        facts = tuple((name, str(getattr(method, name))) for name in CHOICES if hasattr(method, name))
        lead = (
            "From the tables after the chosen round, as if only these clients were aggregated. Colours span the "
            "values off the diagonal; a row of weights adds up to 1."
        )
        return Drawing("Composite aggregation in fedca", lead, tuple(panels), facts, tuple(tables))


def matrices(model: Model, chosen: np.ndarray) -> dict[str, Tensor]:
    """Similarity, complementarity and weights by name, with the parameters of the run."""
    method = model.run.method
    assert isinstance(method, FedCA)
    tables = model.tables(chosen)
    chunk = model.simulator.data.chunk(chosen)
    sent = method.represent(tables, chunk, model.round)
    each = {name: up.value for name, up in sent.items() if isinstance(up, Gather) and isinstance(up.value, Tensor)}
    each |= {"item": tables, "samples": chunk.sample_counts()[:, None]}
    ups, server = Ups({}, {name: [(chosen, value)] for name, value in each.items()}, chosen), model.simulator.server
    alike, complement = method.compare_tables(server, ups.stack("item")), method.compare_pictures(ups)
    weights = method.weigh_clients(server, ups).expand(len(chosen), -1)
    return {"Similarity": alike, "Complementarity": complement, "Weights": weights}
