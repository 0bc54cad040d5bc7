"""A server that fails before anything has come of it: the corrected command starts, and nothing of use is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from conftest import Cli, Outcome

pytest.importorskip("cryptography", reason="needs the extra flower")
from fedrec.deploy import services
from fedrec.deploy.flower import SuperLink, free_port
from fedrec.deploy.keys import make_server_keys
from fedrec.deploy.terms import Terms
from fedrec.errors import FedrecError
from fedrec.experiment.folder import RunFolder

Start = Callable[..., Outcome]


@pytest.fixture
def start(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """`start("--rounds", 3)`: a server whose SuperLink does not start."""

    def fail(link: SuperLink) -> None:
        (link.home / "superlink.log").write_text("why it failed")
        raise FedrecError("the SuperLink did not start")

    monkeypatch.setattr(SuperLink, "start", fail)
    monkeypatch.setattr(services, "require_free", lambda host, port: None)
    make_server_keys(tmp_path / "keys", ["127.0.0.1"])
    (tmp_path / "nodes").mkdir()
    (tmp_path / "items.csv").write_text("item,tags\na,x\nb,x|y\nc,y\n")
    common = ("--items", "items.csv", "--keys", "keys", "--nodes", "nodes", "--out", "run", "--port", free_port())
    return lambda *words: cli("deploy", "server", *common, *words)


def agreed(out: Path) -> Terms:
    return Terms.decode((out / "terms.json").read_bytes())


def test_a_corrected_command_starts_where_another_has_failed(start: Start, tmp_path: Path) -> None:
    attributes = tmp_path / "run" / "attributes.npy"
    assert "SuperLink did not start" in start("--clients", "3", "--method", "ifedrec").err
    assert np.load(attributes).shape[0] == 3
    for words in (("--clients", "4", "--rounds", "7"), ("--clients", "5", "--rounds", "8", "--resume")):
        ended = start(*words)
        assert (ended.code, ended.err.splitlines()[-1]) == (2, "error: the SuperLink did not start")
        terms = agreed(tmp_path / "run")
        assert (terms.clients, terms.config.rounds) == (int(words[1]), int(words[3]))
        assert not attributes.exists(), "which the next method would have been given"
        assert (tmp_path / "run/superlink/superlink.log").read_text() == "why it failed"


@pytest.mark.parametrize(
    "name", ["nodes.json", "metrics.jsonl", "last.safetensors", "checkpoint.safetensors", "summary.json"]
)
def test_what_has_begun_is_neither_lost_nor_mixed(start: Start, tmp_path: Path, name: str) -> None:
    start("--clients", "3")
    before = (tmp_path / "run" / "terms.json").read_bytes()
    (tmp_path / "run" / name).write_text("[]")
    assert "already holds a run; continue it with --resume" in start("--clients", "3").err
    assert "was started with other settings, items or clients" in start("--clients", "4", "--resume").err
    assert "SuperLink did not start" in start("--clients", "3", "--resume").err
    assert (tmp_path / "run" / name).read_text() == "[]"
    assert (tmp_path / "run" / "terms.json").read_bytes() == before


def test_a_simulation_in_the_folder_is_not_touched(start: Start, tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", {"method": "fedmf"})
    for words in ((), ("--resume",)):
        assert "already holds a run" in start("--clients", "3", *words).err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.toml"]


def test_a_server_that_waits_for_its_first_node_is_not_disturbed(start: Start, tmp_path: Path) -> None:
    start("--clients", "3")
    before = (tmp_path / "run" / "terms.json").read_bytes()
    with RunFolder(tmp_path / "run" / "superlink").lock():
        assert "another run is in progress" in start("--clients", "4").err
    assert (tmp_path / "run" / "terms.json").read_bytes() == before


def test_a_server_holds_its_folder(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def look(link: SuperLink) -> None:
        with pytest.raises(FedrecError, match="another run is in progress"), RunFolder(link.home).lock():
            pass
        seen.append(link.home)
        raise FedrecError("enough")

    monkeypatch.setattr(SuperLink, "start", look)
    start("--clients", "3")
    assert seen == [Path("run/superlink")]


def test_a_missing_certificate_leaves_no_folder(start: Start, tmp_path: Path) -> None:
    (tmp_path / "keys" / "server.key").unlink()
    assert "there is no keys/server.key; make certificates with" in start("--clients", "3").err
    assert not (tmp_path / "run").exists()
