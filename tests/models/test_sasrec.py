"""SASRec: side by side as one sequence at a time, causal, blind to padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedrec.errors import FedrecError
from fedrec.models import SASRec, Sequential
from fedrec.testing import tiny_world
from fedrec.training.sequences import Dropout, bands, fill, pack, unpack, user_vectors
from methods.naive_sequences import Attentive

MODELS = [
    SASRec(4, length=7),
    SASRec(6, length=7, blocks=3, heads=2, norm_first=True),
    SASRec(4, length=7, heads=2, block_kind="ligr"),
]
LENGTHS = [7, 1, 4]


def weights(model: SASRec, clients: int) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(1)
    return {name: 0.5 * torch.randn(clients, *s, generator=made).double() for name, s in model.dense_shapes().items()}


def table(model: SASRec, *lead: int) -> torch.Tensor:
    return torch.randn(*lead, model.dim, generator=torch.Generator().manual_seed(2)).double()


@pytest.mark.parametrize("model", MODELS)
def test_clients_side_by_side_are_single_sequences_filled_up_on_the_left(model):
    """Hidden states and all gradients, against a model of its own for each client."""
    dense, tables = weights(model, 3), table(model, 3, 9)
    items = torch.from_numpy(np.random.default_rng(3).integers(0, 9, (3, 7)))
    leaves = {"item": tables, **dense}
    for leaf in leaves.values():
        leaf.requires_grad_()
    hidden = model.encode(tables[torch.arange(3)[:, None], items], dense)
    pull = table(model, 3, 7)
    real = torch.arange(7) < torch.tensor(LENGTHS)[:, None]
    (hidden * pull * real[..., None]).sum().backward()
    for c, length in enumerate(LENGTHS):
        alone = Attentive(model, tables[c].detach(), {name: value[c].detach() for name, value in dense.items()}, 1)
        expected = alone(items[c, :length])
        assert torch.allclose(hidden[c, :length], expected, atol=1e-10)
        (expected * pull[c, :length]).sum().backward()
        assert torch.allclose(tables.grad[c], alone.table.grad[1:], atol=1e-9)
        assert not alone.table.grad[0].any()
        for value in (value for value in alone.parameters() if value.requires_grad):
            value.data = value.grad  # so that they can be read under the library's names
        for name, gradient in alone.dense().items():
            assert torch.allclose(dense[name].grad[c], gradient, atol=1e-9), name


@pytest.mark.parametrize("model", MODELS)
def test_later_items_do_not_change_earlier_states(model):
    rows, dense = table(model, 2, 7), weights(model, 2)
    other = rows.clone()
    other[:, 4] = other[:, 4].flip(-1)
    before, after = model.encode(rows, dense), model.encode(other, dense)
    assert torch.equal(before[:, :4], after[:, :4])
    assert not torch.isclose(before[:, 4:], after[:, 4:]).all(-1).any()


def test_a_sequence_does_not_see_how_far_it_is_filled_up():
    model = MODELS[1]
    rows, dense = table(model, 3, 7), weights(model, 3)
    assert torch.allclose(model.encode(rows[:, :3], dense), model.encode(rows, dense)[:, :3], atol=1e-12)


def test_order_matters():
    model = MODELS[1]
    rows, dense = table(model, 1, 5), weights(model, 1)
    states = model.encode(torch.cat([rows, rows[:, [3, 2, 1, 0, 4]]]), {n: v[0] for n, v in dense.items()})
    assert not torch.allclose(states[0, -1], states[1, -1], atol=1e-3)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("silos", [None, (5, 4, 3)])
def test_user_vectors_read_the_last_items_in_time_order(own, silos):
    model = SASRec(4, length=5)
    data = tiny_world(silos=silos, empty=True)
    clients = data.world.clients
    dense, tables = weights(model, clients), table(model, clients, data.world.items)
    if not own:
        dense, tables = {name: value[0] for name, value in dense.items()}, tables[0]
    chunk = data.chunk(np.arange(clients))
    found = user_vectors(model, chunk, {"item": tables, **dense})
    for place, client in enumerate(chunk.owner.tolist()):
        items = torch.from_numpy(data.history[data.user_ptr[place] : data.user_ptr[place + 1]])[-5:]
        mine = {name: value[client] for name, value in dense.items()} if own else dense
        rows = (tables[client] if own else tables)[items]
        expected = model.encode(rows, mine)[-1] if len(items) else torch.zeros(4).double()
        assert torch.allclose(found[place], expected, atol=1e-12)


def test_start_is_xavier_with_identity_norms():
    model = SASRec(50)
    start = model.initial(11, torch.float64)
    assert {name: tuple(value.shape) for name, value in start.items()} == model.dense_shapes()
    assert start["query0"].std().item() == pytest.approx((2 / 100) ** 0.5, rel=0.05)
    assert start["position"].std().item() == pytest.approx((2 / 100) ** 0.5, rel=0.05)
    assert not torch.allclose(start["query0"], start["query1"])
    assert start["attention_scale1"].eq(1).all()
    assert not start["outer_bias0"].any()


def test_bands_hold_every_sequence_once_and_keep_to_their_bounds(monkeypatch):
    model = SASRec(4, length=50)
    lengths, cpu, gpu = [50, 40, 26, 25, 24, 13, 12, 12, 2, 1, 1, 0, 0], torch.device("cpu"), torch.device("cuda")
    assert [(b.start, b.stop) for b in bands(lengths, model, cpu)] == [(0, 4), (4, 8), (8, 11)]
    assert [(b.start, b.stop) for b in bands(lengths, model, gpu)] == [(0, 11)]
    monkeypatch.setattr("fedrec.training.sequences.FLOATS", 2 * model.floats(24))
    assert [(b.start, b.stop) for b in bands(lengths, model, cpu)][1:4] == [(1, 2), (2, 3), (3, 4)]
    monkeypatch.setattr("fedrec.training.sequences.FLOATS_ON_GPU", 5 * model.floats(50))
    assert next((b.start, b.stop) for b in bands(lengths, model, gpu)) == (0, 5)
    at, real = fill(torch.tensor([3, 10]), torch.tensor([3, 1]), 3)
    assert at.tolist() == [[3, 4, 5], [10, 10, 10]]
    assert real.tolist() == [[True, True, True], [True, False, False]]


@pytest.mark.parametrize("shape", [(40, 6), (2, 40, 40)])
def test_dropout_drops_its_part_and_does_not_depend_on_company_or_filling(shape):
    keys = torch.arange(30, dtype=torch.int64) * 7919
    x = torch.ones(30, *shape, dtype=torch.float64)
    found = Dropout(0.3, keys, 40)(1, x)
    assert set(found.unique().tolist()) == {0.0, 1 / 0.7}
    assert found.mean().item() == pytest.approx(1, abs=0.03)
    short = x[..., :9, :] if len(shape) == 2 else x[..., :9, :9]
    part = Dropout(0.3, keys[4:5], 40)(1, short[4:5])
    assert torch.equal(part[0], found[4][..., :9, :] if len(shape) == 2 else found[4][..., :9, :9])
    assert not torch.equal(Dropout(0.3, keys, 40)(2, x), found)
    assert Dropout(0.0, keys, 40)(1, x) is x


@pytest.mark.parametrize(
    "bad", [{"length": 0}, {"dropout": 1.0}, {"dropout": -0.1}, {"blocks": 0}, {"heads": 3}, {"block_kind": "other"}]
)
def test_what_cannot_be_is_refused(bad):
    with pytest.raises(FedrecError, match=next(iter(bad))):
        SASRec(4, **bad)


def test_it_is_sequential_and_others_are_not():
    from fedrec.models import BACKBONES

    assert [name for name, kind in BACKBONES.items() if isinstance(kind(6), Sequential)] == ["sasrec"]


def test_weights_of_any_shape_are_rows_of_one_table_and_come_back():
    model = SASRec(4, length=7, block_kind="ligr")
    dense = model.initial(5, torch.float64)
    back = unpack(model, pack(model, dense).expand(3, -1, -1))
    assert dense["outer0"].shape == (4, 16)
    assert all(torch.equal(back[name], value.expand(3, *value.shape)) for name, value in dense.items())
