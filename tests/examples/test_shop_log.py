"""The shop's log that the walk from a file to a model begins with: as bad as it says, and the same every time."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from conftest import Cli
from fedrec.data import read_table

SCRIPT = Path(__file__).parents[2] / "examples" / "shop_log.py"
SIZES = ("--rows", "6000", "--bad", "60", "--users", "300", "--items", "120")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "argv", ["shop_log.py", "--out", str(tmp_path / "shop"), *SIZES])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    return tmp_path / "shop"


def test_bad_rows_are_as_many_as_it_says(shop: Path) -> None:
    data, _ = read_table(shop / "log.csv", skip_bad=True)
    more, _ = read_table(shop / "day.csv", skip_bad=True)
    bad = sum(len(table.bad) for table in (data, more) if table.bad is not None)
    assert (len(data) + len(more) + bad, bad) == (6000, 60)
    assert len(more) < 30
    assert data.timestamp is not None
    assert (data.timestamp[1:] >= data.timestamp[:-1]).all()  # three ways of writing times, one order


def test_from_the_log_to_a_model_and_the_next_day(cli: Cli, shop: Path) -> None:
    """Six commands: check, advise, run, fit, the next day, lists."""
    assert cli("data", "check", shop / "log.csv").code == 1
    more = ("fit", "--from", "model")
    for words in (
        ("advise", "--data", shop / "log.csv", "--skip-bad", "--minutes", "0.02", "--out", "advice", "-q"),
        ("run", "--config", "advice/best.toml", "--rounds", 1, "--out", "run", "-q"),
        ("fit", "run", "--out", "model", "-q"),
        (*more, "--data", shop / "day.csv", "--attributes", shop / "catalogue.csv", "--out", "day", "-q"),
        ("recommend", "day", "--all", "--out", "lists.csv", "-k", 3),
    ):
        outcome = cli(*words)
        assert outcome.code == 0, outcome.err
    assert "Thing " in Path("lists.csv").read_text()
