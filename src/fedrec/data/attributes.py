"""Item attributes as vectors, fitted on the items that training may see: what a new item brings with it.

Tags, words of the title and the decade are terms. tf = log(1 + count), idf = log(N / (1 + df)), a truncated SVD, then
columns with mean 0 and variance 1, clipped to [-5, 5]. Frequencies, directions, means and variances all come from the
warm items; the others are projected, so nothing about them shapes what the model is trained on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy.sparse as sp

from fedrec.data.interactions import Array, ItemInfo
from fedrec.data.items import title_terms
from fedrec.data.seeds import generator
from fedrec.data.sparse import csr
from fedrec.errors import FedrecError, list_few

RANK = 300
FEWEST = 5  # warm items that must carry a term
_POWER_ITERATIONS, _EXTRA = 5, 10
_CLIP, _ZERO = 5.0, 1e-5


@dataclass(frozen=True)
class Arrival:
    """An item that arrived after training, and the terms or the numbers that describe it."""

    item: str
    terms: tuple[str, ...] = ()
    title: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Encoder:
    """From terms to vectors, as fitted; `words` names the columns of the count matrix that it takes."""

    words: tuple[str, ...]
    kept: Array
    idf: Array
    directions: Array
    mean: Array
    scale: Array

    @staticmethod
    def fit(counts: sp.csr_matrix, words: Sequence[str], rank: int = RANK) -> Encoder:
        """`counts` [warm items, terms]."""
        frequency = np.asarray((counts > 0).sum(0)).ravel()
        # Fewer in a small catalogue, where five items can be a quarter of all; never below 1.
        fewest = min(FEWEST, max(1, counts.shape[0] // 20))
        kept = np.flatnonzero(frequency >= fewest)
        if not len(kept):
            raise FedrecError(
                f"no tag, title word or decade is carried by {fewest} of the {counts.shape[0]:,} items "
                "in training; describe items by attributes that several share"
            )
        idf = np.log(counts.shape[0] / (1.0 + frequency[kept]))
        weighted = _weigh_terms(counts[:, kept], idf)
        directions = _leading_directions(weighted, min(rank, *weighted.shape))
        plain = weighted @ directions
        scale = plain.std(0)
        # A constant direction would be divided by zero; with 1 it stays at 0.
        return Encoder(tuple(words), kept, idf, directions, plain.mean(0), np.where(scale > 0, scale, 1.0))

    def encode(self, counts: sp.csr_matrix) -> Array:
        """[items, rank] float32."""
        return _standardise(_weigh_terms(counts[:, self.kept], self.idf) @ self.directions, self.mean, self.scale)

    def counts(self, items: Iterable[Iterable[str]]) -> sp.csr_matrix:
        """The terms of new items as counts; terms that the fit did not meet are ignored."""
        column = {word: j for j, word in enumerate(self.words)}
        rows = list(items)
        cells = [(i, column[term]) for i, terms in enumerate(rows) for term in terms if term in column]
        at = np.array(cells, dtype=np.int64).reshape(-1, 2)
        ones = np.ones(len(at))
        return csr(ones, at[:, 0], at[:, 1], (len(rows), len(self.words)))

    def encode_arrivals(self, arrivals: Sequence[Arrival]) -> tuple[Array, int]:
        """Their vectors, and how many share no term with the items of the fit."""
        if numbers := next((arrival.numbers for arrival in arrivals if arrival.numbers), None):
            raise FedrecError(
                f"new items are described in numbers ({list_few(numbers)}), those of the run in words; give "
                "their tags, title or year"
            )
        counts = self.counts(arrival.terms for arrival in arrivals)
        return self.encode(counts), int((counts[:, self.kept].getnnz(1) == 0).sum())


@dataclass(frozen=True, eq=False)
class Scaler:
    """From numbers to vectors, as fitted; `names` of the columns, empty where they have none."""

    names: tuple[str, ...]
    mean: Array
    scale: Array

    @staticmethod
    def fit(values: Array, names: tuple[str, ...]) -> Scaler:
        """`values` [warm items, columns]."""
        scale = values.std(0)
        return Scaler(names, values.mean(0), np.where(scale > 0, scale, 1.0))

    def encode(self, values: Array) -> Array:
        """[items, columns] float32."""
        return _standardise(values, self.mean, self.scale)

    def encode_arrivals(self, arrivals: Sequence[Arrival]) -> tuple[Array, int]:
        """Their vectors, and 0: numbers are always shared."""
        if not self.names:
            raise FedrecError(
                "the attributes of this run's data are numbers without names, so that those of new items "
                "cannot be matched to them; train with --attributes items.csv"
            )
        for arrival in arrivals:
            if odd := sorted(set(self.names) ^ set(arrival.numbers)):
                verb = "lacks" if odd[0] in self.names else "has"
                raise FedrecError(
                    f"new item '{arrival.item:.40}' {verb} the number '{odd[0]:.40}'; give the columns "
                    f"of the run's own items: {list_few(self.names)}"
                )
        rows = [[arrival.numbers[name] for name in self.names] for arrival in arrivals]
        # Through float32, as the run's own items went, so that the same item gets the same vector bit for bit.
        return self.encode(np.array(rows, dtype=np.float32).astype(np.float64)), 0


def item_attributes(info: ItemInfo | None, warm: int, name: str) -> tuple[Array, Encoder | Scaler]:
    """[items, c] for all items, of which the first `warm` were trained on, and the encoder that made them.

    Real-valued features, where a data set has them, are only scaled.
    """
    if info is not None and info.features is not None:
        # Means and variances are taken in float64: sums of squares of large prices lose their digits in float32.
        values = np.asarray(info.features.todense(), dtype=np.float64)
        scaler = Scaler.fit(values[:warm], info.feature_names)
        return scaler.encode(values), scaler
    counts, words = term_counts(info)
    if counts is None:
        raise FedrecError(
            f"'{name}' has no item attributes, without which new items cannot be ranked; use "
            "--attributes items.csv, or ml-100k, ml-1m, citeulike-a:coldstart or synthetic"
        )
    encoder = Encoder.fit(counts[:warm], words)
    return encoder.encode(counts), encoder


def term_counts(info: ItemInfo | None) -> tuple[sp.csr_matrix | None, tuple[str, ...]]:
    """[items, terms] and the names of the terms: tags as they are, decades as `1990s`, words in lower case.

    A tag and a word with the same spelling are one term: of a new item only the terms are known.
    """
    parts: list[sp.csr_matrix] = []
    words: list[str] = []
    if info is not None and info.tags is not None:
        parts.append(info.tags)
        words += info.tag_names or [f"term{j}" for j in range(info.tags.shape[1])]
    if info is not None and (info.titles is not None or info.years is not None):
        n = int(info.n_items() or 0)
        terms = [
            title_terms(
                "" if info.titles is None else str(info.titles[i]), 0 if info.years is None else int(info.years[i])
            )
            for i in range(n)
        ]
        # Sorted, since the order of a set of text differs from process to process, and columns must not.
        known = sorted({term for mine in terms for term in mine})
        column = {term: j for j, term in enumerate(known)}
        rows = np.repeat(np.arange(n), [len(mine) for mine in terms])
        columns = np.array([column[term] for mine in terms for term in mine], dtype=np.int64)
        parts.append(csr(np.ones(len(rows)), rows, columns, (n, len(known))))
        words += known
    return _add_equal_columns(sp.hstack(parts, format="csr"), words) if parts else (None, ())


def _add_equal_columns(counts: sp.csr_matrix, words: Sequence[str]) -> tuple[sp.csr_matrix, tuple[str, ...]]:
    """Columns of the same name added up."""
    column = {word: number for number, word in enumerate(dict.fromkeys(words))}
    if len(column) == len(words):
        return counts, tuple(words)
    to = np.array([column[word] for word in words])
    joined = csr(np.ones(len(words)), np.arange(len(words)), to, (len(words), len(column)))
    return sp.csr_matrix(counts @ joined), tuple(column)


def _weigh_terms(counts: sp.csr_matrix, idf: Array) -> sp.csr_matrix:
    return sp.csr_matrix(counts, dtype=np.float64).log1p().multiply(idf[None]).tocsr()


def _standardise(values: Array, mean: Array, scale: Array) -> Array:
    clipped = np.clip((values - mean) / scale, -_CLIP, _CLIP)
    # Rounding noise of a column that should be 0 differs between machines; cut off, vectors agree exactly.
    return np.where(np.abs(clipped) < _ZERO, 0.0, clipped).astype(np.float32)


def _leading_directions(matrix: sp.csr_matrix, rank: int) -> Array:
    """[terms, rank] right singular vectors, by randomised subspace iteration; signs fixed by the largest entry."""
    width = min(rank + _EXTRA, *matrix.shape)
    # A fixed seed: the directions belong to the data, not to the run, and must be the same in all runs.
    basis = generator(0).standard_normal((matrix.shape[1], width))
    # Orthonormal after every step: powers of the matrix alone would collapse onto the first direction.
    for _ in range(_POWER_ITERATIONS + 1):
        basis = np.linalg.qr(matrix.T @ (matrix @ basis))[0]
    image = matrix @ basis
    found = basis @ np.linalg.eigh(image.T @ image)[1][:, ::-1][:, :rank]
    # A singular vector is determined up to its sign only; fixing it makes vectors comparable between machines.
    return np.asarray(found * np.sign(found[np.abs(found).argmax(0), np.arange(rank)]))
