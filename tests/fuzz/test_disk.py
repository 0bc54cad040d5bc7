"""A disk without room: one line, no file half written, and a run that goes on once there is room again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import Cli
from fuzz.property import SMALL, everything_below, nothing_left, tidy
from fuzz.test_folders import FEDMF
from waiting import GENEROUS

resource = pytest.importorskip("resource")
LIMITS = (0, 100, 500, 1_000, 2_000, 4_000, 8_000, 16_000)


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file can grow beyond this: to whoever writes, Python or not, the disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def whole(folder: Path) -> None:
    """Every file that has its final name can be read, and there are no others."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        assert not path.name.startswith("."), path
        if path.suffix == ".json":
            json.loads(path.read_text())
        if path.suffix == ".csv":
            rows = [line.split(",") for line in path.read_text().splitlines()]
            assert len({len(row) for row in rows}) == 1, path


@pytest.mark.parametrize("size", LIMITS)
def test_a_run_that_finds_no_room_goes_on_later(cli: Cli, tmp_path: Path, size: int) -> None:
    with room_for(size):
        tidy(cli(*FEDMF, "--out", "run"))
    whole(tmp_path)
    done = cli(*FEDMF, "--out", "run", "--resume")
    assert done.code == 0, done.err
    assert cli(*FEDMF, "--out", "straight").code == 0
    figures = [json.loads((tmp_path / name / "summary.json").read_text())["test"] for name in ("run", "straight")]
    assert figures[0] == figures[1]


@pytest.mark.parametrize(
    "words",
    [
        ("recommend", "run", "--all", "--out", "new/recs.csv"),
        ("report", "run", "--out", "new/page.html"),
        ("compare", "run", "--no-references", "--out", "new/table.md"),
        ("data", "split", SMALL, "--out", "new", "--protocol", "honest,min_interactions=3"),
        ("data", "show", SMALL, "--out", "new/page.html"),
        ("data", "import", "mine.csv", "--name", "mine"),
        (
            "audit",
            "leak",
            "--data",
            SMALL,
            "--protocol",
            "honest,min_interactions=3,ks=5,select_metric=ndcg@5",
            "--quick",
            "--out",
            "new/page.html",
        ),
    ],
)
def test_what_other_commands_write_is_there_whole_or_not_at_all(
    cli: Cli, tmp_path: Path, words: tuple[str, ...]
) -> None:
    assert cli(*FEDMF, "--out", "run").code == 0
    (tmp_path / "mine.csv").write_text("user,item\n" + "".join(f"{u},{i}\n" for u in range(9) for i in range(99)))
    before = everything_below(tmp_path)
    with room_for(20):
        assert not tidy(cli(*words))
    after = {name for name, content in everything_below(tmp_path).items() if content is not None}
    assert after <= {name for name, content in before.items() if content is not None}


@pytest.mark.parametrize("out", ["file", "file/below", "file/below/further"])
def test_a_file_in_the_place_of_a_folder(cli: Cli, tmp_path: Path, out: str) -> None:
    assert cli(*FEDMF, "--out", "run").code == 0
    (tmp_path / "file").write_text("mine")
    with nothing_left(tmp_path):
        for words in (
            (*FEDMF, "--out", out),
            (*FEDMF, "--seeds", "0,1", "--out", out),
            ("recommend", "run", "--all", "--out", f"{out}/recs.csv"),
            ("report", "run", "--out", f"{out}/page.html"),
            ("compare", "run", "--no-references", "--out", f"{out}/table.md"),
            ("data", "split", SMALL, "--out", out),
            ("data", "show", SMALL, "--out", f"{out}/page.html"),
        ):
            assert not tidy(cli(*words)), words


def test_only_files_are_replaced(cli: Cli, tmp_path: Path) -> None:
    """A device or a pipe (as /dev/null, which root may replace) stays what it is, and so does a link."""
    assert cli(*FEDMF, "--out", "run").code == 0
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "file.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to("file.csv")
    for out in ("pipe.csv", "folder.csv", ".", "..", ""):
        outcome = cli("recommend", "run", "--all", "--out", out)
        assert not tidy(outcome)
        said = "is not a file; give a file name" if out.endswith(".csv") else "use .csv"
        assert said in outcome.err
    assert (tmp_path / "pipe.csv").is_fifo()
    assert not tidy(cli("recommend", "run", "--all", "--out", "link.csv"))
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "file.csv").read_text() == "old"


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no device that is always full")
def test_output_that_cannot_be_written(tmp_path: Path) -> None:
    command = f"{sys.executable} -m fedrec.cli protocols > /dev/full"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, cwd=tmp_path, timeout=GENEROUS)
    assert done.returncode == 2
    assert done.stderr == "error: writing: No space left on device; free some space or choose another folder\n"
