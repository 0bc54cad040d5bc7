"""summary.json: all that a reader of a finished run needs, in one dictionary."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrec.evaluation import Evaluation, chance, with_chance
from fedrec.experiment.checks import promise_of
from fedrec.experiment.cohorts import find_tested_cohorts
from fedrec.experiment.config import FORMAT
from fedrec.experiment.machine import hardware, peak_memory_mb, versions
from fedrec.experiment.params import defaults_of
from fedrec.experiment.tested import TESTED, count_tested
from fedrec.federation.loop import Progress
from fedrec.privacy.accountant import NOT_COVERED
from fedrec.privacy.explain import describe_relation
from fedrec.schema import COUNT, METRICS, NAMES, NUMBER, SIZES, TEXT, TEXTS, Shape, check, optional

if TYPE_CHECKING:
    from fedrec.experiment.driver import Run

SUMMARY: dict[str, Shape] = {
    "method": TEXT,
    "backbone": optional(TEXT),
    "dataset": {"name": TEXT, "version": TEXT, "users": COUNT, "items": COUNT, "interactions": COUNT},
    "protocol": TEXT,
    "leaks": TEXTS,
    "notes": TEXTS,
    "clients": COUNT,
    "seed": COUNT,
    "rounds_run": COUNT,
    "best_round": COUNT,
    "test": METRICS,
    "valid": METRICS,
    "chance": METRICS,
    "bytes": {"up_per_client_round": NUMBER, "down_per_client_round": NUMBER},
    "seconds": {"train": NUMBER, "evaluate": NUMBER},
    "peak_memory_mb": NUMBER,
    "versions": {},
}
"""What a reader may rely on; the parts below are absent from runs of earlier versions."""
FILTERED: list[Shape] = [{"rule": TEXT, "users": COUNT, "items": COUNT, "rows": COUNT}]
PRIVACY: dict[str, Shape] = {"stages": TEXTS, "epsilon": optional(NUMBER), "delta": optional(NUMBER), "meaning": TEXT}
COUNTED: dict[str, Shape] = {
    "uploads": COUNT,
    "planned": {"uploads": COUNT},
    "unprotected_bytes": SIZES,
    "not_covered": TEXT,
}


def check_summary(summary: Any) -> None:
    """Raise ValueError, with the place, where a summary is not one."""
    check("summary", summary, SUMMARY)
    check("summary.filtered", summary.get("filtered", []), FILTERED)
    check("summary.tested", summary.get("tested", {}), TESTED if "tested" in summary else {})
    check("summary.dataset.columns", summary["dataset"].get("columns", {}), NAMES)
    check("summary.defaults", summary.get("defaults", {}), {})
    if "privacy" not in summary:
        return
    privacy = summary["privacy"]
    check("privacy", privacy, PRIVACY)
    if "planned" in privacy:
        check("privacy", privacy, COUNTED)
        kind = NUMBER if privacy["epsilon"] is not None else optional(NUMBER)
        check("privacy.planned.epsilon", privacy["planned"].get("epsilon"), kind)


def summary_of(run: Run, chosen: int, test: Evaluation, valid: dict[str, float]) -> dict[str, Any]:
    """Of a run whose present state is that of the round `chosen`."""
    method, progress, source = run.method, run.progress, run.prepared.source
    ended = ending(progress)
    summary: dict[str, Any] = {
        "format": FORMAT,
        "method": method.info.name,
        "backbone": getattr(method, "backbone", None),
        "preset": run.config.preset,
        "dataset": {
            "name": source.name,
            "version": source.version,
            "users": source.n_users,
            "items": source.n_items,
            "interactions": run.prepared.n_interactions,
            **({"columns": dict(source.columns)} if source.columns else {}),
        },
        "filtered": [one.to_dict() for one in run.prepared.filters],
        "tested": count_tested(run.prepared).to_dict(),
        "protocol": run.plan.protocol.label,
        "leaks": list(run.plan.protocol.leaks),
        "notes": [*run.plan.notes, ended] if ended else run.plan.notes,
        "clients": run.world.clients,
        "seed": run.config.seed,
        "rounds_run": progress.next_round,
        "best_round": chosen,
        "decided": dict(method.round_parameters(chosen)),
        "stopped_early": progress.stopped_early,
        "diverged": ended,
        "test": test.mean(),
        "valid": valid,
        "chance": chance(run.prepared.test, run.plan.protocol.ks, with_chance(run.plan.protocol.metrics)),
        "bytes": run.simulator.ledger().per_client_round() | run.simulator.state_bytes_per_client(),
        "seconds": {
            "train": progress.seconds_train,
            "evaluate": progress.seconds_evaluate,
            "total": progress.seconds_train + progress.seconds_evaluate,
        },
        "peak_memory_mb": peak_memory_mb(),
        "versions": versions(),
        "hardware": hardware(run.world.device),
        "finished": f"{datetime.now(UTC):%Y-%m-%d}",
    }
    if not type(method).__module__.startswith("fedrec."):  # who reads it later may not know the method
        summary["defaults"] = defaults_of(method)
    if cohorts := find_tested_cohorts(run.plan):
        summary["blocks"] = [cohort.record(test) for cohort in cohorts]
    if run.plan.stages:
        summary["privacy"] = privacy_of(run)
    return summary


def ending(progress: Progress) -> str:
    """What a reader must know about a run that diverged; empty otherwise."""
    why, chosen = progress.diverged, progress.best_round + 1
    return f"{why}; the figures are those of round {chosen}, chosen before that" if why else ""


def privacy_of(run: Run) -> dict[str, Any]:
    """What the client that uploaded most often has, and what one that uploads in every round would have.

    Actual uploads count only where the schedule was fixed before the first round. Where it depends on what was sent,
    only the bound for every round holds.
    """
    ledger, rounds = run.simulator.ledger(), run.method.rounds
    most, bound = int(ledger.uploads.max(initial=0)), promise_of(run.plan, rounds, ledger.unprotected)
    known = run.scheduled is not None and np.array_equal(ledger.uploads, run.scheduled)
    counted = most if known else rounds
    found = promise_of(run.plan, counted, ledger.unprotected)
    return {
        "stages": [str(stage) for stage in run.plan.stages],
        "epsilon": found.epsilon,
        "delta": found.delta,
        "uploads": most,
        "planned": {"uploads": rounds, "epsilon": bound.epsilon},
        "unprotected_bytes": ledger.unprotected,
        "meaning": found.reason,
        **({} if found.epsilon is None else _relation_of(run, counted, ledger.unprotected)),
        "not_covered": "" if found.epsilon is None else NOT_COVERED,
    }


def _relation_of(run: Run, uploads: int, unprotected: Mapping[str, int]) -> dict[str, Any]:
    """What the epsilon of a run is of."""
    plan, config = run.plan, run.config
    return describe_relation(
        plan.stages,
        lambda adjacency, honest: promise_of(plan, uploads, unprotected, adjacency, honest).epsilon,
        config.adjacency or "replace",
        single_users=run.world.most_users == 1,
        computed=bool(config.secure_sums),
    )
