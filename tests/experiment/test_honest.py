"""Honest by default: what training sees does not contain what is held out, unless it is asked for by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from fedrec.data import load
from fedrec.evaluation import protocol
from fedrec.experiment.config import RunConfig
from fedrec.experiment.driver import Run
from fedrec.experiment.prepare import Prepared, prepare
from fedrec.experiment.run_plan import plan_run
from fedrec.federation import clients
from fedrec.federation.clients import ClientData, Forbidden
from fedrec.federation.contract import World
from fedrec.training.samples import negatives

from . import SMALL

ROUNDS = 60


def prepared(text: str = "honest", silos: str | None = None) -> Prepared:
    return prepare(load(SMALL), protocol(text), silos)


def world(data: Prepared) -> World:
    return World(items=data.n_items, clients=data.partition.n_clients)


def held_out(data: Prepared) -> set[tuple[int, int]]:
    parts = (data.split.valid, data.split.test)
    return {(int(u), int(i)) for part in parts for u, i in zip(part.user, part.item, strict=True)}


def reachable(thing: Any, path: str = "data", seen: set[int] | None = None) -> dict[str, Any]:
    """Every array and tensor that can be got at from an object, by where it was found."""
    seen = set() if seen is None else seen
    if id(thing) in seen or isinstance(thing, str | int | float | bool | None | torch.dtype | torch.device):
        return {}
    seen.add(id(thing))
    if isinstance(thing, np.ndarray | torch.Tensor):
        return {path: thing}
    inside: dict[str, Any] = {}
    if isinstance(thing, dict):
        inside |= {str(key): value for key, value in thing.items()}
    elif isinstance(thing, list | tuple | set):
        inside |= {str(index): value for index, value in enumerate(thing)}
    inside |= dict(getattr(thing, "__dict__", {}))
    if dataclasses.is_dataclass(thing):
        inside |= {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
    found: dict[str, Any] = {}
    for name, value in inside.items():
        found |= reachable(value, f"{path}.{name}", seen)
    return found


def pairs_in(data: ClientData, flat: np.ndarray, ptr: np.ndarray) -> set[tuple[int, int]]:
    user = data.users[np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))]
    return {(int(u), int(i)) for u, i in zip(user, flat, strict=True)}


@pytest.mark.parametrize("silos", [None, "4:random", "4:taste"])
def test_training_data_holds_no_held_out_pair(silos: str | None) -> None:
    data = prepared(silos=silos)
    seen = data.clients(world(data))
    train = {(int(u), int(i)) for u, i in zip(data.split.train.user, data.split.train.item, strict=True)}
    assert len(held_out(data)) == 2 * data.source.n_users
    assert not train & held_out(data)
    # Everything there is, is accounted for: the partition, the training items twice, and the pool made of them.
    arrays = reachable(seen)
    known = {"clients", "users", "client_ptr", "user_ptr", "items", "history", "pool.indptr", "pool.gap"}
    assert {path.removeprefix("data.") for path in arrays} == known
    assert pairs_in(seen, seen.items, seen.user_ptr) == train
    assert pairs_in(seen, seen.history, seen.user_ptr) == train
    rank = np.arange(len(seen.pool.gap)) - np.repeat(seen.pool.indptr[:-1], np.diff(seen.pool.indptr))
    assert pairs_in(seen, seen.pool.gap + rank, seen.pool.indptr) == train


def test_training_data_is_the_same_whatever_is_held_out() -> None:
    """The strongest form: other held-out items, and not one byte of what training sees is different."""
    data = prepared()
    first = reachable(data.clients(world(data)))
    rolled = dataclasses.replace(
        data.split,
        valid=dataclasses.replace(data.split.valid, item=np.roll(data.split.valid.item, 1)),
        test=dataclasses.replace(data.split.test, item=np.roll(data.split.test.item, 1)),
    )
    other = reachable(dataclasses.replace(data, split=rolled).clients(world(data)))
    assert first.keys() == other.keys()
    assert all(np.array_equal(first[path], other[path]) for path in first)


def test_the_simulator_of_a_run_reaches_no_held_out_pair() -> None:
    run = Run(plan_run(RunConfig("local", data=SMALL, rounds=1, params={"dim": 2})))
    wanted = held_out(run.prepared)
    users, items = (np.array(sorted(wanted))[:, side] for side in (0, 1))
    for path, array in reachable(run.simulator, "simulator").items():
        if not path.startswith("simulator.data."):
            model = ("server_side.tensors", "client_side.cohorts", "client_side.wire", "client_side.data")
            assert path.removeprefix("simulator.").startswith(model), path  # the model's own tensors
        assert np.asarray(array).shape not in {users.shape, items.shape, (len(users), 2)}, path


def test_only_the_typed_door_carries_held_out_items(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Forbidden] = []
    original = clients.Forbidden.__init__

    def recorded(self: Forbidden, user: np.ndarray, item: np.ndarray) -> None:
        original(self, user, item)
        made.append(self)

    monkeypatch.setattr(clients.Forbidden, "__init__", recorded)
    honest, leaked = prepared(), prepared("honest,neg_pool=leaked")
    honest.clients(world(honest))
    assert made == []
    seen = leaked.clients(world(leaked))
    (forbidden,) = made
    assert {(int(u), int(i)) for u, i in zip(forbidden.user, forbidden.item, strict=True)} == held_out(leaked)
    train = pairs_in(seen, seen.items, seen.user_ptr)
    assert not train & held_out(leaked)
    rank = np.arange(len(seen.pool.gap)) - np.repeat(seen.pool.indptr[:-1], np.diff(seen.pool.indptr))
    assert pairs_in(seen, seen.pool.gap + rank, seen.pool.indptr) == train | held_out(leaked)


def drawn(data: Prepared) -> np.ndarray:
    """How often each item was a negative of each user, over many rounds."""
    seen = data.clients(world(data))
    chunk = seen.chunk(np.arange(seen.world.clients))
    user = np.repeat(chunk.users, np.diff(chunk.user_ptr))
    counts = np.zeros((data.source.n_users, data.n_items), dtype=np.int64)
    for round in range(ROUNDS):
        items = negatives(chunk, round).numpy()
        np.add.at(counts, (np.repeat(user, items.shape[1]), items.ravel()), 1)
    return counts


def test_negatives_hold_held_out_items_at_the_expected_rate() -> None:
    data = prepared()
    counts = drawn(data)
    train = data.split.train.matrix().toarray() > 0
    assert counts[train].sum() == 0
    users, items = (np.array(sorted(held_out(data)))[:, side] for side in (0, 1))
    expected = counts.sum(1) / (~train).sum(1)  # were all unobserved items drawn alike
    ratio = counts[users, items].sum() / expected[users].sum()
    assert 0.8 < ratio < 1.2
    assert 0.95 < ratio < 1.05  # with this many draws it is much closer
    assert (counts[users, items] > 0).all()


def test_leaked_negatives_never_hold_one() -> None:
    data = prepared("honest,neg_pool=leaked")
    counts = drawn(data)
    users, items = (np.array(sorted(held_out(data)))[:, side] for side in (0, 1))
    assert counts[users, items].sum() == 0
    assert counts.sum() == ROUNDS * 4 * len(data.split.train)


def test_a_private_table_finds_held_out_items_only_when_they_leak() -> None:
    """The reason for all this, in small: local training, which cannot recommend, is brilliant under leakage."""
    config = RunConfig("local", data=SMALL, rounds=80, eval_every=80, params={"dim": 8, "reduction": "sum", "lr": 0.2})
    honest = Run(plan_run(config)).execute().test["recall@10"]
    leaky = Run(plan_run(dataclasses.replace(config, protocol="honest,neg_pool=leaked"))).execute().test["recall@10"]
    assert leaky > 3 * honest
    assert leaky > 0.5


@pytest.mark.parametrize(
    "field",
    ["select_on=test", "candidates=sampled99", "ties=first", "mask_val_at_test=false", "mask_test_at_validation=true"],
)
def test_every_departure_is_named(field: str) -> None:
    spec = protocol(f"honest,{field}")
    assert len(spec.leaks) == 1 + ("candidates" in field)  # sampled candidates never are test items
    assert field in spec.label
    assert protocol("honest").leaks == ()
