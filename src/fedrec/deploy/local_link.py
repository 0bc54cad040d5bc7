"""A link without a network: nodes in this process, for tests, faults and load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fedrec.deploy.link import Lost

Handle = Callable[[bytes], bytes]


class LocalLink:
    """Nodes by number; one may be away, and messages may be changed or lost on their way."""

    def __init__(self, hosts: dict[int, Handle]) -> None:
        self.hosts = hosts

    def nodes(self) -> Sequence[int]:
        return sorted(self.hosts)

    def exchange(
        self, nodes: Sequence[int], make: Callable[[int], bytes], deadline: float
    ) -> Iterator[tuple[int, bytes | Lost]]:
        for node in nodes:
            try:
                yield node, self.hosts[node](make(node))
            except (TimeoutError, KeyError):
                yield node, Lost(f"no reply within {deadline:g} s")
