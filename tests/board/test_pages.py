"""The pages: the same figures as the command line, mistakes in words, nothing written and nothing from elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

import fedrec
from conftest import Cli

pytest.importorskip("fastapi", reason="the extra `serve` is not installed: the board is not opened")

from fedrec.board.app import look_at_run, make_board
from fedrec.experiment.driver import Run
from fedrec.serve.web_server import listen, run_beside
from serve.web import Answered, ask, connection_to

from .conftest import append_round

Get = Callable[..., Answered]
PAGES = ("/", "/rows", "/run/ease", "/run/study", "/run/stopped", "/run/damaged", "/run/holiday", "/silos/fedmf-silos")
PAGES += ("/compare?run=ease&run=fedmf/seed0", "/user?run=ease&run=fedmf/seed0", "/user", "/report/ease")


@pytest.fixture
def get(folder: Path) -> Iterator[Get]:
    """Ask a board over the folder as a browser does."""
    with run_beside(lambda: make_board(folder), listen()) as url:

        def asked(path: str, verb: str = "GET", **headers: str) -> Answered:
            return ask(url, path, verb=verb, **{"Accept": "text/html", **headers})

        yield asked


def words(get: Get, path: str) -> str:
    """The text of a page."""
    answer = get(path)
    assert answer.status == 200, answer.content
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", answer.content)).split())


class Addresses(HTMLParser):
    """Everything that a page asks for or leads to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "action", "formaction")]


@pytest.mark.parametrize("path", PAGES)
def test_pages_ask_for_nothing_from_elsewhere(get: Get, path: str) -> None:
    answer = get(path)
    assert answer.status == 200, answer.content
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'")
    addresses = Addresses(answer.content).found
    assert all(address.startswith(("/", "#", "data:,")) and not address.startswith("//") for address in addresses)


def test_every_link_of_the_list_leads_somewhere(get: Get) -> None:
    links = {link for link in Addresses(get("/").content).found if link.startswith("/run/")}
    assert len(links) == 10
    assert {get(link).status for link in links} == {200}


def test_a_comparison_has_the_tables_of_the_command(get: Get, folder: Path, cli: Cli) -> None:
    names = ("fedmf/seed0", "fedmf/seed1", "ease", "popularity")
    path = "/compare?" + "&".join(f"run={name}" for name in names)
    shown = words(get, path)
    flags = ("--no-references", "--significance", "--format", "json")
    told = json.loads(cli("compare", *(str(folder / name) for name in names), *flags).out)
    assert len(told["significance"]["pairs"]) == 3
    for pair in told["significance"]["pairs"]:
        assert f"{pair['difference']:+.4f} {pair['low']:+.4f}..{pair['high']:+.4f}" in shown
    printed = cli("compare", *(str(folder / name) for name in names), "--no-references", "--format", "markdown").out
    for line in printed.splitlines():
        if line.startswith("| ") and "---" not in line:
            assert " ".join(line.strip("| ").replace("|", " ").split()) in shown


def test_the_command_of_a_comparison_prints_it(get: Get, folder: Path, cli: Cli) -> None:
    command = re.search(r"<pre>(fedrec compare [^<]*)</pre>", get("/compare?run=ease&run=popularity").content)
    assert command is not None
    outcome = cli(*command[1].split()[1:])
    assert outcome.code == 0, outcome.err


def test_the_command_of_a_run_makes_it_again(get: Get, folder: Path) -> None:
    shown = words(get, "/run/fedmf/seed1")
    assert "fedrec run fedmf --data synthetic@users=40+items=80+interactions=700+seed=1" in shown
    assert "--seed 1" in shown


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/compare", 400, "nothing is selected"),
        ("/compare?run=ease&run=stopped", 400, "not finished"),
        ("/compare?run=ease&run=../x", 400, "there is no run folder"),
        ("/compare?run=ease&on=nonsense", 400, "nonsense"),
        ("/run/nowhere", 404, "there is no run folder"),
        ("/run/../../etc", 404, ""),
        ("/user?run=nowhere", 400, "not a finished run"),
        ("/user?run=ease&user=nobody", 404, "nobody"),
        ("/report/study", 404, "has no report"),
        ("/silos/stopped", 400, "has not finished"),
        ("/silos/ease?metric=nonsense", 200, ""),
    ],
)
def test_mistakes_are_said_in_words(get: Get, path: str, status: int, says: str) -> None:
    answer = get(path)
    assert (answer.status, says in answer.content) == (status, True), answer.content[-1500:]


def test_programs_get_mistakes_as_json(get: Get) -> None:
    assert "there is no run folder" in get("/run/nowhere", Accept="*/*").content["error"]


def test_only_looking_is_allowed(get: Get, folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for path in PAGES:
        get(path)
        assert get(path, "POST").status == 405
        assert get(path, "DELETE").status == 405
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_the_board_trains_nothing(get: Get, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*_: object) -> None:
        raise AssertionError("trained")

    monkeypatch.setattr(Run, "_train", train)
    for path in PAGES:
        assert get(path).status == 200


def test_one_user_is_shown_as_the_run_has_tested(get: Get, folder: Path) -> None:
    shown = words(get, "/user?run=ease&run=popularity")
    rank = re.search(r"ease; held-out item at rank (\d+)", shown)
    assert rank is not None
    if int(rank[1]) <= 10:
        assert "held out" in shown
    assert "users have it" in shown, "popularity says why"
    assert "the model itself keeps no item vectors" in shown
    assert "nearest among the model's item vectors" in words(get, "/user?run=fedmf/seed0")


def test_users_of_other_data_do_not_stand_side_by_side(get: Get, folder: Path, cli: Cli) -> None:
    fedrec.run("popularity", "synthetic@users=40+items=90+interactions=900", out=folder / "other")
    assert "finished" in words(get, "/run/other")
    answer = get("/user?run=ease&run=other")
    assert (answer.status, "of different data" in answer.content) == (400, True), answer.content


def test_silos_that_gain_are_counted(get: Get) -> None:
    shown = words(get, "/silos/fedmf-silos")
    rows = re.findall(r"(?<= )(\d) \d+ (\d\.\d{4}) (\d\.\d{4}) ([+-]\d\.\d{4})", shown)
    assert len(rows) == 3, shown
    for _, joined, alone, gain in rows:
        assert float(gain) == pytest.approx(float(joined) - float(alone), abs=1.5e-4)
    assert f"{sum(float(row[3]) > 0 for row in rows)} of 3 silos" in shown


def test_a_study_shows_its_best_trial_and_what_failed(get: Get) -> None:
    shown = words(get, "/run/study")
    assert "Best: ndcg@10 0.3000 on validation with lr=0.5, dim=8, trial 2." in shown
    assert "could not be trained 1" in shown
    assert "diverged" in shown
    assert get("/run/study").content.count("<svg") == 4


def test_a_live_run_moves_on(folder: Path) -> None:
    board = make_board(folder).state.board
    board.index.refresh()
    append_round(folder / "stopped", 4, valid={"ndcg@10": 0.125})
    before, told = look_at_run(board, "stopped")
    assert "Round 5" in json.loads(told)["html"]
    append_round(folder / "stopped", 5)
    after, told = look_at_run(board, "stopped")
    assert "Round 6" in json.loads(told)["html"]
    assert before != after
    assert look_at_run(board, "stopped")[0] == after


def test_a_token_is_asked_for_elsewhere(folder: Path) -> None:
    token = "a token of some length"
    with run_beside(lambda: make_board(folder, local=False, token=token), listen()) as url:
        assert ask(url, "/").status == 401
        assert ask(url, "/", Authorization=f"Bearer {token}").status == 200


def test_other_names_of_this_machine_are_refused(get: Get) -> None:
    """A page elsewhere may have its own name lead here."""
    assert get("/", Host="evil.example").status == 403


def test_a_board_with_an_open_stream_stops(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as later:
        with run_beside(lambda: make_board(folder), listen()) as url:
            line = later.enter_context(connection_to(url))
            line.request("GET", "/events")
            answer = line.getresponse()
            assert answer.read(1) == b"r"
        assert b"data: " in answer.read()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
