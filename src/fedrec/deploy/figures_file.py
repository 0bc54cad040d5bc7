"""A file of figures about deployments: a section for each kind of measurement, a row for each case."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrec.data.atomic import atomic_file
from fedrec.errors import FedrecError

Row = Mapping[str, Any]


def record(path: Path, section: str, rows: Sequence[Row], key: Sequence[str]) -> None:
    """Put rows into a section; one that is there under the same key is replaced."""
    found = read_figures(path) if path.exists() else {}
    names = [tuple(row[name] for name in key) for row in rows]
    others = [row for row in found.get(section, []) if tuple(row[name] for name in key) not in names]
    with atomic_file(path) as temporary:
        temporary.write_text(json.dumps(found | {section: [*others, *rows]}, indent=1) + "\n", encoding="utf-8")


def read_figures(path: Path) -> dict[str, list[dict[str, Any]]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FedrecError(f"cannot read {path} ({error})") from None
    if not isinstance(found, dict) or not all(isinstance(rows, list) for rows in found.values()):
        raise FedrecError(f"{path} holds no figures of deployments; choose another --out")
    return found
