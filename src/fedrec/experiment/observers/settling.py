"""FedDAE's rule to stop: a round that hardly changes the mean loss of the clients is the last."""

from __future__ import annotations

from collections.abc import Mapping

from fedrec.experiment.observers.observer import Observer
from fedrec.methods.personal.feddae import FedDAE


class SettlingObserver(Observer):
    def __init__(self, method: FedDAE) -> None:
        self.least = method.loss_stop
        self.settles = method.loss_stop > 0

    def is_settled(self, round: int, before: Mapping[str, float], now: Mapping[str, float]) -> bool:
        if round < 2 or "loss" not in before:
            return False
        return abs(now["loss"] - before["loss"]) / (abs(now["loss"]) + 1e-6) < self.least
