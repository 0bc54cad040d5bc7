"""What a simulation of FedRKG shows that no server sees: the gates of groups of users, and a commit's effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.evaluation.groups import ACTIVITY, TASTE, by_activity, by_taste, popular_items
from fedrec.experiment.observers.observer import Observer
from fedrec.federation.simulator import Simulator
from fedrec.methods.personal.fedrkg import FedRKG
from fedrec.methods.personal.gate import gate_logits


class GuidanceObserver(Observer):
    def __init__(self, method: FedRKG) -> None:
        self.method = method

    def looks_before_answer(self, round: int) -> bool:
        return self.method.variant == "full" and self.method.guides(round)

    def figures(self, simulator: Simulator, round: int) -> Mapping[str, float]:
        return gates_by_group(simulator) if self.method.gated and self.method.guides(round) else {}

    def may_stop(self, round: int) -> bool:
        """Not right before guidance, which changes all tables."""
        return not self.method.guides(round + 1)


def gates_by_group(simulator: Simulator) -> dict[str, float]:
    """Mean gate and mean logit, after the last commit: of cold and warm users over all items, of distinct users and
    followers over popular items."""
    data, items = simulator.data, simulator.world.items
    count = np.diff(data.user_ptr)
    pairs = np.repeat(np.arange(len(count)), count), data.items  # users by index
    tastes, popular = by_taste(pairs, len(count), items), popular_items(data.items, items)
    found: dict[str, float] = {}
    for names, labels, chosen in ((ACTIVITY, by_activity(count), None), (TASTE, tastes, popular)):
        by_user = np.empty(int(data.users.max()) + 1, np.int64)
        by_user[data.users] = labels
        means = gate_means(simulator, by_user, chosen)
        for label in (0, 2):
            found |= {f"{kind} {names[label]}": means[label][kind] for kind in ("gate", "logit") if label in means}
    return found


def gate_means(
    simulator: Simulator, labels: np.ndarray, items: np.ndarray | None = None
) -> dict[int, dict[str, float]]:
    """By group of users (`labels`, by the data set's user index): its size, mean gate and mean logit over `items`."""
    sums: dict[int, list[float]] = {int(label): [0, 0.0, 0.0] for label in np.unique(labels[simulator.data.users])}
    chosen = None if items is None else torch.from_numpy(np.asarray(items))
    for users, logits in _all_logits(simulator):
        some = logits if chosen is None else logits[:, chosen.to(logits.device)]
        means = torch.stack([torch.sigmoid(some.double()).mean(1), some.double().mean(1)]).tolist()
        for user, gate, logit in zip(users, *means, strict=True):
            entry = sums[int(labels[user])]
            entry[0], entry[1], entry[2] = entry[0] + 1, entry[1] + gate, entry[2] + logit
    return {
        label: {"users": n, "gate": gate / max(n, 1), "logit": logit / max(n, 1)}
        for label, (n, gate, logit) in sums.items()
    }


def _all_logits(simulator: Simulator) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Users and the gate logits of all items, client by client."""
    method, data = _fedrkg(simulator), simulator.data
    if not method.gated:
        raise FedrecError("there are no gates without gate=true and variant=full")
    held, common = simulator.cohorts[0].state.per_client, simulator.server["item"]
    for client in range(simulator.world.clients):
        own = {name: held[name][client : client + 1] for name in ("item", "gate", "gate_bias")}
        logits = gate_logits(own["item"], common, own["gate"], own["gate_bias"])
        users = data.users[data.client_ptr[client] : data.client_ptr[client + 1]]
        yield users, logits.expand(len(users), -1)


def _fedrkg(simulator: Simulator) -> FedRKG:
    if not isinstance(simulator.method, FedRKG):
        raise FedrecError(f"{simulator.method.info.name} has no guidance to look at; this is for fedrkg")
    return simulator.method
