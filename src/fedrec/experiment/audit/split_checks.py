"""Checks of the split itself: overlap, coverage, time."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from fedrec.experiment.audit.case import Case
from fedrec.experiment.audit.finding import Finding, share_text

MOST_UNSEEN = 0.05
"""Share of test interactions with users or items that nobody trained on, above which a warning is given.

They can be hit by chance only, so recall is capped at 1 minus the share; a cap of 0.95 costs as much as methods usually
differ by.
"""


def overlap(case: Case) -> Finding:
    parts = [name for name in ("train", "valid", "test") if len(getattr(case.split, name))]
    shared = {
        f"{a} and {b}": int(np.intersect1d(case.keys(a), case.keys(b), assume_unique=True).size)
        for a, b in combinations(parts, 2)
    }
    found = {names: count for names, count in shared.items() if count}
    words = "; ".join(f"{count:,} (user, item) pairs are in both {names}" for names, count in found.items())
    return Finding(
        "split overlap",
        "fail" if found else "pass",
        f"{words}: test pairs have been seen in training." if found else "No pair is in two parts of the split.",
        {"shared pairs": sum(shared.values())},
    )


def unseen_items(case: Case) -> Finding:
    test, trained = case.split.test, np.unique(case.split.train.item)
    share = 1.0 - float(np.isin(test.item, trained).mean())
    meant = case.protocol is not None and case.protocol.split == "cold-items"
    words = f"{share_text(share)} of the test interactions involve an item without training interactions"
    end = " (intended: the split is by items)." if meant else ", which can be found only by chance."
    return Finding(
        "items never trained", "warn" if share > MOST_UNSEEN and not meant else "pass", words + end, {"share": share}
    )


def unseen_users(case: Case) -> Finding:
    tested, trained = np.unique(case.split.test.user), np.unique(case.split.train.user)
    share = 1.0 - float(np.isin(tested, trained).mean())
    return Finding(
        "users never trained",
        "warn" if share else "pass",
        f"{share_text(share)} of the test users have no training interaction: for them a method can only guess."
        if share
        else "Every test user has training interactions.",
        {"share": share},
    )


def check_own_future(case: Case) -> Finding:
    """A split that claims to follow time must not train on what the same user did after the test item."""
    train, test = case.split.train, case.split.test
    assert train.timestamp is not None
    assert test.timestamp is not None
    # The earliest time there is, so that users without training never seem to have a future.
    latest = np.full(train.n_users, np.iinfo(np.int64).min)
    np.maximum.at(latest, train.user, train.timestamp)
    share = float((latest[test.user] > test.timestamp).mean())
    p = case.protocol
    by_time = p is None or (p.split in ("leave-one-out", "global-time") and p.time == "real")
    words = f"{share_text(share)} of the test interactions come before a training interaction of the same user"
    end = ": the split does not follow time." if share else "."
    return Finding(
        "own future in training", ("fail" if by_time else "warn") if share else "pass", words + end, {"share": share}
    )


def check_future_of_others(case: Case) -> Finding:
    """Leave-one-out cuts every user at a different moment; only a common cut keeps the future out of training."""
    train, test = case.split.train, case.split.test
    assert train.timestamp is not None
    assert test.timestamp is not None
    latest = np.full(train.n_users, np.iinfo(np.int64).min)
    np.maximum.at(latest, train.user, train.timestamp)
    first, second = np.sort(latest)[::-1][:2] if len(latest) > 1 else (latest[0], np.iinfo(np.int64).min)
    # A tie at the top leaves the second equal to the first, so the comparison stays right.
    others = np.where(latest[test.user] == first, second, first)
    share = float((others > test.timestamp).mean())
    moments = np.sort(train.timestamp)
    later = float(1.0 - np.searchsorted(moments, test.timestamp, "right").mean() / len(moments))
    return Finding(
        "others' future in training",
        "warn" if share else "pass",
        f"{share_text(share)} of the test interactions come before training interactions of other users; on average "
        f"{share_text(later).lower()} of the training data is later than the test item"
        + (", so future popularity and trends are known (honest-time avoids this)." if share else "."),
        {"share": share, "training data later": later},
    )
