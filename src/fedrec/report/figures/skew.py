"""What averaging does to trained and to untrained rows: each client mixes its model with more and more of its nearest.

After Zhang et al., TOIS 2026, section 3: the 100 nearest clients by the distance of tables, in random order so that
nearness does not fall with their number. Theirs is another experiment: clients average with s others in every round of
training, and an item is ranked among 99 drawn ones. There training quality rises with s and test quality falls. Here
the models of a finished run are averaged once and all items are ranked, and mostly it is the other way round: what a
client fitted is diluted, and rows that it never trained gain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.evaluation import per_user
from fedrec.evaluation.targets import csr_rows, pair_keys
from fedrec.experiment.finished_run import FinishedRun
from fedrec.federation.clients import pointers
from fedrec.federation.contract import State
from fedrec.methods.mixture.aggregation import square_distances
from fedrec.random import Purpose, fold_array, stream
from fedrec.report.charts import Line, line_chart
from fedrec.report.figures.figure import Drawing, Figure, Panel, Table, only_run
from fedrec.report.figures.model import NO_ROUND, Model

K = 10
METRICS = (f"hr@{K}", f"ndcg@{K}")
PARTS = ("training items", "test items")
# Bounded by memory and not by a number of clients, because tables differ in size between datasets.
BUDGET = 1 << 28  # bytes of a chunk of clients


@dataclass(frozen=True)
class Skew(Figure):
    name: ClassVar[str] = "skew"
    summary: ClassVar[str] = "training and test quality as clients average with more neighbours; one run"

    nearest: int = 100
    step: int = 10
    weighted: bool = False  # by training interactions, as FedAvg does; otherwise all count the same

    def draw(self, runs: Sequence[FinishedRun]) -> Drawing:
        self.require(self.nearest >= 1, "nearest must be at least 1")
        self.require(1 <= self.step <= self.nearest, "step must lie between 1 and nearest")
        model = Model(only_run(self, runs))
        model.require_personal(self.name)
        # A client has no more neighbours than there are other clients.
        most = min(self.nearest, model.clients - 1)
        # Always from 0, the client's own model, which is what the rest is compared with.
        sizes = [0, *range(self.step, most + 1, self.step)]
        self.require(len(sizes) > 1, f"{model.clients} clients are too few for steps of {self.step}; lower step")
        values = probe(model, sizes, self.weighted)  # [sizes, parts, metrics]
        panels = []
        for at, metric in enumerate(METRICS):
            lines = [
                Line(part, sizes, values[:, k, at], marks=sizes, style=f"s{k}", unit="s")
                for k, part in enumerate(PARTS)
            ]
            svg = line_chart(
                lines,
                title=f"{metric} on training and test items by number of averaged clients",
                x_label="number of clients averaged, s",
                y_label=metric,
                y_zero=True,
            )
            panels.append(Panel(svg, f"{metric.upper()}, each item among unseen ones"))
        heads = ("s", *(f"{metric} on {part}" for metric in METRICS for part in PARTS))
        rows = tuple(
            (str(s), *(f"{values[i, k, at]:.4f}" for at in range(2) for k in range(2))) for i, s in enumerate(sizes)
        )
        lead = (
            f"Every client averages its table and network with s clients, in random order out of its {most} nearest; "
            "s = 0 is its own model. The models are averaged once, after training, and each item is ranked among all "
            "that its user never met. FedCA's figure averages in every round of training and ranks among 99 drawn "
            "items: its trend, training up and test down, is not to be expected here."
        )
        return Drawing(
            f"Embedding skew, from a run of {model.name}",
            lead,
            tuple(panels),
            tables=(Table("By number of clients", heads, rows),),
        )


def probe(model: Model, sizes: Sequence[int], weighted: bool) -> np.ndarray:
    """[sizes, parts, metrics]: means over users who have items in that part."""
    cases = _cases(model)
    total, users = np.zeros((len(sizes), len(PARTS), len(METRICS))), np.zeros(len(PARTS))
    order = neighbours(model, sizes[-1])
    # All count the same unless asked: a large client would otherwise hide what averaging does to the small ones.
    weight = model.interactions if weighted else np.ones(model.clients)
    for clients in _chunks(model):
        chunk = model.simulator.data.chunk(clients)
        users += [int((np.diff(part.indptr)[chunk.users] > 0).sum()) for part in cases.parts]
        for at, scores in enumerate(_average_and_score(model, clients, order[clients], sizes, weight)):
            total[at] += cases.sums(chunk.users, scores)
    # At least one user, so that a part without items gives 0 instead of a division by zero.
    return total / np.maximum(users, 1)[:, None]


def neighbours(model: Model, count: int) -> np.ndarray:
    """[clients, count]: the nearest by distance of tables, in an order drawn for each client."""
    _, tables = model.full_table()
    # A client is at distance 0 from itself and must not be its own neighbour.
    distance = square_distances(tables).fill_diagonal_(float("inf"))
    near = distance.topk(count, largest=False).indices.cpu().numpy()
    # Drawn by the run's seed, so that the figure is the same whenever it is drawn again.
    keys = fold_array(stream(model.seed, Purpose.ORDER, NO_ROUND, 2), np.arange(len(near)))
    return np.take_along_axis(near, np.argsort(fold_array(keys[:, None], near), 1, kind="stable"), 1)


def _chunks(model: Model) -> Iterator[np.ndarray]:
    _, tables = model.full_table()
    # Four copies of a table live at once: the own rows, the running total, one neighbour's, and the mixture.
    each = 4 * tables[0].numel() * tables.element_size() + model.run.method.footprint(model.simulator.world).score
    per_client = int(np.diff(model.simulator.data.client_ptr).max()) * each
    step = max(1, BUDGET // per_client)
    for start in range(0, model.clients, step):
        yield np.arange(start, min(start + step, model.clients))


def _average_and_score(
    model: Model, clients: np.ndarray, order: np.ndarray, sizes: Sequence[int], weight: np.ndarray
) -> Iterator[Tensor]:
    """Scores of all items for the users of these clients, after averaging with the first s of `order`."""
    simulator, method = model.simulator, model.run.method
    held, chunk = simulator.cohorts[0].state, simulator.data.chunk(clients)
    places, where = (torch.from_numpy(index) for index in (chunk.places, clients))
    items = torch.arange(simulator.world.items)
    prefix = model.full_table()[0].removesuffix("item")
    names = [name for name in held.per_client if name.startswith(prefix) and held.per_client[name].is_floating_point()]
    own = {name: value[where] for name, value in held.per_client.items()}
    user = {name: value[places] for name, value in held.per_user.items()}
    share = torch.from_numpy(weight).to(simulator.world.dtype)
    # A copy, because the count grows in place while `share` is used again for every neighbour.
    total, count = {name: _scale(own[name], share[where]) for name in names}, share[where].clone()
    down = method.offer(simulator.server, clients, model.round, items)
    # Sums grow from one size to the next, so that no neighbour is added twice.
    before = 0
    for size in sizes:
        for column in order[:, before:size].T:
            other = torch.from_numpy(np.ascontiguousarray(column))
            for name in names:
                total[name] += _scale(held.per_client[name][other], share[other])
            count += share[other]
        before = size
        mixed = {name: _scale(value, 1 / count) for name, value in total.items()}
        # No gradients: the scores of all items for many clients would keep their whole history in memory.
        with torch.no_grad():
            yield method.score(State(own | mixed, dict(user)), down, chunk, items)


def _scale(stack: Tensor, factor: Tensor) -> Tensor:
    """In the precision of the factor: tables may rest in half of it."""
    return stack.to(factor.dtype) * factor.view(-1, *[1] * (stack.dim() - 1))


@dataclass(frozen=True)
class _Part:
    """Items of every user, ascending: those of user u are `items[indptr[u]:indptr[u + 1]]`."""

    indptr: np.ndarray
    items: np.ndarray


@dataclass(frozen=True)
class _Cases:
    """Every item of a part is ranked alone, against all items that its user has in no part."""

    known: _Part
    parts: tuple[_Part, ...]

    def sums(self, users: np.ndarray, scores: Tensor) -> np.ndarray:
        """[parts, metrics], summed over users."""
        rows, items = _pairs(self.known, users)
        # Doubles, so that items with nearly equal scores do not become ties by rounding.
        pool = scores.detach().double().clone()
        if not bool(torch.isfinite(pool).all()):
            raise FedrecError("the model gives scores that are not numbers; give a run that did not diverge")
        # Items that the user has met leave the pool, since a list would not offer them.
        pool[torch.from_numpy(rows), torch.from_numpy(items)] = -torch.inf
        # Sorted once: every item is then ranked by bisection instead of against all others.
        pool = pool.sort(1).values
        return np.array([_sums(pool, scores.double(), *_pairs(part, users)) for part in self.parts])


def _sums(pool: Tensor, scores: Tensor, rows: np.ndarray, items: np.ndarray) -> list[float]:
    """Of each metric, over users, of the mean over a user's items."""
    if not len(rows):
        return [0.0] * len(METRICS)
    counts = np.bincount(rows, minlength=len(pool))
    width = int(counts.max())
    spot = torch.from_numpy(rows * width + np.arange(len(rows)) - np.repeat(pointers(counts)[:-1], counts))
    own = torch.zeros(len(pool) * width, dtype=pool.dtype)
    own[spot] = scores[torch.from_numpy(rows), torch.from_numpy(items)]
    own = own.view(len(pool), width)
    above, below = torch.searchsorted(pool, own, right=True), torch.searchsorted(pool, own)
    higher = (pool.shape[1] - above).view(-1)[spot].numpy()
    # An item also ties with itself.
    equal = (above - below).view(-1)[spot].numpy() + 1
    values = per_user(higher, equal, np.arange(len(rows) + 1), (K,), ("recall", "ndcg"))
    return [float((values[name] / counts[rows]).sum()) for name in (f"recall@{K}", f"ndcg@{K}")]


def _pairs(part: _Part, users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row (place among `users`) and item of everything that these users have in a part."""
    # The lists have different lengths; the empty array keeps the type where nobody has any.
    lists = [part.items[part.indptr[user] : part.indptr[user + 1]] for user in users]
    rows = np.repeat(np.arange(len(users)), [len(own) for own in lists])
    return rows, np.concatenate([np.zeros(0, np.int64), *lists])


def _cases(model: Model) -> _Cases:
    prepared = model.run.prepared
    split, count = prepared.split, prepared.source.n_items
    pairs = [(part.user, part.item) for part in (split.train, split.valid, split.test)]
    if prepared.dropped is not None:
        pairs.append((prepared.dropped.user, prepared.dropped.item))

    def part(keys: np.ndarray) -> _Part:
        return _Part(*csr_rows(keys, np.arange(prepared.source.n_users), count))

    train, test = (part(pair_keys([pairs[k]], count)) for k in (0, 2))
    return _Cases(part(pair_keys(pairs, count)), (train, test))
