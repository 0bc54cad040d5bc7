"""What is said before any work is done, and what is left behind of a run that never began."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Cli
from fedrec.data.interactions import from_raw
from fedrec.errors import FedrecError
from fedrec.experiment.config import RunConfig, make_config
from fedrec.experiment.driver import Run, execute
from fedrec.experiment.run_plan import plan_run
from fedrec.federation.schema import preview_names
from fedrec.federation.simulator import Simulator

from . import SMALL

BUDGET = ("--privacy", "clip=1", "--epsilon", 4, "--delta", 1e-5)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("fedavg", *BUDGET),
            "fedavg sends the weights of 'item' without noise (round 1), so no epsilon holds; add --set shares=equal",
        ),
        (("fedmf", "--privacy", "clip=1,gaussian:items=0.1"), "unknown upload 'items'; did you mean 'item'?"),
        (("fedca", "--privacy", "laplace:pictures=0.1"), "did you mean 'picture'?"),
        (("fedrkg", "--set", "interval=3", "--privacy", "laplace:items=1"), "did you mean 'item'?"),
    ],
)
def test_noise_that_cannot_be_is_refused_before_training(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...], says: str
) -> None:
    monkeypatch.setattr(Simulator, "begin", lambda *_: pytest.fail("it trained"))
    outcome = cli("run", *words, "--data", SMALL, "--set", "dim=4", "--out", "run")
    assert (outcome.code, len(outcome.err.splitlines())) == (2, 1), outcome
    assert says in outcome.err
    assert not (tmp_path / "run").exists()


def test_looking_at_uploads_changes_nothing() -> None:
    config = RunConfig(method="fedavg", data=SMALL, rounds=2, params={"dim": "4", "shares": "equal"})
    run, other = Run(plan_run(config)), Run(plan_run(config))
    assert preview_names(run.simulator.server_side, run.simulator.client_setup()) == (["item"], ["'item'"])
    assert run.simulator.wire.ledger.rounds == {}
    assert run.execute().summary["test"] == other.execute().summary["test"]


def test_shares_equal_keeps_the_budget(cli: Cli) -> None:
    words = ("--data", SMALL, "--set", "dim=4", "--set", "shares=equal", "--rounds", 2, "--json", "--out", "run")
    outcome = cli("run", "fedavg", *BUDGET, *words)
    assert outcome.code == 0, outcome
    assert json.loads(outcome.out.splitlines()[-1])["privacy"]["epsilon"] == pytest.approx(4, rel=1e-5)


def test_what_means_nothing_in_one_place_is_said(cli: Cli, tmp_path: Path) -> None:
    words = ("--data", SMALL, "--silos", 5, "--participation", 0.5)
    assert cli("run", "gfcf", *words, "--out", "run").code == 0
    note = "gfcf is centralised; ignored: silos, participation"
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["notes"] == [note]
    assert note in cli("run", "gfcf", *words, "--out", "again").err
    assert cli("run", "fedmf", *words, "--rounds", 1, "--out", "federated").code == 0
    assert "ignored" not in str(json.loads((tmp_path / "federated" / "summary.json").read_text())["notes"])


def test_a_run_that_never_began_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig(method="fedmf", data=SMALL, rounds=3, params={"dim": "4"})
    real, ends = Simulator.begin, {"at": 0}

    def failing(self: Simulator, number: int, *rest: Any) -> object:
        if number == ends["at"]:
            raise FedrecError("enough")
        return real(self, number, *rest)

    monkeypatch.setattr(Simulator, "begin", failing)
    with pytest.raises(FedrecError, match="enough"):
        execute(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    ends["at"] = 1
    with pytest.raises(FedrecError, match="enough"):
        execute(config, tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").exists(), "what was done is kept"


def test_own_tables_that_are_trained_again_go_on_for_more_rounds(tmp_path: Path) -> None:
    params = {"own_tables": "replayed", "dim": "4", "lr": "0.01"}
    long = RunConfig(method="pfedrec", data=SMALL, rounds=4, params=params)
    whole = execute(long, tmp_path / "whole")
    execute(RunConfig(method="pfedrec", data=SMALL, rounds=2, params=params), tmp_path / "run")
    resumed = execute(long, tmp_path / "run", resume=True)
    assert resumed.summary["rounds_run"] == 4
    assert resumed.test == whole.test
    assert resumed.valid == whole.valid


@pytest.mark.parametrize("times", [True, False])
@pytest.mark.parametrize(("method", "params"), [("sasrec", {"dim": 4}), ("fedgram", {"order": True}), ("fedgram", {})])
def test_order_without_times_is_noted(method: str, params: dict[str, Any], times: bool) -> None:
    user, item = np.divmod(np.arange(200), 10)
    table = from_raw(
        user,
        (user * 3 + item) % 30,
        timestamp=np.arange(200) if times else None,
        time="real" if times else "none",
        name="mine",
    )
    notes = Run(plan_run(make_config({"method": method, "params": params}), table)).plan.notes
    assert any("the data has no timestamps" in note for note in notes) == (bool(params) and not times)


def test_a_single_user_leaves_nobody_to_learn_from() -> None:
    table = from_raw(np.zeros(6, np.int64), np.arange(6), name="mine")
    config = make_config({"method": "fedmf", "protocol": "honest,min_interactions=3,ks=1,select_metric=ndcg@1"})
    with pytest.raises(FedrecError, match="nobody to learn from: give the interactions of several users"):
        Run(
            plan_run(
                config,
                table,
            )
        )
