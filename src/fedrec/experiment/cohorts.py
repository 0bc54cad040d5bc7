"""Clients of several kinds (`Method.cohorts`): how many of each a protocol tests, and how each did.

A split may have no test rows for some of them. The mean over all tested users then says nothing about these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrec.evaluation import Evaluation
from fedrec.federation.contract import cohorts_of

if TYPE_CHECKING:
    from fedrec.experiment.run_plan import RunPlan


@dataclass(frozen=True)
class TestedCohort:
    """The clients of one cohort and their users; `tested` are the users with held-out test items."""

    name: str
    clients: int
    clients_tested: int
    users: int
    tested: np.ndarray

    def describe(self) -> str:
        clients = f"{self.clients_tested:,} of {self.clients:,} clients"
        return f"{self.name} {len(self.tested):,} of {self.users:,} users ({clients})"

    def record(self, test: Evaluation) -> dict[str, Any]:
        return {
            "name": self.name,
            "clients": self.clients,
            "clients_tested": self.clients_tested,
            "users": self.users,
            "users_tested": len(self.tested),
            "test": test.for_users(self.tested).mean() if len(self.tested) else {},
        }


def find_tested_cohorts(plan: RunPlan) -> list[TestedCohort]:
    """Empty where all clients are of one kind."""
    cohorts = cohorts_of(plan.method, plan.world)
    if len(cohorts) < 2:
        return []
    client_of, tested = plan.prepared.partition.client_of(), plan.prepared.test.users
    found = []
    for cohort in cohorts:
        mine = tested[np.isin(client_of[tested], cohort.clients)]
        users = int(np.isin(client_of, cohort.clients).sum())
        found.append(TestedCohort(cohort.name, len(cohort.clients), len(np.unique(client_of[mine])), users, mine))
    return found


def note_cohorts(plan: RunPlan) -> list[str]:
    """Which users a figure over all tested users is about, cohort by cohort."""
    cohorts = find_tested_cohorts(plan)
    if not cohorts:
        return []
    silent = [cohort.name for cohort in cohorts if not len(cohort.tested)]
    end = f"; test metrics do not cover {', '.join(silent)}" if silent else ""
    return [f"tested, cohort by cohort: {', '.join(cohort.describe() for cohort in cohorts)}{end}"]
