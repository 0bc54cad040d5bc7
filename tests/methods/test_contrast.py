"""The supervised contrastive loss: published examples by hand, and automatic differentiation of the plain formula."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedrec.methods.cluster.contrast import SupCon
from fedrec.methods.cluster.repulsion import FLOOR

TABLE = torch.tensor([[1.0, 0], [3, 4], [0, 2], [-1, 0], [0, -5]], dtype=torch.float64)
LABELS = torch.tensor([0, 0, 0, 1, 1])
GRADIENT = [[0, -0.518906], [-0.014661, 0.010996], [-0.213849, 0], [0, 0.735827], [0.147081, 0]]
TINY = 200  # bytes of similarities: rows come one or few at a time


def loss(table: Tensor = TABLE, labels: Tensor = LABELS, **options) -> float:
    return float(SupCon(labels, **options)(table[None])[0])


def plain(table: Tensor, labels: Tensor, temperature: float, form: str) -> Tensor:
    """The formula with whole matrices, differentiable."""
    z = F.normalize(table, dim=1)
    logit = z @ z.T / temperature
    itself = torch.eye(len(z), dtype=torch.bool)
    friends = (labels[:, None] == labels[None]) & ~itself
    if form == "paper":
        below = logit.masked_fill(itself, -torch.inf).logsumexp(1)
        count = friends.sum(1).clamp(min=1)
    else:
        logit = logit - logit.amax(1, keepdim=True).detach()
        below = (logit.exp().masked_fill(itself, 0).sum(1) + FLOOR).log()
        count = (friends.sum(1).double() + FLOOR) * 0.5 / temperature
    return ((below[:, None] - logit) * friends).sum(1).div(count).mean()


@pytest.mark.parametrize("memory", [1 << 28, TINY])
def test_loss_by_hand(memory):
    assert loss(temperature=0.5, memory=memory) == pytest.approx(0.953332, abs=1e-6)
    assert loss(temperature=1.0, memory=memory) == pytest.approx(1.056416, abs=1e-6)


@pytest.mark.parametrize("memory", [1 << 28, TINY])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_temperatures(memory, dtype):
    table = TABLE.to(dtype)
    assert loss(table, temperature=0.1, memory=memory) == pytest.approx(1.904058, abs=2e-6)
    assert loss(table, temperature=0.005, memory=memory) == pytest.approx(32.277259, abs=1e-4)
    released = {"form": "released", "memory": memory}
    assert loss(table, temperature=0.1, **released) / (0.1 / 0.5) == pytest.approx(1.908449, abs=2e-5)
    assert loss(table, temperature=0.005, **released) / (0.005 / 0.5) == pytest.approx(130.184387, rel=1e-6)
    assert loss(table, temperature=0.005, **released) == pytest.approx(1.301844, abs=1e-5)


def test_released_rows_no_longer_repel():
    """At a small temperature the floor swallows the sum: what is left of the gradient is attraction."""
    _, gradient = SupCon(torch.zeros(5, dtype=torch.int64), 0.005, "released")(TABLE[None])
    z = F.normalize(TABLE, dim=1)
    pull = -2 / (5 * 0.5 * (4 + FLOOR)) * (z.sum(0) - z)
    expected = (pull - (pull * z).sum(1, keepdim=True) * z) / TABLE.norm(dim=1, keepdim=True)
    assert torch.allclose(gradient[0], expected, atol=1e-9)


@pytest.mark.parametrize("memory", [1 << 28, TINY])
def test_gradient_by_hand(memory):
    _, gradient = SupCon(LABELS, 0.5, memory=memory)(TABLE[None])
    assert torch.allclose(gradient[0], torch.tensor(GRADIENT).double(), atol=1e-6)


@pytest.mark.parametrize("memory", [1 << 28, TINY])
def test_alone_with_its_label(memory):
    alone = torch.tensor([0, 0, 0, 0, 1])
    assert loss(labels=alone, temperature=0.5, memory=memory) == pytest.approx(1.396872, abs=1e-6)
    every = SupCon(torch.arange(5), 0.5, memory=memory)(TABLE[None])
    assert not any(part.any() for part in every), "nobody has a friend: nothing to learn"
    one = SupCon(torch.zeros(1, dtype=torch.int64), 0.5, memory=memory)(TABLE[None, :1])
    assert not any(part.any() for part in one), "one item has nobody to be compared with"


@pytest.mark.parametrize("form", ["paper", "released"])
@pytest.mark.parametrize("temperature", [0.5, 0.1, 0.005, 0.002])
@pytest.mark.parametrize("memory", [1 << 28, 5_000])
def test_automatic_differentiation_agrees(form, temperature, memory):
    """Several clients, rows in several blocks, a label that nobody has and one that a single row has."""
    generator = torch.Generator().manual_seed(3)
    tables = torch.randn(3, 40, 4, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, 5, (40,), generator=generator)
    labels[labels == 2] = 1
    labels[7] = 6
    losses, gradients = SupCon(labels.to(torch.uint8), temperature, form, memory)(tables)
    for k, table in enumerate(tables.unbind()):
        leaf = table.clone().requires_grad_()
        expected = plain(leaf, labels, temperature, form)
        expected.backward()
        assert float(losses[k]) == pytest.approx(float(expected.detach()), rel=1e-10)
        assert torch.allclose(gradients[k], leaf.grad, rtol=1e-8, atol=1e-10)


def test_many_rows_in_single_precision():
    """Blocks and the triangle in float32 against float64 row by row; labels renamed change nothing."""
    generator = torch.Generator().manual_seed(5)
    tables = torch.randn(2, 600, 8, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, 9, (600,), generator=generator)
    exact = SupCon(labels, 0.1, memory=600 * 100 * 8)(tables)
    single = SupCon(8 - labels, 0.1)(tables.float())
    assert torch.allclose(single[0].double(), exact[0], rtol=1e-6)
    assert torch.allclose(single[1].double(), exact[1], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("items", [1, 63, 64, 65, 130])
@pytest.mark.parametrize("width", [1, 16, 20, 33])
def test_compiled_tiles_of_any_size(items, width):
    """Rows, tiles and vectors that are not full, and a row that is alone, against float64."""
    generator = torch.Generator().manual_seed(11)
    tables = torch.randn(2, items, width, generator=generator)
    labels = torch.randint(0, 5, (items,), generator=generator)
    labels[-1] = 6
    found, exact = SupCon(labels, 0.1)(tables), SupCon(labels, 0.1)(tables.double())
    assert torch.allclose(found[0].double(), exact[0], rtol=1e-5)
    assert torch.allclose(found[1].double(), exact[1], rtol=1e-4, atol=1e-5 * float(exact[1].abs().max()))


@pytest.mark.parametrize("form", ["paper", "released"])
@pytest.mark.parametrize("temperature", [0.025, 0.1, 0.5])
def test_compiled_tables_of_unusual_rows(form, temperature):
    """Rows of nothing, twice the same row, opposite ones, most of them alike, one that is tiny: against float64."""
    generator = torch.Generator().manual_seed(13)
    table = torch.randn(200, 32, generator=generator)
    table[64:160] = table[64] + 1e-3 * torch.randn(96, 32, generator=generator)
    table[3], table[170], table[171], table[5] = 0, table[4], -table[4], table[5] * 1e-6
    labels = torch.randint(0, 7, (200,), generator=generator)
    found = SupCon(labels, temperature, form)(table[None])
    exact = SupCon(labels, temperature, form)(table[None].double())
    assert torch.allclose(found[0].double(), exact[0], rtol=1e-5)
    scale = table.double().norm(dim=1).clamp(min=1e-12)[:, None]  # a gradient is as large as its row is short
    ours, theirs = found[1][0].double() * scale, exact[1][0] * scale
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-5


ONCE = """
import hashlib, torch
from fedrec.methods.cluster.contrast import SupCon
generator = torch.Generator().manual_seed(17)
tables, labels = torch.randn(1, 150, 40, generator=generator), torch.randint(0, 9, (150,), generator=generator)
print(*(hashlib.sha256(part.numpy().tobytes()).hexdigest() for part in SupCon(labels)(tables)))
"""


@pytest.mark.slow
def test_compiled_now_or_earlier_is_the_same(tmp_path):
    """What a compiler may reorder can come out differently when it is loaded from the disk."""
    command, place = [sys.executable, "-c", ONCE], os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    first, again = (subprocess.run(command, env=place, capture_output=True, check=True).stdout for _ in range(2))
    assert list(tmp_path.rglob("*.nbc")), "it was kept"
    assert first == again


@pytest.mark.parametrize(("form", "temperature"), [("paper", 0.1), ("released", 0.1), ("released", 0.01)])
def test_compiled_is_the_same_in_any_number_of_threads(form, temperature):
    generator = torch.Generator().manual_seed(7)
    tables = torch.randn(3, 300, 8, generator=generator)
    labels = torch.randint(0, 9, (300,), generator=generator)
    plain = SupCon(labels, temperature, form, compiled=False)(tables)
    compiled = SupCon(labels, temperature, form)(tables)
    assert torch.allclose(compiled[0], plain[0], rtol=1e-5)
    rounding = 1e-6 * max(1, 0.1 / temperature)  # of exponents, which are similarities / temperature
    assert torch.allclose(compiled[1], plain[1], rtol=1e-4, atol=rounding * float(plain[1].abs().max()))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert all(map(torch.equal, SupCon(labels, temperature, form)(tables), compiled))
    finally:
        torch.set_num_threads(threads)
