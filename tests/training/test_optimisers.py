"""One Adam for all: that of the library."""

from __future__ import annotations

import pytest
import torch

from fedrec.training.optimisers import adam_step, fused_adam


@pytest.mark.parametrize("moments", [(0.9, 0.999), (0.5, 0.9)])
def test_is_the_library_s(moments):
    torch.manual_seed(0)
    value = torch.randn(5, 3, dtype=torch.float64)
    reference = value.clone().requires_grad_()
    optimiser = torch.optim.Adam([reference], lr=0.1, betas=moments)
    first, second = torch.zeros_like(value), torch.zeros_like(value)
    for count in range(1, 6):
        reference.grad = torch.randn(5, 3, dtype=torch.float64)
        value -= adam_step(reference.grad, first, second, count, 0.1, moments)
        optimiser.step()
    assert torch.allclose(value, reference.detach(), atol=1e-14)


def test_every_row_has_its_own_count():
    gradient = torch.tensor([[2.0], [2.0]], dtype=torch.float64)
    zeros = [torch.zeros_like(gradient) for _ in range(2)]
    together = adam_step(gradient, *zeros, torch.tensor([[1.0], [7.0]], dtype=torch.float64))
    for row, count in enumerate((1, 7)):
        alone = adam_step(gradient[[row]], *(torch.zeros(1, 1, dtype=torch.float64) for _ in range(2)), count)
        assert torch.allclose(together[[row]], alone, atol=1e-15)


def test_the_rate_scales_the_step():
    gradient, moments = torch.tensor([3.0, -1.0]), [torch.zeros(2) for _ in range(4)]
    assert torch.allclose(adam_step(gradient, *moments[:2], 1, 0.5), 0.5 * adam_step(gradient, *moments[2:], 1))


def test_the_fused_one_is_the_same():
    torch.manual_seed(0)
    value, decay = torch.randn(5, 3, dtype=torch.float64), 0.2
    leaf = value.clone().requires_grad_()
    optimiser = fused_adam([leaf], 0.1, decay)
    first, second = torch.zeros_like(value), torch.zeros_like(value)
    for count in range(1, 6):
        leaf.grad = torch.randn(5, 3, dtype=torch.float64)
        value -= adam_step(leaf.grad + decay * value, first, second, count, 0.1)
        optimiser.step()
    assert torch.allclose(value, leaf.detach(), atol=1e-14)
