"""Files that describe items, or hardly: attributes that can be learned from, or a FedrecError in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from fedrec.data import Interactions, with_items
from fedrec.data.attributes import item_attributes
from fedrec.errors import FedrecError
from fuzz.property import fuzz
from fuzz.test_files import NUMBERS, WORDS, damaged

HEADERS = ["item", "tags", "title", "year", "price", "size", "", "item"]
WORDY = b"item,tags,title,year\n" + b"".join(b"%d,a|b%d,Title %d,%d\n" % (i, i % 3, i, 1980 + i) for i in range(9))
NUMERIC = b"item,price,size\n" + b"".join(b"%d,%d.5,-%de3\n" % (i, i, i) for i in range(9))
cells = st.sampled_from([*NUMBERS, *WORDS, "a|b", "|", "1999"]) | st.integers(0, 9).map(str)
TABLE = Interactions(np.arange(9), np.arange(9), np.arange(9), np.arange(9), name="t")


@st.composite
def tables(draw: st.DrawFn) -> bytes:
    header = draw(st.lists(st.sampled_from(HEADERS), min_size=1, max_size=4))
    rows = draw(st.lists(st.lists(cells, max_size=5), max_size=12))
    return "\n".join(",".join(row) for row in [header, *rows]).encode("utf-8", "surrogatepass")


@fuzz(200)
@given(content=tables() | damaged(WORDY) | damaged(NUMERIC) | st.binary(max_size=100))
@example(b"item,price\n" + b"".join(b"%d,1e39\n" % i for i in range(9)))
@example(b'item,tags\n0,"' + b"x" * 200_000)
@example(b"item,tags\n0,a\0b\n")
def test_any_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "items.csv"
    path.write_bytes(content)
    message, vectors = "", np.zeros((0, 0))
    try:
        vectors, _ = item_attributes(with_items(TABLE, path).info, 6, "t")
    except FedrecError as error:
        message = str(error)
    assert 10 < len(message) < 2000 if message else len(vectors) == 9
    assert np.isfinite(vectors).all()
