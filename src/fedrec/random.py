"""Randomness without state: every draw is a hash of where it is used.

A draw is `fold(key, position)`, a key is `fold(fold(...), client)` of (seed, purpose, round, client). Nothing is
consumed, so a client draws the same numbers whoever shares its batch, on whichever engine, before or after a resume.
The hash is the finaliser of splitmix64: 64-bit integers that wrap, equal in Python, numpy, torch (CPU and GPU) and
in the compiled kernels; `splitmix.py` has its integers, this file what torch draws with them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedrec.splitmix import BITS, GOLDEN, MUL_1, MUL_2, Purpose, fold, fold_array, stream, to_signed

__all__ = [
    "BITS",
    "GOLDEN",
    "MUL_1",
    "MUL_2",
    "Purpose",
    "below",
    "fold",
    "fold_array",
    "fold_tensor",
    "gamma",
    "key_tensor",
    "laplace",
    "laplace_of",
    "normal",
    "normal_of",
    "permute",
    "shuffle",
    "stream",
    "to_signed",
    "uniform",
]

# Four rounds are few enough for an inner loop; where every pair must be equally likely there is `shuffle`, which is
# slower.
PERMUTE_ROUNDS = 4
SWAPS = 12


def key_tensor(seed: int, purpose: Purpose) -> Tensor:
    """Return the key of a stream as a number that a server can keep among its tensors."""
    # Signed, because torch has no arithmetic on unsigned 64-bit integers.
    return torch.tensor(to_signed(stream(seed, purpose)))


def _shift(z: Tensor, by: int) -> Tensor:
    # int64 shifts arithmetically; the mask makes it the logical shift of the unsigned twin.
    return (z >> by) & ((1 << (64 - by)) - 1)


def fold_tensor(key: Tensor | int, value: Tensor | int) -> Tensor:
    """One of the two must be a tensor."""
    k = to_signed(key) if isinstance(key, int) else key
    # One is added so that position 0 does not leave the key as it was.
    v = to_signed((value + 1) * GOLDEN) if isinstance(value, int) else (value + 1) * to_signed(GOLDEN)
    z = torch.as_tensor(k + v)
    z = (z ^ _shift(z, 30)) * to_signed(MUL_1)
    z = (z ^ _shift(z, 27)) * to_signed(MUL_2)
    return z ^ _shift(z, 31)


def below(draw: Tensor, bound: Tensor | int) -> Tensor:
    """Uniform integers in [0, bound), bound < 2**31: the top 32 bits scaled (bias under 2**-32 * bound)."""
    # The top bits, by a multiplication: a remainder is slower on accelerators and biased as well.
    return (_shift(draw, 32) * bound) >> 32


def uniform(draw: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Uniform on the open interval (0, 1): never 0, so that its logarithm is finite."""
    # Half a step is added in float64 before the cast, so that not even 0 gives a logarithm of minus infinity.
    return ((_shift(draw, 12).to(torch.float64) + 0.5) * 2.0**-52).to(dtype)


def normal(key: Tensor | int, position: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal draws (Box-Muller, two hashes each)."""
    # The sine would give a second normal for free, but then no position could be drawn alone.
    return normal_of(fold_tensor(key, 2 * position), fold_tensor(key, 2 * position + 1)).to(dtype)


def normal_of(first: Tensor, second: Tensor) -> Tensor:
    """Standard normal numbers from two random integers each."""
    radius = torch.sqrt(-2.0 * torch.log(uniform(first)))
    return radius * torch.cos(2.0 * math.pi * uniform(second))


def laplace(key: Tensor | int, position: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Laplace draws of scale 1."""
    return laplace_of(fold_tensor(key, position)).to(dtype)


def laplace_of(draw: Tensor) -> Tensor:
    """Laplace numbers of scale 1 from one random integer each."""
    centred = uniform(draw) - 0.5
    # A logarithm near 1 loses its digits; log1p keeps them for the draws near 0, which are most of them.
    return -torch.sign(centred) * torch.log1p(-2.0 * centred.abs())


def gamma(key: Tensor | int, position: Tensor, shape: float) -> Tensor:
    """Gamma draws of this shape (at least 1) and scale 1, by rejection (Marsaglia & Tsang, 2000)."""
    d, entries = shape - 1 / 3, fold_tensor(key, position)
    keys, turn = entries.ravel(), torch.zeros((), dtype=torch.int64, device=entries.device)
    found, rest = torch.empty(len(keys), dtype=torch.float64, device=keys.device), torch.arange(len(keys)).to(keys)
    while len(rest):
        x = normal(keys, turn)
        v = (1 + x / math.sqrt(9 * d)) ** 3
        # Negative positions, which the normals of the same key never use.
        height = torch.log(uniform(fold_tensor(keys, -1 - turn)))
        # Clamped only so that the logarithm is defined where v is negative; those draws are refused by the first
        # condition.
        good = (v > 0) & (height < 0.5 * x.square() + d * (1 - v + torch.log(v.clamp(min=1e-300))))
        found[rest[good]] = d * v[good]
        rest, keys, turn = rest[~good], keys[~good], turn + 1
    return found.reshape(entries.shape)


def shuffle(key: Tensor, size: Tensor, position: Tensor, owner: Tensor) -> Tensor:
    """As `permute`, slower, and so well mixed that any two positions are as likely to land on one pair as on another.

    The "swap or not" shuffle (Hoang, Morris & Rogaway, 2012): in each turn, positions that add up to the same number
    form a pair, which a hash of its larger member swaps or leaves.
    """
    limit = size[owner]
    for turn in range(SWAPS):
        pivot, coins = below(fold_tensor(key, 2 * turn), size), fold_tensor(key, 2 * turn + 1)
        other = torch.remainder(pivot[owner] - position, limit)
        # The sign is the highest bit, which is cheaper than a shift and as well mixed as any.
        swapped = fold_tensor(coins[owner], torch.maximum(position, other)) < 0
        position = torch.where(swapped, other, position)
    return position


def permute(key: Tensor, size: Tensor, position: Tensor, owner: Tensor) -> Tensor:
    """Where each position goes in its owner's keyed random permutation of 0..size-1, elementwise and without sorting.

    `key` and `size` have one entry per owner. Rounds of multiply-by-odd and xor-shift are bijections of the next power
    of two; values that land outside 0..size-1 are sent round again (cycle walking), which keeps the map a bijection.
    """
    # At least one bit, or an owner with a single position would have an empty mask.
    bits = torch.ceil(torch.log2(size.to(torch.float64).clamp(min=2))).to(torch.int64)
    mask, half, limit = ((1 << bits) - 1)[owner], ((bits + 1) >> 1)[owner], size[owner]
    # Odd factors alone are invertible modulo a power of two, which makes every round a bijection.
    multiply = [(fold_tensor(key, 2 * r) | 1)[owner] for r in range(PERMUTE_ROUNDS)]
    add = [fold_tensor(key, 2 * r + 1)[owner] for r in range(PERMUTE_ROUNDS)]
    result = position.clone()
    rest = torch.arange(len(position), device=position.device)
    x = position
    while len(rest):
        for r in range(PERMUTE_ROUNDS):
            x = (x * multiply[r] + add[r]) & mask
            # The shift brings high bits down: a multiplication carries only upwards, and low bits would stay poorly
            # mixed.
            x = x ^ (x >> half)
        result[rest] = x
        # Indices are looked up once, for a mask would be gone through again for every array that it selects from.
        outside = (x >= limit).nonzero().squeeze(1)
        rest, x, mask, half, limit = (part[outside] for part in (rest, x, mask, half, limit))
        multiply, add = [m[outside] for m in multiply], [a[outside] for a in add]
    return result
