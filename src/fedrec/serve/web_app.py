"""What every web application of ours shares: errors as JSON, a token, limits, `/health` and `/metrics`.

Whoever needs an application calls `make_app` and adds paths to it; `web_server.py` puts it on a port.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import logging
import os
import secrets
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedrec import __version__
from fedrec.errors import FedrecError, reason, visible_line

if TYPE_CHECKING:
    from fastapi import FastAPI, Request, Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("fedrec.serving")
TOKEN_VARIABLE = "FEDREC_TOKEN"
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
VERBS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")  # others, which anybody may invent, count as one
FAULT = "the service itself failed; whoever runs it finds the place in its log"
NO_SNIFFING = (b"x-content-type-options", b"nosniff")
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60)  # seconds: from a list to a fold-in
ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))  # made once: that takes as long as using it
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"  # where prometheus_client collects the counts of several processes


@dataclass(frozen=True)
class WebLimits:
    """What one client may take of the machine. The defaults suit a service behind a proxy as well as without one."""

    body: int = 1 << 20
    """Bytes of a request's body."""
    head: int = 16 << 10
    """Bytes of a request's first line and headers."""
    connections: int = 1000
    """Open connections of a process; more are answered 503 and closed."""
    requests: int = 200
    """Requests that are being answered at once by a process; more are answered 503."""
    arrival: float = 15.0
    """Seconds in which the head of a request must arrive, and then its body."""
    answer: float = 60.0
    """Seconds until an answer begins."""
    idle: float = 30.0
    """Seconds for which a connection may stay open without a request."""
    stop: float = 30.0
    """Seconds that requests in flight have when the service stops."""


def require_web_packages() -> None:
    """Refuse to go on where the web packages are missing, and say how to install them."""
    for package in ("fastapi", "uvicorn", "httptools", "prometheus_client"):
        if find_spec(package) is None:
            raise FedrecError(
                f"a web service needs the package {package}; install it with: pip install 'fedrec[serve]'"
            )


def choose_token(loopback: bool, file: Path | None = None) -> str | None:
    """Return the token that clients must show: from a file, from FEDREC_TOKEN, or a new one where others can connect.

    On a loopback address none is needed, because only programs of this machine reach it.
    """
    if file is not None:
        try:
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise FedrecError(f"cannot read the token in {file}: {reason(error)}") from None
    else:
        token = os.environ.get(TOKEN_VARIABLE, "").strip()
    if token:
        # Only long ASCII: a token travels in a header, where other characters have no agreed encoding.
        if len(token) < 16 or not token.isascii():
            raise FedrecError("a token needs at least 16 ASCII characters; make one with: openssl rand -hex 24")
        return token
    if file is not None:
        raise FedrecError(f"{file} is empty; write a token into it: openssl rand -hex 24")
    # None on loopback, so that trying it out on one's own machine needs no ceremony.
    return None if loopback else secrets.token_urlsafe(24)


def make_app(
    title: str,
    health: Callable[[], dict[str, Any]],
    *,
    local: bool = True,
    token: str | None = None,
    limits: WebLimits | None = None,
    **options: Any,
) -> FastAPI:
    """Make an application that has `/health`, `/metrics` and `/openapi.json`, and answers what is wrong as JSON.

    `health`: what `/health` says beside the status. `local`: only requests to a name of this machine are answered.
    `token`: shown as `Authorization: Bearer TOKEN`, or as the password that a browser asks for; `/health` needs none.
    `options` go to FastAPI. The counts of the application are `app.state.metrics`;
    a stream of events ends when `app.state.stopping` is set.
    """
    require_web_packages()
    from fastapi import FastAPI
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    # FastAPI's own pages load scripts from elsewhere
    app = FastAPI(title=title, version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False, **options)
    app.state.metrics = WebMetrics()
    app.state.stopping = asyncio.Event()
    app.add_middleware(WebGuard, metrics=app.state.metrics, local=local, token=token, limits=limits or WebLimits())
    app.add_exception_handler(HTTPException, _answer_refusal)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(FedrecError, _answer_error)

    @app.get("/health", summary="Whether the service works, and what it serves", responses=PROBLEMS)
    def check_health() -> dict[str, Any]:
        return {"status": "ok", "fedrec": __version__, **health()}

    @app.get("/metrics", summary="Counts and times in Prometheus' text format", include_in_schema=False)
    def show_metrics() -> Any:
        from starlette.responses import Response

        return Response(app.state.metrics.render(), media_type="text/plain; version=0.0.4")

    return app


PROBLEM_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string", "description": "What is wrong, in one sentence"}},
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"description": what, "content": {"application/json": {"schema": PROBLEM_SCHEMA}}}
    for status, what in (("4XX", "What is wrong with the request"), ("5XX", "The service failed or is busy"))
}
"""For `responses` of a path: everything that is refused has one form."""


def problem(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    """Answer what is wrong in one sentence."""
    from starlette.responses import Response

    return Response(encode_json({"error": sentence}), status, headers, "application/json")


def encode_json(value: Any) -> bytes:
    """Encode a value as JSON in UTF-8; half a character, which JSON may hold, becomes a question mark."""
    # Half a surrogate pair, which JSON allows, must not turn a correct request into a fault.
    return ENCODER.encode(value).encode(errors="replace")


def _answer_refusal(request: Request, error: Exception) -> Response:
    """Answer what Starlette refuses by itself: unknown paths and verbs."""
    status, headers = int(getattr(error, "status_code", 500)), dict(getattr(error, "headers", None) or {})
    if status == 404:
        # The path is a stranger's text: control characters in it could forge lines on a terminal.
        return problem(404, f"there is no {visible_line(request.url.path)[:100]}; / lists what there is")
    if status == 405:
        known = {verb.strip() for verb in headers.get("Allow", "").split(",")} - {""}
        # HEAD is answered wherever GET is, though the framework does not say so.
        headers["Allow"] = ", ".join(sorted(known | ({"HEAD"} if "GET" in known else set())))
        return problem(405, f"{request.method} is not allowed here; use {headers['Allow']}", headers)
    return problem(status, str(getattr(error, "detail", "")) or "the request was refused", headers)


def _answer_invalid(request: Request, error: Exception) -> Response:
    first = getattr(error, "errors", list)()[0]
    if first["type"] == "json_invalid" or first["loc"] == ("body",):
        return problem(400, "send JSON, with Content-Type: application/json; /openapi.json says what it holds")
    where = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
    return problem(400, f"{where}: {first['msg'][:1].lower()}{first['msg'][1:]}")


def _answer_error(request: Request, error: Exception) -> Response:
    return problem(getattr(error, "status", 400), str(error))


def log_fault(where: str, error: BaseException) -> None:
    """Log kinds of errors and places in the code. What errors say may name a user, so it is left out."""
    chain: list[BaseException] = [error]
    # The chain may run in a circle, which Python allows.
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and cause not in chain:
        chain.append(cause)
    parts = (f"{type(one).__name__}\n{''.join(traceback.format_tb(one.__traceback__))}" for one in chain)
    log.error("%s: %s", where, "because of ".join(parts).rstrip())


class WebMetrics:
    """Counts and times of requests; those of all workers are added up where several processes serve."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = CollectorRegistry()
        self.requests = Counter(
            "fedrec_requests", "Requests answered", ["verb", "path", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "fedrec_request_seconds", "Seconds until an answer", ["path"], buckets=BUCKETS, registry=self.registry
        )
        self.in_flight = Gauge(
            "fedrec_requests_in_flight", "Requests being answered", registry=self.registry, multiprocess_mode="livesum"
        )

        self._places: dict[tuple[str, str, int], tuple[Any, Any]] = {}

    def count(self, verb: str, path: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        place = self._places.get((verb, path, status))
        # To look it up by its labels every time would take longer than to count.
        if place is None:
            place = self.requests.labels(verb, path, status), self.seconds.labels(path)
            self._places[verb, path, status] = place
        place[0].inc()
        place[1].observe(seconds)

    def render(self) -> bytes:
        """Write all counts as Prometheus reads them."""
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        if MULTIPROCESS not in os.environ:
            return generate_latest(self.registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)  # type: ignore[no-untyped-call]
        return generate_latest(together)


@dataclass
class WebGuard:
    """Stands before an application: lets in who may come, within the limits, and counts.

    It is plain ASGI, because Starlette's own base for such a class costs as much as a whole list does.
    """

    app: ASGIApp
    metrics: WebMetrics
    local: bool = True
    token: str | None = None
    limits: WebLimits = field(default_factory=WebLimits)
    in_flight: int = 0
    OPEN: ClassVar = ("/health",)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        # HEAD is answered as GET, so that its headers are those that GET would have.
        # the server leaves out the body of an answer to HEAD by itself
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        answer = _Answer(send)
        self.in_flight += 1
        self.metrics.in_flight.inc()
        try:
            refusal = await self._pass_on(inner, receive, answer)
            if refusal is not None and not answer.status:
                await refusal(scope, receive, answer.send)
        # Counted in any case, also where the client has gone: else requests in flight would only ever grow.
        finally:
            self.in_flight -= 1
            self.metrics.in_flight.dec()
            self._count(scope["method"], _find_template(inner), answer.status, time.perf_counter() - began)

    async def _pass_on(self, scope: Scope, receive: Receive, answer: _Answer) -> Response | None:
        """Let the application answer; return the answer in its place where it may not or cannot."""
        headers = dict(scope["headers"])
        refusal = self._refuse(scope, headers)
        if refusal is not None:
            # A body that is not read would be taken for the next request on the same connection.
            return _close_after(refusal) if _has_body(headers) else refusal
        if _has_body(headers):
            try:
                # A body that trickles in would otherwise hold a place among the requests for as long as its sender
                # likes.
                async with asyncio.timeout(self.limits.arrival):
                    body = await _read_body(receive, self.limits.body)
            except TimeoutError:
                return _close_after(problem(408, "the request did not arrive in time"))
            if body is None:
                return _close_after(self._refuse_size())
            receive = _repeat_body(body, receive)
        try:
            async with asyncio.timeout(self.limits.answer) as answer.deadline:
                await self.app(scope, receive, answer.send)
        except TimeoutError:
            return problem(503, "the answer took too long; try again", {"Retry-After": "5"})
        except Exception as error:
            log_fault(f"{scope['method']} {_find_template(scope)}", error)
            # A part of the answer has left: whoever reads it must see that it broke off.
            if answer.status:
                raise ConnectionAbortedError("an answer broke off") from None
            return problem(500, FAULT)
        finally:
            answer.deadline = None
        return None

    def _refuse(self, scope: Scope, headers: dict[bytes, bytes]) -> Response | None:
        """Refuse a request that is not for us, that may not come, or that is too large or one too many."""
        # Another name that leads to this machine is how a web page elsewhere would reach a local service.
        if self.local and not is_local_name(headers.get(b"host", b"").decode("latin-1")):
            return problem(403, "this service is for programs on this machine: use localhost")
        if self.token is not None and scope["path"] not in self.OPEN and not self._shows_token(headers):
            challenge = {"WWW-Authenticate": 'Bearer, Basic realm="fedrec"'}
            return problem(401, "show the token of this service: Authorization: Bearer TOKEN", challenge)
        size = headers.get(b"content-length", b"0")
        # At most 18 digits: to parse a number of any length costs time that a stranger would choose.
        if not size.isdigit() or len(size) > 18 or int(size) > self.limits.body:
            return self._refuse_size()
        # After the cheap refusals, so that those who may not come at all are told so even when it is busy.
        if self.in_flight > self.limits.requests:
            return problem(503, "too many requests at once; try again", {"Retry-After": "1"})
        return None

    def _shows_token(self, headers: dict[bytes, bytes]) -> bool:
        kind, _, value = headers.get(b"authorization", b"").partition(b" ")
        # Browsers ask for a name and a password.
        if kind.lower() == b"basic":
            try:
                value = base64.b64decode(value, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        # In constant time: the duration of a plain comparison tells how much of a guess is right.
        return hmac.compare_digest(value.strip(), (self.token or "").encode())

    def _refuse_size(self) -> Response:
        return problem(413, f"a request may have at most {self.limits.body:,} bytes")

    def _count(self, verb: str, path: str, status: int, seconds: float) -> None:
        # Invented verbs would each make a new time series, and memory is what they cost.
        known = verb if verb in VERBS else "other"
        self.metrics.count(known, path, status, seconds)
        if status >= 400:
            log.warning("%s %s %d, %.1f ms", known, path, status, seconds * 1000)


def is_local_name(host: str) -> bool:
    """Whether a request was made to this machine by name: a page elsewhere may have its own name lead here."""
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    return name in LOCAL_NAMES or (name.startswith("127.") and name.replace(".", "").isdigit())


def _find_template(scope: Scope) -> str:
    """Return the path with its parameters as names: what stands for them may be the id of a user."""
    return getattr(scope.get("route"), "path_format", "other")


class _Answer:
    """What is sent, with its status, and the deadline by which it has to begin."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.deadline: asyncio.Timeout | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", ()), NO_SNIFFING]
            if self.deadline is not None:
                self.deadline.reschedule(None)  # a stream of events may go on for hours
        await self._send(message)


def _has_body(headers: dict[bytes, bytes]) -> bool:
    return b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"


def _close_after(response: Response) -> Response:
    """End the connection with an answer: the rest of a body that is not read must not be taken for a request."""
    response.headers["Connection"] = "close"
    return response


async def _read_body(receive: Receive, most: int) -> bytes | None:
    """Read a whole body; None where it is larger than allowed, whatever its header said."""
    parts, size = [], 0
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        # Counted while reading, because a chunked body announces no size.
        size += len(parts[-1])
        if size > most:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


def _repeat_body(body: bytes, receive: Receive) -> Receive:
    """Give an application a body that was read before it; what comes after it is the news that nobody waits."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def repeat() -> Message:
        return messages.pop() if messages else await receive()

    return repeat
