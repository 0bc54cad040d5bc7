"""fedrec: federated recommendation, honestly evaluated."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fedrec.errors import FedrecError
from fedrec.lazy import lazily
from fedrec.version import __version__

# Threads that wait by spinning take the cores away from whoever has work; torch reads this when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if TYPE_CHECKING:
    from fedrec.api import Interactions, Recommender, Result, Results, compare, datasets, load, metric, register, run
else:
    _CLASSES = ("Interactions", "Recommender", "Result", "Results")
    _FUNCTIONS = ("compare", "datasets", "load", "metric", "register", "run")
    __getattr__, __dir__ = lazily(__name__, dict.fromkeys((*_CLASSES, *_FUNCTIONS), "fedrec.api"))

__all__ = [
    "FedrecError",
    "Interactions",
    "Recommender",
    "Result",
    "Results",
    "__version__",
    "compare",
    "datasets",
    "load",
    "metric",
    "register",
    "run",
]
