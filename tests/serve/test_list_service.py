"""The service of lists: what it answers, what it refuses, and how it takes a newer model."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

import fedrec
import fedrec.serve
from fedrec.errors import FedrecError
from fedrec.serve import (
    FoldInResult,
    ItemFilter,
    Recommendation,
    Recommender,
    Server,
    Service,
    SimilarItem,
    UnknownId,
    open_lists,
)
from fedrec.serve.served_model import ServedModel, version_of_folder
from fedrec.serve.web_server import listen, run_beside
from serve.web import ask, ask_on, connection_to
from waiting import GENEROUS, wait_until

WHO = "a user's name"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Users and items with names that need care in an address; three users with too few items to train on."""
    place = tmp_path_factory.mktemp("serving")
    rng, lines = np.random.default_rng(0), ["user,item,timestamp"]
    for user in range(24):
        own = rng.permutation(40)[: 14 if user < 21 else 2].tolist()
        lines += [f"ü/{user}?,it em/{item},{time}" for time, item in enumerate(own)]
    (place / "logs.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    items = ["item,title,tags", *(f"it em/{item},Title {item},{'odd' if item % 2 else 'even'}" for item in range(40))]
    (place / "items.csv").write_text("\n".join(items) + "\n", encoding="utf-8")
    for seed in (0, 1):
        out, attributes = place / f"run{seed}", str(place / "items.csv")
        fedrec.run("fedmf", str(place / "logs.csv"), out=out, rounds=2, dim=4, seed=seed, attributes=attributes)
    return place / "run0"


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with run_beside(Service.from_folder(folder), listen()) as url:
        yield url


def name(user: str) -> str:
    return quote(user, safe="")


def test_health_says_what_is_served(url: str) -> None:
    answer = ask(url, "/health")
    assert answer.status == 200
    said = answer.content
    assert (said["status"], said["method"], said["users"], said["items"]) == ("ok", "fedmf", 24, 40)
    assert said["trained_on_everything"] is False


@pytest.mark.parametrize(("user", "served"), [("ü/3?", "trained"), ("ü/22?", "folded in")])
def test_lists_are_those_of_the_recommender(url: str, folder: Path, user: str, served: str) -> None:
    answer = ask(url, f"/recommendations/{name(user)}?k=4")
    wanted = Recommender(folder).for_user(user, 4)
    assert (answer.status, answer.content["user"], answer.content["served"]) == (200, user, served)
    assert [line["item"] for line in answer.content["items"]] == [rec.item for rec in wanted]
    assert [line["title"] for line in answer.content["items"]] == [rec.title for rec in wanted]
    scores = [line["score"] for line in answer.content["items"]]
    assert scores == pytest.approx([rec.score for rec in wanted], rel=1e-5)


def test_a_batch_answers_for_everybody_it_knows(url: str, folder: Path) -> None:
    users = ["ü/3?", "nobody", "ü/22?"]
    answer = ask(url, "/recommendations", {"users": users, "k": 3})
    assert (answer.status, answer.content["unknown"]) == (200, ["nobody"])
    recommender = Recommender(folder)
    for found, user in zip(answer.content["lists"], ("ü/3?", "ü/22?"), strict=True):
        assert found["user"] == user
        assert [line["item"] for line in found["items"]] == [rec.item for rec in recommender.for_user(user, 3)]


def test_similar_items_and_somebody_new(url: str, folder: Path) -> None:
    answer = ask(url, f"/similar/{name('it em/3')}?k=3")
    assert answer.status == 200
    similar = Recommender(folder).similar("it em/3", 3)
    assert [line["item"] for line in answer.content["items"]] == [one.item for one in similar]
    answer = ask(url, "/fold-in", {"items": ["it em/1", "it em/2", "gone"], "k": 5})
    assert (answer.status, answer.content["unknown"], len(answer.content["items"])) == (200, ["gone"], 5)
    wanted = Recommender(folder).for_history(["it em/1", "it em/2"], 5)
    assert [line["item"] for line in answer.content["items"]] == [rec.item for rec in wanted]


@pytest.mark.parametrize("user", ["ü/3?", "ü/22?"])
def test_filters_leave_the_order_and_take_items_away(url: str, folder: Path, user: str) -> None:
    """For vectors as for those who are folded in; what is left is ranked as without a filter."""
    ranked = [rec.item for rec in Recommender(folder).for_user(user, 40)]
    odd = [item for item in ranked if int(item.removeprefix("it em/")) % 2]

    def listed(query: str) -> list[str]:
        answer = ask(url, f"/recommendations/{name(user)}?k=40&{query}")
        assert answer.status == 200
        return [line["item"] for line in answer.content["items"]]

    assert listed("category=odd") == odd
    assert listed(f"deny={name(ranked[0])}&deny=unheard") == ranked[1:]
    assert listed(f"allow={name(odd[2])}&allow={name(odd[0])}&category=odd") == [odd[0], odd[2]]
    assert listed(f"allow={name(odd[0])}&category=even") == []
    batch = ask(url, "/recommendations", {"users": [user], "k": 2, "category": ["odd"], "deny": odd[:1]})
    assert [line["item"] for line in batch.content["lists"][0]["items"]] == odd[1:3]
    new = ask(url, "/fold-in", {"items": ["it em/1", "it em/2"], "k": 40, "category": ["odd"]}).content["items"]
    assert {int(line["item"].removeprefix("it em/")) % 2 for line in new} == {1}
    assert [rec.item for rec in Recommender(folder).for_user(user, 40, ItemFilter(categories=("odd",)))] == odd


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/recommendations/nobody", None, 404, "user 'nobody' is not in this run's data"),
        ("/recommendations/", None, 400, "name the user"),
        ("/recommendations/%C3%BC%2F3%3F?k=0", None, 400, "k: input should be greater than or equal to 1"),
        ("/recommendations/%C3%BC%2F3%3F?k=ten", None, 400, "k: input should be a valid integer"),
        ("/recommendations/%C3%BC%2F3%3F?category=of", None, 404, "unknown category 'of'"),
        ("/recommendations/%C3%BC%2F3%3F?allow=x", None, 404, "none of the allowed items is known"),
        ("/recommendations", {"users": []}, 400, "users: list should have at least 1 item"),
        ("/similar/none", None, 404, "item 'none' is not in this run's data"),
        ("/fold-in", b"{", 400, "send JSON, with Content-Type"),
        ("/fold-in", {"items": [1.5]}, 400, "items.0"),
        ("/fold-in", {"items": ["it em/1"], "k": True}, 400, "k: input should be a valid integer"),
        ("/fold-in", {"items": []}, 400, "items: list should have at least 1 item"),
        ("/fold-in", {"items": ["x"]}, 404, "item 'x' is not in this run's data"),
        ("/fold-in", {"items": ["\ud800"]}, 404, "item '?' is not in this run's data"),
        ("/fold-in", None, 405, "GET is not allowed here; use POST"),
        ("/nothing", None, 404, "there is no /nothing"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(url: str, path: str, body: Any, status: int, says: str) -> None:
    content = {"Content-Type": "application/json"} if body is not None else {}
    answer = ask(url, path, body, **content)
    assert (answer.status, list(answer.content)) == (status, ["error"])
    assert answer.content["error"].startswith(says)


def test_its_own_description_holds(folder: Path) -> None:
    """Requests that the description allows are answered as it says, and those that it does not allow are refused."""
    description = schemathesis.openapi.from_asgi("/openapi.json", Service.from_folder(folder, local=False)())
    paths = set()

    for result in description.get_all_operations():
        operation = result.ok()
        paths.add(operation.path)

        @given(case=operation.as_strategy())
        @settings(max_examples=30, derandomize=True, suppress_health_check=list(HealthCheck))
        def check_one(case: schemathesis.Case) -> None:
            case.call_and_validate()

        check_one()
    assert paths == {"/health", "/recommendations/{user}", "/recommendations", "/similar/{item}", "/fold-in"}


def test_the_page_tries_it_and_loads_nothing_from_elsewhere(url: str) -> None:
    page = ask(url, "/")
    assert page.status == 200
    assert 'value="ü/0?"' in page.content or "Id of the user" in page.content
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "http" not in page.content.replace("http-equiv", ""), "nothing is loaded from elsewhere"
    script = ask(url, "/try.js")
    assert script.headers["content-type"].startswith("text/javascript")
    for path in ("recommendations", "fold-in", "similar"):
        assert f'data-path="{path}"' in page.content


def test_many_ask_at_once(url: str) -> None:
    def some(number: int) -> list[str]:
        with connection_to(url) as line:
            return [json.dumps(ask_on(line, f"/recommendations/{name(f'ü/{number}?')}").content) for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(some, range(8)):
            assert len(set(found)) == 1
            assert json.loads(found[0])["served"] == "trained"


def test_a_newer_model_is_taken_and_a_broken_one_is_not(folder: Path, tmp_path: Path) -> None:
    """A link leads to another folder: the lists are those of the new model, and no request falls between."""
    newer, link = folder.parent / "run1", tmp_path / "current"
    link.symlink_to(folder)

    def lead_to(place: Path) -> None:
        (tmp_path / "next").symlink_to(place)
        os.replace(tmp_path / "next", link)

    served = ServedModel(lambda: open_lists(link), lambda: version_of_folder(link))
    before = served.lists
    assert not served.renew()
    lead_to(newer)
    assert not served.renew(), "it may still be being written"
    assert served.lists is before
    assert served.renew()
    wanted = [rec.item for rec in Recommender(newer).for_user("ü/3?", 5)]
    assert [rec.item for rec in served.lists.for_user("ü/3?", 5)] == wanted
    lead_to(tmp_path / "nowhere")
    assert not served.renew()
    assert not served.renew()
    assert [rec.item for rec in served.lists.for_user("ü/3?", 5)] == wanted
    assert "has no model" in served.describe()["newer_model_refused"]
    lead_to(folder)
    assert (served.renew(), served.renew(), served.failure) == (False, True, None)


def test_the_service_looks_for_a_newer_model_by_itself(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "current"
    link.symlink_to(folder)
    with run_beside(Service.from_folder(link, check_every=0.1), listen()) as url:
        before = ask(url, "/health").content["loaded"]
        old = ask(url, f"/recommendations/{name('ü/3?')}").content
        (tmp_path / "next").symlink_to(folder.parent / "run1")
        os.replace(tmp_path / "next", link)
        wait_until(lambda: ask(url, f"/recommendations/{name('ü/3?')}").content != old)
        assert ask(url, "/health").content["loaded"] >= before
        assert 'fedrec_model_reloads_total{result="taken"} 1.0' in ask(url, "/metrics").content


def test_a_port_that_is_taken_and_a_folder_without_a_model(tmp_path: Path) -> None:
    with listen() as opened, pytest.raises(FedrecError, match="choose another --port"):
        Server(lambda: None, port=int(opened.getsockname()[1]))
    with pytest.raises(FedrecError, match="has no model"):
        open_lists(tmp_path)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_command_serves_until_it_is_told_to_stop(folder: Path, workers: int) -> None:
    """Also where somebody is still connected; workers count together."""
    command = [sys.executable, "-m", "fedrec", "serve", str(folder), "--port", "0", "--workers", str(workers)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving "), line
        url = line.split()[-1]
        with connection_to(url) as staying:
            assert ask_on(staying, "/health").content["status"] == "ok"
            for _ in range(4):
                assert ask(url, f"/recommendations/{name('ü/3?')}").status == 200
            asked = 'fedrec_requests_total{path="/recommendations/{user}",status="200",verb="GET"} 4.0'
            wait_until(lambda: asked in ask(url, "/metrics").content)
            process.terminate()
            assert process.wait(GENEROUS) == 0
        assert process.stdout.read() == "stopped\n"
    finally:
        process.kill()


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


@pytest.mark.parametrize(
    ("path", "what", "place"),
    [
        (f"/recommendations/{quote(WHO)}", "GET /recommendations/{user}: RuntimeError", "in for_user"),
        ("/similar/x", "GET /similar/{item}: TypeError", "in encode_json"),
    ],
)
def test_a_fault_of_the_model_names_nobody(caplog: pytest.LogCaptureFixture, path: str, what: str, place: str) -> None:
    with run_beside(Service(Broken), listen()) as url:
        answer = ask(url, path)
        assert (answer.status, list(answer.content)) == (500, ["error"])
        wait_until(lambda: len(caplog.records) == 2)
        fault = caplog.records[0]
        assert fault.levelno == logging.ERROR
        assert fault.getMessage().startswith(what)
        assert place in fault.getMessage()
        assert WHO not in caplog.text + str(answer)


def test_names_of_earlier_versions_warn_and_work() -> None:
    with pytest.warns(DeprecationWarning, match=r"fedrec\.serve\.NotKnown is now UnknownId"):
        assert fedrec.serve.NotKnown is UnknownId
