"""The user's own files: reads CSV, TSV and Parquet, writes CSV. One line says everything that was guessed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedrec.data import dates, times
from fedrec.data.atomic import atomic_file
from fedrec.data.bad_rows import (
    BadRow,
    BadRows,
    drop_odd_lines,
    has_other_width,
    is_no_object,
    odd_ids,
    odd_ratings,
    split_lines,
)
from fedrec.data.content import SAMPLE, guess_content
from fedrec.data.interactions import Array, Interactions, ItemInfo, first_rows
from fedrec.data.roles import Ask, Column, ColumnRequest, Columns, Roles, by_flag, find_roles
from fedrec.data.sniff import bad_line, read_raw, read_text, sniff
from fedrec.data.spreadsheet import guard, unguard_column
from fedrec.errors import FedrecError, reason

if TYPE_CHECKING:
    import polars as pl

LINE = "line in the file"  # a column beside the roles, where rows were dropped
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
    path: Path | str,
    columns: Columns | None = None,
    *,
    usual: Columns | None = None,
    ask: Ask = by_flag,
    skip_bad: bool = False,
) -> tuple[Interactions, Guess]:
    """Read interactions from a file (a text file may be gzipped).

    ``columns`` names the columns instead of guessing: role to header name, to the number from 1, or to "none"; those of
    ``usual`` are taken where the file has them. ``ask``: how messages tell whoever reads them to name one. Ids are
    kept as they are: whole numbers as integers, anything else (also 007) as text. ``skip_bad``: rows that cannot be
    used are put aside and counted, instead of being an error.
    """
    import polars as pl

    path = Path(path)
    # os.path.isdir instead of Path.is_dir: a name that is too long to ask about is no folder, while pathlib may raise.
    if os.path.isdir(path):
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
    frame, guess, broken = read(path, ColumnRequest(columns or {}, usual or {}, ask), skip_bad)
    # Asked before anything is computed: an empty table has no ids to number and no digest worth naming.
    if frame.height == 0:
        raise FedrecError(f"{path} has no interactions")
    try:
        # Hashed as it lies on disk, so that a renamed copy has the same digest and one changed byte has another.
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        bad = BadRows(())
        if skip_bad:
            frame, bad = _set_aside(frame, guess, broken)
        data = to_interactions(frame.drop(LINE, strict=False), guess, path.name, digest)
        return (data.with_bad_rows(bad) if len(bad) else data), guess
    # The panic is a Rust one that polars raises past its own error class, for instance on dates outside the calendar.
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise FedrecError(f"{path} has invalid values: {_first_line(error)}") from error


def folder_error(path: Path) -> FedrecError:
    """The error for a folder that was given instead of a file, with a file in it where there is one."""
    # Sorted, because the order in which a folder lists its files differs between machines.
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
    # Titles are written last, so that a reader by position still finds user, item, rating and time where they were.
    if data.info is not None and data.info.titles is not None:
        columns["item_title"] = _guard_ids(data.info.titles)[data.item]
    try:
        # Written beside its place and moved there: an interrupted export must not leave a file that looks complete.
        with atomic_file(Path(path)) as temporary:
            pl.DataFrame(columns).write_csv(temporary)
    except (FileExistsError, NotADirectoryError) as error:
        raise FedrecError(f"cannot write {path}: {Path(path).parent} is not a folder; choose another one") from error
    except OSError as error:
        raise FedrecError(f"cannot write {path}: {reason(error)}") from error


def _guard_ids(ids: Array) -> Array:
    # Integers cannot start a spreadsheet formula, and a loop over millions of them would be slow for nothing.
    return ids if ids.dtype.kind in "iu" else np.array([guard(name) for name in ids.tolist()])


def _read_delimited(path: Path, wish: ColumnRequest, skip_bad: bool) -> tuple[pl.DataFrame, Guess, list[BadRow]]:
    import polars as pl

    # Lines are split only where rows may be dropped: otherwise the line in the file follows from the row number.
    lines = split_lines(read_raw(path)) if skip_bad else None
    shape, text = sniff(path, read_text(path) if lines is None else lines.text, wish)
    roles = find_roles(path, shape.columns(), shape.header, wish)
    # After the roles, so that a header that names nothing is reported first: it is the likelier mistake.
    if not shape.sample:
        raise FedrecError(f"{path} has a header but no interactions")
    if lines is not None:
        lines = drop_odd_lines(replace(lines, text=text), has_other_width(shape.delimiter, len(shape.names)))
        text = lines.text
    try:
        frame = pl.read_csv(
            # Trailing blank lines would be read as rows of nulls.
            text.rstrip(),
            separator=shape.delimiter,
            has_header=False,
            skip_rows=int(shape.header),
            # Everything is read as text: an inferred type would turn the id 007 into 7, and fail on the first odd cell.
            schema={str(j): pl.String for j in range(len(shape.names))},
        )
    except pl.exceptions.PolarsError as error:
        raise bad_line(path, text, shape, _first_line(error)) from error
    guess = Guess.from_roles(str(path), shape.label, shape.header, roles, shape.names)
    chosen = frame.select(**{role: pl.col(str(place)) for role, place in roles.places.items()})
    if lines is None:
        return chosen, guess, []
    return _with_lines(chosen, lines.numbers[int(shape.header) :]), guess, lines.bad


def _with_lines(frame: pl.DataFrame, numbers: Sequence[int]) -> pl.DataFrame:
    """With the line of every row in the file, from which others were dropped."""
    import polars as pl

    return frame.with_columns(pl.Series(LINE, numbers[: frame.height], dtype=pl.Int64))


def _read_parquet(path: Path, wish: ColumnRequest, skip_bad: bool) -> tuple[pl.DataFrame, Guess, list[BadRow]]:
    import polars as pl

    try:
        # The first rows decide which columns are needed, so that the wide ones of a large file are never loaded.
        first = pl.read_parquet(path, n_rows=SAMPLE)
        roles = find_roles(path, columns_of(first), True, wish)
        guess = Guess.from_roles(str(path), "parquet", True, roles, first.columns)
        frame = pl.read_parquet(path, columns=list(guess.columns.values()))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise FedrecError(f"{path} is not a readable Parquet file: {_first_line(error)}") from error
    chosen = frame.select(**{role: pl.col(name) for role, name in guess.columns.items()})
    return (_with_lines(chosen, range(chosen.height)) if skip_bad else chosen), guess, []


def _read_json_lines(path: Path, wish: ColumnRequest, skip_bad: bool) -> tuple[pl.DataFrame, Guess, list[BadRow]]:
    """One JSON object on each line, with the names of columns."""
    import polars as pl

    lines = drop_odd_lines(split_lines(read_raw(path)), is_no_object) if skip_bad else None
    try:
        text = read_text(path) if lines is None else lines.text
        # Types are inferred from all lines: a field that turns from number to text late in the file would be an error.
        whole = pl.read_ndjson(text, infer_schema_length=None)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        # Polars does not say which line is broken, so the file is searched again; only a failing read pays for that.
        line = next((n for n, text in enumerate(read_text(path).split(b"\n"), 1) if not _is_object(text)), 1)
        raise FedrecError(
            f'{path}, line {line}: not a JSON object; write one such as {{"user": 1, "item": 2}} on each line'
        ) from error
    roles = find_roles(path, columns_of(whole), True, wish)
    guess = Guess.from_roles(str(path), "JSON Lines", False, roles, whole.columns)
    chosen = whole.select(**{role: pl.col(name) for role, name in guess.columns.items()})
    return (chosen, guess, []) if lines is None else (_with_lines(chosen, lines.numbers), guess, lines.bad)


def _set_aside(frame: pl.DataFrame, guess: Guess, broken: Sequence[BadRow]) -> tuple[pl.DataFrame, BadRows]:
    """The rows that can be used, and the others with those that could not even be read."""
    import polars as pl

    # Built by repetition, because an empty frame must give an empty column and not one of length 1.
    usable, rows = pl.Series([True]).new_from_index(0, frame.height), list(broken)
    for problem, bad in _value_problems(frame, guess):
        # A row counts once, by its first problem, so that the counts of all problems add up to the rows put aside.
        found = bad.fill_null(True) & usable
        usable = usable & ~found
        for row in frame.filter(found).iter_rows(named=True):
            # The line number is ours and not in the file: it must not appear in the text that the owner gets back.
            line = row.pop(LINE)
            rows.append(BadRow(line, problem, ",".join("" if value is None else str(value) for value in row.values())))
    if not usable.any():
        raise FedrecError(f"{guess.path} has no row that can be used: {BadRows(tuple(rows))}")
    # Problems were found one kind after another; the owner goes through the file from top to bottom.
    return frame.filter(usable), BadRows(tuple(sorted(rows, key=lambda row: row.line)))


def _value_problems(frame: pl.DataFrame, guess: Guess) -> Iterator[tuple[str, pl.Series]]:
    """What is wrong with the values of a table, and in which rows: the same that is otherwise an error."""
    import polars as pl

    articles = {"user": "a user", "item": "an item"}
    for role in ("user", "item"):
        for wanted, bad in odd_ids(_plain_ids(frame[role], guess.has_types), guess.has_types):
            missing = wanted == "an id"
            yield f"no {role}" if missing else f"{articles[role]} that is not {wanted}", bad
    if "silo" in frame.columns:
        yield "no company", frame["silo"].is_null() | (frame["silo"].cast(pl.String) == "")
    if "rating" in frame.columns:
        yield "a rating that is no number", odd_ratings(_strip(frame["rating"]).cast(pl.Float64, strict=False))
    if "timestamp" in frame.columns:
        yield "a time that cannot be read", times.read_times(frame["timestamp"]).is_null()


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
    import polars as pl

    location = _Location(guess)
    silos = None
    # Companies come before ids are numbered, since they can make two users out of one id.
    if "silo" in frame.columns:
        location.check(
            frame["silo"], frame["silo"].is_null() | (frame["silo"].cast(pl.String) == ""), "silo", "a company"
        )
        frame, silos = _name_companies(frame)
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
        silos=silos,
    )
    return replace(data, notes=(*data.notes, *_remarks(frame, data, guess)))


def _name_companies(frame: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, str]]:
    """A table with users of their own for every value of the column `silo`, and whose each is."""
    import polars as pl

    # Stripped like ids elsewhere; else a blank behind a name would make another company.
    user, silo = frame["user"].cast(pl.String).str.strip_chars(), frame["silo"].cast(pl.String).str.strip_chars()
    whose = pl.DataFrame({"user": user, "silo": silo}).unique()
    if whose["user"].n_unique() < whose.height:  # the same number is somebody else at another company
        frame = frame.with_columns((silo + ":" + user).alias("user"))
        whose = whose.with_columns((pl.col("silo") + ":" + pl.col("user")).alias("user"))
    return frame, dict(zip(whose["user"].to_list(), whose["silo"].to_list(), strict=True))


def _remarks(frame: pl.DataFrame, data: Interactions, guess: Guess) -> list[str]:
    """What may be otherwise than its owner thinks."""
    import polars as pl

    found = []
    written = "timestamp" in guess.columns and frame["timestamp"].dtype == pl.String
    # Only text can lack a zone: typed columns have been brought to UTC or never had one.
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
        # The header is a line too, and people count lines from 1.
        line = f"row {row}" if self.guess.has_types else f"line {row + 1 + int(self.guess.header)}"
        return FedrecError(
            f"{self.guess.path}, {line}, column {self.guess.columns[role]}: {problem}; fix or remove this row, "
            "or put such rows aside (--skip-bad)"
        )

    def check(self, series: pl.Series, bad: pl.Series, role: str, wanted: str) -> None:
        if bad.any():
            row = int(bad.arg_max() or 0)
            value = series[row]
            # A long cell is cut, so that the message stays readable and a whole broken file is not printed.
            shown = f"{value!s:.40}..." if len(str(value)) > 40 else value
            raise self.error(row, role, f"{role} is missing" if value is None else f"'{shown}' is not {wanted}")

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
    series = _plain_ids(series, location.guess.has_types)
    for wanted, bad in odd_ids(series, location.guess.has_types):
        location.check(series, bad, role, wanted)
    # Floats come from columns with missing values that pandas or Parquet widened; the ids were whole.
    if series.dtype.is_float():
        series = series.cast(pl.Int64)
    elif series.dtype == pl.String:
        whole = series.cast(pl.Int64, strict=False)
        # Only numbers that are written as we would write them: 007 and 7 may be two users.
        if whole.null_count() == 0 and (whole.cast(pl.String) == series).all():
            series = whole
    if series.dtype.is_integer() and series.cast(pl.Int64, strict=False).null_count():
        series = series.cast(pl.String)  # beyond 64 bits
    # Ranked by polars: np.unique would compare Python objects where ids are text.
    index = series.rank("dense").cast(pl.Int64).to_numpy() - 1
    distinct = series.unique().sort()
    # numpy's own text type, not objects: later parts sort, search and join ids with it.
    if series.dtype == pl.String:
        return np.array(distinct.to_list(), dtype=str), index
    return distinct.cast(pl.Int64).to_numpy(), index


def _plain_ids(series: pl.Series, typed: bool) -> pl.Series:
    """Numbers as they are; anything else as text without spaces around it."""
    import polars as pl

    if series.dtype.is_float() or series.dtype.is_integer():
        return series
    text = series.cast(pl.String).str.strip_chars()
    return text if typed else unguard_column(text)


def _titles(series: pl.Series, item: Array, n_items: int) -> Array:
    """For every item the title of its first row that has one; empty where none has."""
    import polars as pl

    text = unguard_column(series.cast(pl.String).str.strip_chars()).fill_null("").to_numpy()
    titles = np.full(n_items, "", dtype=object)
    # Only rows that say something, so that a blank in the first row does not hide a title in the second.
    told = np.flatnonzero(text != "")
    places, first = np.unique(item[told], return_index=True)
    titles[places] = text[told[first]]
    return titles


def _rating(series: pl.Series, location: _Location) -> Array:
    import polars as pl

    location.check_type(series, series.dtype.is_numeric() or series.dtype in (pl.String, pl.Boolean))
    values = _strip(series).cast(pl.Float64, strict=False).cast(pl.Float32)
    location.check(series, odd_ratings(values), "rating", "a finite number")
    return np.asarray(values.to_numpy())


def _timestamp(series: pl.Series, location: _Location) -> Array:
    """Whole numbers; fractions of a second, dates and what is mixed as microseconds, so that no order is lost."""
    import polars as pl

    series, is_date = times.plain_times(series)
    location.check_type(series, is_date or series.dtype.is_numeric() or series.dtype == pl.String)
    try:
        whole = times.read_times(series)
    except FedrecError as error:
        raise FedrecError(f"{location.guess.path}, column {location.guess.columns['timestamp']}: {error}") from None
    location.check(series, whole.is_null(), "timestamp", "a time (a number, or a date such as 2024-01-31)")
    return np.asarray(whole.to_numpy())


def _strip(series: pl.Series) -> pl.Series:
    import polars as pl

    return series.str.strip_chars() if series.dtype == pl.String else series
