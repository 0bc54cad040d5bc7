"""The leak audit: does an experiment's figure show recommendation accuracy, or what its set-up gives away?

Each check is a function from a case to a finding. A check names what it needs; where that is missing, it is not
applicable and says why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedrec.experiment.audit import ranking_checks, split_checks, training_checks
from fedrec.experiment.audit.case import Case
from fedrec.experiment.audit.finding import Finding, Status


@dataclass(frozen=True)
class Check:
    name: str
    run: Callable[[Case], Finding]
    needs: tuple[str, ...] = ()


CHECKS: tuple[Check, ...] = (
    Check("split overlap", split_checks.overlap),
    Check("held-out items as training negatives", training_checks.held_out_negatives, ("draws",)),
    Check("taste-blind counter", training_checks.counter, ("draws",)),
    Check("local against popularity", training_checks.local, ("prepared",)),
    Check("selection on test", ranking_checks.selection, ("protocol",)),
    Check("constant scorer", ranking_checks.constant_scorer, ("protocol",)),
    Check("NaN scores", ranking_checks.nan_scores, ("protocol",)),
    Check("masks", ranking_checks.masks, ("protocol",)),
    Check("test items at validation", ranking_checks.validation_masks, ("validation", "protocol")),
    Check("histories used for scoring", ranking_checks.histories, ("prepared",)),
    Check("repeated evaluation negatives", ranking_checks.check_repetitions, ("negatives",)),
    Check("positives among evaluation negatives", ranking_checks.check_candidates, ("negatives",)),
    Check("test item among its negatives", ranking_checks.own_item_candidates, ("negatives",)),
    Check("finite scores", ranking_checks.finite_scores, ("scores",)),
    Check("tied scores", ranking_checks.check_ties, ("scores",)),
    Check("sampled candidates", ranking_checks.check_sampling),
    Check("items never trained", split_checks.unseen_items),
    Check("users never trained", split_checks.unseen_users),
    Check("own future in training", split_checks.check_own_future, ("times",)),
    Check("others' future in training", split_checks.check_future_of_others, ("clock",)),
)


@dataclass(frozen=True)
class Report:
    """All findings on one case."""

    case: Case
    findings: tuple[Finding, ...]

    @property
    def has_failed(self) -> bool:
        return any(finding.status == "fail" for finding in self.findings)

    def __getitem__(self, name: str) -> Finding:
        return next(finding for finding in self.findings if finding.name == name)

    @property
    def verdict(self) -> str:
        """One line for the end of the output."""
        counts = Counter(finding.status for finding in self.findings)
        names: dict[Status, str] = {
            "fail": "failed",
            "warn": "warning" + "s" * (counts["warn"] != 1),
            "pass": "passed",
            "n/a": "not applicable",
        }
        words = ", ".join(f"{counts[status]} {name}" for status, name in names.items())
        return words if self.has_failed else f"no check failed ({words})"

    def to_dict(self) -> dict[str, Any]:
        return {
            "audited": self.case.title,
            "failed": self.has_failed,
            "findings": [finding.to_dict() for finding in self.findings],
        }


def audit(case: Case, listen: Callable[[str], None] = lambda name: None) -> Report:
    """Run every check that applies; `listen` hears the name of each before it starts."""
    findings = []
    for check in CHECKS:
        listen(check.name)
        missing = next((need for need in check.needs if not getattr(case, need)), None)
        findings.append(check.run(case) if missing is None else _absent(check, case, missing))
    return Report(case, tuple(findings))


def _absent(check: Check, case: Case, missing: str) -> Finding:
    reason = case.absent.get(missing, f"no {missing}")
    return Finding(check.name, "n/a", f"{reason[0].upper()}{reason[1:]}.")
