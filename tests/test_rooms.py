"""One room, one job: a module imports what lies below it and nothing else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "fedrec"
COMMON = {"errors", "lazy", "lloyd", "random", "splitmix", "version"}  # what every room may use
BELOW: dict[str, set[str]] = {
    "data": set(),
    "evaluation": set(),
    "models": set(),
    "kernels": set(),
    "federation": {"models", "kernels"},
    "training": {"federation", "models", "kernels"},
    "methods": {"federation", "training", "models"},
    "privacy": {"federation"},
    "experiment": {"data", "evaluation", "models", "federation", "training", "methods", "privacy"},
    "recommend": {"data", "evaluation", "federation", "experiment"},
    "report": {
        "data",
        "evaluation",
        "federation",
        "methods",
        "privacy",
        "experiment",
        "recommend",
        "endings",
        "visible",
    },
    "reproduce": {"data", "evaluation", "federation", "methods", "experiment", "report"},
    "audit": {"data", "evaluation", "kernels", "federation", "training", "methods", "experiment", "report"},
    "testing": {"models", "federation", "training", "methods", "experiment"},
}


def imports(path: Path) -> Iterator[str]:
    """Rooms of fedrec that a module uses, also within functions and for types alone."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "fedrec":
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fedrec."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (name.name.split(".")[1] for name in node.names if name.name.startswith("fedrec."))


def modules(room: str) -> list[Path]:
    return sorted((SOURCE / room).rglob("*.py")) or [SOURCE / f"{room}.py"]


@pytest.mark.parametrize("room", BELOW)
def test_a_room_uses_only_what_lies_below_it(room: str) -> None:
    legal = BELOW[room] | COMMON | {room}
    found = {f"{path.relative_to(SOURCE)} imports {used}" for path in modules(room) for used in imports(path)
             if used not in legal}  # fmt: skip
    assert not found


def test_no_room_is_forgotten() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert rooms - set(BELOW) == {"commands"}, "what the command line does may use everything"


def test_nothing_is_used_in_a_circle() -> None:
    """Room by room: what a room uses must not use it in turn."""
    for room, below in BELOW.items():
        for other in below & set(BELOW):
            assert room not in BELOW[other], (room, other)
