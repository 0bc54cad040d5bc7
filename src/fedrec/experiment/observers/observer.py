"""What an observer can be asked; the default observes nothing and stops nothing."""

from __future__ import annotations

from collections.abc import Mapping

from fedrec.evaluation import Evaluation
from fedrec.federation.simulator import Simulator


class Observer:
    settles = False  # whether it has a rule to end a run by what rounds observed, `settled`

    def looks_before_answer(self, round: int) -> bool:
        """Whether the answer of this round changes what clients score with: quality before it is then recorded too."""
        return False

    def before_answer(self, simulator: Simulator, round: int) -> None:
        """In such a round, if it is evaluated: remember what the answer is about to change."""

    def figures(self, simulator: Simulator, round: int) -> Mapping[str, float]:
        """For the record of a round that is evaluated."""
        return {}

    def effect(self, simulator: Simulator, before: Evaluation, after: Evaluation) -> Mapping[str, float]:
        """Of an answer that was looked at from both sides, for the record of its round."""
        return {}

    def may_stop(self, round: int) -> bool:
        """Whether a run whose patience ran out may end after this round, or must see what the next one brings."""
        return True

    def is_settled(self, round: int, before: Mapping[str, float], now: Mapping[str, float]) -> bool:
        """Whether a run ends after this round, by what the round before and this one observed."""
        return False
