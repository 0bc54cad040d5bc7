"""The curves of a study of new items: its definitions become runs, and the runs become the figures."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedrec.experiment.driver import Run
from fedrec.experiment.finished_run import FinishedRun, find_runs
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.run_plan import plan_run
from fedrec.report.figures import FIGURES
from fedrec.report.figures.figure import Drawing
from fedrec.report.figures.write import write_figure
from fedrec.report.records import find_convergence
from fedrec_studies.reproduce.table_definition import Table, tables

DATA, PROTOCOL = "synthetic@users=40+items=200", "ifedrec,ks=5,select_metric=recall@5"
STUDIES = {"figure3": "align", "figure4": "server_epochs", "figure5": "participation"}


def ends(table: Table) -> list[str]:
    """The rows of the smallest and of the largest value, for both backbones."""
    labels = [row.label for row in table.rows]
    half = next(place for place, label in enumerate(labels) if label.startswith("IPFedRec"))
    return [labels[0], labels[half - 1], labels[half], labels[-1]]


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("cold")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FEDREC_DATA", raising=False)
        patch.setenv("FEDREC_CACHE", str(root / "cache"))
        for name in STUDIES:
            table = tables("ifedrec")[name]
            for row in [row for row in table.rows if row.label in ends(table)]:
                config = table.config(row, DATA, PROTOCOL, seed=0)
                # a fiftieth of the rounds, and small rates: the published ones are for thousands of clients
                params = config.params | {"lr": 0.01 if config.backbone == "ncf" else 0.1}
                short = dataclasses.replace(config, rounds=(config.rounds or 0) // 50, eval_every=1, params=params)
                Run(plan_run(short)).execute(RunFolder.create(root / name / row.label / "seed0", short.to_dict()))
        yield root


def runs_of(studies: Path, name: str) -> list[FinishedRun]:
    return find_runs([studies / name / label for label in ends(tables("ifedrec")[name])])


def drawn(studies: Path, name: str, figure: str, **settings: str) -> Drawing:
    return FIGURES[figure].build({"metric": "recall@5", **settings}).draw(runs_of(studies, name))


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_is_a_curve_for_each_backbone(studies: Path, name: str) -> None:
    found, key = drawn(studies, name, "sensitivity", parameter=STUDIES[name], on="test"), STUDIES[name]
    assert found.tables[0].rows == tuple(
        (
            f"ifedrec backbone={run.summary['backbone']}",
            str((run.config | run.config["params"])[key]),
            "1",
            f"{run.summary['test']['recall@5']:.4f}",
        )
        for run in runs_of(studies, name)
    )
    assert len({row[:2] for row in found.tables[0].rows}) == 4
    assert "lr" in found.lead  # goes along with the backbone, and is not hidden


def test_rounds_until_convergence_against_participation(studies: Path) -> None:
    found = drawn(studies, "figure5", "sensitivity", parameter="participation", on="rounds")
    rounds = [(find_convergence(run, "recall@5") or 0) + 1.0 for run in runs_of(studies, "figure5")]
    assert [row[-1] for row in found.tables[0].rows] == [f"{round:.4f}" for round in rounds]
    assert len(set(rounds)) > 1
    assert "rounds" in found.lead


def test_curves_by_round_are_told_apart_by_participation(studies: Path) -> None:
    found = drawn(studies, "figure5", "convergence")
    assert [row[0] for row in found.tables[0].rows] == [
        "ncf participation=0.1",
        "ncf participation=0.5",
        "linear participation=0.1",
        "linear participation=0.5",
    ]


def test_a_figure_says_how_many_of_its_runs_diverged(studies: Path, tmp_path: Path) -> None:
    first, *rest = runs_of(studies, "figure3")
    lost = dataclasses.replace(first, summary=first.summary | {"diverged": "the loss is no longer finite in round 9"})
    words = f"1 of {len(rest) + 1} runs; shown with a round chosen before that"
    settings = {"metric": "recall@5", "parameter": "align"}
    for name in ("all.svg", "all.html"):
        page = write_figure(FIGURES["sensitivity"], settings, [lost, *rest], tmp_path / name).read_text(
            encoding="utf-8"
        )
        assert words in " ".join(re.sub(r"<[^>]*>", " ", page).split())
    clean = write_figure(FIGURES["sensitivity"], settings, [first, *rest], tmp_path / "clean.svg")
    assert "iverged" not in clean.read_text(encoding="utf-8")
    table = FIGURES["sensitivity"].build(settings).draw([lost, *rest]).tables[0]
    assert [row[2] for row in table.rows].count("1 (1 diverged)") == 1
