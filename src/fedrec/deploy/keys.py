"""Certificates and keys: a certificate authority of one's own, a server's certificate, a key pair for every node."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedrec.data.atomic import atomic_file, make_private_folder
from fedrec.errors import FedrecError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import GeneralName

DAYS = 825  # that a certificate is valid


def make_server_keys(folder: Path, hosts: Sequence[str]) -> None:
    """ca.crt (for the nodes), ca.key, server.crt and server.key for a server that nodes reach by these names."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding

    _require_free(folder / name for name in ("ca.crt", "ca.key", "server.crt", "server.key"))
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fedrec certificate authority")])
    now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
    until = now + datetime.timedelta(days=DAYS)

    def begun(name: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now).not_valid_after(until)
        return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)

    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    root = begun(issuer, authority).add_extension(x509.BasicConstraints(True, 0), critical=True)
    root = root.add_extension(usage, critical=True).add_extension(signer, critical=False)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, hosts[0][:64])])
    leaf = begun(name, server).add_extension(x509.SubjectAlternativeName([_host(one) for one in hosts]), critical=False)
    leaf = leaf.add_extension(x509.BasicConstraints(False, None), critical=True)
    leaf = leaf.add_extension(signer, critical=False)
    leaf = leaf.add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    for label, certificate in (("ca", root), ("server", leaf)):
        signed = certificate.sign(authority, hashes.SHA384())
        _write(folder / f"{label}.crt", signed.public_bytes(Encoding.PEM))
    for label, key in (("ca", authority), ("server", server)):
        _write(folder / f"{label}.key", _private(key, openssh=False), private=True)


def make_node_key(path: Path) -> Path:
    """A key pair: `path` stays on the node, the other one (.pub) goes to the server. Returns the public one."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    public = path.with_name(path.name + ".pub")
    _require_free((path, public))
    key = ec.generate_private_key(ec.SECP384R1())
    _write(path, _private(key, openssh=True), private=True)
    _write(public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return public


def _private(key: EllipticCurvePrivateKey, openssh: bool) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    kind = PrivateFormat.OpenSSH if openssh else PrivateFormat.PKCS8
    return bytes(key.private_bytes(Encoding.PEM, kind, NoEncryption()))


def _host(name: str) -> GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _require_free(paths: Iterable[Path]) -> None:
    for path in paths:
        if os.path.lexists(path):
            raise FedrecError(f"{path} already exists; choose another name, or remove it if it is not in use")


def _write(path: Path, content: bytes, private: bool = False) -> None:
    make_private_folder(path.parent)
    with atomic_file(path, private) as temporary:
        temporary.write_bytes(content)
