"""IFedRec with the attribute network on the clients: the published ablation "w/ LAN".

Each client's item table is tanh(W x_v + b) of attributes that it is sent; W and b are averaged, what rates them is
private: the user vector and the network (backbone ncf), or the linear scorer (linear). All step together. No server
network, no alignment. Preset `released` has the saturated gradient of the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Disclosure, MethodInfo, State, Tensors, World
from fedrec.methods.cold import content_model
from fedrec.methods.cold.content_model import WEIGHTS, Content
from fedrec.methods.cold.cs_fedncf import CsFedNCF
from fedrec.models import NCF, Backbone, Linear
from fedrec.training.local_training import LocalTrainer
from fedrec.training.losses import Saturate


@dataclass(frozen=True)
class IFedRecLAN(CsFedNCF):
    """CsFedNCF with a tanh on the embedding, and a network that stays with its client."""

    info: ClassVar[MethodInfo] = MethodInfo(
        name="ifedrec-lan",
        summary="ablation of ifedrec: the attribute network on the clients, which see attributes",
        paper="Zhang et al., WWW 2024",
        aliases={"w/ LAN": {}},
        backbones={"ncf": {}, "linear": {"lr": 0.1}},
    )

    common_user: bool = True
    saturate: Saturate = "none"

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(private=("user", *self.model.dense_shapes()), attributes="clients")

    @cached_property
    def model(self) -> Backbone:
        return Content(NCF(self.dim, (self.dim,)) if self.backbone == "ncf" else Linear(self.dim), squash=True)

    @cached_property
    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self, phases=WEIGHTS, saturation=self.saturate)

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        known = content_model.init_attributes(world, self.require_attributes(attributes))
        return known | content_model.init_embedding(world, self.dim, known["attributes"])

    def init_clients(self, world: World, chunk: Chunk) -> State:
        """What rates an item stays with the client, from a common start."""
        return self.trainer.init_state(world, chunk, self.trainer.init_dense(world))
