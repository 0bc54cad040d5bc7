"""Rows of a figure by what tells them apart, and the metric they are shown by."""

from __future__ import annotations

from collections.abc import Sequence

from fedrec.errors import FedrecError, unknown
from fedrec.experiment.finished_run import FinishedRun
from fedrec.report.comparison import Row

LONGEST = 24  # letters beside a chart


def short_names(labels: Sequence[str]) -> list[str]:
    """Labels without the settings that all rows of the same method share; numbered where they stay too long."""
    split = [label.split(" ") for label in labels]
    found = []
    for method, *parts in split:
        others = [set(rest) for name, *rest in split if name == method]
        found.append([method, *(part for part in parts if not all(part in other for other in others))])
    if any(len(" ".join(words)) > LONGEST for words in found):
        found = _shorter(found)
    methods = [name for name, *_ in split]
    return [
        name if len(name) <= LONGEST else f"{method} #{index + 1}" if methods.count(method) > 1 else method
        for index, (name, method) in enumerate(zip(map(" ".join, found), methods, strict=True))
    ]


def _shorter(names: Sequence[Sequence[str]]) -> list[list[str]]:
    """Without the settings, last ones first, that tell nobody apart, and without a method that is everybody's."""
    found = [list(words) for words in names]
    for setting in reversed(list(dict.fromkeys(_setting(word) for words in names for word in words[1:]))):
        fewer = [[words[0], *(word for word in words[1:] if _setting(word) != setting)] for words in found]
        found = fewer if len(set(map(tuple, fewer))) == len(set(map(tuple, found))) else found
    same = len({words[0] for words in found}) == 1 and all(len(words) > 1 for words in found)
    return [words[1:] for words in found] if same else found


def _setting(word: str) -> str:
    """What a word of a label sets; backbones and presets stand there without a name."""
    return word.split("=")[0] if "=" in word else ""


def rows_of(runs: Sequence[FinishedRun]) -> list[Row]:
    """Seeds of one configuration as one row; the same seed twice is refused."""
    groups: dict[tuple[str, str, str], list[FinishedRun]] = {}
    for run in runs:
        groups.setdefault((run.data, run.protocol, run.label), []).append(run)
    for (*_, label), members in groups.items():
        seeds = {run.summary["seed"] for run in members}
        if len(seeds) < len(members):
            folders = ", ".join(str(run.folder) for run in members)
            raise FedrecError(f"'{label}' is given twice with the same seed ({folders}); remove one of them")
    return [Row(label, tuple(members)) for (*_, label), members in groups.items()]


def choose_metric(runs: Sequence[FinishedRun], wanted: str, part: str = "test") -> str:
    """The metric asked for if every run has it."""
    common = set.intersection(*(set(run.summary[part]) for run in runs))
    if not common:
        raise FedrecError(f"these runs have no {part} metric in common; give runs of one protocol")
    if wanted not in common:
        raise unknown("metric", wanted, common)
    return wanted
