"""The board in a real browser: a walk with clicks while a run goes on, on wide and narrow, light and dark screens."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("fastapi", reason="the extra `serve` is not installed: the board is not opened")

from fedrec.board.app import make_board
from fedrec.serve.web_server import listen, run_beside
from report.pages.browser import BINARY, Browser
from report.pages.test_browser import CONTRAST, OVERFLOW
from waiting import GENEROUS, wait_until

from .conftest import DATA

pytestmark = [
    pytest.mark.skipif(BINARY is None, reason="no chromium or google-chrome on PATH: the board is not opened"),
    pytest.mark.slow,
]
PAGES = ("/", "/run/ease", "/run/study", "/run/damaged", "/silos/fedmf-silos", "/run/nowhere")
PAGES += ("/compare?run=ease&run=fedmf/seed0", "/user?run=ease&run=popularity")
# names of what can be reached by keyboard and has no words for those who hear the page
NAMELESS = """[...document.querySelectorAll('a, button, input:not([type=hidden]), select, progress')].filter(e =>
  !(e.textContent.trim() || e.getAttribute('aria-label') || (e.labels && e.labels.length))).map(e => e.outerHTML)"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.fixture
def url(folder: Path, browser: Browser) -> Iterator[str]:
    with run_beside(lambda: make_board(folder), listen()) as address:
        yield address
        browser.open("about:blank")  # a page that is left open would complain that its board has gone


@pytest.fixture
def live(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A run of more rounds than anybody waits for, in a process of its own."""
    words = ["run", "fedmf", "--data", DATA, "--set", "dim=4", "--rounds", "10000000", "--out", str(folder / "live")]
    environment = {**os.environ, "FEDREC_CACHE": str(folder.parent / "cache")}
    with subprocess.Popen(
        [sys.executable, "-m", "fedrec", *words, "-q"], env=environment, stdout=subprocess.DEVNULL, text=True
    ) as process:
        yield process
        process.kill()


def complaints_but_missing(browser: Browser, page: str) -> list[object]:
    """What the console says, but for the answer 404 that was asked for."""
    return [one for one in browser.complaints() if "nowhere" not in page or "404" not in str(one)]


@pytest.mark.parametrize(("width", "dark"), [(320, False), (390, True), (1280, False), (1280, True)])
def test_pages_fit_and_can_be_read(browser: Browser, url: str, width: int, dark: bool) -> None:
    for page in PAGES:
        browser.open(url + page, width, dark)
        assert browser.evaluate(OVERFLOW) == 0, page
        assert browser.evaluate(CONTRAST) >= 4.5, page
        assert browser.evaluate(NAMELESS) == [], page
        assert complaints_but_missing(browser, page) == [], page
        assert {urlsplit(sent).netloc for sent in browser.requests() if not sent.startswith("data:")} == {
            urlsplit(url).netloc
        }


def test_a_walk_while_a_run_goes_on(browser: Browser, url: str, folder: Path, live: subprocess.Popen[str]) -> None:
    browser.open(url + "/")
    assert browser.evaluate("document.querySelector('#compare').disabled") is True
    wait_until(lambda: bool(browser.evaluate("!!document.querySelector('a[href=\"/run/live\"]')")), live)
    wait_until(lambda: "running" in str(browser.evaluate("document.querySelector('#rows').textContent")), live)

    browser.press("/")
    for letter in "ease":
        browser.press(letter)
    wait_until(lambda: bool(browser.evaluate("document.querySelectorAll('#rows tbody tr').length < 4")))
    browser.click("input[value=ease]")
    assert browser.evaluate("document.querySelector('#chosen').textContent") == "1 selected"
    browser.evaluate("document.querySelector('input[type=search]').value = ''")
    browser.evaluate("document.querySelector('#filters').requestSubmit()")
    wait_until(lambda: bool(browser.evaluate("!!document.querySelector('input[value=popularity]')")))
    assert browser.evaluate("document.querySelector('input[value=ease]').checked") is True, "it stays chosen"
    browser.click("input[value=popularity]")
    browser.go("#compare")
    assert browser.evaluate("location.pathname") == "/compare"
    assert "ease" in browser.evaluate("document.querySelector('main').textContent")
    assert browser.evaluate("document.querySelectorAll('svg').length") >= 2

    browser.go("nav a[href='/']")
    browser.go("#beside")
    assert browser.evaluate("document.querySelectorAll('.card').length") == 3
    assert browser.complaints() == []


@pytest.mark.skipif(
    "FEDREC_FOLLOW_LIVE" not in os.environ,
    reason="once, on a busy machine, the page stopped following after its first news; the cause is not known yet",
)
def test_a_live_run_is_followed_without_a_reload(browser: Browser, url: str, live: subprocess.Popen[str]) -> None:
    browser.open(url + "/run/live")
    rounds = "Number(document.querySelector('.said').textContent.replaceAll(',', '').match(/\\\\d+/)?.[0] ?? 0)"
    rounds = rounds.replace("\\\\", "\\")
    wait_until(lambda: (browser.evaluate(rounds) or 0) > 0, live)
    seen = browser.evaluate(rounds)
    wait_until(lambda: browser.evaluate(rounds) > seen, live)
    wait_until(lambda: bool(browser.evaluate("document.querySelectorAll('#live svg').length >= 2")), live)
    assert browser.evaluate("performance.getEntriesByType('navigation').length") == 1, "without a reload"
    live.terminate()
    live.wait(GENEROUS)
    wait_until(lambda: browser.evaluate("document.querySelector('#live').dataset.state") == "stopped")
    assert browser.complaints() == []
    assert browser.evaluate(OVERFLOW) == 0


def test_names_that_are_markup_stay_text(browser: Browser, url: str, folder: Path) -> None:
    (folder / "<img src=x onerror=alert(1)>").mkdir()
    (folder / "<img src=x onerror=alert(1)>" / "file").write_bytes(b"")
    browser.open(url + "/")
    wait_until(lambda: "onerror" in browser.evaluate("document.querySelector('#rows').textContent"))
    assert browser.evaluate("document.images.length") == 0
    assert browser.complaints() == []
