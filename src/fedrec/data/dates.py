"""Dates as people write them, in one format or several: always the same moment, never a guess between two readings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrec.errors import FedrecError

if TYPE_CHECKING:
    import polars as pl

_TIMES = ("", "{T}%H:%M", "{T}%H:%M:%S", "{T}%H:%M:%S%.f", "{T}%I:%M %p", "{T}%I:%M:%S %p")
_DAYS = ("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d-%m-%Y", "%d %b %Y", "%b %d, %Y", "%d %B %Y", "%B %d, %Y")
_SLASHED = r"^\d{1,2}/\d{1,2}/\d{4}"
_ZONE = r"(?i)(\d\s?[+-]\d\d:?\d\d|z|utc|gmt)$"
_SAMPLE = 200  # values whose formats are tried before all others


def parse_dates(text: pl.Series) -> pl.Series:
    """Moments in microseconds, in UTC where a zone is given; null where there is none.

    01/02/2024 is read if the column itself says which part is the day.
    """
    import polars as pl

    text = text.cast(pl.String).str.replace(r"(?i)z$", "+00:00").str.replace(r" (UTC|GMT)$", "+00:00")
    found = pl.Series(text.name, [None] * len(text), dtype=pl.Datetime("us"))
    likely = text.head(_SAMPLE)
    for format in sorted(_list_formats(text), key=lambda format: not _parse_format(likely, format).is_not_null().any()):
        left = found.is_null().arg_true()
        if not len(left):
            break
        found = found.scatter(left, _parse_format(text[left], format))
    return found


def _list_formats(text: pl.Series) -> list[str]:
    days = [*_DAYS, *filter(None, [_find_slash_format(text)])]
    plain = [day + time.format(T=mark) for day in days for time in _TIMES for mark in ("T", " ")[: 1 + bool(time)]]
    zoned = [f"{format}{gap}%:z" for format in plain if _has_clock(format) for gap in ("", " ")]
    return [*plain, *zoned]


def _has_clock(format: str) -> bool:
    return "%H" in format or "%I" in format


def count_without_zone(text: pl.Series) -> int:
    """How many moments are without a time zone where others have one."""
    import polars as pl

    zoned = text.cast(pl.String).str.strip_chars().str.contains(_ZONE).sum()
    return len(text) - zoned if zoned else 0


def _find_slash_format(text: pl.Series) -> str:
    """Which of day and month comes first between slashes; empty where nothing is written so."""
    import polars as pl

    parts = text.filter(text.str.contains(_SLASHED))
    if not len(parts):
        return ""
    numbers = parts.str.extract_groups(r"^(\d{1,2})/(\d{1,2})/").struct
    first, second = (int(numbers.field(name).cast(pl.Int64).max()) for name in ("1", "2"))
    if (first > 12) == (second > 12):
        raise FedrecError(f"dates such as {parts[0]} are ambiguous; write the year first, as in 2024-01-31")
    return "%d/%m/%Y" if first > 12 else "%m/%d/%Y"


def _parse_format(text: pl.Series, format: str) -> pl.Series:
    import polars as pl

    if format.endswith("%:z"):
        zoned = text.str.to_datetime(format, time_unit="us", strict=False, time_zone="UTC")
        return zoned.dt.replace_time_zone(None)
    if not _has_clock(format):
        return text.str.to_date(format, strict=False).cast(pl.Datetime("us"))
    return text.str.to_datetime(format, time_unit="us", strict=False)
