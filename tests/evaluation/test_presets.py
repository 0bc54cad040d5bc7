"""The published protocols as values: every field that a paper or its code decides, field by field."""

from __future__ import annotations

import numpy as np
import pytest

from fedrec.data import Interactions, load
from fedrec.evaluation import PRESETS, Protocol, protocol
from fedrec.evaluation.describe import describe_briefly, record
from fedrec.experiment.prepare import prepare
from fedrec.federation.contract import World
from fedrec.training.samples import negatives

COLUMNS = ("neg_pool", "candidates", "ties", "select_on", "select_metric", "ks", "time_missing", "split_ties")
TABLE = {
    "honest": ("honest", "full", "expected", "validation", "ndcg@10", (5, 10, 20), "random", "random"),
    "fedca": ("leaked", "sampled99", "first", "test", "hr@10", (10,), "item_order", "first"),
    "fedrap": ("leaked", "sampled99", "first", "test", "hr@10", (10,), "item_order", "first"),
    "pfedrec": ("leaked", "split198", "first", "validation", "hr@10", (10,), "line_order", "first"),
    "cgfedrec": ("leaked", "split198", "first", "validation", "hr@5", (5,), "line_order", "first"),
    "fedrkg": ("leaked", "full", "expected", "validation", "ndcg@10", (5, 10), "item_order", "first"),
    "fedrkg-honest": ("honest", "full", "expected", "validation", "ndcg@10", (5, 10), "random", "random"),
}
MORE = ("split", "negatives", "patience", "select_last", "partition", "mask_val_at_test", "train_fraction", "time")
LEAVE_ONE_OUT = {
    "fedca": ("leave-one-out", 4, None, False, "user", True, 1.0, "real"),
    "fedrap": ("leave-one-out", 4, None, False, "user", True, 1.0, "real"),
    "pfedrec": ("leave-one-out", 4, None, True, "user", True, 1.0, "real"),
    "cgfedrec": ("leave-one-out", 4, 10, False, "user", True, 1.0, "real"),
    "fedrkg": ("leave-one-out", 4, 100, False, "user", True, 1.0, "real"),
    "fedrkg-honest": ("leave-one-out", 4, 100, False, "user", True, 1.0, "real"),
}
FEWEST = {  # on ml-1m, elsewhere
    "honest": (20, 10),
    "fedca": (10, 10),
    "fedrap": (10, 10),
    "pfedrec": (3, 3),
    "cgfedrec": (5, 5),
    "fedrkg": (20, 10),
    "fedrkg-honest": (20, 10),
    "fedcia": (1, 1),
    "ifedrec": (1, 1),
}


def values(preset: Protocol, names: tuple[str, ...]) -> tuple[object, ...]:
    return tuple(getattr(preset, name) for name in names)


@pytest.mark.parametrize("name", TABLE)
def test_switches(name: str) -> None:
    assert values(PRESETS[name], COLUMNS) == TABLE[name]


@pytest.mark.parametrize("name", LEAVE_ONE_OUT)
def test_split_and_training(name: str) -> None:
    assert values(PRESETS[name], MORE) == LEAVE_ONE_OUT[name]


@pytest.mark.parametrize("name", FEWEST)
def test_users_that_stay(name: str) -> None:
    assert tuple(PRESETS[name].min_interactions_for(data) for data in ("ml-1m", "ml-100k")) == FEWEST[name]


def test_what_validation_masks_and_what_a_history_holds_at_test() -> None:
    found = {name: (preset.mask_test_at_validation, preset.history_at_test) for name, preset in PRESETS.items()}
    assert found == {
        "honest": (False, "all"),
        "honest-time": (False, "all"),
        "fedrkg-honest": (False, "all"),
        "fedca": (True, "train"),
        "fedrap": (True, "train"),
        "pfedrec": (True, "train"),
        "cgfedrec": (True, "train"),
        "fedrkg": (True, "train"),
        "fedcia": (False, "train"),
        "ifedrec": (False, "train"),
    }


def test_fedcia() -> None:
    preset = PRESETS["fedcia"]
    assert values(preset, ("split", "test_share", "valid_share")) == ("ratio", 0.2, 0.1)
    assert values(preset, ("partition", "negatives", "neg_pool")) == ("100:contiguous", 1, "honest")
    assert values(preset, ("candidates", "ties", "ks", "patience")) == ("full", "item_id", (10,), 10)
    assert values(preset, ("select_metric", "select_on", "select_last")) == ("f1_of_means@10", "validation", False)
    assert {"f1_of_means", "mrr", "ndcg", "precision", "recall", "mrr_released", "ndcg_released"} <= set(preset.metrics)


def test_ifedrec() -> None:
    preset = PRESETS["ifedrec"]
    assert values(preset, ("split", "negatives", "neg_pool", "ties")) == ("cold-items", 5, "honest", "item_id")
    assert {name for name, other in PRESETS.items() if other.neg_unique == "user"} == {"ifedrec"}
    assert values(preset, ("ks", "select_last", "patience")) == ((20, 50, 100), True, None)
    assert preset.select_metric == "recall@20+recall@50+recall@100"
    left = 1 - preset.test_share
    assert (left * (1 - preset.valid_share), left * preset.valid_share) == pytest.approx((0.80, 0.06), abs=1e-3)
    assert set(preset.metrics) == {"precision", "recall", "ndcg", "ndcg_index", "ndcg_ifedrec"}


def test_what_is_honest() -> None:
    honest = {name for name, preset in PRESETS.items() if not preset.leaks}
    assert honest == {"honest", "honest-time", "fedrkg-honest"}
    assert len(PRESETS["fedca"].leaks) == 6  # pool, selection, candidates, ties, mask at validation, time
    assert not any("negatives" in leak for name in ("fedcia", "ifedrec") for leak in PRESETS[name].leaks)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_its_own_label_and_can_be_told(name: str) -> None:
    assert protocol(name).label == name
    assert dict(record(protocol(name)))["negatives"] == str(PRESETS[name].negatives)
    assert "\n" not in describe_briefly(PRESETS[name])


@pytest.fixture(scope="module")
def table() -> Interactions:
    return load("synthetic@users=120+items=700+interactions=4000+seed=3")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_can_be_prepared(name: str, table: Interactions) -> None:
    prepared = prepare(table, PRESETS[name])
    assert prepared.valid is not None
    sampled = PRESETS[name].candidates != "full"
    assert (prepared.test.candidates is not None) is sampled
    if sampled:
        shared = (prepared.test.candidates == prepared.valid.candidates).all()
        assert bool(shared) is (PRESETS[name].candidates == "sampled99")


def test_cold_items_are_ranked_among_themselves(table: Interactions) -> None:
    prepared = prepare(table, PRESETS["ifedrec"])
    assert set(prepared.test.n_candidates.tolist()) == {len(np.unique(prepared.split.test.item))}
    assert not np.isin(prepared.split.test.item, prepared.split.train.item).any()


def test_ifedrec_draws_no_negative_twice_for_a_user(table: Interactions) -> None:
    """Unless a user has fewer items to draw from than negatives to draw."""
    prepared = prepare(table, PRESETS["ifedrec"])
    data = prepared.clients(World(items=prepared.n_trained, clients=len(prepared.partition.users)))
    chunk = data.chunk(np.arange(data.world.clients))
    enough = 6 * data.positives <= prepared.n_trained
    assert enough.mean() > 0.9
    for round in range(3):
        drawn = np.split(negatives(chunk, round).numpy(), chunk.user_ptr[1:-1])
        assert all(len(np.unique(own)) == own.size for own, fits in zip(drawn, enough, strict=True) if fits)


def test_silos_of_fedcia_are_contiguous(table: Interactions) -> None:
    sizes = prepare(table, PRESETS["fedcia"]).partition.sizes()
    assert sizes.tolist() == [1] * 99 + [21]
