"""A small certificate authority of one's own, the SuperLink's certificate, and a key pair per silo.

TLS proves the SuperLink to the silos (they hold the authority's certificate); a silo proves itself with its key, whose public
half is registered at the SuperLink. Private keys are written for their owner's eyes only.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from feduca.errors import InputError

DAYS_CA, DAYS_SERVER = 3650, 825
_CURVE = ec.SECP384R1  # one of the curves Flower accepts for silos' keys


def make_ca(folder: Path) -> None:
    """`ca.key` and `ca.crt`; who holds the key can pose as the SuperLink: keep it off line."""
    key = ec.generate_private_key(_CURVE())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "feduca deployment CA")])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    certificate = (
        _builder(name, name, key.public_key(), DAYS_CA)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    _write_private(folder / "ca.key", _pem(key))
    (folder / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def issue_server(ca: Path, folder: Path, hosts: Sequence[str], days: int = DAYS_SERVER) -> None:
    """`server.key` and `server.crt` for the names and addresses the SuperLink is reached by, signed by the CA in `ca`."""
    issuer_key = serialization.load_pem_private_key((ca / "ca.key").read_bytes(), None)
    issuer = read(ca / "ca.crt")
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(_CURVE())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    certificate = (
        _builder(name, issuer.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_general(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA384())
    )
    _write_private(folder / "server.key", _pem(key))
    (folder / "server.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def make_silo_key(folder: Path) -> None:
    """`key` (private) and `key.pub` in OpenSSH format, as Flower wants them."""
    key = ec.generate_private_key(_CURVE())
    openssh, plain = serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    _write_private(folder / "key", key.private_bytes(serialization.Encoding.PEM, openssh, plain))
    (folder / "key.pub").write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH) + b"\n"
    )


def read(path: Path) -> x509.Certificate:
    """A certificate from a PEM file."""
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not a certificate ({error}); write it anew with `feduca deploy init`") from None


def hosts_of(certificate: x509.Certificate) -> list[str]:
    """The names and addresses a server certificate is good for."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in names]


def signed_by(certificate: x509.Certificate, ca: x509.Certificate) -> bool:
    """Whether `ca` signed `certificate`."""
    try:
        certificate.verify_directly_issued_by(ca)
        return True
    except Exception:  # cryptography raises several kinds, and all mean no
        return False


def _builder(name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))  # clocks differ a little
        .not_valid_after(now + dt.timedelta(days=days))
    )


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption())


def _write_private(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
