"""What a run records of the inside of a simulation, the figure of gates, and what clients hold by its counters."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fedrec
from fedrec.errors import FedrecError
from fedrec.experiment.finished_run import find_runs
from fedrec.report.figures import FIGURES
from fedrec.report.pages.report import write_report
from report.beside import with_references

DATA = "synthetic@users=40+items=80+interactions=700+seed=1"


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("gates")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FEDREC_DATA", raising=False)
        patch.setenv("FEDREC_CACHE", str(root / "cache"))
        often: dict[str, Any] = {"rounds": 4, "dim": 4, "interval": 2, "beta": 0.7, "lr_gate": 2.0}
        fedrec.run("fedrkg", DATA, out=root / "fedrkg", **often)
        fedrec.run("cgfedrec", DATA, out=root / "noised", rounds=2, dim=4, clusters=5, privacy="laplace=3")
        fedrec.run("cgfedrec", DATA, out=root / "clean", rounds=2, dim=4, clusters=5)
        yield root


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_guidance_rounds_record_gates_and_what_the_commit_changed(studies: Path) -> None:
    found = records(studies / "fedrkg")
    assert [set(record) & {"inside", "before"} for record in found] == [set(), {"inside", "before"}] * 2
    gates = found[3]["inside"]
    assert gates["gate followers"] != gates["gate distinct"]
    assert found[1]["before"].keys() == found[1]["valid"].keys()
    drawing = FIGURES["gates"]().draw(find_runs([studies / "fedrkg"]))
    last, commits = drawing.tables
    assert last.rows[0][1] == f"{gates['gate cold']:.5f}, {gates['gate warm']:.5f}"
    assert [row[1] for row in commits.rows] == ["2", "4"]
    assert all(group in panel.svg for panel in drawing.panels for group in ("cold", "warm", "distinct", "followers"))
    with pytest.raises(FedrecError, match="has no gates"):
        FIGURES["gates"]().draw(find_runs([studies / "clean"]))


def test_noise_on_uploads_records_what_it_leaves_of_the_clusters(studies: Path) -> None:
    assert all(-1 <= record["inside"]["label_agreement"] < 1 for record in records(studies / "noised"))
    assert not any("inside" in record for record in records(studies / "clean"))


def test_a_report_shows_what_clients_keep_and_send(studies: Path) -> None:
    """Tables of 80 items and 4 numbers; gates of 3 * 4 + 1 beside a user vector; labels of a byte."""
    counted = {name: json.loads((studies / name / "summary.json").read_text())["bytes"] for name in ("fedrkg", "clean")}
    table = 4 * 80 * 4
    assert counted["fedrkg"]["kept_per_client"] == table + 4 * (4 + 13)
    assert counted["fedrkg"]["to_score_per_client"] == table + 4 * 4
    assert (counted["fedrkg"]["largest_up"], counted["fedrkg"]["up_per_client_round"]) == (table, table / 2)
    assert (counted["clean"]["largest_up"], counted["clean"]["largest_down"]) == (table, 80)
    page = write_report(with_references([studies / "clean"]), studies / "page.html").read_text()
    assert "largest download" in page
    assert "80 B" in page
