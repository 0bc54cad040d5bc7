"""In a round the host does not wait for the device. Without a GPU: `waits.py` says how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrec.experiment.checkpoint import restore, tensors_of
from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Method
from fedrec.federation.simulator import Simulator
from fedrec.methods.average.fedavg import FedAvg
from fedrec.methods.average.fedmf import FedMF
from fedrec.methods.average.fedopt import FedOpt
from fedrec.methods.cluster.cgfedrec import CGFedRec
from fedrec.methods.mixture.fedca import FedCA
from fedrec.methods.personal.fedrap import FedRAP
from fedrec.methods.personal.fedrkg import FedRKG
from fedrec.methods.personal.pfedrec import PFedRec
from fedrec.methods.reference.sasrec import CentralSASRec
from fedrec.testing import tiny_world

from .waits import META, Seen, looked_at, on_meta

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="needs the package triton, for its kernels")

WAITING: dict[str, Callable[[Tensor], object]] = {
    "a number": lambda x: x[0].item(),
    "a truth": lambda x: bool(x.sum() > 0),
    "a comparison": lambda x: torch.equal(x, x),
    "a list": lambda x: x.tolist(),
    "a copy": lambda x: x.cpu(),
    "a mask": lambda x: x[x > 0],
    "a mask to write to": lambda x: x.clone().index_put_((x > 0,), x),
    "places": lambda x: x.nonzero(),
    "distinct numbers": lambda x: torch.unique(x),
    "repetitions": lambda x: torch.repeat_interleave(x.long()),
    "counts": lambda x: torch.bincount(x.long()),
    "numbers of the host": lambda x: torch.tensor([1.0, 2.0], device=META),
    "an array of the host": lambda x: torch.from_numpy(np.arange(3)).to(META),
    "an index of the host": lambda x: x[torch.tensor([0, 1])],
    "an array of the host, into a tensor": lambda x: x.copy_(torch.ones(3)),
}
AT_ONCE: dict[str, Callable[[Tensor], object]] = {
    "an array of the host, when the device comes to it": lambda x: torch.from_numpy(np.arange(3)).to(
        META, non_blocking=True
    ),
    "repetitions, so many": lambda x: torch.repeat_interleave(x.long(), output_size=7),
    "an index": lambda x: x[torch.zeros(2, dtype=torch.int64, device=META)],
    "where": lambda x: torch.where(x > 0, x, 0.0).sort().values.cumsum(0),
}


@pytest.mark.parametrize("name", WAITING)
def test_a_wait_is_seen(name: str) -> None:
    with looked_at() as seen:
        WAITING[name](torch.zeros(3, device=META))
    assert len(seen.waits) == 1


@pytest.mark.parametrize("name", AT_ONCE)
def test_what_waits_for_nobody_is_not(name: str) -> None:
    with looked_at() as seen:
        AT_ONCE[name](torch.zeros(3, device=META))
    assert not seen.waits


ROUNDS = 3
CHOSEN = 15  # kernels more where not everybody takes part: indices go to the device, states are taken and put back
FREE: dict[str, tuple[Method, int]] = {  # and how many kernels a round starts at most
    "fedmf": (FedMF(dim=8), 30),
    "fedmf adam": (FedMF(dim=8, optimiser="adam"), 30),
    "fedavg": (FedAvg(dim=8, backbone="ncf", shares="equal"), 130),
    "fedavg, by samples": (FedAvg(dim=8, backbone="ncf"), 130),
    "fedrkg": (FedRKG(dim=8), 25),
    "fedrap": (FedRAP(dim=8), 45),
    "pfedrec": (PFedRec(dim=8), 45),
    "fedopt": (FedOpt(backbone="sasrec", dim=8, length=8, loss="ce", clip=0.5, clients_per_round=5), 900),
}


def rounds(method: Method, monkeypatch: pytest.MonkeyPatch, participation: float = 1.0, count: int = ROUNDS) -> Seen:
    """What the last of some rounds did: the first ones set things up."""
    data = tiny_world(dtype=torch.float32)
    if method.info.centralised:
        data = in_one_place(data)
    data = replace(data, world=replace(data.world, participation=participation))
    simulator = Simulator(method, on_meta(data, monkeypatch))
    for number in range(count):
        with looked_at() as seen:
            simulator.begin(number)
    return seen


def in_one_place(data: ClientData) -> ClientData:
    users = np.repeat(np.arange(len(data.users)), np.diff(data.user_ptr))
    return ClientData.build(
        replace(data.world, clients=1), users, data.items, users=data.users, client_ptr=np.array([0, len(data.users)])
    )


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", FREE)
def test_a_round_waits_for_nothing(name: str, participation: float, monkeypatch: pytest.MonkeyPatch) -> None:
    method, most = FREE[name]
    seen = rounds(method, monkeypatch, participation)
    assert not seen.waits
    assert len(seen.started) <= most + (CHOSEN if participation < 1 else 0), seen.started


def test_to_read_its_figures_is_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = Simulator(FedMF(dim=8), on_meta(tiny_world(dtype=torch.float32), monkeypatch))
    simulator.begin(0)
    with looked_at() as seen:
        simulator.begin(1).log()
    assert len(seen.waits) == 1


def test_nor_after_a_checkpoint_was_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the host reads in every round stays with it."""
    method = FREE["fedopt"][0]
    simulator = Simulator(method, on_meta(tiny_world(dtype=torch.float32), monkeypatch))
    stored = {name: torch.zeros_like(value, device="cpu") for name, value in tensors_of(simulator).items()}
    restore(simulator, stored)
    simulator.begin(0)
    with looked_at() as seen:
        simulator.begin(1)
    assert not seen.waits


SOME: dict[str, tuple[Method, int]] = {  # and how often a round waits at most
    "sasrec": (CentralSASRec(dim=8, length=8, batch=4), 1),  # distinct items
    "sasrec ce": (CentralSASRec(dim=8, length=8, batch=4, loss="ce"), 0),
    "fedca": (FedCA(dim=8), 0),  # on a GPU, decompositions wait inside torch
    "cgfedrec": (CGFedRec(dim=8, clusters=5), 3),  # distinct pairs of client and item, and whose; the end of k-means
    "fedrkg, guidance": (FedRKG(dim=8, interval=ROUNDS), 3),
}


@pytest.mark.parametrize("name", SOME)
def test_a_round_hardly_waits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method, most = SOME[name]
    seen = rounds(method, monkeypatch)
    assert len(seen.waits) <= most, seen.waits
