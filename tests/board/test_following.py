"""A log that grows is read on from where it was left, in little memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedrec.board.following import POINTS, FollowedRun, Thinned, spent_budget

from .conftest import append_round


def test_figures_add_up_over_reads(tmp_path: Path) -> None:
    run = FollowedRun(tmp_path / "metrics.jsonl")
    assert not run.read_on()
    append_round(tmp_path, 0, valid={"ndcg@10": 0.2}, lost=3)
    assert run.read_on()
    assert not run.read_on()
    append_round(tmp_path, 1, valid={"ndcg@10": 0.1})
    assert run.read_on()
    assert (run.rounds, run.clients, run.lost, run.bytes_up, run.bytes_down) == (2, 40, 3, 200, 400)
    assert (run.best, run.best_round) == (0.2, 1)
    assert run.quality.points() == ([1, 2], [0.2, 0.1])


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    run, path = FollowedRun(tmp_path / "metrics.jsonl"), tmp_path / "metrics.jsonl"
    append_round(tmp_path, 0)
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole + '{"round": 1, "clie', encoding="utf-8")
    run.read_on()
    assert run.rounds == 1
    with path.open("a", encoding="utf-8") as file:
        file.write('nts": 7}\n')
    run.read_on()
    assert (run.rounds, run.clients) == (2, 7)


def test_a_resumed_run_is_read_anew(tmp_path: Path) -> None:
    """Rounds that are repeated are cut from the log, which then is another file and may soon be longer than before."""
    run = FollowedRun(tmp_path / "metrics.jsonl")
    for number in range(4):
        append_round(tmp_path, number)
    run.read_on()
    kept = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:2]
    (tmp_path / "other").write_text("".join(kept), encoding="utf-8")
    (tmp_path / "other").replace(tmp_path / "metrics.jsonl")
    for number in range(2, 9):
        append_round(tmp_path, number)
    run.read_on()
    assert (run.rounds, run.bytes_up) == (9, 900)


def test_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [
        "nonsense",
        "{}",
        '{"round": -1}',
        '{"round": 0, "loss": NaN, "bytes_up": "x", "valid": 3}',
        '{"round": 1}',
    ]
    path.write_bytes("\n".join(lines).encode() + b"\n\xff\xfe\n")
    run = FollowedRun(path)
    run.read_on()
    assert (run.rounds, run.bytes_up, run.loss.points()) == (2, 0, ([], []))


def test_a_long_run_takes_no_more_memory_than_a_short_one() -> None:
    curve = Thinned()
    for number in range(100_000):
        curve.add(number, float(number))
    assert len(curve.rounds) < 2 * POINTS
    rounds, values = curve.points()
    assert (rounds[0], rounds[-1], values[-1]) == (0, 99_999, 99_999.0)


@pytest.mark.parametrize(
    ("seconds", "planned", "left"),
    [([30.0, 1.0, 1.0], 10, 7.0), ([30.0], 10, None), ([1.0, 1.0], None, None), ([9.0, 1.0, 1.0], 3, 0.0)],
)
def test_the_first_round_says_nothing_about_the_others(
    tmp_path: Path, seconds: list[float], planned: int | None, left: float | None
) -> None:
    lines = [json.dumps({"round": number, "seconds": took}) for number, took in enumerate(seconds)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    run = FollowedRun(tmp_path / "metrics.jsonl")
    run.read_on()
    assert run.seconds_left(planned) == left


def test_a_budget_is_read_between_the_points_that_were_written() -> None:
    privacy = {"spent": [{"uploads": 0, "epsilon": 0.0}, {"uploads": 10, "epsilon": 8.0}]}
    assert spent_budget(privacy, 5) == (4.0, 8.0)
    assert spent_budget(None, 5) is None
