"""A node serves its own users from its state folder, with or without a network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from deploy.town import Town, settings
from fedrec.deploy.node_recommender import NodeLists, recommend
from fedrec.errors import FedrecError
from fedrec.experiment.driver import execute
from fedrec.serve import Recommender, Service
from fedrec.serve.web_server import listen, run_beside
from serve.web import ask
from waiting import GENEROUS


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Town:
    made = Town(settings("fedmf"), tmp_path_factory.mktemp("town"))
    made.server().run()
    return made


@pytest.fixture(scope="module")
def url(town: Town) -> Iterator[str]:
    with run_beside(Service(lambda: NodeLists(town.states[0])), listen()) as url:
        yield url


def users_of(state: Path) -> list[str]:
    return [line.split(",")[0] for line in (state / "places.csv").read_text().splitlines()[1:]]


def test_lists_are_those_of_a_simulation(town: Town, url: str, tmp_path: Path) -> None:
    execute(town.config, tmp_path / "run")
    simulated = Recommender(tmp_path / "run")
    for user in users_of(town.states[0])[:3]:
        answer = ask(url, f"/recommendations/{user}?k=5")
        assert answer.status == 200
        wanted = simulated.for_user(user, 5)
        assert [line["item"] for line in answer.content["items"]] == [one.item for one in wanted]
        assert recommend(town.states[0], user, 5)[0].score == pytest.approx(wanted[0].score, rel=1e-5)


def test_other_nodes_users_are_not_known_here(town: Town, url: str) -> None:
    stranger = users_of(town.states[1])[0]
    answer = ask(url, f"/recommendations/{stranger}")
    assert answer.status == 404
    assert f"is not among this node's {ask(url, '/health').content['users']} users" in answer.content["error"]


def test_health_similar_items_and_what_a_node_cannot_do(url: str) -> None:
    health = ask(url, "/health").content
    assert (health["method"], health["items"], health["folds_in"]) == ("fedmf", 80, True)
    near = ask(url, "/similar/7?k=3").content["items"]
    assert len(near) == 3
    assert near[0]["score"] >= near[1]["score"]
    assert ask(url, "/similar/nothing").status == 404
    folded = ask(url, "/fold-in", {"items": ["1", "2", "gone"], "k": 3}).content
    assert (len(folded["items"]), folded["unknown"]) == (3, ["gone"])
    assert not {line["item"] for line in folded["items"]} & {1, 2, "1", "2"}


def add_users(state: Path, rows: str) -> Path:
    """Put more rows into a node's file."""
    data = Path(tomllib.loads((state / "node.toml").read_text())["data"])
    data.write_text(data.read_text() + rows)
    return data


@pytest.mark.parametrize(("method", "served"), [("fedmf", "folded in"), ("fedrap", "popularity")])
def test_everybody_in_the_file_gets_a_list(cli: Any, tmp_path: Path, method: str, served: str) -> None:
    """Somebody with two items, somebody who has only what nobody else has, and those who took part."""
    town = Town(settings(method, rounds=1), tmp_path)
    state = town.states[0]
    header = add_users(state, "").read_text().splitlines()[0].split(",")
    rows = [{"user": "few", "item": "3"}, {"user": "few", "item": "4"}, {"user": "odd", "item": "unheard"}]
    add_users(state, "".join(",".join(row.get(name, "1") for name in header) + "\n" for row in rows))
    town.server().run()
    lists = NodeLists(state)
    by_user = {user: list(recs) for user, recs in groupby(lists.for_all(5), key=lambda rec: rec.user)}
    assert set(by_user) == {*users_of(state), "few", "odd"}
    assert {len(recs) for recs in by_user.values()} == {5}
    assert {recs[0].served for user, recs in by_user.items() if user not in ("few", "odd")} == {"trained"}
    assert by_user["few"][0].served == served
    assert by_user["odd"][0].served == "popularity"
    assert not {str(rec.item) for rec in by_user["few"]} & {"3", "4"}
    ended = cli("recommend", "--state-dir", state, "--all", "-k", 5, "--out", tmp_path / "all.csv")
    assert ended.code == 0, ended.err
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 1 + 5 * len(by_user)
    assert "had too few items" in ended.err


def test_a_method_that_offers_no_table_has_no_similar_items(tmp_path: Path) -> None:
    town = Town(settings("popularity", rounds=1), tmp_path, secure=True, minimum=2)
    town.server().run()
    lists = NodeLists(town.states[0])
    with pytest.raises(FedrecError, match="popularity offers nodes no vectors"):
        lists.similar("1", 3)
    assert "item" not in lists.about()["examples"]


@pytest.fixture
def served(town: Town) -> Iterator[str]:
    words = [sys.executable, "-m", "fedrec", "serve", "--state-dir", str(town.states[0]), "--port", "0"]
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "500"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        found = re.search(r"http://[\d.]+:\d+", process.stdout.readline())
        assert found is not None
        yield found[0]
        process.terminate()


def test_the_command(town: Town, served: str) -> None:
    user = users_of(town.states[0])[0]
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{served}/recommendations/{user}?k=2", timeout=GENEROUS) as answer:
        assert len(json.loads(answer.read())["items"]) == 2


def test_mistakes_are_one_line(cli: Any, tmp_path: Path) -> None:
    for words, message in (
        ((), "give the folder of a run or model, or --state-dir of a node"),
        (("--state-dir", str(tmp_path)), "is not the state folder of a node"),
    ):
        ended = cli("serve", *words)
        assert ended.code == 2
        assert message in ended.err
