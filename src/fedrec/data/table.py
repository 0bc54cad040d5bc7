"""The user's own files: reads CSV, TSV and Parquet, writes CSV. One line says everything that was guessed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedrec.data import dates
from fedrec.data.atomic import atomic_file
from fedrec.data.content import SAMPLE, guess_content
from fedrec.data.interactions import Array, Interactions, ItemInfo, first_rows
from fedrec.data.roles import Ask, Column, ColumnRequest, Columns, Roles, by_flag, find_roles
from fedrec.data.sniff import bad_line, read_text, sniff
from fedrec.data.spreadsheet import guard, unguard_column
from fedrec.errors import FedrecError, reason

if TYPE_CHECKING:
    import polars as pl

_MISSING = ["nan", "NaN", "NAN", "null", "NULL", "Null", "None", "<NA>", "NaT"]
"""What programs write where a value is missing."""
_LONGEST_ID = 1_000  # characters; ids are kept in one array, whose cells are as wide as the longest
FRAME = "frame"  # the format of a table that came from memory
_SUFFIXES = {".csv", ".tsv", ".txt", ".dat", ".parquet", ".pq", ".data", ".inter", ".jsonl", ".ndjson"}
_JSON_LINES = {".jsonl", ".ndjson"}


@dataclass(frozen=True)
class Guess:
    """How a file was understood."""

    path: str
    format: str
    header: bool
    columns: dict[str, str]
    """Role (user, item, rating, timestamp, title) to the column's name; without a header, to its number from 1."""
    why: dict[str, str] = field(default_factory=dict)
    """What speaks for the column of a role, where its name does not."""
    unused: str = ""
    """The columns that have no role, and what they may be."""
    recorded: dict[str, str] = field(default_factory=dict)
    """What chooses the same columns again, whatever is guessed then."""

    @staticmethod
    def from_roles(path: str, format: str, header: bool, roles: Roles, names: Sequence[str]) -> Guess:
        return Guess(
            path,
            format,
            header,
            roles.column_names(names),
            roles.why,
            roles.describe_unused(names),
            roles.column_choices(names),
        )

    @property
    def has_types(self) -> bool:
        """Whether its columns have types, and its rows numbers instead of lines."""
        return self.format in ("parquet", FRAME)

    def __str__(self) -> str:
        why = {role: f" ({text})" for role, text in self.why.items()}
        roles = ", ".join(f"{role} = column {column}{why.get(role, '')}" for role, column in self.columns.items())
        header = (
            "" if self.has_types or self.format == "JSON Lines" else f", {'with' if self.header else 'without'} header"
        )
        absent = "" if "timestamp" in self.columns else "; no times"
        read = "" if self.format == FRAME else f" read as {self.format}{header}"
        unused = f"; not used: {self.unused}" if self.unused else ""
        return f"{self.path}{read}: {roles}{absent}{unused}"


def looks_like_path(spec: str) -> bool:
    """Whether a spec can only be meant as a file, so that a missing file is not reported as an unknown dataset."""
    separators = {os.sep, os.altsep or os.sep, "/"}
    return Path(spec.removesuffix(".gz")).suffix.lower() in _SUFFIXES or any(mark in spec for mark in separators)


def read_table(
    path: Path | str, columns: Columns | None = None, *, usual: Columns | None = None, ask: Ask = by_flag
) -> tuple[Interactions, Guess]:
    """Read interactions from a file (a text file may be gzipped).

    ``columns`` names the columns instead of guessing: role to header name, to the number from 1, or to "none"; those of
    ``usual`` are taken where the file has them. ``ask``: how messages tell whoever reads them to name one. Ids are
    kept as they are: whole numbers as integers, anything else (also 007) as text.
    """
    import polars as pl

    path = Path(path)
    if os.path.isdir(path):  # False, where the name is too long to ask
        raise folder_error(path)
    if not _is_file(path):
        raise FedrecError(f"there is no file {path}; check the path")
    suffix = path.suffix.lower()
    read = (
        _read_parquet
        if suffix in {".parquet", ".pq"}
        else _read_json_lines
        if suffix in _JSON_LINES
        else _read_delimited
    )
    frame, guess = read(path, ColumnRequest(columns or {}, usual or {}, ask))
    if frame.height == 0:
        raise FedrecError(f"{path} has no interactions")
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        return to_interactions(frame, guess, path.name, digest), guess
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:  # dates outside the calendar, say
        raise FedrecError(f"{path} has invalid values: {_first_line(error)}") from error


def folder_error(path: Path) -> FedrecError:
    """The error for a folder that was given instead of a file, with a file in it where there is one."""
    inside = sorted(file.name for file in path.iterdir() if file.suffix.lower() in _SUFFIXES)
    example = f", e.g. {path / inside[0]}" if inside else ""
    return FedrecError(f"{path} is a folder; give the file in it that has the interactions{example}")


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # the name is too long, or a folder may not be searched
        return False


def write_csv(data: Interactions, path: Path | str) -> None:
    """Write user,item[,rating,timestamp,item_title] in original ids; the file appears only when it is complete."""
    import polars as pl

    columns = {"user": _guard_ids(data.user_ids)[data.user], "item": _guard_ids(data.item_ids)[data.item]}
    columns |= {} if data.rating is None else {"rating": data.rating}
    columns |= {} if data.timestamp is None else {"timestamp": data.timestamp}
    if data.info is not None and data.info.titles is not None:
        columns["item_title"] = _guard_ids(data.info.titles)[data.item]
    try:
        with atomic_file(Path(path)) as temporary:
            pl.DataFrame(columns).write_csv(temporary)
    except (FileExistsError, NotADirectoryError) as error:
        raise FedrecError(f"cannot write {path}: {Path(path).parent} is not a folder; choose another one") from error
    except OSError as error:
        raise FedrecError(f"cannot write {path}: {reason(error)}") from error


def _guard_ids(ids: Array) -> Array:
    return ids if ids.dtype.kind in "iu" else np.array([guard(name) for name in ids.tolist()])


def _read_delimited(path: Path, wish: ColumnRequest) -> tuple[pl.DataFrame, Guess]:
    import polars as pl

    shape, text = sniff(path, read_text(path), wish)
    roles = find_roles(path, shape.columns(), shape.header, wish)
    if not shape.sample:
        raise FedrecError(f"{path} has a header but no interactions")
    try:
        frame = pl.read_csv(
            text.rstrip(),
            separator=shape.delimiter,
            has_header=False,
            skip_rows=int(shape.header),
            schema={str(j): pl.String for j in range(len(shape.names))},
        )
    except pl.exceptions.PolarsError as error:
        raise bad_line(path, text, shape, _first_line(error)) from error
    guess = Guess.from_roles(str(path), shape.label, shape.header, roles, shape.names)
    return frame.select(**{role: pl.col(str(place)) for role, place in roles.places.items()}), guess


def _read_parquet(path: Path, wish: ColumnRequest) -> tuple[pl.DataFrame, Guess]:
    import polars as pl

    try:
        first = pl.read_parquet(path, n_rows=SAMPLE)
        roles = find_roles(path, columns_of(first), True, wish)
        guess = Guess.from_roles(str(path), "parquet", True, roles, first.columns)
        frame = pl.read_parquet(path, columns=list(guess.columns.values()))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise FedrecError(f"{path} is not a readable Parquet file: {_first_line(error)}") from error
    return frame.select(**{role: pl.col(name) for role, name in guess.columns.items()}), guess


def _read_json_lines(path: Path, wish: ColumnRequest) -> tuple[pl.DataFrame, Guess]:
    """One JSON object on each line, with the names of columns."""
    import polars as pl

    try:
        whole = pl.read_ndjson(read_text(path), infer_schema_length=None)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        line = next((n for n, text in enumerate(read_text(path).split(b"\n"), 1) if not _is_object(text)), 1)
        raise FedrecError(
            f'{path}, line {line}: not a JSON object; write one such as {{"user": 1, "item": 2}} on each line'
        ) from error
    roles = find_roles(path, columns_of(whole), True, wish)
    guess = Guess.from_roles(str(path), "JSON Lines", False, roles, whole.columns)
    return whole.select(**{role: pl.col(name) for role, name in guess.columns.items()}), guess


def columns_of(frame: pl.DataFrame) -> list[Column]:
    """The columns of a table whose values have types, with what its first rows hold."""
    return [Column(place, series.name, guess_content(series.head(SAMPLE))) for place, series in enumerate(frame)]


def _is_object(line: bytes) -> bool:
    try:
        return not line.strip() or isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def to_interactions(frame: pl.DataFrame, guess: Guess, name: str, digest: str) -> Interactions:
    """The table of a frame whose columns are named by their roles; `digest` tells its content from another's."""
    location = _Location(guess)
    user_ids, user = _number_ids(frame["user"], location)
    item_ids, item = _number_ids(frame["item"], location)
    data = Interactions(
        user=user,
        item=item,
        user_ids=user_ids,
        item_ids=item_ids,
        rating=_rating(frame["rating"], location) if "rating" in guess.columns else None,
        timestamp=_timestamp(frame["timestamp"], location) if "timestamp" in guess.columns else None,
        time="real" if "timestamp" in guess.columns else "none",
        name=name,
        version=f"sha256-{digest}+ties0",
        first_line=first_rows(item, item_ids.size),
        info=ItemInfo(_titles(frame["title"], item, item_ids.size)) if "title" in guess.columns else None,
        notes=(str(guess),),
        guessed=True,
        columns=guess.recorded,
    )
    return replace(data, notes=(*data.notes, *_remarks(frame, data, guess)))


def _remarks(frame: pl.DataFrame, data: Interactions, guess: Guess) -> list[str]:
    """What may be otherwise than its owner thinks."""
    import polars as pl

    found = []
    written = "timestamp" in guess.columns and frame["timestamp"].dtype == pl.String
    if written and (zoneless := dates.count_without_zone(frame["timestamp"])):
        found.append(f"{guess.path}: {zoneless:,} of {len(data):,} times have no zone, as others have: taken for UTC")
    if repeated := len(data) - data.distinct_pairs().size:
        found.append(f"{guess.path}: {repeated:,} of {len(data):,} rows repeat a user-item pair")
    return found


@dataclass(frozen=True)
class _Location:
    """Where a row of the frame stands in the file, so that the user finds what an error is about."""

    guess: Guess

    def error(self, row: int, role: str, problem: str) -> FedrecError:
        line = f"row {row}" if self.guess.has_types else f"line {row + 1 + int(self.guess.header)}"
        return FedrecError(
            f"{self.guess.path}, {line}, column {self.guess.columns[role]}: {problem}; fix or remove this row"
        )

    def check(self, series: pl.Series, bad: pl.Series, role: str, wanted: str) -> None:
        if bad.any():
            row = int(bad.arg_max() or 0)
            value = series[row]
            shown = f"{value!s:.40}..." if len(str(value)) > 40 else value
            raise self.error(row, role, f"{role} is missing" if value is None else f"'{shown}' is not {wanted}")

    def dates(self, text: pl.Series) -> pl.Series:
        """As moments, null where there is none; an error where they can be read in two ways."""
        try:
            return dates.parse_dates(text)
        except FedrecError as error:
            raise FedrecError(f"{self.guess.path}, column {self.guess.columns['timestamp']}: {error}") from None

    def require_one_kind(self, text: pl.Series, numbers: pl.Series) -> None:
        """Numbers and dates in one column cannot be put in order."""
        row = (numbers.is_null() & text.is_not_null()).arg_max()
        if row is not None and numbers[row] is None and dates.parse_dates(text[row : row + 1])[0] is not None:
            raise self.error(int(row), "timestamp", f"'{text[row]}' is a date where others are numbers")

    def check_type(self, series: pl.Series, legal: bool) -> None:
        """A column of Parquet may hold anything."""
        if not legal:
            where = f"{self.guess.path}, column {self.guess.columns[series.name]}"
            raise FedrecError(f"{where}: {series.dtype} cannot be used as {series.name}; save it as numbers or text")


def _number_ids(series: pl.Series, location: _Location) -> tuple[Array, Array]:
    """Distinct ids in sorted order, and each row's index among them."""
    import polars as pl

    role = series.name
    location.check_type(series, not series.dtype.is_nested() and series.dtype not in (pl.Binary, pl.Object))
    if series.dtype.is_float():
        whole = series.cast(pl.Int64, strict=False)
        location.check(series, series.is_null() | whole.is_null() | (series != series.round()), role, "an id")
        series = whole
    elif not series.dtype.is_integer():
        series = series.cast(pl.String).str.strip_chars()
        series = series if location.guess.has_types else unguard_column(series)
        location.check(series, series.is_null() | (series == ""), role, "an id")
        location.check(series, series.is_in(_MISSING), role, "an id: it stands for a missing value")
        whole = series.cast(pl.Int64, strict=False)
        # Only numbers that are written as we would write them: 007 and 7 may be two users.
        if whole.null_count() == 0 and (whole.cast(pl.String) == series).all():
            series = whole
    location.check(series, series.is_null(), role, "an id")
    if series.dtype.is_integer() and series.cast(pl.Int64, strict=False).null_count():
        series = series.cast(pl.String)  # beyond 64 bits
    if series.dtype == pl.String:
        if location.guess.has_types:  # in a text file they were refused before
            location.check(series, series.str.contains("\0", literal=True), role, "an id: it contains a NUL character")
        location.check(
            series, series.str.len_chars() > _LONGEST_ID, role, f"an id: more than {_LONGEST_ID:,} characters"
        )
    index = series.rank("dense").cast(pl.Int64).to_numpy() - 1
    distinct = series.unique().sort()
    if series.dtype == pl.String:
        return np.array(distinct.to_list(), dtype=str), index
    return distinct.cast(pl.Int64).to_numpy(), index


def _titles(series: pl.Series, item: Array, n_items: int) -> Array:
    """For every item the title of its first row that has one; empty where none has."""
    import polars as pl

    text = unguard_column(series.cast(pl.String).str.strip_chars()).fill_null("").to_numpy()
    titles = np.full(n_items, "", dtype=object)
    told = np.flatnonzero(text != "")
    places, first = np.unique(item[told], return_index=True)
    titles[places] = text[told[first]]
    return titles


def _rating(series: pl.Series, location: _Location) -> Array:
    import polars as pl

    location.check_type(series, series.dtype.is_numeric() or series.dtype in (pl.String, pl.Boolean))
    values = _strip(series).cast(pl.Float64, strict=False).cast(pl.Float32)
    location.check(series, values.is_null() | ~values.is_finite().fill_null(False), "rating", "a finite number")
    return np.asarray(values.to_numpy())


def _timestamp(series: pl.Series, location: _Location) -> Array:
    """Whole numbers as they are; fractions of a second and dates as microseconds, so that no order is lost."""
    import polars as pl

    series = series.cast(pl.String) if series.dtype in (pl.Categorical, pl.Enum) else series
    is_date = series.dtype in (pl.Date, pl.Datetime)
    location.check_type(series, is_date or series.dtype.is_numeric() or series.dtype == pl.String)
    text = _strip(series)
    whole = text.cast(pl.Int64, strict=False) if series.dtype.is_integer() or series.dtype == pl.String else None
    if whole is not None and whole.null_count() == 0:
        return np.asarray(whole.to_numpy())
    real = None if is_date else text.cast(pl.Float64, strict=False)
    if real is None or (real.null_count() == len(real) and text.dtype == pl.String):
        days = text if is_date else location.dates(text)
        whole = days.cast(pl.Datetime("us")).dt.epoch("us")
    else:
        scale = 1 if (real == real.round()).all() else 1_000_000
        whole = (real * scale).round().cast(pl.Int64, strict=False)  # null where it is not finite, or too large
        if text.dtype == pl.String and whole.null_count():
            location.require_one_kind(text, real)
    location.check(series, whole.is_null(), "timestamp", "a time (a number, or a date such as 2024-01-31)")
    return np.asarray(whole.to_numpy())


def _strip(series: pl.Series) -> pl.Series:
    import polars as pl

    return series.str.strip_chars() if series.dtype == pl.String else series
