"""Run folders with bytes changed, cut short, or values no run writes: every reader works or says so in one line."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import Cli, Outcome
from fuzz.property import RUN, fuzz, tidy
from fuzz.test_files import damaged

FILES = (
    "config.toml",
    "summary.json",
    "metrics.jsonl",
    "per_user.csv",
    "checkpoint.safetensors",
    "last.safetensors",
    "prepared.npz",
)
COMMANDS: dict[str, tuple[str, ...]] = {
    "compare": ("compare", "run", "--no-references"),
    "compare two": ("compare", "run", "whole", "--significance", "--no-references"),
    "groups": ("compare", "run", "--no-references", "--groups", "activity", "--format", "json"),
    "recommend": ("recommend", "run", "--user", "3", "-k", "3"),
    "everybody": ("recommend", "run", "--all", "--out", "recs.csv"),
    "report": ("report", "run", "--out", "report.html"),
    "resume": ("run", "--resume", "--out", "run", "--quiet"),
    "longer": ("run", "--resume", "--out", "run", "--quiet", "--rounds", "3"),
}
FEDMF = ("run", "fedmf", *RUN[2:], "--rounds", "2", "--set", "dim=2", "--quiet")
ODD: list[Any] = [None, "", "x", "../..", -1, 0, 1.5, 10**40, float("nan"), float("inf"), True, [], [1], {}, {"a": {}}]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A finished run, and another to compare with."""
    from fedrec.cli import main

    place, before = tmp_path_factory.mktemp("original"), Path.cwd()
    os.chdir(place)
    try:
        for words in ((*FEDMF, "--out", "run"), (*FEDMF, "--out", "whole", "--seed", "1", "--set", "lr=0.5")):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("sys.argv", ["fedrec", *words])
                with pytest.raises(SystemExit, match="0"):
                    main()
    finally:
        os.chdir(before)
    yield place
    shutil.rmtree(place)


def attempt(cli: Cli, here: Path, original: Path, command: str, name: str, content: bytes | None) -> Outcome:
    """A command on a fresh copy of the run in which one file has other content, or (None) is gone."""
    for path in here.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(original, here, dirs_exist_ok=True)
    path = here / "run" / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    outcome = cli(*COMMANDS[command])
    left = [path.name for path in here.rglob("*") if path.name.startswith(".")]
    assert left == []
    return outcome


@fuzz(50)
@given(st.data())
def test_damaged_bytes(cli: Cli, tmp_path: Path, original: Path, data: st.DataObject) -> None:
    name, command = data.draw(st.sampled_from(FILES)), data.draw(st.sampled_from(sorted(COMMANDS)))
    whole = (original / "run" / name).read_bytes()
    tidy(attempt(cli, tmp_path, original, command, name, data.draw(damaged(whole) | st.binary(max_size=30))))


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_gone_or_empty(cli: Cli, tmp_path: Path, original: Path, name: str) -> None:
    for command in COMMANDS:
        for content in (None, b"", b"[" * 100_000):
            tidy(attempt(cli, tmp_path, original, command, name, content))


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to all values inside a JSON value."""
    if path:
        yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inside:
        yield from places(below, (*path, key))


@st.composite
def changed(draw: st.DrawFn, whole: Any) -> Any:
    """A JSON value with one value in it replaced or gone."""
    value = json.loads(json.dumps(whole))
    *way, last = draw(st.sampled_from(list(places(whole))))
    inside = value
    for key in way:
        inside = inside[key]
    if isinstance(inside, dict) and draw(st.booleans()):
        del inside[last]
    else:
        inside[last] = draw(st.sampled_from(ODD))
    return value


@fuzz(50)
@given(st.data())
def test_values_of_the_wrong_kind(cli: Cli, tmp_path: Path, original: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["summary.json", "summary.json", "metrics.jsonl"]))
    command = data.draw(st.sampled_from(["compare", "compare two", "groups", "report", "resume", "longer"]))
    text = (original / "run" / name).read_text()
    if name == "summary.json":
        content = json.dumps(data.draw(changed(json.loads(text))))
    else:
        first, *rest = text.splitlines()
        content = "\n".join([json.dumps(data.draw(changed(json.loads(first)) | st.sampled_from(ODD))), *rest])
    tidy(attempt(cli, tmp_path, original, command, name, content.encode()))


@fuzz(30)
@given(st.data())
def test_settings_of_the_wrong_kind(cli: Cli, tmp_path: Path, original: Path, data: st.DataObject) -> None:
    import tomllib

    import tomli_w

    config = tomllib.loads((original / "run" / "config.toml").read_text())
    config = data.draw(changed(config))
    command = data.draw(st.sampled_from(sorted(COMMANDS)))
    try:
        content = tomli_w.dumps(config)
    except TypeError:
        return  # None, which TOML cannot hold
    tidy(attempt(cli, tmp_path, original, command, "config.toml", content.encode()))


@fuzz(30)
@given(st.data())
def test_cells_of_the_wrong_kind(cli: Cli, tmp_path: Path, original: Path, data: st.DataObject) -> None:
    rows = [line.split(",") for line in (original / "run" / "per_user.csv").read_text().splitlines()]
    row = data.draw(st.integers(0, len(rows) - 1))
    column = data.draw(st.integers(0, len(rows[row]) - 1))
    odd = ["", "x", "-1", "nan", "inf", "1e300", "99999999999999", "a,b", '"', "\0"]
    rows[row][column] = data.draw(st.sampled_from(odd))
    command = data.draw(st.sampled_from(["compare two", "groups", "report"]))
    content = "\n".join(",".join(cells) for cells in rows)
    tidy(attempt(cli, tmp_path, original, command, "per_user.csv", content.encode()))


def test_a_folder_in_the_place_of_a_file(cli: Cli, tmp_path: Path, original: Path) -> None:
    for name in FILES:
        for command in COMMANDS:
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
            shutil.copytree(original / "run", tmp_path / "run")
            shutil.copytree(original / "whole", tmp_path / "whole", dirs_exist_ok=True)
            (tmp_path / "run" / name).unlink()
            (tmp_path / "run" / name).mkdir()
            tidy(cli(*COMMANDS[command]))
