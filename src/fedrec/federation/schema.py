"""What an upload must look like, known to the server before any arrives: by an example client that has nobody's data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedrec.federation.client_side import ClientSide
from fedrec.federation.clients import ClientData

EXAMPLE_ITEMS = 3


def example_client(side: ClientSide, client: int) -> ClientSide:
    """A client of this number with a few items, set up like the clients of a side."""
    world = replace(side.world, compiled=False)  # one client is not worth a kernel
    items = np.arange(min(EXAMPLE_ITEMS, world.items - 1))
    data = ClientData.build(
        world,
        np.zeros_like(items),
        items,
        users=np.zeros(1, dtype=np.int64),
        client_ptr=np.array([0, 1]),
        clients=np.array([client]),
        negatives=min(side.data.negatives, world.items - len(items)),
        unique=side.data.unique,
    )
    return ClientSide(side.method, data, side.wire.stages, side.memory, side.sealed)
