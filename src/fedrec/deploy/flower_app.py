"""The app that Flower starts on a server, and how messages are written in Flower's records.

A node never loads the bundle that names this app (`flower_worker`). Everything else is in `server` and `node`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedrec.deploy.link import Lost

POLL = 0.2  # seconds between two looks for replies
client_app = ClientApp()  # which Flower asks for, and no node runs
server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    from fedrec.deploy.job import run_job

    run_job(Path(str(context.run_config["job"])), FlowerLink(grid))


class FlowerLink:
    """Replies are fetched one by one and folded in at once: the server never holds two."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def nodes(self) -> Sequence[int]:
        return sorted(self.grid.get_node_ids())

    def exchange(
        self, nodes: Sequence[int], make: Callable[[int], bytes], deadline: float
    ) -> Iterator[tuple[int, bytes | Lost]]:
        until = time.monotonic() + deadline
        waiting: dict[str, int] = {}
        for node in nodes:
            message = Message(to_record(make(node)), dst_node_id=node, message_type="train", ttl=deadline + 60)
            for number in self.grid.push_messages([message]):
                if number:
                    waiting[number] = node
        yield from ((node, Lost("the message could not be sent")) for node in nodes if node not in waiting.values())
        while waiting and time.monotonic() < until:
            for number in list(waiting):
                for reply in self.grid.pull_messages([number]):
                    yield waiting.pop(number), _content(reply)
            time.sleep(POLL)
        yield from ((node, Lost(f"no reply within {deadline:g} s")) for node in waiting.values())


def _content(reply: Message) -> bytes | Lost:
    if reply.has_error():
        return Lost(f"{reply.error.reason or 'no reason given'} (Flower's error {reply.error.code})")
    return read_message(reply)


def to_record(content: bytes) -> RecordDict:
    return RecordDict({"message": ArrayRecord({"bytes": Array(np.frombuffer(content, dtype=np.uint8))})})


def read_message(message: Message) -> bytes:
    record = message.content["message"]
    assert isinstance(record, ArrayRecord)
    return bytes(record["bytes"].numpy().tobytes())
