"""Progress: what matters is visible at 80 columns, and without a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import fedrec
from fedrec.commands import progress
from fedrec.commands.summary import last_chosen

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
    assert progress.time_left(10, 1, 3) == "0:20 left"
    assert progress.time_left(3600, 1, 3) == "2:00:00 left"


def test_a_last_round_that_was_chosen_is_told() -> None:
    summary = fedrec.run("fedmf", WORLD, **SMALL).summary
    base = {**summary, "rounds_run": 3, "best_round": 2, "stopped_early": False}
    assert last_chosen(base)
    assert not last_chosen({**base, "best_round": 1})
    assert not last_chosen({**base, "privacy": {"epsilon": 1.0}}), "there the last one always counts"
