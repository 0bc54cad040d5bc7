"""Keys, seals and mask streams, all of them primitives of the package `cryptography`.

X25519 agrees on a secret between two members, HKDF-SHA256 makes keys of it, ChaCha20-Poly1305 seals shares, AES-256 in
counter mode stretches a key to a mask.
"""

from __future__ import annotations

import numpy as np

from fedrec.errors import FedrecError
from fedrec.federation.codec import BadMessage

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CTR
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError:
    raise FedrecError("secure sums need the package cryptography: pip install 'fedrec[secure]'") from None

KEY_BYTES = 32
BLOCK = 1 << 16  # numbers of a mask that are made at a time: they stay in the cache
_ZEROS = bytes(8 * BLOCK)


class PrivateKey:
    """An X25519 key; without `raw` a new one."""

    def __init__(self, raw: bytes | None = None) -> None:
        self._key = X25519PrivateKey.generate() if raw is None else X25519PrivateKey.from_private_bytes(raw)

    @property
    def raw(self) -> bytes:
        return self._key.private_bytes_raw()

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    def agreed(self, public: bytes) -> bytes:
        """What the owners of both keys compute alike, and nobody else."""
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise BadMessage("a public key of the secure sum is invalid: it yields no shared secret") from None


def derived(secret: bytes, purpose: str, size: int = KEY_BYTES) -> bytes:
    """A key for one purpose."""
    return HKDF(SHA256(), size, salt=None, info=purpose.encode()).derive(secret)


def seal(key: bytes, text: bytes, about: str) -> bytes:
    """Encrypted and authenticated. A key seals one text alone, so its nonce can be zero."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), text, about.encode())


def unseal(key: bytes, sealed: bytes, about: str) -> bytes | None:
    """None where it was not sealed with this key for this purpose."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, about.encode())
    except InvalidTag:
        return None


def add_mask(total: np.ndarray, key: bytes, sign: int) -> None:
    """Add the mask of a key to an array of uint64 in place, or (-1) take it off. Sums wrap modulo 2^64."""
    cipher = Cipher(AES(key), CTR(bytes(16))).encryptor()
    room = np.empty(8 * BLOCK + 15, dtype=np.uint8)  # the cipher asks for a block more than it writes
    for start in range(0, len(total), BLOCK):
        part = total[start : start + BLOCK]
        size = cipher.update_into(memoryview(_ZEROS)[: 8 * len(part)], room.data)
        mask = room[:size].view("<u8")
        if sign > 0:
            part += mask
        else:
            part -= mask
