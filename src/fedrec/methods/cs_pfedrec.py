"""CS-PFedRec: PFedRec on the known items; a new item is the mean of its neighbours by attributes.

The cold-start variant of PFedRec in the comparison of IFedRec (WWW 2024). Neighbours are the warm items of largest
cosine; their rows come from the server's mean table, because clients do not keep theirs. Attributes stay at the server.
Preset `released` has the saturated gradient of PFedRec's code, which is by the same authors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Down, State, Tensors, Ups, World
from fedrec.federation.losses import Saturate
from fedrec.federation.ranges import COUNT
from fedrec.methods.content import neighbour_rows, scored_once, with_neighbours
from fedrec.methods.pfedrec import PFedRec


@dataclass(frozen=True)
class CsPFedRec(PFedRec):
    name: ClassVar[str] = "cs-pfedrec"
    aliases: ClassVar[Mapping[str, Mapping[str, object]]] = {}
    summary: ClassVar[str] = "new items: PFedRec, a new item is the mean of its neighbours by attributes"
    paper: ClassVar[str] = "Zhang et al., WWW 2024 (baseline)"
    backbones: ClassVar[tuple[str, ...]] = ("linear",)
    presets: ClassVar[Mapping[str, Mapping[str, object]]] = {"released": {"saturate": "released"}}
    fold_in_rounds: ClassVar[int | None] = None
    attributes: ClassVar[str] = "server"
    ranges: ClassVar[Mapping[str, str]] = {"neighbours": COUNT}

    dim: int = 200
    neighbours: int = 20
    score_with: Literal["local", "received"] = "received"
    saturate: Saturate = "none"  # released: no gradient where a single-precision sigmoid is 0 or 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.score_with != "received":
            raise FedrecError("score_with=local does not fit cs-pfedrec: a new item has no row in a client's own table")

    def saturation(self) -> Saturate:
        return self.saturate

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        return super().init_server(world) | with_neighbours(attributes, world.items, self.neighbours, self.name)

    def broadcast(self, server: Tensors, clients: np.ndarray, round: int) -> Down:
        return Down(shared={"item": server["item"]})

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        return server | super().aggregate(server, ups, round)

    def with_items(self, server: Tensors, attributes: Tensor) -> Tensors:
        more = super().with_items(server, attributes)["attributes"]
        return server | with_neighbours(more, len(server["item"]), self.neighbours, self.name)

    def offer(self, server: Tensors, clients: np.ndarray, round: int, items: Tensor) -> Down:
        return Down(shared={"item": neighbour_rows(server["item"], server["near"], items)})

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        distinct, which = scored_once(down.shared["item"])
        own = {name: value[chunk.owner] for name, value in state.per_client.items()}
        return self.model.scores(state.per_user["user"], distinct, own)[:, which]
