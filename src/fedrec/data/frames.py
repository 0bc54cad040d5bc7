"""Tables that are already in memory: pandas and polars frames in, frames of either kind out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrec.data.content import SAMPLE
from fedrec.data.interactions import Interactions
from fedrec.data.roles import ColumnRequest, Columns, by_keyword, find_roles
from fedrec.data.table import FRAME, Guess, columns_of, to_interactions
from fedrec.errors import FedrecError

if TYPE_CHECKING:
    import polars as pl


def is_pandas(data: Any) -> bool:
    return type(data).__name__ == "DataFrame" and _is_from(data, "pandas")


def _is_from(data: Any, package: str) -> bool:
    return type(data).__module__.partition(".")[0] == package


def is_frame(data: Any) -> bool:
    """Whether it is a frame; neither package is imported to find out."""
    return is_pandas(data) or (type(data).__name__ in ("DataFrame", "LazyFrame") and _is_from(data, "polars"))


def from_frame(frame: Any, name: str = FRAME, columns: Columns | None = None) -> Interactions:
    """The interactions of a frame; columns are understood as those of a file, and named in `columns` otherwise."""
    import polars as pl

    if type(frame).__name__ == "LazyFrame":
        raise FedrecError("a lazy frame has no rows yet; give frame.collect()")
    names = [str(column) for column in frame.columns]
    if len(set(names)) < len(names):
        raise FedrecError(f"the frame has a column twice ({', '.join(names)}); rename or remove one")
    series = _from_pandas if is_pandas(frame) else _from_polars
    first = pl.DataFrame([series(frame.head(SAMPLE), place, column) for place, column in enumerate(names)])
    roles = find_roles(name, columns_of(first), True, ColumnRequest(columns or {}, ask=by_keyword))
    taken = pl.DataFrame([series(frame, place, role) for role, place in roles.places.items()])
    if not taken.height:
        raise FedrecError("the frame has no interactions")
    guess = Guess.from_roles(name, FRAME, True, roles, names)
    try:
        return to_interactions(taken, guess, name, _digest(taken))
    except pl.exceptions.PolarsError as error:
        raise FedrecError(f"the frame has invalid values: {error}") from error


def _from_polars(frame: Any, place: int, role: str) -> pl.Series:
    return frame.to_series(place).rename(role)


def _from_pandas(frame: Any, place: int, role: str) -> pl.Series:
    """Without pyarrow, which polars' own conversion needs."""
    import polars as pl

    column = frame.iloc[:, place]
    if column.dtype.kind == "M":  # a clock with a time zone is told by its instant
        clock = column if getattr(column.dt, "tz", None) is None else column.dt.tz_convert("UTC").dt.tz_localize(None)
        return pl.Series(role, clock.to_numpy().astype("datetime64[us]"))
    missing = column.isna().to_numpy()
    if column.dtype.kind in "iufb" and not missing.any() and isinstance(column.dtype, np.dtype):
        return pl.Series(role, column.to_numpy())
    values = [None if gone else value for value, gone in zip(column.tolist(), missing, strict=True)]
    kinds = {type(value) for value in values if value is not None}
    alike = len(kinds) == 1 and kinds <= {int, float, str, bool}
    return pl.Series(role, values if alike else [None if value is None else str(value) for value in values])


def _digest(frame: pl.DataFrame) -> str:
    found = hashlib.sha256()
    for series in frame:
        found.update(f"{series.name} {series.dtype}".encode())
        values = series.to_numpy()
        found.update("\0".join(map(str, values.tolist())).encode() if values.dtype == object else values.tobytes())
    return found.hexdigest()[:12]


def make_frame(columns: Mapping[str, Sequence[Any] | np.ndarray], pandas: bool = False) -> Any:
    """Columns as a frame of polars, or of pandas."""
    if pandas:
        import pandas as pd

        return pd.DataFrame(dict(columns))
    import polars as pl

    return pl.DataFrame(dict(columns))
