"""The service on a socket: Python's own HTTP server, one thread for each connection."""

from __future__ import annotations

import ipaddress
import re
import socket
import sys
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fedrec.errors import FedrecError, reason, visible_line
from fedrec.serve.http_service import Answer, Service, log_fault, problem

LARGEST_BODY = 1 << 20
IDLE = 30.0  # seconds after which a silent connection is closed


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"  # connections stay open
    server_version, sys_version = "fedrec", ""
    timeout = IDLE
    wbufsize = -1  # head and body leave together
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        refusal = self._refusal()
        if refusal is not None:
            self.close_connection = True  # the body was not read, and must not be taken for the next request
            self._send(refusal)
            return
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self._send(self.server.service.answer(self.command, self.path, body))

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_GET

    def _refusal(self) -> Answer | None:
        """Of a request that is not for us, or whose body cannot be read."""
        if not self.server.is_meant(self.headers.get("Host", "")):
            return problem(403, "this service is for programs on this machine: use localhost")
        if "Transfer-Encoding" in self.headers:
            return problem(411, "send the body with a Content-Length, without Transfer-Encoding")
        size = self.headers.get("Content-Length", "0")
        if not re.fullmatch("[0-9]{1,9}", size) or int(size) > LARGEST_BODY:
            return problem(413, f"the request needs a Content-Length of at most {LARGEST_BODY:,} bytes")
        return None

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What Python's server refuses by itself, such as a verb that nobody knows, in our form."""
        self.close_connection = True
        self.request_version = self.protocol_version  # or an answer would have no head
        what = visible_line(message or HTTPStatus(code).phrase)[:200]
        self._send(problem(code, what, self.server.service.verbs() if code == HTTPStatus.NOT_IMPLEMENTED else ()))

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", f"{answer.kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(answer.content)))
        self.send_header("X-Content-Type-Options", "nosniff")
        if answer.allow:
            self.send_header("Allow", ", ".join(answer.allow))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)
        self.wfile.flush()

    def log_message(self, format: str, *words: Any) -> None:
        """Who asks for whose list is nobody's business."""


class Server(ThreadingHTTPServer):
    """`host` and `port` that are taken, or not of this machine, are an error in one line."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, service: Service, host: str = "127.0.0.1", port: int = 8000) -> None:
        self.service = service
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise FedrecError(
                f"cannot serve at {visible_line(host)} port {port}: {reason(error)}; choose another --port or --host"
            ) from None

    @property
    def url(self) -> str:
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def local(self) -> bool:
        """Whether only programs on this machine can reach it."""
        return ipaddress.ip_address(str(self.server_address[0])).is_loopback

    def is_meant(self, host: str) -> bool:
        """Whether a request was made to this machine by name: a page elsewhere may have its own name lead here."""
        if not self.local:
            return True
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        return name in ("localhost", "127.0.0.1", "[::1]", str(self.server_address[0]))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks off is none of ours; anything else is."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            log_fault("a connection", error)
