"""Use a finished run or a fitted model: lists, an HTTP service, files for other programs."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from fedrec.plugins import lazily

RENAMED = {"Folded": "FoldInResult", "NotKnown": "UnknownId", "Similar": "SimilarItem"}

if TYPE_CHECKING:
    from fedrec.data.attributes import Arrival
    from fedrec.serve.input_files import read_arrivals, read_history, read_ids
    from fedrec.serve.item_filter import ItemFilter, UnknownId
    from fedrec.serve.list_service import Service
    from fedrec.serve.model_files import FORMATS, export
    from fedrec.serve.openers import OPENERS, Lists, open_lists
    from fedrec.serve.recommender import FoldInResult, Recommendation, Recommender, SimilarItem
    from fedrec.serve.web_server import Server
else:
    _import_name, __dir__ = lazily(
        __name__,
        {
            "fedrec.data.attributes": ["Arrival"],
            "fedrec.serve.item_filter": ["ItemFilter", "UnknownId"],
            "fedrec.serve.list_service": ["Service"],
            "fedrec.serve.web_server": ["Server"],
            "fedrec.serve.model_files": ["FORMATS", "export"],
            "fedrec.serve.openers": ["Lists", "OPENERS", "open_lists"],
            "fedrec.serve.input_files": ["read_arrivals", "read_history", "read_ids"],
            "fedrec.serve.recommender": ["FoldInResult", "Recommendation", "Recommender", "SimilarItem"],
        },
    )

    def __getattr__(name: str) -> Any:
        """Import a name, also by what it was called in version 0.2."""
        if name in RENAMED:
            warnings.warn(f"fedrec.serve.{name} is now {RENAMED[name]}", DeprecationWarning, stacklevel=2)
        return _import_name(RENAMED.get(name, name))


__all__ = [
    "FORMATS",
    "OPENERS",
    "Arrival",
    "FoldInResult",
    "ItemFilter",
    "Lists",
    "Recommendation",
    "Recommender",
    "Server",
    "Service",
    "SimilarItem",
    "UnknownId",
    "export",
    "open_lists",
    "read_arrivals",
    "read_history",
    "read_ids",
]
