"""What a server has of three real nodes under secure sums: every message that it received, looked at.

The nodes are processes on this machine. One is killed between the shares of the second sum and its upload. A rehearsal
repeats draws and masks cancel, so the same federation in one process tells what each node put its masks on.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedrec.deploy import (
    RECEIVED,
    Handle,
    Limits,
    LocalLink,
    Masks,
    NodeHost,
    Processes,
    Rehearsal,
    Server,
    rehearse,
    unframe,
)
from fedrec.errors import FedrecError
from fedrec.experiment import RunConfig, RunFolder
from fedrec.federation import BadMessage, Tensors, Update, pack, unpack
from fedrec.secure import Collector, Layout, Part, Terms
from fedrec_studies.trials.process_faults import Cluster, kill_tree

NODES, ROUNDS, GONE = 3, 2, 2  # GONE: the node that is killed in the last round
LEAST = 2  # members of a sum
DEADLINE = 60.0
ENOUGH = 10_000  # numbers that a correlation is of: by chance one of so many is beyond 0.05 once in two million times

Truth = Mapping[tuple[int, int], Update]
"""By round and node, the update before masks were put on it."""


@dataclass(frozen=True)
class Received:
    """One part of a message."""

    header: Mapping[str, Any]
    tensors: Tensors


def measure_secrecy(config: RunConfig) -> dict[str, Any]:
    """Run it, and compare what was received with what was true."""
    config = replace(config, rounds=ROUNDS)
    place = tempfile.TemporaryDirectory(prefix="fedrec-secrecy-", ignore_cleanup_errors=True)
    with place as folder, Processes() as processes:
        truth = true_updates(rehearse(config, secure=True), Path(folder) / "known")
        cluster = Cluster(
            Path(folder) / "real",
            processes,
            rehearse(config, secure=True),
            Limits(DEADLINE, LEAST, NODES, 240.0),
            received=True,
        )
        cluster.start()
        cluster.until("round", ROUNDS - 2)
        kill_tree(cluster.nodes[GONE].pid)
        cluster.until("finished")
        messages = [path.read_bytes() for path in sorted((cluster.out / RECEIVED).iterdir())]
    return {
        "method": config.method,
        "nodes": NODES,
        "rounds": ROUNDS,
        "dropped": f"node {GONE + 1}",
        "dropped_round": ROUNDS,
        "messages": len(messages),
        "bytes": sum(map(len, messages)),
        **correlate(messages, truth),
        **compare_sums(messages, truth),
    }


@dataclass(frozen=True)
class Overheard(Masks):
    """A node's masks that write down what they are put on: one update a round."""

    node: int = 0
    found: dict[tuple[int, int], Update] = field(default_factory=dict)

    def mask(self, message: bytes, update: Update) -> bytes:
        self.found[sum(node == self.node for _, node in self.found), self.node] = update
        return super().mask(message, update)


def true_updates(rehearsal: Rehearsal, folder: Path) -> Truth:
    """Of the same federation in one process, with the same node away in the last round."""
    found: dict[tuple[int, int], Update] = {}
    hosts: dict[int, Handle] = {}
    for k, state in enumerate(rehearsal.deal(folder, NODES)):
        host = NodeHost(state)
        host.masks = Overheard(host.state, node=k, found=found)
        hosts[k] = host.handle
    gone = hosts[GONE]

    def away(message: bytes) -> bytes:
        reply = gone(message)
        if unframe(message)[0].get("turn") == ROUNDS - 1:
            raise TimeoutError
        return reply

    hosts[GONE] = away
    out = RunFolder.create(folder / "run", rehearsal.terms.config.to_dict())
    Server(
        rehearsal.terms, out, LocalLink(hosts), Limits(60, LEAST, NODES), lambda *_: None, rehearsal.attributes
    ).run()
    return found


# -- what the messages tell --


def correlate(messages: Sequence[bytes], truth: Truth) -> dict[str, Any]:
    """The largest correlation of anything in a message with any true update, without its sign.

    Messages of fewer than so many numbers are told of by their size: what is so short cannot hold an update.
    """
    largest, count, short = 0.0, 0, [len(message) for message in messages if len(message) < ENOUGH]
    tables = [table.double().numpy().ravel() for update in truth.values() for table in update.totals.values()]
    for message in messages:
        for seen, table in itertools.product(views(message), tables) if len(message) >= ENOUGH else ():
            size = min(len(seen), len(table))
            if size >= ENOUGH and seen[:size].std() > 0 and table[:size].std() > 0:
                largest, count = max(largest, abs(float(np.corrcoef(seen[:size], table[:size])[0, 1]))), count + 1
    return {
        "correlation": largest,
        "compared": count,
        "least": ENOUGH,
        "short": len(short),
        "longest_short": max(short, default=0),
    }


def views(message: bytes) -> Iterator[np.ndarray]:
    """A message as numbers: its bytes, and each of its arrays as whole numbers, as floats and by rank."""
    yield np.frombuffer(message, np.uint8).astype(np.float64)
    for received in parts(message):
        for tensor in received.tensors.values():
            raw = tensor.numpy().ravel()
            kinds = (np.int64, np.uint64, np.float64) if raw.dtype == np.int64 else (raw.dtype.type,)
            for kind in kinds:
                numbers = np.nan_to_num(raw.view(kind).astype(np.float64), posinf=0, neginf=0)
                scaled = numbers / max(1.0, np.abs(numbers).max(initial=0.0))
                yield scaled
                yield np.argsort(np.argsort(scaled)).astype(np.float64)


def parts(message: bytes) -> Iterator[Received]:
    for part in unframe(message)[1]:
        try:
            yield Received(*unpack(part))
        except BadMessage:
            continue  # an empty one, of a phase that failed


# -- what the server may know --


def compare_sums(messages: Sequence[bytes], truth: Truth) -> dict[str, Any]:
    """Put the sums together from what was received, as the server did, and compare them with the true ones."""
    sessions: dict[str, list[Received]] = {}
    for received in itertools.chain.from_iterable(map(parts, messages)):
        if "session" in received.header:
            sessions.setdefault(str(received.header["session"]), []).append(received)
    error, expected = 0.0, next(iter(truth.values()))
    for round, session in enumerate(sessions):
        arrived = [one for one in range(NODES) if (round, one) != (ROUNDS - 1, GONE)]
        total = replay(session, sessions[session], _layout(expected))
        for name, table in total.totals.items():
            wanted = torch.stack([truth[round, node].totals[name].double() for node in arrived]).sum(0)
            error = max(error, float((table - wanted).abs().max()))
        if len(total.clients) != sum(len(truth[round, node].clients) for node in arrived):
            raise FedrecError(f"the sum of round {round + 1} is not of those {len(arrived)} nodes")
    if len(sessions) != ROUNDS:
        raise FedrecError(f"{len(sessions)} secure sums in {ROUNDS} rounds: one was begun again; try once more")
    return {"error": error, "bound": NODES * 2.0**-33}


def _layout(update: Update) -> Layout:
    return Layout(
        tuple(Part(name, tuple(update.totals[name].shape), name in update.means) for name in sorted(update.totals))
    )


def replay(session: str, received: Sequence[Received], layout: Layout) -> Update:
    """A secure sum from its messages alone."""
    phases: dict[str, dict[int, Received]] = {}
    for one in received:
        phases.setdefault(str(one.header["phase"]), {})[int(one.header["from"])] = one
    clients = {member: one.tensors["clients"].numpy() for member, one in phases["masked"].items()}
    collector = Collector(
        Terms(session, layout, LEAST), {member: clients.get(member, np.zeros(0, np.int64)) for member in phases["keys"]}
    )
    steps: Sequence[tuple[str, Callable[[int, bytes], None], Callable[[], Any]]] = [
        ("keys", collector.take_keys, collector.close_keys),
        ("shares", collector.take_shares, collector.close_shares),
        ("masked", collector.take_masked, collector.close_masked),
        ("unmask", collector.take_unmasked, lambda: None),
    ]
    for phase, take, close in steps:
        for member, one in phases[phase].items():
            take(member, pack(one.header, one.tensors))
        close()
    return collector.result()
