"""The service on a socket: Python's own HTTP server, one thread for each connection."""

from __future__ import annotations

import ipaddress
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fedrec.errors import FedrecError, reason
from fedrec.serving.service import Answer, Service
from fedrec.visible import visible_line

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
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        if not self.server.is_meant(self.headers.get("Host", "")):
            self._send(Answer(403, {"error": "this service is for programs on this machine: use localhost"}))
            return
        size = self.headers.get("Content-Length", "0")
        if not size.isdigit() or int(size) > LARGEST_BODY:
            self.close_connection = True  # the body was not read
            self._send(Answer(413, {"error": f"the request needs a Content-Length of at most {LARGEST_BODY:,} bytes"}))
            return
        body = self.rfile.read(int(size))
        self._send(self.server.service.answer(self.command, self.path, body))

    def _send(self, answer: Answer) -> None:
        content = answer.body()
        self.send_response(answer.status)
        self.send_header("Content-Type", f"{'text/html' if answer.is_page else 'application/json'}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
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
            raise FedrecError(f"cannot serve at {visible_line(host)} port {port}: {reason(error)}; choose another "
                              "--port or --host") from None  # fmt: skip

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
        """A connection that breaks off is none of ours."""
