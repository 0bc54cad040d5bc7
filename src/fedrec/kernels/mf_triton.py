"""Matrix factorisation on an accelerator: `mf.train_clients` as programs of `rows_triton.py`."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from fedrec.kernels.arguments import Data, FactorSettings, Keys
from fedrec.kernels.draws_triton import draw
from fedrec.kernels.rows_triton import Training, add_changes, train


def train_clients(
    data: Data,
    n_items: int,
    slots: int,
    pairs: bool,
    keys: Keys,
    settings: FactorSettings,
    user: Tensor,
    table: Tensor,
    shared: bool,
    own: Tensor,
    changed: Tensor,
    weight: Tensor,
    blocks: np.ndarray,
    total: Tensor,
    loss: Tensor,
    seen: Tensor,
) -> None:
    """As `mf.train_clients`, with tensors of the device; sums have one order without `blocks`."""
    drawn = draw(data, n_items, slots, keys, table.device)
    by = Training(
        rate_vector=settings.rate_user,
        rate_row=settings.rate_item,
        batch=settings.batch,
        epochs=settings.epochs,
        mean=settings.mean,
        early_exit=settings.early_exit,
        phases=settings.phases,
        pull=settings.pull,
        adam=settings.adam,
        pairs=pairs,
    )
    rows = train(drawn, slots, keys, by, user, None, table, shared, own, loss, seen)
    if shared:
        add_changes(drawn, rows, table, weight, total)
