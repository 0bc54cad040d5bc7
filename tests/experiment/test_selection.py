"""Which round is reported: the first best by validation, patience in evaluated rounds, one look at the test."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.data import leave_one_out, load, write
from fedrec.evaluation import Evaluation
from fedrec.experiment.config import RunConfig
from fedrec.experiment.driver import Part, Run, execute
from fedrec.federation.loop import Progress, Rules, Score, run_rounds
from fedrec.federation.simulator import RoundLog

from . import SMALL

PLAIN = RunConfig("fedmf", data=SMALL, rounds=6, params={"dim": 8})
EARLY_BEST = replace(PLAIN, params={"dim": 8, "lr": 0.04, "optimiser": "adam"})


@dataclass
class Played:
    """A round of it."""

    number: int
    is_readable: bool = True

    def log(self) -> RoundLog:
        return RoundLog(self.number, 1, 0.0, 0, 0)


class Script:
    """A simulator that does nothing, and the validation values that its rounds are said to have."""

    def __init__(self, values: list[float]) -> None:
        self.values = values
        self.kept: list[int] = []
        self.progress = Progress()
        self.evaluated: list[int] = []

    def begin(self, number: int, before_answer: object = None, will_be_read: bool = False) -> Played:
        return Played(number)

    def evaluate(self, number: int) -> Score:
        self.evaluated.append(number)
        return Score(self.values[number], {"ndcg@10": self.values[number]}, 0.0)

    def play(self, rules: Rules) -> Progress:
        run_rounds(
            self,
            self.progress,
            rules,
            self.evaluate,
            lambda: self.kept.append(self.progress.best_round),
            lambda log, score: None,
        )  # type: ignore[arg-type]
        return self.progress


def chosen_by_hand(values: list[float], rules: Rules) -> tuple[int, int, bool]:
    """(best round, rounds run, stopped early), spelled out."""
    best, stale = -1, 0
    for number in range(rules.rounds):
        if (number + 1) % rules.eval_every and number + 1 != rules.rounds:
            continue
        earlier = values[best] if best >= 0 else float("-inf")
        if values[number] > earlier or (rules.last_among_equals and values[number] == earlier):
            best, stale = number, 0
        else:
            stale += 1
            if rules.patience is not None and stale == rules.patience:
                return best, number + 1, True
    return best, rules.rounds, False


@settings(max_examples=300)
@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.3]), min_size=1, max_size=25),
    st.integers(1, 6),
    st.none() | st.integers(1, 5),
    st.booleans(),
)
def test_selection_by_hand(values: list[float], every: int, patience: int | None, last: bool) -> None:
    rules = Rules(len(values), every, patience, last)
    script = Script(values)
    progress = script.play(rules)
    assert (progress.best_round, progress.next_round, progress.stopped_early) == chosen_by_hand(values, rules)
    assert script.kept[-1] == progress.best_round
    assert progress.best_value == values[progress.best_round]
    assert script.evaluated == [n for n in range(progress.next_round) if rules.is_due(n)]


def test_first_best_and_last_best() -> None:
    values = [0.1, 0.3, 0.2, 0.3, 0.1]
    assert Script(values).play(Rules(5)).best_round == 1
    assert Script(values).play(Rules(5, last_among_equals=True)).best_round == 3


def test_patience_counts_evaluations_and_not_rounds() -> None:
    progress = Script([0.5] + [0.1] * 29).play(Rules(30, eval_every=5, patience=2))
    assert progress.next_round == 15  # evaluated after 5, 10, 15; the first is the best
    assert progress.stopped_early


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What was evaluated, and at which round."""
    seen: list[tuple[str, int]] = []
    original = Run.evaluate

    def watched(self: Run, part: Part, round: int, *more: Any, **others: Any) -> Evaluation:
        seen.append((part, round))
        return original(self, part, round, *more, **others)

    monkeypatch.setattr(Run, "evaluate", watched)
    return seen


def test_the_test_part_is_looked_at_once(looks: list[tuple[str, int]], tmp_path: Path) -> None:
    result = execute(EARLY_BEST, tmp_path / "run")
    best = result.summary["best_round"]
    assert best < 5
    assert [look for look in looks if look[0] == "test"] == [("test", best)]
    assert looks[:6] == [("valid", number) for number in range(6)]
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    values = [line["valid"]["ndcg@10"] for line in logged]
    assert best == values.index(max(values))
    assert result.valid["ndcg@10"] == values[best]
    assert not any("test" in line for line in logged)


def test_what_is_tested_is_the_chosen_round(tmp_path: Path) -> None:
    """The same as a run that ends there."""
    whole = execute(EARLY_BEST, tmp_path / "whole")
    short = execute(replace(EARLY_BEST, rounds=whole.summary["best_round"] + 1), tmp_path / "short")
    assert short.test == whole.test
    assert short.summary["best_round"] == whole.summary["best_round"]
    assert (tmp_path / "short" / "per_user.csv").read_bytes() == (tmp_path / "whole" / "per_user.csv").read_bytes()


def test_eval_every_and_the_last_round(looks: list[tuple[str, int]]) -> None:
    execute(replace(PLAIN, rounds=8, eval_every=3))
    assert [round for part, round in looks if part == "valid"][:3] == [2, 5, 7]


def test_patience_of_the_protocol_and_of_the_flag() -> None:
    by_protocol = execute(replace(EARLY_BEST, rounds=40, protocol="honest,patience=3")).summary
    by_flag = execute(replace(EARLY_BEST, rounds=40, patience=3)).summary
    flag_wins = execute(replace(EARLY_BEST, rounds=40, patience=2, protocol="honest,patience=9")).summary
    for summary, patience in ((by_protocol, 3), (by_flag, 3), (flag_wins, 2)):
        assert summary["stopped_early"]
        assert summary["rounds_run"] == summary["best_round"] + 1 + patience


def test_select_last_takes_the_last_of_equals() -> None:
    still = replace(PLAIN, params={"dim": 4, "lr": 0.0})  # nothing moves: all rounds are equal
    assert execute(still).summary["best_round"] == 0
    assert execute(replace(still, protocol="honest,select_last=true")).summary["best_round"] == 5


def test_selection_by_another_metric(tmp_path: Path) -> None:
    config = replace(EARLY_BEST, rounds=10, protocol="honest,select_metric=recall@20+recall@5")
    result = execute(config, tmp_path / "run")
    logged = [json.loads(line)["valid"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    values = [line["recall@20"] + line["recall@5"] for line in logged]
    assert result.summary["best_round"] == values.index(max(values))


def test_selection_on_test_is_possible_by_name_only(looks: list[tuple[str, int]]) -> None:
    result = execute(replace(EARLY_BEST, protocol="honest,select_on=test"))
    assert looks[:6] == [("test", number) for number in range(6)]
    assert "chosen by its test value" in result.summary["leaks"][0]


def test_without_a_validation_part_the_last_round_counts(looks: list[tuple[str, int]], tmp_path: Path) -> None:
    write(leave_one_out(load(SMALL)), tmp_path)
    own = replace(EARLY_BEST, train=str(tmp_path / "train.csv"), test=str(tmp_path / "test.csv"))
    result = execute(own, tmp_path / "run")
    assert looks == [("test", 5)]
    assert result.summary["best_round"] == 5
    assert result.valid == {}
    assert "no validation part was given" in result.summary["notes"]
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert not any("valid" in line for line in logged)
