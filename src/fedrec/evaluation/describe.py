"""A protocol as text, made from its fields, so that the text cannot differ from what is done."""

from __future__ import annotations

from fedrec.evaluation import fields
from fedrec.evaluation.protocol import FIELDS, Protocol

_SPLITS = {
    "leave-one-out": "leave-one-out",
    "ratio": "random {train:.0%}/{valid:.0%}/{test:.0%} of the interactions",
    "cold-items": "cold items, {train:.0%}/{valid:.0%}/{test:.0%} of the items",
    "global-time": "one global cut in time",
}
_POOLS = {"honest": "", "leaked": " from a leaked pool"}
_UNIQUE = {"positive": "", "user": ", all distinct per user"}
_CANDIDATES = {
    "full": "all items ranked",
    "sampled99": "99 sampled candidates, the same for validation and test",
    "split198": "99 sampled candidates for validation, 99 for test",
}


def describe_briefly(protocol: Protocol) -> str:
    """Describe users, split, negatives, candidates and selection of a protocol in one line."""
    parts = [_users(protocol), _split(protocol), _negatives(protocol), _candidates(protocol)]
    return "; ".join([*parts, _selection(protocol)])


def record(protocol: Protocol) -> list[tuple[str, str]]:
    """Every field and its value as `protocol` reads it."""
    return [(key, fields.text(getattr(protocol, key))) for key in FIELDS]


def _users(protocol: Protocol) -> str:
    least = f"users with {protocol.min_interactions} or more items" if protocol.min_interactions > 1 else "all users"
    others = "".join(f" ({name}: {count})" for name, count in protocol.min_interactions_at)
    silos = "" if protocol.partition == "user" else f" in {protocol.partition.replace(':', ' ')} silos"
    return least + others + silos


def _split(protocol: Protocol) -> str:
    test, valid = protocol.test_share, protocol.valid_share
    # The validation part is a share of what the test part leaves, not of everything.
    shares = {"test": test, "valid": (1 - test) * valid, "train": (1 - test) * (1 - valid)}
    text = _SPLITS[protocol.split].format(**shares)
    if protocol.split == "leave-one-out":
        text += " by time" if protocol.time == "real" else f" by {protocol.time}"
    if protocol.train_fraction < 1:
        text += f", {protocol.train_fraction:g} of the training items kept"
    return text


def _negatives(protocol: Protocol) -> str:
    plural = "s" if protocol.negatives > 1 else ""
    return f"{protocol.negatives} negative{plural}{_POOLS[protocol.neg_pool]}{_UNIQUE[protocol.neg_unique]}"


def _candidates(protocol: Protocol) -> str:
    cold = protocol.split == "cold-items" and protocol.candidates == "full"
    return "all cold items of the part ranked" if cold else _CANDIDATES[protocol.candidates]


def _selection(protocol: Protocol) -> str:
    last = ", the last among ties" if protocol.select_last else ""
    patience = f", patience {protocol.patience}" if protocol.patience else ""
    return f"round by {protocol.select_on} {protocol.select_metric}{last}{patience}"
