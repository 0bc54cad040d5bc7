"""The service over HTTP: what it answers, what it refuses, and that it is for this machine."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

import fedrec
from fedrec.errors import FedrecError
from fedrec.serve import Recommender, Server, Service, open_lists
from fedrec.serve.http_server import Handler
from waiting import GENEROUS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users and items with names that need care in an address; three users with too few items to train on."""
    place = tmp_path_factory.mktemp("serving")
    rng, lines = np.random.default_rng(0), ["user,item,timestamp"]
    for user in range(24):
        own = rng.permutation(40)[: 14 if user < 21 else 2].tolist()
        lines += [f"ü/{user}?,it em/{item},{time}" for time, item in enumerate(own)]
    (place / "logs.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    fedrec.run("fedmf", str(place / "logs.csv"), out=place / "run", rounds=2, dim=4)
    return place / "run"


@contextmanager
def listening(service: Service) -> Iterator[Server]:
    made = Server(service, port=0)
    thread = threading.Thread(target=made.serve_forever, args=(0.02,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handler, "timeout", None)  # who asks may be slow, too
        thread.start()
        yield made
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with listening(Service(open_lists(folder))) as made:
        yield made


def ask(server: Server, path: str, body: Any = None, verb: str | None = None, **headers: str) -> tuple[int, Any]:
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data=data, headers=headers, method=verb)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=GENEROUS) as answer:
            text, status = answer.read(), answer.status
    except urllib.error.HTTPError as error:
        text, status = error.read(), error.code
    return status, json.loads(text) if text.startswith((b"{", b"[")) else text.decode()


def test_health_says_what_is_served(server: Server) -> None:
    status, found = ask(server, "/health")
    assert status == 200
    assert (found["status"], found["method"], found["users"], found["items"]) == ("ok", "fedmf", 24, 40)
    assert found["trained_on_everything"] is False


@pytest.mark.parametrize(("user", "served"), [("ü/3?", "trained"), ("ü/22?", "folded in")])
def test_lists_are_those_of_the_recommender(server: Server, folder: Path, user: str, served: str) -> None:
    status, found = ask(server, f"/recommendations/{quote(user, safe='')}?k=4")
    wanted = Recommender(folder).for_user(user, 4)
    assert (status, found["user"], found["served"]) == (200, user, served)
    assert [line["item"] for line in found["items"]] == [rec.item for rec in wanted]
    assert [line["score"] for line in found["items"]] == pytest.approx([rec.score for rec in wanted], rel=1e-5)


def test_similar_items_and_somebody_new(server: Server, folder: Path) -> None:
    status, found = ask(server, f"/similar/{quote('it em/3', safe='')}?k=3")
    assert status == 200
    assert [line["item"] for line in found["items"]] == [one.item for one in Recommender(folder).similar("it em/3", 3)]
    status, found = ask(server, "/fold-in", {"items": ["it em/1", "it em/2", "gone"], "k": 5})
    assert (status, found["unknown"], len(found["items"])) == (200, ["gone"], 5)
    wanted = Recommender(folder).for_history(["it em/1", "it em/2"], 5)
    assert [line["item"] for line in found["items"]] == [rec.item for rec in wanted]


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/recommendations/nobody", None, 404, "user 'nobody' is not in this run's data"),
        ("/recommendations/", None, 400, "name the user"),
        ("/recommendations/%C3%BC%2F3%3F?k=0", None, 400, "k = 0 must lie between 1 and the 40 items"),
        ("/recommendations/%C3%BC%2F3%3F?k=ten", None, 400, "k = 'ten' is not a whole number"),
        ("/similar/none", None, 404, "item 'none' is not in this run's data"),
        ("/fold-in", b"{", 400, "send JSON such as"),
        ("/fold-in", {"items": [1.5]}, 400, "send JSON such as"),
        ("/fold-in", {"items": ["it em/1"], "k": True}, 400, "k must be a whole number"),
        ("/fold-in", {"items": []}, 400, "the history is empty"),
        ("/fold-in", {"items": ["x"]}, 404, "item 'x' is not in this run's data"),
        ("/fold-in", None, 405, "GET is not allowed for /fold-in"),
        ("/nothing", None, 404, "there is no /nothing"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(server: Server, path: str, body: Any, status: int, says: str) -> None:
    found, answer = ask(server, path, body)
    assert found == status
    assert says in answer["error"]


def test_too_large_a_body_is_not_read(server: Server) -> None:
    with socket.create_connection(server.server_address[:2], timeout=GENEROUS) as line:  # type: ignore[arg-type]
        line.sendall(b"POST /fold-in HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n")
        assert b" 413 " in line.recv(200)


def test_another_name_for_this_machine_is_refused(server: Server) -> None:
    """A page in a browser must not reach it by making its own name lead here."""
    assert ask(server, "/health", Host="attacker.example")[0] == 403
    assert ask(server, "/health", Host=f"localhost:{server.server_address[1]}")[0] == 200


def test_it_describes_itself(server: Server) -> None:
    status, document = ask(server, "/openapi.json")
    assert (status, document["openapi"]) == (200, "3.1.0")
    assert {f"/{name}" for _, name in server.service.paths if name not in ("", "openapi.json")} == {
        "/" + path.strip("/").split("/")[0] for path in document["paths"]
    }
    for verbs in document["paths"].values():
        for operation in verbs.values():
            for answer in operation["responses"].values():
                reference = answer["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
                assert reference in document["components"]["schemas"]
    page = ask(server, "/")[1]
    assert "openapi.json" in page
    assert "http" not in page.replace("http-equiv", ""), "nothing is loaded from elsewhere"


def test_many_ask_at_once(server: Server) -> None:
    host, port = server.server_address[:2]

    def some(number: int) -> list[bytes]:
        connection = HTTPConnection(str(host), int(port), timeout=GENEROUS)
        found = []
        for _ in range(20):
            connection.request("GET", f"/recommendations/{quote(f'ü/{number}?', safe='')}")
            found.append(connection.getresponse().read())
        connection.close()
        return found

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(some, range(8)):
            assert len(set(found)) == 1
            assert b'"served": "trained"' in found[0]


def test_a_port_that_is_taken_and_a_folder_without_a_model(server: Server, tmp_path: Path) -> None:
    with pytest.raises(FedrecError, match="choose another --port"):
        Server(server.service, port=int(server.server_address[1]))
    with pytest.raises(FedrecError, match="has no model"):
        open_lists(tmp_path)


SERVE = """
from fedrec.cli import main
from fedrec.serve.http_server import Handler

Handler.timeout = None  # a silent connection stays open
main()
"""


def test_the_command_serves_until_it_is_told_to_stop(folder: Path) -> None:
    """Also where somebody is still connected."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, "serve", str(folder), "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving "), line
        url = line.split()[-1]
        staying = HTTPConnection(url.removeprefix("http://"), timeout=GENEROUS)
        staying.request("GET", "/health")
        assert json.loads(staying.getresponse().read())["status"] == "ok"
        process.terminate()
        assert process.wait(GENEROUS) == 0
        assert process.stdout.read() == "stopped\n"
        staying.close()
    finally:
        process.kill()
