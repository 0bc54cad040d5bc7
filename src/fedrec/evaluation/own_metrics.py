"""Metrics of one's own: functions of ranks and relevance, registered in Python or by an entry point.

    @fedrec.metric("rbp", "rank-biased precision, persistence 0.8")
    def rbp(ranks, relevance, held_out):
        return 0.2 * (relevance * 0.8 ** (ranks - 1)).sum(1)

`ranks` is 1 to k; `relevance` has a row per user with a 1 at each rank where a held-out item stands; `held_out` is how
many held-out items each user has. The answer is one number per user: the higher, the better, from 0 to `most`. The
metric is then `rbp@k` for every k of the protocol. In a package, the entry point group is `fedrec.metrics`.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from fedrec import plugins
from fedrec.errors import FedrecError, FedrecWarning
from fedrec.evaluation.relevance import Floats, expectation
from fedrec.evaluation.targets import Ints

OfRanks: TypeAlias = Callable[[Ints, Floats, Ints], Any]

NAME = r"[a-z][a-z0-9_]*"
LARGEST = 1e6
# Sums of floats may pass a bound by rounding alone, which is no mistake of the metric's author.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Metric:
    """A function of ranks and relevance, and what it is called."""

    name: str
    summary: str
    function: OfRanks = field(repr=False)
    most: float = 1.0
    """The largest value it can take; the smallest is 0."""

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and re.fullmatch(NAME, self.name)):
            raise FedrecError(f"a metric cannot be called '{self.name}'; write a small letter, then letters, digits, _")
        if not callable(self.function):
            raise FedrecError(f"metric '{self.name}' is not a function of ranks, relevance and held_out")
        if not 0 < self.most <= LARGEST:
            raise FedrecError(f"metric '{self.name}' has most={self.most:g}; give the largest value, up to {LARGEST:g}")

    def __call__(self, relevance: Any, held_out: Any) -> Floats:
        """One checked value per user, from lists of ones and zeros [users, k]."""
        # Copies, because they are made read-only below and the caller's should stay as they are.
        lists, counts = np.array(relevance, np.float64), np.array(held_out, np.int64)
        ranks = np.arange(1, lists.shape[1] + 1)
        for given in (ranks, lists, counts):
            # One metric must not spoil another's input.
            given.flags.writeable = False
        try:
            values = np.asarray(self.function(ranks, lists, counts), np.float64)
        except FedrecError:
            raise
        except Exception as error:
            raise FedrecError(f"metric '{self.name}' failed: {plugins.in_words(error)}") from error
        self._require_sound(values, len(lists))
        # Nothing but rounding can be outside by now, and `most` promises an exact bound.
        return np.clip(values, 0.0, self.most)

    def from_positions(self, higher: Ints, equal: Ints, indptr: Ints, k: int) -> Floats:
        """Return values per user, as the metrics of this package: the mean over orders of equal scores."""
        return expectation(self, higher, equal, indptr, k)

    def _require_sound(self, values: Floats, users: int) -> None:
        if values.shape != (users,):
            raise FedrecError(
                f"metric '{self.name}' gave an array of shape {list(values.shape)} for {users} users; give one number "
                "per user, for instance with .sum(1)"
            )
        if wrong := int((~np.isfinite(values)).sum()):
            raise FedrecError(
                f"metric '{self.name}' gave NaN or infinity for {wrong} of {users} lists; a list may have no hit at all"
            )
        outside = values[(values < -_ROUNDING) | (values > self.most * (1 + _ROUNDING) + _ROUNDING)]
        if len(outside):
            raise FedrecError(
                f"metric '{self.name}' gave {outside[0]:g}, outside 0 to {self.most:g}; declare its largest value with "
                "most=, and let higher be better"
            )


def metric(name: str, summary: str = "", most: float = 1.0) -> Callable[[OfRanks], Metric]:
    """Register the function below it under a name; defined again, as in a notebook, it replaces the former one."""

    def register(function: OfRanks) -> Metric:
        made = Metric(name, summary or _first_line(function), function, most)
        if name in TAKEN:
            raise FedrecError(f"the metric '{name}' comes with fedrec; choose another name")
        _REGISTERED[name] = made
        return made

    return register


TAKEN: set[str] = set()
"""The names of the metrics that come with fedrec."""
_REGISTERED: dict[str, Metric] = {}


def own_metrics() -> dict[str, Metric]:
    """Return those of other packages and those that were registered in Python, by name."""
    return {**_load_packaged()[0], **_REGISTERED}


def find_own_metric(name: str) -> Metric | None:
    """Return the metric of that name, if it is registered; an error where its package cannot be used."""
    # Before the packages are looked through: that imports each of them.
    if name in _REGISTERED:
        return _REGISTERED[name]
    usable, broken = _load_packaged()
    if name in broken:
        raise FedrecError(broken[name])
    return usable.get(name)


def rehearse(names: Sequence[str], ks: Sequence[int]) -> None:
    """Try one's own on lists without hits, with one and with many: mistakes show before a run, not after it."""
    for metric in filter(None, map(find_own_metric, names)):
        for k in ks:
            lists = np.concatenate([np.eye(k + 1, k), np.ones((2, k))])
            # The two full lists stand for users who have as many held-out items as fit, and one more than fit.
            metric(lists, [1] * k + [1, k, k + 1])


def fingerprint(names: Sequence[str]) -> str:
    """The code of those that are one's own: figures that were kept under other code are not theirs."""
    found = [metric for metric in map(find_own_metric, names) if metric is not None]
    return hashlib.sha256("".join(map(_code, found)).encode()).hexdigest()[:16] if found else ""


def _code(metric: Metric) -> str:
    try:
        return f"{metric.name} {metric.most} {inspect.getsource(metric.function)}"
    except (OSError, TypeError):  # typed into an interpreter, or made by another function
        return f"{metric.name} {metric.most} {getattr(metric.function, '__code__', metric.function)}"


# Every call would search all installed packages, and warn of broken ones again.
@cache
def _load_packaged() -> tuple[dict[str, Metric], dict[str, str]]:
    usable, broken = plugins.load_plugins("fedrec.metrics", "metric", _name_metric, TAKEN)
    for reason in broken.values():
        warnings.warn(reason, FedrecWarning, stacklevel=3)
    return usable, broken


def _name_metric(loaded: Any) -> tuple[str, Metric]:
    if not isinstance(loaded, Metric):
        raise FedrecError('it is not a metric: put @fedrec.metric("name") above the function')
    return loaded.name, loaded


def _first_line(function: Any) -> str:
    return next(iter((getattr(function, "__doc__", None) or "").strip().splitlines()), "")
