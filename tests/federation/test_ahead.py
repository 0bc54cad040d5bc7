"""Rounds that are begun before the figures of earlier ones are read, as on a GPU: what is found then is the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedrec
from federation.accelerator import read_later
from fedrec.errors import DivergedError, FedrecError
from fedrec.experiment import driver as runs
from fedrec.experiment.config import RunConfig
from fedrec.experiment.driver import Listener
from fedrec.federation.contract import MethodInfo
from fedrec.federation.loop import AHEAD, Pause, Progress, Rules, Score, run_rounds
from fedrec.federation.simulator import RoundLog, RunningRound, Simulator
from fedrec.methods.average.fedmf import FedMF
from fedrec.methods.mixture.fedca import FedCA
from fedrec.testing import tiny_world

WORLD = "synthetic@users=50+items=200"


@dataclass
class Line:
    """What happens, in order. `broken`: the round whose figures are not finite; nobody knows before they are read."""

    broken: int = 99
    fails: int = 99  # the round that cannot even be begun
    told: list[tuple[str, int]] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)

    def begin(self, number: int, before_answer: object = None, will_be_read: bool = False) -> OnTheWay:
        if number == self.fails:
            raise FedrecError("an accident")
        self.told.append(("begun", number))
        return OnTheWay(self, number)

    def evaluate(self, number: int) -> Score:
        self.told.append(("scored", number))
        return Score(float(number), {}, 0.0)

    def play(self, rules: Rules, pause: Pause | None = None) -> Progress:
        run_rounds(
            self,
            self.progress,
            rules,
            self.evaluate,  # type: ignore[arg-type]
            lambda: self.told.append(("best", self.progress.best_round)),
            lambda log, score: self.told.append(("heard", log.round)),
            pause=pause,
        )
        return self.progress

    def of(self, kind: str) -> list[int]:
        return [number for what, number in self.told if what == kind]


@dataclass
class OnTheWay:
    line: Line
    number: int
    is_readable: bool = False

    def log(self) -> RoundLog:
        self.line.told.append(("read", self.number))
        if self.number >= self.line.broken:
            raise DivergedError(f"broken in round {self.number + 1}", "")
        return RoundLog(self.number, 1, 0.5, 0, 0)


def test_some_rounds_are_begun_before_the_first_is_read():
    line = Line()
    progress = line.play(Rules(20, eval_every=10))
    begun = [
        sum(what == "begun" for what, _ in line.told[:at]) - number
        for at, (what, number) in enumerate(line.told)
        if what == "read"
    ]
    assert max(begun) == AHEAD + 1
    assert line.of("begun") == line.of("read") == line.of("heard") == list(range(20))
    assert progress.seconds_train == pytest.approx(10.0)


def test_what_is_scored_was_read_and_nothing_came_after_it():
    line = Line()
    line.play(Rules(20, eval_every=4))
    for number in line.of("scored"):
        before = line.told[: line.told.index(("scored", number))]
        assert [n for what, n in before if what == "begun"] == list(range(number + 1))
        assert [n for what, n in before if what == "read"] == list(range(number + 1))


@pytest.mark.parametrize("broken", range(4, 9))
def test_a_broken_round_ends_the_run_and_is_never_the_best(broken):
    line = Line(broken=broken)
    progress = line.play(Rules(20, eval_every=4))
    assert progress.diverged.startswith(f"broken in round {broken + 1}")
    assert progress.next_round == broken
    assert line.of("heard") == list(range(broken))
    assert progress.best_round == max(n for n in range(3, broken, 4))
    assert progress.best_round in line.of("best")


def test_before_any_round_was_chosen_it_is_an_error():
    with pytest.raises(DivergedError, match="round 3"):
        Line(broken=2).play(Rules(20, eval_every=4))


def test_a_round_that_fails_because_an_earlier_one_was_broken_says_so():
    with pytest.raises(DivergedError, match="round 5"):
        Line(broken=4, fails=5).play(Rules(20, eval_every=20))
    line = Line(fails=5)
    with pytest.raises(FedrecError, match="an accident"):
        line.play(Rules(20, eval_every=20))
    assert line.of("heard") == list(range(5))


def test_a_pause_finds_simulator_and_progress_agreed():
    class Often(Pause):
        def is_due(self) -> bool:
            return len(line.of("begun")) % 5 == 0

        def __call__(self) -> None:
            paused.append(line.progress.next_round)
            assert line.of("begun") == line.of("heard")

    line, paused = Line(), []
    line.play(Rules(12, eval_every=100), Often())
    assert paused == [5, 10, 12]


def test_a_rule_that_looks_at_every_round_sees_it_at_once():
    line = Line()
    progress = line.play(Rules(12, eval_every=100, settled=lambda round, before, now: round == 3))
    assert progress.next_round == 4
    assert line.of("begun") == [0, 1, 2, 3]


# -- the same of real runs --


@pytest.fixture
def _ahead(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As where the device is asked for rounds ahead."""
    begun: list[int] = []
    begin = Simulator.begin

    def counted(self: Simulator, *arguments: Any) -> RunningRound:
        begun.append(arguments[0])
        return begin(self, *arguments)

    monkeypatch.setattr(Simulator, "begin", counted)
    read_later(monkeypatch)
    yield
    assert begun


def plain(**more: Any) -> fedrec.Result:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Simulator, "reads_later", property(lambda self: False))
        patched.setattr(RunningRound, "is_readable", property(lambda self: True))
        return fedrec.run("fedrkg", WORLD, rounds=9, dim=4, interval=3, eval_every=4, **more)


@pytest.mark.usefixtures("_ahead")
def test_a_run_is_the_same():
    ahead = fedrec.run("fedrkg", WORLD, rounds=9, dim=4, interval=3, eval_every=4)
    usual = plain()
    assert ahead.test == usual.test
    without = [
        [{k: v for k, v in record.items() if k != "seconds"} for record in result.records] for result in (ahead, usual)
    ]
    assert without[0] == without[1]
    assert len(without[0]) == 9


class Stop(Listener):
    def __init__(self, at: int) -> None:
        self.at = at

    def round(self, log: RoundLog, score: Score | None, progress: Progress) -> None:
        if log.round == self.at:
            raise KeyboardInterrupt


@pytest.mark.usefixtures("_ahead")
@pytest.mark.parametrize("at", [1, 3, 5])
def test_resumed_it_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int):
    monkeypatch.setattr(runs, "FIRST_CHECKPOINT", 0.0)
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(runs, "CHECKPOINT_SHARE", float("inf"))
    config = RunConfig("fedrkg", data=WORLD, rounds=9, eval_every=4, params={"dim": 4, "interval": 3})
    with pytest.raises(KeyboardInterrupt):
        runs.execute(config, tmp_path / "run", listener=Stop(at))
    resumed = runs.execute(config, tmp_path / "run", resume=True)
    assert resumed.test == plain().test
    assert [record["round"] for record in resumed.records] == list(range(9))


@pytest.mark.usefixtures("_ahead")
@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_run_that_diverges_ends_with_the_round_that_was_chosen_before(every):
    settings = {"optimiser": "sgd", "backbone": "mf", "dim": 4}
    cut = fedrec.run(Exploding(**settings), WORLD, rounds=8, eval_every=every)
    assert "in round 4: training diverged" in cut.summary["diverged"]
    assert cut.summary["rounds_run"] == 3
    assert cut.test == fedrec.run(Exploding(**settings), WORLD, rounds=every * (3 // every), eval_every=every).test


@pytest.mark.usefixtures("_ahead")
def test_what_broke_first_is_told():
    with pytest.raises(DivergedError, match="in round 4: training diverged"):
        fedrec.run(Exploding(optimiser="sgd"), WORLD, rounds=8, eval_every=8)
    data = tiny_world()
    simulator = Simulator(FedCA(lr=1e30), replace(data, world=replace(data.world, dtype=torch.float32)))
    with pytest.raises(DivergedError, match="in round 1: "):
        simulator.round(0)


@dataclass(frozen=True)
class Exploding(FedMF):
    """Takes a step that is too large in its fourth round."""

    info = MethodInfo("exploding")

    def local(self, state, down, chunk, round):  # type: ignore[no-untyped-def]
        return FedMF.local(replace(self, lr=1e30) if round == 3 else self, state, down, chunk, round)


def test_nothing_is_begun_ahead_on_the_processor():
    assert Simulator(FedMF(dim=4), tiny_world()).begin(0).is_readable
