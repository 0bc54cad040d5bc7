"""What a column holds, told by its first values: dates, moments counted from 1970, numbers or words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from fedrec.data import dates
from fedrec.errors import FedrecError

if TYPE_CHECKING:
    import polars as pl

Content = Literal["dates", "epochs", "days", "whole", "real", "words", "nothing"]
"""`epochs`: seconds, milliseconds, ... since 1970; `days`: whole numbers such as 20240131; `whole`, `real`: others."""
SAMPLE = 200  # values that are looked at
_MOST = 0.9  # of them: a damaged value does not make a column another one
YEARS = 6.3e8, 4.1e9  # 1990 and 2100 in seconds since 1970: no rating scale, price or year of birth reaches them
UNITS = 1, 10**3, 10**6, 10**9  # seconds to nanoseconds


def guess_content(values: pl.Series) -> Content:
    """What most of a column's values are; those that are missing do not count."""
    import polars as pl

    if values.dtype in (pl.Date, pl.Datetime):
        return "dates"
    if values.dtype.is_temporal() or values.dtype.is_nested() or values.dtype in (pl.Boolean, pl.Binary, pl.Object):
        return "words"
    if not values.dtype.is_numeric() and values.dtype != pl.String:
        values = values.cast(pl.String, strict=False)
    if values.dtype == pl.String:
        values = values.str.strip_chars()
        values = values.filter(values != "")
    values = values.drop_nulls().head(SAMPLE)
    if not len(values):
        return "nothing"
    numbers = values.cast(pl.Float64, strict=False)
    if numbers.is_not_null().mean() >= _MOST:
        return _guess_numbers(numbers.drop_nulls())
    return "dates" if values.dtype == pl.String and _are_dates(values) else "words"


def _guess_numbers(numbers: pl.Series) -> Content:
    def most(which: pl.Series) -> bool:
        return float(which.mean() or 0.0) >= _MOST

    least, largest = YEARS
    if any(most((numbers >= least * unit) & (numbers <= largest * unit)) for unit in UNITS):
        return "epochs"
    if not most(numbers == numbers.round()):
        return "real"
    year, month, day = numbers // 10_000, numbers // 100 % 100, numbers % 100
    dated = (year >= 1990) & (year <= 2100) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    return "days" if most(dated) else "whole"


def _are_dates(text: pl.Series) -> bool:
    try:
        return bool(dates.parse_dates(text).is_not_null().mean() >= _MOST)
    except FedrecError:  # dates that can be read in two ways
        return True
