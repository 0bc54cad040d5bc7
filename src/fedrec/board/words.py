"""Numbers and times as the pages write them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from urllib.parse import quote, urlencode

from fedrec.report.charts.scales import number
from fedrec.report.pages.cost import size


def duration_text(seconds: float | None) -> str:
    """Write a duration as 42 s, 3 min 20 s or 2 h 5 min."""
    if seconds is None:
        return "not yet known"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if whole else "less than 1 s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min"


def time_text(seconds: float) -> str:
    """Write a moment in local time."""
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}"


def second_text(seconds: float) -> str:
    """Write a moment of a log, to the second."""
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M:%S}"


def address(name: str) -> str:
    """Write the name of a folder as part of an address."""
    return quote(name, safe="/")


def query_text(words: dict[str, str], **changed: str) -> str:
    """Write the words of an address with some of them changed; those without a value are left out."""
    return urlencode({name: value for name, value in {**words, **changed}.items() if value})


FILTERS_OF_PAGES: dict[str, Callable[..., str]] = {
    "bytes": size,
    "duration": duration_text,
    "moment": time_text,
    "second": second_text,
    "address": address,
    "with_words": query_text,
    "short_number": number,
    "grouped": lambda value: f"{value:,}",
}
