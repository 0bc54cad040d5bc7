"""A folder that came from somebody else may hold links: nothing is written or read through them."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import pytest

from conftest import Cli
from fedrec.errors import FedrecError
from fedrec_studies.commands.reproduce import ReproduceRequest, reproduce
from fedrec_studies.reproduce.cells import plan_cells, run_cells
from fedrec_studies.reproduce.table_definition import Row, Table
from fuzz.property import tidy
from fuzz.test_folders import COMMANDS, FEDMF

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links need a privilege on Windows")
MINE = "what the reader keeps elsewhere\n"
FILES = (
    "config.toml",
    "plan.json",
    "metrics.jsonl",
    "summary.json",
    "per_user.csv",
    "checkpoint.safetensors",
    "last.safetensors",
    "items.csv",
    "users.csv",
    "prepared.npz",
)


@pytest.fixture
def received(cli: Cli, tmp_path: Path) -> Path:
    """A finished run, and beside it a file that no command is told of."""
    assert cli(*FEDMF, "--out", "run").code == 0
    assert cli(*FEDMF, "--out", "whole", "--seed", "1").code == 0
    (tmp_path / "mine.txt").write_text(MINE)
    return tmp_path / "run"


def linked(path: Path, hard: bool = False) -> None:
    path.unlink(missing_ok=True)
    path.hardlink_to(path.parent.parent / "mine.txt") if hard else path.symlink_to("../mine.txt")


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("report.html", ("report", "run")),
        ("comparison.html", ("report", "run", "whole")),
        ("activity.html", ("report", "run", "--figure", "activity", "--set", "metric=ndcg@5")),
        ("recs.csv", ("recommend", "run", "--all", "--out", "run/recs.csv")),
        ("table.csv", ("compare", "run", "--no-references", "--out", "run/table.csv")),
    ],
)
def test_what_is_written_does_not_go_through_a_link(
    cli: Cli, received: Path, page: str, words: tuple[str, ...]
) -> None:
    linked(received / page)
    outcome = cli(*words)
    assert (received.parent / "mine.txt").read_text() == MINE
    assert not tidy(outcome)
    assert f"{page}: it is a link; remove it or choose another name" in outcome.err
    linked(received / page, hard=True)
    assert tidy(cli(*words))
    assert (received.parent / "mine.txt").read_text() == MINE
    assert (received / page).read_text() != MINE


@pytest.mark.parametrize("name", FILES)
def test_a_link_in_the_place_of_a_file_of_the_run_is_refused(cli: Cli, received: Path, name: str) -> None:
    """Also where the file behind it would be a good one: its content could end up in what is passed on."""
    for target in (received.parent / "mine.txt", received.parent / "whole" / name):
        before = target.read_bytes()
        (received / name).unlink()
        (received / name).symlink_to(target)
        for words in COMMANDS.values():
            outcome = cli(*words)
            assert not tidy(outcome), words
            assert f"run/{name} is a link; replace it by the file itself" in outcome.err
        assert target.read_bytes() == before


def test_a_run_does_not_append_to_a_hard_link(cli: Cli, received: Path) -> None:
    """As backups make them: the other name keeps the old content."""
    copy = received.parent / "backup.jsonl"
    copy.hardlink_to(received / "metrics.jsonl")
    before = copy.read_text()
    assert cli("run", "--resume", "--out", "run", "--quiet", "--rounds", "4").code == 0
    assert copy.read_text() == before
    assert len((received / "metrics.jsonl").read_text().splitlines()) == 4


def test_a_new_run_does_not_write_through_what_lies_in_its_folder(cli: Cli, received: Path) -> None:
    (received.parent / "new").mkdir()
    linked(received.parent / "new" / "metrics.jsonl")
    outcome = cli(*FEDMF, "--out", "new")
    assert not tidy(outcome)
    assert "new/metrics.jsonl is a link" in outcome.err
    linked(received.parent / "new" / "metrics.jsonl", hard=True)
    assert tidy(cli(*FEDMF, "--out", "new"))
    assert (received.parent / "mine.txt").read_text() == MINE
    assert len((received.parent / "new" / "metrics.jsonl").read_text().splitlines()) == 2


def test_the_folder_of_a_seed_is_no_link(cli: Cli, received: Path) -> None:
    (received.parent / "many").mkdir()
    (received.parent / "many" / "seed0").symlink_to(received)
    before = {path.name: path.read_bytes() for path in received.iterdir()}
    longer = ["3" if word == "2" else word for word in FEDMF[:-1]]
    for more in (("--resume",), ()):
        outcome = cli(*longer, "--seeds", "0,1", "--out", "many", *more)
        assert not tidy(outcome)
        assert "many/seed0 is a link; replace it by the folder itself" in outcome.err
    assert {path.name: path.read_bytes() for path in received.iterdir()} == before


def test_folders_that_a_user_links_are_used(cli: Cli, received: Path) -> None:
    """A disk for runs, a collection of runs to compare: those links were made by who names them."""
    (received.parent / "disk").mkdir()
    (received.parent / "runs").symlink_to("disk")
    assert tidy(cli(*FEDMF, "--out", "runs/new"))
    assert (received.parent / "disk" / "new" / "summary.json").is_file()
    (received.parent / "chosen").mkdir()
    (received.parent / "chosen" / "a").symlink_to(received)
    assert tidy(cli("compare", "chosen", "--no-references"))
    shutil.rmtree(received.parent / "disk")


def test_a_study_neither_writes_nor_copies_through_links(tmp_path: Path) -> None:
    """Two tables of equal work; the folder of the first came from somebody else."""
    table = Table(
        name="first",
        title="",
        metrics=["recall@10"],
        protocols=["honest"],
        seeds=[0],
        run={"rounds": 1},
        datasets=["synthetic@users=50+items=200"],
        rows=[Row("P", {"method": "popularity"})],
    )
    other = dataclasses.replace(table, name="second")
    first, second = (plan_cells(one, tmp_path / "study", "cpu", "8G") for one in (table, other))
    assert run_cells(first, 1, lambda line: None) == {}
    (tmp_path / "mine.txt").write_text(MINE)
    (first[0].folder / "notes.txt").symlink_to(tmp_path / "mine.txt")
    second[0].folder.mkdir(parents=True)
    (second[0].folder / "report.html").symlink_to(tmp_path / "mine.txt")
    with pytest.raises(FedrecError, match=r"report\.html: it is a link"):
        run_cells(second, 1, lambda line: None, first)
    assert (tmp_path / "mine.txt").read_text() == MINE
    shutil.rmtree(second[0].folder)
    run_cells(second, 1, lambda line: None, first)
    assert second[0].summary() == first[0].summary()
    assert not (second[0].folder / "notes.txt").exists()
    shutil.rmtree(second[0].folder)
    summary = first[0].folder / "summary.json"
    (tmp_path / "mine.json").write_bytes(summary.read_bytes())
    summary.unlink()
    summary.symlink_to(tmp_path / "mine.json")
    with pytest.raises(FedrecError, match=r"summary\.json is a link"):
        run_cells(second, 1, lambda line: None, first)


def test_a_study_stays_within_its_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "table3").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FedrecError, match="table3 is a link; replace it by the folder itself"):
        reproduce("fedrkg", ReproduceRequest(), tmp_path / "study", dry_run=True)
    assert list((tmp_path / "elsewhere").iterdir()) == []
