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
    from fedrec.data import load
    from fedrec.experiment.run import Result, run
else:
    __getattr__, __dir__ = lazily(
        __name__, {"load": "fedrec.data", "Result": "fedrec.experiment.run", "run": "fedrec.experiment.run"}
    )

__all__ = ["FedrecError", "Result", "__version__", "load", "run"]
