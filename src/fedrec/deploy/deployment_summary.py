"""summary.json of a deployment: as that of a simulation, without what a server must not have."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from fedrec.experiment.config import FORMAT
from fedrec.experiment.machine import peak_memory_mb, versions
from fedrec.experiment.summary import ending
from fedrec.experiment.tested import count_tested_by_nodes

if TYPE_CHECKING:
    from fedrec.deploy.server import Server

APART = (
    "deployed: metrics are sums computed by the nodes; coverage and novelty, which need all users' lists and "
    "histories, are left out"
)
SEEDED = "a rehearsal: the clients' random draws come from the seed, so anyone who knows it can repeat them"


def summary_of(
    server: Server, chosen: int, test: dict[str, float], valid: dict[str, float], luck: dict[str, float], users: int
) -> dict[str, Any]:
    terms, progress, members = server.terms, server.progress, server.members
    method, ended = terms.method, ending(progress)
    ledger, clients = server.turns.ledger, sum(member.clients for member in members)
    ledger.up[0], ledger.down[0] = (sum(entry[way] for entry in ledger.rounds.values()) for way in ("up", "down"))
    kept = sum(member.users for member in members)
    given = sum(member.given or member.users for member in members) + terms.left_out
    turns = sum(member.turns for member in members)
    held = dict(
        zip(
            ("kept_per_client", "to_score_per_client"),
            (size / max(1, clients) for size in server.turns.held),
            strict=True,
        )
    )
    notes = [APART, *([SEEDED] if terms.seeded else []), *method.remarks(terms.world()), *([ended] if ended else [])]
    return {
        "format": FORMAT,
        "method": method.info.name,
        "backbone": getattr(method, "backbone", None),
        "preset": terms.config.preset,
        "dataset": {
            "name": terms.config.data,
            "version": terms.version,
            "users": kept,
            "items": len(terms.items),
            "interactions": sum(member.interactions for member in members),
        },
        "filtered": [],
        "tested": count_tested_by_nodes(terms.protocol, terms.config.data, users, kept, given).to_dict(),
        "protocol": terms.protocol.label,
        "leaks": list(terms.protocol.leaks),
        "notes": notes,
        "clients": terms.clients,
        "seed": terms.config.seed,
        "rounds_run": progress.next_round,
        "best_round": chosen,
        "decided": dict(method.decided(chosen)),
        "stopped_early": progress.stopped_early,
        "diverged": ended,
        "test": test,
        "valid": valid,
        "chance": luck,
        "bytes": ledger.per_client_round() | held,
        "seconds": {
            "train": progress.seconds_train,
            "evaluate": progress.seconds_evaluate,
            "total": progress.seconds_train + progress.seconds_evaluate,
        },
        "peak_memory_mb": peak_memory_mb(),
        "versions": versions(),
        "deployment": {
            "nodes": len(members),
            "clients": clients,
            "tested_users": users,
            "cpu_per_node_and_turn": sum(member.cpu for member in members) / max(1, turns),
            "cpu_of_server": time.process_time(),
            **dataclasses.asdict(server.counters),
        },
    }
