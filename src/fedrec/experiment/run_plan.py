"""What a run is about to do, written down when it begins: who watches it learns how far it is, and what it spends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedrec.experiment.checks import promised
from fedrec.experiment.machine import hardware
from fedrec.schema import COUNT, NUMBER, TEXT, Shape, check

if TYPE_CHECKING:
    from fedrec.experiment.run import Run

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


def plan_of(run: Run) -> dict[str, Any]:
    """Describe a run before its first round."""
    source = run.prepared.source
    return {
        "rounds": run.rules.rounds,
        "eval_every": run.rules.eval_every,
        "metric": run.protocol.select_metric,
        "data": source.name,
        "users": source.n_users,
        "items": source.n_items,
        "clients": run.world.clients,
        "device": run.world.device.type,
        "hardware": hardware(run.world.device),
        **({"privacy": _budget(run)} if run.claims else {}),
    }


def check_plan(plan: Any) -> None:
    """Raise ValueError, with the place, where a plan is not one."""
    check("plan", plan, PLAN)
    if "privacy" in plan:
        check("plan.privacy", plan["privacy"], BUDGET)


def _budget(run: Run) -> dict[str, Any]:
    """The epsilon of a client that has uploaded in every round so far, at some rounds up to the last."""
    rounds = run.method.rounds
    counts = sorted({round(rounds * step / STEPS) for step in range(STEPS + 1)})
    promises = [promised(run, uploads, ()) for uploads in counts]
    spent = [
        {"uploads": one.uploads, "epsilon": one.epsilon} for one in promises if one.epsilon is not None
    ]  # none where nothing is promised, which the run says itself at its end
    return {"delta": promises[-1].delta or 0.0, "spent": spent, "meaning": promises[-1].reason}
