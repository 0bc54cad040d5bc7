"""CS-PFedRec: PFedRec on the known items; a new item is the mean of its neighbours by attributes.

The cold-start variant of PFedRec in the comparison of IFedRec (WWW 2024). Neighbours are the warm items of largest
cosine; their rows come from the server's mean table, because clients do not keep theirs. Attributes stay at the server.
Preset `released` has the saturated gradient of PFedRec's code, which is by the same authors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Disclosure, Down, MethodInfo, State, Tensors, Ups, World
from fedrec.federation.ranges import Count
from fedrec.methods.cold.content import neighbour_rows, scored_once, with_attributes, with_neighbours
from fedrec.methods.personal.pfedrec import PFedRec
from fedrec.training.losses import Saturate


@dataclass(frozen=True)
class CsPFedRec(PFedRec):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="cs-pfedrec",
        summary="new items: PFedRec, a new item is the mean of its neighbours by attributes",
        paper="Zhang et al., WWW 2024 (baseline)",
        backbones={"linear": {}},
        presets={"released": {"saturate": "released"}},
    )

    dim: Count = 200
    neighbours: Count = 20
    score_with: Literal["local", "received"] = "received"
    saturate: Saturate = "none"  # released: no gradient where a single-precision sigmoid is 0 or 1

    @property
    def disclosure(self) -> Disclosure:
        return replace(super().disclosure, attributes="server")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.score_with != "received":
            raise FedrecError("score_with=local does not fit cs-pfedrec: a new item has no row in a client's own table")

    def saturation(self) -> Saturate:
        return self.saturate

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        return super().init_server(world) | with_neighbours(attributes, world.items, self.neighbours, self.info.name)

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        return Down(shared={"item": server["item"]})

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        return server | super().aggregate(server, ups, round)

    def with_items(self, server: Tensors, attributes: Tensor) -> Tensors:
        more = with_attributes(server, attributes)["attributes"]
        return server | with_neighbours(more, len(server["item"]), self.neighbours, self.info.name)

    def offer(self, server: Tensors, clients: np.ndarray, round: int, items: Tensor) -> Down:
        return Down(shared={"item": neighbour_rows(server["item"], server["near"], items)})

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        distinct, which = scored_once(down.shared["item"])
        own = {name: value[chunk.owner] for name, value in state.per_client.items()}
        return self.model.scores(state.per_user["user"], distinct, own)[:, which]
