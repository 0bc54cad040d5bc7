"""Interactions as plain arrays, in the smallest type that holds them, and JSON: how a run folder keeps its data.

Such a file tells of single users, so its owner alone can read it.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from fedrec.data import Filtered, Interactions, ItemInfo
from fedrec.data.atomic import atomic_file
from fedrec.errors import FedrecError
from fedrec.schema import COUNT, TEXT, TEXTS, Shape

FILTERED: list[Shape] = [{"rule": TEXT, "users": COUNT, "items": COUNT, "rows": COUNT, "remedy": TEXT}]
SOURCE: Shape = {"name": TEXT, "version": TEXT, "tie_seed": COUNT, "time": TEXT, "notes": TEXTS, "filtered": FILTERED}
MATRICES = ("tags", "features")
UNREADABLE = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    MemoryError,
    RecursionError,
    zipfile.BadZipFile,
    NotImplementedError,
    FedrecError,
)
"""What a file that is damaged, or was never one of ours, may raise while it is read."""

Arrays = dict[str, np.ndarray]


def save(path: Path, about: Mapping[str, Any], arrays: Arrays) -> None:
    with atomic_file(path, private=True) as temporary, temporary.open("wb") as file:
        # Not compressed, because `load` refuses what is: a small file could expand without limit.
        np.savez(file, allow_pickle=False, **arrays, about=_text(about))


def load(path: Path) -> tuple[dict[str, Any], Arrays]:
    """What `save` has written; one of the errors `UNREADABLE` for anything else."""
    with zipfile.ZipFile(path) as members:
        # A compressed member is none of ours, and could fill the memory when it is read.
        if any(member.compress_type != zipfile.ZIP_STORED for member in members.infolist()):
            raise ValueError("not ours, and of any size")
    # Pickles can run code, and a run folder may come from a stranger.
    with np.load(path, allow_pickle=False) as members:
        arrays = {name: members[name] for name in members.files}
    return json.loads(arrays["about"].tobytes()), arrays


# -- writing --


def pack_source(source: Interactions, arrays: Arrays) -> dict[str, Any]:
    arrays |= {"user_ids": pack_ids(source.user_ids), "item_ids": pack_ids(source.item_ids)}
    about: dict[str, Any] = {name: getattr(source, name) for name in ("name", "version", "tie_seed", "time", "notes")}
    about |= {"columns": dict(source.columns), "filtered": pack_filtered("source", source.filtered, arrays)}
    if source.silos:
        names = [source.silos[str(user)] for user in source.user_ids.tolist()]
        about["silos"], arrays["silos"] = np.unique(names).tolist(), small(np.unique(names, return_inverse=True)[1])
    info = source.info
    if info is not None:
        about["info"] = {"tag_names": info.tag_names, "feature_names": info.feature_names}
        arrays |= {} if info.titles is None else {"titles": pack_ids(info.titles)}
        arrays |= {} if info.years is None else {"years": small(info.years)}
        for name in MATRICES:
            if (matrix := getattr(info, name)) is not None:
                own = {"data": matrix.data, "indices": small(matrix.indices), "indptr": small(matrix.indptr)}
                arrays |= {f"{name}.{part}": value for part, value in own.items()}
                about["info"][name] = matrix.shape
    return about


def pack_rows(name: str, rows: Interactions, arrays: Arrays) -> None:
    arrays |= {f"{name}.user": small(rows.user), f"{name}.item": small(rows.item)}
    arrays |= {} if rows.timestamp is None else {f"{name}.timestamp": small(rows.timestamp)}


def pack_filtered(whose: str, filtered: tuple[Filtered, ...], arrays: Arrays) -> list[dict[str, Any]]:
    for number, one in enumerate(filtered):
        arrays |= {
            f"{whose}.{number}.user_ids": pack_ids(one.user_ids),
            f"{whose}.{number}.item_ids": pack_ids(one.item_ids),
        }
    return [{**one.to_dict(), "remedy": one.remedy} for one in filtered]


def is_plain(ids: np.ndarray) -> bool:
    """Whether all of them are words or numbers."""
    return ids.dtype.kind in "iufU" or all(isinstance(name, str | int | float) for name in ids.tolist())


def small(values: np.ndarray) -> np.ndarray:
    """Whole numbers in as few bytes as they need."""
    if not len(values):
        return values.astype(np.uint8)
    return values.astype(np.result_type(np.min_scalar_type(values.min()), np.min_scalar_type(values.max())))


def pack_ids(values: np.ndarray) -> np.ndarray:
    """Numbers as they are; words as JSON, where a long one does not widen all others."""
    if values.dtype.kind in "UO":
        return _text({"objects": values.dtype.kind == "O", "values": values.tolist()})
    # Bytes mean JSON text when they are read back, so numbers of that type are widened.
    return values.astype(np.int64) if values.dtype == np.uint8 else values


def _text(value: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


# -- reading --


def unpack_source(about: Mapping[str, Any], rows: str, arrays: Arrays) -> Interactions:
    """What the data is, with the rows of this name."""
    info = None
    if "info" in about:
        names = {name: tuple(about["info"][name]) for name in ("tag_names", "feature_names")}
        found = {name: _matrix(name, about["info"][name], arrays) for name in MATRICES if name in about["info"]}
        years = arrays["years"].astype(np.int64) if "years" in arrays else None
        info = ItemInfo(titles=_read_ids("titles", arrays), years=years, **found, **names)
    timestamp, silos, user_ids = arrays.get(f"{rows}.timestamp"), None, unpack_ids("user_ids", arrays)
    if "silos" in about:
        silos = {str(user): about["silos"][at] for user, at in zip(user_ids.tolist(), arrays["silos"], strict=True)}
    return Interactions(
        user=arrays[f"{rows}.user"].astype(np.int64),
        item=arrays[f"{rows}.item"].astype(np.int64),
        user_ids=user_ids,
        item_ids=unpack_ids("item_ids", arrays),
        timestamp=None if timestamp is None else timestamp.astype(np.int64),
        time=about["time"],
        name=about["name"],
        version=about["version"],
        tie_seed=about["tie_seed"],
        info=info,
        notes=tuple(about["notes"]),
        filtered=unpack_filtered("source", about["filtered"], arrays),
        columns=about.get("columns", {}),
        silos=silos,
    )


def unpack_rows(source: Interactions, name: str, arrays: Arrays) -> Interactions | None:
    """Other rows of the same data; None where there are none of this name."""
    if f"{name}.user" not in arrays:
        return None
    user, item = (arrays[f"{name}.{column}"].astype(np.int64) for column in ("user", "item"))
    timestamp = arrays.get(f"{name}.timestamp")
    time = None if timestamp is None else timestamp.astype(np.int64)
    return replace(source, user=user, item=item, timestamp=time, time="none" if time is None else source.time)


def unpack_filtered(whose: str, records: list[dict[str, Any]], arrays: Arrays) -> tuple[Filtered, ...]:
    found = []
    for number, record in enumerate(records):
        users, items = (unpack_ids(f"{whose}.{number}.{name}", arrays) for name in ("user_ids", "item_ids"))
        found.append(Filtered(user_ids=users, item_ids=items, **record))
    return tuple(found)


def _matrix(name: str, shape: list[int], arrays: Arrays) -> sp.csr_matrix:
    own = tuple(arrays[f"{name}.{part}"] for part in ("data", "indices", "indptr"))
    matrix = sp.csr_matrix((own[0], own[1].astype(np.int32), own[2].astype(np.int32)), shape=tuple(shape))
    # Indices beyond the shape would make scipy read outside its arrays.
    matrix.check_format(full_check=True)
    return matrix


def unpack_ids(name: str, arrays: Arrays) -> np.ndarray:
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
