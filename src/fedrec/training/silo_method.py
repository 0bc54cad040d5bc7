"""The hyper-parameters that methods of silos share, and blocks of silos that differ in architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod
from typing import Any, Literal, Self

import numpy as np

from fedrec.errors import FedrecError, unknown
from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Cohort, Footprint, Method, World
from fedrec.federation.declarations import Settings, with_defaults
from fedrec.federation.ranges import Count
from fedrec.models import MF, NCF, Backbone, NeuMF
from fedrec.models.gfcf import GFCF
from fedrec.models.lightgcn import LightGCN
from fedrec.training.silo_training import FilterTrainer, SiloTrainer, Trainer
from fedrec.training.triple_descent import TripleLoss

DEFAULTS: Mapping[str, Settings] = {
    "mlp": {"dim": 32, "lr": 0.001, "weight_decay": 1e-3, "loss": "bce"},
    "neumf": {"dim": 64, "lr": 0.001, "weight_decay": 0.0, "loss": "bce"},  # 32 factors, and a tower 64 -> 32
    "lightgcn": {"weight_decay": 1e-3, "loss": "bpr"},
    "gfcf": {"rounds": 1},
}

silo_backbones = partial(with_defaults, DEFAULTS)


@dataclass(frozen=True)
class SiloMethod(Method):
    """Defaults are those of FedCIA's released code for matrix factorisation."""

    rounds: Count = 500
    backbone: str = "mf"
    dim: Count = 512
    init_std: float = 0.1
    lr: float = 0.1  # of Adam
    weight_decay: float = 1e-6
    """Weight, in the loss, of the squared vectors of the triples."""
    epochs: Count = 1
    batch: Count = 4096
    loss: TripleLoss = "mse_elem"
    """mse_elem: of every coordinate's product, as released; bpr as the paper says; bce for networks."""
    resample: bool = False
    """Whether new triples are drawn every round."""
    reset_optimiser: bool = False
    """Whether Adam's moments are forgotten between rounds."""
    layers: int = 5
    """lightgcn: steps of propagation over the graph."""
    frequencies: Count = 32
    ideal_weight: float = 0.3
    # The released code ranks by the sigmoid, which is exactly 1 above 17 in single precision: items tie, and their
    # numbers decide. (Filters have no sigmoid.)
    rank_by: Literal["score", "sigmoid"] = "score"
    """Whether items are ranked by their scores or by the sigmoid of them."""
    blocks: str = ""
    """Architectures of equal blocks of silos, backbone:dim[:lr] each, e.g. mf:512+mf:256+mf:128; empty: all alike."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss == "mse_elem" and self.backbone in ("mlp", "neumf", "lightgcn"):
            raise FedrecError(f"loss=mse_elem is for backbone mf; use loss=bpr or loss=bce with {self.backbone}")
        if self.rank_by == "sigmoid" and self.backbone == "gfcf":
            raise FedrecError("rank_by=sigmoid is for trained backbones; gfcf has no sigmoid, leave it out")
        if self.blocks and any(part.backbone == "gfcf" for part in self.parts.values()):
            raise FedrecError(
                "gfcf has no table to align, so it cannot be one of several blocks; use mf, mlp, lightgcn"
            )

    @cached_property
    def trainer(self) -> Trainer:
        """Of silos that all have this backbone."""
        if self.backbone == "gfcf":
            return FilterTrainer(GFCF(self.frequencies, self.ideal_weight))
        return SiloTrainer(
            MODELS[self.backbone](self),
            self.loss,
            self.lr,
            self.weight_decay,
            self.batch,
            self.epochs,
            resample=self.resample,
            reset_optimiser=self.reset_optimiser,
            init_std=self.init_std,
            rank_by=self.rank_by,
        )

    # -- blocks of different architecture --

    @cached_property
    def parts(self) -> Mapping[str, Self]:
        """These settings as every block has them, under the name of its cohort."""
        if not self.blocks:
            return {"all": self}
        return {f"{number}-{text}": self._part(text) for number, text in enumerate(self.blocks.split("+"))}

    def _part(self, text: str) -> Self:
        backbone, *numbers = text.split(":")
        if backbone not in self.info.backbones:
            raise unknown(f"backbone of {self.info.name}", backbone, self.info.backbones)
        try:
            sizes = {"dim": int(numbers[0])} | ({"lr": float(numbers[1])} if len(numbers) > 1 else {})
        except (ValueError, IndexError):
            sizes = {}
        if sizes.get("dim", 0) < 1 or len(numbers) > 2:
            raise FedrecError(f"blocks={self.blocks}: write backbone:dim or backbone:dim:lr for each, as in mf:512")
        values: dict[str, Any] = {**self.info.backbones[backbone], **sizes}
        return replace(self, blocks="", backbone=backbone, **values)

    def part(self, chunk: Chunk) -> Self:
        """The settings of a chunk's clients. A newcomer, who has no cohort, joins the first block."""
        return self.parts.get(chunk.cohort, next(iter(self.parts.values())))

    def cohorts(self, world: World) -> Sequence[Cohort]:
        size, names = world.clients // len(self.parts), list(self.parts)
        ends = [*(size * k for k in range(len(names))), world.clients]
        return [Cohort(name, np.arange(ends[k], ends[k + 1])) for k, name in enumerate(names)]

    # -- sizes --

    def parameters_of(self, world: World) -> int:
        """Numbers in the largest block's model."""
        models = [part.trainer.model for part in self.parts.values()]
        return max(world.items * m.dim + sum(map(prod, m.dense_shapes().values())) for m in models)

    def footprint(self, world: World) -> Footprint:
        size, models = world.dtype.itemsize, [part.trainer.model for part in self.parts.values()]
        widest = max((shape[0] for model in models for shape in model.dense_shapes().values()), default=0)
        return Footprint(
            client=4096 + 8 * self.parameters_of(world) * size,
            # three gathered vectors, products and gradients; a network holds its padded input too
            sample=100 + 6 * max(model.dim for model in models) * size,
            score=(6 * max(size, 8) + 2 * widest * size) * world.items + 3 * self.parameters_of(world) * size,
        )


MODELS: dict[str, Callable[[SiloMethod], Backbone]] = {
    "mf": lambda settings: MF(settings.dim),
    "neumf": lambda settings: NeuMF(settings.dim, settings.dim // 2, layers=1),
    "mlp": lambda settings: NCF(settings.dim, hidden=(32,)),
    "lightgcn": lambda settings: LightGCN(settings.dim, settings.layers),
}
