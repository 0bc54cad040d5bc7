"""Other people's splits, negatives and scores, read from plain files in one numbering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrec.data import Interactions, Split
from fedrec.data.roles import ColumnRequest, Columns, find_roles
from fedrec.data.sniff import read_text, sniff
from fedrec.data.spreadsheet import unguard_column
from fedrec.data.table import read_table
from fedrec.errors import FedrecError
from fedrec.evaluation import Targets
from fedrec.evaluation.targets import Ints, pair_keys
from fedrec.experiment.audit.case import Case, Scores
from fedrec.experiment.audit.draws import FileDraws

ABSENT = {
    "protocol": "a split from files has no protocol",
    "validation": "what validation ranks is not known from files",
    "prepared": "how training draws its negatives is not known from files",
    "draws": "no --train-negatives were given",
    "negatives": "no --negatives were given",
    "scores": "no --scores were given",
    "times": "train and test have no timestamps",
    "clock": "train and test have no timestamps",
}


@dataclass(frozen=True)
class _Rows:
    """Ids as text, so that 7 in one file and "7" in another are the same user."""

    user_ids: NDArray[Any]
    item_ids: NDArray[Any]
    user: NDArray[Any]
    item: NDArray[Any]


def from_files(
    train: str,
    test: str,
    valid: str | None = None,
    negatives: str | None = None,
    train_negatives: str | None = None,
    scores: str | None = None,
    columns: Columns | None = None,
) -> Case:
    """The catalogue is what occurs in any of the files; without evaluation negatives all of it is ranked.

    `columns`: those of the split, role by role; of negatives and scores too, where they have them.
    """
    usual = {role: name for role, name in (columns or {}).items() if role in ("user", "item")}
    files = {"train": train, "valid": valid, "test": test}
    parts = {name: read_table(path, columns)[0] for name, path in files.items() if path}
    extra = {
        name: _rows(read_table(path, usual=usual)[0])
        for name, path in (("negatives", negatives), ("draws", train_negatives))
        if path
    }
    values: NDArray[np.float64] = np.zeros(0)
    if scores:
        extra["scores"], values = _read_scores(Path(scores), ColumnRequest(usual=usual))
    numbered = {name: _rows(part) for name, part in parts.items()} | extra
    users = np.unique(np.concatenate([rows.user_ids for rows in numbered.values()]))
    items = np.unique(np.concatenate([rows.item_ids for rows in numbered.values()]))
    pairs = {name: _renumber(rows, users, items) for name, rows in numbered.items()}
    split = _split(parts, pairs, users, items)
    ranked, full, candidates = _targets(pairs, len(items))
    return Case(
        title=f"{Path(train).name} and {Path(test).name}",
        split=split,
        targets=ranked,
        full=full,
        candidates=candidates,
        draws=FileDraws(pairs["draws"], len(users), len(items)) if "draws" in pairs else None,
        negatives=pairs.get("negatives"),
        scores=Scores(*pairs["scores"], values) if "scores" in pairs else None,
        absent=ABSENT,
    )


def _rows(part: Interactions) -> _Rows:
    return _Rows(part.user_ids.astype(str), part.item_ids.astype(str), part.user, part.item)


def _renumber(rows: _Rows, users: NDArray[Any], items: NDArray[Any]) -> tuple[Ints, Ints]:
    user, item = (
        np.searchsorted(union, ids)[index].astype(np.int64)
        for union, ids, index in ((users, rows.user_ids, rows.user), (items, rows.item_ids, rows.item))
    )
    return user, item


def _split(
    parts: dict[str, Interactions], pairs: dict[str, tuple[Ints, Ints]], users: NDArray[Any], items: NDArray[Any]
) -> Split:
    shared = {
        name: replace(part, user=pairs[name][0], item=pairs[name][1], user_ids=users, item_ids=items, first_line=None)
        for name, part in parts.items()
    }
    nothing, notes = shared["train"].select(np.arange(0)), [note for part in parts.values() for note in part.notes]
    return Split(shared["train"], shared.get("valid", nothing), shared["test"], "given", tuple(notes))


def _targets(pairs: dict[str, tuple[Ints, Ints]], n_items: int) -> tuple[Targets, Targets, NDArray[Any]]:
    """Test items ranked among the given negatives, and among all items, with faulty rows of the input set aside."""
    test = pairs["test"]
    held = pair_keys([test], n_items)
    known = pair_keys([pairs[name] for name in ("train", "valid") if name in pairs], n_items)
    masked = np.setdiff1d(known, held, assume_unique=True)
    full = Targets.build(test, [(masked // n_items, masked % n_items)], n_items)
    if "negatives" not in pairs:
        return full, full, full.n_candidates
    drawn = np.setdiff1d(pair_keys([pairs["negatives"]], n_items), np.union1d(held, known), assume_unique=True)
    rows, counts = _rectangle(drawn, full.users, n_items)
    return replace(full, candidates=rows), full, counts + full.counts


def _rectangle(keys: Ints, users: Ints, n_items: int) -> tuple[Ints, Ints]:
    """One row of items per user, filled up with `n_items`, which the ranking masks."""
    keys = keys[np.isin(keys // n_items, users)]
    row = np.searchsorted(users, keys // n_items)
    counts = np.bincount(row, minlength=len(users))
    column = np.arange(len(keys)) - np.repeat(np.cumsum(counts) - counts, counts)
    rows = np.full((len(users), int(counts.max(initial=0))), n_items, np.int64)
    rows[row, column] = keys % n_items
    return rows, counts


def _read_scores(path: Path, wish: ColumnRequest) -> tuple[_Rows, NDArray[np.float64]]:
    """user, item, score. A score that is missing, NaN or infinite is reported by the audit; text is refused."""
    import polars as pl

    if not path.is_file():
        raise FedrecError(f"there is no file {path}; check the path")
    shape, text = sniff(path, read_text(path), wish)
    roles = find_roles(path, shape.columns(), shape.header, wish).places
    if "rating" not in roles:
        raise FedrecError(f"{path}: no column for score among {', '.join(shape.names)}; write user,item,score")
    try:
        frame = pl.read_csv(
            text.rstrip(),
            separator=shape.delimiter,
            has_header=False,
            skip_rows=int(shape.header),
            schema={str(j): pl.String for j in range(len(shape.names))},
        )
    except pl.exceptions.PolarsError as error:
        raise FedrecError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    columns: Sequence[Any] = [
        unguard_column(frame[str(roles[role])].fill_null("").str.strip_chars()) for role in ("user", "item")
    ]
    user, item = (np.unique(column.to_numpy().astype(str), return_inverse=True) for column in columns)
    words = frame[str(roles["rating"])].str.strip_chars()
    score = words.cast(pl.Float64, strict=False)
    if (bad := score.is_null() & (words.fill_null("") != "")).any():
        row = int(bad.arg_max() or 0)
        raise FedrecError(
            f"{path}, line {row + 1 + int(shape.header)}, column {shape.names[roles['rating']]}: '{words[row]:.40}' is "
            "not a number; fix or remove this row"
        )
    return _Rows(user[0], item[0], user[1], item[1]), np.asarray(score.fill_null(float("nan")).to_numpy(), np.float64)
