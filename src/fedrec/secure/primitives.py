"""Keys, seals and mask streams, all of them primitives of the package `cryptography`.

X25519 agrees on a secret between two members, HKDF-SHA256 makes keys of it, ChaCha20-Poly1305 seals shares, AES-256 in
counter mode stretches a key to a mask, ECDSA signs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedrec.errors import FedrecError
from fedrec.federation.codec import BadMessage

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CTR
    from cryptography.hazmat.primitives.hashes import SHA256, SHA384
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_ssh_private_key,
        load_ssh_public_key,
    )
except ImportError:
    raise FedrecError("secure sums need the package cryptography: pip install 'fedrec[secure]'") from None

KEY_BYTES = 32
BLOCK = 1 << 16  # numbers of a mask that are made at a time: they stay in the cache
# The keystream itself is wanted, which is what the cipher makes of zeros.
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

    def agree(self, public: bytes) -> bytes:
        """What the owners of both keys compute alike, and nobody else."""
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            # A point of small order gives the same result for every private key, so anybody would know the mask.
            raise BadMessage("a public key of the secure sum is invalid: it yields no shared secret") from None


def derive(secret: bytes, purpose: str, size: int = KEY_BYTES) -> bytes:
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
    # Each key is for one mask of one sum, so the counter may always start at 0.
    cipher = Cipher(AES(key), CTR(bytes(16))).encryptor()
    room = np.empty(8 * BLOCK + 15, dtype=np.uint8)  # the cipher asks for a block more than it writes
    for start in range(0, len(total), BLOCK):
        part = total[start : start + BLOCK]
        size = cipher.update_into(memoryview(_ZEROS)[: 8 * len(part)], room.data)
        # The byte order is spelled out, because both ends of a pair need the same mask on any machine.
        mask = room[:size].view("<u8")
        if sign > 0:
            part += mask
        else:
            part -= mask


class SigningKey:
    """A key of an elliptic curve in a file of OpenSSH's format; `public` as in its .pub file, without a comment."""

    def __init__(self, path: Path) -> None:
        try:
            key = load_ssh_private_key(path.read_bytes(), password=None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise FedrecError(f"cannot read the private key {path} ({error})") from None
        if not isinstance(key, EllipticCurvePrivateKey):
            raise FedrecError(f"the private key {path} is not one of an elliptic curve (ecdsa)")
        self._key, self.public = key, _text(key.public_key())

    def sign(self, statement: bytes) -> bytes:
        return bytes(self._key.sign(statement, ECDSA(SHA384())))


def _text(key: EllipticCurvePublicKey) -> str:
    return key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


def public_key(line: str) -> str:
    """What of a line in a .pub file says whose key it is. No such key: ValueError."""
    try:
        key = load_ssh_public_key(line.encode())
    except UnsupportedAlgorithm as error:
        raise ValueError(str(error)) from None
    if not isinstance(key, EllipticCurvePublicKey):
        raise ValueError("it is not a key of an elliptic curve")
    return _text(key)


def is_signed(public: str, statement: bytes, signature: bytes) -> bool:
    """Whether the owner of a public key has signed this."""
    try:
        key = load_ssh_public_key(public.encode())
        if not isinstance(key, EllipticCurvePublicKey):
            return False
        key.verify(signature, statement, ECDSA(SHA384()))
    except (InvalidSignature, ValueError, UnsupportedAlgorithm):
        return False
    return True
