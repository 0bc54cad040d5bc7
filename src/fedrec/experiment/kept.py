"""What was prepared of the data, kept beside the run: whoever needs the model again need not read and split once more.

`prepared.npz` holds the split in the run's numbering, the clients, and what is known of users and items: plain arrays,
in the smallest type that holds them, and JSON. It tells of single users, so its owner alone can read it.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedrec.data import Filtered, Interactions, ItemInfo, Partition, Split
from fedrec.data.atomic import atomic_file
from fedrec.data.fetch import search_folders
from fedrec.data.located import files, fingerprint, place
from fedrec.errors import FedrecError
from fedrec.evaluation import Protocol, recorded
from fedrec.experiment.aside import Aside
from fedrec.experiment.config import RunConfig
from fedrec.experiment.folder import RunFolder
from fedrec.experiment.prepare import Grouping, Prepared, with_targets
from fedrec.schema import BOOL, COUNT, TEXT, TEXTS, Shape, check, optional

FORMAT = 1
SETTINGS = ("data", "protocol", "train", "valid", "test", "attributes")
"""What of a config decides how the data is prepared, but for who is whose client."""
PARTS = ("train", "valid", "test", "dropped")
MATRICES = ("tags", "features")

_FILTERED: list[Shape] = [{"rule": TEXT, "users": COUNT, "items": COUNT, "rows": COUNT, "remedy": TEXT}]
ABOUT: Shape = {
    "checksum": TEXT,
    "warm": optional(COUNT),
    "n_interactions": COUNT,
    "silos": optional(TEXT),
    "centralised": BOOL,
    "source": {"name": TEXT, "version": TEXT, "tie_seed": COUNT, "time": TEXT, "notes": TEXTS, "filtered": _FILTERED},
    "split": {"kind": TEXT, "notes": TEXTS, "filtered": _FILTERED},
}

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Kept:
    """What a run has kept, and the checksum of the files that it was made from (empty: it was not read from files)."""

    prepared: Prepared
    checksum: str
    size: int | None = None
    """Bytes of the first of these files, where they were written down."""

    def is_of(self, config: RunConfig) -> bool:
        """Whether the files of the data, where they are still here, hold what they held."""
        now = fingerprint(data_files(config)) if self.checksum else ""
        return not now or now == self.checksum


def data_files(config: RunConfig) -> list[Path]:
    """The files that a run of this config reads; none where one is not here, or the data is generated."""
    if config.train is not None:
        found = [Path(name) for name in (config.train, config.valid, config.test) if name is not None]
    else:
        found = files(config.data)
    found += [Path(config.attributes)] if config.attributes is not None and found else []
    return found if all(file.is_file() for file in found) else []


def at_hand(config: RunConfig) -> bool:
    """Whether the data can be read here and now, without fetching anything."""
    return bool(data_files(config)) or (config.train is None and place(config.data) == "generated")


def keep(folder: RunFolder, prepared: Prepared, config: RunConfig, named: bool) -> None:
    """Write it, unless the data has no version to tell it by, or ids that are neither words nor numbers.

    `named`: the config says where the data is.
    """
    source = prepared.source
    if not source.version or not all(map(_plain, (source.user_ids, source.item_ids))):
        return
    arrays: Arrays = {}
    about = {
        "format": FORMAT,
        "settings": _settings(config),
        "checksum": fingerprint(data_files(config)) if named else "",
        "size": data_files(config)[0].stat().st_size if named and data_files(config) else None,
        "warm": prepared.warm,
        "n_interactions": prepared.n_interactions,
        "silos": prepared.grouping.silos,
        "centralised": prepared.grouping.centralised,
        "notes": prepared.notes,
        "source": _pack_source(source, arrays),
        "split": _pack_split(prepared, arrays),
    }
    if (aside := prepared.aside) is not None and _plain(aside.user_ids):
        arrays |= {"aside.user_ids": _ids(aside.user_ids), "aside.liked": aside.liked.astype(np.uint8)}
        arrays |= {f"aside.{name}": _small(getattr(aside, name)) for name in ("user", "item")}
    for name, partition in (("clients", prepared.partition), ("published", prepared.grouping.published)):
        if partition is not None:
            arrays |= {f"{name}.users": _small(partition.users), f"{name}.offsets": _small(partition.offsets)}
    arrays["about"] = _text(about)
    with atomic_file(folder.prepared, private=True) as temporary, temporary.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def read_kept(folder: RunFolder, config: RunConfig, ranked: bool = True) -> Kept | None:
    """What a run with this config has kept; None where there is nothing that can be used, so that the data decides.

    `ranked`: with what is ranked to test it, which serving does not need.
    """
    try:
        with zipfile.ZipFile(folder.prepared) as members:
            if any(member.compress_type != zipfile.ZIP_STORED for member in members.infolist()):
                return None  # not ours, and of any size
        with np.load(folder.prepared, allow_pickle=False) as members:
            arrays = {name: members[name] for name in members.files}
        about = json.loads(arrays["about"].tobytes())
        if about.get("format") != FORMAT or about.get("settings") != _settings(config):
            return None
        check("about", about, ABOUT)
        return Kept(_prepared(about, arrays, recorded(config.protocol), ranked), about["checksum"], about.get("size"))
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError, AttributeError, MemoryError, RecursionError,
            zipfile.BadZipFile, NotImplementedError, FedrecError):  # fmt: skip
        return None


def prepared_of(folder: RunFolder, config: RunConfig) -> Prepared | None:
    """What a run has kept, if its data is unchanged or gone; None: to be read again."""
    kept = read_kept(folder, config)
    return kept.prepared if kept is not None and kept.is_of(config) else None


def found_again(kept: Kept, config: RunConfig, near: Path) -> Path | None:
    """A file with the content of a run's own file that has been moved or renamed.

    Looked for where it was, beside the run, here, and in the folders of data.
    """
    beside = [Path(config.attributes)] if config.attributes is not None else []
    if not kept.checksum or not all(file.is_file() for file in beside):
        return None
    folders = dict.fromkeys(path.resolve() for path in (Path(config.data).parent, near, Path(), *search_folders()))
    for folder in folders:
        for file in sorted(folder.glob("*")):
            alike = file.suffix == Path(config.data).suffix and file.is_file()
            if alike and kept.size in (None, file.stat().st_size) and fingerprint([file, *beside]) == kept.checksum:
                return file
    return None


def require_same_rows(kept: Prepared, now: Prepared, folder: Path) -> None:
    """Files may change without changing what is read from them; an error where they did change it."""
    columns = ("user", "item", "user_ids", "item_ids")
    then, here = ([getattr(one.split.train, column) for column in columns] for one in (kept, now))
    if not all(map(np.array_equal, then, here)):
        raise FedrecError(f"the data of {folder} has changed since the run; put the old data back, or start over in "
                          "another --out folder")  # fmt: skip


def _settings(config: RunConfig) -> dict[str, Any]:
    return {name: value for name in SETTINGS if (value := getattr(config, name)) is not None}


# -- writing --


def _pack_source(source: Interactions, arrays: Arrays) -> dict[str, Any]:
    arrays |= {"user_ids": _ids(source.user_ids), "item_ids": _ids(source.item_ids)}
    about: dict[str, Any] = {name: getattr(source, name) for name in ("name", "version", "tie_seed", "time", "notes")}
    about["filtered"] = _pack_filtered("source", source.filtered, arrays)
    info = source.info
    if info is not None:
        about["info"] = {"tag_names": info.tag_names, "feature_names": info.feature_names}
        arrays |= {} if info.titles is None else {"titles": _ids(info.titles)}
        arrays |= {} if info.years is None else {"years": _small(info.years)}
        for name in MATRICES:
            if (matrix := getattr(info, name)) is not None:
                own = {"data": matrix.data, "indices": _small(matrix.indices), "indptr": _small(matrix.indptr)}
                arrays |= {f"{name}.{part}": value for part, value in own.items()}
                about["info"][name] = matrix.shape
    return about


def _pack_split(prepared: Prepared, arrays: Arrays) -> dict[str, Any]:
    split = prepared.split
    for name, part in zip(PARTS, (split.train, split.valid, split.test, prepared.dropped), strict=True):
        if part is not None:
            arrays |= {f"{name}.user": _small(part.user), f"{name}.item": _small(part.item)}
            arrays |= {} if part.timestamp is None else {f"{name}.timestamp": _small(part.timestamp)}
    return {"kind": split.kind, "notes": split.notes, "filtered": _pack_filtered("split", split.filtered, arrays)}


def _pack_filtered(whose: str, filtered: tuple[Filtered, ...], arrays: Arrays) -> list[dict[str, Any]]:
    for number, one in enumerate(filtered):
        arrays |= {f"{whose}.{number}.user_ids": _ids(one.user_ids), f"{whose}.{number}.item_ids": _ids(one.item_ids)}
    return [{**one.to_dict(), "remedy": one.remedy} for one in filtered]


def _plain(ids: np.ndarray) -> bool:
    return ids.dtype.kind in "iufU" or all(isinstance(name, str | int | float) for name in ids.tolist())


def _small(values: np.ndarray) -> np.ndarray:
    """Whole numbers in as few bytes as they need."""
    if not len(values):
        return values.astype(np.uint8)
    return values.astype(np.result_type(np.min_scalar_type(values.min()), np.min_scalar_type(values.max())))


def _ids(values: np.ndarray) -> np.ndarray:
    """Numbers as they are; words as JSON, where a long one does not widen all others."""
    if values.dtype.kind in "UO":
        return _text({"objects": values.dtype.kind == "O", "values": values.tolist()})
    return values.astype(np.int64) if values.dtype == np.uint8 else values


def _text(value: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


# -- reading --


def _prepared(about: Mapping[str, Any], arrays: Arrays, chosen: Protocol, ranked: bool) -> Prepared:
    source = _source(about["source"], arrays)
    train, valid, test, dropped = (_part(source, name, arrays) for name in PARTS)
    if train is None or valid is None or test is None:
        raise ValueError("a part is missing")
    notes, filtered = tuple(about["split"]["notes"]), _filtered("split", about["split"]["filtered"], arrays)
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
    return Aside(_required_ids("aside.user_ids", arrays), user, item, arrays["aside.liked"].astype(bool))


def _source(about: Mapping[str, Any], arrays: Arrays) -> Interactions:
    """What the data is; of its rows, those of the training part."""
    info = None
    if "info" in about:
        names = {name: tuple(about["info"][name]) for name in ("tag_names", "feature_names")}
        found = {name: _matrix(name, about["info"][name], arrays) for name in MATRICES if name in about["info"]}
        years = arrays["years"].astype(np.int64) if "years" in arrays else None
        info = ItemInfo(titles=_read_ids("titles", arrays), years=years, **found, **names)
    timestamp = arrays.get("train.timestamp")
    return Interactions(
        user=arrays["train.user"].astype(np.int64),
        item=arrays["train.item"].astype(np.int64),
        user_ids=_required_ids("user_ids", arrays),
        item_ids=_required_ids("item_ids", arrays),
        timestamp=None if timestamp is None else timestamp.astype(np.int64),
        time=about["time"],
        name=about["name"],
        version=about["version"],
        tie_seed=about["tie_seed"],
        info=info,
        notes=tuple(about["notes"]),
        filtered=_filtered("source", about["filtered"], arrays),
    )


def _part(source: Interactions, name: str, arrays: Arrays) -> Interactions | None:
    if f"{name}.user" not in arrays:
        return None
    user, item = (arrays[f"{name}.{column}"].astype(np.int64) for column in ("user", "item"))
    timestamp = arrays.get(f"{name}.timestamp")
    time = None if timestamp is None else timestamp.astype(np.int64)
    return replace(source, user=user, item=item, timestamp=time, time="none" if time is None else source.time)


def _partition(name: str, arrays: Arrays) -> Partition | None:
    if f"{name}.users" not in arrays:
        return None
    return Partition(*(arrays[f"{name}.{part}"].astype(np.int64) for part in ("users", "offsets")))


def _filtered(whose: str, records: list[dict[str, Any]], arrays: Arrays) -> tuple[Filtered, ...]:
    found = []
    for number, record in enumerate(records):
        users, items = (_required_ids(f"{whose}.{number}.{name}", arrays) for name in ("user_ids", "item_ids"))
        found.append(Filtered(user_ids=users, item_ids=items, **record))
    return tuple(found)


def _matrix(name: str, shape: list[int], arrays: Arrays) -> sp.csr_matrix:
    own = tuple(arrays[f"{name}.{part}"] for part in ("data", "indices", "indptr"))
    matrix = sp.csr_matrix((own[0], own[1].astype(np.int32), own[2].astype(np.int32)), shape=tuple(shape))
    matrix.check_format(full_check=True)
    return matrix


def _required_ids(name: str, arrays: Arrays) -> np.ndarray:
    found = _read_ids(name, arrays)
    if found is None:
        raise ValueError(f"{name} is missing")
    return found


def _read_ids(name: str, arrays: Arrays) -> np.ndarray | None:
    found = arrays.get(name)
    if found is None or found.dtype != np.uint8:
        return found
    told = json.loads(found.tobytes())
    return np.array(told["values"], dtype=object if told["objects"] else str)
