"""IFedRec with the attribute network on the clients: the published ablation "w/ LAN".

Each client's item table is tanh(W x_v + b) of attributes that it is sent; W and b are averaged, what rates them is
private: the user vector and the network (backbone ncf), or the linear scorer (linear). All step together. No server
network, no alignment. Preset `released` has the saturated gradient of the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

from fedrec.federation.contract import Disclosure, MethodInfo
from fedrec.methods.cold.content_model import Content, ContentModel
from fedrec.models import NCF, Backbone, Linear
from fedrec.training.losses import Saturate


@dataclass(frozen=True)
class IFedRecLAN(ContentModel):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="ifedrec-lan",
        summary="ablation of ifedrec: the attribute network on the clients, which see attributes",
        paper="Zhang et al., WWW 2024",
        aliases={"w/ LAN": {}},
        backbones={"ncf": {}, "linear": {"lr": 0.1}},
        presets={"released": {"saturate": "released"}},
    )
    kept: ClassVar[bool] = True

    common_user: bool = True
    saturate: Saturate = "none"  # released: no gradient where a single-precision sigmoid is 0 or 1

    @property
    def disclosure(self) -> Disclosure:
        return replace(super().disclosure, private=("user", *self.model.dense_shapes()))

    def saturation(self) -> Saturate:
        return self.saturate

    @cached_property
    def model(self) -> Backbone:
        return Content(NCF(self.dim, (self.dim,)) if self.backbone == "ncf" else Linear(self.dim), squash=True)
