"""A step of training that a GPU replays: the host starts some hundred kernels once, then all of them together.

On a GPU the steps of a small network on many short sequences take less time than it takes to start their kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedrec.training.sequences import SequenceBatch


class ReplayedFunction:
    """A function of tensors whose shapes stay. It was called before; what it returns lasts until the next call."""

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor]) -> None:
        self.inputs = [value.clone() for value in inputs]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = function(*self.inputs)

    def __call__(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        for static, now in zip(self.inputs, inputs, strict=True):
            static.copy_(now)
        self.graph.replay()
        return self.outputs


class Replayed:
    """`step` for all batches of as many sequences, which it finds filled up to the longest of the epoch.

    What it reads and writes beside the batch must stay where it is. It was called before, so that nothing is left to
    set up while its kernels are recorded; recording changes nothing.
    """

    def __init__(self, step: Callable[[SequenceBatch], Tensor], batch: SequenceBatch) -> None:
        self.batch = replace(
            batch.pad(), sequence=batch.sequence.clone(), key=batch.key.clone(), size=batch.size.clone()
        )
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.loss = step(self.batch)

    def fits(self, batch: SequenceBatch) -> bool:
        return batch.pad().lengths == self.batch.lengths and batch.room <= self.batch.room

    def __call__(self, batch: SequenceBatch) -> Tensor:
        for static, now in (
            (self.batch.sequence, batch.sequence),
            (self.batch.key, batch.key),
            (self.batch.size, batch.size),
        ):
            static.copy_(now)
        self.graph.replay()
        return self.loss
