"""CS-FedNCF: FedNCF whose item embedding is one layer on the item's attributes, so that new items have one too.

The cold-start variant of FedNCF in the comparison of IFedRec (WWW 2024). User vectors are private; the layer on
attributes and the network are averaged every round. The attributes go to every client.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedrec.federation.contract import MethodInfo
from fedrec.methods.cold.content_model import ContentModel


@dataclass(frozen=True)
class CsFedNCF(ContentModel):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="cs-fedncf",
        summary="new items: FedNCF on attributes, which all clients see",
        paper="Zhang et al., WWW 2024 (baseline)",
    )
