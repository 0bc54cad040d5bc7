"""An application on a port: limits on connections, several workers, a stop that breaks no request.

uvicorn does the work. Added here is what it leaves to a proxy: heads that are too long or arrive too slowly, refusals
as JSON, and idle connections that learn of a stop before they are closed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import tempfile
import threading
from asyncio import TimerHandle, Transport
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.supervisors import Multiprocess

from fedrec.errors import FedrecError, reason, visible_line
from fedrec.serve.web_app import MULTIPROCESS, WebLimits, encode_json

BACKLOG = 512  # connections that wait to be accepted; uvicorn's 2,048 is beyond what a queue can be served in time
LINGER = 1.0  # seconds in which idle connections may still ask, and are told that this one closes


def listen(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """Open a port, where 0 chooses a free one; one that is taken, or not of this machine, is an error in one line."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A restarted service gets its port back at once instead of waiting out the old connections.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        opened.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        opened.close()
        raise FedrecError(
            f"cannot serve at {visible_line(host)} port {port}: {reason(error)}; choose another --port or --host"
        ) from None
    # Workers are processes of their own and take the open port over.
    opened.set_inheritable(True)
    return opened


def url_of(opened: socket.socket) -> str:
    """Return the address at which a port is reached."""
    host, port = opened.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def is_loopback(opened: socket.socket) -> bool:
    """Whether only programs on this machine can reach a port."""
    return ipaddress.ip_address(str(opened.getsockname()[0])).is_loopback


def run_server(
    make: Callable[[], Any], opened: socket.socket, limits: WebLimits | None = None, workers: int = 1
) -> None:
    """Serve until SIGTERM or Ctrl-C. `make` makes the application; several workers need one that can be pickled."""
    config = WebConfig(make, limits or WebLimits(), workers)
    if workers == 1:
        WebServer(config).run([opened])
        return
    with tempfile.TemporaryDirectory(prefix="fedrec-metrics-") as counts:
        # Workers inherit it, and then count in files that all of them can read.
        os.environ[MULTIPROCESS] = counts
        try:
            _Workers(config, WebServer(config).run, [opened]).run()
        finally:
            del os.environ[MULTIPROCESS]


@contextmanager
def run_beside(make: Callable[[], Any], opened: socket.socket, limits: WebLimits | None = None) -> Iterator[str]:
    """Serve in a thread of this process for as long as the `with` lasts; gives the address."""
    # What is wrong with it is said here, not in a thread that nobody hears.
    app = make()
    server = WebServer(WebConfig(lambda: app, limits or WebLimits()))
    thread = threading.Thread(target=server.run, args=([opened],), daemon=True, name="web")
    thread.start()
    try:
        yield url_of(opened)
    finally:
        server.should_exit = True
        thread.join()


class Server:
    """An application on a port of its own, for programs in Python: `with Server(service, port=0) as server: ...`."""

    def __init__(self, make: Callable[[], Any], host: str = "127.0.0.1", port: int = 8000) -> None:
        self._opened = listen(host, port)
        self._server = WebServer(WebConfig(make, WebLimits()))
        self.url, self.local = url_of(self._opened), is_loopback(self._opened)

    def serve_forever(self) -> None:
        """Serve until SIGTERM, Ctrl-C, or `shutdown` from another thread."""
        self._server.run([self._opened])

    def shutdown(self) -> None:
        self._server.should_exit = True

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()


class WebConfig(uvicorn.Config):
    """uvicorn with our limits, and without a log of who asked for what."""

    def __init__(self, make: Callable[[], Any], limits: WebLimits, workers: int = 1) -> None:
        super().__init__(
            make,
            factory=True,
            http=LimitedProtocol,
            ws="none",
            workers=workers,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=limits.idle,  # type: ignore[arg-type]  # it is only ever given to a timer
            timeout_graceful_shutdown=limits.stop,  # type: ignore[arg-type]
            # A worker that loads a model answers late, and is not to be killed for it.
            timeout_worker_healthcheck=60,
        )
        self.limits = limits


class WebServer(uvicorn.Server):
    """A server that tells open connections of its end before it closes them."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, answer what is in flight or still comes with `Connection: close`, then close."""
        for server in self.servers:
            # Closed first, so that a load balancer sends new clients elsewhere while the others are served.
            server.close()
        if (stopping := _find_stop(self.config.loaded_app)) is not None:
            stopping.set()
        farewell = [*self.server_state.default_headers, (b"connection", b"close")]
        self.server_state.default_headers = farewell
        for connection in self.server_state.connections:
            # Requests in flight have copied the default headers already.
            if isinstance(connection, LimitedProtocol) and connection.cycle is not None:
                connection.cycle.default_headers = farewell
        # A short while instead of none: a client that is just about to ask would see a broken connection.
        for _ in range(round(LINGER / 0.05)):
            if not self.server_state.connections:
                break
            await asyncio.sleep(0.05)
        await super().shutdown(sockets)


def _find_stop(app: Any) -> asyncio.Event | None:
    """Return what tells the streams of an application that they end; uvicorn has wrapped it in layers of its own."""
    while app is not None and not hasattr(app, "state"):
        app = getattr(app, "app", None)
    return None if app is None else getattr(app.state, "stopping", None)


class _Workers(Multiprocess):
    """Several processes behind one port; one that ends by itself is started again."""

    def terminate_all(self) -> None:
        """Close the port here too, so that nobody is accepted whom no worker will answer."""
        for opened in self.sockets:
            opened.close()
        super().terminate_all()


class LimitedProtocol(HttpToolsProtocol):
    """One connection within limits, which says in JSON what it refuses before an application is asked."""

    config: WebConfig
    _arrival: TimerHandle | None = None
    _head = 0  # bytes of a head that is not complete

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.config.limits.connections:
            self._refuse(503, "too many connections; try again")
        else:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass on what arrives, while its head is not too long."""
        if self._arrival is None and (self.cycle is None or self.cycle.response_complete):
            self._wait_for_head()
        self._head += len(data)
        super().data_received(data)
        if self._arrival is not None and self._head > self.config.limits.head:
            self._refuse_head()

    def on_headers_complete(self) -> None:
        self._stop_waiting()
        if sum(len(name) + len(value) for name, value in self.headers) + len(self.url) > self.config.limits.head:
            self._refuse_head()  # it came in one piece, so that nobody counted before it was complete
            raise httptools.HttpParserError("the head is too long")
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is not a request that HTTP allows")

    def _refuse_head(self) -> None:
        self._refuse(431, f"the head of a request may have at most {self.config.limits.head:,} bytes")

    def _wait_for_head(self) -> None:
        self._head = 0
        self._arrival = self.loop.call_later(self.config.limits.arrival, self._give_up)

    def _stop_waiting(self) -> None:
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None

    def _give_up(self) -> None:
        self._refuse(408, "the request did not arrive in time")

    def _refuse(self, status: int, sentence: str) -> None:
        """Answer and close, where no application answers."""
        self._stop_waiting()
        content = encode_json({"error": sentence})
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
        )
        if not self.transport.is_closing():
            self.transport.write(head.encode() + content)
            self.transport.close()
