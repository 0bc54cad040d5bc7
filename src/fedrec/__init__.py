"""fedrec: federated recommendation, honestly evaluated."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from fedrec.errors import FedrecError
from fedrec.version import __version__

if TYPE_CHECKING:
    from fedrec.data import load
    from fedrec.experiment.run import Result, run

# Threads that wait by spinning take the cores away from whoever has work; torch reads this when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

_LAZY = {"run": "fedrec.experiment.run", "Result": "fedrec.experiment.run", "load": "fedrec.data"}

__all__ = ["FedrecError", "Result", "__version__", "load", "run"]


def __getattr__(name: str) -> Any:
    # torch takes seconds to import; `fedrec --version` should not.
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'fedrec' has no attribute '{name}'")
