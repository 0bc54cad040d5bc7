"""The sequential backbone within methods, and centralised SASRec: the suite, and the same one sequence at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from fedrec.errors import FedrecError
from fedrec.experiment.params import build_method, method_of
from fedrec.federation.clients import ClientData
from fedrec.federation.simulator import Simulator
from fedrec.methods import CentralSASRec, FedAvg, FedCA, Local, PerFedRec, PFedRec
from fedrec.testing import MethodTests, all_scores, assert_close, run, tiny_world
from fedrec.training.sequences import SequenceSamples
from fedrec.training.softmax_training import sampled_softmax_loss, softmax_loss
from fedrec_studies.reproduce.table_definition import tables
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


class TestPerFedRec(MethodTests):
    method = PerFedRec(**SMALL, clusters=2)
    layouts = ("devices",)
    rounds = 2


class TestPFedRec(MethodTests):
    method = PFedRec(**SMALL, lr_item=0.02)
    layouts = ("devices",)
    rounds = 2


class TestCentral(MethodTests):
    method = CentralSASRec(dim=4, length=5, batch=5, heads=2)


class TestSoftmax(MethodTests):
    """All that a method promises, with dropout; and without it, one sequence at a time."""

    method = CentralSASRec(dim=4, length=5, batch=5, heads=2, loss="ce", weight_decay=0.1)


class TestSoftmaxWithoutDropout(MethodTests):
    method = CentralSASRec(dim=4, length=5, batch=5, loss="ce", dropout=0.0, lr=0.01, weight_decay=0.3)

    def reference(self, data: ClientData, rounds: int) -> dict[str, torch.Tensor]:
        return naive.central(self.method, data, rounds)


class TestRandomCrop(MethodTests):
    method = CentralSASRec(dim=4, length=5, batch=5, loss="ce", dropout=0.0, lr=0.01, crop="random")

    def reference(self, data: ClientData, rounds: int) -> dict[str, torch.Tensor]:
        return naive.central(self.method, data, rounds)


class TestLigr(MethodTests):
    method = CentralSASRec(dim=4, length=5, batch=5, heads=2, loss="ce", weight_decay=0.1, block_kind="ligr")


class TestLigrWithoutDropout(MethodTests):
    method = CentralSASRec(dim=4, length=5, batch=5, loss="ce", dropout=0.0, lr=0.01, block_kind="ligr")

    def reference(self, data: ClientData, rounds: int) -> dict[str, torch.Tensor]:
        return naive.central(self.method, data, rounds)


class TestAveraged(MethodTests):
    method = CentralSASRec(dim=4, length=5, batch=5, heads=2, loss="ce", weight_decay=0.1, averaging=0.6)


def test_averaged_it_scores_with_the_mean_of_its_epochs():
    """Three epochs, of which the first counts 0.36, the second 0.6 and the last 1; training is not changed."""
    data, settings = tiny_world(silos=(12,)), {"dim": 4, "length": 5, "batch": 5, "loss": "ce", "lr": 0.02}
    plain, averaged = (Simulator(CentralSASRec(**settings, averaging=keep), data) for keep in (0.0, 0.6))
    models = []
    for round in range(3):
        plain.round(round)
        averaged.round(round)
        models.append({name: value.clone() for name, value in plain.cohorts[0].state.per_client.items()})
    held = plain.cohorts[0].state.per_client
    assert_close({name: averaged.cohorts[0].state.per_client[name] for name in held}, held, 0.0, "training")
    for name in ("item", *plain.method.model.dense_shapes()):
        held[name] = sum(w * model[name] for w, model in zip((0.36, 0.6, 1.0), models, strict=True)) / 1.96
    assert_close({"scores": all_scores(averaged, 3)}, {"scores": all_scores(plain, 3)}, 1e-12, "mean of epochs")


class TestSampledSoftmax(MethodTests):
    method = CentralSASRec(dim=4, length=5, batch=5, loss="ce", sampled=6)


def test_where_all_items_are_drawn_it_is_the_softmax_over_all():
    data, settings = tiny_world(silos=(12,)), {"dim": 4, "length": 5, "batch": 5, "loss": "ce"}
    whole, drawn, some = (run(CentralSASRec(**settings, sampled=n), data, 3)["scores"] for n in (0, 40, 6))
    assert torch.allclose(whole, drawn, atol=1e-9)
    assert not torch.allclose(whole, some, atol=1e-3)


def test_the_drawn_softmax_estimates_the_sum_without_bias():
    """The exponential of one position's loss is the estimated sum over that of the target."""
    random = torch.Generator().manual_seed(0)
    state, table = (torch.randn(n, 3, dtype=torch.float64, generator=random) for n in (1, 20))
    target, found = torch.tensor([4]), []
    for _ in range(2000):
        drawn = torch.randperm(20, generator=random)[:5]
        found.append(float(sampled_softmax_loss(state, table, target, drawn).exp()))
    exact = float(softmax_loss(state, table, target).exp())
    error = np.std(found) / len(found) ** 0.5
    assert error > 0
    assert abs(np.mean(found) - exact) < 4 * error


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("loss", ["bce", "ce"])
def test_centralised_goes_on_where_adam_stopped(loss, norm_first):
    settings = {"dropout": 0.0, "lr": 0.01, "negatives": 4, "weight_decay": 0.1}
    method = CentralSASRec(dim=4, length=5, batch=5, loss=loss, norm_first=norm_first, **settings)
    data = tiny_world(30, per_user=[8] * 12, silos=(12,), negatives=4)
    found, expected = run(method, data, 3), naive.central(method, data, 3)
    assert found["client.steps"].item() == 9, "three batches in each of three epochs"
    assert_close({name: found[name] for name in expected}, expected, 1e-9, "one training")


def test_one_negative_at_each_position():
    data = tiny_world(silos=(12,))
    chunk = data.chunk(np.array([0]))
    assert SequenceSamples(chunk, 0, "bce", 5, 5, 1, "last").neg.shape[1] == 1
    assert SequenceSamples(chunk, 0, "bce", 5, 5, None, "last").neg.shape[1] == 4


def test_windows_end_with_the_last_item_as_target():
    data = tiny_world()
    s = SequenceSamples(data.chunk(np.arange(12)), 0, "bce", 1, 5, None, "last")
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


def test_tables_compare_with_the_softmax():
    tuned = build_method("sasrec", preset="tuned")
    assert (tuned.loss, tuned.dim, tuned.length) == ("ce", 128, 200)
    assert build_method("sasrec").loss == "bce", "the published loss stays the default"
    table = tables("fedgram")["honest"]
    (row,) = (row for row in table.rows if row.label == "SASRec, tuned, centralised")
    methods = [method_of(table.config(row, name, "honest", 0)) for name in ("ml-100k", "ml-1m", "amazon-video")]
    assert [(m.loss, m.dim, m.dropout, m.weight_decay) for m in methods] == [
        ("ce", 128, 0.2, 1.0),
        ("ce", 128, 0.2, 0.1),
        ("ce", 128, 0.5, 1.0),
    ]


@pytest.mark.parametrize("method", ["fedavg", "fedca", "local", "mf"])
def test_softmax_over_all_items_is_for_sasrec_in_one_place(method):
    with pytest.raises(FedrecError, match=rf"loss=ce does not fit {method}: it should be bce \| bpr"):
        build_method(method, params={"loss": "ce"})
    with pytest.raises(FedrecError, match=f"loss=ce does not fit {method}: it must be bce or bpr"):
        type(build_method(method))(loss="ce")


def test_one_step_of_softmax_is_cross_entropy_over_all_items():
    """The loss that a round reports, and gradients, read off one step of plain descent in a single batch."""
    method = CentralSASRec(dim=4, length=5, batch=12, loss="ce", dropout=0.0, lr=0.5, optimiser="sgd")
    data = tiny_world(silos=(12,), empty=True)
    federation = naive.Federation(method, data)
    (client,) = federation.clients
    every = federation.losses(0, 0, [u for u, items in enumerate(federation.histories(0)) if len(items) > 1])
    every.mean().backward()
    descent = method.trainer.descent(method.trainer, *_start(method, data))
    fitted = descent.run()
    loss, samples = descent.chunk.observed["loss"]
    assert samples == len(every)
    assert float(loss) == pytest.approx(every.sum().item(), rel=1e-12)
    step = (method.trainer.init_items(data.world) - fitted.table[0]) / method.lr
    assert_close({"item": step}, {"item": client.table.grad[1:]}, 1e-9, "gradients of the table")
    assert bool(step.any(1).all()), "every item is a candidate, drawn or not"


@pytest.mark.parametrize("loss", ["bce", "ce"])
def test_batches_that_are_given_one_shape_take_the_same_steps(monkeypatch, loss):
    """As a GPU replays them: filled up to the longest of the epoch, with room for its largest batch."""
    data = tiny_world(silos=(12,), empty=True)
    ends = []
    for padded in (True, False):
        method = CentralSASRec(dim=4, length=9, batch=4, loss=loss)
        descent = method.trainer.descent(method.trainer, *_start(method, data))
        shapes, epoch = set(), descent.samples.epoch
        batches = [batch.pad() if padded else batch for batch in epoch(0)]
        shapes = {(tuple(batch.lengths), batch.room) for batch in batches if len(batch.lengths) == 4}
        assert len(shapes) == (1 if padded else 2)
        monkeypatch.setattr(descent.samples, "epoch", lambda number, batches=batches: iter(batches))
        fitted = descent.run()
        ends.append({"item": fitted.table, "loss": descent.chunk.observed["loss"][0], **fitted.dense})
    assert_close(ends[0], ends[1], 1e-10, "given one shape")


def test_softmax_never_asks_the_device_between_batches():
    """What would make a GPU wait is read once a round, however many batches there are."""
    data = tiny_world(per_user=[6] * 12, silos=(12,))
    asked = []
    for batch in (12, 1):
        method = CentralSASRec(dim=4, length=5, batch=batch, loss="ce", weight_decay=0.1)
        descent = method.trainer.descent(method.trainer, *_start(method, data))
        with Watch() as watch:
            descent.run()
        assert descent.step_count.item() == 12 // batch
        asked.append(watch.asked)
    assert asked[0] == asked[1]


@pytest.mark.parametrize("loss", ["bce", "ce"])
def test_products_in_half_precision_on_request(loss):
    """Near those of a training in single precision, and not the same; nothing else is rounded."""
    settings = PLAIN | {"loss": loss, "dim": 16, "lr": 0.01}
    data = tiny_world(dtype=torch.float32)
    full = run(CentralSASRec(**settings), data, 2)["scores"]
    half = run(CentralSASRec(**settings, products="bfloat16"), data, 2)["scores"]
    away = (half - full).norm() / full.norm()
    assert 1e-5 < away < 0.05
    assert half.dtype == torch.float32


def test_products_in_half_precision_are_refused_where_a_gpu_lacks_them(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: False)
    world = replace(tiny_world().world, device=torch.device("cuda"))
    with pytest.raises(FedrecError, match="products=bfloat16: this GPU does not have it; leave products=full"):
        CentralSASRec(products="bfloat16").init_clients(world, tiny_world().chunk(np.arange(1)))
    with pytest.raises(FedrecError, match="products"):
        build_method("sasrec", params={"products": "float16"})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_softmax_loss_is_torchs_and_keeps_to_its_blocks(monkeypatch, dtype):
    made = torch.Generator().manual_seed(5)
    states, table = (torch.randn(n, 6, generator=made, dtype=torch.float64) for n in (50, 70))
    target = torch.randint(70, (50,), generator=made)
    leaves = [value.clone().requires_grad_() for value in (states, table)]
    expected = F.cross_entropy(leaves[0] @ leaves[1].T, target, reduction="sum")
    gradients = torch.autograd.grad(0.3 * expected, leaves)
    mine = [value.to(dtype).requires_grad_() for value in (states, table)]
    monkeypatch.setattr("fedrec.training.softmax_training.LOGITS", 8 * 70)
    with Watch() as watch:
        found = softmax_loss(*mine, target)
        by_states, by_table = torch.autograd.grad(0.3 * found, mine)
    assert watch.largest <= 8 * 70, "more logits at once than the budget has"
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    result = {"loss": found.detach(), "states": by_states, "table": by_table}
    right = {"loss": expected.detach(), "states": gradients[0], "table": gradients[1]}
    assert_close(result, right, tolerance, "against torch")


class Watch(TorchDispatchMode):
    """How often a tensor's value was asked for by the host, and how large the largest new tensor was."""

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2")

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.largest = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        indices = args[1] if func.__name__.startswith("index.") else ()
        by_mask = any(index is not None and index.dtype == torch.bool for index in indices)
        self.asked += func.__name__.startswith(self.WAITS) or by_mask
        if isinstance(made, torch.Tensor):
            self.largest = max(self.largest, made.numel())
        return made


def _start(method, data):
    """What a descent of the only client begins with in round 0."""
    chunk = data.chunk(np.array([0]))
    state = method.init_clients(data.world, chunk)
    dense = {name: state.per_client[name] for name in method.model.dense_shapes()}
    return chunk, 0, state.per_user["user"], state.per_client["item"], dense
