"""FedMF: the plain mean of the clients' item tables, every round.

Each client keeps its user vector, trains it and the item table it received on its own items, and sends the table back.
Comparisons of federated recommenders call this FedMF, after Chai et al. 2020; that of FedCA calls it FCF, which in
Ammad-ud-din et al. 2019 is another algorithm: clients solve their vectors by least squares and send gradients of the
items.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedrec import method as fm
from fedrec.methods.average.fedavg import FedAvg


@dataclass(frozen=True)
class FedMF(FedAvg):
    """FedAvg with equal shares, of the bare inner product."""

    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="fedmf",
        summary="mean of item tables",
        paper="Chai et al., IEEE Intelligent Systems 2020",
        backbones={"mf": {}},
        new_users=30,
    )

    shares: fm.Shares = "equal"
