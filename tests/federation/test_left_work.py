"""Rows of own tables that training did not change are written when somebody looks: the same bits as at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Tensors, Ups
from fedrec.federation.simulator import Simulator
from fedrec.methods import PFedRec
from fedrec.testing import tiny_world
from fedrec.training.compiled import UnchangedRows

SMALL = {"dim": 16, "init_std": 0.3, "batch": 16, "lr": 0.3, "lr_item": 0.9}
BACKBONES = ("linear", "mf", "ncf")
ALONE = 2  # bytes: a budget under which every client is a chunk of its own


def rounds(
    data: ClientData, will_be_read: bool, count: int = 3, backbone: str = "linear", memory: int = 8 << 30, **more: float
) -> Simulator:
    simulator = Simulator(PFedRec(**SMALL, backbone=backbone, **more), data, memory=memory)
    for number in range(count):
        simulator.begin(number, will_be_read=will_be_read).log()
    return simulator


def left(simulator: Simulator) -> int:
    """Clients with work left."""
    return sum(len(run) for members in simulator.cohorts for run in members.left)


def scores(simulator: Simulator) -> Tensor:
    return torch.cat([some for _, some in simulator.scores(9)])


def assert_same_bits(one: Simulator, other: Simulator) -> None:
    assert torch.equal(scores(one), scores(other))
    mine, theirs = one.client_side.tensors(), other.client_side.tensors()
    assert list(mine) == list(theirs)
    for name, value in mine.items():
        assert torch.equal(value, theirs[name]), name


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tables_are_whole_when_somebody_looks(backbone, dtype):
    data = tiny_world(200, dtype=dtype)
    later, now = (rounds(data, will_be_read, backbone=backbone) for will_be_read in (False, True))
    assert left(later) == data.world.clients
    assert left(now) == 0
    held = later.cohorts[0].unfinished.per_client["item"]
    assert not torch.equal(held, now.cohorts[0].unfinished.per_client["item"]), "nothing was left, so nothing is tested"
    assert_same_bits(later, now)
    assert left(later) == 0


def test_looking_changes_no_later_round():
    data = tiny_world(200)
    seen, unseen = rounds(data, will_be_read=False, count=2), rounds(data, will_be_read=False, count=2)
    scores(seen)
    for simulator in (seen, unseen):
        simulator.round(2)
    assert_same_bits(seen, unseen)


@pytest.mark.parametrize("more", [{"participation": 0.5}, {"participation": 0.25}])
def test_the_absent_keep_their_tables(more):
    """Some clients of a round are a run of places and may leave work, others are not; none may lose a table."""
    data = tiny_world(200, **more)
    assert_same_bits(rounds(data, will_be_read=False, count=6), rounds(data, will_be_read=True, count=6))


def test_a_run_within_another():
    """Everybody leaves work, then some of them train again, then others: each has what it would have without that."""
    data = tiny_world(200)
    both = [rounds(data, will_be_read, count=1) for will_be_read in (False, True)]
    for simulator, will_be_read in zip(both, (False, True), strict=True):
        for number, some in enumerate((np.arange(3, 7), np.arange(5, 9), np.array([0, 2, 11])), 1):
            down = simulator.server_side.broadcast(some, number)
            simulator.client_side.train(some, some, number, lambda _, down=down: down, will_be_read=will_be_read)
    assert_same_bits(*both)


def test_chunks_of_one_client():
    data = tiny_world(200)
    later = rounds(data, will_be_read=False, memory=ALONE)
    assert left(later) == data.world.clients
    assert_same_bits(later, rounds(data, will_be_read=True, memory=ALONE))


def test_clients_whose_uploads_are_lost():
    data = tiny_world(200)
    assert_same_bits(
        rounds(data, will_be_read=False, aggregated_fraction=0.5),
        rounds(data, will_be_read=True, aggregated_fraction=0.5),
    )


def test_a_state_that_is_replaced_keeps_what_it_has():
    data = tiny_world(200)
    simulator, other = rounds(data, will_be_read=False, count=1), rounds(data, will_be_read=True, count=2)
    simulator.cohorts[0].state = other.cohorts[0].state
    assert_same_bits(simulator, other)


def test_a_restored_state_keeps_what_it_has():
    data = tiny_world(200)
    simulator, other = rounds(data, will_be_read=False, count=1), rounds(data, will_be_read=True, count=2)
    simulator.client_side.restore(other.client_side.tensors())
    assert_same_bits(simulator, other)


class InPlace(PFedRec):
    """The server changes the table that it sent."""

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        server["item"].copy_(ups["item"])
        return server


def test_a_server_that_works_in_place_changes_no_clients_table():
    data = tiny_world(200)
    both = [Simulator(InPlace(**SMALL), data) for _ in range(2)]
    for simulator, will_be_read in zip(both, (False, True), strict=True):
        simulator.begin(0, will_be_read=will_be_read).log()
    assert left(both[0]) == data.world.clients
    assert_same_bits(*both)


def test_an_interrupt_loses_no_work(monkeypatch):
    data = tiny_world(200)
    simulator, other = rounds(data, will_be_read=False), rounds(data, will_be_read=True)
    with monkeypatch.context() as patch:
        patch.setattr(UnchangedRows, "__call__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            scores(simulator)
    assert left(simulator) == data.world.clients
    assert_same_bits(simulator, other)


def interrupted(work: UnchangedRows) -> None:
    raise KeyboardInterrupt


def test_what_is_put_off_is_what_did_not_change():
    data = tiny_world(200)
    simulator = rounds(data, will_be_read=False)
    put_off = simulator.client_side.count_deferred_bytes()
    assert 0 < put_off < simulator.cohorts[0].unfinished.per_client["item"].nbytes
    scores(simulator)
    assert simulator.client_side.count_deferred_bytes() == 0
