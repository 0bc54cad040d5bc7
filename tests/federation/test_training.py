"""Local training: initial values, the kernel against torch, what is touched, and what the log shows."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fedrec.federation.clients import Chunk, ClientData
from fedrec.federation.contract import PartialSum, Rows, World
from fedrec.federation.simulator import Simulator
from fedrec.methods import FedMF, Local
from fedrec.testing import tiny_world
from fedrec.training.descent import Fitted
from fedrec.training.local_training import IN_TURN, TOGETHER, LocalMethod, LocalTrainer, Phases
from fedrec.training.samples import Samples

MF = LocalMethod(dim=4, init_std=0.3, batch=16, lr=0.5)


def fit(method: LocalMethod, chunk: Chunk, table: torch.Tensor | None = None, **options) -> Fitted:
    user = method.trainer.init_users(chunk.world, chunk.users)
    table = method.trainer.init_items(chunk.world) if table is None else table
    return method.trainer.fit(chunk, 0, user, table, **options)


def everyone(data: ClientData, foldable: bool = True) -> Chunk:
    return data.chunk(np.arange(data.world.clients), foldable=foldable)


class TestInitialValues:
    def test_item_table_is_normal_and_common(self):
        method, world = LocalMethod(dim=50), World(items=2000, clients=3)
        table = method.trainer.init_items(world)
        assert table.dtype == torch.float32
        assert abs(float(table.mean())) < 1e-4
        assert float(table.std()) == pytest.approx(0.01, rel=0.01)
        assert not torch.equal(table, method.trainer.init_items(replace(world, seed=1)))

    def test_user_vectors_belong_to_the_user(self):
        world = World(items=5, clients=3, dtype=torch.float64)
        together = MF.trainer.init_users(world, np.arange(1000))
        assert torch.equal(MF.trainer.init_users(world, np.array([700, 3])), together[[700, 3]])
        assert float(together.std()) == pytest.approx(0.3, rel=0.05)
        assert len(together.unique(dim=0)) == 1000

    def test_users_and_items_differ(self):
        world = World(items=5, clients=3, dtype=torch.float64)
        assert not torch.isin(MF.trainer.init_users(world, np.arange(5)), MF.trainer.init_items(world)).any()

    def test_network_is_within_one_over_the_root_of_fan_in(self):
        dense = LocalMethod(backbone="ncf", dim=32).trainer.init_dense(World(items=5, clients=3))
        fan_in = {"0": 64, "1": 32, "2": 16}
        for name, value in dense.items():
            bound = fan_in[name[-1]] ** -0.5
            assert float(value.abs().max()) <= bound
            if value.numel() > 100:
                assert float(value.std()) == pytest.approx(bound / 3**0.5, rel=0.1)


@dataclass(frozen=True)
class Network(LocalMethod):
    """Plain local training of a network, with its widths for a parameter."""

    phases: ClassVar[Phases] = TOGETHER

    hidden: tuple[int, ...] = ()
    pulling: float = 0.0

    @cached_property
    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self, phases=self.phases, pull=self.pulling)


@dataclass(frozen=True)
class InTurn(Network):
    """The head, then the rows."""

    phases = IN_TURN


NCF = Network(
    backbone="ncf",
    dim=6,
    init_std=0.5,
    batch=140,
    epochs=3,
    lr=0.05,
    lr_item=0.03,
    lr_dense=0.02,
    weight_decay_dense=0.01,
)


def fit_network(
    method: LocalMethod, data: ClientData, compiled: bool, own: bool = False, left: torch.Tensor | None = None
) -> tuple[Fitted, float]:
    """From weights (and tables, where each has its own) that differ from client to client; and the mean loss."""
    chunk = everyone(replace(data, world=replace(data.world, compiled=compiled)))
    shift = torch.arange(12, dtype=data.world.dtype) / 50
    common = method.trainer.init_model(chunk.world)
    spread = {name: value + shift.reshape(-1, *[1] * value.dim()) for name, value in common.items()}
    tables = spread.pop("item")
    fitted = fit(method, chunk, tables if own else tables[0], dense=spread, weight=torch.arange(1, 13), own=left)
    total, count = chunk.observed["loss"]
    return fitted, float(total / count)


def assert_same_from_a_common_start(method: LocalMethod, data: ClientData) -> None:
    """The kernel against torch: what is trained, the sum that comes out, and the table that every client is left."""
    left = [torch.zeros(12, data.world.items, method.dim, dtype=torch.float64) for _ in range(2)]
    compiled, plain = (fit_network(method, data, c, left=left[c]) for c in (True, False))
    assert_same_network(compiled, plain)
    assert isinstance(compiled[0].table, PartialSum), "the kernel was not used"
    assert isinstance(plain[0].table, Rows)
    assert torch.allclose(left[True], left[False], atol=1e-12)
    weight = torch.arange(1, 13)[:, None, None]
    expected = (weight * (left[False] - method.trainer.init_items(data.world))).sum(0)
    assert torch.allclose(compiled[0].table.total, expected, atol=1e-11)
    assert float(expected.abs().max()) > 1e-3


def assert_same_network(compiled: tuple[Fitted, float], plain: tuple[Fitted, float]) -> None:
    assert compiled[1] == pytest.approx(plain[1], abs=1e-12)
    assert torch.allclose(compiled[0].user, plain[0].user, atol=1e-12)
    assert list(compiled[0].dense) == list(plain[0].dense)
    for name, value in plain[0].dense.items():
        assert torch.allclose(compiled[0].dense[name], value, atol=1e-12), name


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("loss", ["bce", "bpr"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("kind", [LocalMethod, InTurn])
def test_the_kernel_is_the_torch_program(kind, optimiser, loss, reduction, slots):
    more = {"optimiser": optimiser, "loss": loss, "reduction": reduction, "epochs": 2, "lr": 0.05, "lr_item": 0.03}
    assert_same_from_a_common_start(kind(**asdict(MF) | more), tiny_world(empty=True, negatives=slots))


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_the_kernel_on_own_tables(optimiser):
    method = replace(MF, optimiser=optimiser, lr=0.05)
    data = tiny_world(empty=True)
    results = []
    for compiled in (True, False):
        chunk = everyone(replace(data, world=replace(data.world, compiled=compiled)))
        table = method.trainer.init_items(data.world).repeat(12, 1, 1)
        table += torch.arange(12)[:, None, None] / 10  # each its own
        results.append(fit(method, chunk, table))
    assert torch.allclose(results[0].table, results[1].table, atol=1e-12)
    assert torch.allclose(results[0].user, results[1].user, atol=1e-12)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("loss", ["bce", "bpr"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("kind", [Network, InTurn])
def test_the_network_kernel_is_the_torch_program(kind, optimiser, loss, reduction):
    """With a client of two batches, the first of two tiles and the second of a part of one."""
    method = kind(**asdict(replace(NCF, optimiser=optimiser, loss=loss, reduction=reduction)))
    data = tiny_world(per_user=[45, 9, 1, 3, 15, 6, 2, 8, 4, 5, 7, 0], items=80)
    assert_same_from_a_common_start(method, data)


@pytest.mark.parametrize("hidden", [(3,), (7, 5, 2)])
@pytest.mark.parametrize("early_exit", [0.0, 0.01])
@pytest.mark.parametrize("kind", [Network, InTurn])
def test_the_network_kernel_on_own_tables_at_any_depth(kind, hidden, early_exit):
    method = kind(**asdict(replace(NCF, hidden=hidden, optimiser="adam", early_exit=early_exit)))
    compiled, plain = (fit_network(method, tiny_world(empty=True), c, own=True) for c in (True, False))
    assert_same_network(compiled, plain)
    assert torch.allclose(compiled[0].table, plain[0].table, atol=1e-12)


def test_a_network_that_diverged_shows():
    """What is not a number goes through the kernel as it goes through torch, and stays with its client."""
    data = tiny_world()
    for compiled in (True, False):
        chunk = everyone(replace(data, world=replace(data.world, compiled=compiled)))
        trainer = NCF.trainer
        state = trainer.init_state(chunk.world, chunk, trainer.init_dense(chunk.world))
        user = state.per_user["user"]
        user[3, 0] = torch.nan
        fitted = trainer.fit(chunk, 0, user, trainer.init_items(chunk.world), state.per_client)
        lost = fitted.dense["weight0"].isnan().flatten(1)
        assert lost.all(1).tolist() == lost.any(1).tolist() == [k == 3 for k in range(12)]


def test_what_the_network_kernel_lacks_is_left_to_torch():
    data = tiny_world()
    assert isinstance(fit_network(NCF, data, compiled=True)[0].table, PartialSum)
    assert isinstance(fit_network(replace(NCF, pulling=0.1), data, compiled=True)[0].table, Rows)
    assert isinstance(fit_network(replace(NCF, backbone="neumf"), data, compiled=True)[0].table, Rows)


@pytest.mark.parametrize("kind", [LocalMethod, InTurn])
@pytest.mark.parametrize(("reduction", "early_exit"), [("mean", 0.0), ("sum", 0.02)])
def test_the_linear_kernel_is_the_torch_program(kind, reduction, early_exit):
    """Own tables; a common start, whose sum comes out; and a common start that leaves every client its table."""
    method = kind(
        backbone="linear",
        dim=6,
        init_std=0.5,
        batch=20,
        epochs=4,
        lr=0.05,
        lr_item=0.3,
        weight_decay_dense=0.01,
        reduction=reduction,
        early_exit=early_exit,
    )
    data = tiny_world(per_user=[15, 9, 1, 3, 15, 6, 2, 8, 4, 5, 7, 0])
    compiled, plain = (fit_network(method, data, c, own=True) for c in (True, False))
    assert_same_network(compiled, plain)
    assert torch.allclose(compiled[0].table, plain[0].table, atol=1e-12)
    assert_same_from_a_common_start(method, data)


def test_what_the_linear_kernel_lacks_is_left_to_torch():
    method = LocalMethod(backbone="linear", dim=6)
    for lacking in ({"optimiser": "adam"}, {"loss": "bpr"}):
        assert isinstance(fit_network(replace(method, **lacking), tiny_world(), compiled=True)[0].table, Rows)


def test_the_log_shows_the_same_mean_loss():
    method = FedMF(dim=4, batch=16, epochs=2, lr=0.1)
    logs = [Simulator(method, tiny_world(compiled=c)).round(0) for c in (True, False)]
    assert logs[0].observed["loss"] == pytest.approx(logs[1].observed["loss"], abs=1e-12)
    assert logs[0].observed["loss"] == pytest.approx(np.log(2), abs=1e-3)  # from small initial values


def test_loss_falls_with_training():
    simulator = Simulator(FedMF(dim=8, lr=5.0, init_std=0.1), tiny_world())
    losses = [simulator.round(number).observed["loss"] for number in range(30)]
    assert losses[-1] < 0.8 * losses[0]


def test_folding_is_not_used_where_single_uploads_are_needed():
    data = tiny_world()
    assert isinstance(fit(MF, everyone(data, foldable=False)).table, Rows)
    assert isinstance(fit(MF, everyone(data), fold=False).table, Rows)
    assert isinstance(fit(MF, everyone(tiny_world(silos=(5, 4, 3)))).table, Rows)


def test_integer_rates_do_not_compile_the_kernel_again():
    from fedrec.kernels.mf import train_clients

    data = tiny_world()
    fit(MF, everyone(data))
    known = len(train_clients.signatures)
    fit(replace(MF, lr=1, lr_item=2), everyone(data))
    fit(MF, data.chunk(np.arange(12)[::2].astype(np.int32), foldable=True))
    assert len(train_clients.signatures) == known


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("silos", [None, (11, 1)])
def test_nothing_to_train_on(compiled, silos):
    """A chunk whose only client has no items: nothing moves, nothing breaks."""
    data = tiny_world(empty=True, silos=silos, compiled=compiled)
    chunk = data.chunk(np.array([data.world.clients - 1]), foldable=True)
    fitted = fit(MF, chunk)
    assert torch.equal(fitted.user, MF.trainer.init_users(data.world, chunk.users))
    changed = fitted.table.total if isinstance(fitted.table, PartialSum) else fitted.table.value
    assert not changed.any()


def wide(compiled: bool) -> ClientData:
    """2,000 clients of 3 items each among 5,000: ten million pairs, of which a round touches at most 30,000."""
    rng = np.random.default_rng(0)
    item = np.concatenate([rng.choice(5000, 3, replace=False) for _ in range(2000)])
    world = World(items=5000, clients=2000, compiled=compiled, dtype=torch.float64)
    return ClientData.build(
        world, np.repeat(np.arange(2000), 3), item, users=np.arange(2000), client_ptr=np.arange(2001)
    )


def test_work_follows_the_data():
    """An upload holds the rows that its client's samples touched, not the table."""
    data = wide(compiled=False)
    chunk = everyone(data)
    fitted = fit(MF, chunk)
    assert isinstance(fitted.table, Rows)
    distinct = len(Samples(chunk, 0, "bce", 16).item)
    assert len(fitted.table.value) == distinct <= 2000 * 3 * 5
    held = sum(t.numel() for t in (fitted.table.owner, fitted.table.item, fitted.table.value, fitted.user))
    assert held < 2000 * 5000 * MF.dim / 100


class Largest(TorchDispatchMode):
    """The most bytes of a tensor that anything made."""

    nbytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for value in tree_leaves(made):
            if isinstance(value, torch.Tensor):
                self.nbytes = max(self.nbytes, value.untyped_storage().nbytes())
        return made


def test_a_wide_round_is_one_chunk_and_its_work_follows_the_data():
    """Under a budget in which 2,000 dense tables (0.3 GiB) would not fit: none of them is ever made."""
    simulator = Simulator(FedMF(dim=4, batch=16, lr=1.0), wide(compiled=False), memory=200 << 20)
    chunks = list(simulator.client_side._chunks(np.arange(2000)))
    assert len(chunks) == 1
    with Largest() as largest:
        simulator.round(0)
    assert 5000 * 4 * 8 <= largest.nbytes < 2000 * 5000 * 4 * 8 / 100, largest.nbytes


def test_memory_budget_sets_the_chunks():
    data = tiny_world()

    def chunks(memory: int = 8 << 30) -> list[np.ndarray]:
        side = Simulator(Local(dim=4), data, memory=memory).client_side
        return [chunk.clients for _, chunk, _ in side._chunks(np.arange(12))]

    assert [len(clients) for clients in chunks()] == [12]
    assert [len(clients) for clients in chunks(2)] == [1] * 12
    some = chunks(1 << 16)
    assert 1 < len(some) < 12
    assert np.concatenate(some).tolist() == list(range(12))
