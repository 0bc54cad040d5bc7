"""Updates as whole numbers modulo 2^64: what masks are added to. What does not fit is refused, never clipped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedrec.errors import FedrecError
from fedrec.federation.codec import BadMessage
from fedrec.federation.schema import HEAVIEST, Schema
from fedrec.federation.update import Update

FRACTION = 32  # bits behind the point, unless terms say otherwise
WHOLE = 62  # bits of a sum, sign and one to spare aside


class ForgedWeight(FedrecError):
    """A sum of weights that honest members cannot have."""


@dataclass(frozen=True)
class Part:
    """One sum. `mean`: the server divides it by the sum of weights. `equal`: every client's weight is 1."""

    name: str
    shape: tuple[int, ...]
    mean: bool
    equal: bool = False

    @property
    def entries(self) -> int:
        return math.prod(self.shape)

    @property
    def is_of_all(self) -> bool:
        """Whether each client that sends anything adds 1 to its weight."""
        return self.equal and not self.cohort

    @property
    def cohort(self) -> str:
        """Whose clients alone send it; empty: all."""
        return self.name.partition("@")[2]


@dataclass(frozen=True)
class Layout:
    """The sums of a round side by side, each followed by its weight: a mean is a sum of w x and one of w."""

    parts: tuple[Part, ...]
    fraction: int = FRACTION

    def __post_init__(self) -> None:
        # A double has 53 bits, so finer fractions would only carry its rounding.
        if not 1 <= self.fraction <= 52:
            raise FedrecError(f"secure sums cannot have {self.fraction} fractional bits; choose 1 to 52")

    @property
    def entries(self) -> int:
        return sum(part.entries + 1 for part in self.parts)

    def limit(self, members: int) -> float:
        """The largest number that each of so many members may send without the sum overflowing."""
        return 2.0 ** (WHOLE - self.fraction) / members

    def encode(self, update: Update, members: int) -> np.ndarray:
        """As uint64; parts that the update lacks have the weight 0."""
        self._require_sums(update)
        numbers = np.zeros(self.entries, dtype=np.int64)
        at = 0
        for part in self.parts:
            if part.name in update.totals:
                total = update.totals[part.name]
                if tuple(total.shape) != part.shape:
                    raise FedrecError(f"'{part.name}' has the shape {tuple(total.shape)}; it must be {part.shape}")
                values = total.detach().cpu().double().numpy().ravel()
                numbers[at : at + part.entries] = self._to_integers(values, f"'{part.name}'", members)
                weight = np.array([update.weights[part.name]])
                numbers[at + part.entries] = self._to_integers(weight, f"the weight of '{part.name}'", members)[0]
            at += part.entries + 1
        # In two's complement, negative numbers add up right modulo 2^64 too.
        return numbers.view(np.uint64)

    def _require_sums(self, update: Update) -> None:
        if update.gathered:
            raise FedrecError(f"'{next(iter(update.gathered))}' is each client's own upload, which no sum can hide")
        strange = sorted(update.totals.keys() - {part.name for part in self.parts})
        if strange:
            raise FedrecError(f"unexpected '{strange[0]}'; the secure sum has {self._names()}")

    def _names(self) -> str:
        return ", ".join(part.name for part in self.parts)

    def _to_integers(self, values: np.ndarray, what: str, members: int) -> np.ndarray:
        largest, limit = float(np.abs(values).max(initial=0.0)), self.limit(members)
        # Written this way round so that NaN, which compares false with everything, is refused as well.
        if not largest <= limit:
            raise FedrecError(
                f"{what} holds {largest:.4g}, but with {self.fraction} fractional bits each of {members} members "
                f"of a secure sum may send up to {limit:.4g}; lower --secure-bits, clip uploads (--privacy clip=1) or "
                "lower the learning rate"
            )
        # Rounded, because the cast alone cuts towards zero and would bias every sum.
        return np.rint(values * 2.0**self.fraction).astype(np.int64)

    def decode(self, sums: np.ndarray, clients: np.ndarray) -> Update:
        """The update of all members together; parts that nobody sent are left out.

        Nobody sees a single weight, so the sum of all is checked: a member that sent another one than it may would
        make a mean of any size, or remove it.
        """
        numbers = sums.view(np.int64).astype(np.float64) * 2.0**-self.fraction
        totals, weights, at = {}, {}, 0
        for part in self.parts:
            flat, weight = numbers[at : at + part.entries], float(numbers[at + part.entries])
            at += part.entries + 1
            if not weight and not flat.any():
                continue
            if not 0 < weight <= HEAVIEST * len(clients) or (part.is_of_all and weight != len(clients)):
                raise ForgedWeight(
                    f"the weight of '{part.name}' is {weight:g} for {len(clients)} clients; a member has sent a "
                    "wrong one"
                )
            # A copy, since a view would keep the numbers of all parts alive.
            totals[part.name], weights[part.name] = torch.from_numpy(flat.reshape(part.shape).copy()), weight
        means = frozenset(part.name for part in self.parts if part.mean and part.name in totals)
        return Update(totals, weights, means, {}, clients)

    def to_dict(self) -> dict[str, Any]:
        parts = [[part.name, part.shape, part.mean, part.equal] for part in self.parts]
        return {"fraction": self.fraction, "parts": parts}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Layout:
        parts = [
            Part(str(name), tuple(int(size) for size in shape), bool(mean), bool(equal))
            for name, shape, mean, equal in values["parts"]
        ]
        # Checked one by one, because two negative sizes multiply to a plausible count.
        if any(size < 0 for part in parts for size in part.shape):
            raise BadMessage("a secure sum has a negative size")
        return Layout(tuple(parts), int(values["fraction"]))


def layout_of(schema: Schema, method: str, fraction: int = FRACTION) -> Layout:
    """Of what the clients of a method send. A method that gathers is refused by name."""
    own = [name for name, kinds in schema.fields.items() if any(kind.gathered for kind in kinds)]
    if own:
        raise FedrecError(
            f"{method} needs each client's own upload ('{own[0]}'), which secure sums hide; `fedrec methods` lists "
            "the methods that allow a blind server"
        )
    first = {name: schema.fields[name][0] for name in sorted(schema.fields)}
    parts = [Part(name, one.shape, one.mean, one.equal) for name, one in first.items()]
    return Layout(tuple(parts), fraction)
