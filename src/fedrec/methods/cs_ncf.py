"""CS-NCF: the network of CS-FedNCF on everybody's data in one place.

A reference in the comparison of IFedRec (WWW 2024). One round is one epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedrec.methods.content_model import ContentModel


@dataclass(frozen=True)
class CsNCF(ContentModel):
    name: ClassVar[str] = "cs-ncf"
    summary: ClassVar[str] = "new items: network on attributes, all data in one place"
    paper: ClassVar[str] = "Zhang et al., WWW 2024 (baseline)"
    centralised: ClassVar[bool] = True
    attributes: ClassVar[str] = "server"
    private: ClassVar[tuple[str, ...]] = ()

    init_std: float = 0.1
    lr: float = 0.001
    optimiser: Literal["sgd", "adam"] = "adam"
