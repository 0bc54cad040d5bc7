"""FedCA as its paper's figures and its released code have it, and the switches of its ablations.

What the paper says and what its released code does differ; each difference is a parameter here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedrec import method as fm
from fedrec.methods import mixture

Similarity = Literal["paper", "pca1", "pca1-raw"]
Complementarity = Literal["left-local", "left-global", "right-greedy", "right-principal", "raw"]
LEFT = ("left-local", "left-global")
Outer = Literal["cos", "sin"]
Weights = Literal["eq5", "eq8", "released"]

SERVED = "served."  # what a client scores with, where that is not what its next training starts from
NUMBERS = 1 << 21  # of tables in double precision at a time: 16 MiB
RECEIVED = "received.item"  # the aggregate that arrived last, where training does not start from it


@dataclass(frozen=True)
class FedCAVariants(mixture.FedCA):
    info: ClassVar[fm.MethodInfo] = mixture.FedCA.info

    interpolate: Literal["both", "inference"] = "both"
    """inference: the mixture is only scored with, and training starts from the aggregate alone."""
    # weight of the squared distance to the aggregate that arrived last; with inference, to where the round began
    proximal: float = 0.0
    similarity: Similarity = "paper"
    """How alike two tables are: by their distance, or by scores on their first principal axis."""
    complementarity: Complementarity = "right-greedy"
    """What two clients are compared by: left or right singular vectors of their rows, and how these are matched."""
    outer: Outer = "cos"
    """Whether angles between the compared vectors enter by cosine or sine."""
    weights: Weights = "eq5"
    """Mixture weights by equation 5 or 8, or as the released code has them: alpha and beta change places."""

    @property
    def disclosure(self) -> fm.Disclosure:
        return replace(super().disclosure, covered_with={"shares": "equal", "complementarity": "right-greedy"})

    @cached_property
    def trainer(self) -> fm.LocalTrainer:
        return fm.LocalTrainer(self, pull=self.proximal, pulled=("item",))

    def footprint(self, world: fm.World) -> fm.Footprint:
        picture = 2 * self.components * world.items * world.dtype.itemsize  # left vectors are as long as the table
        near = 8 if self.proximal and self.interpolate == "both" else 0
        usual = self.trainer.footprint(world, dense=8, tables=self.working_tables + near)
        return replace(usual, client=usual.client + picture, training_only=(RECEIVED,))

    # -- what clients start from and score with --

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        server = super().init_server(world, attributes)
        if self.pulls_to_similar and self.similarity == "pca1":
            server["reference"] = first_scores(self.trainer.init_items(world)[None])[0]
        return server

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        common = self.trainer.init_model(world)
        if self.interpolate == "inference":
            common |= {SERVED + name: value for name, value in common.items()}
        elif self.proximal:
            common[RECEIVED] = common["item"]
        return self.trainer.init_state(world, chunk, common)

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        new, payload = super().local(state, down, chunk, round)
        if RECEIVED in state.per_client:
            new.per_client[RECEIVED] = state.per_client[RECEIVED]
        if self.interpolate == "inference":  # until an aggregate arrives, a client serves what it trained
            new.per_client.update({SERVED + name: new.per_client[name].clone() for name in self.trainer.names})
        return new, payload

    def train(self, state: fm.State, chunk: fm.Chunk, round: int) -> tuple[Tensor, fm.Tensors]:
        near = self.trainer.widen(state.per_client, chunk.world).get(RECEIVED)
        return self.trainer.fit_own(chunk, round, state.per_user["user"], state.per_client, towards=near)

    def receive(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> fm.State:
        mixed = super().receive(state, down, chunk, round)
        if self.interpolate == "inference":
            served = {SERVED + name: mixed.per_client[name] for name in self.trainer.names}
            return fm.State(state.per_client | served | self.trainer.narrow(down.own), state.per_user)
        if self.proximal:
            mixed.per_client.update(self.trainer.narrow({RECEIVED: down.own["item"]}))
        return mixed

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        """With the mixture of those that received an aggregate since they trained, with their own table otherwise."""
        mark = SERVED if self.interpolate == "inference" else ""
        own = {name: state.per_client[mark + name] for name in self.trainer.names}
        return self.trainer.own_scores(state.per_user["user"], own, chunk, items)

    # -- weights --

    @property
    def pulls_to_similar(self) -> bool:
        return (self.beta if self.weights == "released" else self.alpha) != 0

    @property
    def rewards_complements(self) -> bool:
        return (self.alpha if self.weights == "released" else self.beta) != 0

    def compare_tables(self, server: fm.Tensors, tables: fm.Stack) -> Tensor:
        if self.similarity == "paper":
            return super().compare_tables(server, tables)
        return released_similarity(tables, server.get("reference") if self.similarity == "pca1" else None)

    def represent(self, tables: Tensor, chunk: fm.Chunk, round: int) -> fm.Uploads:
        """Of all samples (right-greedy), or of the client's items; left-global says which these are.

        A left vector has an entry per item of the client.
        """
        if self.complementarity == "right-greedy":
            return super().represent(tables, chunk, round)
        items, counts = distinct_items(chunk)
        pictures = represent(tables, items, counts, self.components, self.complementarity)
        if self.complementarity not in LEFT:
            return {"picture": fm.Gather(pictures)}
        lengths = chunk.tensor(counts)
        sent: fm.Uploads = {"picture": fm.Gather(pictures, lengths)}
        if self.complementarity == "left-global":
            listed = pad_sequence(items.int().split(counts.tolist()), batch_first=True)
            sent["picture_items"] = fm.Gather(listed, lengths)
        return sent

    def compare_pictures(self, ups: fm.Ups) -> Tensor:
        pictures = ups.stacked("picture")[1]
        if self.complementarity == "left-global":
            pictures = scatter(pictures, ups.stacked("picture_items")[1], ups.stack("item").shape[1])
        return complementarity(pictures, self.complementarity, self.outer)

    def solve(self, pi: Tensor, s: Tensor, c: Tensor) -> Tensor:
        return composite_weights(pi, s, c, self.alpha, self.beta, self.weights)


def composite_weights(pi: Tensor, s: Tensor, c: Tensor, alpha: float, beta: float, variant: Weights) -> Tensor:
    """Return the rows of weights that minimise |w - pi|^2 + alpha |w - s|^2 - beta w.c on the simplex (5).

    eq8 (equation 8) has the similarity linear, -2 alpha w.s. released is eq8 with the two factors exchanged and beta
    doubled: there alpha belongs to the complementarity and beta to the similarity.
    """
    pi, s, c = pi.double(), s.double(), c.double()
    if variant == "eq5":
        return mixture.simplex_project((2 * pi + 2 * alpha * s + beta * c) / (2 * (1 + alpha)))
    if variant == "eq8":
        return mixture.simplex_project(pi + alpha * s + beta / 2 * c)
    weights = mixture.simplex_project(pi + alpha * c + beta * s)
    weights = torch.where(weights < 1e-20, torch.zeros_like(weights), weights)
    return weights / weights.sum(-1, keepdim=True)


# -- similarity --


def released_similarity(tables: Tensor | fm.Stack, reference: Tensor | None = None) -> Tensor:
    """1 / (1 + distance) of the tables' scores on their own first principal axis, raised to 1 from 0.9.

    The sign of an axis is arbitrary: scores are turned towards `reference`, those of a common table, or as the released
    code has it (pca1-raw) the largest entry of the axis is positive.
    """
    scores = first_scores(tables)
    if reference is not None:
        scores = torch.where((scores @ reference.double() < 0)[:, None], -scores, scores)
    close = 1 / (1 + mixture.square_distances(scores).sqrt())
    return torch.where(close > 0.9, torch.ones_like(close), close)


def first_scores(tables: Tensor | fm.Stack) -> Tensor:
    """Return the rows of every table along its first principal axis: [clients, rows]."""
    stack = fm.Stack.wrap(tables)
    step = max(1, NUMBERS // stack.width)
    return torch.cat([_score_first(stack.take(slice(k, k + step)).double()) for k in range(0, len(stack), step)])


def _score_first(rows: Tensor) -> Tensor:
    rows = rows - rows.mean(1, keepdim=True)
    axis = torch.linalg.eigh(rows.mT @ rows).eigenvectors[..., -1]
    return (rows @ mixture.upright(axis).unsqueeze(-1)).squeeze(-1)


# -- pictures of rows, and how they are compared --


def distinct_items(chunk: fm.Chunk) -> tuple[Tensor, np.ndarray]:
    """Return the items of every client, each once, client after client; and how many each has."""
    items, client = chunk.world.items, np.repeat(np.arange(len(chunk.clients)), chunk.positives)
    key = np.unique(client * items + chunk.items)  # users of one client may have items in common
    return chunk.tensor(key % items), np.bincount(key // items, minlength=len(chunk.clients))


def represent(tables: Tensor, items: Tensor, counts: np.ndarray, k: int, mode: Complementarity) -> Tensor:
    """Return a picture of some rows of every client's table. Vectors that the rows have too low a rank for are zero.

    left-*: [clients, k, most items], the first left singular vectors, entry j belonging to the j-th of a client's
    items. right-*: [clients, k, d], the first principal axes of the centred rows (an item given twice counts twice).
    raw: [clients, 1, d], the mean row.
    """
    d = tables.shape[-1]
    if mode == "raw":
        mean: mixture.Rows = lambda rows, real, count: mixture.mean_rows(rows, count)  # noqa: E731
        return mixture.represent_rows(tables, items, counts, (1, d), mean)
    if mode in LEFT:
        return mixture.represent_rows(tables, items, counts, (k, int(counts.max(initial=0))), left_vectors(k))
    return mixture.represent_rows(tables, items, counts, (k, d), mixture.first_axes(k))


def left_vectors(k: int) -> mixture.Rows:
    """Return what finds the first k left singular vectors of rows."""

    def find(rows: Tensor, real: Tensor, count: Tensor) -> Tensor:
        square, axes, ranked = mixture.largest_vectors(rows.mT @ rows, rows.square().sum((1, 2)), k)
        vectors = rows @ axes / torch.where(ranked, square, torch.ones_like(square)).sqrt()[:, None]
        return mixture.upright(vectors.mT) * ranked[..., None]

    return find


def scatter(pictures: Tensor, place: Tensor, length: int) -> Tensor:
    """[clients, k, n] to [clients, k, length]: entry j of a client goes to its `place[j]`; padding is zero anywhere."""
    index = place.long()[:, None].expand_as(pictures)
    return pictures.new_zeros(*pictures.shape[:2], length).scatter_add_(2, index, pictures)


def complementarity(pictures: Tensor, mode: Complementarity, outer: Outer = "cos") -> Tensor:
    """c_uv of equation 7: from the mean angle between the pictures of u and of v, which is 0 for u = v.

    left-*: the l-th vector with the l-th. right-greedy: the pair with the largest signed cosine, then the largest of
    the remaining rows and columns, and so on. right-principal: the principal angles of the two spans. raw: the
    angle of the two vectors.
    """
    if mode in LEFT:
        vectors = pictures.double().transpose(0, 1)
        # norms as they are: products that noise made too large are only clipped
        angle = mixture.angles(vectors @ vectors.mT).mean(0).fill_diagonal_(0)
    elif mode == "raw":
        angle = mixture.mean_angles(pictures, lambda cosines: cosines.flatten(-2))
    else:
        pairs = mixture.greedy_pairs if mode == "right-greedy" else torch.linalg.svdvals
        angle = mixture.mean_angles(pictures, pairs)
    return angle.cos() if outer == "cos" else angle.sin()
