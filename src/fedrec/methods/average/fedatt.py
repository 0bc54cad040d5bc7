"""FedAtt: the server steps towards its clients, each weighted by attention to how far it went.

Ji et al., "Learning Private Neural Language Modeling with Attentive Aggregation" (IJCNN 2019), algorithm 2. Layer by
layer (the item table is one, every dense weight and bias another), clients farther from the server weigh more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedrec import method as fm
from fedrec.methods.comparison import use_comparison

KEY = "noise_key"  # the server's own; it is not sent


@dataclass(frozen=True)
@use_comparison
class FedAtt(fm.LocalMethod):
    info: ClassVar[fm.MethodInfo] = fm.MethodInfo(
        name="fedatt",
        summary="attentive mean: clients farther from the server weigh more",
        paper="Ji et al., IJCNN 2019",
        backbones={"mf": {}, "ncf": {}, "sasrec": {}},
        new_users=30,
    )
    gathers = True
    working_tables = 2

    aggregated_fraction: fm.Share = 1.0
    shares: fm.Shares = "samples"
    """Without effect here: attention is what weighs clients."""
    score_with: fm.ScoreWith = "received"  # local: the client's own model after training
    step: float = 1.2
    """How far the server moves towards the attentive mean; 1: all the way."""
    attention_norm: Literal["frobenius", "spectral"] = "frobenius"
    """Norm of the difference of two matrices; of a bias it is always the Euclidean one."""
    attention_scale: Literal["none", "mean"] = "none"
    """mean: distances are divided by their mean; otherwise the softmax is close to one-hot."""
    noise_scale: float = 0.0
    """Scale of the Gaussian noise on the server's new parameters."""

    def init_server(self, world: fm.World, attributes: Tensor | None = None) -> fm.Tensors:
        return self.trainer.init_model(world) | {KEY: fm.random.key_tensor(world.seed, fm.random.Purpose.NOISE)}

    def local(self, state: fm.State, down: fm.Down, chunk: fm.Chunk, round: int) -> tuple[fm.State, fm.Uploads]:
        user, trained = self.trainer.fit_copies(chunk, round, state.per_user["user"], down.shared)
        kept = trained if self.keeps_models else {}
        return fm.State(kept, {"user": user}), {name: fm.Gather(value) for name, value in trained.items()}

    def aggregate(self, server: fm.Tensors, ups: fm.Ups, round: int) -> fm.Tensors:
        new = dict(server)
        for layer, name in enumerate(name for name in server if name in ups):
            new[name] = self.attend(server[name], ups.stacked(name)[1])
            if self.noise_scale:
                # By round and layer: noise that came twice could be taken off by a difference.
                key = fm.random.fold_tensor(fm.random.fold_tensor(server[KEY], round), layer)
                new[name] = new[name] + self.noise_scale * _draw_noise(key, new[name])
        return new

    def attend(self, weight: Tensor, clients: Tensor) -> Tensor:
        """Return w - step * sum_u a_u (w - w_u)."""
        attention = self.attention(weight, clients)
        pull = torch.zeros_like(weight, dtype=torch.float64)
        # one client after another: a stack of tables would be copied to be weighted at once
        for share, theirs in zip(attention, clients, strict=True):
            pull += share * (weight - theirs).double()
        return (weight - self.step * pull).to(weight.dtype)

    def attention(self, weight: Tensor, clients: Tensor) -> Tensor:
        """Return a = softmax(s), s_u = |w - w_u|."""
        matrix_norm = self.attention_norm == "spectral" and weight.dim() == 2
        order = 2 if matrix_norm else None  # None: the square root of the summed squares, whatever the shape
        # In double: the softmax of unscaled distances is close to one-hot, so their last digits can decide.
        distance = torch.stack([torch.linalg.norm((weight - theirs).double(), ord=order) for theirs in clients])
        if self.attention_scale == "mean":
            # The floor is for a round in which nobody moved: then all weigh alike.
            distance = distance / distance.mean().clamp(min=1e-12)
        return distance.softmax(0)


def _draw_noise(key: Tensor, like: Tensor) -> Tensor:
    position = torch.arange(like.numel(), device=like.device)
    return fm.random.normal(key.to(like.device), position, like.dtype).reshape(like.shape)
