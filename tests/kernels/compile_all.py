"""Compile the Triton kernels for a GPU that need not be there; `test_triton.py` runs it in a process of its own.

The interpreter takes what the compiler refuses: a name of two types, say. The kernels are called as in training, on the
processor, except that nothing is launched: they are compiled for what they were called with.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from fedrec.federation.clients import ClientData
from fedrec.federation.contract import Down, World
from fedrec.kernels.draws_triton import permute
from fedrec.kernels.registry import KERNELS
from fedrec.methods.closed_form.fedgram import FedGram
from fedrec.methods.cluster.contrast import SupCon
from fedrec.methods.personal.fedrap import FedRAP
from fedrec.training.local_training import IN_TURN, LocalMethod, LocalTrainer

HOPPER = GPUTarget("cuda", 90, 32)


class InTurn(LocalMethod):
    @cached_property
    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self, phases=IN_TURN)


class Pulled(LocalMethod):
    @cached_property
    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self, pull=0.1)


class Saturated(LocalMethod):
    @cached_property
    def trainer(self) -> LocalTrainer:
        return LocalTrainer(self, phases=IN_TURN, saturation="released")


METHODS = [
    LocalMethod(),
    InTurn(loss="bpr"),
    Pulled(optimiser="adam"),
    Saturated(backbone="linear"),
    InTurn(backbone="ncf", loss="bpr"),
    LocalMethod(backbone="ncf", optimiser="adam"),
]


WHOLE = [FedRAP(), FedRAP(regular="l2", reduction="sum"), FedGram()]


class NoDevice:
    """A driver as far as compiling asks for one."""

    def get_current_target(self) -> GPUTarget:
        return HOPPER

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compiled_only(kernel: JITFunction, grid: Any) -> Any:
    return lambda *arguments, **options: compiled.append(kernel.warmup(*arguments, grid=grid, **options))


compiled: list[Any] = []


def main() -> None:
    driver.set_active(NoDevice())
    JITFunction.__getitem__ = compiled_only
    for name, device in list(KERNELS):
        if device == "cuda":
            KERNELS[name, "cpu"] = KERNELS[name, device]
    for unique in ("positive", "user"):
        data = ClientData.build(
            World(items=9, clients=1),
            np.zeros(3, int),
            np.arange(3),
            users=np.arange(1),
            client_ptr=np.arange(2),
            unique=unique,
        )
        for method in METHODS if unique == "positive" else METHODS[:1]:
            train(method, data)
    for method in WHOLE:
        chunk = data.chunk(np.arange(1), foldable=True)
        down = Down(shared=method.init_server(data.world))
        method.local(method.init_clients(data.world, chunk), down, chunk, 0)
    SupCon(torch.zeros(9, dtype=torch.int64))(torch.ones(2, 9, 32))
    permute(*torch.zeros(4, 3, dtype=torch.int64))
    assert len(compiled) >= 2 * len(METHODS)  # draws and training
    assert all(kernel.asm["cubin"] for kernel in compiled)


def train(method: LocalMethod, data: ClientData) -> None:
    """One client from a common start or, under a method that trains heads and rows in turn, from its own table."""
    chunk = data.chunk(np.arange(1), foldable=True)
    table, user = method.trainer.init_items(data.world), method.trainer.init_users(data.world, chunk.users)
    dense = {name: value[None].clone() for name, value in method.trainer.init_dense(data.world).items()}
    if isinstance(method, InTurn):
        method.trainer.fit(chunk, 0, user, table[None].clone(), dense)
    else:
        method.trainer.fit(chunk, 0, user, table, dense, own=torch.zeros(1, 9, method.dim))


if __name__ == "__main__":
    main()
