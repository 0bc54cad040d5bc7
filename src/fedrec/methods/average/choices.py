"""What methods that average leave to choose: how clients are weighted, and with which model they score."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fedrec.federation.clients import Chunk
from fedrec.federation.contract import Down, State, World
from fedrec.training.local_training import LocalTrainer

Shares = Literal["samples", "equal"]
ScoreWith = Literal["received", "local"]  # local: the client's own model after training


def client_weight(shares: Shares, chunk: Chunk) -> Tensor | None:
    """N_u: positives and sampled negatives of the client, on the host; None: all clients alike."""
    return torch.from_numpy(chunk.samples) if shares == "samples" else None


def init_clients(trainer: LocalTrainer, score_with: ScoreWith, world: World, chunk: Chunk) -> State:
    """User vectors; and the common model, where clients score with their own."""
    return trainer.init_state(world, chunk, trainer.init_model(world) if score_with == "local" else None)


def score(
    trainer: LocalTrainer, score_with: ScoreWith, state: State, down: Down, chunk: Chunk, items: Tensor
) -> Tensor:
    if score_with == "local":
        return trainer.own_scores(state.per_user["user"], state.per_client, chunk, items)
    return trainer.common_scores(state.per_user["user"], down.shared, chunk, items)
