"""The service over HTTP when something is wrong: with the model, or with a request as such."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote

import pytest

import fedrec.serve
from fedrec.serve import FoldInResult, Recommendation, Server, Service, SimilarItem, UnknownId
from test_serving import listening
from waiting import GENEROUS

WHO = "a user's name"


class Broken:
    """Lists of a model that has a fault of its own."""

    def about(self) -> dict[str, Any]:
        return {"method": "broken", "users": 1, "items": 1, "folds_in": True}

    def for_user(self, user: Any, k: int) -> list[Recommendation]:
        try:
            return {}[user]
        except KeyError as error:
            raise RuntimeError(f"no row for {user}") from error

    def fold_in(self, items: Sequence[Any], k: int) -> FoldInResult:
        raise UnknownId(f"item {items[0]!r} is not here")

    def similar(self, item: Any, k: int) -> list[SimilarItem]:
        return [SimilarItem(item, 1, object(), None)]  # type: ignore[arg-type]  # which is no JSON


@pytest.fixture
def server() -> Iterator[Server]:
    with listening(Service(Broken())) as made:
        yield made


@pytest.fixture
def line(server: Server) -> Iterator[HTTPConnection]:
    """A connection that stays open between requests."""
    made = HTTPConnection(str(server.server_address[0]), int(server.server_address[1]), timeout=GENEROUS)
    yield made
    made.close()


def ask(line: HTTPConnection, verb: str, path: str, body: bytes | None = None) -> tuple[int, Any, str | None]:
    line.request(verb, path, body)
    answer = line.getresponse()
    assert answer.getheader("Content-Type") == "application/json; charset=utf-8"
    return answer.status, json.loads(answer.read()), answer.getheader("Allow")


def raw(server: Server, request: bytes) -> bytes:
    """All that is answered until the server closes the connection."""
    with socket.create_connection(server.server_address[:2], timeout=GENEROUS) as line:  # type: ignore[arg-type]
        line.sendall(request)
        return b"".join(iter(lambda: line.recv(4096), b""))


@pytest.mark.parametrize(
    ("path", "what", "names"),
    [
        (
            f"/recommendations/{quote(WHO)}",
            "GET /recommendations: RuntimeError",
            ("because of KeyError", "in for_user"),
        ),
        ("/similar/x", "GET /similar: TypeError", ("in as_json",)),
    ],
)
def test_a_fault_of_the_model_is_answered_logged_and_survived(
    line: HTTPConnection, caplog: pytest.LogCaptureFixture, path: str, what: str, names: Sequence[str]
) -> None:
    status, answer, _ = ask(line, "GET", path)
    assert (status, list(answer)) == (500, ["error"])
    assert "the service itself" in answer["error"]
    (record,) = caplog.records
    told = record.getMessage()
    assert record.levelno == logging.ERROR
    assert told.startswith(what)
    assert all(name in told for name in names), told
    assert WHO not in told + str(answer), "who asked is nobody's business"
    assert record.exc_info is None, "which would be printed with its message"
    assert ask(line, "GET", "/health")[0] == 200, "on the same connection"


@pytest.mark.parametrize("verb", ["DELETE", "PUT", "PATCH", "OPTIONS"])
def test_verbs_that_are_not_served_are_refused_as_json(line: HTTPConnection, verb: str) -> None:
    status, answer, allow = ask(line, verb, "/recommendations/ann", b"GET /health HTTP/1.1\r\n\r\n")
    assert (status, allow) == (405, "GET, HEAD")
    assert answer == {"error": f"{verb} is not allowed for /recommendations"}
    assert ask(line, "GET", "/fold-in")[::2] == (405, "POST")
    assert ask(line, verb, "/nothing")[::2] == (404, None)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"BREW /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"501"),
        (b"GET /health HTTP/3.7\r\nHost: localhost\r\n\r\n", b"505"),
        (b"not a request at all\r\n\r\n", b"400"),
        (b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n", b"400"),
        (b"POST /fold-in HTTP/1.1\r\nHost: localhost\r\nContent-Length: \xb2\r\n\r\n", b"413"),
        (b"POST /fold-in HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", b"413"),
    ],
)
def test_what_cannot_be_read_is_refused_as_json(server: Server, request_: bytes, status: bytes) -> None:
    head, _, body = raw(server, request_.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\nConnection: close\r\n")).partition(
        b"\r\n\r\n"
    )
    assert head.startswith(b"HTTP/1.1 " + status), head
    assert list(json.loads(body)) == ["error"]


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"Host: localhost\r\nTransfer-Encoding: chunked", b"411"),
        (b"Host: localhost\r\nTransfer-Encoding: gzip, chunked\r\nContent-Length: 3", b"411"),
        (b"Host: attacker.example\r\nContent-Length: 40", b"403"),
    ],
)
def test_a_body_that_is_not_read_is_no_second_request(server: Server, header: bytes, status: bytes) -> None:
    within = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    told = raw(server, b"POST /fold-in HTTP/1.1\r\n" + header + b"\r\n\r\n" + within + within)
    assert told.startswith(b"HTTP/1.1 " + status), told
    assert told.count(b"HTTP/1.1 ") == 1
    assert list(json.loads(told.partition(b"\r\n\r\n")[2])) == ["error"]


def test_half_a_character_is_answered(line: HTTPConnection) -> None:
    assert ask(line, "POST", "/fold-in", b'{"items": ["\\ud800"]}')[0] == 404


@pytest.mark.parametrize(("error", "logged"), [(ConnectionResetError(), 0), (TimeoutError(), 0), (KeyError(WHO), 1)])
def test_whoever_hangs_up_is_no_fault(
    server: Server, caplog: pytest.LogCaptureFixture, error: Exception, logged: int
) -> None:
    try:
        raise error
    except Exception:
        server.handle_error(None, None)
    assert len(caplog.records) == logged
    assert WHO not in caplog.text


def test_names_of_earlier_versions_warn_and_work() -> None:
    with pytest.warns(DeprecationWarning, match=r"fedrec\.serve\.NotKnown is now UnknownId"):
        assert fedrec.serve.NotKnown is UnknownId  # type: ignore[attr-defined]
