"""summary.json of a deployment: as that of a simulation, without what a server must not have."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from fedrec.experiment.checks import DELTA, LAST
from fedrec.experiment.config import FORMAT
from fedrec.experiment.machine import peak_memory_mb, versions
from fedrec.experiment.run_summary import ending
from fedrec.experiment.tested import count_tested_by_nodes
from fedrec.privacy.accountant import NOT_COVERED, Adjacency, Guarantee, guarantee
from fedrec.privacy.explain import describe_relation

if TYPE_CHECKING:
    from fedrec.deploy.server import Server
    from fedrec.deploy.terms import Terms

APART = (
    "deployed: metrics are sums computed by the nodes; coverage and novelty, which need all users' lists and "
    "histories, are left out"
)
SEEDED = "a rehearsal: the clients' random draws come from the seed, so anyone who knows it can repeat them"


def privacy_of(terms: Terms, silos: bool) -> dict[str, Any]:
    """Say what a client has that uploads in every round; nodes answer each round once, whatever is repeated."""
    method, config = terms.method, terms.config
    delta, uploads, relation = config.delta or DELTA, method.rounds, config.adjacency or "replace"

    def guarantee_by(adjacency: Adjacency, honest: float = 1.0) -> Guarantee:
        return guarantee(terms.stages, uploads, delta, (), method.disclosure.sensitivity, adjacency, honest)

    found = guarantee_by(relation)
    about = describe_relation(
        terms.stages,
        lambda adjacency, honest: guarantee_by(adjacency, honest).epsilon,
        relation,
        single_users=not silos,
        computed=True,
    )
    return {
        "stages": [str(stage) for stage in terms.stages],
        "epsilon": found.epsilon,
        "delta": found.delta,
        "uploads": uploads,
        "planned": {"uploads": uploads, "epsilon": found.epsilon},
        "unprotected_bytes": {},  # under a budget nodes send none
        "meaning": found.reason,
        **about,
        "not_covered": NOT_COVERED,
    }


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
    budget = terms.config.epsilon is not None
    notes = [APART, *([SEEDED] if terms.seeded else []), *method.remarks(terms.world()), *([ended] if ended else [])]
    notes += [LAST] if budget else []
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
        "decided": dict(method.round_parameters(chosen)),
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
        **({"privacy": privacy_of(terms, kept > clients)} if budget else {}),
        "deployment": {
            "nodes": len(members),
            "clients": clients,
            "tested_users": users,
            "cpu_per_node_and_turn": sum(member.cpu for member in members) / max(1, turns),
            "cpu_of_server": time.process_time(),
            **dataclasses.asdict(server.counters),
        },
    }
