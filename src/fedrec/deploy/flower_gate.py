"""The SuperLink of a server: all of it on loopback, and a port for nodes that answers what nodes need and nothing else.

`python -m fedrec.deploy.flower_gate HOST PORT CERT KEY NODES FLOWERS_ARGUMENTS...` starts it. Flower serves nodes,
operators and apps on one port, where whoever has the address may submit an app or admit a node. This replaces one
internal function of Flower 1.41, which the tests try whenever its version changes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import importlib
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import uvicorn
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from flwr.superlink.main import create_app

HEALTH = "/health"
FLEET = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "register-node",
        "activate-node",
        "deactivate-node",
        "unregister-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)
"""All that a node asks a server for. A prefix would not do: `/v1/fleet/../control/...` has it."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Gate:
    """Passes on what nodes of the operator's folder ask for, and a question for health; the rest is not found."""

    def __init__(self, inside: Application, nodes: Path) -> None:
        self.inside, self.nodes = inside, nodes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path, raw = scope["path"], scope.get("raw_path", b"").partition(b"?")[0].decode("latin-1")
        exact = path == raw  # no escaped character that Flower would read otherwise
        if exact and scope["method"] == "GET" and path == HEALTH:
            await self.inside(scope, receive, send)
        elif not (exact and scope["method"] == "POST" and path in FLEET):
            await _refuse(send, 404)
        elif not self._is_admitted(dict(scope["headers"])):
            await _refuse(send, 401)
        else:
            await self.inside(scope, receive, send)

    def _is_admitted(self, headers: dict[bytes, bytes]) -> bool:
        """Whether the key that a request names, and that Flower checks its signature by, lies in the folder now."""
        try:
            named = base64.b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.lower().encode()], validate=True)
        except (KeyError, ValueError):
            return False
        return any(_encode_key(path) == named for path in self.nodes.glob("*.pub"))


def _encode_key(path: Path) -> bytes | None:
    """Write a public key of OpenSSH's format as Flower does."""
    try:
        return load_ssh_public_key(path.read_bytes()).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    except (OSError, ValueError):
        return None


async def _refuse(send: Send, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


class _Second(uvicorn.Server):
    """A server in a process whose signals another one handles."""

    def capture_signals(self) -> Any:
        return contextlib.nullcontext()


async def _serve_both(inside: uvicorn.Server, outside: uvicorn.Server) -> None:
    first = asyncio.create_task(inside.serve())
    while not inside.started and not first.done():
        await asyncio.sleep(0.05)
    second = asyncio.create_task(outside.serve())
    await first
    outside.should_exit = True
    await second


def main(words: list[str]) -> None:
    host, port, certificate, key, nodes, *flowers = words
    command: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")  # the package has a function so named

    def run(lifespan_config: Any) -> None:  # as Flower names it
        config = lifespan_config
        app = create_app(config, command.SuperLinkLifespan)
        inside = uvicorn.Config(
            app,
            config.host,
            config.port,
            ssl_certfile=config.ssl_certfile,
            ssl_keyfile=config.ssl_keyfile,
            access_log=False,
        )
        outside = uvicorn.Config(
            Gate(app, Path(nodes)),
            host,
            int(port),
            ssl_certfile=certificate,
            ssl_keyfile=key,
            access_log=False,
            lifespan="off",
            server_header=False,
        )
        asyncio.run(_serve_both(uvicorn.Server(inside), _Second(outside)))

    command._run_superlink_http_api = run
    sys.argv = ["flower-superlink", *flowers]
    command.flower_superlink()


if __name__ == "__main__":
    main(sys.argv[1:])
