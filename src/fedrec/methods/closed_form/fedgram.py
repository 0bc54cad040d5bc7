"""FedGram: closed-form models, order-aware too, from one sum over clients of their Gram matrices. Our own method.

Every client adds up, over its users, G = sum x x' (and with `order` M = sum x y'). The server sees the sums, solves and
sends the model back: one message each way, and the model is the centralised one.

- model=ease: B = argmin |X - XB|^2 + l2 |B|^2 with zero diagonal (Steck, WWW 2019), from G = X'X;
- model=linear: F = D^-1/2 X' U^-1 X D^-1/2, with U the users' and D the items' degrees;
- model=gfcf: F + ideal_weight D^-1/2 V V' D^1/2, V its `frequencies` leading eigenvectors (Shen et al., CIKM 2021).

With order=true (ease and linear) x_t is a user's history up to step t, fading with `half_life` down to `floor`, and y_t
what came next: the j-th next item with weight 1/j, up to `window`. The regression of all y_t on x_t (linear: the pairs
alone, normalised), together with `co` times the order-free one, is again two sums over users (close to Choi et al.,
WWW 2021). A client scores with its own faded history.

The sum must be blind. One client's Gram matrix lists its items and its M their order: who sees it sees everything. The
simulator adds up exactly; a deployment needs secure aggregation. Noise on the sum: --privacy clip=C with --epsilon.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from fedrec import method as fm
from fedrec.methods.closed_form import gram

# Away from the low numbers, which are of user, item and network.
SKETCH = 9  # the stream of initial values that the sketch is drawn from


@dataclass(frozen=True)
class FedGram(fm.Method):
    # By validation NDCG@10, on ml-100k as the mean over three orders of tied times. Denser data want less smoothing.
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="fedgram",
        summary="closed-form models, optionally order-aware, from one blind sum of Gram matrices",
        new_users=0,
        reads_order=lambda method: bool(method.order),
    )

    rounds: fm.Count = 1
    model: Literal["ease", "linear", "gfcf"] = "ease"
    """What is computed from the sum of Gram matrices: EASE, its linear scores, or the graph filter of GF-CF."""
    l2: fm.Positive = 250.0
    order: bool = False
    """Whether the order of a user's items counts: later ones more, and pairs by who follows whom."""
    half_life: fm.Positive = 3.0
    floor: Annotated[float, "[0, 1]"] = 0.08
    window: fm.Count = 2
    co: float = 0.8
    popularity_power: Annotated[float, "(-inf, inf)"] = 0.0
    frequencies: fm.Count = 256
    """gfcf: eigenvectors in the ideal low-pass filter."""
    ideal_weight: float = 0.3
    """gfcf: weight of the ideal low-pass filter."""
    sketch: int = 0
    """Columns of a random sketch that is sent instead of the Gram matrix; 0: the whole matrix."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _require(
            not (self.order and self.model == "gfcf"), "model=gfcf cannot use the order of items; use ease or linear"
        )
        _require(not self.sketch or self.model == "ease", f"sketch works with model=ease, not {self.model}")

    @property
    def disclosure(self) -> fm.Disclosure:
        """Bound how far two uploads can be apart.

        Without a sketch no entry of an upload is negative, whatever the histories are. They are marked by ones,
        fading, `floor` and `co` are not negative, and clipping scales. So for any two uploads u and v of norm at most C

            |u - v|^2 = |u|^2 + |v|^2 - 2 u'v <= 2 C^2

        and histories without a common item reach it. The columns of a sketch have both signs.
        """
        return fm.Disclosure(
            secure_aggregation=True,
            reveals="one client's Gram matrix lists its items",
            sensitivity=2.0 if self.sketch else 2.0**0.5,
        )

    # -- the client's part: what its users add to the sums --

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        # Blocks are as large as the longest history of the chunk: shorter ones are corners of them.
        longest = int(np.diff(chunk.user_ptr).max(initial=0))
        columns = self._draw_sketch(chunk.world).cpu().numpy() if self.sketch else None
        tables = {
            name: gram.sum_blocks(chunk, block, self._user_weights(chunk), columns)
            for name, block in self._blocks(longest).items()
        }
        tables["count"] = gram.count_items(chunk)
        return state, {name: fm.Sum(table) for name, table in tables.items()}

    def _blocks(self, longest: int) -> dict[str, np.ndarray]:
        if not self.order:
            return {"gram": np.ones((longest, longest))}
        fade = gram.fading(self.half_life, self.floor, longest)
        blocks = {name: block + self.co for name, block in gram.order_blocks(fade, self.window).items()}
        return {"cross": blocks["cross"]} if self.model == "linear" else blocks

    def _user_weights(self, chunk: fm.Chunk) -> np.ndarray:
        """Return the weight of every user: filters divide by the number of its items."""
        # At least 1: a user without items adds nothing, but must not divide by zero.
        degrees = np.maximum(np.diff(chunk.user_ptr), 1)
        return np.ones(len(degrees)) if self.model == "ease" or self.order else 1.0 / degrees

    def _draw_sketch(self, world: fm.World) -> Tensor:
        """Draw Gaussian columns [items, sketch], which everybody draws alike."""
        key = fm.random.stream(world.seed, fm.random.Purpose.INIT, SKETCH)
        draws = fm.random.normal(key, torch.arange(world.items * self.sketch)).reshape(world.items, self.sketch)
        # Scaled, so that S S' is the identity on average, however many columns there are.
        return (draws / self.sketch**0.5).to(world.device)

    # -- the server's part: the model from the sums --

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        if not self.sketch:
            return {"weight": torch.zeros(world.items, world.items, dtype=world.dtype, device=world.device)}
        nothing = torch.zeros(world.items, self._rank(world), dtype=world.dtype, device=world.device)
        return {"left": nothing, "right": nothing.clone(), "sketch": self._draw_sketch(world)}

    def _rank(self, world: fm.World) -> int:
        rank = world.items if self.sketch >= world.items else (self.sketch + 1) // 2
        # The order-aware model has two terms that are each of this rank.
        return 2 * rank if self.order else rank

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        # In double: the solution inverts a matrix whose eigenvalues span many orders.
        sums = {name: ups[name].double() for name in ("gram", "cross", "count") if name in ups}
        degree = sums["count"][:, 0]
        # Clamped, because noise on the sum can make a count zero or negative.
        scale = degree.clamp(min=1) ** -self.popularity_power
        if not self.sketch:
            return {"weight": self._weight(sums, degree).mul_(scale).to(server["weight"].dtype)}
        left, right = gram.ridge_of_sketch(sums["gram"], sums.get("cross"), server["sketch"], self.l2)
        factors = {"left": left, "right": right * scale[:, None]}
        return {name: _pad(value, server[name]) for name, value in factors.items()} | {"sketch": server["sketch"]}

    def _weight(self, sums: fm.Tensors, degree: Tensor) -> Tensor:
        if self.model == "ease":
            return gram.ridge(sums["gram"], sums.get("cross"), self.l2)
        linear = gram.normalise(sums["cross" if self.order else "gram"], degree)
        if self.model == "linear":
            return linear
        return linear + self.ideal_weight * gram.low_pass(linear, degree, self.frequencies)

    def broadcast(self, server: fm.Tensors, clients: np.ndarray, round: int) -> fm.Down:
        # The sketch is not sent: everybody draws it from the seed, and it is as large as the model.
        return fm.Down(shared={name: value for name, value in server.items() if name != "sketch"})

    # -- at a client, with the model --

    def score(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, items: Tensor) -> Tensor:
        if not self.sketch:
            return self._sum_history(chunk, down.shared["weight"])[:, items]
        return self._sum_history(chunk, down.shared["left"]) @ down.shared["right"][items].T

    def _sum_history(self, chunk: fm.Chunk, table: Tensor) -> Tensor:
        """Multiply what every user's items count today by a table of items: only a history's rows are touched."""
        history, fade = chunk.context, None
        at, ends = chunk.tensor(history.items if self.order else history.by_item()), chunk.tensor(history.ptr)
        if self.order:
            count = np.diff(history.ptr)
            age = np.repeat(history.ptr[1:], count) - 1 - np.arange(len(history.items))
            by_age = gram.fading(self.half_life, self.floor, int(count.max(initial=0)) + 1)
            fade = chunk.tensor(by_age[age]).to(table.dtype)
        return embedding_bag(at, table, ends, mode="sum", include_last_offset=True, per_sample_weights=fade)

    def footprint(self, world: fm.World) -> fm.Footprint:
        # an item of a history is a row of two Grams where uploads are looked at one by one; samples have negatives,
        # four as a rule, that are not drawn here
        sample = 64 + (self.sketch or world.items) * world.dtype.itemsize // 2
        usual = super().footprint(world)
        return replace(usual, sample=sample, score=usual.score + 8 * world.items)


def _pad(value: Tensor, like: Tensor) -> Tensor:
    """Return it in the columns of `like`: a sum of few users has fewer directions than the sketch has room for."""
    table = torch.zeros_like(like)
    table[:, : value.shape[1]] = value
    return table


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise fm.FedrecError(message)
