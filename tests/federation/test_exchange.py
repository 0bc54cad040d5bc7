"""Messages between the server and groups of clients: what is wrong is refused by name and never averaged in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedrec.federation.codec import BadMessage, pack, unpack
from fedrec.federation.exchange import Reply, Step, Task
from fedrec.federation.messages import Down
from fedrec.federation.update import Update, merge_updates
from fedrec.methods import FedCA, FedMF
from fedrec.testing import tiny_world
from fedrec.testing.grid import Grid

CPU = torch.device("cpu")
EVERYONE = np.arange(12)


def grid(method: object = None) -> Grid:
    return Grid(method or FedMF(dim=4), tiny_world(), [EVERYONE[:6], EVERYONE[6:]])


def reply_of(town: Grid, group: int) -> Reply:
    return Reply.decode(town.nodes[group].handle(town.coordinator.task(group).encode()), CPU)


def with_total(reply: Reply, value: torch.Tensor) -> Reply:
    return replace(reply, update=replace(reply.update, totals={"item": value}))


def mean_without(town: Grid, group: int) -> torch.Tensor:
    update = reply_of(town, group).update
    return (update.totals["item"] / update.weights["item"]).to(town.world.dtype)


BAD = {
    "the shape": lambda reply: with_total(reply, torch.zeros(40, 5, dtype=torch.float64)),
    "float32": lambda reply: with_total(reply, reply.update.totals["item"].float()),
    "not finite": lambda reply: with_total(reply, reply.update.totals["item"] * float("nan")),
    "unexpected": lambda reply: replace(
        reply, update=replace(reply.update, totals={"x": torch.zeros(1).double()}, weights={"x": 1.0})
    ),
    "must be a non-negative number": lambda reply: replace(reply, update=replace(reply.update, weights={"item": -3.0})),
    "must be a mean": lambda reply: replace(reply, update=replace(reply.update, means=frozenset())),
    "was not asked": lambda reply: replace(reply, update=replace(reply.update, clients=np.array([11]))),
    "are allowed": lambda reply: with_total(reply, torch.zeros(4000, 400, dtype=torch.float64)),
}


@pytest.mark.parametrize("reason", BAD)
def test_a_bad_update_is_refused_by_name_and_not_averaged_in(reason: str) -> None:
    town = grid()
    town.coordinator.begin(0)
    wanted = mean_without(grid_begun(), 1)
    bad = BAD[reason](reply_of(town, 0))
    assert town.coordinator.fold(0, bad.encode()) is None
    (refused,) = town.coordinator.rejected
    assert refused.group == 0
    assert reason in refused.reason
    town.coordinator.fold(1, reply_of(town, 1).encode())
    town.coordinator.end()
    torch.testing.assert_close(town.coordinator.server.tensors["item"], wanted)


def grid_begun() -> Grid:
    town = grid()
    town.coordinator.begin(0)
    return town


@pytest.mark.parametrize("message", [b"", b"x" * 100, pack({}, {}), pack({"parts": 3}, {})])
def test_what_is_no_reply_is_refused(message: bytes) -> None:
    town = grid_begun()
    assert town.coordinator.fold(0, message) is None
    assert "is not a fedrec " in town.coordinator.rejected[0].reason


def test_a_gathered_upload_of_the_wrong_length_is_refused() -> None:
    town = grid(FedCA(dim=4, epochs=1, aggregated_fraction=1.0))
    town.coordinator.begin(0)
    reply = reply_of(town, 0)
    clients, tables = reply.update.gathered["item"][0]
    gathered = dict(reply.update.gathered) | {"item": [(clients, tables[:-1])]}
    town.coordinator.fold(0, replace(reply, update=replace(reply.update, gathered=gathered)).encode())
    assert "one entry per client" in town.coordinator.rejected[0].reason


def test_a_task_survives_the_wire() -> None:
    down = Down({"a": torch.randn(3)}, {"b": torch.randn(2, 4)})
    step = Step(7, [(np.array([2, 5]), down)], {"planned": 9}, sending=np.array([5]))
    found = Task.decode(Task(keep=True, train=step, answer=Step(6, [])).encode(), CPU)
    assert found.keep
    assert not found.restore
    assert found.score is None
    assert found.train is not None
    assert found.train.round == 7
    assert found.train.options == {"planned": 9}
    assert found.train.sending is not None
    assert found.train.sending.tolist() == [5]
    torch.testing.assert_close(found.train.select_down(np.array([5])).own["b"], down.own["b"][1:])


def test_nothing_in_a_message_is_executed() -> None:
    with pytest.raises(BadMessage, match="not a fedrec message"):
        unpack(b"\x80\x04\x95cposix\nsystem\n")


def test_updates_merge() -> None:
    one, two = (
        Update({"x": torch.full((2,), float(k)).double()}, {"x": k}, frozenset({"x"}), clients=np.array([k]))
        for k in (1, 3)
    )
    found = merge_updates([one, two, Update()])
    assert found.clients.tolist() == [1, 3]
    assert found.ups(torch.float64)["x"].tolist() == [1.0, 1.0]


def test_keep_and_restore() -> None:
    """What was scored last becomes the best when the server says so, and comes back when it asks."""
    town = grid_begun()
    node = town.nodes[0]
    node.evaluate = lambda options, scores: ({"users": float(sum(len(users) for users, _ in scores))}, {})
    reply = node.take(town.coordinator.task(0, part="valid"))
    assert reply.figures == ({"users": 6.0}, {})
    scored = {name: value.clone() for name, value in (node.scored or {}).items()}
    trained = {name: value.clone() for name, value in node.side.tensors().items()}
    assert any(not torch.equal(scored[name], trained[name]) for name in scored)
    node.take(Task(keep=True))
    node.take(Task(restore=True))
    assert all(torch.equal(scored[name], value) for name, value in node.side.tensors().items())
