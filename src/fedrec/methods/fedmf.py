"""FedMF, also known as FCF: the plain mean of the clients' item tables, every round.

Ammad-ud-din et al. 2019; Chai et al. 2020. Each client keeps its user vector, trains it and the item table it
received on its own items, and sends the table back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from fedrec.methods.comparison import TOGETHER
from fedrec.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedMF(FedAvg):
    name: ClassVar[str] = "fedmf"
    aliases: ClassVar[Mapping[str, Mapping[str, object]]] = {"FCF": {}}
    summary: ClassVar[str] = "mean of item tables"
    paper: ClassVar[str] = "Chai et al., IEEE Intelligent Systems 2020"
    backbones: ClassVar[tuple[str, ...]] = ("mf",)
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "fedca": TOGETHER,
        "tuned": {"lr": 40.0},  # of 10 to 160, by NDCG@10 on the validation items of ml-100k, honest
    }

    shares: Literal["samples", "equal"] = "equal"
