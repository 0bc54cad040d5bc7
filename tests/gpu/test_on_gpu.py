"""On a GPU: kernels give what torch gives there, and the same bits again; methods what they give on the processor.

`pytest tests/gpu` alone: the tests of `tests/kernels` have Triton interpreted, which holds for a whole process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedrec
from fedrec.federation.clients import Chunk, ClientData
from fedrec.federation.contract import Method, MethodInfo, PartialSum, Rows, Tensors, World
from fedrec.federation.simulator import Simulator
from fedrec.methods.average.fedmf import FedMF
from fedrec.methods.average.fedopt import FedOpt
from fedrec.methods.closed_form.fedgram import FedGram
from fedrec.methods.cluster.cgfedrec import CGFedRec
from fedrec.methods.cluster.contrast import SupCon
from fedrec.methods.mixture.fedca import FedCA
from fedrec.methods.personal.fedrap import FedRAP
from fedrec.methods.personal.fedrkg import FedRKG
from fedrec.methods.reference.sasrec import CentralSASRec
from fedrec.training.descent import Fitted
from fedrec.training.local_training import IN_TURN, LocalMethod, LocalTrainer

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1",
    reason="needs a CUDA device, and kernels that are not interpreted",
)
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
CLOSE = {torch.float64: 1e-10, torch.float32: 2e-4}  # of the largest entry


def clients_of(dtype: torch.dtype, clients: int = 150, items: int = 500, interactions: int = 6_000) -> ClientData:
    """Users of very different activity, items of very different popularity, nobody twice at one item."""
    rng = np.random.default_rng(0)
    activity = rng.lognormal(0.0, 1.0, clients)
    counts = np.clip(activity / activity.sum() * interactions, 2, items * 0.6).astype(np.int64)
    appeal = np.log(1.0 / (10.0 + np.arange(items)))
    item = np.concatenate([np.argpartition(-(appeal + rng.gumbel(size=items)), count)[:count] for count in counts])
    world = World(items=items, clients=clients, dtype=dtype, device=CUDA)
    return ClientData.build(
        world, np.repeat(np.arange(clients), counts), item, users=np.arange(clients), client_ptr=np.arange(clients + 1)
    )


@dataclass(frozen=True)
class InTurn(LocalMethod):
    @cached_property
    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self, phases=IN_TURN)


@dataclass(frozen=True)
class Pulled(LocalMethod):
    @cached_property
    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self, pull=0.1)


BASE: dict[str, Any] = {"dim": 20, "init_std": 0.3, "batch": 64, "epochs": 2, "lr": 0.05}
HEAD: dict[str, Any] = {**BASE, "backbone": "linear", "weight_decay_dense": 0.01}
NETWORK: dict[str, Any] = {**BASE, "backbone": "ncf", "lr_item": 1.0, "weight_decay_dense": 0.01}
CASES: dict[str, tuple[LocalMethod, bool]] = {  # and whether every client has its own table
    "mf sgd": (LocalMethod(**BASE), False),
    "mf sgd, one batch": (LocalMethod(**BASE | {"batch": 100_000}), False),
    "mf sgd, dim 32, batch 256": (LocalMethod(**BASE | {"dim": 32, "batch": 256}), False),
    "mf sgd, dim 300": (LocalMethod(**BASE | {"dim": 300, "init_std": 0.1}), False),  # a row in several warps
    "mf adam, dim 300": (LocalMethod(**BASE | {"dim": 300, "init_std": 0.1}, optimiser="adam"), False),
    "mf sgd, own tables": (LocalMethod(**BASE), True),
    "mf sgd, sum, early exit": (LocalMethod(**BASE | {"reduction": "sum", "epochs": 6, "early_exit": 0.02}), False),
    "mf sgd in turn": (InTurn(**BASE), False),
    "mf bpr": (LocalMethod(**BASE, loss="bpr"), False),
    "mf adam": (LocalMethod(**BASE, optimiser="adam"), False),
    "mf adam, bpr, own tables": (LocalMethod(**BASE, optimiser="adam", loss="bpr"), True),
    "mf adam, pulled back": (Pulled(**BASE, optimiser="adam"), False),
    "linear": (LocalMethod(**HEAD), False),
    "linear in turn, own tables": (InTurn(**HEAD), True),
    "ncf sgd": (LocalMethod(**NETWORK), False),
    "ncf sgd, dim 32, batch 256": (LocalMethod(**NETWORK | {"dim": 32, "batch": 256}), False),
    "ncf adam, bpr, own tables": (LocalMethod(**NETWORK, optimiser="adam", loss="bpr"), True),
    "ncf adam in turn": (InTurn(**NETWORK, optimiser="adam"), False),
}


def apart(ours: Tensors, theirs: Tensors) -> dict[str, float]:
    """The largest difference in every tensor, as a part of its largest entry."""
    return {
        key: float((ours[key] - value).abs().max() / value.abs().max().clamp(min=1e-300))
        for key, value in theirs.items()
        if value.numel()
    }


@pytest.mark.parametrize("dtype", list(CLOSE), ids=str)
@pytest.mark.parametrize("name", list(CASES))
def test_a_kernel_agrees_with_torch_and_repeats(name: str, dtype: torch.dtype) -> None:
    (method, own), data = CASES[name], clients_of(dtype)
    first, again, plain = (found(method, data, own, compiled) for compiled in (True, True, False))
    assert all(torch.equal(first[key], again[key]) for key in first)
    allowed = dict.fromkeys(plain, CLOSE[dtype])
    if method.optimiser == "adam":  # divides small gradients by small ones: single precision alone is far from double
        rounded = apart(plain, found(method, clients_of(torch.float64), own, False))
        allowed |= {key: max(CLOSE[dtype], 3 * distance) for key, distance in rounded.items()}
    for key, distance in apart(first, plain).items():
        assert distance <= allowed[key], key


def found(method: LocalMethod, data: ClientData, own: bool, compiled: bool) -> Tensors:
    """What one round of all clients ends with."""
    data = replace(data, world=replace(data.world, compiled=compiled))
    chunk = data.chunk(np.arange(data.world.clients), foldable=True)
    fitted = fit(method, chunk, own)
    if compiled and not own:
        assert isinstance(fitted.table, PartialSum), "the kernel was not used"
    total, count = chunk.observed["loss"]
    loss = torch.tensor([total / count], dtype=torch.float64)
    ends = {"loss": loss, "table": table_of(fitted, data)} | {
        name: value.double() for name, value in fitted.dense.items()
    }
    return ends | ({"user": fitted.user.double()} if fitted.user.numel() else {})


def fit(method: LocalMethod, chunk: Chunk, own: bool, round: int = 0) -> Fitted:
    world, count = chunk.world, len(chunk.clients)
    table = method.trainer.init_items(world)
    if own:
        table = table + torch.arange(count, device=CUDA, dtype=world.dtype)[:, None, None] / count
    dense = {name: value.repeat(count, *[1] * value.dim()) for name, value in method.trainer.init_dense(world).items()}
    return method.trainer.fit(chunk, round, method.trainer.init_users(world, chunk.users), table, dense)


def table_of(fitted: Fitted, data: ClientData) -> Tensor:
    """Own tables, or the sum of the changes of a common one."""
    table = fitted.table
    if isinstance(table, PartialSum):
        return table.total
    if isinstance(table, Rows):
        change = torch.zeros(table.base.shape, dtype=torch.float64, device=CUDA)
        return change.index_add_(0, table.item, (table.value - table.base[table.item]).double())
    return table.double()


METHODS: dict[str, Callable[[], Method]] = {
    "fedmf": lambda: FedMF(dim=32, lr=10.0, batch=256),
    "fedrkg": lambda: FedRKG(dim=8, interval=2),
    "fedca": FedCA,
    "fedrap": lambda: FedRAP(dim=32),
    "cgfedrec": lambda: CGFedRec(clusters=5),
    "sasrec": lambda: CentralSASRec(batch=8),
    "sasrec ce": lambda: CentralSASRec(loss="ce", batch=8),
    "fedgram": FedGram,
    "fedgram order": lambda: FedGram(order=True),
}


@pytest.mark.parametrize("name", list(METHODS))
def test_two_rounds_end_as_on_the_processor(name: str) -> None:
    method, data = METHODS[name](), clients_of(torch.float64)
    if method.info.centralised:
        data = in_one_place(data)
    near = replace(data, world=replace(data.world, device=CPU, compiled=False))
    assert max(apart(ended(method, data), ended(METHODS[name](), near)).values()) <= 1e-8


def in_one_place(data: ClientData) -> ClientData:
    """All users with one client."""
    users = np.repeat(np.arange(len(data.users)), np.diff(data.user_ptr))
    return ClientData.build(
        replace(data.world, clients=1), users, data.items, users=data.users, client_ptr=np.array([0, len(data.users)])
    )


def ended(method: Method, data: ClientData) -> Tensors:
    """What the server and clients hold after two rounds, and what users' items score then."""
    simulator = Simulator(method, data)
    for number in range(2):
        simulator.round(number)
    held = simulator.server | simulator.client_side.tensors()
    scores = torch.cat([scores for _, scores in simulator.scores(1)])
    return {key: value.double().cpu() for key, value in (held | {"scores": scores}).items()}


WAITLESS: dict[str, Callable[[], Method]] = {
    "fedmf": lambda: FedMF(dim=32),
    "fedrkg": lambda: FedRKG(dim=8),
    "fedrap": lambda: FedRAP(dim=32),
    "fedopt": lambda: FedOpt(backbone="sasrec", loss="ce", dim=16, length=20, clip=0.5, clients_per_round=40),
}


@contextmanager
def no_waits() -> Iterator[None]:
    """Where torch finds that the host waits for the device, it says so in an error."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", list(WAITLESS))
def test_a_round_waits_for_nothing(name: str, participation: float) -> None:
    """And rounds that begin before the last one is read end as rounds that do not."""
    data = clients_of(torch.float32)
    data = replace(data, world=replace(data.world, participation=participation))
    ahead, plain = (Simulator(WAITLESS[name](), data) for _ in range(2))
    for simulator in (ahead, plain):  # kernels are compiled and recorded, memory is taken
        for number in range(3):
            simulator.round(number)
    with no_waits():
        begun = [ahead.begin(number) for number in range(3, 6)]
    logs = [plain.round(number) for number in range(3, 6)]
    for found, log in zip(begun, logs, strict=True):
        assert math.isfinite(log.observed["loss"])
        assert found.log().observed == pytest.approx(log.observed, rel=1e-5)
    ends = [
        {key: value.double() for key, value in (one.server | one.client_side.tensors()).items()}
        for one in (ahead, plain)
    ]
    assert max(apart(*ends).values()) <= 1e-5


def test_a_wait_is_an_error_there() -> None:
    with no_waits(), pytest.raises(RuntimeError, match="synchroniz"):
        torch.ones(3, device=CUDA).sum().item()


def test_training_that_diverges_ends_in_its_round() -> None:
    """Its figures are read when later rounds have begun."""
    settings: dict[str, Any] = {"optimiser": "sgd", "backbone": "mf", "dim": 4}
    cut = fedrec.run(Exploding(**settings), "synthetic@users=50+items=200", rounds=8, eval_every=2, device="cuda")
    assert "in round 4: training diverged" in cut.summary["diverged"]
    assert cut.summary["rounds_run"] == 3
    assert [record["round"] for record in cut.records] == [0, 1, 2]


@dataclass(frozen=True)
class Exploding(FedMF):
    """Takes a step that is too large in its fourth round."""

    info = MethodInfo("exploding")

    def local(self, state, down, chunk, round):  # type: ignore[no-untyped-def]
        return FedMF.local(replace(self, lr=1e30) if round == 3 else self, state, down, chunk, round)


def test_a_contrastive_loss_in_single_precision_is_close_and_repeats() -> None:
    labels, tables = torch.arange(1_682, device=CUDA) % 50, torch.randn(40, 1_682, 32, device=CUDA)
    loss, slope = SupCon(labels, form="released")(tables)
    again = SupCon(labels, form="released")(tables)
    exact, expected = SupCon(labels, form="released", compiled=False)(tables.double())
    assert torch.equal(loss, again[0])
    assert torch.equal(slope, again[1])
    assert float((loss - exact).abs().max() / exact.abs().max()) < 1e-4
    assert float((slope - expected).abs().max() / expected.abs().max()) < 1e-4
