"""What is measured: a method on fixed data. Every task is done in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fedrec import data as rooms
from fedrec.data import Interactions, synthetic
from fedrec.errors import FedrecError
from fedrec.experiment import Run, RunConfig, plan_run
from fedrec.methods import listings, method_class

SIZES = {"quick": (120, 200, 4_000), "100k": (943, 1_682, 100_000), "1m": (6_040, 3_706, 1_000_000)}
"""Clients, items and interactions of the synthetic worlds; the larger ones are as large as those of MovieLens."""
SILOS = {"fedcia": "20"}
COLD = "ifedrec,ks=10+20,select_metric=recall@20"  # new items are ranked, by their attributes
MEMORY = {"cpu": "8G", "cuda": "64G"}
LONG = 3_000  # rounds: more than any measurement runs


@dataclass(frozen=True)
class Task:
    """What is to be measured. `turns`: how often a round is timed before and after."""

    method: str
    data: str = "synthetic"
    size: str = "100k"
    device: str = "cpu"
    turns: int = 5
    params: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The method with the settings that differ from its defaults."""
        return " ".join([self.method, *(f"{name}={value}" for name, value in self.params.items())])

    @property
    def label(self) -> str:
        """Its data, in words."""
        return f"synthetic, {self.size}" if self.data == "synthetic" else self.data

    def interactions(self) -> Interactions:
        return synthetic(*SIZES[self.size]).interactions if self.data == "synthetic" else rooms.load(self.data)

    def run(self, data: Interactions) -> Run:
        """Of the method, before its first round."""
        name = method_class(self.method)[0].info.name
        cold = name in {listing.name for listing in listings() if listing.attributes != "none"}
        config = RunConfig(
            name,
            data=self.data,
            protocol=COLD if cold else "honest",
            params=self.params,
            rounds=LONG,
            silos=SILOS.get(name),
            device=self.device,
            memory=MEMORY[self.device],
        )
        return Run(plan_run(config, data))


def require_size(name: str) -> str:
    if name not in SIZES:
        raise FedrecError(f"--size {name}: use {', '.join(SIZES)}")
    return name
