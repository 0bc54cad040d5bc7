"""Figures of deployments: kept as data, and the page says what the data says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedrec.deploy import read_figures as read
from fedrec.deploy import record
from fedrec.errors import FedrecError
from fedrec_studies.trials.fill_pages import BLOCKS, fill_in

ROOT = Path(__file__).parents[3]


def test_the_page_says_what_was_measured() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    figures = read(ROOT / "results" / "deployment.json")
    assert set(figures) == set(BLOCKS)
    assert fill_in(page, figures) == page
    for name in BLOCKS:
        assert f"<!-- {name} -->" in page


def test_every_fault_that_is_asked_about_was_brought_about() -> None:
    rows = read(ROOT / "results" / "deployment.json")["faults"]
    names = {row["fault"] for row in rows}
    for part in (
        "SIGKILL of a node",
        "SIGKILL of the SuperLink",
        "SIGKILL of everything",
        "paused",
        "unregistered key",
        "wrong certificate",
        "vocabulary",
        "NaN",
        "huge",
        "wrong shape",
        "corrupt",
        "full disk",
    ):
        assert any(part in name for name in names), part
    assert not [row for row in rows if row["happened"].startswith("FAILED")]


def test_a_row_replaces_the_one_of_the_same_key(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    row: dict[str, Any] = {"fault": "a", "happened": "x", "lost": "nothing", "said": "a | b"}
    record(path, "faults", [row, {**row, "fault": "b"}], ["fault"])
    record(path, "faults", [{**row, "happened": "y"}], ["fault"])
    assert [(one["fault"], one["happened"]) for one in read(path)["faults"]] == [("b", "x"), ("a", "y")]
    page = fill_in("before\n<!-- faults -->\nold\n<!-- end -->\nafter\n<!-- load -->\nkept\n<!-- end -->\n", read(path))
    assert page.startswith("before\n<!-- faults -->\n| fault |")
    assert "| a | y | nothing | a \\| b |\n<!-- end -->\nafter\n<!-- load -->\nkept\n<!-- end -->\n" in page


def test_other_files_are_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    path.write_text(json.dumps([1, 2]), encoding="utf-8")
    with pytest.raises(FedrecError, match="holds no figures of deployments"):
        record(path, "faults", [], ["fault"])
    assert json.loads(path.read_text(encoding="utf-8")) == [1, 2]
