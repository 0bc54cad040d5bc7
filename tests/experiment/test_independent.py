"""The printed numbers, recomputed by a script that shares no line of code with the library."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Cli

from . import SMALL

SCRIPT = Path(__file__).with_name("recompute.py")
RUNS = {
    "fedmf": ("fedmf", "--rounds", "12", "--set", "dim=8", "--set", "lr=40"),
    "fedmf, silos": ("fedmf", "--rounds", "4", "--set", "dim=8", "--silos", "5:random"),
    "fedmf, untrained": ("fedmf", "--rounds", "1", "--set", "dim=2", "--set", "lr=0", "--set", "init_std=0"),
    "ease": ("ease",),
    "popularity": ("popularity",),
}


@pytest.mark.parametrize("name", RUNS)
def test_recomputed_from_the_files(cli: Cli, tmp_path: Path, name: str) -> None:
    method = RUNS[name][0]
    assert cli("run", *RUNS[name], "--data", SMALL, "--quiet", "--out", "run").code == 0
    assert cli("data", "split", SMALL, "--out", "split").code == 0
    command = [sys.executable, "-I", str(SCRIPT), method, str(tmp_path / "run"), str(tmp_path / "split")]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    for part in ("valid", "test"):
        for metric in ("recall@10", "ndcg@10"):
            mean = sum(user[metric] for user in found[part].values()) / len(found[part])
            assert summary[part][metric] == pytest.approx(mean, abs=1e-6), (part, metric)
    with (tmp_path / "run" / "per_user.csv").open(newline="") as file:
        rows = {row["user"]: row for row in csv.DictReader(file)}
    assert rows.keys() == found["test"].keys()
    for user, row in rows.items():
        for metric, value in found["test"][user].items():
            assert float(row[metric]) == pytest.approx(value, abs=1e-6), (user, metric)
    if name == "fedmf":
        assert summary["test"]["recall@10"] > summary["chance"]["recall@10"], "the comparison should be of something"
    if name == "fedmf, untrained":
        assert summary["test"]["recall@10"] == pytest.approx(summary["chance"]["recall@10"], abs=1e-12)
