"""The sandbox's own certificate authority, and the certificates and keys that the control plane needs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# A sandbox lives for hours; a year forgives one that was left running, and the margin a clock that was set back.
_VALIDITY = timedelta(days=365)
_CLOCK_MARGIN = timedelta(minutes=5)


@dataclass(frozen=True, kw_only=True)
class KeyPair:
    """A certificate and its key, as PEM files (the key readable by the owner only)."""

    certificate_file: Path
    key_file: Path

    @property
    def certificate(self) -> bytes:
        return self.certificate_file.read_bytes()

    @property
    def key(self) -> bytes:
        return self.key_file.read_bytes()


class CertificateAuthority:
    """A fresh authority. All files go to `folder`, which is made for the owner only."""

    def __init__(self, folder: Path, *, name: str) -> None:
        folder.mkdir(mode=0o700, parents=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        key_id = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self._certificate = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(key_id, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = self._certificate.public_bytes(Encoding.PEM)
        self.certificate_file = folder / "ca.crt"
        self.certificate_file.write_bytes(self.certificate)

    def server(self, name: str, *, dns_names: Sequence[str], addresses: Sequence[str]) -> KeyPair:
        names = [
            *(x509.DNSName(dns_name) for dns_name in dns_names),
            *(x509.IPAddress(IPv4Address(address)) for address in addresses),
        ]
        return self._issue(name, _name(name), ExtendedKeyUsageOID.SERVER_AUTH, names)

    def client(self, file_name: str, *, user: str, groups: Sequence[str] = ()) -> KeyPair:
        """A certificate that Kubernetes takes for this user and these groups."""
        return self._issue(file_name, _name(user, groups), ExtendedKeyUsageOID.CLIENT_AUTH, [])

    def _issue(
        self,
        file_name: str,
        subject: x509.Name,
        usage: x509.ObjectIdentifier,
        names: Sequence[x509.GeneralName],
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(subject, self._name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate_file = self._folder / f"{file_name}.crt"
        certificate_file.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        key_file = self._folder / f"{file_name}.key"
        write_secret(key_file, _pem(key))
        return KeyPair(certificate_file=certificate_file, key_file=key_file)


@dataclass(frozen=True, kw_only=True)
class SigningKey:
    """The key that signs service-account tokens, and its public half, as PEM files."""

    key_file: Path
    public_key_file: Path

    @classmethod
    def create(cls, folder: Path) -> SigningKey:
        key = ec.generate_private_key(ec.SECP256R1())
        signing_key = cls(key_file=folder / "sa.key", public_key_file=folder / "sa.pub")
        write_secret(signing_key.key_file, _pem(key))
        signing_key.public_key_file.write_bytes(
            key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        )
        return signing_key


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that is never, not even for a moment, readable by others."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _name(common_name: str, organizations: Sequence[str] = ()) -> x509.Name:
    return x509.Name(
        [
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in organizations),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _builder(subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_MARGIN)
        .not_valid_after(now + _VALIDITY)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )
