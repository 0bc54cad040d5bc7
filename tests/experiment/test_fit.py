"""A model to serve: a run's settings on all interactions, afresh or from an earlier model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedrec
from conftest import Cli
from fedrec.errors import FedrecError
from fedrec.experiment.config import RunConfig, make_config
from fedrec.experiment.driver import Run, execute
from fedrec.experiment.fitting import fit
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.opening import open_model
from fedrec.experiment.run_plan import plan_run
from fedrec.experiment.warm import carry_over
from fedrec.federation.simulator import Simulator
from fedrec.methods.mixing import share_at
from fedrec.serve import Recommender

from . import SMALL


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Twenty users with 14 items, ten with 3."""
    rng = np.random.default_rng(0)
    lines = ["user,item,timestamp"]
    for user in range(30):
        own = rng.permutation(50)[: 14 if user < 20 else 3].tolist()
        lines += [f"u{user},i{item},{time}" for time, item in enumerate(own)]
    path = tmp_path / "logs.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def grow(logs: Path) -> None:
    """A new user, a new item that two users have, and one more interaction."""
    rows = [f"newcomer,i{item},{item}" for item in range(5)] + ["u1,brand-new,99", "u2,brand-new,99"]
    logs.write_text(logs.read_text() + "\n".join(rows) + "\n")


def test_everything_is_trained_on_with_the_chosen_rounds(cli: Cli, tmp_path: Path, logs: Path) -> None:
    assert cli("run", "fedmf", "--data", logs, "--rounds", 6, "--set", "dim=4", "--out", "run", "-q").code == 0
    outcome = cli("fit", "run", "-q")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("fedmf fitted to all 310 interactions of 30 users and 50 items\n")
    model = open_model(tmp_path / "run-fit").run
    chosen = json.loads((tmp_path / "run" / "summary.json").read_text())["best_round"]
    assert model.config.rounds == chosen + 1
    assert model.config.params == {"dim": "4"}
    assert len(model.prepared.split.train) == 310
    recommender = Recommender(tmp_path / "run-fit")
    assert {rec.served for rec in recommender.for_user("u25")} == {"trained"}
    assert "left out of the lists" not in cli("recommend", "run-fit", "--user", "u25").err
    assert not RunFolder(tmp_path / "run-fit").last.exists()


@pytest.mark.parametrize("method", ["fedblend", "blend"])
def test_what_was_chosen_with_the_round_is_fitted_too(cli: Cli, tmp_path: Path, logs: Path, method: str) -> None:
    """The share of two models goes from value to value; that of the chosen round is said, and serves."""
    small = ("--set", "dim=4", "--set", "length=8", "--set", "blocks=1")
    ran = cli("run", method, "--data", logs, "--rounds", 7, *small, "--out", "run")
    assert ran.code == 0, ran.err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    share = summary["decided"]["gram_share"]
    assert f"chosen, and gram_share={share:g} with it" in " ".join(ran.out.split())
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert logged[summary["best_round"]]["inside"]["gram_share"] == share
    assert share != share_at(summary["best_round"], summary["best_round"] + 1, None), "the run's own, not a new turn"
    assert cli("fit", "run", "-q").code == 0
    fitted = open_model(tmp_path / "run-fit").run
    assert fitted.method.gram_share == share
    assert cli("fit", "--from", "run-fit", "--out", "more", "-q").code == 0
    assert open_model(tmp_path / "more").run.method.gram_share == share


def test_a_fitted_model_is_that_of_a_run_on_the_same_rows(tmp_path: Path, logs: Path) -> None:
    """Trained by the same loop: the tables are those of a simulator that gets all rows."""
    fedrec.run("fedmf", str(logs), out=tmp_path / "run", rounds=2, dim=4)
    fitted = fit(tmp_path / "run", tmp_path / "fit", rounds=3).run
    plain = Run(
        plan_run(
            make_config(
                {
                    "method": "fedmf",
                    "data": str(logs),
                    "params": {"dim": 4},
                    "rounds": 3,
                    "protocol": "honest,split=none,min_interactions=1",
                }
            )
        )
    )
    for number in range(3):
        plain.simulator.round(number)
    assert torch.equal(fitted.simulator.server["item"], plain.simulator.server["item"])


def test_figures_of_a_fitted_model_are_refused(cli: Cli, tmp_path: Path, logs: Path) -> None:
    fedrec.run("fedmf", str(logs), out=tmp_path / "run", rounds=1, dim=4)
    fit(tmp_path / "run", tmp_path / "fit")
    for words in (("compare", "fit"), ("report", "fit")):
        outcome = cli(*words)
        assert outcome.code == 2
        assert "nothing was held out, so there are no figures; name the run that it was made from" in outcome.err
    for words in (("run", "fedmf", "--out", "x"), ("audit", "leak")):
        outcome = cli(*words, "--data", logs, "--protocol", "honest,split=none")
        assert outcome.code == 2
        assert "holds nothing out, so nothing could be tested; train a model to serve with fedrec fit" in outcome.err
    with pytest.raises(FedrecError, match="nothing could be tested"):
        fedrec.run("fedmf", str(logs), protocol="honest,split=none", rounds=1)


@pytest.mark.parametrize("method", ["fedmf", "pfedrec", "mf", "gpfedrec", "local"])
def test_a_warm_start_keeps_what_was_learned(tmp_path: Path, logs: Path, method: str) -> None:
    fedrec.run(method, str(logs), out=tmp_path / "run", rounds=3, dim=4, protocol="honest,min_interactions=3")
    grow(logs)
    old = open_model(tmp_path / "run").run
    new = Run(
        plan_run(
            make_config(
                {
                    "method": method,
                    "data": str(logs),
                    "params": {"dim": 4},
                    "rounds": 4,
                    "protocol": "honest,split=none,min_interactions=1",
                }
            )
        )
    )
    carried = carry_over(old, new)
    assert (carried.users, carried.items) == (30, 50)
    assert new.prepared.n_items == 51
    scores = {
        run: {
            str(run.prepared.source.user_ids[user]): row
            for users, rows in run.simulator.scores(3)
            for user, row in zip(users.tolist(), rows, strict=True)
        }
        for run in (old, new)
    }
    places = [new.prepared.source.item_ids.tolist().index(item) for item in old.prepared.source.item_ids]
    for user, row in scores[old].items():
        assert torch.allclose(scores[new][user][places], row, atol=1e-6), user


@pytest.mark.parametrize("method", ["fedmf", "ease", "sasrec"])
def test_a_model_goes_on_when_more_rows_arrive(cli: Cli, tmp_path: Path, logs: Path, method: str) -> None:
    params = {} if method == "ease" else {"rounds": 2, "dim": 4}
    fedrec.run(method, str(logs), out=tmp_path / "run", **params)
    grow(logs)
    before = cli("recommend", "run", "--user", "u3").out
    outcome = cli("fit", "--from", "run", "-q", "--out", "next")
    assert outcome.code == 0, outcome.err
    assert "all 317 interactions of 31 users and 51 items" in outcome.out
    assert ("continued from 20 users and 50 items; new users: 11, new items: 1" in outcome.out) == (method != "ease")
    assert cli("recommend", "run", "--user", "u3").out == before
    recommender = Recommender(tmp_path / "next")
    assert {rec.item for rec in recommender.for_user("u3", 37)} >= {"brand-new"}
    assert len(recommender.for_user("newcomer", 5)) == 5
    again = cli("fit", "--from", "next", "-q", "--rounds", 2, "--out", "third")
    assert again.code == 0, again.err


def test_a_moved_file_is_found_by_its_content(cli: Cli, tmp_path: Path, logs: Path) -> None:
    fedrec.run("fedmf", str(logs), out=tmp_path / "run", rounds=1, dim=4)
    (tmp_path / "decoy.csv").write_text(logs.read_text().replace("i1,", "i2,", 1))
    logs.rename(tmp_path / "renamed.csv")
    assert cli("fit", "run", "-q", "--out", "fit").code == 0
    assert open_model(tmp_path / "fit").run.config.data == str(tmp_path / "renamed.csv")
    (tmp_path / "renamed.csv").unlink()
    outcome = cli("fit", "run", "-q", "--out", "gone")
    assert (outcome.code, (tmp_path / "gone").exists()) == (2, False)
    assert "give its place with --data FILE" in outcome.err
    assert cli("fit", "run", "-q", "--out", "other", "--data", "decoy.csv").code == 0


def test_a_split_of_ones_own_is_put_together_again(cli: Cli, tmp_path: Path, logs: Path) -> None:
    assert cli("data", "split", logs, "--out", "parts").code == 0
    parts = [word for name in ("train", "valid", "test") for word in (f"--{name}", f"parts/{name}.csv")]
    assert cli("run", "fedmf", *parts, "--rounds", 1, "--set", "dim=4", "--out", "run", "-q").code == 0
    outcome = cli("fit", "run", "-q", "--out", "fit")
    assert "fitted to all 280 interactions of 20 users" in outcome.out


def test_noise_is_that_of_the_run_and_is_said(cli: Cli, tmp_path: Path) -> None:
    assert (
        cli(
            "run",
            "fedmf",
            "--data",
            SMALL,
            "--rounds",
            2,
            "--set",
            "dim=4",
            "--privacy",
            "clip=1",
            "--epsilon",
            8,
            "--delta",
            1e-5,
            "--out",
            "run",
            "-q",
        ).code
        == 0
    )
    refused = cli("fit", "run", "-q", "--out", "fit")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "the budget of epsilon 8 is gone: run and its fits have spent 8 on the same users" in refused.err
    assert not (tmp_path / "fit").exists()
    allowed = refused.err.split("--epsilon ")[1].split()[0]
    outcome = cli("fit", "run", "-q", "--out", "fit", "--epsilon", allowed)
    assert "privacy: epsilon 8" in outcome.out
    again = cli("fit", "fit", "-q", "--out", "more", "--epsilon", allowed)
    sibling = cli("fit", "run", "-q", "--out", "sibling", "--epsilon", allowed)
    assert (again.code, sibling.code) == (2, 2), "each sees what the others have spent"
    assert len((tmp_path / "run" / "spent.jsonl").read_text().splitlines()) == 2
    told = [json.loads((tmp_path / name).read_text())["privacy"] for name in ("run/summary.json", "fit/fit.json")]
    assert told[0]["epsilon"] == told[1]["epsilon"]
    assert told[0]["stages"] == told[1]["stages"]


def test_what_cannot_go_on_is_refused_by_name(tmp_path: Path) -> None:
    wide = "synthetic@users=60+items=300+interactions=1200+seed=1"
    execute(
        RunConfig("ifedrec", data=wide, protocol="ifedrec,ks=3,select_metric=ndcg@3", rounds=2, params={"dim": 4}),
        tmp_path / "cold",
    )
    with pytest.raises(FedrecError, match="ifedrec learns from attributes"):
        fit(tmp_path / "cold", tmp_path / "x", warm=True)
    execute(
        RunConfig("fedmf", data=SMALL, rounds=2, params={"dim": 4}, privacy="clip=1", epsilon=8.0, delta=1e-5),
        tmp_path / "private",
    )
    with pytest.raises(FedrecError, match="the epsilon of fedmf holds for its own rounds"):
        fit(tmp_path / "private", tmp_path / "x", warm=True)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("words", [(), ("run", "--from", "run")])
def test_whose_settings_must_be_said(cli: Cli, words: tuple[str, ...]) -> None:
    outcome = cli("fit", *words)
    assert outcome.code == 2
    assert "give the run whose settings" in outcome.err


@pytest.mark.parametrize("stop", [0, 1, 3])
@pytest.mark.parametrize("warm", [False, True])
def test_an_interrupted_fit_goes_on_as_told(
    warm: bool, stop: int, cli: Cli, tmp_path: Path, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is, byte for byte, that of a fit which nobody stopped."""
    fedrec.run("fedmf", str(logs), out=tmp_path / "run", rounds=2, dim=4)
    words = ("fit", *(("--from", "run") if warm else ("run",)), "-q", "--rounds", 5)
    assert cli(*words, "--out", "whole").code == 0
    rounds, done = Simulator.begin, list[int]()

    def stopped(self: Simulator, number: int, *rest: Any) -> Any:
        if len(done) == stop:
            raise KeyboardInterrupt
        done.append(number)
        return rounds(self, number, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(Simulator, "begin", stopped)
        outcome = cli(*words)
    assert outcome.code == 130
    assert outcome.err.endswith(f"to continue: fedrec {' '.join(map(str, words))} --resume --out run-fit\n")
    refused = cli("recommend", "run-fit", "--user", "u1")
    assert (refused.code, "continue it with fedrec fit RUN --resume --out run-fit" in refused.err) == (2, True)
    again = cli(*words, "--resume")
    assert again.code == 0, again.err
    for name in ("checkpoint.safetensors", "metrics.jsonl", "items.csv", "users.csv"):
        here, there = ((tmp_path / folder / name).read_bytes() for folder in ("run-fit", "whole"))
        assert name == "metrics.jsonl" or here == there, name
    logged = [json.loads(line)["round"] for line in (tmp_path / "run-fit" / "metrics.jsonl").read_text().splitlines()]
    assert logged == list(range(logged[0], logged[0] + 5))
    assert "is fitted already" in cli(*words, "--resume").err


def test_a_fit_goes_on_only_as_it_was_begun(
    cli: Cli, tmp_path: Path, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fedrec.run("fedmf", str(logs), out=tmp_path / "run", rounds=2, dim=4)

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Simulator, "begin", stopped)
        cli("fit", "run", "-q", "--rounds", 5)
    outcome = cli("fit", "run", "-q", "--rounds", 6, "--resume")
    assert (outcome.code, "started with 5 rounds in all and would now have 6" in outcome.err) == (2, True)
