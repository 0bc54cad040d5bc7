"""No test's outcome depends on how fast or busy the machine is: what would make it so is refused where it is written.

Wait for what happens with `waiting.wait_until` and `waiting.wait_for_end`, bound what may hang by `waiting.GENEROUS`,
give code that measures a clock of the test's own, count work. How fast something is says `fedrec bench`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]
TESTS = [
    path for place in ("tests", "examples/**/tests") for path in ROOT.glob(f"{place}/**/*.py") if path != Path(__file__)
]
CLOCK, BOUND, MEASURED, DEADLINE, MEMORY, PORT = "clock", "bound", "measured", "deadline", "memory", "port"
ALLOWED = {
    ("tests/waiting.py", CLOCK): "it is what everybody else waits with",
    ("tests/commands/test_signals.py", CLOCK): "a round looks now and then whether the test lets it end",
    ("tests/conftest.py", DEADLINE): "it says once that there is none",
}
CLOCKS = {"time", "timeit", "sched"}
SCALES = {"psutil", "tracemalloc"}
NOW = {"now", "today", "utcnow"}
WAITS = {"wait", "join", "result", "acquire", "settimeout", "setdefaulttimeout"}
SECONDS = {"seconds", "took", "elapsed", "spent", "duration"}


def faults(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Kinds and lines of what depends on the machine, in code and in the code that it passes on as text."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        yield from ((kind, line) for kind in _kinds(node))
        if isinstance(node, ast.Constant | ast.JoinedStr) and (inner := _program(node)) is not None:
            yield from ((kind, line + at - 1) for kind, at in faults(inner))


def _kinds(node: ast.AST) -> Iterator[str]:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
    yield from (CLOCK for name in names if name in CLOCKS)
    yield from (MEMORY for name in names if name in SCALES)
    if isinstance(node, ast.Attribute) and node.attr == "getrusage":
        yield MEMORY
    if isinstance(node, ast.Call):
        yield from _kinds_of_call(node)
    if isinstance(node, ast.Assert):
        yield from (MEASURED for part in ast.walk(node.test) if isinstance(part, ast.Compare) and _bounds_seconds(part))


def _kinds_of_call(call: ast.Call) -> Iterator[str]:
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    given = {word.arg: word.value for word in call.keywords}
    if name in NOW:
        yield CLOCK
    if "timeout" in given and not _endless(given["timeout"]):
        yield BOUND
    if isinstance(call.func, ast.Attribute) and name in WAITS and call.args and _number(call.args[0]) is not None:
        yield BOUND
    if name in ("settings", "register_profile") and "deadline" in given:
        yield DEADLINE
    if _number(given.get("port")):
        yield PORT


def _endless(bound: ast.expr) -> bool:
    """Whether only what hangs comes to this bound."""
    name = getattr(bound, "attr", getattr(bound, "id", ""))
    return name == "GENEROUS" or (isinstance(bound, ast.Constant) and bound.value is None)


def _number(value: ast.expr | None) -> float | None:
    constant = value.value if isinstance(value, ast.Constant) else None
    return constant if isinstance(constant, int | float) and not isinstance(constant, bool) else None


def _bounds_seconds(compare: ast.Compare) -> bool:
    """Whether seconds that were measured are compared with a number; that there are any, with 0, says nothing."""
    orders = [isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for operator in compare.ops]
    sides = [compare.left, *compare.comparators]
    return any(
        ordered and _number(number) and SECONDS & _words(measured)
        for ordered, left, right in zip(orders, sides, sides[1:], strict=False)
        for number, measured in ((left, right), (right, left))
    )


def _words(node: ast.expr) -> set[str]:
    parts = list(ast.walk(node))
    found = {part.id for part in parts if isinstance(part, ast.Name)}
    found |= {part.attr for part in parts if isinstance(part, ast.Attribute)}
    return found | {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}


def _program(node: ast.Constant | ast.JoinedStr) -> ast.Module | None:
    """What a text says in Python; None where it is none."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    text = "".join(str(part.value) if isinstance(part, ast.Constant) else "_" for part in parts)
    try:
        return ast.parse(text) if "import" in text else None
    except (SyntaxError, ValueError):
        return None


def test_nothing_depends_on_the_machine() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), *fault)
        for path in TESTS
        for fault in faults(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert not sorted(f"{place}:{line}: {kind}" for place, kind, line in found if (place, kind) not in ALLOWED)
    assert set(ALLOWED) == {(place, kind) for place, kind, _ in found if (place, kind) in ALLOWED}, "an idle exception"


def test_properties_have_no_deadline() -> None:
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check


@pytest.mark.parametrize(
    ("code", "kinds"),
    [
        ("import time", [CLOCK]),
        ("from time import perf_counter", [CLOCK]),
        ("date.today()", [CLOCK]),
        ("subprocess.run([python, '-c', 'import time; time.sleep(1)'])", [CLOCK]),
        ("SCRIPT = f'''\nimport sys, time\nprint({1}, time.monotonic())\n'''", [CLOCK]),
        ("subprocess.run(words, timeout=60)", [BOUND]),
        ("subprocess.run(words, timeout=within + 30)", [BOUND]),
        ("process.wait(10)", [BOUND]),
        ("thread.join(5.0)", [BOUND]),
        ("line.settimeout(3)", [BOUND]),
        ("assert simulator.round(0).seconds < 10", [MEASURED]),
        ("assert row['seconds'] <= 0.5", [MEASURED]),
        ("assert all(0 < spent < 60 for spent in found)", [MEASURED]),
        ("assert 5 > float(took)", [MEASURED]),
        ("@settings(max_examples=5, deadline=400)\ndef test(): ...", [DEADLINE]),
        ("settings.register_profile('here', deadline=None)", [DEADLINE]),
        ("import tracemalloc", [MEMORY]),
        ("resource.getrusage(resource.RUSAGE_SELF)", [MEMORY]),
        ("Server(service, port=8000)", [PORT]),
    ],
)
def test_what_depends_on_the_machine_is_seen(code: str, kinds: list[str]) -> None:
    assert [kind for kind, _ in faults(ast.parse(code))] == kinds


@pytest.mark.parametrize(
    "code",
    [
        "subprocess.run(words, timeout=GENEROUS)",
        "subprocess.run(words, timeout=waiting.GENEROUS)",
        "socket.create_connection(address, timeout=None)",
        "process.wait(GENEROUS)",
        "process.wait()",
        "', '.join(words)",
        "assert 0 < row['seconds']",
        "assert row['seconds'] == row['rounds'] * row['seconds_round']",
        "assert summary['seconds'] < other['seconds']['total'] or True",
        "Server(service, port=0)",
        "'''It takes some time to import what is heavy.'''",
        "time = 3\nassert time < 5",
    ],
)
def test_what_does_not_is_let_through(code: str) -> None:
    assert not list(faults(ast.parse(code)))
