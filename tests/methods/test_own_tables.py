"""Tables kept in half precision: half the memory, computed with in full, nearly the same results."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedrec.experiment.checkpoint import load, restore, save, tensors_of
from fedrec.federation.simulator import Simulator
from fedrec.methods import FedCA, Local, PFedGraph
from fedrec.testing import assert_close, outcome, run, tiny_world

COMMON = {"dim": 4, "init": "uniform", "lr": 0.05, "epochs": 3, "batch": 16, "optimiser": "adam"}
METHODS = [Local(**COMMON), PFedGraph(**COMMON), FedCA(**COMMON), FedCA(**COMMON, interpolate="inference")]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("kind", "near"), [("float16", 0.02), ("bfloat16", 0.1)])
def test_half_the_memory_and_nearly_the_same_scores(method, kind, near):
    data = tiny_world(empty=True, dtype=torch.float32, participation=0.5)
    half = Simulator(replace(method, table_dtype=kind), data)
    for number in range(3):
        half.round(number)
    tables = [value for name, value in half.cohorts[0].state.per_client.items() if name.endswith("item")]
    assert all(table.dtype == getattr(torch, kind) for table in tables)
    assert sum(table.nbytes for table in tables) == len(tables) * 12 * 40 * 4 * 2
    found, full = outcome(half, 3), run(method, data, 3)
    assert found["scores"].dtype == found["user.user"].dtype == torch.float32
    assert_close({"scores": found["scores"]}, {"scores": full["scores"]}, near, kind)
    assert not torch.equal(found["scores"], full["scores"])


def test_rows_that_nobody_touches_keep_their_bits():
    data = tiny_world(items=500)
    simulator = Simulator(replace(METHODS[0], table_dtype="float16"), data)
    start = simulator.cohorts[0].state.per_client["item"].clone()
    simulator.round(0)
    same = (simulator.cohorts[0].state.per_client["item"] == start).all(-1)
    assert int((~same).sum()) <= 5 * len(data.items)
    assert int(same.sum()) > 0


def test_a_checkpoint_keeps_half_tables(tmp_path):
    method, data = replace(METHODS[2], table_dtype="bfloat16"), tiny_world()
    old, fresh = Simulator(method, data), Simulator(method, data)
    old.round(0)
    save(tmp_path / "half", tensors_of(old), {})
    restore(fresh, load(tmp_path / "half")[0])
    assert_close(outcome(fresh, 1), outcome(old, 1), 0, "restored")
