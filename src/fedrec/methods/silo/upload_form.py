"""In which form a silo's similarities travel: whole with noise, or as factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from fedrec.errors import FedrecError
from fedrec.federation.clients import Chunk
from fedrec.federation.contract import World
from fedrec.federation.noise import Laplace, UploadContext

WHOLE = 4_000  # items up to which matrices of items x items are formed

Mode = Literal["auto", "dense_gram", "lowrank", "subspace"]


@dataclass(frozen=True)
class UploadForm:
    mode: Mode
    rank: int  # columns of a shortened upload; 0: all
    noise: float | None
    symmetric: bool  # noise on pairs, not on entries

    def mode_in(self, world: World) -> Mode:
        if self.mode != "auto":
            return self.mode
        mode: Mode = "dense_gram" if world.items <= WHOLE else "subspace"
        if mode == "subspace" and self.noise:
            raise FedrecError(
                f"noise={self.noise} needs full matrices, which {world.items:,} items make large: use noise=0, or "
                "mode=dense_gram"
            )
        return mode

    def forms_matrices(self, world: World) -> bool:
        """Whether matrices of items x items are formed."""
        return self.mode_in(world) == "dense_gram"

    def noise_scale(self, world: World) -> float:
        default = 0.001 if self.forms_matrices(world) else 0.0
        return default if self.noise is None else self.noise

    def add_noise(self, matrix: Tensor, chunk: Chunk, round: int) -> Tensor:
        """Add independent Laplace noise to every entry, or to every pair."""
        scale = self.noise_scale(chunk.world)
        if not scale:
            return matrix
        context = UploadContext(chunk.world, chunk.clients, round, {}, secret=chunk.secret)
        value = Laplace(scale).apply({"similarity": matrix}, context)["similarity"]
        assert isinstance(value, Tensor)
        return value.triu() + value.triu(1).mT if self.symmetric else value
