"""How many rounds a run takes to come near its best."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from conftest import Cli
from fedrec.experiment.finished_run import FinishedRun, find_runs
from fedrec.report.figures import FIGURES
from fedrec.report.records import find_convergence


def with_figures(source: Path, folder: Path, values: dict[int, float]) -> FinishedRun:
    """A run whose log says these figures, and evaluates in no other round."""
    shutil.copytree(source, folder)
    lines = [
        {"round": n} | ({"valid": {"recall@20": values[n], "ndcg@10": values[n]}} if n in values else {})
        for n in range(max(values) + 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return find_runs([folder])[0]


@pytest.mark.parametrize(
    ("values", "round"),
    [
        ({0: 0.1, 4: 0.396, 9: 0.4, 14: 0.35}, 4),  # exactly 1 % below counts
        ({0: 0.1, 4: 0.3959, 9: 0.4, 14: 0.35}, 9),
        ({0: 0.4, 4: 0.2}, 0),
        ({4: 0.0, 9: 0.0}, 4),
    ],
)
def test_the_first_evaluated_round_near_the_best(runs: Path, tmp_path: Path, values: dict, round: int) -> None:
    run = with_figures(runs / "runs" / "fedmf" / "seed0", tmp_path / "run", values)
    assert find_convergence(run) == round
    assert find_convergence(run, within=1.0) == min(values)
    assert find_convergence(run, "hr@20") is None


def test_the_figure_says_it_for_every_seed(runs: Path, tmp_path: Path) -> None:
    near = [{0: 0.1, 2: 0.4, 5: 0.4}, {0: 0.1, 2: 0.3, 5: 0.4}]
    for seed, values in enumerate(near):
        with_figures(runs / "runs" / "fedmf" / f"seed{seed}", tmp_path / "study" / str(seed), values)
    for scale in ("linear", "log"):
        table = FIGURES["convergence"].build({"rounds": scale}).draw(find_runs([tmp_path / "study"])).tables[0]
        assert table.heads[-1] == "first round within 1 % of the highest"
        assert table.rows[0][-1] == "4.5 (3 to 6 over 2 seeds)"


def test_people_see_the_first_round_as_1(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("run", "popularity", "--data", "synthetic@users=40+items=80", "--out", "run")
    assert "round 1 of 1 chosen" in outcome.out
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["best_round"] == 0
