"""Requests to a service as tests make them: byte by byte, or one at a time."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from waiting import GENEROUS


class Answered(NamedTuple):
    """An answer: its status, its content (read, where it is JSON) and its headers by their lower-case names."""

    status: int
    content: Any
    headers: dict[str, str]


@contextmanager
def connection_to(url: str) -> Iterator[HTTPConnection]:
    """Open a connection that stays open between requests."""
    address = urlsplit(url)
    line = HTTPConnection(str(address.hostname), address.port, timeout=GENEROUS)
    try:
        yield line
    finally:
        line.close()


def ask_on(line: HTTPConnection, path: str, body: Any = None, verb: str | None = None, **headers: str) -> Answered:
    """Send one request and read its answer."""
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    if data is not None and not isinstance(body, bytes):
        headers.setdefault("Content-Type", "application/json")
    line.request(verb or ("GET" if data is None else "POST"), path, data, headers)
    answer = line.getresponse()
    text = answer.read()
    kind = answer.headers.get_content_type()
    content = json.loads(text) if text and kind == "application/json" else text.decode()
    return Answered(answer.status, content, {name.lower(): value for name, value in answer.headers.items()})


def ask(url: str, path: str, body: Any = None, verb: str | None = None, **headers: str) -> Answered:
    """Ask on a connection of its own."""
    with connection_to(url) as line:
        return ask_on(line, path, body, verb, **headers)


def send_raw(url: str, request: bytes) -> bytes:
    """Send bytes and return all that is answered until the server closes the connection."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=GENEROUS) as line:
        line.sendall(request)
        return b"".join(iter(lambda: line.recv(4096), b""))
