"""A linear scorer of item rows on an accelerator: `linear.train_linear` as programs of `rows_triton.py`."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fedrec.kernels.arguments import Data, HeadSettings, Keys
from fedrec.kernels.draws_triton import draw
from fedrec.kernels.rows_triton import Training, add_changes, train


def train_linear(
    data: Data,
    n_items: int,
    slots: int,
    keys: Keys,
    settings: HeadSettings,
    heads: Tensor,
    biases: Tensor,
    table: Tensor,
    shared: bool,
    own: Tensor,
    changed: Tensor,
    weight: Tensor,
    blocks: np.ndarray,
    parts: Tensor,
    loss: Tensor,
    seen: Tensor,
) -> None:
    """As `linear.train_linear`, with tensors of the device; the first of `parts` becomes the sum of all clients."""
    drawn = draw(data, n_items, slots, keys, table.device)
    by = Training(
        rate_vector=settings.rate_head,
        rate_row=settings.rate_row,
        batch=settings.batch,
        epochs=settings.epochs,
        mean=settings.mean,
        early_exit=settings.early_exit,
        phases=2 if settings.in_turn else 1,
        decay=settings.decay,
        saturate=settings.saturate,
    )
    rows = train(drawn, slots, keys, by, heads, biases, table, shared, own, loss, seen)
    if shared:
        add_changes(drawn, rows, table, weight, parts[0])
        parts[1:] = 0.0
