"""Where the files of a dataset lie, asked without fetching anything."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrec.data import cache_folder, entry
from fedrec.data.fetch import find
from fedrec.data.imported import imported_path
from fedrec.data.table import looks_like_path
from fedrec.errors import FedrecError


def at_hand(config: Mapping[str, Any]) -> bool:
    """Whether a run's data can be read again here and now."""
    if config.get("train"):
        files = (config.get(name) for name in ("train", "valid", "test"))
        return all(Path(file).is_file() for file in files if file)
    return place(str(config["data"])) is not None


def place(spec: str) -> Path | str | None:
    """The file or folder that `load(spec)` would read; "generated" for synthetic data; None if it is not here."""
    if looks_like_path(spec) and Path(spec).is_file():
        return Path(spec)
    name, _, version = spec.partition("@")
    if looks_like_path(name):
        return Path(name) if Path(name).is_file() else None
    if imported_path(name).is_file():
        return imported_path(name)
    try:
        known = entry(name)
    except FedrecError:
        return None
    if not known.layouts:
        return "generated"
    wanted = [part for part in version.split("+") if part and not part.startswith("ties")]
    layouts = [layout for layout in known.layouts if not wanted or layout.version in wanted]
    found = (find(known.name, layout.files) for layout in layouts)
    return next((folder for folder in found if folder), None)


def in_words(spec: str, downloaded: bool) -> str:
    """Where the data came from, for a person."""
    where = place(spec)
    if not isinstance(where, Path):
        return where or "not here any more"
    if downloaded:
        return f"just downloaded into {where}"
    in_cache = cache_folder() in where.parents
    return f"{where} ({'the cache' if in_cache else 'your own file' if where.is_file() else 'named in FEDREC_DATA'})"
