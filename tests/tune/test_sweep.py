"""`fedrec sweep`: every listed value once, on validation items alone, and going on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedrec.errors import FedrecError
from fedrec.experiment.config import make_config
from fedrec.experiment.driver import Listener, Run
from fedrec.experiment.grid_search import Sweep, combinations, grid_of, split_settings, sweep
from fedrec.experiment.params import method_of
from fedrec.experiment.tuning import Trial, best_of

CONFIG = make_config({"method": "fedmf", "data": "synthetic@users=50+items=200", "rounds": 2, "params": {"dim": 4}})


def swept(place: Path, *settings: str) -> tuple[list[Trial], list[Trial]]:
    """All trials of a sweep, and those that this call has run."""
    new: list[Trial] = []
    space = grid_of(method_of(CONFIG), split_settings(settings)[0])
    return sweep(Sweep(place, CONFIG, space), new.append, lambda _: Listener()), new


def test_every_combination_is_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[Any] = []
    usual = Run.evaluate
    monkeypatch.setattr(Run, "evaluate", lambda self, part, *more: parts.append(part) or usual(self, part, *more))
    done, new = swept(tmp_path / "s", "lr=0.1,0.5", "epochs=1,2")
    assert [trial.params for trial in done] == [{"lr": lr, "epochs": epochs} for lr in (0.1, 0.5) for epochs in (1, 2)]
    assert done == new
    assert set(parts) == {"valid"}, "test items are never ranked"
    assert len({trial.value for trial in done}) > 1
    again, new = swept(tmp_path / "s", "lr=0.1,0.5", "epochs=1,2")
    assert (again, new) == (done, [])


def test_values_can_be_added(tmp_path: Path) -> None:
    first, _ = swept(tmp_path / "s", "lr=0.1,0.5")
    more, new = swept(tmp_path / "s", "lr=0.1,0.5,1")
    assert more[:2] == first
    assert [trial.params for trial in new] == [{"lr": 1.0}]
    with pytest.raises(FedrecError, match="contains a sweep of lr"):
        swept(tmp_path / "s", "epochs=1,2")


def test_a_sweep_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    whole, _ = swept(tmp_path / "whole", "lr=0.1,0.5")
    swept(tmp_path / "cut", "lr=0.1,0.5")
    log = tmp_path / "cut" / "trials.jsonl"
    log.write_text(log.read_text().splitlines()[0] + "\n")
    again, new = swept(tmp_path / "cut", "lr=0.1,0.5")
    assert [trial.value for trial in again] == [trial.value for trial in whole]
    assert len(new) == 1


def test_what_is_not_a_list_is_said() -> None:
    with pytest.raises(FedrecError, match="nothing to sweep"):
        split_settings(["dim=4"])
    with pytest.raises(FedrecError, match="ranges are for fedrec tune"):
        grid_of(method_of(CONFIG), {"lr": "0.1..0.5"})
    with pytest.raises(FedrecError, match="lr"):
        grid_of(method_of(CONFIG), {"lr": "0.1,fast"})
    assert combinations(grid_of(method_of(CONFIG), {"lr": "1,1,2"})) == [{"lr": 1.0}, {"lr": 2.0}]


def test_the_best_is_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedrec.commands.sweep import run_sweep
    from fedrec.experiment.config import read_config

    monkeypatch.chdir(tmp_path)
    run_sweep(CONFIG, ["lr=0.1,0.5"], None, quiet=True)
    shown = capsys.readouterr().out
    folder = next((tmp_path / "runs" / "sweep").iterdir())
    done = [Trial(**json.loads(line)) for line in (folder / "trials.jsonl").read_text().splitlines()]
    best = best_of(done)
    assert best is not None
    assert read_config(folder / "best.toml")["params"]["lr"] == best.params["lr"]
    assert "validation" in shown
    assert all(f"{trial.value:.4f}" in shown for trial in done)
