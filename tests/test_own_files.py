"""Methods and metrics of one's own without a package: known in Python by name, on the command line by a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedrec
from fedrec import cli, methods
from fedrec.evaluation import own_metrics

SOURCE = """
from dataclasses import dataclass
from typing import ClassVar

import fedrec
from fedrec.federation.contract import MethodInfo
from fedrec.methods import FedMF


@dataclass(frozen=True)
class Mine(FedMF):
    info: ClassVar[MethodInfo] = MethodInfo("mine", summary="a file of my own", backbones={"mf": {}})

    mix: float = 0.5


@fedrec.metric("found")
def found(ranks, relevance, held_out):
    return relevance.max(1)
"""
DATA = "synthetic@users=80+items=60"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(methods, "_REGISTERED_HERE", {})
    monkeypatch.setattr(own_metrics, "_REGISTERED", {})
    path = tmp_path / "my_file.py"
    path.write_text(SOURCE)
    return path


def command(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr("sys.argv", ["fedrec", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def test_every_command_knows_what_a_file_defines(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    asked = ("--data", DATA, "--rounds", "2", "--protocol", "honest,metrics=recall+ndcg+found", "--set", "mix=0.25")
    assert command(monkeypatch, "--use", file, "run", "mine", *asked, "--out", out, "--quiet") == 0
    test = json.loads((out / "summary.json").read_text())["test"]
    assert test["found@10"] == pytest.approx(test["recall@10"])  # with one held-out item each
    assert command(monkeypatch, "--use", file, "recommend", out, "--user", "7", "-k", "3") == 0
    assert len(capsys.readouterr().out.strip().splitlines()[-3:]) == 3
    methods._REGISTERED_HERE.clear()
    own_metrics._REGISTERED.clear()
    assert command(monkeypatch, "compare", out, "--no-references", "--metrics", "found@10") == 0
    assert "mine mix=0.25 rounds=2 " in capsys.readouterr().out
    assert command(monkeypatch, "recommend", out, "--user", "7") == 2
    assert "known after `fedrec --use FILE.py`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gone.py", None, "No such file"),
        ("mine.txt", "", "give a Python file, such as mine.py"),
        (
            "broken_file.py",
            "import nowhere_at_all",
            "cannot be used: ModuleNotFoundError: No module",
        ),
        ("taken_file.py", SOURCE.replace('"mine"', '"fedmf"'), "the name 'fedmf' belongs to another method"),
    ],
)
def test_files_that_cannot_be_used(
    name: str,
    text: str | None,
    message: str,
    tmp_path: Path,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    assert command(monkeypatch, "--use", tmp_path / name, "metrics") == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_class_that_ran_is_known_by_its_name(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    from my_file import Mine

    fedrec.run(Mine(mix=0.1, dim=4), DATA, rounds=2, out=tmp_path / "run", progress=False)
    assert len(fedrec.Recommender(tmp_path / "run").for_user("7", 3)) == 3
    assert fedrec.run("mine", DATA, rounds=1, progress=False).summary["defaults"]["mix"] == 0.5
