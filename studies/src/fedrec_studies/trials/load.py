"""Peak memory of a server whose nodes send large updates.

Nodes are in the same process and make up their updates, so what grows is the server's. Every message is whole bytes,
framed, checked and folded in as it would be with Flower.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedrec.deploy import Limits, LocalLink, Server, Terms, frame, unframe
from fedrec.experiment import RunConfig, RunFolder
from fedrec.federation import Reply, Task, Update

DIM = 32
SIZE = 8  # bytes of a number in an update: sums are of double precision


def node(terms: Terms, number: int) -> Callable[[bytes], bytes]:
    """One client whose update is the table that it got, changed a little."""

    def hello() -> dict[str, Any]:
        return {
            "token": str(number),
            "terms": terms.identity,
            "vocabulary": terms.vocabulary,
            "clients": 1,
            "places": [number, number + 1],
            "users": 1,
            "interactions": 1,
            "unknown": {"rows": 0},
        }

    def handle(message: bytes) -> bytes:
        header, parts = unframe(message)
        if header["kind"] == "hello":
            return frame(hello())
        replies = [reply_to(Task.decode(part, torch.device("cpu"))) for part in parts]
        about = {
            "turn": header["turn"],
            "terms": terms.identity,
            "vocabulary": terms.vocabulary,
            "missed": 0,
            "notes": [],
            "ledger": {},
            "held": [0, 0],
            "cpu": 0.0,
        }
        return frame(about, replies)

    def reply_to(task: Task) -> bytes:
        update = Update()
        if task.train is not None:
            table = task.train.parts[0][1].shared["item"].double() + 1e-3 * number
            update = Update({"item": table}, {"item": 1.0}, frozenset({"item"}), {}, np.array([number]))
        sums = {"recall@10": 0.5, "ndcg@10": 0.5, "hr@10": 0.5}
        return Reply(update, None if task.score is None else ({"users": 1.0, **sums}, {})).encode()

    return handle


def measure_load(nodes: int, megabytes: int, rounds: int, tell: Callable[[int], None]) -> dict[str, Any]:
    """`megabytes`: of an update as it travels. `tell` is given the number of rounds done."""
    items = megabytes * 2**20 // (DIM * SIZE)
    terms = Terms(
        RunConfig("fedmf", "load", rounds=rounds, eval_every=rounds, params={"dim": DIM}),
        np.arange(items),
        nodes,
        items,
        seeded=True,
    )
    after: list[float] = []

    def count_rounds(what: str, _: Mapping[str, Any]) -> None:
        if what == "round":
            after.append(memory())
            tell(len(after))

    with tempfile.TemporaryDirectory(prefix="fedrec-load-") as place:
        folder = RunFolder.create(Path(place) / "run", terms.config.to_dict())
        hosts = {k: node(terms, k) for k in range(nodes)}
        server = Server(terms, folder, LocalLink(hosts), Limits(600, nodes, nodes), count_rounds)
        before, started = memory(), time.perf_counter()
        server.run()
    return {
        "nodes": nodes,
        "update_mb": megabytes,
        "rounds": rounds,
        "before_mb": before,
        "first_round_mb": after[0],
        "last_round_mb": after[-1],
        "seconds": round(time.perf_counter() - started, 1),
    }


def memory() -> float:
    """The most that this process has held, in MB."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
