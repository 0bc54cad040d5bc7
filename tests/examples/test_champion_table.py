"""The champion's table: which earlier comparisons still stand, and that the page has the table of the data."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fedrec_studies.leaderboard import users

ROOT = Path(__file__).parents[2]


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("champion_table", ROOT / "examples" / "champion_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CHAMPION = script()


def run_of(data: str, method: str, value: float) -> dict[str, Any]:
    return {"data": data, "method": method, "seed": 0, "test": {"recall@10": value, "ndcg@10": value}}


def test_a_comparison_stands_while_both_rows_are_what_they_were() -> None:
    """That over all orders of ties needs every order of both rows."""
    places = [*CHAMPION.ORDERS, "ml-1m"]
    runs = [run_of(data, method, 0.1) for data in places for method in ("fedblend", "sasrec")]
    pairs = [{"data": data, "method": "fedblend", "against": "sasrec"} for data in (*places, CHAMPION.ALL_ORDERS)]
    earlier = {"runs": runs, "ndcg@10": pairs}
    assert CHAMPION.still_true(earlier, runs, []) == pairs
    assert CHAMPION.still_true(earlier, runs, pairs[:1]) == pairs[1:], "made again"

    def standing(changed: str) -> set[str]:
        again = [
            run_of(data, run["method"], 0.2 if data == changed and run["method"] == "sasrec" else 0.1)
            for run in runs
            for data in [run["data"]]
        ]
        return {pair["data"] for pair in CHAMPION.still_true(earlier, again, [])}

    assert standing("ml-1m") == {*CHAMPION.ORDERS, CHAMPION.ALL_ORDERS}
    assert standing("ml-100k@ties2") == {*places} - {"ml-100k@ties2"}


def test_users_of_earlier_runs_come_from_the_leaderboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CHAMPION, "USERS", tmp_path)
    kept = {"fedblend": np.array([0.3, 0.1]), "sasrec": np.array([0.1, 0.1])}
    users.write(tmp_path / "ml-1m.npz", users.UserValues("abc", kept))
    runs = [run_of("ml-1m", "fedblend", 0.2), run_of("ml-1m", "sasrec", 0.15), run_of("ml-100k", "sasrec", 0.1)]
    (found,) = CHAMPION.of_leaderboard(runs).items()
    assert found[0] == ("ml-1m", "fedblend"), "sasrec's figures are others now, and of ml-100k nothing was kept"
    assert found[1].tolist() == pytest.approx([0.3, 0.1])


def test_the_page_has_the_table_of_the_committed_data() -> None:
    data = json.loads(CHAMPION.DATA.read_text())
    assert CHAMPION.table(data) in (ROOT / "docs" / "fedblend.md").read_text()
