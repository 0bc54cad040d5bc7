"""CS-NCF: the network of CS-FedNCF on everybody's data, centralised.

A reference in the comparison of IFedRec (WWW 2024). One round is one epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from fedrec import method as fm
from fedrec.methods.cold.cs_fedncf import CsFedNCF


@dataclass(frozen=True)
class CsNCF(CsFedNCF):
    """CsFedNCF with one client, which has everything; its steps are those of one training."""

    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="cs-ncf",
        summary="new items: network on attributes",
        paper="Zhang et al., WWW 2024 (baseline)",
        centralised=True,
    )

    init_std: float = 0.1
    lr: float = 0.001
    optimiser: Literal["sgd", "adam"] = "adam"

    @property
    def disclosure(self) -> fm.Disclosure:
        return fm.Disclosure(attributes="server")
