"""The metric of every single user, kept beside the results: rows that were run on different days can then be tested.

One file for each dataset has, for every row, the mean over its seeds of the tested metric, user by user in the order of
their ids. The ids are not kept, only a checksum of them, which tells whether two rows have the same users.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from fedrec.data import atomic_file
from fedrec.errors import FedrecError
from fedrec.report import Row, columns_by_row

Array = np.ndarray[Any, np.dtype[Any]]
SAME = 1e-5  # how far a mean may be from that of the row's record: values are kept in single precision


@dataclass(frozen=True)
class UserValues:
    """By row, the metric of every user; `users` is the checksum of their ids."""

    users: str
    of_row: Mapping[str, Array]


def collect_user_values(rows: Sequence[Row], metric: str) -> UserValues:
    """Collect the values of single users from rows whose runs are on this machine."""
    ids, values = columns_by_row(rows, metric)
    checksum = hashlib.sha256("\n".join(ids).encode()).hexdigest()[:16]
    return UserValues(checksum if rows else "", {label: numbers.mean(0) for label, numbers in values.items()})


def read(path: Path) -> UserValues:
    """What was kept; nothing where there is no file."""
    if not path.is_file():
        return UserValues("", {})
    try:
        with np.load(path, allow_pickle=False) as kept:
            values = dict(zip(kept["labels"].tolist(), kept["values"].astype(float), strict=True))
            return UserValues(str(kept["users"]), values)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise FedrecError(
            f"{path} cannot be read ({error}); restore it, or remove it: then only rows whose runs are here are tested"
        ) from None


def write(path: Path, values: UserValues) -> None:
    if not values.of_row:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    table = np.stack([*values.of_row.values()]).astype(np.float32)
    with atomic_file(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, users=np.array(values.users), labels=np.array([*values.of_row]), values=table)


def merge_user_values(
    kept: UserValues, new: UserValues, records: Sequence[Mapping[str, Any]], metric: str
) -> UserValues:
    """Merge new values with stored ones of rows whose record has not changed; other users' values are dropped."""
    if new.of_row and kept.users != new.users:
        return new
    means = {row["label"]: mean(cell["test"][metric] for cell in row["cells"]) for row in records if row["cells"]}
    same = {
        label: values
        for label, values in kept.of_row.items()
        if label in means and abs(float(values.mean()) - means[label]) < SAME
    }
    return UserValues(kept.users, {**same, **new.of_row})
