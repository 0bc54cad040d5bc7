"""A client's secret: what the draws that protect it, and those that would reveal it, are made from.

Whoever knows the key of a draw can repeat it: take noise off an upload, or tell drawn negatives from real items. So
negatives, the order of batches, random windows, noise and masks come from a secret of the client's side. A simulation
derives it from the run's seed, so that a run can be repeated: its noise shows what noise costs and hides nothing from
who knows the seed. Where clients are real, the secret comes from the operating system and never leaves them.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fedrec.random import Purpose, stream

KEY_BYTES = 32


class Secret(Protocol):
    @property
    def repeatable(self) -> bool:
        """Whether a run can be repeated, and with it all noise; `bits` are for secrets that are not."""
        ...

    def stream(self, purpose: Purpose, *where: int) -> int:
        """The key of one stream of draws, e.g. `stream(Purpose.NEGATIVES, round)`."""
        ...

    def bits(self, where: str, client: int, count: int) -> Tensor:
        """Random words of 64 bits for noise, from which nobody can compute the secret or another word."""
        ...


@dataclass(frozen=True)
class SeededSecret:
    """That of a simulation: everybody who knows the seed can repeat it."""

    seed: int
    repeatable = True

    def stream(self, purpose: Purpose, *where: int) -> int:
        return stream(self.seed, purpose, *where)

    def bits(self, where: str, client: int, count: int) -> Tensor:
        raise NotImplementedError("the noise of a simulation comes from streams, in which clients draw side by side")


@dataclass(frozen=True)
class OwnSecret:
    """That of real clients, from the operating system. Keys and noise come from hashes that cannot be inverted.

    `task`: what the noise answers to. The same noise on answers to two tasks would cancel in their difference.
    """

    key: bytes = field(default_factory=lambda: secrets.token_bytes(KEY_BYTES), repr=False)
    task: str = ""
    repeatable = False

    def for_task(self, task: str, counter: int) -> OwnSecret:
        """Return the secret whose noise belongs to one task (its hash), the counter-th that is answered."""
        return replace(self, task=f"{task},{counter}")

    def stream(self, purpose: Purpose, *where: int) -> int:
        text = ",".join(map(str, (int(purpose), *where)))
        text += f",{self.task}" if purpose == Purpose.NOISE and self.task else ""
        return int.from_bytes(hashlib.blake2b(text.encode(), key=self.key, digest_size=8, person=b"stream").digest())

    def bits(self, where: str, client: int, count: int) -> Tensor:
        """The splitmix64 hash of a stream can be inverted from a draw that is known exactly; SHAKE-256 cannot."""
        key = hashlib.blake2b(
            f"{where},{client},{self.task}".encode(), key=self.key, digest_size=32, person=b"noise"
        ).digest()
        drawn = np.frombuffer(hashlib.shake_256(key).digest(8 * count), dtype=np.int64)
        return torch.from_numpy(drawn.copy())
