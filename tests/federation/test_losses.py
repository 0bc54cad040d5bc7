"""The loss of a single-precision sigmoid, against torch's own at every size of a score."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from fedrec.kernels.linear import write_saturated_slopes
from fedrec.training.losses import bce, bce_slope

LOGITS = torch.cat([torch.arange(-40, 40.125, 0.125), torch.tensor([-1000.0, -90.0, 90.0, 1000.0])])


def released(logits: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and gradient as the published code has them: a sigmoid, then BCELoss, both in float32."""
    x = logits.float().clone().requires_grad_()
    losses = nn.BCELoss(reduction="none")(torch.sigmoid(x), label.float())
    (slope,) = torch.autograd.grad(losses.sum(), x)
    return losses.detach(), slope


@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_and_gradient_are_those_of_torch(label: float, dtype: torch.dtype) -> None:
    x = LOGITS.to(dtype, copy=True).requires_grad_()
    y = torch.full_like(x, label)
    losses, slope = released(x.detach(), y)
    found = bce(x, y, "released")
    (by_autograd,) = torch.autograd.grad(found.sum(), x)
    by_hand = bce_slope(x.detach(), y, "released")
    assert torch.allclose(found.detach().float(), losses, rtol=1e-6)
    for gradient in (by_autograd, by_hand):
        assert gradient.dtype == dtype
        assert torch.allclose(gradient.float(), slope, rtol=1e-5, atol=1e-12)
        assert torch.equal(gradient == 0, slope.to(dtype) == 0), "exactly no gradient where torch has none"


def test_where_the_gradient_ends() -> None:
    def slope(logit: float, label: float) -> float:
        return float(bce_slope(torch.tensor([logit]), torch.tensor([label]), "released"))

    assert slope(16.0, 0.0) == pytest.approx(1.0)
    assert slope(16.7, 0.0) == slope(1e30, 0.0) == 0
    assert slope(-27.0, 1.0) == pytest.approx(-1.0)
    assert slope(-30.0, 1.0) == pytest.approx(-0.094, abs=5e-4)
    assert abs(slope(-40.0, 1.0)) < 1e-5
    assert float(bce_slope(torch.tensor([40.0]), torch.zeros(1))) == 1.0, "that of the logits does not end"


def test_what_is_not_a_number_stays_so() -> None:
    assert bce(torch.tensor([torch.nan]), torch.ones(1), "released").isnan().all()


@pytest.mark.parametrize("label", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_compiled_is_the_same(label: float, dtype: type) -> None:
    logits = LOGITS.numpy().astype(dtype)
    count = len(logits)
    slope = logits.copy()
    loss = write_saturated_slopes(np.arange(count, dtype=np.uint32), count if label else 0, slope)
    losses, expected = released(LOGITS, torch.full_like(LOGITS, label))
    assert np.allclose(slope, expected.numpy(), rtol=1e-5, atol=1e-12)
    assert ((slope == 0) == (expected.numpy() == 0)).all()
    assert loss == pytest.approx(float(losses.sum()), rel=1e-5)
