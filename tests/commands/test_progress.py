"""Progress: what matters is visible at 80 columns, and without a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import fedrec
from fedrec.commands import console, progress
from fedrec.commands.deploy import EventPrinter
from fedrec.commands.summary import last_chosen
from fedrec.federation.loop import Rules, Score

SMALL = {"rounds": 3, "dim": 4, "protocol": "honest,ks=10"}
WORLD = "synthetic@users=50+items=200"


@pytest.mark.parametrize("label", ["fedmf seed 0", "reference popularity of a long name"])
def test_the_bar_fits_80_columns(monkeypatch: pytest.MonkeyPatch, label: str) -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    monkeypatch.setattr(progress, "err", screen)
    bar = progress.Bar(label, notes=False)
    monkeypatch.setattr(bar.bar, "stop", lambda: None)  # keep what is drawn
    result = fedrec.run("fedmf", WORLD, callbacks=[bar], **SMALL)
    sheet = Console(file=io.StringIO(), width=80)
    sheet.print(bar.bar.get_renderable())
    text = sheet.file.getvalue()  # type: ignore[attr-defined]
    assert len(text.splitlines()) == 1
    assert "round 3 of 3" in text
    assert f"ndcg@10 {max(result.history['ndcg@10']):.4f}" in text
    assert "0:00 left" in text
    assert "━━━" in text


def test_without_a_terminal_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(file=io.StringIO(), width=200)
    monkeypatch.setattr(progress, "err", screen)
    monkeypatch.setattr(progress, "FIRST_LINE", -1.0)
    monkeypatch.setattr(progress, "LONGEST_WAIT", -1.0)
    fedrec.run("fedmf", WORLD, callbacks=[progress.Plain("fedmf seed 0", notes=False)], **SMALL)
    lines = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == 3
    assert lines[1].startswith("fedmf seed 0: round 2 of 3, ndcg@10 0.")
    assert lines[1].endswith(" left")


def test_time_left() -> None:
    assert progress.time_left(20.9) == "0:20 left"
    assert progress.time_left(7200) == "2:00:00 left"


def shown(rules: Rules, first: tuple[float, float], later: tuple[float, float], start: int = 0) -> list[str]:
    """What is said after each round, given how long training and evaluation take the first time and later."""
    pace, now, evaluated, said = progress.Pace(rules), 100.0, False, []
    for number in range(start, rules.rounds):
        now += (first if number == start else later)[0]
        score = None
        if rules.is_due(number) and first[1]:
            score = Score(0.0, {}, (later if evaluated else first)[1])
            now, evaluated = now + score.seconds, True
        said.append(pace.estimate_left(number, score, now))
    return said


@pytest.mark.parametrize(
    ("rules", "first", "later", "start", "said"),
    [
        (Rules(5), (50, 20), (1, 2), 0, ["", "0:09 left", "0:06 left", "0:03 left", "0:00 left"]),
        (Rules(8), (50, 20), (1, 2), 3, ["", "0:09 left", "0:06 left", "0:03 left", "0:00 left"]),
        (Rules(6, 2), (50, 20), (1, 4), 0, ["", "", "", "0:06 left", "0:05 left", "0:00 left"]),
        (Rules(4, 2), (50, 20), (1, 4), 0, ["", "0:22 left", "0:21 left", "0:00 left"]),  # the last evaluation: at most
        (Rules(4, 10), (50, 0), (2, 0), 0, ["", "0:04 left", "0:02 left", "0:00 left"]),  # nothing is evaluated
        (Rules(1), (50, 20), (0, 0), 0, [""]),
    ],
)
def test_a_first_estimate_means_something(
    rules: Rules, first: tuple[float, float], later: tuple[float, float], start: int, said: list[str]
) -> None:
    """What only the first round and the first evaluation take is not expected of the others."""
    assert shown(rules, first, later, start) == said


def test_a_deployment_says_what_is_left_from_its_second_round_on(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Console(file=io.StringIO(), width=200)
    monkeypatch.setattr(console, "err", screen)
    show = EventPrinter()
    for number, now in enumerate((60.0, 64.0, 68.0)):
        show({"event": "round", "round": number, "rounds": 4, "nodes": 2, "lost": number, "seconds": 3.0, "time": now})
    said = [line.partition("] ")[2] for line in screen.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert said == [
        "round 1 of 4: 2 nodes, 3.0 s",
        "round 2 of 4: 2 nodes, 3.0 s, 1 uploads lost, 0:16 left",
        "round 3 of 4: 2 nodes, 3.0 s, 2 uploads lost, 0:12 left",
    ]


def test_a_last_round_that_was_chosen_is_told() -> None:
    summary = fedrec.run("fedmf", WORLD, **SMALL).summary
    base = {**summary, "rounds_run": 3, "best_round": 2, "stopped_early": False}
    assert last_chosen(base)
    assert not last_chosen({**base, "best_round": 1})
    assert not last_chosen({**base, "privacy": {"epsilon": 1.0}}), "there the last one always counts"
