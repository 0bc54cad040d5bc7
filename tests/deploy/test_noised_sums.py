"""A budget on sums over nodes: what is promised, and what is left of the noise when a node is lost in the middle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from deploy.town import Town, settings
from fedrec.deploy.framing import unframe
from fedrec.deploy.rehearsal import rehearse
from fedrec.errors import FedrecError
from fedrec.federation.update import Update

BUDGET: dict[str, Any] = {"privacy": "clip=1", "epsilon": 8.0, "delta": 1e-5}
MANY_ITEMS = "synthetic@users=80+items=1500+interactions=3000+seed=1"
NODES, LEAST = 8, 6


def lose(town: Town, node: int) -> None:
    """Let a node go away when updates are asked for, after it has given its keys and shares."""
    handle = town.hosts[node]

    def leaving(message: bytes) -> bytes:
        if unframe(message)[0]["kind"] == "turn":
            town.hosts.pop(node)
            raise TimeoutError
        return handle(message)

    town.hosts[node] = leaving


def sum_of(folder: Path, lost: bool, **more: Any) -> tuple[Update, Town]:
    """Of the first round over eight nodes that host all clients."""
    config = settings("popularity", data=MANY_ITEMS, rounds=1, **more)
    town = Town(config, folder, nodes=NODES, secure=True, minimum=LEAST)
    if lost:
        lose(town, 13)
    server = town.server()
    seen: list[Update] = []
    fold = server.coordinator.fold_sum

    def keep(update: Update) -> None:
        seen.append(Update({name: value.clone() for name, value in update.totals.items()}, clients=update.clients))
        fold(update)

    server.coordinator.fold_sum = keep  # type: ignore[method-assign]
    server.run()
    return seen[0], town


@pytest.mark.parametrize("lost", [False, True])
def test_what_is_left_of_the_noise_is_never_less_than_epsilon_needs(lost: bool, tmp_path: Path) -> None:
    noised, town = sum_of(tmp_path / "noised", lost, privacy="clip=4", epsilon=1.0, delta=1e-5)
    clear, _ = sum_of(tmp_path / "clear", lost, privacy="clip=4")
    assert list(noised.clients) == list(clear.clients)
    noise = (noised.totals["count"] - clear.totals["count"]).flatten()
    promised = town.rehearsal.terms.stages[1].scale  # type: ignore[attr-defined]
    spread = float((noise / promised).square().sum())
    assert spread > stats.chi2.ppf(1e-3, len(noise)), "at least the variance that the epsilon is for"
    expected = promised * ((NODES - lost) / LEAST) ** 0.5
    assert float(noise.std()) == pytest.approx(expected, rel=0.08)


def test_with_fewer_nodes_than_the_noise_is_sized_for_there_is_no_sum(tmp_path: Path) -> None:
    town = Town(settings("fedmf", rounds=1, **BUDGET), tmp_path, secure=True, minimum=3)
    lose(town, 12)
    with pytest.raises(FedrecError):
        town.server().run()


def test_a_deployment_says_what_it_promises_and_takes_the_last_round(tmp_path: Path) -> None:
    town = Town(settings("fedmf", **BUDGET, adjacency="zero-out"), tmp_path, secure=True, minimum=2)
    found = town.server().run()
    privacy = found["privacy"]
    assert privacy["epsilon"] == pytest.approx(8, rel=1e-5)
    assert privacy["epsilon"] <= 8
    assert (privacy["unit"], privacy["adjacency"]) == ("a client, which is one user", "zero-out")
    assert privacy["trust"] == "the server sees nothing but sums"
    assert found["best_round"] == 2
    assert not found["stopped_early"]
    assert any("the last round counts" in note for note in found["notes"])


def test_a_budget_on_single_uploads_needs_no_secure_sums(tmp_path: Path) -> None:
    town = Town(settings("fedmf", **BUDGET), tmp_path)
    privacy = town.server().run()["privacy"]
    assert privacy["epsilon"] == pytest.approx(8, rel=1e-5)
    assert privacy["trust"] == "nobody outside the client is trusted"


def test_nodes_send_nothing_that_no_noise_reaches(tmp_path: Path) -> None:
    town = Town(settings("fedavg", **BUDGET), tmp_path, secure=True, minimum=2)
    with pytest.raises(FedrecError):
        town.server().run()
    assert any("without noise" in str(event) for event in town.events)


@pytest.mark.parametrize(
    ("secure", "more", "says"),
    [
        (True, {"assume_secure_sums": True}, "a deployment assumes nothing"),
        (False, {"privacy": "clip=1,sum-gaussian=1"}, "add --secure-sums"),
    ],
)
def test_what_a_deployment_cannot_promise_is_refused(secure: bool, more: Any, says: str) -> None:
    with pytest.raises(FedrecError, match=says):
        rehearse(settings("fedmf", **more), secure=secure)
