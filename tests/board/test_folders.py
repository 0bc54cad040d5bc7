"""What lies in a folder of runs is listed as what it is, read once, and read again when it changes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedrec.board import folders, locks
from fedrec.board.folders import FolderIndex
from fedrec.errors import FedrecError
from fedrec.experiment.finished_run import read_run
from fedrec.experiment.folder import RunFolder

from .conftest import append_round

HOLD = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], 0), fcntl.LOCK_EX)
print("held", flush=True)
input()
"""


def states(index: FolderIndex) -> dict[str, str]:
    index.refresh()
    return {entry.name: entry.state for entry in index.entries}


def test_every_folder_is_shown_as_what_it_is(folder: Path) -> None:
    assert states(FolderIndex(folder)) == {
        "damaged": "damaged",
        "ease": "finished",
        "fedmf-silos": "finished",
        "fedmf/seed0": "finished",
        "fedmf/seed1": "finished",
        "holiday": "foreign",
        "local-silos": "finished",
        "popularity": "finished",
        "stopped": "stopped",
        "study": "finished",
    }


def test_a_finished_run_has_the_name_and_figures_of_compare(folder: Path) -> None:
    index = FolderIndex(folder)
    index.refresh()
    entry, run = index.entry("fedmf/seed1"), read_run(folder / "fedmf" / "seed1")
    assert entry is not None
    assert (entry.label, entry.test, entry.seed, entry.rounds) == (run.label, run.summary["test"], 1, 6)


@pytest.mark.parametrize(
    ("name", "text", "state"),
    [
        ("config.toml", "not [ toml", "damaged"),
        ("config.toml", 'title = "of another program"', "damaged"),
        ("summary.json", "[]", "damaged"),
        ("summary.json", "[" * 100_000, "damaged"),
        ("metrics.jsonl", "\x00 no json\n", "finished"),
    ],
)
def test_damage_is_shown_with_its_reason(folder: Path, name: str, text: str, state: str) -> None:
    (folder / "ease" / name).write_text(text, encoding="utf-8")
    index = FolderIndex(folder)
    index.refresh()
    entry = index.entry("ease")
    assert entry is not None
    assert (entry.state, bool(entry.why)) == (state, state == "damaged")


def test_a_config_of_another_program_is_foreign(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "config.toml").write_text('title = "my pages"', encoding="utf-8")
    assert states(FolderIndex(tmp_path)) == {"site": "foreign"}


def test_only_what_changed_is_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = FolderIndex(folder)
    assert index.refresh()
    read: list[str] = []
    real = folders.read_entry
    monkeypatch.setattr(folders, "read_entry", lambda path, name, *rest: read.append(name) or real(path, name, *rest))
    assert not index.refresh()
    assert read == []
    append_round(folder / "stopped", 1)
    assert index.refresh()
    assert read == ["stopped"]
    shutil.rmtree(folder / "ease")
    assert index.refresh()
    assert index.entry("ease") is None
    assert read == ["stopped"]


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="this system does not list its locks")
def test_a_run_is_running_while_a_process_holds_its_folder(folder: Path) -> None:
    index = FolderIndex(folder)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder / "stopped")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert states(index)["stopped"] == "running"
        process.communicate("\n")
    assert states(index)["stopped"] == "stopped"


def test_to_look_never_takes_the_lock(folder: Path) -> None:
    """A run that starts while the board looks must not find its folder locked."""
    index = FolderIndex(folder)
    with RunFolder(folder / "stopped").lock():
        index.refresh()
        with RunFolder(folder / "ease").lock():
            pass


def test_without_a_list_of_locks_the_log_tells(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "TABLE", folder / "nothing")
    for name in ("stopped", "ease"):
        for file in (folder / name).iterdir():
            os.utime(file, (1, 1))
    found = states(FolderIndex(folder))
    assert (found["stopped"], found["ease"]) == ("stopped", "finished")
    append_round(folder / "stopped", 1)
    assert states(FolderIndex(folder))["stopped"] == "running"


def test_a_link_does_not_lead_out_of_the_folder(folder: Path, finished: Path) -> None:
    (folder / "elsewhere").symlink_to(finished, target_is_directory=True)
    (folder / "stopped" / "metrics.jsonl").unlink()
    (folder / "stopped" / "metrics.jsonl").symlink_to(finished / "ease" / "metrics.jsonl")
    found = states(FolderIndex(folder))
    assert not any(name.startswith("elsewhere") for name in found)
    assert found["stopped"] == "damaged"


@pytest.mark.parametrize("name", ["..", "../runs", "/etc", "fedmf", "", "study/../ease"])
def test_nothing_else_can_be_asked_for(folder: Path, name: str) -> None:
    index = FolderIndex(folder)
    index.refresh()
    with pytest.raises(FedrecError, match="there is no run folder"):
        index.path(name)


def test_a_run_writes_its_plan_when_it_begins(folder: Path) -> None:
    plan = json.loads((folder / "fedmf" / "seed0" / "plan.json").read_text(encoding="utf-8"))
    assert (plan["rounds"], plan["metric"], plan["device"], plan["users"]) == (6, "ndcg@10", "cpu", plan["clients"])


def test_a_folder_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FedrecError, match="is not a folder"):
        FolderIndex(tmp_path / "nothing")
