"""The page in a real browser: quiet console, no network, no sideways scrolling, readable in light and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .browser import BINARY, Browser

pytestmark = [
    pytest.mark.skipif(BINARY is None, reason="no chromium or google-chrome on PATH: the page is not opened"),
    pytest.mark.slow,
]

OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# contrast of a colour against the page, by the WCAG formula
CONTRAST = """(() => {
  const lum = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(v => { v /= 255;
    return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 }); return .2126 * r + .7152 * g + .0722 * b };
  const paper = lum(getComputedStyle(document.body).backgroundColor);
  const ratio = c => { const [a, b] = [lum(c), paper].sort((x, y) => y - x); return (a + .05) / (b + .05) };
  const words = document.querySelectorAll('p, td, th, dt, dd, h1, h2, figcaption');
  const html = [...words].map(e => getComputedStyle(e).color);
  const svg = [...document.querySelectorAll('svg text')].map(e => getComputedStyle(e).fill);
  return Math.min(...[...html, ...svg].map(ratio)) })()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.mark.parametrize("which", ["page", "comparison_page"])
@pytest.mark.parametrize("width", [320, 390, 1200])
@pytest.mark.parametrize("dark", [False, True])
def test_it_opens_alone_and_fits(
    browser: Browser, which: str, width: int, dark: bool, request: pytest.FixtureRequest
) -> None:
    path: Path = request.getfixturevalue(which)
    browser.open(path, width, dark)
    assert browser.evaluate(OVERFLOW) == 0
    assert browser.evaluate(CONTRAST) >= 4.5
    assert browser.complaints() == []
    assert browser.requests() == [path.resolve().as_uri()]


def test_markup_in_ids_does_not_run(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.evaluate("document.scripts.length + document.images.length") == 0
    assert browser.evaluate("document.body.innerText.includes('<script>alert')") is True
