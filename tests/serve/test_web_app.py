"""What every web application of ours shares: who may come, what is refused and how, and a stop that breaks nothing."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from fedrec.errors import FedrecError
from fedrec.serve.web_app import WebLimits, choose_token, is_local_name, make_app
from fedrec.serve.web_server import WebConfig, WebServer, is_loopback, listen, run_beside, url_of
from serve.web import ask, ask_on, connection_to, send_raw
from waiting import wait_until

WHO = "a user's name"
TOKEN = "0123456789abcdef"


def build(**options: Any) -> Any:
    """Make an application with paths that work, fail, wait, and read a body."""
    app = make_app("test", lambda: {"of": "tests"}, **options)

    @app.get("/broken/{user:path}")
    async def fail(user: str) -> Any:
        try:
            return {}[user]
        except KeyError as error:
            raise RuntimeError(f"no row for {user}") from error

    @app.get("/endless")
    async def wait() -> None:
        await asyncio.Event().wait()

    @app.post("/size")
    async def measure(request: Request) -> dict[str, int]:
        return {"bytes": len(await request.body())}

    @app.get("/number")
    async def double(k: int) -> dict[str, int]:
        if k > 9:
            raise FedrecError("k must be at most 9")
        return {"twice": 2 * k}

    return app


@contextmanager
def serving(**options: Any) -> Iterator[str]:
    opened = listen()
    with run_beside(lambda: build(**options), opened, options.get("limits")) as url:
        yield url


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as url:
        yield url


def test_health_and_heads(url: str) -> None:
    answer = ask(url, "/health")
    assert (answer.status, answer.content["status"], answer.content["of"]) == (200, "ok", "tests")
    head = ask(url, "/health", verb="HEAD")
    assert (head.status, head.content) == (200, "")
    assert head.headers["content-length"] == answer.headers["content-length"]
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "verb", "status", "says"),
    [
        ("/nothing", "GET", 404, "there is no /nothing"),
        ("/health", "DELETE", 405, "DELETE is not allowed here; use GET, HEAD"),
        ("/size", "GET", 405, "GET is not allowed here; use POST"),
        ("/number", "GET", 400, "k: field required"),
        ("/number?k=ten", "GET", 400, "k: input should be a valid integer"),
        ("/number?k=10", "GET", 400, "k must be at most 9"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(url: str, path: str, verb: str, status: int, says: str) -> None:
    answer = ask(url, path, verb=verb)
    assert (answer.status, list(answer.content)) == (status, ["error"])
    assert answer.content["error"].startswith(says)


def test_a_fault_is_answered_logged_without_names_and_survived(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with connection_to(url) as line:
        answer = ask_on(line, "/broken/" + WHO.replace(" ", "%20"))
        assert (answer.status, list(answer.content)) == (500, ["error"])
        assert ask_on(line, "/health").status == 200, "on the same connection"
    wait_until(lambda: len(caplog.records) == 2)
    (fault,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert fault.getMessage().startswith("GET /broken/{user}: RuntimeError")
    assert "because of KeyError" in fault.getMessage()
    assert "in fail" in fault.getMessage()
    assert fault.exc_info is None, "which would be printed with its message"
    assert WHO not in caplog.text + str(answer), "who asked is nobody's business"


def test_refusals_are_logged_without_names(url: str, caplog: pytest.LogCaptureFixture) -> None:
    ask(url, "/broken%20" + WHO.replace(" ", "%20"))
    ask(url, "/number?k=" + WHO.replace(" ", "%20"))
    wait_until(lambda: len(caplog.records) == 2)  # a line is written when its answer has left
    messages = [record.getMessage().partition(",")[0] for record in caplog.records]
    assert messages == ["GET other 404", "GET /number 400"]
    assert WHO not in caplog.text


def test_bodies_have_a_limit_however_they_are_sent(url: str) -> None:
    assert ask(url, "/size", b"x" * 1000).content == {"bytes": 1000}
    head = b"POST /size HTTP/1.1\r\nHost: localhost\r\n"
    chunked = head + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    assert send_raw(url, chunked + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n").endswith(b'{"bytes":5}')
    parts = b"".join(b"10000\r\n" + b"x" * 65536 + b"\r\n" for _ in range(17))
    assert b" 413 " in send_raw(url, head + b"Transfer-Encoding: chunked\r\n\r\n" + parts)[:20]
    assert b" 413 " in send_raw(url, head + b"Content-Length: 99999999999\r\n\r\n")[:20]


def test_a_body_that_is_not_read_is_no_second_request(url: str) -> None:
    within = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for header in (b"Host: localhost\r\nContent-Length: 9999999", b"Host: attacker.example\r\nContent-Length: 80"):
        answer = send_raw(url, b"POST /size HTTP/1.1\r\n" + header + b"\r\n\r\n" + within + within)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert list(json.loads(answer.partition(b"\r\n\r\n")[2])) == ["error"]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"not a request at all\r\n\r\n", b"400"),
        (b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n", b"400"),
        (b"POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Length: \xb2\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 9000, b"431"),
    ],
)
def test_what_cannot_be_read_is_refused_as_json(url: str, request_: bytes, status: bytes) -> None:
    head, _, body = send_raw(url, request_).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status), head
    assert list(json.loads(body)) == ["error"]


def test_another_name_for_this_machine_is_refused(url: str) -> None:
    """A page in a browser must not reach it by making its own name lead here."""
    assert ask(url, "/health", Host="attacker.example").status == 403
    assert is_local_name("localhost:80")
    assert is_local_name("[::1]:80")
    assert is_local_name("127.0.0.2")
    assert not is_local_name("127.0.0.1.attacker.example")


def test_the_metrics_count_by_path_and_name_nobody(url: str) -> None:
    ask(url, "/number?k=3")
    ask(url, "/broken/" + WHO.replace(" ", "%20"))
    ask(url, "/nothing", verb="PROPFIND")
    wait_until(lambda: 'path="other",status="404",verb="other"' in ask(url, "/metrics").content)
    text = ask(url, "/metrics").content
    assert 'fedrec_requests_total{path="/number",status="200",verb="GET"} 1.0' in text
    assert 'fedrec_request_seconds_count{path="/number"}' in text
    assert 'path="/broken/{user}",status="500"' in text
    assert "fedrec_requests_in_flight 1.0" in text, "the one that asks"
    assert WHO not in text


def test_a_token_opens_all_but_health_which_is_open() -> None:
    with serving(token=TOKEN, local=False) as url:
        assert ask(url, "/health", Host="recs.example.org").status == 200
        refused = ask(url, "/metrics")
        assert (refused.status, list(refused.content)) == (401, ["error"])
        assert refused.headers["www-authenticate"] == 'Bearer, Basic realm="fedrec"'
        assert ask(url, "/metrics", Authorization=f"Bearer {TOKEN}").status == 200
        password = base64.b64encode(f"anybody:{TOKEN}".encode()).decode()
        assert ask(url, "/metrics", Authorization=f"Basic {password}").status == 200
        for wrong in (f"Bearer {TOKEN}x", "Bearer", "Basic %%", "Basic", TOKEN[:-1]):
            assert ask(url, "/metrics", Authorization=wrong).status == 401


def test_a_token_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDREC_TOKEN", raising=False)
    assert choose_token(loopback=True) is None
    made = choose_token(loopback=False)
    assert made is not None
    assert len(made) > 30
    assert made != choose_token(loopback=False)
    (tmp_path / "token").write_text(TOKEN + "\n")
    assert choose_token(True, tmp_path / "token") == TOKEN
    for text, says in (("", "is empty"), ("short", "at least 16")):
        (tmp_path / "token").write_text(text)
        with pytest.raises(FedrecError, match=says):
            choose_token(False, tmp_path / "token")
    with pytest.raises(FedrecError, match="cannot read the token"):
        choose_token(False, tmp_path / "none")
    monkeypatch.setenv("FEDREC_TOKEN", TOKEN)
    assert choose_token(loopback=False) == TOKEN


def test_whoever_is_slow_is_told_and_closed() -> None:
    with serving(limits=WebLimits(arrival=0.2, answer=0.2)) as url:
        for begun in (b"", b"GET /hea", b"POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx"):
            assert send_raw(url, begun).startswith(b"HTTP/1.1 408 "), begun
        late = ask(url, "/endless")
        assert (late.status, late.content) == (503, {"error": "the answer took too long; try again"})


def test_one_connection_too_many_is_refused() -> None:
    with serving(limits=WebLimits(connections=1)) as url, connection_to(url) as line:
        assert ask_on(line, "/health").status == 200
        answer = send_raw(url, b"")
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"too many connections" in answer
        assert ask_on(line, "/health").status == 200


def test_one_request_too_many_is_refused() -> None:
    with serving(limits=WebLimits(requests=1)) as url, connection_to(url) as waiting:
        waiting.request("GET", "/endless")
        wait_until(lambda: ask(url, "/health").status == 503)
        waiting.close()
        wait_until(lambda: ask(url, "/health").status == 200)


def test_a_stop_breaks_no_request() -> None:
    """What is in flight is answered; an idle connection is told of the end with its next answer."""
    started, released = threading.Event(), threading.Event()

    def slow_app() -> Any:
        app = build()

        @app.get("/slow")
        def wait() -> dict[str, bool]:
            started.set()
            released.wait()
            return {"whole": True}

        return app

    opened = listen()
    server = WebServer(WebConfig(slow_app, WebLimits()))
    thread = threading.Thread(target=server.run, args=([opened],))
    url = url_of(opened)
    thread.start()
    with connection_to(url) as busy:
        busy.request("GET", "/slow")
        started.wait()
        server.should_exit = True
        wait_until(lambda: is_closed(url))
        released.set()
        answer = busy.getresponse()
        assert json.loads(answer.read()) == {"whole": True}
        assert answer.getheader("Connection") == "close"
    thread.join()


def is_closed(url: str) -> bool:
    """Whether nobody listens any more."""
    try:
        with connection_to(url) as line:
            line.connect()
    except ConnectionError:
        return True
    return False


def test_a_port_that_is_taken_is_one_line() -> None:
    with listen() as opened:
        assert is_loopback(opened)
        with pytest.raises(FedrecError, match="choose another --port"):
            listen(port=int(opened.getsockname()[1]))
    with pytest.raises(FedrecError, match="cannot serve at nowhere"):
        listen("nowhere.invalid")
