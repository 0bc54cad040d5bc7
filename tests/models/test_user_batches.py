from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedrec.models import NCF, Backbone, NeuMF, user_batches

USERS, ITEMS = 23, 40
MODELS = [NCF(8), NCF(8, hidden=(6,)), NeuMF(8, factors=3)]


class Largest(TorchDispatchMode):
    """Remembers how many numbers the largest result of any operation held in memory of its own."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.numbers = max(self.numbers, out.untyped_storage().nbytes() // out.element_size())
        return out


def parts(model: Backbone, own_items: bool, own_dense: bool):
    made = torch.Generator().manual_seed(0)
    lead = (USERS,) if own_dense else ()
    dense = {n: torch.randn(*lead, *shape, generator=made).double() for n, shape in model.dense_shapes().items()}
    user = torch.randn(USERS, model.dim, generator=made).double()
    item = torch.randn(*((USERS,) if own_items else ()), ITEMS, model.dim, generator=made).double()
    return user, item, dense


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("own_items", [False, True])
@pytest.mark.parametrize("own_dense", [False, True])
def test_blocks_change_no_score(model, own_items, own_dense, monkeypatch):
    given = parts(model, own_items, own_dense)
    whole = model.scores(*given)
    monkeypatch.setattr(user_batches, "ENTRIES", 5 * ITEMS * 8)
    assert torch.allclose(model.scores(*given), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_a_client_with_many_users_is_scored_in_little_memory(model, monkeypatch):
    """A company, or everybody in one place, is one client: only blocks keep users x items x width from being built."""
    given = parts(model, own_items=False, own_dense=False)
    with Largest() as unbounded:
        model.scores(*given)
    monkeypatch.setattr(user_batches, "ENTRIES", 2000)
    with Largest() as bounded:
        model.scores(*given)
    assert bounded.numbers <= 2000 < unbounded.numbers
