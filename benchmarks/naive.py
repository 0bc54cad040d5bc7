"""The naive references of the tests, timed for `fedrec bench`: `python benchmarks/naive.py '{"method": "fedrap"}' 12`.

A reference works on so many clients, or on all, with the method's usual settings. Prints {"seconds": ..., "users": ...,
"share": ...}: of a round, and these clients' share of all interactions; seconds are null where a method has no
reference, or one that knows other settings only.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedrec.errors import FedrecError
from fedrec.federation.contract import Method
from fedrec_studies.bench.machine import print_result
from fedrec_studies.bench.plain_programs import seconds_of_a_round, select_clients, select_few, units_of
from fedrec_studies.bench.task import Task

TESTS = Path(__file__).resolve().parents[1] / "tests"
OTHER_SETTINGS = (
    AttributeError,
    AssertionError,
    FedrecError,
    RuntimeError,
    TypeError,
    ValueError,
    IndexError,
    KeyError,
)


def naive(task: Task, users: int, clock: Callable[[], float] = time.perf_counter) -> dict[str, Any]:
    run = task.run(task.interactions())
    data, share = select_clients(run.simulator.data, users)
    whole = users == units_of(run)
    few = select_clients(run.simulator.data, select_few(users))[0] if whole else data
    for kind in _kinds(run.method):
        made = kind()
        made.method = _with_settings(kind.method, run.method)
        try:
            if made.reference(few, 1):  # which also takes what only a first call takes
                took = seconds_of_a_round(partial(made.reference, data), 0 if whole else 1, clock)
                return {"seconds": took, "users": len(data.users), "share": share}
        except OTHER_SETTINGS:
            continue
    return {"seconds": None, "users": len(data.users), "share": share}


def _with_settings(tested: Method, wanted: Method) -> Method:
    """The tested method, which may be given attributes of items by its class, with the settings that are measured."""
    return replace(tested, **{field.name: getattr(wanted, field.name) for field in fields(wanted) if field.init})


def _kinds(method: Method) -> Iterator[Any]:
    """Classes of tests of this method."""
    for path in sorted((TESTS / "methods").glob("test_*.py")):
        if method.info.name.replace("-", "_") not in path.read_text(encoding="utf-8").lower():
            continue
        try:
            module = importlib.import_module(f"methods.{path.stem}")
        except ImportError:
            continue  # it needs what only tests need
        for kind in vars(module).values():
            of = getattr(kind, "method", None) if isinstance(kind, type) else None
            if isinstance(of, Method) and of.info.name == method.info.name and hasattr(kind, "reference"):
                yield kind


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS))
    sys.exit(print_result(lambda: naive(Task(**json.loads(sys.argv[1])), int(sys.argv[2]))))
