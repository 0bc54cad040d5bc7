"""What a run takes on the disk: said before it begins, one model afterwards, refused where it cannot fit."""

from __future__ import annotations

import shutil
import warnings
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest

import fedrec
from conftest import Cli
from fedrec.errors import FedrecError, FedrecWarning
from fedrec.experiment import checkpoint
from fedrec.experiment.config import RunConfig
from fedrec.experiment.disk import disk_use
from fedrec.experiment.driver import Run, execute
from fedrec.experiment.run_plan import plan_run
from fedrec.federation.simulator import Simulator

from . import SMALL

OVERFITS = RunConfig("fedmf", data=SMALL, rounds=6, params={"dim": 8, "lr": 0.04, "optimiser": "adam"})
"""Its best round is not the last."""
IMPROVES = RunConfig("fedmf", data=SMALL, rounds=3, params={"dim": 8})
"""Its best round is the last."""
Usage = namedtuple("Usage", "total used free")


def trained_rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rounds that are trained from now on."""
    seen, original = list[int](), Simulator.begin

    def counted(self: Simulator, number: int, *rest: object) -> object:
        seen.append(number)
        return original(self, number, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Simulator, "begin", counted)
    return seen


def state_in(path: Path) -> list[str]:
    return [name for name in checkpoint.load(path)[0] if not name.startswith("ledger.")]


@pytest.mark.parametrize("config", [OVERFITS, IMPROVES])
def test_an_ended_run_keeps_one_model(config: RunConfig, tmp_path: Path) -> None:
    ended = execute(config, tmp_path / "run").summary
    assert (ended["best_round"] + 1 == config.rounds) == (config is IMPROVES), "the world makes the test empty"
    assert state_in(tmp_path / "run" / "checkpoint.safetensors")
    assert not state_in(tmp_path / "run" / "last.safetensors")


def test_the_last_state_is_kept_on_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(OVERFITS, tmp_path / "run", keep="last")
    assert state_in(tmp_path / "run" / "last.safetensors")
    trained = trained_rounds(monkeypatch)
    execute(replace(OVERFITS, rounds=8), tmp_path / "run", resume=True)
    assert trained == [6, 7]


def test_more_rounds_follow_the_last_one_where_it_was_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longer = replace(IMPROVES, rounds=5)
    whole = execute(longer, tmp_path / "whole").summary
    execute(IMPROVES, tmp_path / "run")
    trained = trained_rounds(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        summary = execute(longer, tmp_path / "run", resume=True).summary
    assert trained == [3, 4]
    assert summary["test"] == whole["test"]


def test_a_run_that_kept_another_round_starts_over_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    longer = replace(OVERFITS, rounds=8)
    whole = execute(longer, tmp_path / "whole").summary
    execute(OVERFITS, tmp_path / "run")
    trained = trained_rounds(monkeypatch)
    execute(OVERFITS, tmp_path / "run", resume=True)
    assert not trained, "it has all its rounds"
    with pytest.warns(FedrecWarning, match="trained again from the first round; --keep-last keeps both"):
        summary = execute(longer, tmp_path / "run", resume=True).summary
    assert trained == list(range(8))
    assert summary["test"] == whole["test"]


def test_without_a_model_every_use_of_it_says_why_not(cli: Cli, tmp_path: Path) -> None:
    flags = ("--data", SMALL, "--rounds", 2, "--quiet", "--out", "run", "--no-model")
    assert cli("run", "fedmf", *flags).code == 0
    kept = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"summary.json", "per_user.csv", "report.html"} <= kept
    assert not kept & {"checkpoint.safetensors", "last.safetensors", "prepared.npz"}
    assert cli("compare", "run", "--no-references").code == 0
    uses = [
        ("recommend", "run", "--user", 1),
        ("similar", "run", "--item", 1),
        ("export", "run", "--to", "npz"),
        ("fit", "run"),
        ("fit", "--from", "run"),
        ("serve", "run"),
    ]
    for words in uses:
        outcome = cli(*words)
        assert (outcome.code, len(outcome.err.splitlines())) == (2, 1), words
        assert "kept no model (--no-model): train it again with fedrec run --config run/config.toml" in outcome.err
    both = cli("run", "fedmf", *flags, "--keep-last")
    assert (both.code, "give one of them" in both.err) == (2, True)


def test_seeds_that_ended_without_a_model_are_not_run_again(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("run", "fedmf", "--data", SMALL, "--rounds", 2, "--quiet", "--out", "many", "--no-model")
    assert cli(*words, "--seeds", "0,1").code == 0
    trained = trained_rounds(monkeypatch)
    outcome = cli(*words, "--seeds", "0,1,2", "--resume")
    assert (outcome.code, trained) == (0, [0, 1])
    assert "3 seeds, test" in outcome.out
    assert (tmp_path / "many" / "seed2" / "summary.json").exists()


def test_a_study_in_python_keeps_results_alone(tmp_path: Path) -> None:
    result = fedrec.run("fedmf", SMALL, rounds=2, out=tmp_path / "run", keep="nothing")
    assert result.test
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()


@pytest.mark.parametrize("config", [OVERFITS, IMPROVES, replace(OVERFITS, method="local", params={"dim": 4})])
def test_what_is_said_before_is_about_what_is_taken(config: RunConfig, tmp_path: Path) -> None:
    said = disk_use(Run(plan_run(config)), tmp_path / "run", "model")
    execute(config, tmp_path / "run")
    state = (tmp_path / "run" / "checkpoint.safetensors").stat().st_size
    taken = sum(path.stat().st_size for path in (tmp_path / "run").iterdir())
    rest = 2 << 20
    assert state <= taken <= said.ended + rest
    assert said.ended <= taken + rest
    assert said.running >= said.ended


def test_a_run_says_what_it_takes(cli: Cli) -> None:
    outcome = cli("run", "fedmf", "--data", SMALL, "--rounds", 2, "--out", "run")
    assert "on disk, at most" in outcome.err


def test_a_run_that_cannot_fit_is_refused_before_it_writes(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(IMPROVES, tmp_path / "run")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1 << 30, 1 << 30, 1000))
    for words in (("run", "fedmf", "--data", SMALL), ("fit", "run")):
        outcome = cli(*words, "--out", "new")
        assert (outcome.code, len(outcome.err.splitlines())) == (2, 1)
        assert "are free there; free some space, choose an --out on another disk" in outcome.err
        assert not (tmp_path / "new").exists()
    with pytest.raises(FedrecError, match="are free there"):
        execute(OVERFITS, tmp_path / "other")
