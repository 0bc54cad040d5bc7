"""What a node says while it cannot reach its server: in words where they are known, in Flower's own otherwise."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("cryptography", reason="needs the extra flower")
from fedrec.deploy import services
from fedrec.deploy.flower import LOG, reason_in
from fedrec.deploy.keys import make_node_key, make_server_keys
from fedrec.deploy.node import Settings
from fedrec.deploy.shard import NodeData

END = """
For more information, visit: <https://flower.ai/docs/framework/1.41/en/ref-exit-codes/305.html>
INFO:     Shutting down
\x1b[92mINFO \x1b[0m:      FastAPI lifespan: shutdown
INFO:     Finished server process [24692]
"""
BEGIN = "\x1b[92mINFO \x1b[0m:      Starting Flower SuperNode\n"
FAILED = (
    BEGIN
    + """\x1b[91mERROR \x1b[0m:     Exit Code: 305
Failed to initialize the connection to the SuperLink.
{}
The SuperNode could not establish a connection to the SuperLink.
"""
    + END
)
EARLY = FAILED.format("[code: 2004] Failed to activate SuperNode.")
STRANGE = FAILED.format("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer")
BROKEN = BEGIN + "\x1b[91mERROR \x1b[0m:     Exit Code: 302\nUnable to parse the private key file.\nMore.\n" + END
CRASHED = BEGIN + "Traceback (most recent call last):\n  File x\nRuntimeError: it failed to start\n"
NOT_YET = "the server has not admitted this node yet"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (EARLY, NOT_YET),
        (STRANGE, "cannot connect to the server: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
        (BROKEN, "Flower's exit code 302: Unable to parse the private key file."),
        (CRASHED, "RuntimeError: it failed to start"),
        (EARLY + CRASHED, "RuntimeError: it failed to start"),
        (STRANGE + EARLY, NOT_YET),
        ("", "(no log)"),
    ],
)
def test_the_reason_of_the_last_start(tmp_path: Path, log: str, said: str) -> None:
    path = tmp_path / LOG
    path.write_text(log)
    begin = len(log.rpartition(BEGIN)[0].encode())
    assert reason_in(path, begin).startswith(said)
    assert "305" not in reason_in(path, begin)


class Starts:
    """SuperNodes that end at once, each with a log."""

    def __init__(self, *logs: str) -> None:
        self.logs = list(logs)

    def __call__(self, state: Path, *_: object, **__: object) -> int:
        log = self.logs.pop(0)
        with (state / LOG).open("a") as file:
            file.write(log)
        return int("rror" in log or "ERROR" in log)


def test_a_start_before_the_server_knows_the_node_does_not_look_like_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_server_keys(tmp_path / "keys", ["127.0.0.1"])
    make_node_key(tmp_path / "node.key")
    starts = Starts(EARLY, EARLY, CRASHED, BEGIN)
    monkeypatch.setattr(services, "work", starts)
    naps: list[float] = []
    monkeypatch.setattr(services, "time", SimpleNamespace(sleep=naps.append))
    said: list[str] = []
    settings = Settings(NodeData(tmp_path / "mine.csv"), key=tmp_path / "node.key")
    services.run_node(tmp_path / "state", settings, "127.0.0.1:9", tmp_path / "keys" / "ca.crt", 1, said.append)
    assert [line.partition(" (")[0].partition(";")[0] for line in said] == [
        NOT_YET,
        NOT_YET,
        "RuntimeError: it failed to start",
    ]
    assert all(line.endswith(f"trying again in {nap} s") for line, nap in zip(said, naps, strict=True))
    assert not starts.logs, "the last one ended as it should, and nothing was said of it"
