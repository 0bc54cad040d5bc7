"""Where the files of a dataset lie, asked without fetching anything, and what tells their content apart."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from fedrec.data.catalogue import Layout, entry
from fedrec.data.companies import split_paths
from fedrec.data.fetch import cache_folder, find_folder
from fedrec.data.imported import path_of_import
from fedrec.data.stored import find_published_split
from fedrec.data.table import looks_like_path
from fedrec.errors import FedrecError


def locate(spec: str) -> Path | str | None:
    """The file or folder that `load(spec)` would read; "generated" for synthetic data; None if it is not here."""
    if len(paths := split_paths(spec)) > 1:
        return Path(paths[0]) if all(Path(path).is_file() for path in paths) else None
    if file := _find_file(spec):
        return file
    if stored := find_published_split(spec):
        return stored.available()
    try:
        known = entry(spec.partition("@")[0])
    except FedrecError:
        return None
    found = _find_layout(spec)
    return "generated" if not known.layouts else None if found is None else found[1]


def list_files(spec: str) -> list[Path]:
    """All files that `load(spec)` or `load_split(spec)` would read; none where they are not here, or generated."""
    if len(paths := split_paths(spec)) > 1:
        return [Path(path) for path in paths]
    if file := _find_file(spec):
        return [file]
    if stored := find_published_split(spec):
        folder = stored.available()
        told = () if folder is None else tuple(name for name in stored.described_by if (folder / name).is_file())
        return [] if folder is None else [folder / name for name in (*stored.files, *told)]
    found = _find_layout(spec)
    return [] if found is None else [found[1] / name for name in found[0].files]


def fingerprint(paths: Sequence[Path]) -> str:
    """A checksum of what is in these files, whatever they are called; empty without files."""
    if not paths:
        return ""
    whole = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def describe_origin(spec: str, downloaded: bool) -> str:
    """Where the data came from, for a person."""
    where = locate(spec)
    if not isinstance(where, Path):
        return where or "no longer there"
    if downloaded:
        return f"just downloaded into {where}"
    in_cache = cache_folder() in where.parents
    return f"{where} ({'the cache' if in_cache else 'your own file' if where.is_file() else 'named in FEDREC_DATA'})"


def _find_file(spec: str) -> Path | None:
    """A file that the user has given or imported; a path may contain '@'."""
    name = spec.partition("@")[0]
    paths = [Path(text) for text in (spec, name) if looks_like_path(text)] or [path_of_import(name)]
    return next((path for path in paths if path.is_file()), None)


def _find_layout(spec: str) -> tuple[Layout, Path] | None:
    """How the files of a named dataset that are here are laid out, and their folder."""
    name, _, version = spec.partition("@")
    try:
        known = entry(name)
    except FedrecError:
        return None
    wanted = [part for part in version.split("+") if part and not part.startswith("ties")]
    layouts = [layout for layout in known.layouts if not wanted or layout.version in wanted]
    found = ((layout, find_folder(known.name, layout.files)) for layout in layouts)
    return next(((layout, folder) for layout, folder in found if folder), None)
