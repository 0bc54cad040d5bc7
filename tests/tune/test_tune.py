"""`fedrec tune`: what is searched, that no test item is ranked, budgets, and going on after an interrupt."""

from __future__ import annotations

import json
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import pytest

from fedrec.errors import FedrecError
from fedrec.evaluation import Evaluation
from fedrec.experiment.config import make_config
from fedrec.experiment.driver import Listener, Run
from fedrec.experiment.params import build_method
from fedrec.experiment.search_space import Between, Choices, space_of, starting_point
from fedrec.experiment.tuning import Budget, Study, Trial, _join_beginnings, best_of, propose, search
from fedrec.federation.contract import MethodInfo
from fedrec.federation.ranges import Interval
from fedrec.methods import methods
from fedrec.training.local_training import LocalMethod

TINY = "synthetic@users=50+items=200"
QUICK = ("tune", "fedmf", "--data", TINY, "--rounds", "3", "--set", "dim=4", "--out", "study")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def trials_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]


# -- what is searched --


@dataclass(frozen=True)
class Mixed(LocalMethod):
    """As in CONTRIBUTING.md: a method that declares nothing for the search."""

    info: ClassVar[MethodInfo] = MethodInfo("mixed", backbones={"mf": {}})
    mix: Annotated[float, Interval("[0, 1]")] = 0.5
    keep: Annotated[float, Interval("[0, 1)")] = 0.5
    size: float = 2.0
    off: float = 0.0
    noise: float = 0.1  # protects: not for a search to lower


def test_a_method_that_declares_nothing_is_searched_by_its_ranges() -> None:
    assert {name: str(values) for name, values in space_of(Mixed()).items()} == {
        "lr": "1..100",
        "dim": "16,32,64",
        "mix": "0..1",
        "keep": "0..0.75",
        "size": "0.2..20",
    }


@pytest.mark.parametrize("name", [name for name in methods() if name != "popularity"])
def test_every_method_has_a_space_that_its_parameters_take(name: str) -> None:
    space = space_of(build_method(name))
    assert space
    for values in space.values():
        assert isinstance(values, Choices) or values.low < values.high


def test_what_has_no_use_with_a_backbone_is_not_searched() -> None:
    plain, sequential = (set(space_of(build_method("fedopt", backbone=name))) for name in ("mf", "sasrec"))
    of_sequences = {"blocks", "heads", "personal_lr"}
    assert of_sequences <= sequential
    assert not of_sequences & plain
    assert "server_lr" in plain


def test_a_wide_range_is_searched_by_its_logarithm_and_a_whole_one_in_whole_numbers() -> None:
    space = space_of(build_method("fedmf"), ["lr=0.001..0.1", "dim=4..8", "init=normal,uniform"])
    lr, dim = space["lr"], space["dim"]
    assert isinstance(lr, Between)
    assert isinstance(dim, Between)
    assert lr.log
    assert (dim.log, dim.whole) == (False, True)
    assert space["init"] == Choices(("normal", "uniform"))


def test_what_is_set_is_not_searched_and_what_the_method_has_is_tried_first() -> None:
    method = build_method("fedmf", params={"dim": 4})
    space = space_of(method, fixed=["dim"])
    assert list(space) == ["lr"]
    assert starting_point(method, space) == {"lr": 10.0}
    assert starting_point(method, space_of(method, ["lr=20..90"], ["dim"])) == {}, "outside what is searched"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("lr", "--space lr: write key=value"),
        ("rate=1..2", "unknown parameter of fedmf 'rate'"),
        ("lr=2..1", "the lower end comes first, as in lr=1..2"),
        ("lr=1..1", "--space lr=1..1 is a single value; set it with --set lr=1\n"),
        ("lr=a..b", "lr=a does not fit fedmf"),
        ("lr=-1..1", "must be at least 0"),
        ("init=normal..uniform", "a range needs numbers"),
    ],
)
def test_a_space_that_cannot_be_is_one_line(cli: Any, given: str, said: str) -> None:
    outcome = cli("tune", "fedmf", "--data", TINY, "--space", given)
    assert outcome.code == 2
    assert said in outcome.err
    assert outcome.err.count("\n") == 1


def test_nothing_to_search_is_one_line(cli: Any) -> None:
    outcome = cli("tune", "popularity", "--data", TINY)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "has no search space" in outcome.err


def test_set_and_searched_at_once_is_refused(cli: Any) -> None:
    outcome = cli("tune", "fedmf", "--data", TINY, "--set", "lr=1", "--space", "lr=1..2")
    assert outcome.code == 2
    assert "keep one" in outcome.err


# -- trials --


def test_no_test_item_is_ranked(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = []
    usual = Run.evaluate

    def watched(self: Run, part: Any, *rest: Any) -> Evaluation:
        parts.append(part)
        return usual(self, part, *rest)

    monkeypatch.setattr(Run, "evaluate", watched)
    assert cli(*QUICK, "--trials", "2").code == 0
    assert parts == ["valid"] * 6


def test_the_result_is_a_config_that_run_takes(cli: Any, tmp_path: Path) -> None:
    outcome = cli(*QUICK, "--trials", "4")
    assert outcome.code == 0
    assert "fedrec run --config study/best.toml" in outcome.out
    trials = trials_of(tmp_path / "study")
    best = max(trials, key=lambda trial: trial["value"])
    assert tomllib.loads((tmp_path / "study" / "best.toml").read_text())["params"] == {"dim": "4", **best["params"]}
    assert cli("run", "--config", "study/best.toml", "--out", "run").code == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["valid"]["ndcg@10"] == pytest.approx(best["value"], abs=1e-9)
    assert summary["best_round"] == best["best_round"]


def test_the_first_trial_is_what_the_method_has_by_itself(cli: Any, tmp_path: Path) -> None:
    cli(*QUICK, "--trials", "1")
    assert trials_of(tmp_path / "study")[0]["params"] == {"lr": 10.0}


def test_interrupted_and_repeated_it_goes_on_as_if_it_had_not_been(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli(*QUICK[:-1], "whole", "--trials", "6").code == 0
    begun = 0
    usual = Run.choose

    def stopped(self: Run, listener: Listener | None = None) -> Any:
        nonlocal begun
        begun += 1
        if begun == 3:
            raise KeyboardInterrupt
        return usual(self, listener)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "choose", stopped)
        outcome = cli(*QUICK, "--trials", "6")
    assert outcome.code == 130
    assert "the same command continues" in outcome.err
    assert len(trials_of(tmp_path / "study")) == 2
    assert cli(*QUICK, "--trials", "6").code == 0

    def without_time(folder: str) -> list[dict[str, Any]]:
        return [{k: v for k, v in trial.items() if k != "seconds"} for trial in trials_of(tmp_path / folder)]

    assert without_time("study") == without_time("whole")


def test_a_kill_in_the_middle_of_a_line_costs_that_trial_alone(cli: Any, tmp_path: Path) -> None:
    cli(*QUICK, "--trials", "3")
    log = tmp_path / "study" / "trials.jsonl"
    whole = log.read_text()
    log.write_text(whole[:-20])
    assert cli(*QUICK, "--trials", "3").code == 0
    assert [trial["params"] for trial in trials_of(tmp_path / "study")] == [
        json.loads(line)["params"] for line in whole.splitlines()
    ]


def test_a_damaged_line_among_trials_loses_none_of_them(cli: Any, tmp_path: Path) -> None:
    assert cli(*QUICK, "--trials", "3").code == 0
    log = tmp_path / "study" / "trials.jsonl"
    first, _, third = log.read_text().splitlines()
    log.write_text(f"{first}\nnonsense\n{third}\n")
    outcome = cli(*QUICK, "--trials", "4")
    assert outcome.code == 2
    assert "line 2 of" in outcome.err
    assert log.read_text() == f"{first}\nnonsense\n{third}\n"


def test_more_trials_go_on_and_a_spent_budget_runs_nothing(cli: Any, tmp_path: Path) -> None:
    cli(*QUICK, "--trials", "2")
    cli(*QUICK, "--trials", "3")
    assert len(trials_of(tmp_path / "study")) == 3
    outcome = cli(*QUICK, "--trials", "3")
    assert outcome.code == 0
    assert "trial " not in outcome.err
    assert "best of 3 trials" in outcome.out


def test_other_settings_are_refused_in_a_folder_that_has_trials(cli: Any) -> None:
    cli(*QUICK, "--trials", "1")
    more_rounds = ["7" if word == "3" else word for word in QUICK]
    others = [[*QUICK, *other] for other in (("--seed", "1"), ("--space", "lr=1..2"), ("--patience", "3"))]
    for words in [*others, more_rounds]:
        outcome = cli(*words, "--trials", "2")
        assert outcome.code == 2
        assert "use another --out" in outcome.err


def test_minutes_are_those_of_all_trials() -> None:
    done = [Trial(0, {}, 0.1, seconds=40.0), Trial(1, {}, 0.2, seconds=30.0)]
    assert Budget(12, minutes=1).over(done)
    assert not Budget(12, minutes=2).over(done)
    assert not Budget(3).over(done)
    assert Budget(2).over(done)


def test_a_trial_that_diverges_has_no_value_and_the_search_goes_on(cli: Any, tmp_path: Path) -> None:
    outcome = cli(
        "tune",
        "fedmf",
        "--data",
        TINY,
        "--rounds",
        "3",
        "--set",
        "dim=4",
        "--space",
        "lr=10,1e200",
        "--trials",
        "2",
        "--out",
        "study",
    )
    assert outcome.code == 0
    lost = trials_of(tmp_path / "study")[1]
    assert lost["value"] is None
    assert "diverged" in lost["note"]
    assert "lr=10.0" in outcome.out


def test_a_space_of_few_values_ends_when_all_were_tried(cli: Any, tmp_path: Path) -> None:
    assert cli(*QUICK, "--space", "lr=5,10", "--trials", "9").code == 0
    assert sorted(trial["params"]["lr"] for trial in trials_of(tmp_path / "study")) == [5.0, 10.0]


def test_trials_learn_from_those_before() -> None:
    """With values that rise towards 0.1, what is proposed later lies nearer to it than what is drawn at random."""
    optuna = pytest.importorskip("optuna")
    space, done = {"lr": Between(1e-4, 10.0, whole=False)}, list[Trial]()
    for number in range(30):
        params = propose(optuna, space, {}, done, seed=0)
        assert params is not None
        done.append(Trial(number, params, 1 / (1 + abs(params["lr"] - 0.1))))
    near = [abs(trial.params["lr"] - 0.1) for trial in done]
    assert sum(near[20:]) < sum(near[:10])


def test_trials_of_an_earlier_search_teach_what_they_have_in_common() -> None:
    """The others' parameters, and values that are not searched any more, are left out."""
    optuna = pytest.importorskip("optuna")
    space = {"lr": Between(1.0, 2.0, whole=False), "mix": Choices((0.0, 0.5))}
    done = [Trial(n, {"lr": 1.0 + n / 12, "size": 3, "mix": 0.7}, value=1 - n / 12) for n in range(12)]
    values = [propose(optuna, space, {}, done, seed) for seed in range(20)]
    assert all(value is not None and set(value) == {"lr", "mix"} for value in values)
    assert np.mean([value["lr"] for value in values if value is not None]) < 1.35, "near the best of them"


def test_two_beginnings_of_a_study_must_be_of_one(tmp_path: Path) -> None:
    trials = [Trial(0, {"lr": 1.0}, 0.1), Trial(1, {"lr": 2.0}, 0.2)]
    assert _join_beginnings(trials[:1], trials, tmp_path) == _join_beginnings(trials, trials[:1], tmp_path) == trials
    with pytest.raises(FedrecError, match="has other trials than those kept elsewhere"):
        _join_beginnings([Trial(0, {"lr": 9.0}, 0.1)], trials, tmp_path)


def test_the_best_is_the_first_among_equals() -> None:
    assert best_of([Trial(0, {}, None), Trial(1, {}, 0.2), Trial(2, {}, 0.2)]) == Trial(1, {}, 0.2)
    assert best_of([Trial(0, {}, None)]) is None


# -- refused before any work --


def test_a_protocol_that_chooses_by_the_test_items_is_refused(cli: Any) -> None:
    outcome = cli("tune", "fedmf", "--data", TINY, "--protocol", "honest,select_on=test")
    assert (outcome.code, outcome.err.count("\n")) == (2, 2), "what is searched, then the error"
    assert "chooses rounds by the test items" in outcome.err


def test_without_optuna_one_line_says_what_to_install(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    outcome = cli(*QUICK, "--quiet")
    assert (outcome.code, outcome.err) == (2, 'error: fedrec tune needs optuna: pip install "fedrec[tune]"\n')


def test_a_folder_of_something_else_is_left_alone(cli: Any, tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "mine.txt").write_text("mine")
    outcome = cli(*QUICK)
    assert outcome.code == 2
    assert "choose another --out" in outcome.err
    assert [file.name for file in (tmp_path / "study").iterdir()] == ["mine.txt"]


def test_a_first_trial_that_cannot_be_built_is_an_error_not_a_trial(tmp_path: Path) -> None:
    config = make_config({"method": "fedmf", "data": "nosuch"})
    study = Study(tmp_path / "study", config, {"lr": Choices((1.0, 2.0))})
    with pytest.raises(FedrecError, match="nosuch"):
        search(study, build_method("fedmf"), Budget(2), lambda trial, best: None, lambda number: Listener())
