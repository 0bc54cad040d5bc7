"""CS-PFedRec with the gradient of PFedRec's released code, which vanishes where its sigmoid saturates."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

from fedrec import method as fm
from fedrec.methods import cold


@dataclass(frozen=True)
class CsPFedRecVariants(cold.CsPFedRec):
    """CsPFedRec with the choice of a gradient."""

    info: ClassVar[fm.MethodInfo] = replace(cold.CsPFedRec.info)

    saturate: Literal["none", "released"] = "none"
    """released: no gradient where a single-precision sigmoid is 0 or 1, as in the released code."""

    @cached_property
    def trainer(self) -> fm.LocalTrainer:
        return fm.LocalTrainer(self, phases=fm.IN_TURN, saturation=self.saturate)
