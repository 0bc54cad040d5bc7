"""GAR: a generator of item factors from attributes plays against the recommender that must tell them apart.

Chen et al., "Generative Adversarial Framework for Cold-Start Item Recommendation" (SIGIR 2022), centralised,
on the factors u, v of a matrix factorisation. G is linear, batch norm, tanh, dropout, linear on attributes. The
recommender has two towers (batch norm, linear, batch norm, tanh, dropout, linear) and scores by their inner product.
With z+, z-, zg its scores of (u, v_i), (u, v_j) and (u, G(x_i)), every batch takes one step each on
    L_D = -log sigmoid(z+ - (1 - beta) zg - beta z-)
    L_G = -(1 - alpha) log sigmoid(zg - z+) + alpha mean |G(x_i) - v_i|
plus `l2` times the squares of the matrices that step. Published runs stop after 10 epochs without gain: --patience 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec import method as fm
from fedrec.methods.cold.networks import affine, batch_norm, drop_out, leaves_of, positives, shuffle_batches
from fedrec.methods.cold.pretrained import Pretrained
from fedrec.training.samples import negatives

MOMENTS = ("first.", "second.")
SIDES = ("user", "item")
NORMS = ("generator.norm", *(f"{side}.{place}" for side in SIDES for place in ("first", "second")))
GENERATOR, RECOMMENDER = ("generator",), SIDES  # how the names of their weights begin


def generate(
    x: Tensor, w: fm.Tensors, training: bool, key: int = 0, remember: bool = True, drop: float = 0.0
) -> Tensor:
    """Return G(x)."""
    hidden = torch.tanh(batch_norm(affine(x, w, "generator1"), w, "generator.norm", training, remember))
    return affine(drop_out(hidden, drop, key) if drop else hidden, w, "generator2")


def tower(
    side: str, x: Tensor, w: fm.Tensors, training: bool, key: int = 0, remember: bool = True, drop: float = 0.0
) -> Tensor:
    hidden = affine(batch_norm(x, w, side + ".first", training, remember), w, side + "1")
    hidden = torch.tanh(batch_norm(hidden, w, side + ".second", training, remember))
    return affine(drop_out(hidden, drop, key) if drop else hidden, w, side + "2")


def recommender_loss(known: Tensor, other: Tensor, made: Tensor, beta: float) -> Tensor:
    return -F.logsigmoid(known - (1 - beta) * made - beta * other).mean()


def generator_loss(known: Tensor, made: Tensor, vector: Tensor, target: Tensor, alpha: float) -> Tensor:
    return -(1 - alpha) * F.logsigmoid(made - known).mean() + alpha * (vector - target).abs().mean()


@dataclass(frozen=True)
class GAR(Pretrained):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="gar",
        summary="new items: a generator of item factors trained against a recommender",
        paper="Chen et al., SIGIR 2022",
        centralised=True,
    )

    rounds: fm.Count = 1000
    alpha: Annotated[float, "[0, 1]"] = 0.05
    """Generator: weight of being near the true factors, against being preferred."""
    beta: Annotated[float, "[0, 1]"] = 0.1
    """Recommender: weight of items that are not liked, against generated ones."""
    drop_generator: Annotated[float, "[0, 1)"] = 0.1
    """Dropout of the generator."""
    drop_recommender: Annotated[float, "[0, 1)"] = 0.5
    """Dropout of the recommender."""
    l2: float = 1e-3

    @cached_property
    def network(self) -> Adversaries:
        return Adversaries(
            dim=self.dim,
            lr=self.lr,
            alpha=self.alpha,
            beta=self.beta,
            drop_generator=self.drop_generator,
            drop_recommender=self.drop_recommender,
            l2=self.l2,
            batch=self.batch,
        )


@dataclass(frozen=True)
class Adversaries:
    """Generator and recommender, each with an Adam of its own."""

    dim: int
    lr: float
    alpha: float
    beta: float
    drop_generator: float
    drop_recommender: float
    l2: float
    batch: int
    memory = MOMENTS
    norms = NORMS

    def layers(self, width: int) -> dict[str, tuple[int, ...]]:
        d = self.dim
        shapes: dict[str, tuple[int, ...]] = {"generator1": (d, width), "generator1_bias": (d,)}
        for layer in ("generator2", *(side + number for side in SIDES for number in "12")):
            shapes |= {layer: (d, d), layer + "_bias": (d,)}
        return shapes

    def prepare(self, user: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        return user, item

    def epoch(self, chunk: fm.Chunk, round: int, w: fm.Tensors, user: Tensor, item: Tensor, attributes: Tensor) -> None:
        owner, liked = positives(chunk)
        other, slots = negatives(chunk, round).flatten(), chunk.data.negatives
        # A last batch of one sample is left out, and must not count among Adam's steps.
        count = len(other) - int(len(other) % self.batch == 1)  # see `batches`
        steps, total = -(-count // self.batch), 0.0
        for number, part in enumerate(shuffle_batches(chunk, round, len(other), self.batch)):
            key = fm.random.fold(fm.random.stream(chunk.world.seed, fm.random.Purpose.DROPOUT, round), number)
            at, step = part // slots, round * steps + number + 1
            i, j = liked[at], other[part]
            batch = Batch(user[owner[at]], item[i], item[j], attributes[i], key)
            # The recommender first: the generator then plays against what has just learned to tell it apart.
            total += self._step(w, RECOMMENDER, batch, step) * len(part)
            self._step(w, GENERATOR, batch, step)
        chunk.observe("loss", total, len(other))

    def _step(self, w: fm.Tensors, who: tuple[str, ...], batch: Batch, step: int) -> float:
        """Take one step of Adam on the weights of one of the two players."""
        leaves = {name: value for name, value in leaves_of(w, self.memory).items() if name.startswith(who)}
        play = self.recommender if who is RECOMMENDER else self.generator
        loss = play(w | leaves, batch)
        for name, gradient in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True):
            first, second = (w[mark + name] for mark in MOMENTS)
            w[name] -= fm.adam_step(gradient, first, second, step, self.lr)
        return float(loss.detach())

    def recommender(self, w: fm.Tensors, batch: Batch) -> Tensor:
        # Detached and without memory: this step is the recommender's, and must leave no trace in the generator.
        made = generate(batch.attributes, w, True, fm.random.fold(batch.key, 0), False, self.drop_generator).detach()
        known, other, new = self._scores(w, batch, (batch.item, batch.other, made), True)
        return recommender_loss(known, other, new, self.beta) + self.l2 * sum_squares(w, RECOMMENDER)

    def generator(self, w: fm.Tensors, batch: Batch) -> Tensor:
        made = generate(batch.attributes, w, True, fm.random.fold(batch.key, 1), True, self.drop_generator)
        known, new = self._scores(w, batch, (batch.item, made), False)
        return generator_loss(known, new, made, batch.item, self.alpha) + self.l2 * sum_squares(w, GENERATOR)

    def _scores(self, w: fm.Tensors, batch: Batch, items: tuple[Tensor, ...], remember: bool) -> list[Tensor]:
        """Score one user each with several items; only the recommender's own step teaches its batch norms."""
        keys = [fm.random.fold(batch.key, 2 + 4 * remember + place) for place in range(1 + len(items))]
        user = tower("user", batch.user, w, True, keys[0], remember, self.drop_recommender)
        rated = (
            tower("item", item, w, True, key, remember, self.drop_recommender)
            for item, key in zip(items, keys[1:], strict=True)
        )
        return [(user * vector).sum(-1) for vector in rated]

    def vectors(self, w: fm.Tensors, user: Tensor, attributes: Tensor) -> tuple[Tensor, Tensor]:
        return tower("user", user, w, False), tower("item", generate(attributes, w, False), w, False)


@dataclass(frozen=True)
class Batch:
    """Users, the items they like and others, by factors; the liked ones' attributes; what dropout hangs on."""

    user: Tensor
    item: Tensor
    other: Tensor
    attributes: Tensor
    key: int


def sum_squares(w: fm.Tensors, who: tuple[str, ...]) -> Tensor:
    """Return the sum of squares of all matrices of a player."""
    return sum((v.square().sum() for name, v in w.items() if name.startswith(who) and v.dim() == 2), torch.zeros(()))
