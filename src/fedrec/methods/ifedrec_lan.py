"""IFedRec with the attribute network on the clients: the published ablation "w/ LAN".

Each client's item table is tanh(W x_v + b) of attributes that it is sent; W and b are averaged, the user vector and
the network above are private. No server network, no alignment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from fedrec.methods.content_model import ContentModel, ContentNCF
from fedrec.models import Backbone


@dataclass(frozen=True)
class IFedRecLAN(ContentModel):
    name: ClassVar[str] = "ifedrec-lan"
    aliases: ClassVar[Mapping[str, Mapping[str, object]]] = {"w/ LAN": {}}
    summary: ClassVar[str] = "ablation of ifedrec: the attribute network on the clients, which see attributes"
    paper: ClassVar[str] = "Zhang et al., WWW 2024"
    private: ClassVar[tuple[str, ...]] = ("user", "dense")
    kept: ClassVar[bool] = True

    common_user: bool = True

    @cached_property
    def model(self) -> Backbone:
        return ContentNCF(self.dim, squash=True)
