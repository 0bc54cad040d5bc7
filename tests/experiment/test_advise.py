"""Advice on which method to take: what is tried, within what, and what is said of it. Work is counted, not timed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedrec
from fedrec.errors import FedrecError
from fedrec.evaluation import protocol
from fedrec.experiment.advise import Advice, Wishes
from fedrec.experiment.advise.attempts import Attempt
from fedrec.experiment.advise.race import Watch
from fedrec.experiment.advise.revealed import alone_share, judge_upload, percent
from fedrec.experiment.advise.shortlist import candidates, sort_out
from fedrec.experiment.config import make_config
from fedrec.experiment.driver import Listener, StopRun
from fedrec.experiment.params import method_of
from fedrec.experiment.prepare import Prepared, prepare, prepare_config
from fedrec.federation.loop import Progress, Score
from fedrec.federation.simulator import RoundLog

WORLD = "synthetic@users=60+items=50+interactions=900"
RULES = "honest,ks=10"
BASE = make_config({"method": "popularity", "data": WORLD, "protocol": RULES})


def counter() -> Callable[[], float]:
    """A clock that goes on by one whenever somebody looks at it."""
    ticks = itertools.count()
    return lambda: float(next(ticks))


def ask(**how: Any) -> Advice:
    return fedrec.advise(WORLD, **{"minutes": 0.2, "protocol": RULES, "clock": counter(), "progress": False, **how})


@pytest.fixture(scope="module")
def data() -> Prepared:
    return prepare_config(BASE, protocol(RULES), centralised=False)


def test_every_candidate_is_a_method_whose_settings_and_variations_exist() -> None:
    for candidate in candidates():
        method_of(candidate.config(BASE))
        for settings in candidate.neighbours(candidate.set):
            method_of(candidate.config(BASE, settings))
            assert sum(settings[name] != value for name, value in candidate.set.items()) <= 1


def test_what_does_not_fit_is_not_tried_and_says_why(data: Prepared) -> None:
    suitable, reasons = sort_out(BASE, data, Wishes())
    assert "popularity" in [one.label for one in suitable]
    assert any(reason.startswith("fedcia: ") and "--silos" in reason for reason in reasons)
    timeless = prepare(fedrec.Interactions(**_without_times(data)), protocol(RULES))
    labels = [one.label for one in sort_out(BASE, timeless, Wishes())[0]]
    assert "fedgram, with order" not in labels
    assert "fedgram, no order" in labels


def _without_times(data: Prepared) -> dict[str, Any]:
    rows = data.split.train
    return {"user": rows.user, "item": rows.item, "user_ids": rows.user_ids, "item_ids": rows.item_ids, "name": "plain"}


def test_the_best_on_validation_is_chosen_and_its_settings_run(tmp_path: Path) -> None:
    advice = ask(out=tmp_path / "advice", max_upload=60_000)
    within = [line for line in advice.lines if (line.attempt.upload or 0) <= 60_000]
    values = [line.attempt.value for line in within if line.attempt.value is not None]
    assert values == sorted(values, reverse=True)
    assert advice.sentences.startswith(f"Take {within[0].name}: ndcg@10 {values[0]:.4f}")
    assert (tmp_path / "advice" / "advice.html").exists()
    chosen = fedrec.run(advice.method, WORLD, config=advice.settings, protocol=RULES)
    assert chosen.summary["valid"]["ndcg@10"] >= values[0] - 1e-6  # it may go on for more rounds than were tried


def test_the_same_question_again_tries_nothing_and_more_time_goes_on(tmp_path: Path) -> None:
    first = ask(out=tmp_path)
    again = ask(out=tmp_path, clock=_never)
    assert [line.attempt for line in again.lines] == [line.attempt for line in first.lines]
    longer = ask(out=tmp_path, minutes=0.3)
    assert sum(line.attempt.seconds for line in longer.lines) > sum(line.attempt.seconds for line in first.lines)


def _never() -> float:
    raise AssertionError("nothing was to be tried")


def test_an_interrupted_advice_goes_on_after_what_was_tried(tmp_path: Path) -> None:
    ticks = itertools.count()

    def clock() -> float:
        if next(ticks) == 12:
            raise KeyboardInterrupt
        return float(next(ticks))

    with pytest.raises(KeyboardInterrupt):
        ask(out=tmp_path, clock=clock)
    before = (tmp_path / "attempts.jsonl").read_text().splitlines()
    assert before
    ask(out=tmp_path)
    assert (tmp_path / "attempts.jsonl").read_text().splitlines()[: len(before) - 1] == before[:-1]


def test_another_question_is_refused_in_the_same_folder(tmp_path: Path) -> None:
    ask(out=tmp_path)
    with pytest.raises(FedrecError, match="begun with another max_upload"):
        ask(out=tmp_path, max_upload=10_000)


def test_an_upload_that_is_too_large_is_never_proposed() -> None:
    advice = ask(max_upload=5_000)
    assert advice.method == "popularity"
    assert {line.remark for line in advice.lines if (line.attempt.upload or 0) > 5_000} == {"uploads too much"}
    with pytest.raises(FedrecError, match=r"stays within an upload of .*; the smallest is"):
        ask(max_upload=10)


def test_whatever_is_proposed_says_in_the_same_sentence_what_its_sum_gives_away() -> None:
    """A world in which every user has an item of their own: the sum of co-occurrences is all histories."""
    users, own = np.repeat(np.arange(30), 11), 40 + np.arange(30)
    rng = np.random.default_rng(0)
    group = np.array([rng.permutation(20)[:10] + 20 * (user % 2) for user in range(30)])
    frame = {"user": users, "item": np.column_stack([own, group]).reshape(-1)}
    few = 60_000  # bytes: of those who train, nobody stays below
    advice = fedrec.advise(_frame(frame), minutes=0.2, protocol=RULES, clock=counter(), progress=False, max_upload=few)
    assert advice.method == "fedgram"
    share = re.search(r"^Take fedgram[^.]*\.\d+ on .*gives away (\d+) % of all histories exactly", advice.sentences)
    assert share is not None, advice.sentences
    assert int(share[1]) > 50  # of some users the item of their own is held out
    assert "whose sums give no history away" in advice.sentences


def _frame(columns: dict[str, Any]) -> Any:
    import polars

    return polars.DataFrame(columns)


def test_histories_that_stand_in_a_sum_are_counted(data: Prepared) -> None:
    rows = data.split.train
    owners = [set(rows.user[rows.item == item]) for item in range(rows.n_items)]
    alone = {next(iter(users)) for users in owners if len(users) == 1}
    assert alone_share(data) == pytest.approx(len(alone) / data.partition.n_users)


def test_an_attempt_without_a_figure_is_ended_when_it_takes_far_too_long() -> None:
    now = [0.0]
    watch = Watch(Listener(), lambda: now[0], 0.0, {}, work=10.0)
    log, progress = RoundLog(0, 1, 0.0, 0, 0, {}), Progress()
    now[0] = 29.0
    watch.round(log, None, progress)  # a share of the time is not yet far too long
    now[0] = 30.0
    with pytest.raises(StopRun):
        watch.round(log, None, progress)
    now[0] = 0.0
    quick = Watch(Listener(), lambda: now[0], 0.0, {}, work=10.0)
    quick.round(log, Score(0.2, {}, 0.0), progress)
    now[0] = 10.0
    with pytest.raises(StopRun):
        quick.round(log, Score(0.1, {}, 0.0), progress)
    assert list(quick.curve.values()) == [0.2, 0.2]


def test_few_members_and_blind_servers_and_noise_are_said() -> None:
    assert "with only 3 members each can take its own part off" in ask(silos=3).sentences
    assert {line.sees for line in ask(blind=True).lines} == {"sums alone"}
    assert ask(blind=True).config.secure_sums
    private = ask(epsilon=8.0)
    assert private.config.epsilon == 8.0
    assert "not this search among methods" in private.sentences


@pytest.mark.parametrize(
    ("size", "users", "words"),
    [
        (5 << 20, 1, "fine for phones"),
        (94 << 20, 1, "for companies, not for phones"),
        (94 << 20, 300, "fine between companies"),
    ],
)
def test_sizes_are_judged_for_whom_they_are(size: float, users: int, words: str) -> None:
    assert judge_upload(size, users) == words


def test_a_share_is_never_rounded_to_nothing() -> None:
    assert [percent(share) for share in (0.0, 0.0001, 0.058, 0.16, 1.0)] == ["0 %", "0.1 %", "5.8 %", "16 %", "100 %"]


def test_a_forecast_goes_on_rising_until_the_rounds_end() -> None:
    rising = Attempt("x", {}, 0.4, 9, 10, 20, 10.0, curve={"2": 0.1, "5": 0.2, "10": 0.4})
    assert rising.forecast(5) == pytest.approx(0.4 + 5 * 0.04)
    assert rising.forecast(1000) == pytest.approx(0.4 + 10 * 0.04)
    assert Attempt("x", {}, 0.4, 9, 10, 10, 10.0).forecast(1000) == 0.4


def test_no_time_and_no_validation_are_refused() -> None:
    with pytest.raises(FedrecError, match="must be above 0"):
        ask(minutes=0)
    with pytest.raises(FedrecError, match="chooses rounds by the test items"):
        ask(protocol=f"{RULES},select_on=test")


def test_a_callback_can_stop_a_run(tmp_path: Path) -> None:
    heard = []

    def stop(figures: dict[str, float]) -> None:
        heard.append(figures["round"])
        if figures["round"] == 3:
            raise fedrec.StopRun

    short = fedrec.run("fedmf", WORLD, rounds=9, dim=4, protocol=RULES, callbacks=[stop], out=tmp_path / "run")
    assert (short.summary["rounds_run"], short.summary["stopped_early"], heard) == (3, True, [1, 2, 3])
    whole = fedrec.run("fedmf", WORLD, rounds=9, dim=4, protocol=RULES, out=tmp_path / "run")  # goes on from there
    assert whole.summary["rounds_run"] == 9
    assert whole.test == fedrec.run("fedmf", WORLD, rounds=9, dim=4, protocol=RULES).test
