"""IFedRec with the attribute network on the clients: the published ablation "w/ LAN".

Each client's item table is tanh(W x_v + b) of attributes that it is sent; W and b are averaged, what rates them is
private: the user vector and the network (backbone ncf), or the linear scorer (linear). All step together. No server
network, no alignment. Preset `released` has the saturated gradient of the authors' code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from fedrec.federation.losses import Saturate
from fedrec.methods.content_model import Content, ContentModel
from fedrec.models import NCF, Backbone, Linear


@dataclass(frozen=True)
class IFedRecLAN(ContentModel):
    name: ClassVar[str] = "ifedrec-lan"
    aliases: ClassVar[Mapping[str, Mapping[str, object]]] = {"w/ LAN": {}}
    summary: ClassVar[str] = "ablation of ifedrec: the attribute network on the clients, which see attributes"
    paper: ClassVar[str] = "Zhang et al., WWW 2024"
    backbones: ClassVar[tuple[str, ...]] = ("ncf", "linear")
    backbone_defaults: ClassVar[Mapping[str, Mapping[str, object]]] = {"linear": {"lr": 0.1}}
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"released": {"saturate": "released"}}
    private: ClassVar[tuple[str, ...]] = ("user", "dense")
    kept: ClassVar[bool] = True

    common_user: bool = True
    saturate: Saturate = "none"  # released: no gradient where a single-precision sigmoid is 0 or 1

    def saturation(self) -> Saturate:
        return self.saturate

    @cached_property
    def model(self) -> Backbone:
        return Content(NCF(self.dim, (self.dim,)) if self.backbone == "ncf" else Linear(self.dim), squash=True)
