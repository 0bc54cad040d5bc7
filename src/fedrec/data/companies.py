"""Companies as they come: a file each, or a column that names them. Everybody's users are their own."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedrec.data.interactions import Interactions
from fedrec.data.joined import in_one_numbering, keep_common_columns, stack
from fedrec.data.partition import Partition, from_labels
from fedrec.data.roles import Columns
from fedrec.data.table import looks_like_path, read_table
from fedrec.errors import FedrecError

SEPARATOR = ";"  # between the files of several companies, where one text names them all
BY_FILES, BY_COLUMN = "files", "column"
"""How silos are asked for that the data itself names."""


def split_paths(spec: str) -> list[str]:
    """The files of several companies; one name where it is one."""
    parts = spec.split(SEPARATOR)
    several = len(parts) > 1 and all(looks_like_path(part) for part in parts) and not Path(spec).is_file()
    return parts if several else [spec]


def read_companies(paths: Sequence[str], columns: Columns | None = None, skip_bad: bool = False) -> Interactions:
    """The rows of all files as one table that knows whose users are whose."""
    names = _names_of(paths)
    tables = keep_common_columns([read_table(path, columns, skip_bad=skip_bad)[0] for path in paths])
    users = Counter(str(user) for table in tables for user in table.user_ids.tolist())
    if users.most_common(1)[0][1] > 1:  # the same number is somebody else at another company
        tables = [
            replace(table, user_ids=np.array([name_user(name, user) for user in table.user_ids.tolist()]))
            for name, table in zip(names, tables, strict=True)
        ]
    silos = {str(user): name for name, table in zip(names, tables, strict=True) for user in table.user_ids.tolist()}
    version = hashlib.sha256("".join(table.version for table in tables).encode()).hexdigest()[:12]
    return replace(
        stack(in_one_numbering(tables)),
        name="+".join(names),
        version=f"sha256-{version}+ties0",
        silos=silos,
        notes=tuple(note for table in tables for note in table.notes),
        filtered=tuple(record for table in tables for record in table.filtered),
    )


def _names_of(paths: Sequence[str]) -> list[str]:
    """The files' names without endings, with their folders where those are needed to tell them apart."""
    names = [Path(path).stem for path in paths]
    if len(set(names)) < len(names):
        names = [f"{Path(path).resolve().parent.name}/{Path(path).stem}" for path in paths]
    if len(set(names)) < len(names):
        raise FedrecError("the same file is given twice, or two files of one name; give each company a name of its own")
    return names


def name_user(company: str, user: object) -> str:
    """A user's id beside users of other companies."""
    return f"{company}:{user}"


def partition_by_company(train: Interactions) -> tuple[Partition, tuple[str, ...]]:
    """A client for each company that has users left, and their names in that order."""
    if not train.silos:
        raise FedrecError(
            "the data does not say which company a user belongs to: give a file for each "
            "(--data a.csv --data b.csv --silos files), or a column (--silo-column company)"
        )
    labels = [train.silos[str(user)] for user in train.user_ids.tolist()]
    names, client = np.unique(labels, return_inverse=True)
    return from_labels(client), tuple(names.tolist())
