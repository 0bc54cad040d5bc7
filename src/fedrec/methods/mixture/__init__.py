"""Methods that give every client its own mixture of all models, and what a variant of FedCA is made of.

What other packages may use of it is named here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrec.plugins import lazily

if TYPE_CHECKING:
    from fedrec.methods.mixture.aggregation import simplex_project, square_distances
    from fedrec.methods.mixture.fedca import FedCA
    from fedrec.methods.mixture.fedca_terms import (
        Rows,
        angles,
        first_axes,
        greedy_pairs,
        largest_vectors,
        mean_angles,
        mean_rows,
        represent_rows,
        sampled_items,
        upright,
    )
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "fedrec.methods.mixture.aggregation": ["simplex_project", "square_distances"],
            "fedrec.methods.mixture.fedca": ["FedCA"],
            "fedrec.methods.mixture.fedca_terms": [
                "Rows",
                "angles",
                "first_axes",
                "greedy_pairs",
                "largest_vectors",
                "mean_angles",
                "mean_rows",
                "represent_rows",
                "sampled_items",
                "upright",
            ],
        },
    )

__all__ = [
    "FedCA",
    "Rows",
    "angles",
    "first_axes",
    "greedy_pairs",
    "largest_vectors",
    "mean_angles",
    "mean_rows",
    "represent_rows",
    "sampled_items",
    "simplex_project",
    "square_distances",
    "upright",
]
