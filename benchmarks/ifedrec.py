"""IFedRec at the size of CiteULike: 5,551 clients, 13,584 known items, vectors of 200; seconds per round and memory.

`python -m benchmarks ifedrec [--quick]`. Interactions are synthetic, attributes random: neither changes the work. The
comparison is a plain loop over clients, each with a module and optimisers of its own and its whole item table. It is
timed on some clients, which stand for all by their number of interactions, and scaled to all of them; drawing samples
is left out of its time and counted in ours. Each measurement runs in a process of its own.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import machine
from benchmarks.scale import peak_gib
from fedrec import console
from fedrec.data import one_user_per_client, synthetic
from fedrec.federation.clients import ClientData
from fedrec.federation.contract import World
from fedrec.federation.simulator import Simulator
from fedrec.methods.cold.content import normal_rows
from fedrec.methods.cold.ifedrec import IFedRec
from fedrec.training.samples import Samples

CLIENTS, ITEMS, INTERACTIONS, WIDTH = 5_551, 13_584, 164_210, 300
NEGATIVES = 5
NAMES = {"ncf": "IFedNCF", "linear": "IPFedRec"}
LIMIT = 10.0


def main(quick: bool, say: Callable[[str], None]) -> list[dict[str, Any]]:
    rounds, few = (1, 20) if quick else (3, 100)
    found = []
    for backbone in NAMES:
        say(f"ifedrec {backbone}: {rounds + 1} rounds")
        ours = machine.in_a_process("benchmarks.ifedrec", "round", backbone, rounds)
        say(f"ifedrec {backbone}: {few} clients one after another")
        plain = machine.in_a_process("benchmarks.ifedrec", "plain", backbone, few)
        ratio = plain["seconds_round"] / ours["seconds_round"]
        found.append({"backbone": backbone, "fedrec": ours, "plain": plain, "times_faster": ratio})
    _show(found)
    return found


def checks(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    what = "a round of {} at least {:.0f} times as fast as one client after another"
    return [
        {"what": what.format(NAMES[row["backbone"]], LIMIT), "value": row["times_faster"],
         "holds": row["times_faster"] >= LIMIT}
        for row in found
    ]  # fmt: skip


def one_round(backbone: str, rounds: int) -> dict[str, Any]:
    """The least seconds of some rounds, after a first one."""
    simulator = _simulator(backbone)
    logs, busy = [simulator.round(0)], []
    for number in range(1, rounds + 1):
        started = time.process_time()
        logs.append(simulator.round(number))
        busy.append(time.process_time() - started)
    seconds = [log.seconds for log in logs]
    return {"seconds_round": min(seconds[1:]), "cpu_seconds_round": min(busy), "seconds_all": seconds,
            "bytes_up": logs[-1].bytes_up / CLIENTS, "peak_gib": peak_gib()}  # fmt: skip


def plain(backbone: str, few: int) -> dict[str, Any]:
    """Some clients of the first round, one after another."""
    simulator = _simulator(backbone)
    method, data, start = simulator.method, simulator.data, simulator.server
    assert isinstance(method, IFedRec)
    spread = ((np.arange(few) + 0.5) / few * CLIENTS).astype(int)
    chosen = np.argsort(data.positives, kind="stable")[spread]
    total, seconds = torch.zeros_like(start["item"]), 0.0
    for number in chosen:
        batches = _batches(data, int(number), method.batch)
        started = time.perf_counter()
        total += _trained(method, data.world, start, batches)
        seconds += time.perf_counter() - started
    return {"clients": few, "seconds_client": seconds / few, "seconds_round": seconds / few * CLIENTS,
            "interactions_client": float(data.positives[chosen].mean()),
            "interactions_client_all": float(data.positives.mean()),
            "finite": bool(total.isfinite().all())}  # fmt: skip


class Client(nn.Module):
    """All that a client has, as one would first write it."""

    def __init__(self, table: Tensor, ncf: bool) -> None:
        super().__init__()
        dim = table.shape[1]
        self.item = nn.Parameter(table.clone())
        self.user = nn.Parameter(torch.randn(dim)) if ncf else None
        self.upper = nn.Sequential(nn.Linear(2 * dim, dim), nn.ReLU(), nn.Linear(dim, 1)) if ncf else nn.Linear(dim, 1)

    def forward(self, items: Tensor) -> Tensor:
        rows = self.item[items]
        if self.user is not None:
            rows = torch.cat([self.user.expand(len(rows), -1), rows], 1)
        logits: Tensor = self.upper(rows).squeeze(1)
        return logits


def _trained(method: IFedRec, world: World, start: dict[str, Tensor], batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The item table of one client after its round."""
    client, rates = Client(start["item"], method.backbone == "ncf"), method.rates(world)
    own = [torch.optim.SGD(client.upper.parameters(), lr=rates["dense"])]
    if client.user is not None:
        own.append(torch.optim.SGD([client.user], lr=rates["user"]))
    table = torch.optim.SGD([client.item], lr=rates["item"])
    turns = [own, [table]] if client.user is None else [[*own, table]]  # the linear scorer steps before the table does
    for items, label in batches:
        for optimisers in turns:
            client.zero_grad()
            loss = F.binary_cross_entropy_with_logits(client(items), label)
            if table in optimisers:
                loss = loss + method.align * F.mse_loss(client.item, start["representation"])
            loss.backward()
            for optimiser in optimisers:
                optimiser.step()
    return client.item.detach()


def _batches(data: ClientData, number: int, size: int) -> list[tuple[Tensor, Tensor]]:
    """Items and labels; a short last one is left out, as the method does."""
    samples = Samples(data.chunk(np.array([number])), 0, "bce", size)
    found = []
    for step, batch in enumerate(samples.epoch(0)):
        real = batch.valid[0]
        if step == 0 or int(real.sum()) == size:
            found.append((samples.item[batch.pos[0][real]], batch.label[0][real]))
    return found


def _simulator(backbone: str) -> Simulator:
    found, parts = synthetic(CLIENTS, ITEMS, INTERACTIONS).interactions, one_user_per_client(CLIENTS)
    world = World(items=ITEMS, clients=CLIENTS)
    data = ClientData.build(world, found.user, found.item, users=parts.users, client_ptr=parts.offsets,
                            negatives=NEGATIVES)  # fmt: skip
    settings = IFedRec.info.backbones.get(backbone, {})
    method = IFedRec(backbone=backbone, **settings)  # type: ignore[arg-type]
    return Simulator(method, data, attributes=normal_rows(world, 9, ITEMS, WIDTH))


def _show(found: list[dict[str, Any]]) -> None:
    rows = [
        [NAMES[row["backbone"]], row["fedrec"]["seconds_round"], f"{row['fedrec']['peak_gib']:.2f}",
         row["plain"]["seconds_client"], f"{row['plain']['seconds_round']:.0f}", f"{row['times_faster']:.0f}"]
        for row in found
    ]  # fmt: skip
    clients = found[0]["plain"]["clients"]
    columns = ["method", "round s", "peak GiB", "plain: client s", "plain: round s", "times faster"]
    title = (
        f"\nIFedRec, {CLIENTS:,} clients x {ITEMS:,} items x 200 on {INTERACTIONS:,} synthetic interactions\n"
        f"plain: one client after another, timed on {clients} of them and scaled to all; peak: whole process"
    )
    console.table(columns, rows, title=title)


if __name__ == "__main__":
    kind, backbone, count = sys.argv[1:]
    print(json.dumps({"round": one_round, "plain": plain}[kind](backbone, int(count))))
