from __future__ import annotations

import pytest
import torch

from fedrec.models import BACKBONES, MF, NCF, Backbone, NeuMF, SASRec

MODELS = [MF(4), NCF(4), NCF(5, hidden=(6, 3, 2)), NCF(1), NeuMF(7, factors=3), SASRec(4)]
USERS, ITEMS = 3, 7


def weights(model: Backbone, *lead: int) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(1)
    return {name: torch.randn(*lead, *shape, generator=made).double() for name, shape in model.dense_shapes().items()}


def vectors(model: Backbone, *lead: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*lead, model.dim, generator=torch.Generator().manual_seed(seed)).double()


def pairwise(model, user, item, dense, one):
    """Each user against each item by `logits`, one pair at a time."""
    return torch.stack(
        [
            torch.stack(
                [
                    model.logits(user[u][None], (item[i] if item.dim() == 2 else item[u, i])[None], one(dense, u))[0]
                    for i in range(item.shape[-2])
                ]
            )
            for u in range(len(user))
        ]
    )


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("own_items", [False, True])
@pytest.mark.parametrize("own_dense", [False, True])
def test_scores_are_the_logits_of_all_pairs(model, own_items, own_dense):
    user = vectors(model, USERS)
    item = vectors(model, USERS, ITEMS, seed=2) if own_items else vectors(model, ITEMS, seed=2)
    dense = weights(model, USERS) if own_dense else weights(model)

    def one(dense, u):
        return {name: value[u] for name, value in dense.items()} if own_dense else dense

    scores = model.scores(user, item, dense)
    assert scores.shape == (USERS, ITEMS)
    assert torch.allclose(scores, pairwise(model, user, item, dense, one), atol=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_logits_of_clients_side_by_side(model):
    """A leading client axis changes nothing: each client uses its own weights."""
    clients, batch = 4, 6
    user, item = vectors(model, clients, batch), vectors(model, clients, batch, seed=5)
    dense = weights(model, clients)
    together = model.logits(user, item, dense)
    assert together.shape == (clients, batch)
    for c in range(clients):
        alone = model.logits(user[c], item[c], {name: value[c] for name, value in dense.items()})
        assert torch.allclose(together[c], alone, atol=1e-12)


def test_mf_is_the_inner_product():
    user, item = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, -1.0], [0.5, 0.5]])
    assert MF(2).scores(user, item, {}).tolist() == [[1.0, 1.5]]
    assert MF(2).dense_shapes() == {}


def test_ncf_is_the_network_on_the_concatenation():
    model = NCF(2, hidden=(2,))
    dense = {
        "weight0": torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, -1.0, 0.0, -1.0]]),
        "bias0": torch.tensor([0.5, 0.0]),
        "weight1": torch.tensor([[2.0, 3.0]]),
        "bias1": torch.tensor([0.25]),
    }
    # hidden = relu(1 + 3 + 0.5, -2 - 4) = (4.5, 0); output 9.25
    assert model.logits(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]]), dense).tolist() == [9.25]


def test_ncf_shapes_follow_the_paper():
    assert NCF(16).sizes() == [32, 16, 8, 1]
    assert NCF(16).dense_shapes() == {
        "weight0": (16, 32),
        "bias0": (16,),
        "weight1": (8, 16),
        "bias1": (8,),
        "weight2": (1, 8),
        "bias2": (1,),
    }
    assert NCF(1).sizes() == [2, 1, 1, 1]


@pytest.mark.parametrize("name", BACKBONES)
def test_backbones_by_name_take_a_width(name):
    model = BACKBONES[name](6)
    assert model.dim == 6
    assert model.has_user == (name in ("mf", "ncf", "neumf"))
