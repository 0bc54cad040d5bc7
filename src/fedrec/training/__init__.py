"""Local training and the samples it draws.

What other packages may use of it is named here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrec.plugins import lazily

if TYPE_CHECKING:
    from fedrec.training.aligned_training import AlignedTrainer
    from fedrec.training.samples import Samples
    from fedrec.training.sequences import SequenceSamples
    from fedrec.training.triples import Triples
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "fedrec.training.aligned_training": ["AlignedTrainer"],
            "fedrec.training.samples": ["Samples"],
            "fedrec.training.sequences": ["SequenceSamples"],
            "fedrec.training.triples": ["Triples"],
        },
    )

__all__ = [
    "AlignedTrainer",
    "Samples",
    "SequenceSamples",
    "Triples",
]
