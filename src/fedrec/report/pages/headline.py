"""What came out, in sentences that need no table: figures, references, and which differences are significant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedrec.report.pages.views import View
from fedrec.report.significance import Significance

SIGNS = {1: "significantly better than", 0: "not significantly different from", -1: "significantly worse than"}


def headline(
    shown: Sequence[View], chance: Mapping[str, float], k: int, single: bool, users: str, tests: Significance | None
) -> str:
    """`users`: those that were tested, in words. `tests` knows the rows by the names of the views; without it nothing
    is said to be better than another."""
    metric = f"recall@{k}"
    asked = [view for view in shown if not view.reference and view.row.mean(metric) is not None]
    if not asked:
        return ""
    what = (
        f"of {users} find their held-out item among the first {k}"
        if single
        else f"of a user's held-out items, on average over {users}, are among the first {k}"
    )
    parts = [
        _winner(shown, tests) if tests is not None and len(asked) > 1 else "",
        f"{_share(asked, metric)} {what} recommended.",
        _references(shown, chance, metric),
        _against_references(shown, asked, tests) if tests is not None else "",
    ]
    return " ".join(part for part in parts if part)


def _winner(shown: Sequence[View], tests: Significance) -> str:
    """Which row is significantly best, or which are not significantly different from the highest."""
    alike = [view.name for view in shown if view.name in tests.like_the_best()]
    # Where the best is not significantly better, the sentence must not name a winner.
    if alike:
        same = f"{join_words(alike)} {_be(alike)} {SIGNS[0]} {tests.best}"
        return f"None is significantly best on {tests.metric}: {same}, which has the highest mean."
    others = [view.name for view in shown if view.name != tests.best]
    rest = others[0] if len(others) == 1 else "all others"
    return f"{tests.best} is {SIGNS[1]} {rest} on {tests.metric}."


def _share(asked: Sequence[View], metric: str) -> str:
    means = sorted((view.row.mean(metric) or 0.0, view.name) for view in asked)
    if len(means) == 1:
        return f"With {means[0][1]}, {percent(means[0][0])}"
    low, high = (f"{percent(value)} ({name})" for value, name in (means[0], means[-1]))
    return f"Between {low} and {high}"


def _references(shown: Sequence[View], chance: Mapping[str, float], metric: str) -> str:
    means = [(view.name, view.row.mean(metric)) for view in shown if view.reference]
    parts = [f"{name} reaches {percent(mean)}" for name, mean in means if mean is not None]
    if metric in chance:
        parts.append(f"chance gives {percent(chance[metric])}")
    text = ", ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _against_references(shown: Sequence[View], asked: Sequence[View], tests: Significance) -> str:
    """One configuration against its references; of several, those that are not significantly better."""
    found = [
        (tests.sign(view.name, other.name), view.name, other.name)
        for other in shown
        if other.reference
        for view in asked
    ]
    if len(asked) == 1:
        by_sign = {sign: [other for s, _, other in found if s == sign] for sign in SIGNS}
        parts = [f"{SIGNS[sign]} {join_words(others)}" for sign, others in by_sign.items() if others]
        return f"On {tests.metric} it is {join_words(parts)}." if parts else ""
    groups: dict[tuple[int, str], list[str]] = {}
    for sign, name, other in found:
        # Who is like the winner was said in the first sentence already.
        said = sign == 0 and other == tests.best  # with the winner
        if sign is not None and sign <= 0 and not said:
            groups.setdefault((sign, other), []).append(name)
    return " ".join(
        f"{join_words(names)} {_be(names)} {SIGNS[sign]} {other}." for (sign, other), names in groups.items()
    )


def join_words(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _be(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def percent(value: float) -> str:
    # Two digits for small values, which would else all read 0.0 %.
    return f"{100 * value:.1f} %" if value >= 0.001 else f"{100 * value:.2f} %"
