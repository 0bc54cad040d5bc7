"""All methods of the library in the worlds of their tests."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

from fedrec.federation.clients import ClientData
from fedrec.testing import MethodTests


def federated_worlds() -> Iterator[tuple[str, MethodTests, ClientData]]:
    """Every conformance test of a federated method, with each of its worlds."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        module = importlib.import_module(f"methods.{path.stem}")
        for name, kind in sorted(vars(module).items()):
            if not isinstance(kind, type) or not issubclass(kind, MethodTests) or not hasattr(kind, "method"):
                continue
            if kind.__module__ == module.__name__ and not kind.method.info.centralised:
                for data in kind().worlds():
                    yield f"{path.stem}::{name}, {data.world.clients} clients", kind(), data
