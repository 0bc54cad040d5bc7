"""What single clients sent, one after another, where it lies: a server that compares or mixes all goes by blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

RUN = 1 << 21  # numbers that are copied at a time


@dataclass(frozen=True)
class Stack:
    """Uploads of one name and shape, `[clients, ...]`, clients ascending. Only what is asked for is copied."""

    clients: np.ndarray
    parts: tuple[Tensor, ...]
    order: Tensor | None = None  # of the clients of all parts; None: as they are

    @classmethod
    def wrap(cls, value: Tensor | Stack) -> Stack:
        return value if isinstance(value, Stack) else cls(np.arange(len(value)), (value,))

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def shape(self) -> torch.Size:
        return torch.Size([len(self), *self.parts[0].shape[1:]])

    @property
    def dtype(self) -> torch.dtype:
        return self.parts[0].dtype

    @property
    def device(self) -> torch.device:
        return self.parts[0].device

    @property
    def width(self) -> int:
        """Numbers of one client."""
        return self.shape[1:].numel()

    def columns(self, some: slice) -> Tensor:
        """These numbers of every client: [clients, columns]. To be read only: it may be a part itself."""
        return self._put_in_order([part.flatten(1)[:, some] for part in self.parts])

    def runs(self) -> Iterator[tuple[slice, Tensor]]:
        """All columns, and these numbers of every client without gaps between them: as they lie, or some at a time."""
        step = self.width if len(self.parts) == 1 and self.order is None else max(1, RUN // max(1, len(self)))
        for start in range(0, self.width, step):
            columns = slice(start, min(start + step, self.width))
            yield columns, self.columns(columns).contiguous()

    def take(self, clients: slice) -> Tensor:
        """All numbers of these clients, by their places: [clients, ...]."""
        places = torch.arange(len(self)) if self.order is None else self.order
        return torch.stack([self._find_row(place) for place in places[clients].tolist()])

    def _find_row(self, place: int) -> Tensor:
        for part in self.parts:
            if place < len(part):
                return part[place]
            place -= len(part)
        raise IndexError(place)

    def take_all(self) -> Tensor:
        """All of it: to be read only, like `columns`."""
        return self._put_in_order(list(self.parts))

    def _put_in_order(self, parts: list[Tensor]) -> Tensor:
        together = parts[0] if len(parts) == 1 else torch.cat(parts)
        return together if self.order is None else together[self.order]
