"""A run with the tracker, and what it writes of rounds that take different times."""

from pathlib import Path

from slow_rounds import SlowRounds

import fedrec


def test_it_hears_every_round(tmp_path: Path) -> None:
    data = "synthetic@users=40+items=80+interactions=700"
    fedrec.run("fedmf", data, rounds=3, dim=2, callbacks=[SlowRounds(tmp_path)])
    lines = (tmp_path / "slow_rounds.txt").read_text().splitlines()
    assert lines[0] == f"fedmf on {data}"
    assert lines[-1] == "3 rounds, finished"


def test_only_slow_rounds_are_written_down(tmp_path: Path) -> None:
    tracker = SlowRounds(tmp_path)
    tracker.begin({"method": "fedmf", "data": "mine"})
    for number, seconds in enumerate((1.0, 1.5, 9.0, 1.0), 1):
        tracker.log({"seconds": seconds}, number)
    tracker.end({})
    lines = (tmp_path / "slow_rounds.txt").read_text().splitlines()
    assert lines == ["fedmf on mine", "round 3: 9.000 s", "4 rounds, interrupted"]
