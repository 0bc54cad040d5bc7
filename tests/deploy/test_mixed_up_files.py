"""Files of keys and certificates that were mixed up: refused at once, by what they are, before anything is begun."""

from __future__ import annotations

import base64
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Cli

pytest.importorskip("cryptography", reason="needs the extra flower")
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from fedrec.deploy import services
from fedrec.deploy.flower import SuperLink
from fedrec.deploy.keys import make_node_key, make_server_keys
from fedrec.errors import FedrecError

Command = Callable[..., str]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Keys and certificates of all kinds, some data, and a folder `nodes` with one public key."""
    make_server_keys(tmp_path / "keys", ["127.0.0.1"])
    make_server_keys(tmp_path / "other", ["127.0.0.1"])
    (tmp_path / "nodes").mkdir()
    make_node_key(tmp_path / "node.key").rename(tmp_path / "nodes" / "node.key.pub")
    other = Ed25519PrivateKey.generate()
    (tmp_path / "ed25519").write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    (tmp_path / "ed25519.pub").write_bytes(other.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    (tmp_path / "locked").write_bytes(locked((tmp_path / "node.key").read_bytes()))
    (tmp_path / "cut.crt").write_bytes((tmp_path / "keys" / "ca.crt").read_bytes().replace(b"MII", b"MI\n"))
    (tmp_path / "cut.key").write_bytes((tmp_path / "node.key").read_bytes()[:300])
    (tmp_path / "empty").touch()
    (tmp_path / "items.csv").write_text("item\na\nb\n")
    (tmp_path / "mine.csv").write_text("user,item\nann,a\n")
    return tmp_path


def locked(openssh: bytes) -> bytes:
    """A key whose header says that a passphrase protects it."""
    first, *lines, last = openssh.splitlines()
    content = base64.b64decode(b"".join(lines))

    def text(value: bytes) -> bytes:
        return struct.pack(">I", len(value)) + value

    plain = text(b"none") + text(b"none") + text(b"")
    header = text(b"aes256-ctr") + text(b"bcrypt") + text(text(bytes(16)) + struct.pack(">I", 16))
    assert plain in content
    return b"\n".join([first, base64.b64encode(content.replace(plain, header)), last])


def refusal(cli: Cli, *words: object) -> str:
    ended = cli("deploy", *words)
    said = ended.err.splitlines()[-1]
    assert (ended.code, said.partition(": ")[0]) == (2, "error"), ended
    assert "PRIVATE KEY" not in ended.err, "no part of a key is shown"
    return said.removeprefix("error: ")


@pytest.fixture
def node(cli: Cli, files: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """What a node is refused for, which would otherwise start a SuperNode."""

    def start(*_: object) -> None:
        raise FedrecError("it started")

    monkeypatch.setattr(services.Joining, "super_node", start)

    def refused(ca: str = "keys/ca.crt", key: str = "node.key", *more: str) -> str:
        common = ("--superlink", "127.0.0.1:9", "--data", "mine.csv", "--state-dir", "state")
        said = refusal(cli, "node", *common, "--ca", ca, "--key", key, *more)
        assert said == "it started" or not (files / "state").exists()
        return said

    return refused


@pytest.fixture
def server(cli: Cli, files: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """What a server is refused for, which would otherwise start a SuperLink."""

    def start(*_: object) -> None:
        raise FedrecError("it started")

    monkeypatch.setattr(SuperLink, "start", start)
    monkeypatch.setattr(services, "require_free", lambda host, port: None)

    def refused() -> str:
        common = ("--items", "items.csv", "--clients", "3", "--keys", "keys", "--nodes", "nodes")
        said = refusal(cli, "server", *common, "--out", "run")
        assert said == "it started" or not (files / "run").exists()
        return said

    return refused


CA = "; give the server's ca.crt (see fedrec deploy keys)"
KEY = "; give this node's private key (see fedrec deploy keys)"


@pytest.mark.parametrize(
    ("ca", "said"),
    [
        ("keys/ca.key", "keys/ca.key is a private key"),
        ("node.key", "node.key is a private key"),
        ("nodes/node.key.pub", "nodes/node.key.pub is a public key"),
        ("keys/server.crt", "keys/server.crt is a certificate that signs no others"),
        ("cut.crt", "cut.crt is a damaged certificate"),
        ("mine.csv", "mine.csv is neither a certificate nor a key"),
        ("empty", "empty is an empty file"),
        ("keys", "keys is a folder"),
        ("gone", "there is no gone"),
    ],
)
def test_an_authority(node: Command, ca: str, said: str) -> None:
    assert node(ca) == said + CA


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("keys/ca.crt", "keys/ca.crt is a certificate"),
        ("nodes/node.key.pub", "nodes/node.key.pub is a public key"),
        ("keys/server.key", "keys/server.key is a private key of another kind (not OpenSSH's ecdsa)"),
        ("ed25519", "ed25519 is a private key of another kind (not OpenSSH's ecdsa)"),
        ("locked", "locked is a private key that is protected by a passphrase"),
        ("cut.key", "cut.key is a private key of another kind (not OpenSSH's ecdsa)"),
        ("mine.csv", "mine.csv is neither a certificate nor a key"),
        ("nodes", "nodes is a folder"),
        ("gone", "there is no gone"),
    ],
)
def test_a_key_of_a_node(node: Command, key: str, said: str) -> None:
    assert node("keys/ca.crt", key) == said + KEY


def test_what_else_a_node_is_given(node: Command, files: Path) -> None:
    assert "holds no public keys" in node("keys/ca.crt", "node.key", "--peers", "keys")
    assert "cannot read the vocabulary node.key" in node("keys/ca.crt", "node.key", "--items", "node.key")
    (files / "nodes" / "more.pub").write_bytes((files / "ed25519.pub").read_bytes())
    assert "nodes/more.pub" in node("keys/ca.crt", "node.key", "--peers", "nodes")
    (files / "nodes" / "more.pub").unlink()
    assert node("keys/ca.crt", "node.key", "--peers", "nodes", "--items", "items.csv") == "it started"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read(node: Command, files: Path) -> None:
    (files / "keys" / "ca.crt").chmod(0)
    assert node() == "cannot read keys/ca.crt (Permission denied)" + CA


@pytest.mark.parametrize(
    ("name", "source", "said"),
    [
        ("ca.crt", "keys/ca.key", "keys/ca.crt is a private key; give the authority's certificate"),
        ("ca.crt", "keys/server.crt", "keys/ca.crt is a certificate that signs no others; give the authority's"),
        ("server.crt", "keys/server.key", "keys/server.crt is a private key; give the server's certificate"),
        ("server.key", "keys/server.crt", "keys/server.key is a certificate; give the server's private key"),
        (
            "server.key",
            "locked",
            "keys/server.key is a private key of another kind (not PEM); give the server's private",
        ),
        (
            "server.key",
            "other/server.key",
            "keys/server.key is not the key of keys/server.crt; give both as made together",
        ),
        ("ca.crt", "other/ca.crt", "keys/server.crt was not signed by keys/ca.crt; give both as made together"),
    ],
)
def test_a_server_s_own_files(server: Command, files: Path, name: str, source: str, said: str) -> None:
    (files / "keys" / name).write_bytes((files / source).read_bytes())
    assert server().startswith(said)


def test_files_as_they_are_meant(node: Command, server: Command) -> None:
    assert node() == server() == "it started"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("node.key", "nodes/one.pub is a private key"),
        ("keys/ca.crt", "nodes/one.pub is a certificate"),
        ("ed25519.pub", "nodes/one.pub is a public key of another kind (not OpenSSH's ecdsa)"),
        ("mine.csv", "nodes/one.pub is neither a certificate nor a key"),
    ],
)
def test_public_keys_that_are_none(server: Command, files: Path, source: str, said: str) -> None:
    (files / "nodes" / "one.pub").write_bytes((files / source).read_bytes())
    assert server() == said + "; give a node's public key (see fedrec deploy keys)"


def test_a_wrong_file_that_comes_later_is_told_once_and_ends_nothing(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_in, events = [], []

    class Link:
        def register(self, key: Path) -> bool:
            let_in.append(key.name)
            return True

    nodes = files / "nodes"
    door = services.Admission(Link(), nodes, events.append)  # type: ignore[arg-type]
    (nodes / "one.pub").write_bytes((files / "node.key").read_bytes())
    door.look()
    door.look()
    assert [(event["event"], event.get("node", event.get("name"))) for event in events] == [
        ("key", "node.key.pub"),
        ("refused", "one.pub"),
        ("key", "node.key.pub"),
    ]
    (nodes / "one.pub").write_bytes((nodes / "node.key.pub").read_bytes())
    door.look()
    assert let_in[-1] == "one.pub"
