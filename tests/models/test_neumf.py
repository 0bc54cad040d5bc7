from __future__ import annotations

import pytest
import torch

from fedrec.errors import FedrecError
from fedrec.models import NeuMF


def test_forward_by_hand():
    """GMF (1, 2) and (.5, -1); tower on (1, -1, 2, .5): GMF part (.5, -2), tower part (1, 0), logit -.9."""
    model = NeuMF(4, factors=2, layers=1)
    dense = {
        "weight0": torch.tensor([[0.5, 0.0, 0.25, 0.0], [0.0, 1.0, 0.0, -1.0]]),
        "bias0": torch.tensor([0.0, 0.5]),
        "output": torch.tensor([[1.0, 1.0, 0.5, -1.0]]),
        "output_bias": torch.tensor([0.1]),
    }
    user, item = torch.tensor([[1.0, 2.0, 1.0, -1.0]]), torch.tensor([[0.5, -1.0, 2.0, 0.5]])
    logit = model.logits(user, item, dense)
    assert logit.item() == pytest.approx(-0.9, abs=1e-6)
    assert logit.sigmoid().item() == pytest.approx(0.289050, abs=1e-6)
    tower = dense | {"output": torch.tensor([[0.0, 0.0, 1.0, -1.0]]), "output_bias": torch.tensor([-0.2])}
    assert model.logits(user, item, tower).item() == pytest.approx(0.8, abs=1e-6)
    assert model.scores(user, item, tower).sigmoid().item() == pytest.approx(0.689974, abs=1e-6)


def test_tower_of_the_paper():
    model = NeuMF(40, factors=8)
    assert model.sizes() == [64, 32, 16, 8]
    assert model.dense_shapes()["output"] == (1, 16)
    assert NeuMF(128, factors=64).sizes() == [128, 64, 32, 16]


@pytest.mark.parametrize("bad", [{"factors": 0}, {"factors": 6}, {"layers": 0}])
def test_what_cannot_be_is_refused(bad):
    with pytest.raises(FedrecError, match=next(iter(bad))):
        NeuMF(6, **bad)
