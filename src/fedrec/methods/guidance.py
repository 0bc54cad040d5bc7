"""What a simulation of FedRKG shows: memory of a client, gates by group of users, the effect of one commit."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.federation.clients import ClientData
from fedrec.federation.simulator import Simulator
from fedrec.federation.wire import Wire
from fedrec.methods.fedrkg import FedRKG, gate_logits


def memory(simulator: Simulator) -> dict[str, int]:
    """Numbers that one client holds, counted in what it really holds: in training, in guidance, to score."""
    method = _fedrkg(simulator)
    state = simulator.homes[0].state
    held = {name: value[0].numel() for name, value in (state.per_client | state.per_user).items()}
    down = method.answer(simulator.server, np.arange(1), method.interval - 1)
    scoring = ("item", "user", *method.model.dense_shapes())
    return {
        "training": sum(held.values()),
        "guidance": sum(held.values()) + sum(value.numel() for value in (down.shared if down else {}).values()),
        "inference": sum(held[name] for name in scoring),
    }


def gate_means(
    simulator: Simulator, labels: np.ndarray, items: np.ndarray | None = None
) -> dict[int, dict[str, float]]:
    """By group of users (`labels`, by the data set's user index): its size, mean gate and mean logit over `items`."""
    sums: dict[int, list[float]] = {int(label): [0, 0.0, 0.0] for label in np.unique(labels)}
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
    held, common = simulator.homes[0].state.per_client, simulator.server["item"]
    for client in range(simulator.world.clients):
        own = {name: held[name][client : client + 1] for name in ("item", "gate", "gate_bias")}
        logits = gate_logits(own["item"], common, own["gate"], own["gate_bias"])
        users = data.users[data.client_ptr[client] : data.client_ptr[client + 1]]
        yield users, logits.expand(len(users), -1)


def before_commit(simulator: Simulator, round: int) -> Simulator:
    """A copy of the simulation, one round on but without its guidance: what clients score with before they commit."""
    method, twin = _fedrkg(simulator), copy.copy(simulator)
    twin.method = replace(method, variant="PIE")
    twin.homes = copy.deepcopy(simulator.homes)
    twin.wire = Wire(simulator.world, simulator.wire.stages, simulator.wire.memory)
    twin.round(round)
    return twin


def most_steps(method: FedRKG, data: ClientData) -> np.ndarray:
    """Noised steps of every client in a whole run in which all take part, for `FedRKG.epsilon`."""
    samples = data.positives * (1 + data.negatives)
    return np.asarray(-(-samples // method.batch) * method.epochs * method.rounds)


def _fedrkg(simulator: Simulator) -> FedRKG:
    if not isinstance(simulator.method, FedRKG):
        raise FedrecError(f"{simulator.method.name} has no guidance to look at; this is for fedrkg")
    return simulator.method
