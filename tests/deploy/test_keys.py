"""Certificates and keys that a server and its nodes start with."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from conftest import Cli
from fedrec.errors import FedrecError

pytest.importorskip("cryptography", reason="needs the extra flower")
from fedrec.deploy.keys import make_node_key, make_server_keys


def test_a_certificate_is_trusted_by_its_own_authority_and_for_its_own_names(tmp_path: Path) -> None:
    from cryptography import x509

    make_server_keys(tmp_path, ["recs.example.org", "192.0.2.10"])
    ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    root, leaf = (x509.load_pem_x509_certificate((tmp_path / f"{name}.crt").read_bytes()) for name in ("ca", "server"))
    leaf.verify_directly_issued_by(root)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["recs.example.org"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["192.0.2.10"]


def test_private_keys_are_for_their_owner_alone_and_never_overwritten(tmp_path: Path) -> None:
    make_server_keys(tmp_path, ["localhost"])
    public = make_node_key(tmp_path / "node")
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")
    for name in ("ca.key", "server.key", "node"):
        assert (tmp_path / name).stat().st_mode & 0o077 == 0
    for again in (lambda: make_node_key(tmp_path / "node"), lambda: make_server_keys(tmp_path, ["localhost"])):
        with pytest.raises(FedrecError, match="already exists"):
            again()


def test_mistakes_are_one_line(cli: Cli, tmp_path: Path) -> None:
    """Of a person who deploys what cannot be deployed, or gives files that are not there."""

    def told(*words: str) -> str:
        done = cli(*words)
        said = done.err.splitlines()[-1]  # a node first says what it has read
        assert (done.code, said.partition(": ")[0]) == (2, "error"), done
        return said

    (tmp_path / "items.csv").write_text("item\na\nb\n", encoding="utf-8")
    common = [
        "--items",
        str(tmp_path / "items.csv"),
        "--clients",
        "3",
        "--keys",
        str(tmp_path),
        "--nodes",
        str(tmp_path),
        "--out",
        str(tmp_path / "run"),
    ]
    assert "ease is centralised" in told("deploy", "server", "--method", "ease", *common)
    assert "--secure-sums" in told("deploy", "server", "--method", "fedgram", "--open-sums", *common)
    (tmp_path / "mine.csv").write_text("user,item\nann,a\n", encoding="utf-8")
    node = [
        "deploy",
        "node",
        "--data",
        str(tmp_path / "mine.csv"),
        "--state-dir",
        str(tmp_path / "state"),
        "--ca",
        str(tmp_path / "ca.crt"),
        "--key",
        str(tmp_path / "key"),
    ]
    assert "--superlink is the server's HOST:PORT" in told(*node, "--superlink", "nowhere")
    assert "give the server's ca.crt" in told(*node, "--superlink", "nowhere:8000")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen at 127.0.0.1:{port}" in told("deploy", "server", "--port", str(port), *common)
    assert not (tmp_path / "run").exists()
    assert "is not the state folder of a node" in told("recommend", "--state-dir", str(tmp_path), "--user", "a")
