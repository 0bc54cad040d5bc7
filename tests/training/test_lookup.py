"""Reading rows gives gradients that do not depend on how threads take turns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from fedrec.training.lookup import look_up

SHAPE = (400, 300)
ROWS = 50


@pytest.fixture
def several_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def gradient(table: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    leaf = table.clone().requires_grad_()
    return torch.autograd.grad((look_up(leaf, rows) * weight).sum(), [leaf])[0]


@pytest.mark.parametrize("width", [(), (1,), (16,), (0,)])
def test_several_threads_give_the_bits_of_one(width: tuple[int, ...], several_threads: None) -> None:
    draw = torch.Generator().manual_seed(0)
    table, rows = torch.randn(ROWS, *width, generator=draw), torch.randint(ROWS, SHAPE, generator=draw)
    weight = torch.randn(*SHAPE, *width, generator=draw)
    together = [gradient(table, rows, weight) for _ in range(5)]
    torch.set_num_threads(1)
    alone = gradient(table, rows, weight)
    assert torch.equal(look_up(table, rows), table[rows])
    assert all(torch.equal(one, alone) for one in together)
    exact = torch.zeros(ROWS, *width, dtype=torch.float64).index_add_(0, rows.flatten(), weight.flatten(0, 1).double())
    torch.testing.assert_close(alone.double(), exact, rtol=1e-4, atol=1e-4)
