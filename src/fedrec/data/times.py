"""A column of times, in one format or several: numbers, dates, or both, always in one unit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrec.data import dates
from fedrec.data.content import UNITS, YEARS
from fedrec.data.interactions import Array

if TYPE_CHECKING:
    import polars as pl

MICRO = 1_000_000  # in a second


def plain_times(series: pl.Series) -> tuple[pl.Series, bool]:
    """Without categories, and whether it has a type of dates."""
    import polars as pl

    series = series.cast(pl.String) if series.dtype in (pl.Categorical, pl.Enum) else series
    return series, series.dtype in (pl.Date, pl.Datetime)


def read_times(series: pl.Series) -> pl.Series:
    """Whole numbers, null where there is no time.

    Whole numbers alone stay as they are. Fractions, dates, and numbers beside dates or in several units since 1970
    become microseconds.
    """
    import polars as pl

    series, is_date = plain_times(series)
    if is_date:
        return series.cast(pl.Datetime("us")).dt.epoch("us")
    text = series.str.strip_chars() if series.dtype == pl.String else series
    real = text.cast(pl.Float64, strict=False)
    if text.dtype == pl.String and _has_dates(text, real):
        return _read_mixed(text, real)
    if _has_several_units(real):
        return _count_from_1970(real)
    whole = text.cast(pl.Int64, strict=False) if not series.dtype.is_float() else None
    if whole is not None and (whole.is_null() == real.is_null()).all():
        return whole
    scale = 1 if (real == real.round()).all() else MICRO
    return (real * scale).round().cast(pl.Int64, strict=False)  # null where it is not finite, or too large


def _has_dates(text: pl.Series, real: pl.Series) -> bool:
    """Whether what is no number is, for the most part, a date."""
    rest = text.filter(real.is_null() & text.is_not_null() & (text != ""))
    return bool(len(rest)) and bool(dates.parse_dates(rest.head(100)).is_not_null().any())


def _read_mixed(text: pl.Series, real: pl.Series) -> pl.Series:
    """Dates, and beside them numbers that count from 1970; any other number could not be put in order with them."""
    moments = dates.parse_dates(text).dt.epoch("us")
    return moments.zip_with(moments.is_not_null(), _count_from_1970(real))


def _has_several_units(real: pl.Series) -> bool:
    """Whether all count from 1970, some in seconds and others in milliseconds, say."""
    least, largest = YEARS
    known = real.drop_nulls()
    units = [(known >= least * unit) & (known <= largest * unit) for unit in UNITS]
    used = [bool(unit.any()) for unit in units]
    return sum(used) > 1 and sum(int(unit.sum()) for unit in units) == len(known)


def _count_from_1970(real: pl.Series) -> pl.Series:
    """Microseconds from seconds to nanoseconds, each by its size; null for what cannot be a time of our years."""
    import polars as pl

    least, largest = YEARS
    found = pl.Series(real.name, [None] * len(real), dtype=pl.Int64)
    for unit in UNITS:
        inside = (real >= least * unit) & (real <= largest * unit)
        found = (real * (MICRO / unit)).round().cast(pl.Int64, strict=False).zip_with(inside.fill_null(False), found)
    return found


def unit_since_1970(times: Array) -> int | None:
    """How many of the unit make a second, where all of these count from 1970 and lie in our years."""
    least, largest = YEARS
    if not len(times):
        return None
    first, last = int(times.min()), int(times.max())
    return next((unit for unit in UNITS if least * unit <= first and last <= largest * unit), None)
