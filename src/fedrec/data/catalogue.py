"""The named datasets: what they are, whose they are, and where their files come from."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedrec.data import readers
from fedrec.data.companies import read_companies, split_paths
from fedrec.data.fetch import File, Progress, Source, Wheel, Zip, cache_folder, fetch, find_folder
from fedrec.data.frames import from_frame, is_frame
from fedrec.data.imported import path_of_import
from fedrec.data.interactions import Interactions
from fedrec.data.roles import Columns, as_columns
from fedrec.data.stored import find_published_split, list_published_splits
from fedrec.data.synthetic import from_options
from fedrec.data.table import FRAME, folder_error, looks_like_path, read_table
from fedrec.errors import FedrecError, unknown

_MOVIELENS = "https://files.grouplens.org/datasets/movielens"
_GROUPLENS_TERMS = "GroupLens terms: research use, acknowledge, no commercial use, no redistribution without permission"
_HARPER = "Harper & Konstan, The MovieLens Datasets, ACM TiiS 5(4), 2015"


@dataclass(frozen=True)
class Layout:
    """One set of files a dataset can be read from. Layouts of the same version give the same rows."""

    files: tuple[str, ...]
    read: Callable[[Path], Interactions]
    source: Source | None = None
    version: str = ""
    """The part of the spec that asks for this layout; layouts listed first are preferred when none is asked for."""


@dataclass(frozen=True)
class Entry:
    """What is known about a named dataset."""

    name: str
    title: str
    licence: str
    citation: str
    home: str
    obtain: str
    """How a person gets the files, in one sentence."""
    layouts: tuple[Layout, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def versions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(layout.version for layout in self.layouts if layout.version))

    def available(self) -> Path | None:
        """The folder its files are already in, if any."""
        found = (find_folder(self.name, layout.files) for layout in self.layouts)
        return next((folder for folder in found if folder), None)


_ENTRIES = (
    Entry(
        name="ml-100k",
        title="MovieLens 100K: 943 users, 1,682 movies, 100,000 ratings with times",
        licence=_GROUPLENS_TERMS,
        citation=_HARPER,
        home="https://grouplens.org/datasets/movielens/100k/",
        obtain="downloaded from GroupLens, otherwise read from the copy in the Python package recbole 1.2.1",
        layouts=(
            Layout(
                files=("u.data", "u.item"),
                read=readers.ml_100k,
                source=Zip(f"{_MOVIELENS}/ml-100k.zip", f"{_MOVIELENS}/ml-100k.zip.md5"),
            ),
            Layout(
                files=("ml-100k.inter", "ml-100k.item", "ml-100k.user"),
                read=readers.ml_100k_atomic,
                source=Wheel("recbole==1.2.1"),
            ),
        ),
        aliases=("ML-100K", "movielens-100k"),
    ),
    Entry(
        name="ml-1m",
        title="MovieLens 1M: 6,040 users, 3,706 movies, 1,000,209 ratings with times",
        licence=_GROUPLENS_TERMS,
        citation=_HARPER,
        home="https://grouplens.org/datasets/movielens/1m/",
        obtain="version 'official' is downloaded from GroupLens; version 'positions' (ratings_with_order.csv.gz, the "
        "order within each user instead of the clock) is used when a folder in FEDREC_DATA holds it",
        layouts=(
            Layout(("ratings_with_order.csv.gz", "movies.dat"), readers.ml_1m_positions, version="positions"),
            Layout(
                files=("ratings.dat", "movies.dat"),
                read=readers.ml_1m_official,
                source=Zip(f"{_MOVIELENS}/ml-1m.zip", f"{_MOVIELENS}/ml-1m.zip.md5"),
                version="official",
            ),
        ),
        aliases=("ML-1M", "movielens-1m"),
    ),
    Entry(
        name="filmtrust",
        title="FilmTrust: 1,508 users, 2,071 films, 35,497 ratings, no times",
        licence="published for research with LibRec",
        citation="Guo, Zhang & Yorke-Smith, A Novel Bayesian Similarity Measure for Recommender Systems, IJCAI 2013",
        home="https://guoguibing.github.io/librec/datasets.html",
        obtain="downloaded from the LibRec site",
        layouts=(
            Layout(
                files=("ratings.txt",),
                read=readers.filmtrust,
                source=Zip("https://guoguibing.github.io/librec/datasets/filmtrust.zip"),
            ),
        ),
        aliases=("FilmTrust",),
    ),
    Entry(
        name="lastfm-2k",
        title="Last.fm 2K (HetRec 2011): 1,892 users, 17,632 artists, 92,834 listening counts, no times",
        licence="non-commercial use (Last.fm terms)",
        citation="Cantador, Brusilovsky & Kuflik, HetRec at RecSys 2011",
        home="https://grouplens.org/datasets/hetrec-2011/",
        obtain="downloaded from GroupLens",
        layouts=(
            Layout(
                files=("user_artists.dat",),
                read=readers.lastfm_2k,
                source=Zip("https://files.grouplens.org/datasets/hetrec2011/hetrec2011-lastfm-2k.zip"),
            ),
        ),
        aliases=("Lastfm-2K", "hetrec-lastfm"),
    ),
    Entry(
        name="amazon-video",
        title="Amazon Instant Video, users with 5 or more: 8,072 users, 11,830 items, 63,836 ratings, days",
        licence="Amazon review data: research use",
        citation="McAuley, Targett, Shi & van den Hengel, SIGIR 2015; this cut: Zhang et al. (PFedRec), IJCAI 2023",
        home="https://github.com/Zhangcx19/IJCAI-23-PFedRec",
        obtain="take data/amazon/ratings.dat of the home page's repository",
        layouts=(Layout(("ratings.dat",), readers.amazon_video),),
    ),
    Entry(
        name="citeulike-a",
        title="CiteULike-a: 5,551 users, 16,980 articles, 204,986 pairs with tags, no times",
        licence="research use",
        citation="Wang, Chen & Li, IJCAI 2013; Wang & Blei, KDD 2011",
        home="https://github.com/js05212/citeulike-a",
        obtain="take users.dat, item-tag.dat and tags.dat of the home page's repository",
        layouts=(Layout(("users.dat", "item-tag.dat", "tags.dat"), readers.citeulike_a),),
        aliases=("CiteULike",),
    ),
    Entry(
        name="xing",
        title="XING (RecSys Challenge 2017), two validation parts: 10,688 users, 14,199 jobs, 304,304 rows, no times",
        licence="challenge data: research use",
        citation="Abel et al., RecSys Challenge 2017; this cut: Zhu et al. (Heater), SIGIR 2020",
        home="https://github.com/Zziwei/Heater--Cold-Start-Recommendation",
        obtain="take the files of data/XING of the home page's repository",
        layouts=(Layout(("vali_user.csv.gz", "vali_user_item.csv.gz", "item_content.npz"), readers.xing),),
    ),
    Entry(
        name="amazon-beauty",
        title="Amazon Beauty (2014), users and items with 5 or more reviews, days",
        licence="Amazon review data: research use",
        citation="McAuley, Targett, Shi & van den Hengel, SIGIR 2015",
        home="https://cseweb.ucsd.edu/~jmcauley/datasets/amazon/links.html",
        obtain="downloaded from SNAP at Stanford",
        layouts=(
            Layout(
                files=("reviews_Beauty_5.json.gz",),
                read=readers.amazon_beauty,
                source=File(
                    "https://snap.stanford.edu/data/amazon/productGraph/categoryFiles/reviews_Beauty_5.json.gz"
                ),
            ),
        ),
    ),
    Entry(
        name="book-crossing",
        title="Book-Crossing: ratings of books, no times",
        licence="free for research, acknowledge",
        citation="Ziegler, McNee, Konstan & Lausen, Improving Recommendation Lists, WWW 2005",
        home="https://grouplens.org/datasets/book-crossing/",
        obtain="take BX-Book-Ratings.csv of the CSV dump",
        layouts=(Layout(("BX-Book-Ratings.csv",), readers.book_crossing),),
    ),
    Entry(
        name="synthetic",
        title="simulated data of any size with known true preferences",
        licence="none needed",
        citation="fedrec",
        home="",
        obtain="generated; options after '@', for instance synthetic@users=1000+items=500+seed=3",
    ),
)


def datasets() -> list[Entry]:
    """All named datasets."""
    return list(_ENTRIES)


def entry(name: str) -> Entry:
    """The entry with this name or alias, whatever the case."""
    for candidate in _ENTRIES:
        if name.lower() in {alias.lower() for alias in (candidate.name, *candidate.aliases)}:
            return candidate
    raise _unknown_dataset(name)


def _is_dataset(name: str) -> bool:
    return any(name.lower() in {alias.lower() for alias in (one.name, *one.aliases)} for one in _ENTRIES)


def _unknown_dataset(name: str) -> FedrecError:
    """Published splits are data to a user, too; those of one dataset are named together."""
    known = [*(one.name for one in _ENTRIES), *(split.name for split in list_published_splits())]
    root, colon, _ = name.lower().partition(":")
    related = [other for other in known if colon and other.partition(":")[0] == root]
    if related:
        return FedrecError(f"unknown dataset '{name}'; known: {', '.join(related)}")
    return unknown("dataset", name, known)


def load(
    spec: Any,
    progress: Progress | None = None,
    *,
    name: str = FRAME,
    columns: Columns | None = None,
    user: str | int | None = None,
    item: str | int | None = None,
    rating: str | int | None = None,
    timestamp: str | int | None = None,
    skip_bad: bool = False,
) -> Interactions:
    """Load ``name[@version]``, a path to the user's own CSV, TSV or Parquet file, or a pandas or polars frame.

    A frame may be given a ``name``. ``user``, ``item``, ``rating`` and ``timestamp`` say which columns of a file or
    frame these are, by name or by number from 1 ("none": no column is), where names and values do not tell;
    ``columns`` has the same by role. ``skip_bad``: rows of a file that cannot be used are put aside and counted.

    Version parts are joined by '+': ``ml-100k@ties1``, ``ml-1m@official+ties2``, ``synthetic@users=1000+seed=3``. The
    part ``tiesN`` (default ties0) chooses the random order of interactions that share a timestamp.
    """
    chosen = dict(columns or {}) | as_columns({"user": user, "item": item, "rating": rating, "timestamp": timestamp})
    if is_frame(spec):
        return from_frame(spec, name, chosen)
    if name != FRAME:
        raise FedrecError("a name applies to data frames; for a file use fedrec data import")
    if not isinstance(spec, str | os.PathLike):
        raise FedrecError(f"data of type {type(spec).__name__} cannot be loaded; give a name, a file or a data frame")
    return _load_spec(os.fspath(spec), progress, chosen, skip_bad)


def _load_spec(spec: str, progress: Progress | None, columns: Columns, skip_bad: bool) -> Interactions:
    if len(paths := split_paths(spec)) > 1:
        return read_companies(paths, columns, skip_bad)
    if looks_like_path(spec) and Path(spec).is_file():  # before cutting at '@', which a path may contain
        return read_table(Path(spec), columns, skip_bad=skip_bad)[0]
    name, _, version = spec.rpartition("@") if "@" in spec else (spec, "", "")
    parts, tie_seed = _tie_seed([part for part in version.split("+") if part], spec)
    if looks_like_path(name):
        if parts:
            raise FedrecError(f"'{spec}': a file takes only tiesN after '@', not '{parts[0]}'")
        return with_ties(read_table(Path(name), columns, skip_bad=skip_bad)[0], tie_seed)
    if find_published_split(name):
        raise FedrecError(
            f"'{name}' is a published split with its own clients, not a table: fedrec run --data takes it, "
            f"load_split('{name}') reads it"
        )
    if not parts and path_of_import(name).is_file():
        require_no_columns(name, columns)
        return with_ties(replace(read_table(path_of_import(name))[0], name=name, columns={}), tie_seed)
    if os.path.isdir(name) and not _is_dataset(name):
        raise folder_error(Path(name))
    chosen = entry(name)
    require_no_columns(name, columns)
    if chosen.name == "synthetic":
        return with_ties(from_options(parts).interactions, tie_seed)
    return with_ties(_load_entry(chosen, parts, progress), tie_seed)


def require_no_columns(name: str, columns: Columns) -> None:
    """Refuse to choose columns where there is no file of the user's own."""
    if columns:
        roles = " and ".join(columns)
        raise FedrecError(f"the columns of '{name}' are known; leave {roles} out, which is for a file of your own")


def with_ties(data: Interactions, tie_seed: int) -> Interactions:
    """The same rows with another order of equal timestamps, which makes it another version of the data."""
    kept = [part for part in data.version.split("+") if part and not part.startswith("ties")]
    return replace(data, tie_seed=tie_seed, version="+".join([*kept, f"ties{tie_seed}"]))


def _tie_seed(parts: list[str], spec: str) -> tuple[list[str], int]:
    ties = [part for part in parts if part.startswith("ties")]
    if len(ties) > 1 or any(not re.fullmatch("ties[0-9]{1,18}", part) for part in ties):
        raise FedrecError(f"'{spec}': write the tie order once, as tiesN with an integer N, e.g. ties1")
    return [part for part in parts if part not in ties], int(ties[0][4:]) if ties else 0


def _load_entry(chosen: Entry, parts: list[str], progress: Progress | None) -> Interactions:
    for part in parts:
        if part not in chosen.versions:
            raise unknown(f"version of {chosen.name}", part, [*chosen.versions, "ties0"])
    layouts = [layout for layout in chosen.layouts if not parts or layout.version in parts]
    layout, folder = _locate(chosen, layouts, progress)
    data = layout.read(folder)
    return replace(data, version="+".join(part for part in (layout.version, data.version) if part))


def _locate(chosen: Entry, layouts: list[Layout], progress: Progress | None) -> tuple[Layout, Path]:
    for layout in layouts:
        if folder := find_folder(chosen.name, layout.files):
            return layout, folder
    failures = []
    for layout in layouts:
        if layout.source is None:
            continue
        try:
            return layout, fetch(chosen.name, layout.files, layout.source, progress)
        except FedrecError as error:
            failures.append(str(error))
    raise _missing_files(chosen, layouts, failures)


def _missing_files(chosen: Entry, layouts: list[Layout], failures: list[str]) -> FedrecError:
    wanted = next((layout for layout in layouts if layout.source), layouts[0])
    where = wanted.source.describe() if wanted.source else f"{chosen.home} ({chosen.obtain})"
    why = f" [{'; '.join(failures)}]" if failures else ""
    return FedrecError(
        f"the files of {chosen.name} are missing: put {', '.join(wanted.files)} from {where} into "
        f"{cache_folder() / chosen.name}, or into a folder {chosen.name}/ below one named in FEDREC_DATA{why}"
    )
