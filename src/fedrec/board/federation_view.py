"""A federation: its nodes, who answered, what was refused, how it went, from the folder of its server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedrec.schema import COUNT, TEXT, Shape, check

NODES: list[Shape] = [{"name": TEXT, "start": COUNT, "clients": COUNT, "users": COUNT, "interactions": COUNT}]


def view_federation(folder: Path) -> dict[str, Any] | None:
    """Describe the federation of a run folder; None where the folder is that of a simulation."""
    path = folder / "nodes.json"
    if not path.is_file():
        return None
    try:
        nodes = json.loads(path.read_text(encoding="utf-8"))
        check("nodes", nodes, NODES)
    except PermissionError:
        return {"nodes": [], "note": "nodes.json can be read by its owner only"}
    except (OSError, ValueError):
        return {"nodes": [], "note": "nodes.json is damaged, or being written"}
    return {"nodes": nodes, "note": ""}
