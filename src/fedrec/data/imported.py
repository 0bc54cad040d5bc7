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


def path_of_bad_rows(name: str) -> Path:
    """Where the rows of an import are that could not be used."""
    return cache_folder() / "imported" / "bad-rows" / f"{name}.csv"


def list_imports() -> list[str]:
    """All that were imported, by name."""
    return sorted(path.stem for path in path_of_import("").parent.glob("*.csv") if path.stem)


def import_table(
    file: Path | str,
    name: str,
    columns: Columns | None = None,
    taken: tuple[str, ...] = (),
    skip_bad: bool = False,
    force: bool = False,
) -> tuple[Interactions, Guess, Path]:
    """Read a file and keep it as `name`, which must be free unless an earlier import is to be replaced (`force`).

    `skip_bad`: rows that cannot be used are put into a file beside it.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise FedrecError(f"'{name}' is not a valid name: use letters, digits, - and _")
    path = path_of_import(name)
    if path.exists() and not force:
        raise FedrecError(f"the name '{name}' is taken; choose another, or import it again with --force")
    if name in taken:
        raise FedrecError(f"the name '{name}' belongs to a built-in dataset; choose another")
    data, guess = read_table(file, columns, skip_bad=skip_bad)
    write_csv(data, path)
    if data.bad is not None:
        data.bad.write(path_of_bad_rows(name))
    else:  # those of an import that this one replaces
        path_of_bad_rows(name).unlink(missing_ok=True)
    return data, guess, path
