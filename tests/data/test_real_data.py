"""The published counts, where the real files are at hand."""

from __future__ import annotations

import os

import numpy as np
import pytest

from fedrec.data import entry, leave_one_out, load

pytestmark = pytest.mark.skipif(
    "FEDREC_DATA" not in os.environ, reason="needs real data: set FEDREC_DATA to its folder"
)

COUNTS = {
    "ml-100k": (943, 1682, 100_000, 100_000, "real"),
    "ml-1m": (6040, 3706, 1_000_209, 1_000_209, "order"),
    "filmtrust": (1508, 2071, 35_497, 35_494, "none"),
    "lastfm-2k": (1892, 17_632, 92_834, 92_834, "none"),
    "amazon-video": (8072, 11_830, 63_836, 63_836, "real"),
    "xing": (10_688, 14_199, 304_304, 289_621, "none"),
    "citeulike-a": (5551, 16_980, 204_986, 204_986, "none"),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_the_published_ones(name: str) -> None:
    if entry(name).available() is None:
        pytest.skip(f"no files of {name} in FEDREC_DATA")
    data = load(name)
    found = (data.n_users, data.n_items, len(data), len(data.drop_repeats()), data.time)
    assert found == COUNTS[name]
    assert data.compact().n_items == data.n_items
    assert data.compact().n_users == data.n_users


def test_ml_100k_values() -> None:
    data = load("ml-100k")
    assert data.timestamp is not None
    assert (data.timestamp.min(), data.timestamp.max()) == (874724710, 893286638)
    latest = np.zeros(data.n_users, dtype=np.int64)
    np.maximum.at(latest, data.user, data.timestamp)
    tied = np.bincount(data.user, weights=data.timestamp == latest[data.user]) > 1
    assert tied.sum() == 415


def test_ml_1m_values() -> None:
    data = load("ml-1m@positions")
    assert data.rating is not None
    assert data.timestamp is not None
    assert np.bincount(data.rating.astype(int)).tolist() == [0, 56_174, 107_557, 261_197, 348_971, 226_310]
    assert (data.timestamp < 0).sum() == 598


def test_item_order_makes_one_film_the_test_of_350_users() -> None:
    data = load("filmtrust").drop_repeats().with_min_interactions(10)
    assert data.n_users == 1002
    assert np.bincount(leave_one_out(data, time="item_order").test.item).max() == 350
