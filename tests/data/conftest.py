"""Tables and worlds small enough to check by eye, and a home without any real data in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedrec.data import Interactions, from_raw


@pytest.fixture
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and no data folders; returns the cache."""
    monkeypatch.delenv("FEDREC_DATA", raising=False)
    monkeypatch.setenv("FEDREC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def small() -> Interactions:
    """Three users; (7, 30) occurs twice, the later time on the earlier line."""
    return from_raw(
        np.array([7, 7, 7, 9, 9, 8]),
        np.array([30, 10, 30, 20, 10, 40]),
        rating=np.array([5, 0, 3, 1, 4, 2]),
        timestamp=np.array([99, 5, 7, 1, 1, 3]),
        time="real",
        name="small",
    )
