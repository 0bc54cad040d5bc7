"""Runs made before the protocol knew what validation masks and what a history holds at test."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
import tomli_w

import fedrec
from conftest import Cli
from fedrec.errors import FedrecError
from fedrec.experiment import checkpoint
from fedrec.experiment.config import FORMAT, as_meant, read_config
from fedrec.experiment.finished_run import find_runs, read_run
from fedrec.report.comparison import compare

from . import SMALL

MEANT = "honest,history_at_test=train,mask_test_at_validation=true"


def made_old(folder: Path) -> None:
    """Take the marks of today's format out of a run folder."""
    config = tomllib.loads((folder / "config.toml").read_text())
    assert config.pop("format") == FORMAT
    (folder / "config.toml").write_text(tomli_w.dumps(config))
    if (folder / "summary.json").exists():
        summary = json.loads((folder / "summary.json").read_text())
        assert summary.pop("format") == FORMAT
        del summary["tested"]  # it was not counted then
        (folder / "summary.json").write_text(json.dumps(summary))
    for name in ("checkpoint.safetensors", "last.safetensors"):
        if (folder / name).exists():
            tensors, about = checkpoint.load(folder / name)
            assert about.pop("format") == FORMAT
            checkpoint.save(folder / name, tensors, about)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    fedrec.run("fedmf", SMALL, protocol=MEANT, rounds=2, dim=4, out=tmp_path / "old")
    made_old(tmp_path / "old")
    for name in ("config.toml", "summary.json"):
        text = (tmp_path / "old" / name).read_text()
        assert text.count(MEANT) == 1
        (tmp_path / "old" / name).write_text(text.replace(MEANT, "honest"))
    for name in ("checkpoint.safetensors", "last.safetensors"):
        tensors, about = checkpoint.load(tmp_path / "old" / name)
        about["config"]["protocol"] = "honest"
        checkpoint.save(tmp_path / "old" / name, tensors, about)
    return tmp_path / "old"


def test_an_old_run_says_what_it_did(old: Path) -> None:
    run = read_run(old)
    assert run.protocol == run.config["protocol"] == MEANT
    assert any("enters the choice of the round" in leak for leak in run.summary["leaks"])


def test_old_and_new_are_never_compared(old: Path) -> None:
    new = fedrec.run("fedmf", SMALL, rounds=2, dim=4, out=old.parent / "new")
    assert new.folder is not None
    with pytest.raises(FedrecError, match="different protocols"):
        compare(find_runs([old, new.folder]))


def test_an_old_run_is_not_resumed_and_loses_nothing(cli: Cli, old: Path) -> None:
    before = {path.name: path.read_bytes() for path in old.iterdir()}
    found = cli("run", "--resume", "--out", str(old), "--rounds", "4", "--quiet")
    assert found.code == 2
    assert "start over in another --out folder" in found.err
    assert {path.name: path.read_bytes() for path in old.iterdir()} == before


def test_an_old_run_recommends_from_what_it_was_judged_by(old: Path) -> None:
    from fedrec.serve import Recommender

    assert Recommender(old).run.known_at_test is None


@pytest.mark.parametrize("name", ["fedca", "cgfedrec", "fedrkg", "pfedrec", "fedrap", "fedca, negatives=3"])
def test_published_protocols_did_what_they_do(name: str) -> None:
    assert as_meant(name, 1) == name


def test_fedcia_masked_more_than_its_code() -> None:
    assert as_meant("fedcia", 1) == "fedcia,mask_test_at_validation=true"


def test_a_newer_format_is_refused(old: Path) -> None:
    with pytest.raises(FedrecError, match="upgrade fedrec"):
        as_meant("honest", FORMAT + 1)


def test_the_config_of_an_old_run_repeats_it(cli: Cli, old: Path) -> None:
    assert cli("run", "--config", str(old / "config.toml"), "--out", "again", "--quiet").code == 0
    again = read_run(old.parent / "again")
    assert again.protocol == MEANT
    assert again.summary["test"] == read_run(old).summary["test"]


def test_a_config_of_a_run_can_be_run_again(cli: Cli, tmp_path: Path) -> None:
    fedrec.run("popularity", SMALL, out=tmp_path / "run")
    assert read_config(tmp_path / "run" / "config.toml")["protocol"] == "honest"
    assert cli("run", "--config", str(tmp_path / "run" / "config.toml"), "--out", "again", "--quiet").code == 0


# -- format 2: FCF was another name of fedmf --


def called_fcf(folder: Path, written: int = 2) -> Path:
    """A run of fedmf as it was written when FCF meant it, and somebody typed that."""
    fedrec.run("fedmf", SMALL, rounds=2, dim=4, out=folder)
    config = tomllib.loads((folder / "config.toml").read_text()) | {"format": written, "method": "FCF"}
    (folder / "config.toml").write_text(tomli_w.dumps(config))
    for name in ("checkpoint.safetensors", "last.safetensors"):
        tensors, about = checkpoint.load(folder / name)
        about |= {"format": written, "config": about["config"] | {"method": "FCF"}}
        checkpoint.save(folder / name, tensors, about)
    return folder


def test_a_run_that_was_started_as_fcf_is_one_of_fedmf(cli: Cli, tmp_path: Path) -> None:
    old = called_fcf(tmp_path / "old")
    assert read_run(old).config["method"] == "fedmf"
    assert cli("recommend", str(old), "--user", "1").code == 0
    assert cli("run", "--config", str(old / "config.toml"), "--out", "again", "--quiet").code == 0
    assert cli("run", "--resume", "--out", str(old), "--rounds", "4", "--quiet").code == 0
    straight = fedrec.run("fedmf", SMALL, rounds=4, dim=4, out=tmp_path / "straight")
    assert read_run(old).summary["test"] == straight.test


def test_a_run_of_today_that_says_fcf_means_a_method_of_that_name(tmp_path: Path) -> None:
    assert read_config(called_fcf(tmp_path / "new", FORMAT) / "config.toml")["method"] == "FCF"


@pytest.mark.parametrize("name", ["FCF", "fcf"])
def test_fcf_is_another_algorithm_than_fedmf_and_says_so(cli: Cli, name: str) -> None:
    for words in (("run", name), ("methods", name), ("tune", name, "--trials", "1")):
        outcome = cli(*words)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert "'FCF' (Ammad-ud-din et al. 2019" in outcome.err
        assert "is 'fedmf'" in outcome.err
