"""IFedRec's ablation "w/ LAN" with the gradient of the released code, which vanishes where its sigmoid saturates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

from fedrec import method as fm
from fedrec.methods import cold


@dataclass(frozen=True)
class IFedRecLANVariants(cold.IFedRecLAN):
    """IFedRecLAN with the choice of a gradient."""

    info: ClassVar[fm.MethodInfo] = replace(cold.IFedRecLAN.info)

    saturate: Literal["none", "released"] = "none"
    """released: no gradient where a single-precision sigmoid is 0 or 1, as in the released code."""

    @cached_property
    def trainer(self) -> cold.ContentTrainer:
        return cold.ContentTrainer(self, saturation=self.saturate)
