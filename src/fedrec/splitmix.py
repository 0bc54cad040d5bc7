"""The hash behind every random number: the finaliser of splitmix64, in Python integers and numpy, without torch."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

# Python integers do not wrap, so every step is cut to the width that numpy and torch have by nature.
BITS = (1 << 64) - 1
# The constants of the published splitmix64; with others its tested quality would be unknown.
GOLDEN = 0x9E3779B97F4A7C15
MUL_1 = 0xBF58476D1CE4E5B9
MUL_2 = 0x94D049BB133111EB


class Purpose(IntEnum):
    """What a stream of draws is for; two purposes never share numbers."""

    # Numbers are written out and never reused: a changed one would change the draws of every recorded run.
    INIT = 1
    NEGATIVES = 2
    ORDER = 3
    PARTICIPATION = 4
    NOISE = 5
    DROPOUT = 6
    CLUSTER = 7
    CANDIDATES = 8
    TRIPLES = 9
    LOST = 10
    CROP = 11


def to_signed(value: int) -> int:
    """The same 64 bits as a Python integer that fits int64."""
    value &= BITS
    return value - (1 << 64) if value >> 63 else value


def fold(key: int, value: int) -> int:
    """Hash `value` into `key` (both any Python integers); `fold_array` and `fold_tensor` do the same to many."""
    # One is added to the value, so that a fold of 0 into 0 does not stay 0.
    z = (key + GOLDEN * (value + 1)) & BITS
    z = ((z ^ (z >> 30)) * MUL_1) & BITS
    z = ((z ^ (z >> 27)) * MUL_2) & BITS
    return z ^ (z >> 31)


def stream(seed: int, purpose: Purpose, *where: int) -> int:
    """The key of one stream, e.g. `stream(seed, Purpose.NEGATIVES, round)`."""
    key = fold(fold(0, seed), int(purpose))
    for value in where:
        key = fold(key, value)
    return key


def fold_array(key: np.ndarray | int, value: np.ndarray | int) -> np.ndarray:
    k = np.asarray(key & BITS if isinstance(key, int) else key, dtype=np.uint64)
    v = np.asarray(value & BITS if isinstance(value, int) else value, dtype=np.uint64)
    # The overflow is the arithmetic that is wanted, and numpy would warn about it.
    with np.errstate(over="ignore"):
        z = k + np.uint64(GOLDEN) * (v + np.uint64(1))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(MUL_1)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(MUL_2)
    result: np.ndarray = z ^ (z >> np.uint64(31))
    return result
