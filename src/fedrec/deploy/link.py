"""How messages travel, as far as a server knows: a `Link` carries them, Flower's or one within a process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Lost:
    """Why no reply came."""

    reason: str


class Link(Protocol):
    """Carries messages to nodes that are there now."""

    def nodes(self) -> Sequence[int]: ...

    def exchange(
        self, nodes: Sequence[int], make: Callable[[int], bytes], deadline: float
    ) -> Iterable[tuple[int, bytes | Lost]]:
        """Send each its message; replies as they come, and `Lost` for those that did not in time (seconds)."""
        ...


@dataclass(frozen=True)
class Limits:
    """How long a turn may take, how many nodes it needs (the first one perhaps more), how long to wait for them."""

    deadline: float = 600.0
    minimum: int = 1
    first: int = 1
    wait: float = 600.0
    poll: float = 1.0
