"""Files of keys and certificates as people give them: each is what it is meant to be, or the error says what it is.

Flower waits without a word on some that are not.
"""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key

from fedrec.errors import FedrecError, reason
from fedrec.secure.primitives import public_key

LARGEST = 1 << 20  # bytes of a file that may be one
CERTIFICATE, PRIVATE, PUBLIC = "a certificate", "a private key", "a public key"
OPENSSH = "of another kind (not OpenSSH's ecdsa)"


def require_authority(path: Path, wanted: str = "the server's ca.crt") -> list[x509.Certificate]:
    """The certificate of whoever signed that of a server, perhaps among others."""
    found = _certificates(path, wanted)
    if not any(_signs(one) or one.issuer == one.subject for one in found):
        raise _mistake(f"{path} is a certificate that signs no others", wanted)
    return found


def require_server(authority: Path, certificate: Path, key: Path) -> None:
    """What a server shows to nodes, and what proves that it may."""
    signers = require_authority(authority, "the authority's certificate")
    chain = _certificates(certificate, "the server's certificate")
    wanted = "the server's private key"
    content = _read(key, PRIVATE, wanted)
    try:
        own = load_pem_private_key(content, password=None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise _mistake(f"{key} is {PRIVATE} of another kind (not PEM)", wanted) from None
    if chain[0].public_key() != own:
        raise _mistake(f"{key} is not the key of {certificate}", "both as made together")
    if not any(_is_signed(one, signer) for one in chain for signer in signers):
        raise _mistake(f"{certificate} was not signed by {authority}", "both as made together")


def require_node_key(path: Path) -> None:
    wanted = "this node's private key"
    content = _read(path, PRIVATE, wanted)
    try:
        found = load_ssh_private_key(content, password=None)
    except TypeError:
        raise _mistake(f"{path} is {PRIVATE} that is protected by a passphrase", wanted) from None
    except (ValueError, UnsupportedAlgorithm):
        found = None
    if not isinstance(found, EllipticCurvePrivateKey):
        raise _mistake(f"{path} is {PRIVATE} {OPENSSH}", wanted)


def require_public(path: Path) -> None:
    """That of a node."""
    wanted = "a node's public key"
    content = _read(path, PUBLIC, wanted)
    try:
        public_key(content.decode())
    except ValueError:
        raise _mistake(f"{path} is {PUBLIC} {OPENSSH}", wanted) from None


def _certificates(path: Path, wanted: str) -> list[x509.Certificate]:
    content = _read(path, CERTIFICATE, wanted)
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError:
        raise _mistake(f"{path} is a damaged certificate", wanted) from None


def _read(path: Path, kind: str, wanted: str) -> bytes:
    """The content of a file of this kind."""
    if not path.exists():
        raise _mistake(f"there is no {path}", wanted)
    if not path.is_file():
        raise _mistake(f"{path} is {'a folder' if path.is_dir() else 'no file'}", wanted)
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST)
    except OSError as error:
        raise _mistake(f"cannot read {path} ({reason(error)})", wanted) from None
    if (found := _kind(content)) != kind:
        raise _mistake(f"{path} is {found}", wanted)
    return content


def _kind(content: bytes) -> str:
    if b"PRIVATE KEY-----" in content:
        return PRIVATE
    if b"-----BEGIN CERTIFICATE-----" in content:
        return CERTIFICATE
    if b"PUBLIC KEY-----" in content or content.lstrip().startswith((b"ecdsa-", b"ssh-", b"sk-")):
        return PUBLIC
    return "neither a certificate nor a key" if content.strip() else "an empty file"


def _signs(certificate: x509.Certificate) -> bool:
    try:
        return bool(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except (x509.ExtensionNotFound, ValueError):
        return False


def _is_signed(certificate: x509.Certificate, signer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(signer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _mistake(what: str, wanted: str) -> FedrecError:
    return FedrecError(f"{what}; give {wanted} (see fedrec deploy keys)")
