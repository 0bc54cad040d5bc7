"""IFedRec with the attribute network on the clients: the published ablation "w/ LAN".

Each client's item table is tanh(W x_v + b) of attributes that it is sent; W and b are averaged, what rates them is
private: the user vector and the network (backbone ncf), or the linear scorer (linear). All step together. No server
network, no alignment.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from fedrec import method as fm
from fedrec.methods.cold.content_model import Content
from fedrec.methods.cold.cs_fedncf import CsFedNCF


@dataclass(frozen=True)
class IFedRecLAN(CsFedNCF):
    """CsFedNCF with a tanh on the embedding, and a network that stays with its client."""

    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="ifedrec-lan",
        summary="ablation of ifedrec: the attribute network on the clients, which see attributes",
        paper="Zhang et al., WWW 2024",
        aliases={"w/ LAN": {}},
        backbones={"ncf": {}, "linear": {"lr": 0.1}},
    )
    private_network = True

    common_user: bool = True

    @cached_property
    def model(self) -> fm.Backbone:
        return Content(fm.NCF(self.dim, (self.dim,)) if self.backbone == "ncf" else fm.Linear(self.dim), squash=True)

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        known = self.trainer.keep(world, self.require_attributes(attributes))
        return known | self.trainer.init_embedding(world, known["attributes"])

    def init_clients(self, world: fm.World, chunk: fm.Chunk) -> fm.State:
        """Start every client with what rates an item, alike for all; it stays there."""
        return self.trainer.init_state(world, chunk, self.trainer.init_dense(world))
