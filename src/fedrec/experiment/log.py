"""The log that a model was fitted to: kept beside it, and joined with what has arrived since.

`log.npz` holds every row, repeats and those below a rating threshold among them: what they count for is decided anew
whenever a model is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedrec import data as rooms
from fedrec.data import Interactions, Joined, Lost, count_lost, describe_items, join
from fedrec.data.joined import WHOLE_LOG
from fedrec.data.located import locate
from fedrec.data.roles import Columns
from fedrec.data.table import looks_like_path
from fedrec.errors import FedrecError
from fedrec.experiment.config import COLUMNS, RunConfig
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.kept import data_files, find_moved, read_kept
from fedrec.experiment.opening import open_model
from fedrec.experiment.packed import (
    SOURCE,
    UNREADABLE,
    Arrays,
    is_plain,
    load,
    pack_rows,
    pack_source,
    save,
    unpack_source,
)
from fedrec.experiment.prepare import Prepared
from fedrec.schema import BOOL, COUNT, Shape, check

FORMAT = 1
ABOUT: Shape = {"format": COUNT, "guessed": BOOL, "source": SOURCE}
ROWS = "rows"


@dataclass(frozen=True)
class Rows:
    """What a model is to be fitted to, and how it came about."""

    data: Interactions | None
    """None where the config names a published split: it comes with clients, and is not a log."""
    place: str
    """What the config names as the data."""
    joined: Joined | None = None
    lost: Lost | None = None
    """What of an earlier log is not among them."""
    described: bool = False
    """Whether they say what the model knew of their items."""
    story: str = ""
    """How they came about, in a sentence; empty where there is nothing to say."""


def rows_to_fit(
    folder: RunFolder,
    config: RunConfig,
    data: str | None,
    warm: bool,
    replaces: bool,
    columns: Columns,
) -> Rows:
    """Gather what the model of a folder, which has this config, is to be fitted to next.

    `data`: what is read, by its `columns`, instead of the data that the config names. `warm`: the model goes on, so
    that nothing of what it was fitted to may be missing, unless `data` `replaces` that.
    """
    if data is not None and (replaces or not warm):
        return _instead(folder, config, data, warm, columns)
    log = read_log(folder)
    if log is None:
        again = _read_again(folder, config, whole=warm)
        return again if data is None else _grown(again.data, config, data, columns, described=False)
    if data is None and not _is_there(config):
        gone = config.train or config.data
        story = f"{gone} is no longer there: fitted to the {len(log):,} rows that are kept with the model"
        return Rows(log, config.data, described=True, story=story)
    return _grown(log, config, data, columns, described=True)


def read_with(config: RunConfig, data: str | None, columns: Columns) -> RunConfig:
    """Return the settings with the columns to read: of another file those of the run's, of what is no file none."""
    known = data is None or looks_like_path(data)
    chosen: dict[str, Any] = {role: getattr(config, role) if known else None for role in COLUMNS}
    return replace(config, **{**chosen, **columns})


def write_log(folder: RunFolder, data: Interactions, prepared: Prepared) -> None:
    """Keep a log as it is, with what a run that was prepared of it knows of its items."""
    # What was left out before was told then, and would be told twice.
    log = replace(describe_items(data, [prepared.source, data]), filtered=())
    if not all(map(is_plain, (log.user_ids, log.item_ids))):
        return
    arrays: Arrays = {} if log.rating is None else {f"{ROWS}.rating": log.rating}
    pack_rows(ROWS, log, arrays)
    about = {"format": FORMAT, "guessed": log.guessed, "source": pack_source(log, arrays)}
    save(folder.interactions, about, arrays)


def read_log(folder: RunFolder) -> Interactions | None:
    """What `write_log` has kept; None in runs, and in folders of older versions, which keep none."""
    if not folder.interactions.exists():
        return None
    try:
        about, arrays = load(folder.interactions)
        check("about", about, ABOUT)
        if about["format"] != FORMAT:
            raise ValueError(f"format {about['format']}")
        rating = arrays.get(f"{ROWS}.rating")
        log = unpack_source(about["source"], ROWS, arrays)
        return replace(log, rating=rating, guessed=about["guessed"])
    except UNREADABLE:
        raise FedrecError(f"{folder.interactions} is damaged, or of a newer fedrec; {WHOLE_LOG}") from None


def _table(config: RunConfig) -> Interactions | None:
    """The data of a config as one log, in which the parts of a split of one's own are put together."""
    if config.train is not None and config.test is not None:
        return rooms.reunite(rooms.read(config.train, config.valid, config.test, config.columns)).train
    if rooms.find_published_split(config.data):
        return None
    return rooms.load(config.data, columns=config.columns, skip_bad=bool(config.skip_bad))


def _is_there(config: RunConfig) -> bool:
    """Whether the data can be read without fetching it."""
    if config.train is not None:
        return bool(data_files(replace(config, attributes=None)))
    return locate(config.data) is not None


def _with_data(config: RunConfig, data: str | None, columns: Columns) -> RunConfig:
    """Return the config with other data, to be read by these columns."""
    if data is None:
        return config
    chosen: dict[str, Any] = {role: columns.get(role) for role in COLUMNS}
    return replace(config, data=data, train=None, valid=None, test=None, **chosen)


def _grown(log: Interactions | None, config: RunConfig, data: str | None, columns: Columns, described: bool) -> Rows:
    rows = _table(_with_data(config, data, columns))
    # A published split comes with clients of its own, so there are no rows that could be joined to it.
    if log is None or rows is None:
        name = config.data if log is None else data
        raise FedrecError(f"{name} is a published split with clients of its own, not a log to join; {WHOLE_LOG}")
    joined = join(log, rows)
    # The columns of the new data are those by which it will be read again.
    grown = replace(joined.data, columns=rows.columns)
    return Rows(grown, config.data if data is None else data, joined, described=described, story=str(joined))


def _instead(folder: RunFolder, config: RunConfig, data: str, warm: bool, columns: Columns) -> Rows:
    """Other data as the whole log; what it lacks of the earlier one is counted as far as that is known.

    `warm`: its items are those of the model, which may know their titles.
    """
    whole = _table(_with_data(config, data, columns))
    earlier = _earlier(folder, config)
    if whole is None or earlier is None:
        return Rows(whole, data, story=f"{data} is the whole log; what it drops of the earlier one is not known")
    less = count_lost(earlier, whole)
    whole = describe_items(whole, [whole, earlier]) if warm else whole
    story = f"{whole.name} is the whole log and drops {less} of the earlier one"
    return Rows(whole, data, lost=less, described=warm, story=story)


def _earlier(folder: RunFolder, config: RunConfig) -> Interactions | None:
    """The log that a model was fitted to, or the rows that its run has kept of it; None where neither can be read."""
    try:
        log = read_log(folder)
    # A damaged log only loses the count of what is missing here, so other records are tried.
    except FedrecError:
        log = None
    kept = read_kept(folder, config, ranked=False) if log is None else None
    return log if kept is None else _rows_of(kept.prepared)


def _rows_of(prepared: Prepared) -> Interactions:
    """Users and items of everything that a run had, whether it trained on it or not, and what it knew of them."""
    split, aside, source = prepared.split, prepared.aside, prepared.source
    parts = [part for part in (split.train, split.valid, split.test, prepared.dropped, aside) if part is not None]
    user, item = (np.concatenate([getattr(part, column) for part in parts]) for column in ("user", "item"))
    user_ids = source.user_ids if aside is None else np.concatenate([source.user_ids, aside.user_ids])
    return Interactions(user, item, user_ids, source.item_ids, name=source.name, info=source.info)


def _read_again(folder: RunFolder, config: RunConfig, whole: bool) -> Rows:
    """The data of a run as it is now, where it was or wherever a file with the same content lies.

    `whole`: it must hold all that the run had of it.
    """
    found = _place_of(folder, config)
    if found is None:
        remedy = WHOLE_LOG if whole else "give its place with --data FILE"
        raise FedrecError(
            f"{folder.path} keeps no log, and its data is no longer at {config.data}, nor is a file with the same "
            f"content near it; {remedy}"
        )
    data = _table(replace(config, data=found))
    if whole and data is not None:
        _require_whole(folder, config, data)
    return Rows(data, found)


def _place_of(folder: RunFolder, config: RunConfig) -> str | None:
    if config.train is not None or not looks_like_path(config.data) or locate(config.data) is not None:
        return config.data
    kept = read_kept(folder, config)
    found = None if kept is None else find_moved(kept, config, near=folder.path.parent)
    return None if found is None else str(found)


def _require_whole(folder: RunFolder, config: RunConfig, data: Interactions) -> None:
    """Without a log of its own, a model goes on only with data that has lost nothing of what it was fitted to."""
    earlier = _earlier(folder, config)
    less = count_lost(_rows_of(open_model(folder.path).run.prepared) if earlier is None else earlier, data)
    if less != Lost(0, 0, 0):
        raise FedrecError(f"{data.name} lacks {less} that {folder.path} was trained on; {WHOLE_LOG}")
