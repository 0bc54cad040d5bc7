"""What was prepared of the data, kept beside the run: whoever needs the model again need not read and split once more.

`prepared.npz` holds the split in the run's numbering, the clients, and what is known of users and items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedrec.data import Partition, Split
from fedrec.data.fetch import search_folders
from fedrec.data.located import fingerprint, list_files, locate
from fedrec.errors import FedrecError
from fedrec.evaluation import Protocol, parse_protocol
from fedrec.experiment.aside import Aside
from fedrec.experiment.config import COLUMNS, RunConfig
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.packed import (
    FILTERED,
    SOURCE,
    UNREADABLE,
    Arrays,
    is_plain,
    load,
    pack_filtered,
    pack_ids,
    pack_rows,
    pack_source,
    save,
    small,
    unpack_filtered,
    unpack_ids,
    unpack_rows,
    unpack_source,
)
from fedrec.experiment.prepare import Grouping, Prepared, with_targets
from fedrec.schema import BOOL, COUNT, TEXT, TEXTS, Shape, check, optional

FORMAT = 1
BAD_ROWS = "bad-rows.csv"
SETTINGS = ("data", "protocol", "train", "valid", "test", "attributes", "skip_bad", "silo_column", *COLUMNS)
"""What of a config decides how the data is prepared, but for who is whose client."""
PARTS = ("train", "valid", "test", "dropped")
ABOUT: Shape = {
    "checksum": TEXT,
    "warm": optional(COUNT),
    "n_interactions": COUNT,
    "silos": optional(TEXT),
    "centralised": BOOL,
    "source": SOURCE,
    "split": {"kind": TEXT, "notes": TEXTS, "filtered": FILTERED},
}


@dataclass(frozen=True)
class Kept:
    """What a run has kept, and the checksum of the files that it was made from (empty: it was not read from files)."""

    prepared: Prepared
    checksum: str
    size: int | None = None
    """Bytes of the first of these files, where they were written down."""

    def is_of(self, config: RunConfig) -> bool:
        """Whether the files of the data, where they are still here, hold what they held."""
        # Files that are gone cannot contradict what was kept, so it stays usable.
        now = fingerprint(data_files(config)) if self.checksum else ""
        return not now or now == self.checksum


def data_files(config: RunConfig) -> list[Path]:
    """The files that a run of this config reads; none where one is not here, or the data is generated."""
    if config.train is not None:
        found = [Path(name) for name in (config.train, config.valid, config.test) if name is not None]
    else:
        found = list_files(config.data)
    found += [Path(config.attributes)] if config.attributes is not None and found else []
    return found if all(file.is_file() for file in found) else []


def is_at_hand(config: RunConfig) -> bool:
    """Whether the data can be read here and now, without fetching anything."""
    return bool(data_files(config)) or (config.train is None and locate(config.data) == "generated")


def keep(folder: RunFolder, prepared: Prepared, config: RunConfig, named: bool) -> None:
    """Write it, unless the data has no version to tell it by, or ids that are neither words nor numbers.

    `named`: the config says where the data is.
    """
    source = prepared.source
    if source.bad is not None:
        source.bad.write(folder.path / BAD_ROWS)
    # Without a version the kept rows could not be told from those of other data under the same name.
    if not source.version or not all(map(is_plain, (source.user_ids, source.item_ids))):
        return
    arrays: Arrays = {}
    about = {
        "format": FORMAT,
        "settings": _settings(config),
        "checksum": fingerprint(data_files(config)) if named else "",
        # Kept beside the checksum, because to compare sizes spares reading most other files.
        "size": data_files(config)[0].stat().st_size if named and data_files(config) else None,
        "warm": prepared.warm,
        "n_interactions": prepared.n_interactions,
        "silos": prepared.grouping.silos,
        "centralised": prepared.grouping.centralised,
        "notes": prepared.notes,
        "source": pack_source(source, arrays),
        "split": _pack_split(prepared, arrays),
    }
    # Only ids of plain types survive a file without pickles.
    if (aside := prepared.aside) is not None and is_plain(aside.user_ids):
        arrays |= {"aside.user_ids": pack_ids(aside.user_ids), "aside.liked": aside.liked.astype(np.uint8)}
        arrays |= {f"aside.{name}": small(getattr(aside, name)) for name in ("user", "item")}
    for name, partition in (("clients", prepared.partition), ("published", prepared.grouping.published)):
        if partition is not None:
            arrays |= {f"{name}.users": small(partition.users), f"{name}.offsets": small(partition.offsets)}
    save(folder.prepared, about, arrays)


def read_kept(folder: RunFolder, config: RunConfig, ranked: bool = True) -> Kept | None:
    """What a run with this config has kept; None where there is nothing that can be used, so that the data decides.

    `ranked`: with what is ranked to test it, which serving does not need.
    """
    try:
        about, arrays = load(folder.prepared)
        # Another format or other settings are no error: the data is simply read again.
        if about.get("format") != FORMAT or about.get("settings") != _settings(config):
            return None
        check("about", about, ABOUT)
        return Kept(
            _rebuild(about, arrays, parse_protocol(config.protocol), ranked), about["checksum"], about.get("size")
        )
    # What is kept only saves work, so a damaged file must not stop anybody.
    except UNREADABLE:
        return None


def read_prepared(folder: RunFolder, config: RunConfig) -> Prepared | None:
    """What a run has kept, if its data is unchanged or gone; None: to be read again."""
    kept = read_kept(folder, config)
    return kept.prepared if kept is not None and kept.is_of(config) else None


def find_moved(kept: Kept, config: RunConfig, near: Path) -> Path | None:
    """A file with the content of a run's own file that has been moved or renamed.

    Looked for where it was, beside the run, here, and in the folders of data.
    """
    beside = [Path(config.attributes)] if config.attributes is not None else []
    if not kept.checksum or not all(file.is_file() for file in beside):
        return None
    # Each folder once, since several of these may be the same.
    folders = dict.fromkeys(path.resolve() for path in (Path(config.data).parent, near, Path(), *search_folders()))
    for folder in folders:
        for file in sorted(folder.glob("*")):
            alike = file.suffix == Path(config.data).suffix and file.is_file()
            # Suffix and size first: a folder of data may hold gigabytes that a checksum would read.
            if alike and kept.size in (None, file.stat().st_size) and fingerprint([file, *beside]) == kept.checksum:
                return file
    return None


def require_unchanged(folder: RunFolder, config: RunConfig, now: Prepared) -> None:
    """Refuse to go on with rows other than those that a run of this config has kept, whatever they were read from."""
    if (kept := read_kept(folder, config, ranked=False)) is not None:
        require_same_rows(kept.prepared, now, folder.path)


def require_same_rows(kept: Prepared, now: Prepared, folder: Path) -> None:
    """Files may change without changing what is read from them; an error where they did change it."""
    columns = ("user", "item", "user_ids", "item_ids")
    then, here = ([getattr(one.split.train, column) for column in columns] for one in (kept, now))
    if not all(map(np.array_equal, then, here)):
        raise FedrecError(
            f"the data of {folder} has changed since the run; put the old data back, or start over in "
            "another --out folder"
        )


def _settings(config: RunConfig) -> dict[str, Any]:
    return {name: value for name in SETTINGS if (value := getattr(config, name)) is not None}


# -- writing --


def _pack_split(prepared: Prepared, arrays: Arrays) -> dict[str, Any]:
    split = prepared.split
    for name, part in zip(PARTS, (split.train, split.valid, split.test, prepared.dropped), strict=True):
        if part is not None:
            pack_rows(name, part, arrays)
    return {"kind": split.kind, "notes": split.notes, "filtered": pack_filtered("split", split.filtered, arrays)}


# -- reading --


def _rebuild(about: Mapping[str, Any], arrays: Arrays, chosen: Protocol, ranked: bool) -> Prepared:
    source = unpack_source(about["source"], PARTS[0], arrays)
    train, valid, test, dropped = (unpack_rows(source, name, arrays) for name in PARTS)
    # Empty parts are written as well, so an absent one means a damaged file.
    if train is None or valid is None or test is None:
        raise ValueError("a part is missing")
    notes, filtered = tuple(about["split"]["notes"]), unpack_filtered("split", about["split"]["filtered"], arrays)
    split = Split(train, valid, test, about["split"]["kind"], notes, filtered)
    published = _partition("published", arrays)
    grouping = Grouping(about["silos"], about["centralised"], published)
    clients = _partition("clients", arrays)
    if clients is None:
        raise ValueError("the clients are missing")
    rows = about["n_interactions"]
    prepared = with_targets(source, split, clients, chosen, dropped, about["warm"], rows, grouping, ranked)
    return replace(prepared, aside=_aside(arrays), notes=tuple(about.get("notes", prepared.notes)))


def _aside(arrays: Arrays) -> Aside | None:
    if "aside.user" not in arrays:
        return None
    user, item = (arrays[f"aside.{column}"].astype(np.int64) for column in ("user", "item"))
    return Aside(unpack_ids("aside.user_ids", arrays), user, item, arrays["aside.liked"].astype(bool))


def _partition(name: str, arrays: Arrays) -> Partition | None:
    if f"{name}.users" not in arrays:
        return None
    return Partition(*(arrays[f"{name}.{part}"].astype(np.int64) for part in ("users", "offsets")))
