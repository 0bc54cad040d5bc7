"""Splits that others have published as files, with the clients they were made for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedrec.data.fetch import cache_folder, find_folder
from fedrec.data.interactions import Array, Interactions, ItemInfo
from fedrec.data.partition import Partition, from_labels, one_user_per_client
from fedrec.data.readers import citeulike_a, read_numbers, read_svmlight
from fedrec.data.splits import Split, overlaps
from fedrec.errors import FedrecError, unknown

if TYPE_CHECKING:
    import scipy.sparse as sp

_FEDCIA = "Han et al., FedCIA: Federated Collaborative Information Aggregation, SIGIR 2025"
_FEDCIA_HOME = "https://github.com/Mingzhe-Han/FedCIA"


@dataclass(frozen=True)
class StoredSplit:
    """Where a published split lies and how its numbers are to be read."""

    name: str
    folder: str
    train: str
    valid: str | None
    test: str | None
    n_users: int
    n_items: int
    citation: str
    home: str
    first_id: int = 0
    """What to add to the stored numbers (which start at 0) to get the dataset's own ids."""
    clients: bool = True
    """Whether the first column is a client; otherwise every user is a client."""
    note: str = ""
    info: Callable[[Path], tuple[ItemInfo | None, str]] | None = None
    """Reads the attributes of the items, where the split cannot be used without them, and what tells them apart."""
    described_by: tuple[str, ...] = ()
    """The files that `info` may read."""

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(name for name in (self.train, self.valid, self.test) if name)

    def available(self) -> Path | None:
        """The folder its files are already in, if any."""
        return find_folder(self.folder, self.files)


def _fedcia(
    name: str,
    folder: str,
    prefix: str,
    n_users: int,
    n_items: int,
    *,
    first_id: int = 0,
    whole: bool = True,
    note: str = "",
) -> StoredSplit:
    return StoredSplit(
        name=name,
        folder=folder,
        train=f"{prefix}train.csv.gz",
        # Two of the published splits were never divided further by their authors.
        valid=f"{prefix}valid.csv.gz" if whole else None,
        test=f"{prefix}test.csv.gz" if whole else None,
        n_users=n_users,
        n_items=n_items,
        citation=_FEDCIA,
        home=_FEDCIA_HOME,
        first_id=first_id,
        note=note,
    )


_CITEULIKE_ITEMS = 16_980
_CITEULIKE_WORDS = ("item_features.txt", "coldstart-split/item_features.txt")


_CITEULIKE_FEATURES = ("item_features.npy", "coldstart-split/item_features.npy")


def _citeulike_items(folder: Path) -> tuple[ItemInfo | None, str]:
    """The features of the released code (`item_features.npy`) or the published word counts (`item_features.txt`), with
    their checksum, where a user has them; else the tags."""
    for file in (folder / name for name in _CITEULIKE_FEATURES):
        if file.is_file():
            return ItemInfo(features=_features(file)), f"+features-{_checksum(file)}"
    for words in (folder / name for name in _CITEULIKE_WORDS):
        if words.is_file():
            counts = read_svmlight(words)
            if counts.shape[0] != _CITEULIKE_ITEMS:
                raise FedrecError(
                    f"{words} describes {counts.shape[0]:,} items instead of {_CITEULIKE_ITEMS:,}; put "
                    "the published file there, or remove it to use the tags"
                )
            return ItemInfo(tags=counts), f"+words-{_checksum(words)}"
    return (citeulike_a(folder).info if (folder / "item-tag.dat").is_file() else None), ""


def _checksum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def _features(file: Path) -> sp.csr_matrix:
    """[items, features] real numbers, one row for each article."""
    try:
        # Pickles can run code, and this file comes from a stranger's repository.
        values = np.load(file, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise FedrecError(f"{file} is not a NumPy array ({error}); put the released file there, or remove it") from None
    if values.ndim != 2 or len(values) != _CITEULIKE_ITEMS or values.dtype.kind not in "fiu":
        raise FedrecError(
            f"{file} has the shape {values.shape} instead of {_CITEULIKE_ITEMS:,} rows of numbers; put "
            "the released file there, or remove it to use the tags"
        )
    if not np.isfinite(values).all():
        raise FedrecError(f"{file} has numbers that are not finite; put the released file there, or remove it")
    import scipy.sparse as sp

    return sp.csr_matrix(values.astype(np.float32))


_TRAIN_ONLY = "training part only: split off a test part before any evaluation"
_STORED = (
    _fedcia(
        "ml-100k:fedcia100", "ml-100k", "fedcia100_", 943, 1682, first_id=1, note="clients 52-99 have no test rows"
    ),
    _fedcia("ml-100k:fedcia943", "ml-100k", "fedcia943_", 943, 1682, first_id=1, note="only 459 users have test rows"),
    _fedcia("ml-1m:fedcia100", "ml-1m", "fedcia_", 6040, 3952, first_id=1),
    _fedcia(
        "lastfm:fedcia100", "lastfm-fedcia", "", 991, 9999, note="client 99 has training rows only: do not evaluate it"
    ),
    _fedcia("beauty:fedcia100", "beauty-fedcia", "", 22_352, 12_100, whole=False, note=_TRAIN_ONLY),
    _fedcia("bx:fedcia100", "bx-fedcia", "", 18_513, 19_997, whole=False, note=_TRAIN_ONLY),
    StoredSplit(
        name="citeulike-a:coldstart",
        folder="citeulike-a",
        train="coldstart-split/train.csv",
        valid="coldstart-split/vali.csv",
        test="coldstart-split/test.csv",
        n_users=5551,
        n_items=_CITEULIKE_ITEMS,
        citation="Zhu et al. (Heater), SIGIR 2020; data: Wang, Chen & Li, IJCAI 2013",
        home="https://github.com/Zhangcx19/IFedRec",
        clients=False,
        info=_citeulike_items,
        described_by=(*_CITEULIKE_FEATURES, *_CITEULIKE_WORDS, "users.dat", "item-tag.dat", "tags.dat"),
    ),
)


def list_published_splits() -> list[StoredSplit]:
    """All published splits that can be loaded by name."""
    return list(_STORED)


def find_published_split(name: str) -> StoredSplit | None:
    """The published split of this name, if there is one."""
    return next((stored for stored in _STORED if stored.name == name), None)


def load_split(name: str) -> tuple[Split, Partition]:
    """A published split and its clients, for instance ``ml-100k:fedcia100``. The files are never downloaded.

    The item numbering is the published one, columns that nobody met included, so that rankings over all items agree.
    """
    stored = find_published_split(name)
    if stored is None:
        raise unknown("stored split", name, (stored.name for stored in _STORED))
    folder = stored.available()
    if folder is None:
        raise FedrecError(
            f"the files of {name} are missing: put {', '.join(stored.files)} (made from {stored.home}) into "
            f"{cache_folder() / stored.folder}, or into a folder {stored.folder}/ below one named in FEDREC_DATA"
        )
    tables = [_read_table(folder, file) for file in (stored.train, stored.valid, stored.test)]
    info, mark = stored.info(folder) if stored.info else (None, "")
    train, valid, test = (_part(stored, table[:, -2], table[:, -1], info, mark) for table in tables)
    notes = [*filter(None, [stored.note]), *(["items are described by item_features, not by tags"] if mark else [])]
    split = Split(train, valid, test, f"stored({name})", (*notes, *overlaps(train, valid, test)))
    return split, _clients(stored, np.concatenate(tables))


def _read_table(folder: Path, file: str | None) -> Array:
    return read_numbers(folder / file, ",", header=True) if file else np.empty((0, 3), dtype=np.int64)


def _part(stored: StoredSplit, user: Array, item: Array, info: ItemInfo | None, mark: str) -> Interactions:
    return Interactions(
        user=user,
        item=item,
        user_ids=np.arange(stored.n_users) + stored.first_id,
        item_ids=np.arange(stored.n_items) + stored.first_id,
        name=stored.name,
        version=f"stored{mark}",
        info=info,
    )


def _clients(stored: StoredSplit, rows: Array) -> Partition:
    if not stored.clients:
        return one_user_per_client(stored.n_users)
    client = np.full(stored.n_users, -1, dtype=np.int64)
    client[rows[:, 1]] = rows[:, 0]
    return from_labels(client)
