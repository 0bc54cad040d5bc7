"""What is secret is for its owner alone, whatever the umask: folders of servers, nodes and keys, logs, databases."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="needs the extra flower")
from deploy.town import Town, settings
from fedrec.deploy.flower import LOG, Certificates, Joining, SuperLink
from fedrec.deploy.keys import make_node_key, make_server_keys
from fedrec.deploy.node_process import start_node
from fedrec.deploy.processes import Processes

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def readable(folder: Path) -> list[str]:
    """What in a folder others could read, if the folder let them in."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and mode(path) & 0o077)


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    """In place of any program one that says something and ends."""
    with Processes() as made:
        start = made.start
        said = [sys.executable, "-c", "print('something')"]
        monkeypatch.setattr(made, "start", lambda command, env, log: start(said, dict(os.environ), log))
        yield made


@pytest.mark.parametrize("before", [False, True])
def test_a_superlink(tmp_path: Path, processes: Processes, monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    """Also in a folder that was made with a database and a log which everybody could read."""
    monkeypatch.setattr(SuperLink, "_await_health", lambda link: link.process.wait())
    make_server_keys(tmp_path / "keys", ["127.0.0.1"])
    home = tmp_path / "run" / "superlink"
    secret = [home / "state.db", home / "superlink.log"]
    if before:
        home.mkdir(parents=True)
        for path in secret:
            path.write_text("before\n")
    SuperLink(home, Certificates(tmp_path / "keys"), "127.0.0.1", 1, tmp_path, processes).start()
    assert [mode(path) for path in secret] == [0o600, 0o600]
    assert before or mode(home) == 0o700
    held = "before\n" if before else ""
    assert [path.read_text() for path in secret] == [held, held + "something\n"]


def test_a_node(tmp_path: Path, processes: Processes) -> None:
    state = tmp_path / "nodes" / "one"
    joining = Joining("127.0.0.1:9", tmp_path / "ca.crt", tmp_path / "key", 1)
    start_node(state, joining, processes, {}).wait()
    joining.super_node(state, processes, {}).wait()
    assert mode(state) == mode(state / "flower") == 0o700
    assert mode(state / LOG) == 0o600


def test_a_node_that_took_part(tmp_path: Path) -> None:
    town = Town(settings("fedmf"), tmp_path / "town", secure=True, minimum=2)
    town.server().run()
    for state in town.states:
        assert mode(state) == 0o700
        assert readable(state) == [".lock", "identity.pub"]
    assert {"nodes.json", "last.safetensors", "checkpoint.safetensors"}.isdisjoint(readable(tmp_path / "town" / "run"))


def test_keys(tmp_path: Path) -> None:
    make_server_keys(tmp_path / "keys", ["127.0.0.1"])
    make_node_key(tmp_path / "mine" / "node.key")
    assert mode(tmp_path / "keys") == mode(tmp_path / "mine") == 0o700
    assert readable(tmp_path) == ["keys/ca.crt", "keys/server.crt", "mine/node.key.pub"]
