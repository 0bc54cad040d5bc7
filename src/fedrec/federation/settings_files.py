"""Presets and search spaces as data: `fedca.toml` beside `fedca.py` is read when its method is defined.

[space]                         # what `fedrec tune` searches
lr = "0.001..0.1"

[presets.paper]
meaning = "One sentence on what it is for."

[presets.paper.set]
weights = "eq5"

[presets.fedca]
like = "../comparison.toml:aggregated"    # a preset of another file
"""

from __future__ import annotations

import sys
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from fedrec.federation.declarations import MethodInfo, Preset


def with_settings_beside(info: MethodInfo, module: str) -> MethodInfo:
    """Add the presets and the search space from the TOML that lies beside a module; return what there is without one.

    Presets that the method declares itself stay: a variant has those of the method that it derives from, too.
    """
    file = getattr(sys.modules.get(module), "__file__", None)  # None: defined in a session
    path = Path(file).with_suffix(".toml") if file else None
    if path is None or not path.is_file():
        return info
    space = _read(path).get("space", {})
    return replace(info, presets={**info.presets, **read_presets(path)}, space=space or info.space)


def settings_beside(file: str) -> dict[str, Any]:
    """Return `presets` and `space` of a `MethodInfo`, read from the TOML beside the module `file`."""
    path = Path(file).with_suffix(".toml")
    return {"presets": read_presets(path), "space": _read(path).get("space", {})}


def read_presets(path: Path) -> dict[str, Preset]:
    """Read the presets of a file; one that is like another has its settings and meaning."""
    return {name: _preset(path, table) for name, table in _read(path).get("presets", {}).items()}


def _preset(path: Path, table: dict[str, Any]) -> Preset:
    if "like" not in table:
        return Preset(table["meaning"], table.get("set", {}))
    place, _, name = table["like"].partition(":")
    return read_presets((path.parent / place).resolve())[name]


@cache
def _read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))
