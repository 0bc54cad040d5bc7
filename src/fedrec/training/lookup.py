"""Reading rows of a table, with a gradient that is the same in every run."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def look_up(table: Tensor, rows: Tensor) -> Tensor:
    """Return `table[rows]`; the gradients of a row that is read several times are added in the order of `rows`.

    On a processor with several threads, plain indexing adds them by atomic operations in whatever order the threads
    arrive, and runs with one seed differ in the last bits. An embedding gives each thread rows of its own. On a GPU it
    is the other way round: there indexing sorts, and an embedding may not.
    """
    if table.device.type != "cpu":
        return table[rows]
    if table.dim() == 1:
        return F.embedding(rows, table[:, None]).squeeze(-1)
    return F.embedding(rows, table)
