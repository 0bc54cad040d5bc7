"""Both sides of a federation: contract, messages, simulator, round loop.

What other packages may use of it is named here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrec.plugins import lazily

if TYPE_CHECKING:
    from fedrec.federation.clients import ClientData, Pool, concatenate_ranges, pointers
    from fedrec.federation.codec import BadMessage, pack, unpack
    from fedrec.federation.contract import Method, Tensors, World
    from fedrec.federation.distributed import join_processes
    from fedrec.federation.exchange import Reply, Task
    from fedrec.federation.loop import Progress, Rules, run_rounds
    from fedrec.federation.schema import schema_of
    from fedrec.federation.simulator import Simulator
    from fedrec.federation.update import Update
else:
    __getattr__, __dir__ = lazily(
        __name__,
        {
            "fedrec.federation.clients": ["ClientData", "Pool", "concatenate_ranges", "pointers"],
            "fedrec.federation.codec": ["BadMessage", "pack", "unpack"],
            "fedrec.federation.contract": ["Method", "Tensors", "World"],
            "fedrec.federation.distributed": ["join_processes"],
            "fedrec.federation.exchange": ["Reply", "Task"],
            "fedrec.federation.loop": ["Progress", "Rules", "run_rounds"],
            "fedrec.federation.schema": ["schema_of"],
            "fedrec.federation.simulator": ["Simulator"],
            "fedrec.federation.update": ["Update"],
        },
        old={"concatenated_ranges": "concatenate_ranges", "joined": "join_processes"},
    )

__all__ = [
    "BadMessage",
    "ClientData",
    "Method",
    "Pool",
    "Progress",
    "Reply",
    "Rules",
    "Simulator",
    "Task",
    "Tensors",
    "Update",
    "World",
    "concatenate_ranges",
    "join_processes",
    "pack",
    "pointers",
    "run_rounds",
    "schema_of",
    "unpack",
]
