"""What a server reads off uploads: everything without secure sums, with them no more than popularity tells."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedrec.errors import FedrecError
from fedrec.experiment.audit.uploads import expose_items
from fedrec.experiment.config import make_config
from fedrec.experiment.driver import Run
from fedrec.experiment.run_plan import plan_run
from fedrec.methods.mixture.fedca import FedCA
from fedrec.methods.reference.popularity import Popularity
from fedrec.privacy.sign_attack import auc, sign_attack
from fedrec.testing import tiny_world


@pytest.mark.parametrize("method", ["fedmf", "pfedrec"])
def test_the_attack_falls_to_the_popularity_guess_with_a_hundred_clients(method: str) -> None:
    run = Run(plan_run(make_config({"method": method, "data": "synthetic", "params": {"dim": 16}})))
    found = expose_items(run.method, run.simulator.data, 100)
    assert found.clients == 100
    assert found.upload > 0.999, "one upload in the clear is the user's whole history"
    assert found.popularity < 0.95
    assert max(found.message, found.total) <= found.popularity + 0.02
    assert abs(found.message - 0.5) < 0.02
    assert found.correlation < 0.05


def test_the_attack_by_itself() -> None:
    rng = np.random.default_rng(0)
    before, user = rng.normal(size=(50, 4)), rng.normal(size=4)
    for sign in (1, -1):  # an SVD may hand out either direction
        after = before.copy()
        after[:5] += 0.5 * sign * user
        after[5:25] -= 0.4 * sign * user
        assert auc(sign_attack(before, after), np.arange(5)) == 1.0


def test_auc_counts_pairs() -> None:
    assert auc(np.array([3.0, 1.0, 2.0, 0.0]), np.array([0, 1])) == 0.75
    assert auc(np.zeros(6), np.array([1, 4])) == 0.5


def test_methods_without_a_table_to_attack_are_refused_by_name() -> None:
    with pytest.raises(FedrecError, match="popularity uploads no item table"):
        expose_items(Popularity(), tiny_world(), 12)
    with pytest.raises(FedrecError, match="fedca needs each client's own upload"):
        expose_items(FedCA(dim=4, lr=1.0, batch=16), tiny_world(), 12)


def test_the_command(cli: Callable[..., Any]) -> None:
    small = ("audit", "uploads", "fedmf", "--data", "synthetic", "--clients", "20", "--set", "dim=8")
    shown = cli(*small)
    assert shown.code == 0
    assert "each client's own upload" in shown.out
    figures = json.loads(cli(*small, "--json").out)
    assert figures["upload"] > 0.99
    assert figures["message"] < 0.6
