"""`fedrec deploy init`: what it writes is what `deploy start`, systemd and compose read."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from fedrec.commands.deploy import deploy_app
from fedrec.deploy.consent import Consent
from fedrec.deploy.consortium import read_start
from fedrec.deploy.key_files import require_authority, require_node_key, require_public
from fedrec.secure import read_public

MEMBERS = ("tea", "coffee", "books")
WORDS = ("--members", "tea, coffee,books", "--host", "recs.example.org", "--items", "items.csv", "--method", "fedmf")


@pytest.fixture
def folder(cli: Any, tmp_path: Path) -> Path:
    (tmp_path / "items.csv").write_text("item,title\n1,One\n2,Two\n")
    ended = cli("deploy", "init", "fed", *WORDS, "--rounds", 5, "--program", sys.executable, "--place", tmp_path)
    assert ended.code == 0, ended.err
    assert "2 items" in ended.err
    assert "A round needs 2 of 3 members" in ended.err
    return tmp_path / "fed"


def test_every_part_has_its_keys_and_no_other_private_one(folder: Path) -> None:
    private = {path.relative_to(folder).as_posix() for path in folder.rglob("*.key")}
    assert private == {"server/keys/ca.key", "server/keys/server.key", *(f"{name}/node.key" for name in MEMBERS)}
    for name in MEMBERS:
        require_authority(folder / name / "ca.crt")
        require_node_key(folder / name / "node.key")
        require_public(folder / "server" / "nodes" / f"{name}.pub")
        assert len(read_public(folder / name / "peers")) == 2
        assert not (folder / name / "peers" / f"{name}.pub").exists()
        assert Consent.read(folder / name / "consent.toml").members == 2


@pytest.mark.parametrize("part", ["server/server.toml", "tea/node.toml"])
def test_settings_are_words_that_the_command_knows(folder: Path, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = read_start(folder / part)
    monkeypatch.chdir((folder / part).parent)
    command = typer.main.get_command(deploy_app).commands[words[0]]  # type: ignore[attr-defined]
    given = command.make_context(words[0], words[1:]).params
    settings = tomllib.loads((folder / part).read_text())
    for name, value in settings.items():
        assert str(given[name]) == str(value), name
    files = ("items", "keys", "nodes", "ca", "key", "peers", "consent")
    assert all(Path(str(given[name])).exists() for name in files if given.get(name))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("part", ["server/fedrec-server.service", "tea/fedrec-node.service"])
def test_units_are_what_systemd_reads(folder: Path, part: str) -> None:
    verified = subprocess.run(["systemd-analyze", "verify", folder / part], capture_output=True, text=True)
    about_ours = [line for line in verified.stderr.splitlines() if Path(part).name in line]
    assert not about_ours
    assert verified.returncode == 0


@pytest.mark.parametrize(("part", "settings"), [("server", "server.toml"), ("tea", "node.toml")])
def test_compose_files_start_the_same(folder: Path, part: str, settings: str) -> None:
    service = yaml.safe_load((folder / part / "compose.yaml").read_text())["services"]["fedrec"]
    assert service["command"] == ["deploy", "start", f"/data/{settings}"]
    assert service["volumes"] == ["./:/data"]
    assert service.get("ports") == (["8000:8000"] if part == "server" else None)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"--members": "tea"}, "at least two members"),
        ({"--members": "tea,tea"}, "a name of its own"),
        ({"--members": "tea,../x"}, "cannot be a folder"),
        ({"--method": "fedmx"}, "unknown method 'fedmx'"),
        ({"--items": "none.csv"}, "cannot read the vocabulary"),
        ({"--host": None}, "Give it as a flag"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(cli: Any, tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    (tmp_path / "items.csv").write_text("item\n1\n2\n")
    asked = dict(zip(WORDS[::2], WORDS[1::2], strict=True)) | changed
    ended = cli("deploy", "init", "fed", *(word for pair in asked.items() if pair[1] is not None for word in pair))
    assert ended.code == 2
    assert says in ended.err
    assert not (tmp_path / "fed").exists()


def test_a_folder_in_use_and_a_file_of_something_else_are_refused(cli: Any, folder: Path) -> None:
    ended = cli("deploy", "init", "fed", *WORDS)
    assert (ended.code, "is not empty" in ended.err) == (2, True)
    ended = cli("deploy", "start", "items.csv")
    assert (ended.code, "neither server.toml nor node.toml" in ended.err) == (2, True)
