"""A secure sum from end to end, with members that leave where a test says so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from fedrec.federation.update import Update
from fedrec.secure import Collector, Layout, Member, Terms, new_session
from fedrec.secure.fixed_point import Part

LAYOUT = Layout((Part("count", (3,), mean=False), Part("item", (5, 4), mean=True)))


def terms(layout: Layout = LAYOUT, **values: object) -> Terms:
    return Terms(new_session("test"), layout, **values)  # type: ignore[arg-type]


def update(number: int, scale: float = 1.0) -> Update:
    rng = np.random.default_rng(number)
    weight = float(rng.integers(1, 9))
    totals = {"count": rng.normal(size=3) * scale, "item": weight * rng.normal(size=(5, 4)) * scale}
    tensors = {name: torch.from_numpy(value) for name, value in totals.items()}
    return Update(tensors, {"count": 1.0, "item": weight}, frozenset({"item"}), {}, np.array([number]))


def added(numbers: Collection[int]) -> dict[str, torch.Tensor]:
    """What the sum should be, weights beside it."""
    parts = [update(number) for number in numbers]
    found = {name: torch.stack([part.totals[name] for part in parts]).sum(0) for name in ("count", "item")}
    return found | {"weight": torch.tensor(sum(part.weights["item"] for part in parts))}


def nobody(phase: str, member: int) -> bool:
    return False


@dataclass
class Secure:
    """Members and collector of one sum; `leaves` says who does not answer in which phase."""

    numbers: Collection[int]
    terms: Terms = field(default_factory=terms)
    leaves: Callable[[str, int], bool] = nobody
    messages: dict[str, dict[int, bytes]] = field(default_factory=dict)  # all that reached the server

    def __post_init__(self) -> None:
        self.members = {number: Member(number, self.terms) for number in self.numbers}
        self.collector = Collector(self.terms, {number: np.array([number]) for number in self.numbers})

    def phase(self, name: str, downs: Mapping[int, bytes]) -> None:
        """Everybody who is asked and there answers."""
        take = getattr(self.collector, "take_" + {"unmask": "unmasked"}.get(name, name))
        for number, down in downs.items():
            if not self.leaves(name, number):
                message = self.answer(name, number, down)
                self.messages.setdefault(name, {})[number] = message
                take(number, message)

    def answer(self, name: str, number: int, down: bytes) -> bytes:
        member = self.members[number]
        if name == "keys":
            return member.keys()
        if name == "masked":
            return member.mask(down, update(number))
        return getattr(member, name)(down)

    def run(self) -> Update:
        self.phase("keys", dict.fromkeys(self.numbers, b""))
        self.phase("shares", self.collector.close_keys())
        self.phase("masked", self.collector.close_shares())
        self.phase("unmask", self.collector.close_masked())
        return self.collector.result()
