"""Readers of the distributed files of named datasets; numpy and the standard library only.

Each reader takes the folder that holds the files and returns the rows in file order.
"""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedrec.data.interactions import Array, Interactions, ItemInfo, from_raw
from fedrec.data.sparse import csr
from fedrec.data.unpack import gunzip, require_bounded_zip
from fedrec.errors import FedrecError

if TYPE_CHECKING:
    import scipy.sparse as sp

ML_100K_GENRES = (
    "unknown",
    "Action",
    "Adventure",
    "Animation",
    "Children's",
    "Comedy",
    "Crime",
    "Documentary",
    "Drama",
    "Fantasy",
    "Film-Noir",
    "Horror",
    "Musical",
    "Mystery",
    "Romance",
    "Sci-Fi",
    "Thriller",
    "War",
    "Western",
)
"""In the order of the flags of u.item, so that every source of ml-100k gives the same tag columns."""

_XING_PARTS = ("vali_user", "vali_user_item")
_YEAR = re.compile(r"\((\d{4})\)")


def ml_100k(folder: Path) -> Interactions:
    data = _from_ratings(read_numbers(folder / "u.data", "\t"), "ml-100k")
    info: dict[int, tuple[str, int, Sequence[str]]] = {}
    for line in _read_lines(folder / "u.item", "latin-1"):
        cells = line.split("|")
        flags = [g for g, flag in zip(ML_100K_GENRES, cells[5:], strict=True) if flag == "1"]
        info[int(cells[0])] = (cells[1].strip(), _find_year(cells[1]), flags)
    return replace(data, info=_item_info(data.item_ids, info, ML_100K_GENRES))


def ml_100k_atomic(folder: Path) -> Interactions:
    """The copy in RecBole's "atomic" files: tab-separated with a typed header, titles without their year."""
    data = _from_ratings(read_numbers(folder / "ml-100k.inter", "\t", header=True), "ml-100k")
    info: dict[int, tuple[str, int, Sequence[str]]] = {}
    for line in _read_lines(folder / "ml-100k.item", "utf-8")[1:]:
        item, title, year, genres = line.split("\t")
        titled = f"{title} ({year})" if year.isdigit() else title
        info[int(item)] = (titled, _find_year(titled), genres.split())
    return replace(data, info=_item_info(data.item_ids, info, ML_100K_GENRES))


def ml_1m_official(folder: Path) -> Interactions:
    return _with_movies(_from_ratings(read_numbers(folder / "ratings.dat", "::"), "ml-1m"), folder)


def ml_1m_positions(folder: Path) -> Interactions:
    """Every pair and rating, with each row's position in its user's history instead of a time.

    Rows of movies that are too rare to have one come before all others (-1).
    """
    table = read_numbers(folder / "ratings_with_order.csv.gz", ",", header=True, empty=-1)
    data = from_raw(table[:, 0], table[:, 1], rating=table[:, 2], timestamp=table[:, 4], time="order", name="ml-1m")
    return _with_movies(data, folder)


def filmtrust(folder: Path) -> Interactions:
    """Three pairs of one user occur twice; they are kept here as they stand, ``deduplicated()`` removes them."""
    table = read_numbers(folder / "ratings.txt", " ", dtype=np.float64)
    users, items = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
    return from_raw(users, items, rating=table[:, 2], name="filmtrust")


def lastfm_2k(folder: Path) -> Interactions:
    """The rating is the number of times the user listened to the artist."""
    table = read_numbers(folder / "user_artists.dat", "\t", header=True)
    return from_raw(table[:, 0], table[:, 1], rating=table[:, 2], name="lastfm-2k")


def amazon_video(folder: Path) -> Interactions:
    """Times are days, so most users have ties."""
    rows = [line.split(",") for line in _read_lines(folder / "ratings.dat", "utf-8")]
    users, items, ratings, times = (np.array(column) for column in zip(*rows, strict=True))
    return from_raw(
        users,
        items,
        rating=ratings.astype(np.float32),
        timestamp=times.astype(np.int64),
        time="real",
        name="amazon-video",
    )


def citeulike_a(folder: Path) -> Interactions:
    """Line u lists the articles in user u's library; tags (not the missing text) describe the articles."""
    libraries = _read_id_lists(folder / "users.dat")
    tags = _read_id_lists(folder / "item-tag.dat")
    names = tuple(_read_lines(folder / "tags.dat", "utf-8"))
    users = np.repeat(np.arange(len(libraries)), [row.size for row in libraries])
    items = np.concatenate(libraries)
    n_items = len(tags)
    rows = np.repeat(np.arange(n_items), [row.size for row in tags])
    matrix = csr(np.ones(rows.size, dtype=np.float32), rows, np.concatenate(tags), (n_items, len(names)))
    matrix.data[:] = 1.0
    return Interactions(
        user=users,
        item=items,
        user_ids=np.arange(len(libraries)),
        item_ids=np.arange(n_items),
        name="citeulike-a",
        version="ties0",
        info=ItemInfo(tags=matrix, tag_names=names),
    )


def xing(folder: Path) -> Interactions:
    """The two validation parts that are public, put together; pairs repeat, and the training part is not among them."""
    parts = [read_numbers(folder / f"{name}.csv.gz", ",", header=True, dtype=np.float64) for name in _XING_PARTS]
    pairs = np.concatenate(parts).astype(np.int64)
    data = from_raw(pairs[:, 0], pairs[:, 1], name="xing")
    features = _read_matrix(folder / "item_content.npz").astype(np.float32)
    return replace(data, info=ItemInfo(features=features[data.item_ids]))


def amazon_beauty(folder: Path) -> Interactions:
    """One review as JSON per line; times are days."""
    reviews = [json.loads(line) for line in _read_lines(folder / "reviews_Beauty_5.json.gz", "utf-8")]
    return from_raw(
        np.array([review["reviewerID"] for review in reviews]),
        np.array([review["asin"] for review in reviews]),
        rating=np.array([review["overall"] for review in reviews]),
        timestamp=np.array([review["unixReviewTime"] for review in reviews]),
        time="real",
        name="amazon-beauty",
    )


def book_crossing(folder: Path) -> Interactions:
    """Ratings 1-10 were given; 0 means an interaction without a rating, which ``with_threshold()`` drops."""
    rows = list(csv.reader(_read_lines(folder / "BX-Book-Ratings.csv", "latin-1"), delimiter=";"))[1:]
    users, items, ratings = (np.array(column) for column in zip(*rows, strict=True))
    return from_raw(users.astype(np.int64), items, rating=ratings.astype(np.float32), name="book-crossing")


def read_svmlight(path: Path) -> sp.csr_matrix:
    """Lines of 'label column:value ...', columns from 0: one row per line."""
    rows = [[cell.split(":") for cell in line.split()[1:]] for line in _read_lines(path, "ascii")]
    try:
        columns = np.array([int(column) for row in rows for column, _ in row], dtype=np.int64)
        values = np.array([float(value) for row in rows for _, value in row], dtype=np.float32)
    except ValueError as error:
        raise FedrecError(f"{path} is damaged: {error}; its lines should read 'label column:value ...'") from error
    owner = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    return csr(values, owner, columns, (len(rows), int(columns.max(initial=-1)) + 1))


def read_numbers(
    path: Path, delimiter: str, *, header: bool = False, empty: int | None = None, dtype: type = np.int64
) -> Array:
    """A table of numbers. ``empty`` stands in for empty cells, which are an error otherwise."""
    text = _read_bytes(path)
    if len(delimiter) > 1:  # numpy splits at single characters only
        text, delimiter = text.replace(delimiter.encode(), b"\t"), "\t"
    if empty is not None:
        text = _fill_empty_cells(text, delimiter.encode(), str(empty).encode())
    try:
        return np.loadtxt(io.BytesIO(text), dtype=dtype, delimiter=delimiter, skiprows=int(header), ndmin=2)
    except ValueError as error:
        raise FedrecError(f"{path} is damaged: {error}; remove it and load the dataset again") from error


def _fill_empty_cells(text: bytes, delimiter: bytes, value: bytes) -> bytes:
    text = text.replace(b"\r\n", b"\n")
    for _ in range(2):  # neighbouring empty cells share a delimiter, so one pass sees only every other one
        text = text.replace(delimiter * 2, delimiter + value + delimiter)
    return text.replace(delimiter + b"\n", delimiter + value + b"\n")


def _from_ratings(table: Array, name: str) -> Interactions:
    return from_raw(table[:, 0], table[:, 1], rating=table[:, 2], timestamp=table[:, 3], time="real", name=name)


def _with_movies(data: Interactions, folder: Path) -> Interactions:
    info: dict[int, tuple[str, int, Sequence[str]]] = {}
    genres: set[str] = set()
    for line in _read_lines(folder / "movies.dat", "latin-1"):
        movie, title, tags = line.split("::")
        info[int(movie)] = (title, _find_year(title), tags.split("|"))
        genres.update(tags.split("|"))
    return replace(data, info=_item_info(data.item_ids, info, tuple(sorted(genres))))


def _item_info(
    item_ids: Array, info: dict[int, tuple[str, int, Sequence[str]]], tag_names: tuple[str, ...]
) -> ItemInfo:
    column = {tag: j for j, tag in enumerate(tag_names)}
    known = [info.get(int(item), ("", 0, ())) for item in item_ids]
    cells = [(i, column[tag]) for i, (_, _, tags) in enumerate(known) for tag in tags]
    rows, columns = np.array(cells, dtype=np.int64).reshape(-1, 2).T
    shape = (len(known), len(tag_names))
    return ItemInfo(
        titles=np.array([title for title, _, _ in known], dtype=str),
        tags=csr(np.ones(len(cells), dtype=np.float32), rows, columns, shape),
        tag_names=tag_names,
        years=np.array([year for _, year, _ in known], dtype=np.int64),
    )


def _find_year(title: str) -> int:
    """The last year in brackets: some titles go on after it, as in '(1995) (V)'."""
    return int((_YEAR.findall(title) or [0])[-1])


def _read_id_lists(path: Path) -> list[Array]:
    """Lines of 'count id id ...'."""
    return [np.array(line.split()[1:], dtype=np.int64) for line in _read_lines(path, "ascii")]


def _read_lines(path: Path, encoding: str) -> list[str]:
    # Not splitlines(): some tag names hold characters that it takes for line ends.
    text = _read_bytes(path).decode(encoding).replace("\r\n", "\n")
    return text.removesuffix("\n").split("\n")


def _read_matrix(path: Path) -> sp.csr_matrix:
    import scipy.sparse as sp

    try:
        require_bounded_zip(path)
        return sp.load_npz(path).tocsr()
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise FedrecError(f"cannot read {path}: {error}") from error


def _read_bytes(path: Path) -> bytes:
    try:
        return gunzip(path) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise FedrecError(f"cannot read {path}: {error}") from error
