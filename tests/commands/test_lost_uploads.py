"""Uploads that are lost on their way and what a network drops have names of their own, and runs keep theirs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedrec
from conftest import Cli

DATA = "synthetic@users=40+items=80+interactions=700+seed=1"
RUN = ("run", "fedmf", "--data", DATA, "--set", "dim=4", "--json")


def lost(folder: Path) -> list[int]:
    """By round."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line).get("lost", 0) for line in lines]


def test_the_flag_and_its_old_name_do_the_same(cli: Cli, tmp_path: Path) -> None:
    now = cli(*RUN, "--rounds", 2, "--lost-uploads", 0.4, "--out", "now")
    assert (now.code, now.err) == (0, "")
    before = cli(*RUN, "--rounds", 2, "--dropout", 0.4, "--out", "before")
    assert before.code == 0
    assert before.err.startswith("warning: --dropout is now called --lost-uploads; ")
    assert before.err.count("\n") == 1
    assert min(lost(tmp_path / "now")) > 0
    assert lost(tmp_path / "now") == lost(tmp_path / "before")
    assert (tmp_path / "now" / "config.toml").read_text() == (tmp_path / "before" / "config.toml").read_text()
    both = cli(*RUN, "--lost-uploads", 0.4, "--dropout", 0.4)
    assert both.code == 2
    assert both.err == "error: --dropout is the old name of --lost-uploads; give --lost-uploads alone\n"
    assert "lost-uploads 1.0 is not in [0, 1)" in cli(*RUN, "--lost-uploads", 1).err
    told = cli("run", "--help").out
    assert "--lost-uploads" in told
    assert "--dropout" not in told


def test_a_run_goes_on_under_either_name(cli: Cli, tmp_path: Path) -> None:
    """What a folder says of itself has always been `lost_uploads`."""
    straight = cli(*RUN, "--rounds", 3, "--lost-uploads", 0.4, "--out", "straight")
    cli(*RUN, "--rounds", 2, "--dropout", 0.4, "--out", "run")
    assert "lost_uploads = 0.4\n" in (tmp_path / "run" / "config.toml").read_text()
    longer = cli("run", "--resume", "--out", "run", "--rounds", 3, "--json")
    assert json.loads(longer.out.splitlines()[-1])["test"] == json.loads(straight.out.splitlines()[-1])["test"]
    again = cli("run", "--config", "run/config.toml", "--out", "again", "--json")
    assert json.loads(again.out.splitlines()[-1])["test"] == json.loads(straight.out.splitlines()[-1])["test"]
    other = cli("run", "--resume", "--out", "run", "--lost-uploads", 0.1)
    assert "other settings (lost_uploads); resume with the same" in other.err


def test_a_printed_command_takes_the_words_of_today(cli: Cli) -> None:
    from fedrec.experiment.config import make_config

    config = make_config({"method": "fedmf", "data": DATA, "rounds": 2, "lost_uploads": 0.4, "params": {"dim": 4}})
    outcome = cli("run", "fedmf", *config.flags(), "--json")
    assert outcome.code == 0
    assert "warning" not in outcome.err


def test_in_python_they_are_two_keywords(tmp_path: Path) -> None:
    small = {"rounds": 2, "dim": 4, "length": 5}
    method = ("fedopt", DATA)
    plain = fedrec.run(*method, backbone="sasrec", dropout=0.0, out=tmp_path / "plain", **small)
    dropped = fedrec.run(*method, backbone="sasrec", dropout=0.5, out=tmp_path / "dropped", **small)
    fewer = fedrec.run(*method, backbone="sasrec", dropout=0.0, lost_uploads=0.4, out=tmp_path / "fewer", **small)
    assert [sum(lost(tmp_path / name)) > 0 for name in ("plain", "dropped", "fewer")] == [False, False, True]
    assert [result.config.lost_uploads for result in (plain, dropped, fewer)] == [0.0, 0.0, 0.4]
    assert [result.config.params["dropout"] for result in (plain, dropped, fewer)] == [0.0, 0.5, 0.0]
    assert plain.test != dropped.test
    with pytest.raises(fedrec.FedrecError, match=r"lost-uploads 2 is not in \[0, 1\)"):
        fedrec.run("fedmf", DATA, lost_uploads=2)
