"""CS-FedNCF: FedNCF whose item embedding is one layer on the item's attributes, so that new items have one too.

The cold-start variant of FedNCF in the comparison of IFedRec (WWW 2024). User vectors are private; the layer on
attributes and the network are averaged every round. The attributes go to every client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedrec.methods.content_model import ContentModel


@dataclass(frozen=True)
class CsFedNCF(ContentModel):
    name: ClassVar[str] = "cs-fedncf"
    summary: ClassVar[str] = "new items: FedNCF on attributes, which all clients see"
    paper: ClassVar[str] = "Zhang et al., WWW 2024 (baseline)"
