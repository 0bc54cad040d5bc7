"""One room, one job: a module uses what lies below it and nothing else, and of another room only what is public."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "fedrec"
STUDIES = Path(__file__).parents[1] / "studies" / "src" / "fedrec_studies"
COMMON = {"errors", "plugins", "random", "schema", "splitmix", "__version__"}  # what every room may use
BELOW: dict[str, set[str]] = {
    "models": set(),
    "data": {"models"},
    "evaluation": set(),
    "kernels": set(),
    "federation": {"models", "kernels"},
    "training": {"federation", "models", "kernels"},
    "method": {"federation", "training", "models"},
    "methods": {"federation", "training", "models", "method"},
    "privacy": {"federation"},
    "secure": {"federation"},
    "experiment": {
        "data",
        "evaluation",
        "kernels",
        "models",
        "federation",
        "training",
        "methods",
        "privacy",
        "secure",
    },
    "html": {"data"},
    "serve": {"html", "data", "evaluation", "models", "federation", "experiment"},
    "report": {"html", "data", "evaluation", "federation", "methods", "privacy", "experiment", "serve"},
    "board": {"html", "data", "evaluation", "methods", "experiment", "serve", "report"},
    "deploy": {"data", "evaluation", "federation", "privacy", "secure", "experiment", "serve"},
    "testing": {"evaluation", "models", "federation", "training", "methods", "secure", "experiment"},
}
WITHIN: dict[str, set[str]] = {
    "report.charts": set(),
    "report": {"report.charts"},
    "report.pages": {"report.charts", "report"},
    "report.figures": {"report.charts", "report", "report.pages"},
}
"""Rooms within a room, and what each uses of the same room; `report` alone: what lies in it directly."""


def modules(room: str, pattern: str = "**/*.py") -> Iterator[tuple[str, ast.Module]]:
    """Every module of a room by its path, those of rooms within it too; with the pattern `*.py` without them."""
    folder = SOURCE / room.replace(".", "/")
    for path in sorted(folder.glob(pattern)) or [SOURCE / f"{room}.py"]:
        yield str(path.relative_to(SOURCE)), ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Modules of fedrec and the names taken from them, also within functions and for types alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fedrec":
            yield from ((node.module, name.name) for name in node.names)
        elif isinstance(node, ast.Import):
            yield from ((name.name, "") for name in node.names if name.name.startswith("fedrec."))


def room_of(module: str, name: str) -> str:
    """The room that an import leads to: `from fedrec import data` names it last."""
    parts = module.split(".")[1:]
    return parts[0] if parts else name


def inner_room_of(module: str, name: str) -> str:
    """The room within a room, if it leads to one."""
    parts = [*module.split(".")[1:], name]
    inner = ".".join(parts[:2])
    return inner if inner in WITHIN else parts[0]


def private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def private_uses(tree: ast.Module, own: set[str]) -> Iterator[str]:
    """Private names that are imported from elsewhere, or asked of something that is neither `self` nor made here."""
    for module, name in imported(tree):
        if private(name) or any(map(private, module.split("."))):
            yield f"{module}.{name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and private(node.attr) and node.attr not in own:
            yield f"{ast.unparse(node.value)}.{node.attr}"


def defined(tree: ast.Module) -> Iterator[str]:
    """What functions, classes and fields a module names itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def commands_started(tree: ast.Module) -> Iterator[str]:
    """What a module that starts processes starts of fedrec: the word after -m in a list of words, or the command."""
    starts = any(isinstance(node, ast.Import) and node.names[0].name == "subprocess" for node in ast.walk(tree))
    for node in ast.walk(tree) if starts else ():
        if isinstance(node, ast.List | ast.Tuple):
            words = [part.value if isinstance(part, ast.Constant) else None for part in node.elts]
            yield from (str(after) for word, after in pairwise(words) if word == "-m")
            yield from (word for word in words if word == "fedrec")


@pytest.mark.parametrize("room", BELOW)
def test_a_room_uses_only_what_lies_below_it(room: str) -> None:
    legal = BELOW[room] | COMMON | {room}
    found = {
        f"{path} imports {used}"
        for path, tree in modules(room)
        for used in (room_of(*what) for what in imported(tree))
        if used not in legal
    }
    assert not found


@pytest.mark.parametrize("room", WITHIN)
def test_a_room_within_a_room_uses_only_its_share_of_it(room: str) -> None:
    legal, around = WITHIN[room] | {room}, room.split(".")[0]
    found = {
        f"{path} imports {used}"
        for path, tree in modules(room, "*.py")
        for used in (inner_room_of(*what) for what in imported(tree))
        if used.split(".")[0] == around and used not in legal and path != f"{room}/__init__.py"
    }
    assert not found, "only the face of a room, its __init__.py, names what lies in all of it"


@pytest.mark.parametrize("room", [*BELOW, "commands", "api", "cli"])
def test_what_is_private_stays_in_its_room(room: str) -> None:
    """Nothing private is imported from another module, nor asked of an object whose class another room defines."""
    own = {name for _, tree in modules(room) for name in defined(tree)}
    found = {f"{path} uses {used}" for path, tree in modules(room) for used in private_uses(tree, own)}
    assert not found


@pytest.mark.parametrize("room", BELOW)
def test_a_process_is_started_of_a_room_below(room: str) -> None:
    """Not of the command line, which stands above all others."""
    legal = BELOW[room] | {room}
    found = {
        f"{path} starts {module}"
        for path, tree in modules(room)
        for module in commands_started(tree)
        if module.split(".")[0] == "fedrec" and room_of(module, "cli") not in legal
    }
    assert not found


@pytest.mark.parametrize("room", ["report", "board"])
def test_a_report_starts_no_training(room: str) -> None:
    """What trains is asked for by a command or from Python, and is handed in finished."""
    trains = {"execute", "find_references", "references_at_hand", "run_and_report"}
    found = {f"{path} uses {name}" for path, tree in modules(room) for _, name in imported(tree) if name in trains}
    assert not found
    experiment = {node.name for _, tree in modules("experiment") for node in ast.walk(tree) if hasattr(node, "name")}
    assert trains - {"run_and_report"} <= experiment, "the names above are those in use"


def test_the_walk_sees_what_it_should() -> None:
    """Of the kinds of trespass that this file is for, one of each."""
    tree = ast.parse(
        "from fedrec.cli import main\nfrom fedrec.serve import _find\nimport subprocess\n"
        "def f(recommender):\n    subprocess.run([x, '-m', 'fedrec.cli', 'run'])\n    return recommender._lists(1)\n"
        "class C:\n    def _own(self): return self._own()\n"
    )
    assert [room_of(*what) for what in imported(tree)] == ["cli", "serve"]
    assert list(commands_started(tree)) == ["fedrec.cli"]
    assert set(private_uses(tree, set(defined(tree)))) == {"fedrec.serve._find", "recommender._lists"}


def test_no_room_is_forgotten() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and (path / "__init__.py").exists()} | {"method"}
    assert rooms - set(BELOW) == {"commands"}, "what the command line does may use everything"
    inner = {f"report.{path.parent.name}" for path in (SOURCE / "report").glob("*/__init__.py")}
    assert inner == set(WITHIN) - {"report"}


def test_three_modules_alone_import_flower() -> None:
    """Everything else can be installed, imported and tested without it."""
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr")
        or (isinstance(node, ast.Import) and node.names[0].name.split(".")[0] == "flwr")
    }
    assert found == {"deploy/flower_app.py", "deploy/flower_gate.py", "deploy/flower_worker.py"}


def test_nothing_is_used_in_a_circle() -> None:
    """Room by room: what a room uses must not use it in turn."""
    for rooms in (BELOW, WITHIN):
        for room, below in rooms.items():
            for other in below & set(rooms):
                assert room not in rooms[other], (room, other)
