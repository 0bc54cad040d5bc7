"""From a split and a protocol to what is ranked, and to what may not be drawn as a training negative."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedrec.errors import FedrecError
from fedrec.evaluation.protocol import Protocol
from fedrec.evaluation.targets import Ints, Pairs, Targets, csr_rows, pair_keys

_SAMPLED = {"sampled99": (99, 1), "split198": (99, 2)}
"""How many candidates one evaluation ranks, and into how many evaluations a draw is divided."""


def candidate_targets(
    train: Pairs,
    valid: Pairs,
    test: Pairs,
    n_items: int,
    protocol: Protocol,
    *,
    dropped: Pairs | None = None,
    seed: int = 0,
) -> tuple[Targets, Targets]:
    """Validation and test targets of a split under a protocol.

    At validation only training items are masked, unless the protocol hides the test items too; at test the validation
    items as well, unless the protocol leaves them in.
    `dropped` are training items kept from the clients in a sparsity study: unknown to them, known to the evaluation.
    `seed` belongs to the data set, not to the run, and matters for sampled candidates only.
    """
    known = [train] if dropped is None else [train, dropped]
    cold = protocol.split == "cold-items"
    draws = _draw(protocol.candidates, (*known, valid, test), n_items, seed)
    masks = (
        [*known, test] if protocol.mask_test_at_validation else known,
        [*known, valid] if protocol.mask_val_at_test else known,
    )
    others = ("validation", "test")
    first, second = (
        Targets.build(
            held_out,
            mask,
            n_items,
            # Draws are by user number, while rows of targets are only the users who hold something out, ascending.
            candidates=None if draws is None else draws[part][np.unique(held_out[0])],
            catalogue=held_out[1] if cold else None,
            names=(others[part], *["training"] * len(known), others[1 - part]),
        )
        for part, (held_out, mask) in enumerate(zip((valid, test), masks, strict=True))
    )
    return first, second


def forbidden_negatives(valid: Pairs, test: Pairs, protocol: Protocol, *, dropped: Pairs | None = None) -> Pairs:
    """Pairs besides the training ones that may not be drawn as training negatives: none unless the pool is leaked.

    A leaked pool lies outside all items of the user, and so outside those dropped in a sparsity study.
    """
    hidden = (valid, test) if dropped is None else (valid, test, dropped)
    parts = hidden if protocol.neg_pool == "leaked" else ()
    empty = np.empty(0, np.int64)
    users, items = (np.concatenate([empty, *(part[side] for part in parts)]) for side in (0, 1))
    return users, items


def _draw(rule: str, known: Sequence[Pairs], n_items: int, seed: int) -> tuple[Ints, Ints] | None:
    """Sampled candidates by user for validation and test, or None. A user's draw depends on no other user."""
    if rule not in _SAMPLED:
        return None
    count, parts = _SAMPLED[rule]
    keys = pair_keys(known, n_items)
    users = np.unique(keys // n_items)
    indptr, items = csr_rows(keys, users, n_items)
    drawn = np.zeros((int(users[-1]) + 1, count * parts), np.int64)
    for row, user in enumerate(users):
        outside = np.ones(n_items, bool)
        outside[items[indptr[row] : indptr[row + 1]]] = False
        pool = np.flatnonzero(outside)
        if len(pool) < count * parts:
            raise FedrecError(
                f"candidates={rule} draws {count * parts} items that a user has not interacted with, but "
                f"someone has only {len(pool)} of them; rank all items instead: candidates=full, as honest does"
            )
        drawn[user] = np.random.default_rng([seed, int(user)]).choice(pool, count * parts, replace=False)
    # From both ends: in a draw of one part these are the same columns, in one of two parts different ones.
    return drawn[:, :count], drawn[:, -count:]
