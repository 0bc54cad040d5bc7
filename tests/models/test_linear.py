from __future__ import annotations

import torch

from fedrec.models import Linear

DENSE = {"weight0": torch.tensor([[0.5, -0.5]]), "bias0": torch.tensor([0.25])}
ITEM = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0]])


def test_score_is_linear_in_the_item_row():
    assert Linear(2).logits(torch.zeros(3, 0), ITEM, DENSE).tolist() == [0.75, -0.25, 0.75]
    assert Linear(2).dense_shapes() == {"weight0": (1, 2), "bias0": (1,)}


def test_users_of_one_scorer_get_the_same():
    scores = Linear(2).scores(torch.zeros(2, 0), ITEM, DENSE)
    assert scores.tolist() == [[0.75, -0.25, 0.75]] * 2


def test_each_user_has_its_own_scorer_and_table():
    generator = torch.Generator().manual_seed(0)
    weight, bias, items = (torch.randn(4, *shape, generator=generator) for shape in ((1, 2), (1,), (3, 2)))
    own = Linear(2).scores(torch.zeros(4, 0), items, {"weight0": weight, "bias0": bias})
    common = Linear(2).scores(torch.zeros(4, 0), ITEM, {"weight0": weight, "bias0": bias})
    for k in range(4):
        assert torch.allclose(own[k], items[k] @ weight[k, 0] + bias[k])
        assert torch.allclose(common[k], ITEM @ weight[k, 0] + bias[k])
