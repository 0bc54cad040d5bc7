"""Figures from run folders, by name. A figure is one file here and one line below."""

from __future__ import annotations

from fedrec.errors import unknown
from fedrec.report.figures.activity import Activity
from fedrec.report.figures.aggregation import Aggregation
from fedrec.report.figures.bars import Bars
from fedrec.report.figures.convergence import Convergence
from fedrec.report.figures.embeddings import Embeddings
from fedrec.report.figures.figure import Figure
from fedrec.report.figures.gates import Gates
from fedrec.report.figures.heatmap import HeatMap
from fedrec.report.figures.joining import Joining
from fedrec.report.figures.sensitivity import Sensitivity
from fedrec.report.figures.similarity import Similarity
from fedrec.report.figures.skew import Skew
from fedrec.report.figures.tsne import TSNE

FIGURES: dict[str, type[Figure]] = {
    figure.name: figure
    for figure in (
        Convergence,
        Bars,
        Sensitivity,
        Activity,
        Joining,
        Similarity,
        HeatMap,
        TSNE,
        Embeddings,
        Aggregation,
        Skew,
        Gates,
    )
}


def figure_class(name: str) -> type[Figure]:
    if name not in FIGURES:
        raise unknown("figure", name, [*FIGURES, "list"])
    return FIGURES[name]
