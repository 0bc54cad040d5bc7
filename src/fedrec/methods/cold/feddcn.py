"""FedDCN: a deep and cross network on [user; E x + e], averaged over clients; user vectors are private.

Wang et al., "Deep & Cross Network for Ad Click Predictions" (ADKDD 2017), federated as a baseline of IFedRec (WWW
2024). A cross layer is x' = x0 (x . w) + b + x. By induction x = a x0 + B, where only the number a differs between
pairs: so the cross part of a pair needs no more than the inner products x0 . w, which split into user and item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.methods.cold.cs_fedncf import CsFedNCF

CROSS = 3  # cross layers


def cross(dots: Sequence[Tensor], weights: Sequence[Tensor], biases: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return a and B of the last cross layer, from x0 . w of every layer."""
    a, b = torch.ones_like(dots[0]), torch.zeros_like(biases[0])
    for dot, weight, bias in zip(dots, weights, biases, strict=True):
        a = a + a * dot + (b * weight).sum(-1, keepdim=True)
        b = b + bias
    return a, b


@dataclass(frozen=True)
class DCN:
    """The cross layers beside a tower 2d -> d -> d, both into one logit."""

    dim: int
    has_user = True

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        d = self.dim
        shapes: dict[str, tuple[int, ...]] = {"weight0": (d, 2 * d), "bias0": (d,), "weight1": (d, d), "bias1": (d,)}
        for layer in range(CROSS):
            shapes |= {f"cross{layer}": (1, 2 * d), f"cross_bias{layer}": (2 * d,)}
        return shapes | {"out": (1, 3 * d), "out_bias": (1,)}

    def first(self, dense: fm.Tensors) -> Tensor:
        """Return everything that is multiplied by x0, one row each."""
        out = dense["out"][..., : 2 * self.dim]
        return torch.cat([dense["weight0"], *(dense[f"cross{layer}"] for layer in range(CROSS)), out], -2)

    def logits(self, user: Tensor, item: Tensor, dense: fm.Tensors) -> Tensor:
        of_user, of_item = self.first(dense).split(self.dim, -1)
        return self._upper(user @ of_user.mT + self._embed(item, dense) @ of_item.mT, dense)

    def scores(self, user: Tensor, item: Tensor, dense: fm.Tensors) -> Tensor:
        of_user, of_item = self.first(dense).split(self.dim, -1)
        return self._upper((user @ of_user.mT).unsqueeze(-2) + self._embed(item, dense) @ of_item.mT, dense)

    def _embed(self, attributes: Tensor, dense: fm.Tensors) -> Tensor:
        return attributes @ dense["embed"].mT + dense["embed_bias"].unsqueeze(-2)

    def _upper(self, z: Tensor, dense: fm.Tensors) -> Tensor:
        d = self.dim
        deep = torch.relu(z[..., :d] + dense["bias0"].unsqueeze(-2))
        deep = torch.relu(deep @ dense["weight1"].mT + dense["bias1"].unsqueeze(-2))
        weights = [dense[f"cross{layer}"].squeeze(-2) for layer in range(CROSS)]
        biases = [dense[f"cross_bias{layer}"] for layer in range(CROSS)]
        a, b = cross([z[..., d + layer] for layer in range(CROSS)], weights, biases)
        out = dense["out"].squeeze(-2)
        shallow = a * z[..., -1] + (b * out[..., : 2 * d]).sum(-1, keepdim=True)
        return shallow + (deep @ out[..., 2 * d :].unsqueeze(-1)).squeeze(-1) + dense["out_bias"]


@dataclass(frozen=True)
class FedDCN(CsFedNCF):
    """CsFedNCF with another network."""

    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="feddcn",
        summary="new items: deep and cross network on attributes, which all clients see",
        paper="Wang et al., ADKDD 2017; federated in Zhang et al., WWW 2024",
    )

    init_std: float = 0.1  # three products with x0: large starts explode
    lr: float = 0.1

    @cached_property
    def model(self) -> fm.Backbone:
        return DCN(self.dim)
