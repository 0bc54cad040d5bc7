"""Kernels of an accelerator, in Triton's interpreter: the same draws and the same steps as the torch program."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from dataclasses import asdict, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from federation.test_training import (
    MF,
    NCF,
    InTurn,
    Network,
    assert_same_from_a_common_start,
    assert_same_network,
    everyone,
    fit,
    fit_network,
)
from fedrec.federation.accumulator import sum_uploads
from fedrec.federation.clients import Chunk, ClientData
from fedrec.federation.contract import Down, PartialSum, Rows, State
from fedrec.kernels import find
from fedrec.kernels.arguments import Data, Keys
from fedrec.kernels.device import Copies, halves, sent
from fedrec.kernels.registry import KERNELS
from fedrec.methods.closed_form.fedgram import FedGram
from fedrec.methods.cluster.repulsion import Repulsion
from fedrec.methods.personal.fedrap import FedRAP
from fedrec.random import Purpose, fold_tensor, permute, stream
from fedrec.testing import tiny_world
from fedrec.training.local_training import LocalMethod, LocalTrainer
from fedrec.training.samples import negatives

if find_spec("triton") is not None:
    from fedrec.kernels import contrast_triton, draws_triton, gram_triton, ncf_triton, rows_triton

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None, reason="needs the package triton, whose interpreter runs them"
)
CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of an accelerator in the place of the processor's, with tiles so small that clients need several."""
    for name, device in list(KERNELS):
        if device == "cuda":
            monkeypatch.setitem(KERNELS, (name, "cpu"), KERNELS[name, "cuda"])
    for module, name, size in ((draws_triton, "LANES", 32), (rows_triton, "SUM_LANES", 16), (ncf_triton, "WIDEST", 4)):
        monkeypatch.setattr(module, name, size)


def arguments(chunk: Chunk) -> Data:
    data = chunk.data
    return Data(
        chunk.clients,
        chunk.places,
        data.users,
        data.user_ptr,
        data.items,
        data.pool.indptr,
        data.pool.gap,
        data.unique == "user",
    )


def round_keys(data: ClientData, round: int) -> Keys:
    return Keys(*(np.uint64(stream(data.world.seed, kind, round)) for kind in (Purpose.NEGATIVES, Purpose.ORDER)))


WORLDS: dict[str, Any] = {
    "of a positive": {"empty": True},
    "many of a positive": {"negatives": 9},
    "more than there are": {"items": 16, "negatives": 3},  # one item is left for a user of 15: with replacement
    "of a user": {"unique": "user", "empty": True},
    "of a user, again and again": {"items": 18, "unique": "user"},
    "none": {"negatives": 0},
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("clients", [np.arange(12), np.array([1, 4, 9, 10])])
def test_the_draws_are_those_of_torch(world, clients):
    chunk, slots = tiny_world(**WORLDS[world]).chunk(clients), tiny_world(**WORLDS[world]).negatives
    drawn = draws_triton.draw(arguments(chunk), chunk.world.items, slots, round_keys(chunk.data, 3), CPU)
    expected = negatives(chunk, 3)
    assert drawn.row_ptr[0] == 0
    for k in range(len(clients)):
        low, high = chunk.user_ptr[k], chunk.user_ptr[k + 1]
        rows = drawn.row[low * (1 + slots) : high * (1 + slots)].long()
        wanted = torch.cat([torch.from_numpy(chunk.items[low:high]), expected[low:high].flatten()])
        assert torch.equal(drawn.item[rows].long(), wanted)
        assert torch.equal(rows.unique(), torch.arange(drawn.row_ptr[k], drawn.row_ptr[k + 1]))
        assert (drawn.client[rows] == k).all()


def test_orders_are_those_of_torch():
    """Of owners with one, two, a power of two and many positions, in tiles that several of them share."""
    size = torch.tensor([1, 2, 64, 3, 200, 0, 33])
    owner = torch.repeat_interleave(size)
    position = torch.arange(len(owner)) - (size.cumsum(0) - size)[owner]
    key = fold_tensor(stream(7, Purpose.ORDER, 3), torch.arange(len(size)))
    found = draws_triton.permute(key, size, position, owner)
    assert torch.equal(found, permute(key, size, position, owner))
    assert not torch.equal(found, position)
    assert not len(draws_triton.permute(key[5:6], size[5:6], position[:0], owner[:0]))


def test_pairs_that_need_long_integers(monkeypatch):
    chunk = tiny_world().chunk(np.arange(12))
    ends = []
    for limit in (draws_triton.INT32, 0):
        monkeypatch.setattr(draws_triton, "INT32", limit)
        ends.append(draws_triton.draw(arguments(chunk), 40, 4, round_keys(chunk.data, 0), CPU))
    for name in ("row", "row_ptr", "item", "client"):
        assert torch.equal(getattr(ends[0], name), getattr(ends[1], name))


def few(**more: Any) -> ClientData:
    """Clients with so few samples that the interpreter is done soon; only the first needs several tiles and batches."""
    return tiny_world(per_user=(15, 4, 1, 2, 1, 3, 1, 2, 1, 1, 2, 0), **more)


FACTORS: dict[str, tuple[type[LocalMethod], dict[str, Any], int]] = {
    "sgd": (LocalMethod, {}, 4),
    "one batch, several tiles": (LocalMethod, {"batch": 256}, 4),
    "a batch that fills no tile": (LocalMethod, {"batch": 7, "epochs": 1}, 1),
    "sum, early exit": (LocalMethod, {"reduction": "sum", "epochs": 4, "early_exit": 0.02}, 4),
    "pairs": (LocalMethod, {"loss": "bpr"}, 4),
    "in turn": (InTurn, {}, 4),
    "pairs in turn": (InTurn, {"loss": "bpr", "batch": 10}, 1),
    "adam": (LocalMethod, {"optimiser": "adam"}, 4),
    "adam, pulled back": (Network, {"optimiser": "adam", "pulling": 0.3}, 2),
    "adam in turn, pairs": (InTurn, {"optimiser": "adam", "loss": "bpr", "reduction": "sum"}, 2),
}


@pytest.mark.parametrize("case", FACTORS)
def test_factors_from_a_common_start(case):
    kind, more, slots = FACTORS[case]
    method = kind(**asdict(MF) | {"epochs": 2, "lr": 0.05, "lr_item": 0.03, "dim": 5, "batch": 40} | more)
    assert_same_from_a_common_start(method, few(negatives=slots))


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_factors_on_own_tables(optimiser):
    method, data = replace(MF, optimiser=optimiser, lr=0.05), few()
    compiled, plain = (fit_network(method, data, c, own=True) for c in (True, False))
    assert_same_network(compiled, plain)
    assert torch.allclose(compiled[0].table, plain[0].table, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "reduction", "early_exit"),
    [(LocalMethod, "mean", 0.0), (InTurn, "sum", 0.02)],
    ids=["together", "in turn"],
)
def test_a_linear_scorer(kind, reduction, early_exit):
    method = kind(
        backbone="linear",
        dim=6,
        init_std=0.5,
        batch=40,
        epochs=2,
        lr=0.05,
        lr_item=0.3,
        weight_decay_dense=0.01,
        reduction=reduction,
        early_exit=early_exit,
    )
    data = few()
    compiled, plain = (fit_network(method, data, c, own=True) for c in (True, False))
    assert_same_network(compiled, plain)
    assert torch.allclose(compiled[0].table, plain[0].table, atol=1e-12)
    assert_same_from_a_common_start(method, data)


NETWORKS: dict[str, tuple[type[LocalMethod], dict[str, Any]]] = {
    "sgd, three layers": (Network, {"hidden": (7, 5, 2), "batch": 40}),
    "adam in turn, pairs": (InTurn, {"optimiser": "adam", "loss": "bpr", "reduction": "sum", "hidden": (3,)}),
}


@pytest.mark.parametrize("case", NETWORKS)
def test_a_network(case):
    """With a client of several batches, and batches of several tiles."""
    kind, more = NETWORKS[case]
    method = kind(**asdict(NCF) | {"dim": 4, "epochs": 1} | more)
    assert_same_from_a_common_start(method, few())


def test_a_network_on_own_tables():
    method = replace(NCF, dim=4, optimiser="adam", early_exit=0.01, epochs=3, hidden=(3,))
    compiled, plain = (fit_network(method, few(negatives=1), c, own=True) for c in (True, False))
    assert_same_network(compiled, plain)
    assert torch.allclose(compiled[0].table, plain[0].table, atol=1e-12)


class Saturated(LocalMethod):
    @cached_property
    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self, saturation="released")


def test_saturated_scores():
    """From values under which some probabilities are 0 or 1 in single precision."""
    method = Saturated(backbone="linear", dim=6, init_std=30.0, batch=20, lr=0.5)
    data = few()
    (compiled, loss), (plain, expected) = (fit_network(method, data, c, own=True) for c in (True, False))
    (unbounded, _) = fit_network(LocalMethod(**asdict(method)), data, compiled=True, own=True)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert torch.allclose(compiled.table, plain.table, atol=1e-5)
    assert torch.allclose(compiled.dense["weight0"], plain.dense["weight0"], atol=1e-5)
    assert not torch.allclose(compiled.table, unbounded.table, atol=1e-2)


def test_single_precision_and_some_of_the_clients():
    """Sums of single-precision rows are made in double precision."""
    data = few(dtype=torch.float32)
    method = replace(MF, dim=32, epochs=2)
    ends = []
    for compiled in (True, False):
        chunk = replace(data, world=replace(data.world, compiled=compiled)).chunk(
            np.array([2, 3, 5, 11]), foldable=True
        )
        ends.append(fit(method, chunk))
    summed, rows = ends[0].table, ends[1].table
    assert isinstance(summed, PartialSum)
    assert summed.total.dtype == torch.float64
    change = torch.zeros(40, 32, dtype=torch.float64)
    change.index_add_(0, rows.item, (rows.value - rows.base[rows.item]).double())
    assert torch.allclose(summed.total, change, atol=1e-6)
    assert torch.allclose(ends[0].user, ends[1].user, atol=1e-6)


def test_a_run_repeats_bit_by_bit():
    data = few(dtype=torch.float32)
    first, second = (fit(replace(MF, batch=40), everyone(data)) for _ in range(2))
    assert torch.equal(first.user, second.user)
    assert torch.equal(first.table.total, second.table.total)


def test_nothing_to_train_on():
    data = few()
    fitted = fit(MF, data.chunk(np.array([11]), foldable=True))
    assert isinstance(fitted.table, PartialSum)
    assert not fitted.table.total.any()


def test_what_diverged_shows():
    data = few()
    user = MF.trainer.init_users(data.world, data.users)
    user[3, 0] = torch.nan
    chunk = everyone(data)
    fitted = MF.trainer.fit(chunk, 0, user, MF.trainer.init_items(data.world))
    assert fitted.user.isnan().any(1).tolist() == [k == 3 for k in range(12)]
    assert np.isnan(float(chunk.observed["loss"][0]))


def test_a_backbone_without_a_kernel_there_is_left_to_torch():
    assert find("gate", CUDA) is None


GRAMS = {"all alike": FedGram(), "by user": FedGram(model="linear"), "order": FedGram(order=True, floor=0.2, window=3)}


@pytest.mark.parametrize("case", GRAMS)
def test_sums_of_histories(case, monkeypatch):
    """Of clients of one user and of several, in tiles shorter than a history."""
    monkeypatch.setattr(gram_triton, "LANES", 8)
    for data in (few(), few(silos=(5, 7))):
        summed, expected = (gram_sums(GRAMS[case], data, compiled) for compiled in (True, False))
        for name, total in expected.items():
            assert torch.allclose(summed[name], total, rtol=1e-13), name


def gram_sums(method: FedGram, data: ClientData, compiled: bool) -> dict[str, Tensor]:
    data = replace(data, world=replace(data.world, compiled=compiled))
    chunk = data.chunk(data.clients, foldable=True)
    sent = method.local(State(), Down(), chunk, 0)[1]
    return {name: sum_uploads(reduction.value, None) for name, reduction in sent.items()}


@pytest.mark.parametrize(("form", "temperature"), [("paper", 0.1), ("released", 0.02)])
def test_rows_that_repel_each_other(monkeypatch, form, temperature):
    """Of several clients, in several tiles of which the last is not full, with a row that has no weight."""
    for name in ("ROWS", "COLUMNS"):
        monkeypatch.setattr(contrast_triton, name, 16)
    z = F.normalize(torch.randn(3, 37, 5, generator=torch.Generator().manual_seed(2)), dim=-1)
    weight = torch.ones(37).index_fill_(0, torch.tensor([30]), 0.0)
    compiled, plain = (Repulsion(temperature, form, 1 << 20, on) for on in (True, False))
    assert compiled.space(z) is None
    found = compiled(z, weight, compiled.space(z))
    expected = plain(z.double(), weight.double(), plain.space(z.double()))
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.allclose(ours.double() * weight_like(ours, weight), theirs * weight_like(ours, weight), atol=2e-5)


def weight_like(value: Tensor, weight: Tensor) -> Tensor:
    """Of rows, or of every number in them: what has no weight says nothing about itself."""
    return weight if value.dim() == 2 else torch.ones_like(weight)[:, None]


def additive(data: ClientData, compiled: bool, clients: np.ndarray, **more: Any) -> tuple[State, Tensor, float]:
    """What clients of FedRAP then have, the mean of their shared tables, and their loss."""
    method = FedRAP(**{"dim": 5, "init_std": 0.5, "lr": 0.05, "lr_item": 0.7, "batch": 40, "epochs": 2} | more)
    data = replace(data, world=replace(data.world, compiled=compiled))
    chunk = data.chunk(clients, foldable=True)
    down = Down(shared={"item": method.trainer.init_items(data.world)})
    state, sent = method.local(method.init_clients(data.world, chunk), down, chunk, 4)
    assert isinstance(sent["item"].value, PartialSum if compiled else Rows)
    return state, sum_uploads(sent["item"].value, None), float(chunk.observed["loss"][0])


ADDITIVE: dict[str, dict[str, Any]] = {
    "several batches": {},
    "one batch, squares, sum, early exit": {
        "batch": 2048,
        "regular": "l2",
        "reduction": "sum",
        "epochs": 5,
        "early_exit": 0.1,
        "lr_item": 0.01,
    },
    "nothing shrinks": {"weight_decay": 0.0, "regular": "none"},
}


@pytest.mark.parametrize("case", ADDITIVE)
def test_two_tables_at_once(case):
    """Also of a client without items, whose tables stay."""
    (state, total, loss), (plain, expected, wanted) = (
        additive(few(), compiled, np.array([0, 1, 5, 11]), **ADDITIVE[case]) for compiled in (True, False)
    )
    assert loss == pytest.approx(wanted, rel=1e-12)
    assert torch.allclose(total, expected, atol=1e-11)
    for name, value in plain.per_client.items():
        assert torch.allclose(state.per_client[name], value, atol=1e-12), name


def test_data_are_copied_once_and_dropped_with_the_array():
    copies, array, elsewhere = Copies(), np.arange(5), torch.device("meta")
    assert copies.get(array, CPU).tolist() == [0, 1, 2, 3, 4]
    assert copies.get(array, elsewhere) is copies.get(array, elsewhere)
    assert copies.get(array, elsewhere) is not copies.get(array.copy(), elsewhere)
    del array
    gc.collect()
    assert not copies._kept


@pytest.mark.parametrize("numbers", [[], [4], [3, 4, 5], [3, 5, 4], [0, 2, 3]])
def test_numbers_arrive_as_they_are(numbers):
    assert sent(np.array(numbers, dtype=np.int64), CPU).tolist() == numbers


@pytest.mark.parametrize("key", [0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
def test_halves_of_a_key(key):
    high, low = halves(np.uint64(key))
    assert all(-(2**31) <= half < 2**31 for half in (high, low))
    assert ((high % 2**32) << 32) + low % 2**32 == key


@pytest.mark.parametrize("name", [name for name, device in KERNELS if device == "cuda"])
def test_every_kernel_of_an_accelerator_is_found(name):
    assert callable(find(name, CUDA))


def test_the_compiler_takes_them(tmp_path):
    """Which the interpreter cannot know. In a process in which they are not interpreted."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    program = Path(__file__).with_name("compile_all.py")
    done = subprocess.run([sys.executable, str(program)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
