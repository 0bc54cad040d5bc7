"""What is to be said of every printed cell: whether it agrees, and if not, why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from fedrec_studies.reproduce.causes import Cause, Findings, Reason, Uncounted
from fedrec_studies.reproduce.coverage import CellCoverage, State

Verdict = Reason | Literal["agrees", "not explained yet", "too long", "data missing", "not run yet", "another kind"]
VERDICTS: dict[Verdict, str] = {
    "agrees": "within a tenth of print, or two standard deviations over at least three seeds",
    "ours is wrong": "a known mistake or reading of ours; to be run again",
    "text and code differ": "the paper's text and its released code are two methods",
    "settings not stated": "print depends on what is not said; its cause names what was tried, often one reading",
    "data differ": "the data or the users are not those of print",
    "nobody gets it": "no program gives the printed figure; here the leak of the protocol shows it",
    "too few rounds": "the run ended before the figure of print is reached",
    "not explained yet": "measured, apart, and no cause is known",
    "too long": "not measured: it takes more time than a table may",
    "data missing": "not measured: the data cannot be had here",
    "not run yet": "not measured",
    "another kind": "such as seconds on another machine, with which nothing can agree",
}
UNMEASURED: dict[State, Verdict] = {
    "unavailable": "data missing",
    "too long": "too long",
    "not run": "not run yet",
    "elsewhere": "another kind",
}
NOT_HERE: frozenset[Verdict] = frozenset({"data missing", "another kind", "nobody gets it"})
"""Verdicts of cells that agreement is not measured on."""


@dataclass(frozen=True)
class Judgement:
    """The verdict on one cell. `number` and `cause` say why a measured one does not agree, where that is known."""

    coverage: CellCoverage
    verdict: Verdict
    number: int = 0
    cause: Cause | None = None
    uncounted: Uncounted | None = None
    """Derived cells follow from others and repeated ones stand twice in print: both are shown, not counted."""


def judge(reached: Iterable[CellCoverage], known: Findings) -> list[Judgement]:
    return [_judge_cell(one, known) for one in reached]


def _judge_cell(one: CellCoverage, known: Findings) -> Judgement:
    uncounted = known.why_not_counted(one.cell)
    if one.state != "measured":
        return Judgement(one, UNMEASURED[one.state], uncounted=uncounted)
    if one.best.agrees:
        return Judgement(one, "agrees", uncounted=uncounted)
    if (named := known.cause(one.cell)) is None:
        return Judgement(one, "not explained yet", uncounted=uncounted)
    return Judgement(one, named[1].verdict, *named, uncounted=uncounted)


def count_verdicts(judged: Iterable[Judgement]) -> Counter[Verdict]:
    """Count by verdict, without derived and repeated cells."""
    return Counter(one.verdict for one in judged if one.uncounted is None)


def agreement(judged: Sequence[Judgement]) -> tuple[int, int]:
    """Return how many counted cells agree, and how many could: their data is here and print is not the leak's."""
    found = count_verdicts(judged)
    return found["agrees"], sum(number for verdict, number in found.items() if verdict not in NOT_HERE)
