"""What a simulation of FedRKG shows that no server sees: the gates of groups of users, and a commit's effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.evaluation import Evaluation
from fedrec.evaluation.groups import ACTIVITY, TASTE, by_activity, by_taste, popular_items
from fedrec.evaluation.targets import Ints
from fedrec.experiment.observers.observer import Observer
from fedrec.federation.contract import Down, State, Tensors
from fedrec.federation.simulator import Simulator
from fedrec.methods.personal.fedrkg import FedRKG
from fedrec.methods.personal.gate import GATE, gate_logits

SHARES, SIZES = (0.3, 0.2, 0.1), (100, 300, 500)  # of users: of cold and warm ones, numbers of distinct and followers
TOGETHER = 256  # clients whose gates are computed at a time


class GuidanceObserver(Observer):
    def __init__(self, method: FedRKG) -> None:
        self.method = method
        self.gates: Mapping[str, float] = {}  # of the last commit that was looked at

    def looks_before_answer(self, round: int) -> bool:
        return self.method.variant == "full" and self.method.guides(round)

    def before_answer(self, simulator: Simulator, round: int) -> None:
        self.gates = gates_by_group(simulator, round) if self.method.has_gate else {}

    def figures(self, simulator: Simulator, round: int) -> Mapping[str, float]:
        return self.gates if self.method.has_gate and self.method.guides(round) else {}

    def effect(self, simulator: Simulator, before: Evaluation, after: Evaluation) -> Mapping[str, float]:
        return changes(simulator, before, after)

    def may_stop(self, round: int) -> bool:
        """Not right before guidance, which changes all tables."""
        return not self.method.guides(round + 1)


def gates_by_group(simulator: Simulator, round: int) -> dict[str, float]:
    """Mean gate and mean logit of the commit that this round is about to make: of cold and warm users over all items,
    of distinct users and followers over popular items. The first size of a group has its bare name, as in `gate cold`,
    others theirs."""
    data, items = simulator.data, simulator.world.items
    popular = popular_items(data.items, items)
    of_all, of_popular = user_gates(simulator, (None, popular), round)
    means: dict[tuple[str, ...], np.ndarray] = {ACTIVITY: of_all, TASTE: of_popular}
    found: dict[str, float] = {}
    for names, size, labels in groups_of(simulator):
        for label in (0, 2):
            mine = means[names][np.asarray(labels) == label]
            if len(mine):
                gate, logit = mine.mean(0).tolist()
                found |= {f"gate {names[label]}{size}": gate, f"logit {names[label]}{size}": logit}
    return found


def groups_of(simulator: Simulator) -> Iterator[tuple[tuple[str, ...], str, Ints]]:
    """Names of groups, the size that tells them apart, and one label per user of the simulator, in its order."""
    data = simulator.data
    count = np.diff(data.user_ptr)
    pairs = np.repeat(np.arange(len(count)), count), data.items
    for number, share in enumerate(SHARES):
        yield ACTIVITY, f" {share:.0%}" if number else "", by_activity(count, share)
    for number, size in enumerate(SIZES):
        if number == 0 or 2 * size <= len(count):
            yield TASTE, f" {size}" if number else "", by_taste(pairs, len(count), simulator.world.items, size)


def changes(simulator: Simulator, before: Evaluation, after: Evaluation) -> dict[str, float]:
    """What a commit did: a metric's relative change among distinct users and followers, and the shares of users for
    whom the sum of all metrics rose and fell, among those for whom it changed."""
    names, _, labels = next(found for found in groups_of(simulator) if found[0] is TASTE)
    group = dict(zip(simulator.data.users.tolist(), np.asarray(labels).tolist(), strict=True))
    of_user = np.array([group[user] for user in before.users.tolist()])
    found: dict[str, float] = {}
    for metric, values in before.per_user.items():
        for label in (0, 2):
            was, now = values[of_user == label].mean(), after.per_user[metric][of_user == label].mean()
            if was > 0:
                found[f"{metric} change {names[label]}"] = float((now - was) / was)
    total = np.sum([after.per_user[metric] - values for metric, values in before.per_user.items()], axis=0)
    moved = np.abs(total) > 1e-12
    if moved.any():
        found |= {"improved": float((total[moved] > 0).mean()), "declined": float((total[moved] < 0).mean())}
    return found


def gate_means(
    simulator: Simulator, labels: np.ndarray, items: np.ndarray | None = None
) -> dict[int, dict[str, float]]:
    """By group of users (`labels`, by the data set's user index): its size, mean gate and mean logit over `items`."""
    (means,), own = user_gates(simulator, (items,)), labels[simulator.data.users]
    return {
        int(label): {"users": int((own == label).sum()), "gate": gate, "logit": logit}
        for label in np.unique(own)
        for gate, logit in [means[own == label].mean(0).tolist()]
    }


def user_gates(
    simulator: Simulator,
    over: Sequence[np.ndarray | None],
    committing: int | None = None,
) -> list[np.ndarray]:
    """For each of these sets of items (None: all), [users, 2] mean gate and mean logit of every user in the simulator's
    order: of what clients hold, or of the commit that round `committing` is about to make, rehearsed once for all."""
    sets = [slice(None) if items is None else torch.from_numpy(items).to(simulator.world.device) for items in over]
    found = [[_mean_gates(logits[:, chosen]) for chosen in sets] for logits in _all_logits(simulator, committing)]
    return [torch.cat(of_users).numpy() for of_users in zip(*found, strict=True)]


def _mean_gates(logits: Tensor) -> Tensor:
    exact = logits.double()
    return torch.stack([torch.sigmoid(exact).mean(1), exact.mean(1)], 1).cpu()


def _all_logits(simulator: Simulator, committing: int | None) -> Iterator[Tensor]:
    """The gate logits of all items for some users after others, in the simulator's order."""
    method, data = _fedrkg(simulator), simulator.data
    if not method.has_gate:
        raise FedrecError("there are no gates without gate=true and variant=full")
    held, common = simulator.cohorts[0].state.per_client, simulator.server["item"]
    users = torch.from_numpy(np.diff(data.client_ptr))
    for first in range(0, simulator.world.clients, TOGETHER):
        some = slice(first, first + TOGETHER)
        gates = (
            {name: held[name][some] for name in GATE}
            if committing is None
            else _rehearse_commit(simulator, some, committing)
        )
        logits = gate_logits(held["item"][some], common, *(gates[name] for name in GATE))
        yield logits.repeat_interleave(users[some].to(logits.device), 0)


def _rehearse_commit(simulator: Simulator, some: slice, round: int) -> Tensors:
    """The gates of some clients as the commit of this round will train them; nothing is kept of the rehearsal."""
    data, kept = simulator.data, simulator.cohorts[0].state
    chunk = data.chunk(data.clients[some])
    users = slice(int(data.client_ptr[some.start]), int(data.client_ptr[some.start + len(chunk.clients)]))
    held = {name: value[some].clone() for name, value in kept.per_client.items()}
    state = State(held, {name: value[users] for name, value in kept.per_user.items()})
    return simulator.method.receive(state, Down(shared={"item": simulator.server["item"]}), chunk, round).per_client


def _fedrkg(simulator: Simulator) -> FedRKG:
    if not isinstance(simulator.method, FedRKG):
        raise FedrecError(f"{simulator.method.info.name} has no guidance to look at; this is for fedrkg")
    return simulator.method
