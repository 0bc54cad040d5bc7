"""What a run is about to do, written down when it begins: who watches it learns how far it is, and what it spends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedrec.experiment.checks import promise_of
from fedrec.experiment.machine import hardware
from fedrec.schema import COUNT, NUMBER, TEXT, Shape, check

if TYPE_CHECKING:
    from fedrec.experiment.run_plan import RunPlan
    from fedrec.federation.loop import Rules

STEPS = 12  # points of the curve of the privacy budget: it is smooth, and drawn small
PLAN: dict[str, Shape] = {
    "rounds": COUNT,
    "eval_every": COUNT,
    "metric": TEXT,
    "data": TEXT,
    "users": COUNT,
    "items": COUNT,
    "clients": COUNT,
    "device": TEXT,
    "hardware": TEXT,
}
BUDGET: dict[str, Shape] = {"delta": NUMBER, "spent": [{"uploads": COUNT, "epsilon": NUMBER}], "meaning": TEXT}


def describe_plan(plan: RunPlan, rules: Rules) -> dict[str, Any]:
    """Describe a run before its first round."""
    source = plan.prepared.source
    return {
        "rounds": rules.rounds,
        "eval_every": rules.eval_every,
        "metric": plan.protocol.select_metric,
        "data": source.name,
        "users": source.n_users,
        "items": source.n_items,
        "clients": plan.world.clients,
        "device": plan.world.device.type,
        "hardware": hardware(plan.world.device),
        **({"privacy": _describe_budget(plan)} if plan.claims_epsilon else {}),
    }


def check_plan(plan: Any) -> None:
    """Raise ValueError, with the place, where a plan is not one."""
    check("plan", plan, PLAN)
    if "privacy" in plan:
        check("plan.privacy", plan["privacy"], BUDGET)


def _describe_budget(plan: RunPlan) -> dict[str, Any]:
    """Compute the epsilon of a client that has uploaded in every round so far, at some rounds up to the last."""
    rounds = plan.method.rounds
    counts = sorted({round(rounds * step / STEPS) for step in range(STEPS + 1)})
    promises = [promise_of(plan, uploads, ()) for uploads in counts]
    spent = [
        {"uploads": one.uploads, "epsilon": one.epsilon} for one in promises if one.epsilon is not None
    ]  # none where nothing is promised, which the run says itself at its end
    return {"delta": promises[-1].delta or 0.0, "spent": spent, "meaning": promises[-1].reason}
