"""Shares, masks and seals by themselves."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrec.secure import shamir
from fedrec.secure.primitives import BLOCK, PrivateKey, add_mask, derive, seal, unseal


@settings(max_examples=50)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 12), st.data())
def test_any_threshold_of_shares_gives_the_secret_back(secret: bytes, threshold: int, data: st.DataObject) -> None:
    holders = data.draw(st.lists(st.integers(0, 10**6), min_size=threshold, max_size=20, unique=True))
    shares = shamir.split(secret, holders, threshold)
    some = data.draw(st.permutations(holders))[:threshold]
    assert shamir.combine({holder: shares[holder] for holder in some}, threshold) == secret


@settings(max_examples=30)
@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), st.integers(2, 8))
def test_fewer_shares_fit_every_secret(secret: bytes, other: bytes, threshold: int) -> None:
    """For any other secret there is a share that, with one too few of the true ones, gives that one."""
    shares = shamir.split(secret, range(threshold), threshold)
    known = {holder: shares[holder] for holder in range(threshold - 1)}
    with pytest.raises(ValueError, match="too few"):
        shamir.combine(known, threshold)
    prime, weights = shamir.PRIME, []
    for one in range(1, threshold + 1):
        above = below = 1
        for two in range(1, threshold + 1):
            if two != one:
                above, below = above * two % prime, below * (two - one) % prime
        weights.append(above * pow(below, -1, prime) % prime)
    told = sum(w * int.from_bytes(known[k]) for k, w in enumerate(weights[:-1]))
    missing = (int.from_bytes(other) - told) * pow(weights[-1], -1, prime) % prime
    assert shamir.combine({**known, threshold - 1: missing.to_bytes(66)}, threshold) == other


def test_shares_are_refused_that_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        shamir.split(b"short", range(3), 2)
    with pytest.raises(ValueError, match="threshold of 4"):
        shamir.split(bytes(32), range(3), 4)
    assert shamir.combine({0: (2**300).to_bytes(66), 1: bytes(66)}, 2) is None, "larger than any secret"


@pytest.mark.parametrize("size", [1, 100, BLOCK, 2 * BLOCK + 7])
def test_a_mask_is_the_stream_of_its_key(size: int) -> None:
    key, total = derive(b"secret", "test"), np.arange(size, dtype=np.uint64)
    add_mask(total, key, 1)
    stream = np.frombuffer(Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(8 * size)), dtype="<u8")
    assert np.array_equal(total, np.arange(size, dtype=np.uint64) + stream)
    add_mask(total, key, -1)
    assert np.array_equal(total, np.arange(size, dtype=np.uint64))


def test_two_agree_and_a_third_does_not() -> None:
    one, other, third = PrivateKey(), PrivateKey(), PrivateKey()
    assert one.agree(other.public) == other.agree(one.public)
    assert one.agree(third.public) != one.agree(other.public)
    assert PrivateKey(one.raw).public == one.public


def test_a_seal_is_for_one_purpose_and_breaks() -> None:
    key = derive(b"secret", "seal")
    sealed = seal(key, b"share", "from 1 to 2")
    assert unseal(key, sealed, "from 1 to 2") == b"share"
    assert unseal(key, sealed, "from 2 to 1") is None
    assert unseal(derive(b"other", "seal"), sealed, "from 1 to 2") is None
    assert unseal(key, sealed[:-1] + bytes([sealed[-1] ^ 1]), "from 1 to 2") is None
