"""The user's own tables kept under a name: read once, checked once, found again by `load(name)`."""

from __future__ import annotations

import re
from pathlib import Path

from fedrec.data.fetch import cache_folder
from fedrec.data.interactions import Interactions
from fedrec.data.roles import Columns
from fedrec.data.table import Guess, read_table, write_csv
from fedrec.errors import FedrecError


def path_of_import(name: str) -> Path:
    return cache_folder() / "imported" / f"{name}.csv"


def list_imports() -> list[str]:
    """All that were imported, by name."""
    return sorted(path.stem for path in path_of_import("").parent.glob("*.csv") if path.stem)


def import_table(
    file: Path | str, name: str, columns: Columns | None = None, taken: tuple[str, ...] = ()
) -> tuple[Interactions, Guess, Path]:
    """Read a file and keep it as `name`, which must be free."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise FedrecError(f"'{name}' is not a valid name: use letters, digits, - and _")
    path = path_of_import(name)
    if path.exists():
        raise FedrecError(f"the name '{name}' is taken; choose another, or remove {path} to import it again")
    if name in taken:
        raise FedrecError(f"the name '{name}' belongs to a built-in dataset; choose another")
    data, guess = read_table(file, columns)
    write_csv(data, path)
    return data, guess, path
