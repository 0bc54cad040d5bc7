"""What somebody with the address of a server and its ca.crt can do, and what an app that the server sends can do."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import subprocess
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedrec[flower]'")
import numpy as np
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.routers.fleet.router import router

from fedrec.deploy import flower
from fedrec.deploy.audit_log import AuditLog
from fedrec.deploy.flower import Certificates, Joining, SuperLink, environment, free_port
from fedrec.deploy.flower_gate import FLEET, Gate
from fedrec.deploy.flower_worker import Worker, hash_own_bundle
from fedrec.deploy.keys import make_node_key, make_server_keys
from fedrec.deploy.node import Settings
from fedrec.deploy.node_process import start_node
from fedrec.deploy.processes import Processes
from fedrec.deploy.shard import NodeData
from waiting import GENEROUS, wait_until

# -- the server's port --


def ask_gate(gate: Gate, method: str, path: str, headers: dict[str, str] | None = None, raw: str | None = None) -> int:
    """Return the status of a request."""
    sent: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b""}

    fields = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    scope = {"type": "http", "method": method, "path": path, "raw_path": (raw or path).encode(), "headers": fields}
    asyncio.run(gate(scope, receive, send))
    return int(sent[0]["status"])


async def everything(scope: Any, receive: Any, send: Any) -> None:
    """All that Flower would answer."""
    await send({"type": "http.response.start", "status": 200, "headers": []})


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    nodes = tmp_path / "nodes"
    nodes.mkdir()
    make_node_key(nodes / "one")
    return Gate(everything, nodes)


def named_key(public: Path) -> dict[str, str]:
    key = load_ssh_public_key(public.read_bytes())
    text = base64.b64encode(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return {FLEET_HTTP_PUBLIC_KEY_HEADER: text.decode()}


def test_the_port_knows_all_that_nodes_ask_for() -> None:
    """Of the installed version of Flower."""
    assert {route.path for route in router.routes} == FLEET  # type: ignore[attr-defined]


def test_a_node_of_the_folder_is_let_through(gate: Gate) -> None:
    for path in FLEET:
        assert ask_gate(gate, "POST", path, named_key(gate.nodes / "one.pub")) == 200
    assert ask_gate(gate, "GET", "/health") == 200


@pytest.mark.parametrize(
    ("method", "path", "raw"),
    [
        ("POST", "/v1/control/start-run", None),
        ("POST", "/v1/control/list-nodes", None),
        ("POST", "/v1/runtime/acquire-task", None),
        ("POST", "/v1/fleet/../control/start-run", None),
        ("POST", "/v1/fleet/pull-messages", "/v1/fleet/%70ull-messages"),
        ("POST", "/v1/fleet/pull-messages/", None),
        ("POST", "//v1/fleet/pull-messages", None),
        ("GET", "/v1/fleet/pull-messages", None),
        ("GET", "/openapi.json", None),
        ("GET", "/docs", None),
        ("POST", "/health", None),
        ("GET", "/health/", None),
    ],
)
def test_nothing_else_is_there(gate: Gate, method: str, path: str, raw: str | None) -> None:
    assert ask_gate(gate, method, path, named_key(gate.nodes / "one.pub"), raw) == 404


def test_a_key_that_is_not_in_the_folder_now_is_no_nodes(gate: Gate, tmp_path: Path) -> None:
    """Whatever Flower's database says; and one that was taken out is a stranger's at once."""
    stranger = make_node_key(tmp_path / "stranger")
    assert ask_gate(gate, "POST", "/v1/fleet/pull-messages", named_key(stranger)) == 401
    assert ask_gate(gate, "POST", "/v1/fleet/pull-messages") == 401
    assert ask_gate(gate, "POST", "/v1/fleet/pull-messages", {FLEET_HTTP_PUBLIC_KEY_HEADER: "?"}) == 401
    mine = named_key(gate.nodes / "one.pub")
    (gate.nodes / "one.pub").unlink()
    assert ask_gate(gate, "POST", "/v1/fleet/pull-messages", mine) == 401


# -- the node's worker --


def test_the_same_words_make_the_same_bundle() -> None:
    assert hash_own_bundle() == hash_own_bundle()


def test_a_worker_answers_the_agreed_bundle_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    refused: list[str] = []
    bundle = b"bundle"
    agreed = hashlib.sha256(bundle).hexdigest()
    worker = Worker("127.0.0.1:9", b"secret", [agreed], lambda message, spent: message[::-1], refused.append)
    content = RecordDict({"message": ArrayRecord({"bytes": Array(np.frombuffer(b"abc", dtype=np.uint8))})})

    def message(kind: str) -> Message:
        made = Message(content, dst_node_id=1, message_type=kind)
        made.metadata.__dict__["_message_id"] = "1"
        return made

    reply, reason = worker._reply(message("train"), bundle, 0.0)
    assert not reason
    assert bytes(reply.content["message"]["bytes"].numpy()) == b"cba"  # type: ignore[index]
    for sent, kind in ((b"another", "train"), (bundle, "query")):
        reply, reason = worker._reply(message(kind), sent, 0.0)
        assert reply.has_error()
        assert reply.error.code == 7
        assert refused[-1] == reason


# -- a hostile app, with Flower's processes --

HOSTILE = """
from pathlib import Path

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

FOLDER = Path({folder!r})
server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def main(grid, context):
    (FOLDER / "server").touch()
    nodes = list(grid.get_node_ids())
    messages = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in nodes]
    replies = list(grid.send_and_receive(messages, timeout=120))
    (FOLDER / "replies").write_text(str([reply.error.reason if reply.has_error() else "done" for reply in replies]))


@client_app.train()
def train(message, context):
    (FOLDER / "node").touch()
    return Message(RecordDict(), reply_to=message)
"""


def hostile_app(folder: Path, marks: Path) -> Path:
    app = folder / "hostile-app"
    app.mkdir()
    marks.mkdir()
    (app / "hostile.py").write_text(HOSTILE.format(folder=str(marks)))
    words = flower.APP.replace("fedrec.deploy.flower_app:", "hostile:").replace("fedrec", "hostile")
    (app / "pyproject.toml").write_text(words)
    return app


class Place:
    """A server and a node with Flower's processes. `stock`: started as Flower's own documentation does."""

    def __init__(self, folder: Path, processes: Processes, stock: bool) -> None:
        self.folder, self.processes = folder, processes
        self.keys, self.state, self.marks = folder / "keys", folder / "node", folder / "marks"
        make_server_keys(self.keys, ["127.0.0.1"])
        self.public = make_node_key(self.keys / "node")
        self.link = SuperLink(folder / "link", Certificates(self.keys), "127.0.0.1", free_port(), self.keys, processes)
        (folder / "data.csv").write_text("user,item\na,x\n")
        self.state.mkdir()
        Settings(NodeData(folder / "data.csv"), key=self.keys / "node").write(self.state)
        self._start_stock() if stock else self._start()

    def _start(self) -> None:
        self.link.start()
        self.link.register(self.public)
        joining = Joining(self.link.address, self.keys / "ca.crt", self.keys / "node", free_port())
        start_node(self.state, joining, self.processes, {})

    def _start_stock(self) -> None:
        link, private = self.link, Certificates(self.keys)
        options = flower._link_options(link.address, private, link.home / "state.db")
        command = [flower._program("flower-superlink"), *options]
        link.process = self.processes.start(command, link.env, link.home / "superlink.log")
        link._await_health()
        self.flwr("supernode", "register", str(self.public), "stranger")
        words = ["--superlink", link.address, "--root-certificates", str(self.keys / "ca.crt")]
        words += ["--auth-supernode-private-key", str(self.keys / "node"), "--host", "127.0.0.1"]
        words += ["--port", str(free_port())]
        env = environment(self.state / "flower")
        self.processes.start([flower._program("flower-supernode"), *words], env, self.state / flower.LOG)

    def flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of somebody who has the public address and ca.crt, and nothing else."""
        home = self.folder / "stranger"
        home.mkdir(exist_ok=True)
        lines = ["[superlink]", 'default = "stranger"', "[superlink.stranger]", f'address = "{self.link.address}"']
        lines.append(f"root-certificates = {json.dumps(str(self.keys / 'ca.crt'))}")
        (home / "config.toml").write_text("\n".join(lines))
        command = [flower._program("flwr"), *words]
        return subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=GENEROUS)


@pytest.mark.slow
def test_strangers_ran_their_code_on_stock_flower(tmp_path: Path) -> None:
    with Processes() as processes:
        place = Place(tmp_path, processes, stock=True)
        app = hostile_app(tmp_path, place.marks)
        wait_until(lambda: "SuperNode ID" in (place.state / flower.LOG).read_text())
        done = place.flwr("run", str(app), "stranger")
        assert done.returncode == 0, done.stderr
        wait_until(lambda: (place.marks / "replies").exists())
        assert {path.name for path in place.marks.iterdir()} == {"server", "node", "replies"}


@pytest.mark.slow
def test_nothing_but_the_agreed_program_runs(tmp_path: Path) -> None:
    """Not a stranger's app, on the server or on a node; nor the operator's own on a node."""
    with Processes() as processes:
        place = Place(tmp_path, processes, stock=False)
        app = hostile_app(tmp_path, place.marks)
        wait_until(lambda: "SuperNode ID" in (place.state / flower.LOG).read_text())
        assert place.flwr("run", str(app), "stranger").returncode != 0
        stranger = make_node_key(tmp_path / "elsewhere")
        assert place.flwr("supernode", "register", str(stranger), "stranger").returncode != 0
        assert place.flwr("list", "stranger").returncode != 0
        assert not list(place.marks.iterdir())
        place.link._flwr("run", str(app), flower.CONNECTION)
        wait_until(lambda: (place.marks / "replies").exists())
        assert "is not one that this node runs" in (place.marks / "replies").read_text()
        assert {path.name for path in place.marks.iterdir()} == {"server", "replies"}
        refused = [line["refused"] for line in AuditLog(place.state).read() if line.get("kind") == "app"]
        assert len(refused) == 1
