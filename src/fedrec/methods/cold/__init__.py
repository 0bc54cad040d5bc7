"""Methods that rank items by their attributes; what other packages may use of them is named here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrec.plugins import lazily

if TYPE_CHECKING:
    from fedrec.methods.cold.content_model import ContentTrainer
    from fedrec.methods.cold.cs_pfedrec import CsPFedRec
    from fedrec.methods.cold.ifedrec import IFedRec
    from fedrec.methods.cold.ifedrec_lan import IFedRecLAN
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "fedrec.methods.cold.content_model": ["ContentTrainer"],
            "fedrec.methods.cold.cs_pfedrec": ["CsPFedRec"],
            "fedrec.methods.cold.ifedrec": ["IFedRec"],
            "fedrec.methods.cold.ifedrec_lan": ["IFedRecLAN"],
        },
    )

__all__ = ["ContentTrainer", "CsPFedRec", "IFedRec", "IFedRecLAN"]
