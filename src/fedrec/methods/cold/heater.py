"""Heater: a mixture of experts turns attributes into an item's factors, and is trained as if items were new.

Zhu et al., "Recommendation for New Users and New Items via Randomized Training and Mixture-of-Experts Transformation"
(SIGIR 2020), centralised. With u, v the factors of a matrix factorisation, standardised and clipped,
    v^ = tanh(sum_k g_k tanh(W_k x + b_k)),  g = tanh(G x + c)                      the experts and their gates
    s = a(u) . b(v~),  a and b: linear, batch norm, tanh, linear                   both sides
where v~ is v^ for a random half of each batch and v for the rest. The loss is the mean of (s - label)^2, plus `l2`
times the squares of all weights, plus `closeness` times the sum over the batch of |v^ - v|^2. Negatives are drawn from
all items that can be trained on, a user's own among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.methods.cold.networks import affine, batch_norm, leaves_of, positives, shuffle_batches
from fedrec.methods.cold.pretrained import Pretrained

EXPERTS = 5  # as in the paper
VELOCITY = "velocity."


def standardise(table: Tensor, most: float) -> Tensor:
    """Return columns of mean 0 and variance 1, clipped."""
    # A column that is the same for all has no spread; the floor below leaves it zero instead of NaN.
    spread = table.std(0, correction=0)
    return ((table - table.mean(0)) / spread.clamp(min=1e-12)).clamp(-most, most)


def mix_experts(x: Tensor, w: fm.Tensors) -> Tensor:
    """Return v^ of items with attributes x."""
    opinions = torch.tanh(affine(x, w, "experts")).unflatten(-1, (EXPERTS, -1))
    return torch.tanh((torch.tanh(affine(x, w, "gates")).unsqueeze(-1) * opinions).sum(-2))


def tower(side: str, x: Tensor, w: fm.Tensors, training: bool) -> Tensor:
    """Return a(u) or b(v): linear, batch norm, tanh, linear."""
    hidden = batch_norm(affine(x, w, side + "1"), w, side + ".norm", training)
    return affine(torch.tanh(hidden), w, side + "2")


def loss_of(
    w: fm.Tensors, user: Tensor, item: Tensor, x: Tensor, as_new: Tensor, label: Tensor, closeness: float, l2: float
) -> Tensor:
    """Return the loss of one batch; `as_new` marks the pairs whose item is seen through its attributes."""
    made = mix_experts(x, w)
    seen = torch.where(as_new.unsqueeze(-1), made, item)
    score = (tower("user", user, w, True) * tower("item", seen, w, True)).sum(-1)
    # Names with a dot are those of batch norms and of the optimiser, which are not regularised.
    weights = sum((value.square().sum() for name, value in w.items() if "." not in name), torch.zeros(()))
    return (score - label).square().mean() + l2 * weights + closeness * (made - item).square().sum()


@dataclass(frozen=True)
class Heater(Pretrained):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="heater",
        summary="new items: mixture of experts fitted to pre-trained factors",
        paper="Zhu et al., SIGIR 2020",
        centralised=True,
    )

    lr: float = 0.005
    decay: Annotated[float, "(0, 1]"] = 0.8
    """Factor on the learning rate every 10 rounds."""
    momentum: Annotated[float, "[0, 1)"] = 0.9
    """Momentum of the descent."""
    closeness: float = 1e-4
    """Weight of the distance between an item's factors and those made from its attributes."""
    l2: float = 1e-4

    @cached_property
    def network(self) -> Experts:
        return Experts(
            dim=self.dim,
            lr=self.lr,
            decay=self.decay,
            momentum=self.momentum,
            closeness=self.closeness,
            l2=self.l2,
            batch=self.batch,
        )


@dataclass(frozen=True)
class Experts:
    """The mixture and both towers, trained by gradient descent with momentum."""

    dim: int
    lr: float
    decay: float
    momentum: float
    closeness: float
    l2: float
    batch: int
    memory = (VELOCITY,)
    norms = ("user.norm", "item.norm")

    def layers(self, width: int) -> dict[str, tuple[int, ...]]:
        d = self.dim
        shapes: dict[str, tuple[int, ...]] = {
            "experts": (EXPERTS * d, width),
            "experts_bias": (EXPERTS * d,),
            "gates": (EXPERTS, width),
            "gates_bias": (EXPERTS,),
        }
        for layer in ("user1", "user2", "item1", "item2"):
            shapes |= {layer: (d, d), layer + "_bias": (d,)}
        return shapes

    def prepare(self, user: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
        # Items are clipped at 1, because what is made of attributes passes tanh and could not reach more.
        return standardise(user, 5.0), standardise(item, 1.0)

    def epoch(self, chunk: fm.Chunk, round: int, w: fm.Tensors, user: Tensor, item: Tensor, attributes: Tensor) -> None:
        owner, target, label = draw_samples(chunk, round)
        rate = self.lr * self.decay ** (round // 10)
        # A stream apart from that of the order: who plays a new item must not depend on the place in the epoch.
        halves, total = fm.random.stream(chunk.world.seed, fm.random.Purpose.DROPOUT, round), 0.0
        for number, part in enumerate(shuffle_batches(chunk, round, len(owner), self.batch)):
            i = target[part]
            leaves = leaves_of(w, self.memory)
            loss = loss_of(
                w | leaves,
                user[owner[part]],
                item[i],
                attributes[i],
                choose_half(fm.random.fold(halves, number), part),
                label[part],
                self.closeness,
                self.l2,
            )
            for name, gradient in zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True):
                # The rate is outside of the velocity, as in torch: when it falls, it does so for past gradients too.
                velocity = w[VELOCITY + name].mul_(self.momentum).add_(gradient)
                w[name] -= rate * velocity
            total += float(loss.detach()) * len(part)
        chunk.observe("loss", total, len(owner))

    def vectors(self, w: fm.Tensors, user: Tensor, attributes: Tensor) -> tuple[Tensor, Tensor]:
        return tower("user", user, w, False), tower("item", mix_experts(attributes, w), w, False)


def draw_samples(chunk: fm.Chunk, round: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return users, items and labels: every interaction, and as often as the protocol says any item at all."""
    user, item = positives(chunk)
    count = len(item) * chunk.data.negatives
    place = torch.arange(count, device=item.device)
    drawn = fm.random.below(
        fm.random.fold_tensor(fm.random.stream(chunk.world.seed, fm.random.Purpose.NEGATIVES, round), place),
        chunk.world.items,
    )
    label = torch.zeros(len(item) + count, dtype=chunk.world.dtype, device=item.device)
    label[: len(item)] = 1
    return torch.cat([user, user.repeat_interleave(chunk.data.negatives)]), torch.cat([item, drawn]), label


def choose_half(key: int, part: Tensor) -> Tensor:
    """Choose exactly half of a batch, rounded down."""
    draws = fm.random.fold_tensor(key, torch.arange(len(part), device=part.device))
    chosen = torch.zeros(len(part), dtype=torch.bool, device=part.device)
    # Exactly half and not each with chance 1/2: the loss of small batches would vary with their share.
    chosen[draws.argsort()[: len(part) // 2]] = True
    return chosen
