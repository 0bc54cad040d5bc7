"""The sequential backbone within methods, and centralised SASRec: the suite, and the same one sequence at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedrec.errors import FedrecError
from fedrec.experiment.params import build_method
from fedrec.federation.clients import ClientData
from fedrec.federation.sequences import SequenceSamples
from fedrec.methods import CentralSASRec, FedAvg, FedCA, Local, PFedRec
from fedrec.testing import MethodTests, assert_close, run, tiny_world
from methods import naive_sequences as naive

SMALL = {"backbone": "sasrec", "dim": 4, "length": 5, "batch": 2, "init_std": 0.3, "optimiser": "adam", "lr": 0.02}
PLAIN = {**SMALL, "dropout": 0.0}


class TestLocal(MethodTests):
    method = Local(**PLAIN, lr_item=0.03)
    rounds = 2

    def reference(self, data: ClientData, rounds: int) -> dict[str, torch.Tensor]:
        return naive.local(self.method, data, rounds)


class TestFedAvg(MethodTests):
    method = FedAvg(**PLAIN, epochs=2, loss="bpr", reduction="sum", weight_decay_dense=0.01)
    rounds = 2

    def reference(self, data: ClientData, rounds: int) -> dict[str, torch.Tensor]:
        return naive.fedavg(self.method, data, rounds)


class TestFedCA(MethodTests):
    method = FedCA(**SMALL, components=2, epochs=1)
    layouts = ("devices",)
    rounds = 2


class TestPFedRec(MethodTests):
    method = PFedRec(**SMALL, lr_item=0.02)
    layouts = ("devices",)
    rounds = 2


class TestCentral(MethodTests):
    method = CentralSASRec(dim=4, length=5, batch=5, heads=2)


@pytest.mark.parametrize("norm_first", [False, True])
def test_centralised_goes_on_where_adam_stopped(norm_first):
    """Rounds are epochs of one training: torch's Adam, never restarted, on one negative at each position."""
    method = CentralSASRec(dim=4, length=5, batch=5, dropout=0.0, lr=0.01, negatives=4, norm_first=norm_first)
    data = tiny_world(30, per_user=[8] * 12, silos=(12,), negatives=4)
    federation = naive.Federation(method, data)
    (client,) = federation.clients
    rates = {"lr": method.lr, "betas": (0.9, 0.98)}
    steps = torch.optim.Adam(client.parameters(), **rates)
    for round in range(3):
        samples = SequenceSamples(data.chunk(np.array([0])), round, "bce", 5, 5, None)
        for batch in samples.epoch(0):
            every = federation.losses(0, round, samples.user[batch.sequence].tolist())
            steps.zero_grad()
            every.mean().backward()
            steps.step()
    found = run(method, data, 3)
    drawn = found["client.steps"].item()
    assert drawn == 9, "three batches in each of three epochs"
    assert_close({"scores": found["scores"]}, {"scores": federation.scores(received=False)}, 1e-9, "one training")


def test_one_negative_at_each_position():
    data = tiny_world(silos=(12,))
    chunk = data.chunk(np.array([0]))
    assert SequenceSamples(chunk, 0, "bce", 5, 5, 1).neg.shape[1] == 1
    assert SequenceSamples(chunk, 0, "bce", 5, 5, None).neg.shape[1] == 4


def test_windows_end_with_the_last_item_as_target():
    data = tiny_world()
    s = SequenceSamples(data.chunk(np.arange(12)), 0, "bce", 1, 5, None)
    for number, user in enumerate(s.user.tolist()):
        items = data.history[data.user_ptr[user] : data.user_ptr[user + 1]].tolist()
        mine = slice(int(s.start[number]), int(s.start[number] + s.size[number]))
        assert s.item[s.input[mine]].tolist() == items[:-1][-5:]
        assert s.item[s.target[mine]].tolist() == items[1:][-5:]
        assert not set(s.item[s.neg[mine]].flatten().tolist()) & set(items)
    assert sorted(s.user.tolist()) == [k for k, n in enumerate(np.diff(data.user_ptr)) if n >= 2]
    assert s.size.tolist() == [min(5, int(np.diff(data.user_ptr)[u]) - 1) for u in s.user.tolist()]


def test_a_client_without_two_items_only_evaluates():
    data = tiny_world()
    method = Local(**SMALL)
    before, after = run(method, data, 0), run(method, data, 2)
    still = np.diff(data.user_ptr) < 2
    moved = (before["client.item"] != after["client.item"]).flatten(1).any(1)
    assert moved.tolist() == (~still).tolist()


def test_dropout_moves_training_and_not_scoring():
    data = tiny_world()
    start = [run(Local(**{**SMALL, "dropout": rate}), data, 0)["scores"] for rate in (0.0, 0.5)]
    assert torch.equal(*start)
    plain, dropped = (run(Local(**{**SMALL, "dropout": rate}), data, 1)["scores"] for rate in (0.0, 0.5))
    assert not torch.allclose(plain, dropped)


def test_order_of_items_decides_the_scores():
    data = tiny_world()
    reverse = np.concatenate([np.arange(a, b)[::-1] for a, b in zip(data.user_ptr, data.user_ptr[1:], strict=False)])
    other = replace(data, history=data.history[reverse])
    method = FedAvg(**PLAIN)
    assert not torch.allclose(run(method, data, 1)["scores"], run(method, other, 1)["scores"])


def test_federated_defaults_and_refusals():
    method = build_method("fedavg", backbone="sasrec")
    assert (method.dim, method.length, method.optimiser) == (16, 50, "adam")
    assert build_method("fedca", backbone="sasrec", params={"length": "200"}).model.length == 200
    for params in ({"length": "0"}, {"dropout": "1"}):
        with pytest.raises(FedrecError, match=next(iter(params))):
            build_method("fedca", backbone="sasrec", params=params)
    with pytest.raises(FedrecError, match="negatives"):
        build_method("sasrec", params={"negatives": "0"})
    with pytest.raises(FedrecError, match="heads"):
        build_method("sasrec", params={"heads": "7"})
