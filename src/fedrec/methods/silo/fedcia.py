"""FedCIA: silos share which items are alike, not what their item tables look like. Han et al., SIGIR 2025.

Every round (algorithm 1) a silo k trains on its own users (equation 5), then

    C_k = E_k E_k' + Laplace noise          goes up                 (sections 5.2.2, 5.2.5)
    C_s = 1/K sum_k C_k                     comes down              (section 5.2.3)
    E_k <- gradient steps on |E_k E_k' - C_s|, user vectors and networks left alone   (equation 6)

C_s travels as its eigenvectors and eigenvalues, in whose coordinates a step costs least: all of them (`dense_gram`), or
the leading ones. Silos of different width or architecture can work together (`blocks`). With the filter of GF-CF in the
place of C_k there is nothing to train: one exchange, and scores A_k F_k + beta A_k F_s.

The paper writes the squared error of all entries; its released code descends the norm, unsquared and not averaged, and
trains matrix factorisation on products of single coordinates. Defaults follow the code, preset `paper` the text. No
sensitivity is bounded, so the noise claims no epsilon. A factor of full rank tells the server as much as C_k itself:
E_k up to a rotation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.federation.clients import Chunk
from fedrec.federation.contract import (
    Answer,
    Disclosure,
    Down,
    Footprint,
    Gather,
    MethodInfo,
    Plan,
    Reduction,
    State,
    Sum,
    Tensors,
    Ups,
    World,
    replicate,
)
from fedrec.federation.noise import Laplace, Place
from fedrec.methods.mixture.similarity import (
    Descent,
    Distance,
    LowRank,
    mean_factor,
    mean_matrix,
    shorten,
    shorten_matrix,
)
from fedrec.models.gfcf import GFCF, rounded, scales, singular
from fedrec.random import Purpose, stream
from fedrec.training.silo_training import SiloTraining, silo_backbones

WHOLE = 4_000  # items up to which matrices of items x items are formed
FILTER_RANK = 128  # columns of a filter's factor where none are asked for
KEY, SERVER = "key", 3  # the server's own randomness; it is not sent

Mode = Literal["auto", "dense_gram", "lowrank", "subspace"]


@dataclass(frozen=True)
class FedCIA(SiloTraining):
    info: ClassVar[MethodInfo] = MethodInfo(
        name="fedcia",
        summary="average of item-item similarities, to which each silo aligns its own table",
        paper="Han et al., SIGIR 2025",
        aliases={"CIA": {}},
        backbones=silo_backbones("mf", "mlp", "lightgcn", "gfcf"),
        presets={
            "paper": {"loss": "bpr", "distance": "mse", "resample": True},
            "released": {},
        },
    )  # fmt: skip

    mode: Mode = "auto"  # dense_gram up to 4,000 items, subspace beyond
    distance: Distance = "fro_norm"  # mse: its first step has the same length; mse_literal: at the rate as it is
    align_lr: float = 0.1
    align_steps: int = 100
    noise: float | None = None  # Laplace scale on whole matrices; none: 0.001 there, nothing on factors
    noise_symmetric: bool = False
    rank: int = 0  # columns of a shortened upload; 0: whole matrices in dense_gram, exact factors elsewhere
    server_rank: int = 0  # of the factor that comes down; 0: twice the widest table, at least 512
    beta: float = 60.0  # gfcf: weight of the global filter

    @property
    def disclosure(self) -> Disclosure:
        return Disclosure(private=("user", "item"), own_noise=() if self.noise == 0 else ("similarity",))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode in ("lowrank", "subspace") and self.noise:
            raise FedrecError(f"noise={self.noise} needs whole matrices: use mode=dense_gram, or noise=0")

    # -- sizes and choices that depend on the world --

    def chosen_mode(self, world: World) -> Mode:
        if self.mode != "auto":
            return self.mode
        mode: Mode = "dense_gram" if world.items <= WHOLE else "subspace"
        if mode == "subspace" and self.noise:
            raise FedrecError(
                f"noise={self.noise} needs whole matrices, which {world.items:,} items make large: use noise=0, or "
                "mode=dense_gram"
            )
        return mode

    def noise_scale(self, world: World) -> float:
        default = 0.001 if self.chosen_mode(world) == "dense_gram" else 0.0
        return default if self.noise is None else self.noise

    def widest(self) -> int:
        return max(part.model.dim for part in self.parts.values())

    def down_rank(self, world: World) -> int:
        columns = sum(len(c.clients) * self.parts[c.name].sent(world) for c in self.cohorts(world))
        return min(self.server_rank or max(2 * self.widest(), 512), columns, world.items)

    def sent(self, world: World) -> int:
        """Columns of one client's factor."""
        full = world.items if self.chosen_mode(world) == "dense_gram" else self.model.dim
        return min(self.rank or full, full)

    def remarks(self, world: World) -> Sequence[str]:
        scale = self.noise_scale(world)
        noise = f"Laplace noise of scale {scale:g} on every entry, without a privacy claim" if scale else "no noise"
        return (f"fedcia exchanges similarities by mode {self.chosen_mode(world)}, {noise}",)

    # -- the kind of exchange --

    @cached_property
    def exchange(self) -> Tables | Filters:
        return Filters(self) if isinstance(self.model, GFCF) and not self.blocks else Tables(self)

    def init_server(self, world: World, attributes: Tensor | None = None) -> Tensors:
        return self.exchange.start(world)

    def init_clients(self, world: World, chunk: Chunk) -> State:
        me = self.part(chunk)
        memory, model = me.init_memory(world, chunk), replicate(me.init_model(world), len(chunk.clients))
        return State(model | memory.per_client, {"user": me.init_users(world, chunk.users)} | memory.per_user)

    def local(self, state: State, down: Down, chunk: Chunk, round: int) -> tuple[State, dict[str, Reduction]]:
        me = self.part(chunk)
        kept, model = me.train(state, me.model_of(state), chunk, round)
        return State(kept.per_client | model, kept.per_user), me.exchange.upload(model, chunk, round)

    def aggregate(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        return self.exchange.combine(server, ups, round)

    def answer(self, server: Tensors, plan: Plan, arrived: np.ndarray, round: int) -> Answer | None:
        return Answer(plan.train, lambda some: self._similarities(server))

    def offer(self, server: Tensors, clients: np.ndarray, round: int, items: Tensor) -> Down:
        """What clients have from the last answer. (The simulator keeps it once, not once for every client.)"""
        return self._similarities(server)

    def _similarities(self, server: Tensors) -> Down:
        return Down(shared={name: value for name, value in server.items() if name != KEY})

    def receive(self, state: State, down: Down, chunk: Chunk, round: int) -> State:
        """Equation 6. Only the item table moves; Adam does not hear of it."""
        me = self.part(chunk)
        return State({"item": me.exchange.aligned(state.per_client["item"], down.shared, chunk)})

    def score(self, state: State, down: Down, chunk: Chunk, items: Tensor) -> Tensor:
        me = self.part(chunk)
        own = me.model_scores(state.per_user["user"], me.model_of(state), chunk, items)
        return me.exchange.with_others(own, down.shared, chunk, items)

    def footprint(self, world: World) -> Footprint:
        entries = self.parameters_of(world) * 3
        if self.chosen_mode(world) == "dense_gram":
            entries += 2 * world.items**2  # the matrix and its float64 copy on the way into the sum
        usual = super().footprint(world)
        return replace(usual, client=usual.client + 2 * entries * world.dtype.itemsize)

    def noised(self, matrix: Tensor, chunk: Chunk, round: int) -> Tensor:
        """Independent Laplace noise on every entry, or on every pair."""
        scale = self.noise_scale(chunk.world)
        if not scale:
            return matrix
        place = Place(chunk.world, chunk.clients, round, {})
        value = Laplace(scale).apply({"similarity": matrix}, place)["similarity"]
        assert isinstance(value, Tensor)
        return value.triu() + value.triu(1).mT if self.noise_symmetric else value


@dataclass(frozen=True)
class Tables:
    """Similarity of item tables, every round."""

    method: FedCIA

    def start(self, world: World) -> Tensors:
        kind: dict[str, Any] = {"dtype": world.dtype, "device": world.device}
        whole = self.method.chosen_mode(world) == "dense_gram"
        rank = world.items if whole else self.method.down_rank(world)
        nothing = {
            "vectors": torch.eye(world.items, rank, **kind),
            "values": torch.zeros(rank, **kind),
            "tail": torch.zeros(1, **kind),
        }
        return nothing if whole else nothing | {KEY: torch.tensor([stream(world.seed, Purpose.INIT, SERVER) >> 1])}

    def upload(self, model: Tensors, chunk: Chunk, round: int) -> dict[str, Reduction]:
        method, world, table = self.method, chunk.world, model["item"]
        if method.chosen_mode(world) != "dense_gram":
            vectors, values, lost = shorten(table, method.sent(world))
        else:
            matrix = method.noised(table @ table.mT, chunk, round)
            if not method.rank:
                return {"similarity": Sum(matrix)}
            vectors, values, lost = shorten_matrix(matrix, method.sent(world))
        chunk.observe("upload_error", float(lost.sum()), len(lost))
        return {"vectors": Gather(vectors), "values": Gather(values)}

    def combine(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        if "similarity" in ups:
            return _sent(LowRank.of(ups["similarity"] / len(ups.clients)))
        if "vectors" not in ups.gathered:
            return server
        factors = [
            (vectors, values)
            for (_, many), (_, sizes) in zip(ups.gathered["vectors"], ups.gathered["values"], strict=True)
            for vectors, values in zip(many, sizes, strict=True)
        ]
        if KEY not in server:
            return _sent(LowRank.of(mean_matrix(factors)))
        return _sent(mean_factor(factors, len(server["values"]), int(server[KEY]) + round, WHOLE)) | {KEY: server[KEY]}

    def aligned(self, table: Tensor, shared: Tensors, chunk: Chunk) -> Tensor:
        method = self.method
        descent = Descent(method.align_steps, method.align_lr, method.weight_decay, method.distance, table.shape[-2])
        target = LowRank(shared["vectors"], shared["values"], shared["tail"])
        whole = method.chosen_mode(chunk.world) == "dense_gram"

        def moved(mine: Tensor) -> Tensor:
            if method.mode == "lowrank":
                return descent.align(mine, target)
            return descent.align_within(mine, target, complete=whole)

        # one table stays in the cache of a processor, where all of a chunk would not
        return torch.stack([moved(mine) for mine in table]) if table.device.type == "cpu" else moved(table)

    def with_others(self, own: Tensor, shared: Tensors, chunk: Chunk, items: Tensor) -> Tensor:
        return own


def _sent(mean: LowRank) -> Tensors:
    return {"vectors": mean.vectors, "values": mean.values, "tail": mean.tail}


@dataclass(frozen=True)
class Filters:
    """The filters of GF-CF, once: whole with noise, or as (V, singular values, item counts), which is exact."""

    method: FedCIA

    def start(self, world: World) -> Tensors:
        kind: dict[str, Any] = {"dtype": world.dtype, "device": world.device}
        if self.method.chosen_mode(world) == "dense_gram":
            return {"filter": torch.zeros(world.items, world.items, **kind)}
        rank = self._rank(world)
        return {
            "vectors": torch.zeros(world.clients, world.items, rank, **kind),
            "values": torch.zeros(world.clients, rank, **kind),
            "counts": torch.zeros(world.clients, world.items, **kind),
        }

    def _rank(self, world: World) -> int:
        return min(self.method.rank or FILTER_RANK, world.items)

    def upload(self, model: Tensors, chunk: Chunk, round: int) -> dict[str, Reduction]:
        rows, ends, world = chunk.matrix(), chunk.client_ptr, chunk.world
        mine = [rows[ends[k] : ends[k + 1]] for k in range(len(chunk.clients))]
        if self.method.chosen_mode(world) == "dense_gram":
            whole = np.stack([self._backbone.fit(part).dense() for part in mine])
            return {"filter": Sum(self.method.noised(chunk.tensor(whole).to(world.dtype), chunk, round))}
        parts = [self._factor(part, self._rank(world), chunk) for part in mine]
        vectors, values, counts = (chunk.tensor(np.stack(part)).to(world.dtype) for part in zip(*parts, strict=True))
        return {"vectors": Gather(vectors), "values": Gather(values), "counts": Gather(counts)}

    @property
    def _backbone(self) -> GFCF:
        assert isinstance(self.method.model, GFCF)
        return self.method.model

    def _factor(self, rows: sp.csr_matrix, rank: int, chunk: Chunk) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Singular vectors and values of R, and item counts. What a silo has fewer of is zero."""
        normal, counts = self._backbone.normalise(rows)
        vectors, values = singular(normal, rank)
        whole, kept = float(normal.multiply(normal).sum()), float((values**2).sum())
        chunk.observe("upload_error", max(whole - kept, 0.0) / max(whole, 1e-300), 1)
        padding = rank - len(values)
        return np.pad(vectors, ((0, 0), (0, padding))), np.pad(values, (0, padding)), counts

    def combine(self, server: Tensors, ups: Ups, round: int) -> Tensors:
        if "filter" in ups:
            return {"filter": ups["filter"] / len(ups.clients)}
        if "vectors" not in ups:
            return server
        new = {name: value.clone() for name, value in server.items()}
        for name, value in new.items():
            ids, sent = ups.stacked(name)
            value[torch.from_numpy(ids)] = sent
        return new

    def aligned(self, table: Tensor, shared: Tensors, chunk: Chunk) -> Tensor:
        return table

    def with_others(self, own: Tensor, shared: Tensors, chunk: Chunk, items: Tensor) -> Tensor:
        """A_k F_k + beta A_k F_s."""
        rows = chunk.matrix()
        if "filter" in shared:
            others = rows @ shared["filter"].double().cpu().numpy()
        else:
            others = self._apply(rows, {name: value.double().cpu().numpy() for name, value in shared.items()})
        total = own + self.method.beta * chunk.tensor(others)[:, items]
        return chunk.tensor(rounded(total.cpu().numpy()))

    def _apply(self, rows: sp.csr_matrix, sent: dict[str, np.ndarray]) -> np.ndarray:
        """A F_s from all silos' factors, without any matrix of items x items."""
        client, column = np.nonzero(sent["values"])
        vectors = sent["vectors"][client, :, column].T  # [items, all columns of all silos]
        linear = (rows @ vectors) * sent["values"][client, column] ** 2 @ vectors.T
        ideal = column < self._backbone.frequencies
        into, out = (np.stack(part) for part in zip(*map(scales, sent["counts"]), strict=True))
        low = vectors[:, ideal]
        passed = (rows @ (low * into[client[ideal]].T)) @ (low * out[client[ideal]].T).T
        return np.asarray((linear + self._backbone.ideal_weight * passed) / len(sent["values"]))
