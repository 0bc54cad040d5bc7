"""Methods in which every client has a model of its own, and what a variant of FedDAE is made of.

What other packages may use of it is named here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrec.plugins import lazily

if TYPE_CHECKING:
    from fedrec.methods.personal.feddae import FedDAE
    from fedrec.training.autoencoder import DECODER, GATE, OWN, PARTS, ROWED, SHARED, find_slope
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "fedrec.methods.personal.feddae": ["FedDAE"],
            "fedrec.training.autoencoder": ["DECODER", "GATE", "OWN", "PARTS", "ROWED", "SHARED", "find_slope"],
        },
    )

__all__ = [
    "DECODER",
    "GATE",
    "OWN",
    "PARTS",
    "ROWED",
    "SHARED",
    "FedDAE",
    "find_slope",
]
