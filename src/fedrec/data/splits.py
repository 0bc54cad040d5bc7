"""Cutting interactions into training, validation and test parts, all in one numbering of users and items."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from fedrec.data.filtered import Filtered
from fedrec.data.interactions import FEWEST_TO_SPLIT, Array, Interactions, first_rows
from fedrec.data.joined import in_one_numbering
from fedrec.data.roles import Columns
from fedrec.data.seeds import generator
from fedrec.data.table import read_table, write_csv
from fedrec.errors import FedrecError, unknown
from fedrec.splitmix import fold_array

Time = Literal["real", "item_order", "line_order", "random"]
Ties = Literal["random", "first"]
Per = Literal["dataset", "user"]
_TRAIN, _VALID, _TEST = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Split:
    """Three parts with the same ``user_ids`` and ``item_ids``; ``notes`` go into every result made from them.

    Each user's rows go from the earliest to the latest, where times are known.
    """

    train: Interactions
    valid: Interactions
    test: Interactions
    kind: str
    notes: tuple[str, ...] = ()
    filtered: tuple[Filtered, ...] = ()
    """What was left out of the parts after the cut."""


def leave_one_out(data: Interactions, time: Time = "real", ties: Ties = "random") -> Split:
    """Per user: the latest interaction is the test, the second latest the validation, the rest training.

    ``time`` says what "latest" means: "real" the timestamps (or the order, where only that is known); "item_order" the
    place at which the item first appears in the file; "line_order" the row's place in the file; "random" no time at
    all. Data without times falls back from "real" to "random", and says so. ``ties="random"`` orders equal times by the
    data's ``tie_seed``; "first" is the rule of published code, in which the first line among equals is the latest.

    Users with fewer than 3 interactions stay in training whole and are not evaluated. Nobody's own later item is in
    their training part, but everybody is cut at another moment: other users' training reaches into the future of this
    user's test item, so popularity and trends leak; ``global_time`` prevents that. "item_order" and "line_order" are
    kept only to repeat published figures: "item_order" sends the same few items to everybody's test.
    """
    if time not in ("real", "item_order", "line_order", "random"):
        raise unknown("time rule", time, ("real", "item_order", "line_order", "random"))
    if ties not in ("random", "first"):
        raise unknown("tie rule", ties, ("random", "first"))
    notes = []
    # Falling back is said in the notes: a random cut answers another question than one by time.
    if time == "real" and data.timestamp is None:
        time = "random"
        notes.append(f"no times in '{data.name}': random leave-one-out by ties{data.tie_seed}")
    order = _chronological(data, time, ties)
    counts = data.counts()
    # The distance from the user's last row by cumulated counts: no loop over users, which can be millions.
    from_end = np.repeat(np.cumsum(counts), counts) - 1 - np.arange(len(data))
    large = np.repeat(counts >= FEWEST_TO_SPLIT, counts)
    # One byte a row is enough for three labels.
    part = np.empty(len(data), dtype=np.int8)
    part[order] = np.where(large & (from_end == 0), _TEST, np.where(large & (from_end == 1), _VALID, _TRAIN))
    if small := int(((counts > 0) & (counts < FEWEST_TO_SPLIT)).sum()):
        # They still help to train items for the others, so they are not dropped.
        notes.append(f"{small} users with fewer than {FEWEST_TO_SPLIT} interactions are in training only")
    return _cut_parts(data, part, f"leave_one_out(time={time},ties={ties})", notes, order)


def ratio(data: Interactions, test: float = 0.2, valid: float = 0.1, seed: int = 0, per: Per = "dataset") -> Split:
    """Random rows: a share ``test`` of all, then a share ``valid`` of what remains for training.

    ``per="user"`` takes the shares from every user instead of from the whole. Either way the cut ignores time: training
    holds interactions later than those tested, of the same user too, so the figures say how well gaps are filled, not
    how well the future is foreseen.
    """
    _check_shares(test, valid)
    if per not in ("dataset", "user"):
        raise unknown("ratio split", per, ("dataset", "user"))
    # Shuffled first and then grouped with a stable sort: within a user the random order survives.
    shuffled = generator(seed).permutation(len(data))
    group = data.user[shuffled] if per == "user" else np.zeros(len(data), dtype=np.int64)
    order = shuffled[np.argsort(group, kind="stable")]
    sizes = data.counts() if per == "user" else np.array([len(data)])
    part = np.empty(len(data), dtype=np.int8)
    part[order] = _shares(sizes, test, valid)
    return _cut_parts(data, part, f"ratio(test={test:g},valid={valid:g},seed={seed},per={per})", [])


def cold_items(data: Interactions, test: float = 0.2, valid: float = 0.1, seed: int = 0) -> Split:
    """Random items, each with all its interactions: no item of one part occurs in another.

    Shares are of the items that occur; ``valid`` is the share of those left after ``test``. Nothing about a tested item
    can leak through interactions, only through its attributes. Users are the same in all parts and time is ignored.
    """
    _check_shares(test, valid)
    # Shares are of items that occur; those without rows would make the test part smaller than asked.
    present = np.unique(data.item)
    part_of_item = np.zeros(data.n_items, dtype=np.int8)
    part_of_item[generator(seed).permutation(present)] = _shares(np.array([present.size]), test, valid)
    return _cut_parts(data, part_of_item[data.item], f"cold_items(test={test:g},valid={valid:g},seed={seed})", [])


def global_time(data: Interactions, test: float = 0.1, valid: float = 0.1) -> Split:
    """One cut in time for everybody: the latest share ``test`` of all rows, before it the share ``valid`` of the rest.

    Training contains nothing that happened after the cut, whoever the user, so the future does not leak. In return the
    test may hold users and items that training has never seen. Rows of the same moment are never separated, so the
    shares are approximate.
    """
    _check_shares(test, valid)
    if data.time != "real" or data.timestamp is None:
        known = "only the order within each user" if data.time == "order" else "no times"
        raise FedrecError(
            f"'{data.name}' has {known}; a global cut needs timestamps comparable between users: use leave_one_out"
        )
    for_valid, for_test = (int(size[0]) for size in _sizes(np.array([len(data)]), test, valid))
    # The last stands for "never".
    moments = np.append(np.sort(data.timestamp), np.iinfo(np.int64).max)
    test_from = moments[len(data) - for_test]
    valid_from = moments[len(data) - for_test - for_valid] if for_valid else test_from
    part = np.where(data.timestamp >= test_from, _TEST, np.where(data.timestamp >= valid_from, _VALID, _TRAIN))
    split = _cut_parts(data, part.astype(np.int8), f"global_time(test={test:g},valid={valid:g})", [])
    new = int(np.setdiff1d(split.test.user, split.train.user).size)
    return replace(split, notes=(*split.notes, f"{new} users of the test part have no training rows")) if new else split


def before_test(split: Split) -> tuple[Array, Array]:
    """Users and items of the training and validation rows, each user's from the earliest to the latest.

    Where the parts follow one another in time, validation comes last; where they were cut at random or given, times
    decide, as far as there are any.
    """
    return _join_in_time(split, (split.train, split.valid))


def all_in_time(split: Split) -> tuple[Array, Array]:
    """Users and items of all three parts, each user's from the earliest to the latest, as in `before_test`."""
    return _join_in_time(split, (split.train, split.valid, split.test))


def _join_in_time(split: Split, parts: tuple[Interactions, ...]) -> tuple[Array, Array]:
    user, item = (np.concatenate([getattr(part, column) for part in parts]) for column in ("user", "item"))
    mixed = split.kind == "given" or split.kind.startswith("ratio")
    if not mixed or any(part.timestamp is None for part in parts):
        return user, item
    joined = replace(
        split.train, user=user, item=item, rating=None, timestamp=np.concatenate([part.timestamp for part in parts])
    )
    order = order_in_time(joined)
    return user[order], item[order]


def train_on_all(data: Interactions) -> Split:
    """Everything in the training part, for a model that serves and is not tested."""
    # Empty parts with all columns, so that whatever reads a split needs no special case.
    none = data.select(np.arange(0))
    return Split(data.select(order_in_time(data)), none, none, "undivided", data.notes)


def reunite(split: Split) -> Split:
    """A given split with all its parts in training, each pair once."""
    parts = (split.train, split.valid, split.test)
    # Times count only where every part has them: rows without would be sorted to the beginning.
    timed = all(part.timestamp is not None for part in parts)
    user, item = (np.concatenate([getattr(part, column) for part in parts]) for column in ("user", "item"))
    rows = replace(
        split.train,
        user=user,
        item=item,
        rating=None,
        time=split.train.time if timed else "none",
        timestamp=np.concatenate([part.timestamp for part in parts]) if timed else None,
    )
    return replace(train_on_all(rows.drop_repeats()), notes=split.notes)


def write(split: Split, folder: Path | str) -> None:
    """Write train.csv, valid.csv and test.csv in original ids; each appears only when it is complete."""
    for name in ("train", "valid", "test"):
        write_csv(getattr(split, name), Path(folder) / f"{name}.csv")


def read(train: Path | str, valid: Path | str | None, test: Path | str, columns: Columns | None = None) -> Split:
    """A user's own split, taken as it is; what looks wrong is noted, not corrected."""
    paths = {"train": train, "valid": valid, "test": test}
    parts = {name: read_table(path, columns)[0] for name, path in paths.items() if path is not None}
    # Only column choices on which all files agree can be asked for again.
    alike = dict(sorted(set.intersection(*(set(part.columns.items()) for part in parts.values()))))
    digest = hashlib.sha256("".join(part.version for part in parts.values()).encode()).hexdigest()[:12]
    numbered = in_one_numbering(list(parts.values()))
    shared = {
        name: replace(part, version=f"sha256-{digest}+ties0", columns=alike)
        for name, part in zip(parts, numbered, strict=True)
    }
    shared = {
        name: part if part.timestamp is None else part.select(order_in_time(part)) for name, part in shared.items()
    }
    held = shared.get("valid", shared["train"].select(np.arange(0)))
    notes = [note for part in parts.values() for note in part.notes]
    if valid is None:
        notes.append("no validation part was given")
    notes += overlaps(shared["train"], held, shared["test"])
    return Split(shared["train"], held, shared["test"], "given", tuple(notes))


def _times_of_rows(data: Interactions, time: Time) -> Array:
    if time == "real" and data.timestamp is not None:
        return data.timestamp
    if time == "item_order":
        first = first_rows(data.item, data.n_items) if data.first_line is None else data.first_line
        return np.asarray(first[data.item])
    return np.arange(len(data)) if time == "line_order" else np.zeros(len(data), dtype=np.int64)


def order_in_time(data: Interactions) -> Array:
    """Rows by user, within the user from the earliest to the latest, ties decided."""
    return _chronological(data, "real", "random")


def _chronological(data: Interactions, time: Time, ties: Ties) -> Array:
    """Rows sorted by user, within the user from the earliest to the latest."""
    row, moments = np.arange(len(data)), _times_of_rows(data, time)
    # The negative row puts the first line last, hence latest, which is the rule of published code.
    if ties == "first" and time != "random":
        return np.lexsort((-row, moments, data.user))
    # The row decides only where the same pair occurs twice at the same time, so that the order is total.
    return np.lexsort((row, _tie_order(data), moments, data.user))


def _tie_order(data: Interactions) -> Array:
    """A random number per row that depends on the tie seed and the pair's original ids alone.

    So it is the same whatever was filtered away before, in whatever order the file lists its rows, and with whatever
    version of numpy.
    """
    mixed = _mix(_id_hashes(data.user_ids)[data.user] ^ _mix(np.array([data.tie_seed], dtype=np.uint64)))
    return _mix(mixed + _id_hashes(data.item_ids)[data.item])


def _id_hashes(ids: Array) -> Array:
    if np.issubdtype(ids.dtype, np.integer):
        # Integers hash by value, so that an id is the same whether it was read as 32 or 64 bits.
        return _mix(ids.astype(np.int64).view(np.uint64))
    # A fixed hash instead of Python's own, which differs from process to process.
    digests = [hashlib.blake2b(str(name).encode(), digest_size=8).digest() for name in ids]
    # Little-endian by name: the order of ties must not depend on the machine.
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def _mix(x: Array) -> Array:
    """Every input bit moves every output bit."""
    return fold_array(x, 0)


def _check_shares(test: float, valid: float) -> None:
    if not (0 <= test < 1 and 0 <= valid < 1):
        raise FedrecError(f"test={test:g} and valid={valid:g} are shares: give numbers from 0 to below 1")


def _sizes(sizes: Array, test: float, valid: float) -> tuple[Array, Array]:
    """Rows for validation and for test in groups of these sizes, rounded half up."""
    # Half up by hand: numpy rounds half to even, so shares of 0.5 and 1.5 rows would become 0 and 2.
    for_test = np.floor(sizes * test + 0.5).astype(np.int64)
    # Validation is a share of what is left, so that it does not shrink when the test part grows.
    for_valid = np.floor((sizes - for_test) * valid + 0.5).astype(np.int64)
    return for_valid, for_test


def _shares(sizes: Array, test: float, valid: float) -> Array:
    """Part labels for rows that lie group after group: test first, then validation, then training."""
    for_valid, for_test = _sizes(sizes, test, valid)
    within = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    in_test = within < np.repeat(for_test, sizes)
    in_valid = within < np.repeat(for_test + for_valid, sizes)
    return np.where(in_test, _TEST, np.where(in_valid, _VALID, _TRAIN)).astype(np.int8)


def _cut_parts(data: Interactions, part: Array, kind: str, notes: list[str], order: Array | None = None) -> Split:
    """Each part's rows are sorted by user, then from the earliest to the latest, with ties decided."""
    order = order_in_time(data) if order is None else order
    train, valid, test = (data.select(order[part[order] == label]) for label in (_TRAIN, _VALID, _TEST))
    return Split(train, valid, test, kind, (*data.notes, *notes, *overlaps(train, valid, test)))


def overlaps(train: Interactions, valid: Interactions, test: Interactions) -> list[str]:
    """What to note about (user, item) pairs that occur in more than one part."""
    parts = {"train": train, "valid": valid, "test": test}
    keys = {name: part.distinct_pairs() for name, part in parts.items()}
    notes = []
    for a, b in (("train", "valid"), ("train", "test"), ("valid", "test")):
        if shared := np.intersect1d(keys[a], keys[b], assume_unique=True).size:
            notes.append(f"{shared} (user, item) pairs are in both {a} and {b}")
    return notes


def disjoint(split: Split) -> Split:
    """Without held-out pairs that are also in an earlier part: such an item is masked, so it cannot be ranked."""
    train, valid = split.train.distinct_pairs(), split.valid.distinct_pairs()
    twice = np.isin(split.valid.pair_keys(), train)
    again = np.isin(split.test.pair_keys(), np.concatenate([train, valid]))
    record = Filtered("held-out pairs that are also in an earlier part", 0, 0, int(twice.sum() + again.sum()))
    return replace(
        split,
        valid=split.valid.select(~twice),
        test=split.test.select(~again),
        filtered=(*split.filtered, record) if record.rows else split.filtered,
    )
