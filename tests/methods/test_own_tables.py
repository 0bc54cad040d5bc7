"""Tables kept in half precision: half the memory, computed with in full, nearly the same results."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fedrec.experiment.checkpoint import load, restore, save, tensors_of
from fedrec.federation.simulator import Simulator
from fedrec.methods import CentralMF, CentralNeuMF, CentralSASRec, FedCA, Local, PFedGraph
from fedrec.testing import assert_close, outcome, run, tiny_world
from fedrec_studies.variants.fedca import FedCAVariants

COMMON = {"dim": 4, "init": "uniform", "lr": 0.05, "epochs": 3, "batch": 16, "optimiser": "adam"}
METHODS = [Local(**COMMON), PFedGraph(**COMMON), FedCA(**COMMON), FedCAVariants(**COMMON, interpolate="inference")]


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


@pytest.mark.parametrize(
    "method",
    [
        CentralMF(dim=4, batch=16, lr=0.05),
        CentralNeuMF(dim=8, factors=4, layers=2, batch=16, lr=0.01),
        CentralSASRec(dim=4, length=5, batch=4, lr=0.01, dropout=0.0),
        CentralSASRec(dim=4, length=5, batch=4, lr=0.01, dropout=0.0, loss="ce"),
    ],
    ids=["mf", "neumf", "sasrec", "sasrec-ce"],
)
def test_the_table_of_all_data_in_half_precision(method):
    """Adam's moments, where they last, stay in full: squares of small gradients would vanish."""
    data = tiny_world(silos=(12,), dtype=torch.float32)
    half = Simulator(replace(method, table_dtype="float16"), data)
    for number in range(3):
        half.round(number)
    kept = half.cohorts[0].state.per_client
    assert {name for name, value in kept.items() if value.dtype == torch.float16} == {"item"}
    found = {"scores": outcome(half, 3)["scores"]}
    assert_close(found, {"scores": run(method, data, 3)["scores"]}, 0.02, "half")


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
