"""fedrec: federated recommendation, honestly evaluated."""

from __future__ import annotations

__version__ = "0.2.0.dev0"  # before the imports: other modules read it

import os
from typing import TYPE_CHECKING

from fedrec.errors import FedrecError
from fedrec.plugins import lazily

# Threads that wait by spinning take the cores away from whoever has work; torch reads this when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if TYPE_CHECKING:
    from fedrec.api import (
        Interactions,
        Recommender,
        Result,
        Results,
        StopRun,
        advise,
        compare,
        datasets,
        fit,
        load,
        metric,
        protocol,
        register,
        run,
        sweep,
        tune,
    )
else:
    _NAMES = (
        "Interactions",
        "Recommender",
        "Result",
        "Results",
        "StopRun",
        "advise",
        "compare",
        "datasets",
        "fit",
        "load",
        "metric",
        "protocol",
        "register",
        "run",
        "sweep",
        "tune",
    )
    __getattr__, __dir__ = lazily(__name__, {"fedrec.api": _NAMES})

__all__ = [
    "FedrecError",
    "Interactions",
    "Recommender",
    "Result",
    "Results",
    "StopRun",
    "__version__",
    "advise",
    "compare",
    "datasets",
    "fit",
    "load",
    "metric",
    "protocol",
    "register",
    "run",
    "sweep",
    "tune",
]
