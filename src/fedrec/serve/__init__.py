"""A finished run or a fitted model at work: lists, an HTTP service, files for other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrec.plugins import lazily

if TYPE_CHECKING:
    from fedrec.data.attributes import Arrival
    from fedrec.serve.http_server import Server
    from fedrec.serve.http_service import Service
    from fedrec.serve.model_files import FORMATS, export
    from fedrec.serve.openers import OPENERS, Lists, open_lists
    from fedrec.serve.reading import read_arrivals, read_history, read_ids
    from fedrec.serve.recommender import Folded, NotKnown, Recommendation, Recommender, Similar
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "fedrec.data.attributes": ["Arrival"],
            "fedrec.serve.http_server": ["Server"],
            "fedrec.serve.http_service": ["Service"],
            "fedrec.serve.model_files": ["FORMATS", "export"],
            "fedrec.serve.openers": ["Lists", "OPENERS", "open_lists"],
            "fedrec.serve.reading": ["read_arrivals", "read_history", "read_ids"],
            "fedrec.serve.recommender": ["Folded", "NotKnown", "Recommendation", "Recommender", "Similar"],
        },
    )

__all__ = [
    "FORMATS",
    "OPENERS",
    "Arrival",
    "Folded",
    "Lists",
    "NotKnown",
    "Recommendation",
    "Recommender",
    "Server",
    "Service",
    "Similar",
    "export",
    "open_lists",
    "read_arrivals",
    "read_history",
    "read_ids",
]
