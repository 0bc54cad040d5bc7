"""Shamir's secret sharing over the integers modulo 2^521 - 1: any `threshold` shares give the secret, fewer nothing."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

PRIME = 2**521 - 1
SHARE_BYTES = 66
SECRET_BYTES = 32


def split(secret: bytes, holders: Sequence[int], threshold: int) -> dict[int, bytes]:
    """A share for each holder, by its number (from 0 on)."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    if not 1 <= threshold <= len(set(holders)):
        raise ValueError(f"a threshold of {threshold} does not fit {len(set(holders))} holders")
    coefficients = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    return {holder: _value(coefficients, secret, holder + 1).to_bytes(SHARE_BYTES) for holder in holders}


def _value(coefficients: Sequence[int], secret: bytes, x: int) -> int:
    """Of the polynomial whose constant is the secret; x = 0 is never handed out."""
    y = 0
    for coefficient in coefficients:
        y = (y + coefficient) * x % PRIME
    return (y + int.from_bytes(secret)) % PRIME


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes | None:
    """The secret from the first `threshold` shares, by Lagrange at 0; None where they belong to no secret."""
    found = _interpolate(shares, threshold, 0)
    return found.to_bytes(SECRET_BYTES) if found < 1 << (8 * SECRET_BYTES) else None


def share_of(shares: Mapping[int, bytes], holder: int, threshold: int) -> bytes:
    """Return the share that a holder must have where these are right."""
    return _interpolate(shares, threshold, holder + 1).to_bytes(SHARE_BYTES)


def _interpolate(shares: Mapping[int, bytes], threshold: int, at: int) -> int:
    if len(shares) < threshold:
        raise ValueError(f"{len(shares)} shares are too few; {threshold} are needed")
    points = [(holder + 1, int.from_bytes(share)) for holder, share in sorted(shares.items())[:threshold]]
    total = 0
    for x, y in points:
        above = below = 1
        for other, _ in points:
            if other != x:
                above, below = above * (other - at) % PRIME, below * (other - x) % PRIME
        total += y * above * pow(below, -1, PRIME)
    return total % PRIME
