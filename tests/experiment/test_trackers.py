"""Trackers by name: every round and the result arrive, and a tracker that fails costs its record, not the run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any, ClassVar

import pytest

from conftest import Cli
from fedrec.experiment import trackers

SMALL = ("--data", "synthetic@users=40+items=80+interactions=700+seed=1", "--rounds", "3", "--set", "dim=4", "-q")


class Remembering:
    """A tracker of another package."""

    calls: ClassVar[list[tuple[str, Any]]] = []

    def __init__(self, folder: Path) -> None:
        self.calls.append(("made", folder.name))

    def begin(self, settings: Mapping[str, Any]) -> None:
        self.calls.append(("begin", settings["method"]))

    def log(self, values: Mapping[str, float], round: int) -> None:
        self.calls.append(("log", round))

    def end(self, results: Mapping[str, float]) -> None:
        self.calls.append(("end", bool(results)))


class Failing(Remembering):
    def log(self, values: Mapping[str, float], round: int) -> None:
        raise ConnectionError("the server has gone")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a package had declared these two."""
    Remembering.calls.clear()
    points = [EntryPoint(name.lower(), f"{__name__}:{name}", trackers.GROUP) for name in ("Remembering", "Failing")]
    points.append(EntryPoint("broken", "no_such_module:X", trackers.GROUP))
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: EntryPoints(points))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow with a database of the test's own."""
    pytest.importorskip("sqlalchemy", reason="the extra `mlflow` is not installed")
    mlflow = pytest.importorskip("mlflow", reason="the extra `mlflow` is not installed")
    address = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    return mlflow.MlflowClient(tracking_uri=address)


def test_mlflow_has_settings_rounds_and_result(cli: Cli, tmp_path: Path, store: Any) -> None:
    assert cli("run", "fedmf", *SMALL, "--out", "run", "--log", "mlflow").code == 0
    (run,) = store.search_runs([store.get_experiment_by_name("fedrec").experiment_id])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert (run.info.status, run.data.params["method"], run.data.params["dim"]) == ("FINISHED", "fedmf", "4")
    assert run.data.metrics["test/ndcg_at_10"] == pytest.approx(summary["test"]["ndcg@10"])
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    wanted = [(k + 1, json.loads(line)["valid"]["ndcg@10"]) for k, line in enumerate(lines)]
    history = store.get_metric_history(run.info.run_id, "valid/ndcg_at_10")
    assert [(one.step, one.value) for one in history] == [(step, pytest.approx(value)) for step, value in wanted]


def test_mlflow_goes_on_with_a_run_that_was_interrupted(tmp_path: Path, store: Any) -> None:
    first = trackers.MLflow(tmp_path / "run")
    first.begin({"method": "fedmf"})
    first.log({"loss": 0.5}, 1)
    first.end({})
    again = trackers.MLflow(tmp_path / "run")
    again.begin({"method": "fedmf"})
    again.log({"loss": 0.4}, 2)
    again.end({"test/ndcg@10": 0.1})
    trackers.MLflow(tmp_path / "other").begin({"method": "fedmf"})
    runs = store.search_runs([store.get_experiment_by_name("fedrec").experiment_id])
    assert sorted(run.info.status for run in runs) == ["FINISHED", "RUNNING"]
    (whole,) = (run for run in runs if run.info.status == "FINISHED")
    assert [one.step for one in store.get_metric_history(whole.info.run_id, "loss")] == [1, 2]


def test_tensorboard_writes_beside_the_run(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    assert cli("run", "fedmf", *SMALL, "--out", "run", "--log", "tensorboard").code == 0
    assert list((tmp_path / "run" / "events").glob("events.out.*"))


def test_each_seed_has_a_tracker_of_its_own(cli: Cli, installed: None) -> None:
    assert cli("run", "fedmf", *SMALL, "--seeds", "0,1", "--out", "runs", "--log", "remembering").code == 0
    rounds = [("log", 1), ("log", 2), ("log", 3)]
    one = [("begin", "fedmf"), *rounds, ("end", True)]
    assert Remembering.calls == [("made", "seed0"), ("made", "seed1"), *one, *one]


def test_a_tracker_that_fails_does_not_end_the_run(cli: Cli, tmp_path: Path, installed: None) -> None:
    outcome = cli("run", "fedmf", *SMALL, "--out", "run", "--log", "failing", "--log", "remembering")
    assert outcome.code == 0
    assert outcome.err.count("failing records nothing more of this run, which goes on: ConnectionError") == 1
    assert (tmp_path / "run" / "summary.json").exists()
    assert Remembering.calls[-1] == ("end", True), "the other one heard everything"


@pytest.mark.parametrize(
    ("name", "says"), [("nonsense", "unknown tracker 'nonsense'"), ("broken", "the listener 'broken' cannot be used")]
)
def test_what_cannot_track_is_said_before_any_work(
    cli: Cli, tmp_path: Path, installed: None, name: str, says: str
) -> None:
    outcome = cli("run", "fedmf", *SMALL, "--out", "run", "--log", name)
    assert (outcome.code, says in outcome.err) == (2, True), outcome.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("name", "package"), [("mlflow", "mlflow"), ("wandb", "wandb")])
def test_what_is_not_installed_says_how_to_install_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    outcome = cli("run", "fedmf", *SMALL, "--out", "run", "--log", name)
    assert (outcome.code, f'pip install "fedrec[{name}]"' in outcome.err) == (2, True), outcome.err
