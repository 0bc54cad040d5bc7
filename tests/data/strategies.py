"""Random interaction tables for property tests."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from fedrec.data import Interactions, from_raw


@st.composite
def tables(draw: st.DrawFn, duplicates: bool = False, times: tuple[str, ...] = ("real", "none")) -> Interactions:
    """A few users and items with few distinct times, so that ties are the rule."""
    pairs = draw(
        st.lists(st.tuples(st.integers(3, 9), st.integers(0, 12)), min_size=1, max_size=60, unique=not duplicates)
    )
    users, items = (np.array(column) for column in zip(*pairs, strict=True))
    time = draw(st.sampled_from(times))
    size = len(pairs)
    stamps = np.array(draw(st.lists(st.integers(0, 4), min_size=size, max_size=size)))
    seed = draw(st.integers(0, 3))
    return from_raw(users, items, timestamp=None if time == "none" else stamps, time=time, name="drawn", tie_seed=seed)
