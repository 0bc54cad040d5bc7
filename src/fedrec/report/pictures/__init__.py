"""Figures from run folders, by name. A figure is one file here and one line below."""

from __future__ import annotations

from fedrec.errors import unknown
from fedrec.report.pictures.activity import Activity
from fedrec.report.pictures.aggregation import Aggregation
from fedrec.report.pictures.bars import Bars
from fedrec.report.pictures.convergence import Convergence
from fedrec.report.pictures.embeddings import Embeddings
from fedrec.report.pictures.gates import Gates
from fedrec.report.pictures.picture import Picture
from fedrec.report.pictures.sensitivity import Sensitivity
from fedrec.report.pictures.similarity import Similarity
from fedrec.report.pictures.skew import Skew
from fedrec.report.pictures.tsne import TSNE

PICTURES: dict[str, type[Picture]] = {
    picture.name: picture
    for picture in (
        Convergence,
        Bars,
        Sensitivity,
        Activity,
        Similarity,
        TSNE,
        Embeddings,
        Aggregation,
        Skew,
        Gates,
    )
}


def picture_class(name: str) -> type[Picture]:
    if name not in PICTURES:
        raise unknown("figure", name, [*PICTURES, "list"])
    return PICTURES[name]
