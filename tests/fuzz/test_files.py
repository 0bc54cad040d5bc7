"""Files that are no tables, or hardly: read_table gives valid interactions or a FedrecError."""

from __future__ import annotations

import gzip
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conftest import Cli
from fedrec.data import Interactions, read_table
from fedrec.errors import FedrecError
from fuzz.property import everything_below, fuzz, tidy

# -- what files are made of --

NUMBERS = [
    "0",
    "-1",
    "007",
    "3.5",
    "1e400",
    "-1e400",
    "1e300",
    "1e39",
    "nan",
    "inf",
    "99999999999999999999999",
    "1_000",
    "9223372036854775807",
    "9223372036854775808",
    "0x1f",
    "²",
    "٣",
    "1,5",
]
WORDS = [
    "",
    " ",
    "a",
    "Zoë",
    "名前",
    "\u202e",
    "a\u0301",
    "🎬🎬",
    "\ufeff",
    "\u2028",
    "\x0b",
    "\x85",
    '"',
    '""',
    "'",
    "x" * 3000,
    "2020-01-01",
    "9999-99-99",
    "999999-01-01",
    "2020-02-30T25:61:61",
    "=1+1",
    "NULL",
    "None",
    "[1]",
    "<b>",
]
HEADERS = ["user", "item", "rating", "timestamp", "user_id", "user_id:token", "User", "date", "price", "1", "", "user"]
cells = st.sampled_from(NUMBERS + WORDS) | st.integers(1, 30).map(str) | st.text(max_size=6)
ends = st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\n \n", "\n\r", ""])
marks = st.sampled_from([",", "\t", ";", "|", " ", "::", ", ", ",,"])


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    """Rows of strange cells, often with the same mark and number of cells, as a table would have them."""
    mark, end, width = draw(marks), draw(ends), draw(st.integers(1, 5))
    header = draw(st.lists(st.sampled_from(HEADERS), min_size=width, max_size=width))
    orderly = draw(st.integers(0, 3)) > 0
    rows = [header] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 12))):
        count = width if orderly else draw(st.integers(0, 6))
        rows.append(draw(st.lists(cells, min_size=count, max_size=count)))
    lines = [(mark if orderly else draw(marks)).join(row) + (end if orderly else draw(ends)) for row in rows]
    text = "".join(lines).encode("utf-8", "surrogatepass")
    return draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\n", b"\0"])) + text


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Some bytes changed, then perhaps cut short."""
    content = bytearray(whole)
    for place, value in draw(st.lists(st.tuples(st.integers(0, len(whole) - 1), st.integers(0, 255)), max_size=4)):
        content[place] = value
    return bytes(content[: draw(st.just(len(whole)) | st.integers(0, len(whole)))])


GOOD = b"user,item,rating,timestamp\n" + b"".join(
    b"%d,%d,%d,%d\n" % (u, u * i % 37, i % 5, 10**9 + i) for u in range(9) for i in range(9)
)
ZIPPED = gzip.compress(GOOD, mtime=0)


def parquet(**columns: Any) -> bytes:
    file = io.BytesIO()
    pl.DataFrame(columns).write_parquet(file)
    return file.getvalue()


PARQUET = parquet(user=list(range(60)), item=[f"i{i % 7}" for i in range(60)], rating=[0.5] * 60)


def valid(data: Interactions) -> None:
    """What every other room takes for granted."""
    assert len(data) > 0
    assert data.item.dtype == data.user.dtype == np.int64
    assert set(data.user.tolist()) == set(range(data.n_users))
    assert set(data.item.tolist()) == set(range(data.n_items))
    assert len({str(name) for name in data.user_ids}) == data.n_users
    assert len({str(name) for name in data.item_ids}) == data.n_items
    assert data.user_ids.dtype.kind in "iU"
    if data.rating is not None:
        assert np.isfinite(data.rating).all()
    if data.timestamp is not None:
        assert data.timestamp.dtype == np.int64


def check(path: Path, content: bytes, columns: dict[str, str | int] | None = None) -> str:
    """The message, or '' where the file was read."""
    path.write_bytes(content)
    data, message = None, ""
    try:
        data, _ = read_table(path, columns)
    except FedrecError as error:
        message = str(error)
    if data is not None:
        valid(data)
        return ""
    assert path.name in message
    assert len(message) < 2000
    return message


@fuzz(200)
@given(content=st.binary(max_size=300))
@example(b"\x1f\x8b")
@example(b"PAR1")
@example(b'"')
@example(b"\xef\xbb\xbf")
@example(b",\n")
@example(b"::")
def test_bytes(tmp_path: Path, content: bytes) -> None:
    for name in ("f.csv", "f.parquet"):
        check(tmp_path / name, content)


@fuzz(300)
@given(
    content=tables(),
    columns=st.none()
    | st.dictionaries(
        st.sampled_from(["user", "item", "rating", "timestamp"]), st.sampled_from([*HEADERS, 1, 2, 0, -1, 10**30])
    ),
)
def test_strange_tables(tmp_path: Path, content: bytes, columns: dict[str, str | int] | None) -> None:
    check(tmp_path / "f.csv", content, columns)


@fuzz(150)
@given(st.data())
def test_damaged_files(tmp_path: Path, data: st.DataObject) -> None:
    name, whole = data.draw(st.sampled_from([("f.csv", GOOD), ("f.csv.gz", ZIPPED)]))
    check(tmp_path / name, data.draw(damaged(whole)))


@fuzz(150)
@given(content=damaged(PARQUET))
def test_damaged_parquet(tmp_path: Path, content: bytes) -> None:
    """polars panics at some of them, with words of its own on the terminal; to us it is one error."""
    check(tmp_path / "f.parquet", content)


WORST: dict[str, tuple[bytes, str]] = {
    "one line of 100 kB": (b"user,item" + b"x" * 100_000, "line 1: longer than 65,536 bytes; is this a table?"),
    "a row of 3 MB": (b"user,item\n1," + b"x" * 3_000_000, "line 2: longer than 65,536 bytes; is this a table?"),
    "an id of 3 MB further down": (
        b"user,item\n" + b"1,2\n" * 99 + b"1," + b"x" * 3_000_000 + b"\n",
        "line 101, column item: 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...' is not an id: more than 1,000 characters",
    ),
    "80 kB of nothing": (b" \n" * 40_000 + GOOD, "line 1 is empty"),
    "a cell beyond the csv module's limit": (
        b"user,item\n" + b"1,2\n" * 99 + b"1,2,3\n1," + b"x" * 200_000 + b"\n",
        "line 101: 3 columns instead of 2",
    ),
    "a first row too short": (b"user,item,rating\n1,2\n3,4,5\n", "line 2: 2 columns instead of 3"),
    "an open quotation mark": (b'user,item\n1,2\n"3,4\n5,6\n', "line 3: a quotation mark is never closed"),
    "a time beyond 64 bits": (b"user,item,time\n1,2,1e300\n", "'1e300' is not a time"),
    "a rating beyond 32 bits": (b"user,item,rating\n1,2,1e39\n", "'1e39' is not a finite number"),
    "the 31st of February": (b"user,item,date\n1,2,2020-01-01\n1,3,2020-02-31\n", "'2020-02-31' is not a time"),
    "half a zip": (ZIPPED[:-20], "ended before"),
    "a wrong checksum": (ZIPPED[:-8] + b"12345678", "CRC check failed"),
    "not a zip": (b"\x1f\x8b" + b"abc" * 50, "Unknown compression method"),
    "UTF-16": ("user,item\n1,2\n".encode("utf-16-le"), "not a text file"),
    "Latin-1": ("user,item\nZoë,2\n".encode("latin-1"), "line 2: not UTF-8 text"),
}


@pytest.mark.parametrize("name", WORST)
def test_the_worst_that_were_found(tmp_path: Path, name: str) -> None:
    content, says = WORST[name]
    assert says in check(tmp_path / "f.csv", content)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_end_of_line_gives_the_same(tmp_path: Path, end: str) -> None:
    path = tmp_path / "f.csv"
    path.write_bytes(GOOD.replace(b"\n", end.encode()))
    data, _ = read_table(path)
    assert (len(data), data.n_users) == (81, 9)


COLUMNS: dict[str, tuple[dict[str, Any], str]] = {
    "lists": ({"user": [[1], [2]]}, "column user: List(Int64) cannot be used as user"),
    "records": ({"item": [{"a": 1}, {"a": 2}]}, "cannot be used as item"),
    "bytes": ({"user": [b"\xff", b"\xfe"]}, "Binary cannot be used as user"),
    "reals as ids": ({"user": [1e300, 2.0]}, "'1e+300' is not an id"),
    "NUL": ({"user": ["a\0", "a"]}, "it contains a NUL"),
    "nothing": ({"user": [None, None]}, "user is missing"),
    "days without date": ({"timestamp": pl.Series([1, 2]).cast(pl.Time)}, "Time cannot be used as timestamp"),
    "years beyond the calendar": ({"timestamp": pl.Series([2**62, 1]).cast(pl.Datetime("ms"))}, "invalid values"),
    "ratings as lists": ({"rating": [[1], [2]]}, "cannot be used as rating"),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_of_parquet_that_cannot_be_meant(tmp_path: Path, name: str) -> None:
    columns, says = COLUMNS[name]
    assert says in check(tmp_path / "f.parquet", parquet(**({"user": [1, 2], "item": [3, 4]} | columns)))


def test_ids_beyond_64_bits_are_words(tmp_path: Path) -> None:
    for content, name in (
        (b"user,item\n99999999999999999999,2\n3,4\n", "f.csv"),
        (parquet(user=pl.Series([2**64 - 1, 3], dtype=pl.UInt64), item=[2, 4]), "f.parquet"),
    ):
        (tmp_path / name).write_bytes(content)
        data, _ = read_table(tmp_path / name)
        assert data.user_ids.dtype.kind == "U"


# -- the same files through the command line --


@fuzz(40)
@given(content=tables() | damaged(GOOD) | damaged(ZIPPED) | st.binary(max_size=80))
def test_run(cli: Cli, tmp_path: Path, content: bytes) -> None:
    for path in tmp_path.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (tmp_path / "f.csv").write_bytes(content)
    words = (
        "run",
        "popularity",
        "--data",
        "f.csv",
        "--protocol",
        "honest,min_interactions=3,ks=2,select_metric=ndcg@2",
    )
    if not tidy(cli(*words, "--out", "out/run", "--quiet")):
        assert everything_below(tmp_path) == {"f.csv": content}


@pytest.mark.parametrize("name", WORST)
def test_run_with_the_worst(cli: Cli, tmp_path: Path, name: str) -> None:
    content, says = WORST[name]
    (tmp_path / "f.csv").write_bytes(content)
    outcome = cli("run", "popularity", "--data", "f.csv", "--out", "run")
    assert not tidy(outcome)
    assert says in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["f.csv"]
