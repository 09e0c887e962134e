"""The sandbox's own certificate authority, by trustme, and the certificates and keys that the control plane needs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

_ORGANIZATION = "gpu-sandbox"


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
        self._authority = trustme.CA(path_length=0, organization_name=_ORGANIZATION, organization_unit_name=name)
        self.certificate = self._authority.cert_pem.bytes()
        self.certificate_file = folder / "ca.crt"
        self.certificate_file.write_bytes(self.certificate)

    def server(self, name: str, *identities: str) -> KeyPair:
        """Return a certificate for a server at these DNS names and IP addresses."""
        return self._write(name, self._authority.issue_cert(*identities, common_name=name))

    def client(self, file_name: str, *, user: str, group: str = _ORGANIZATION) -> KeyPair:
        """Return a certificate that Kubernetes takes for this user, in this group."""
        # Go refuses a certificate whose list of alternative names is critical, as all of trustme's are, and empty.
        identity = f"{file_name}.localhost"
        return self._write(file_name, self._authority.issue_cert(identity, common_name=user, organization_name=group))

    def _write(self, file_name: str, certificate: trustme.LeafCert) -> KeyPair:
        pair = KeyPair(
            certificate_file=self._folder / f"{file_name}.crt",
            key_file=self._folder / f"{file_name}.key",
        )
        pair.certificate_file.write_bytes(certificate.cert_chain_pems[0].bytes())
        write_secret(pair.key_file, certificate.private_key_pem.bytes())
        return pair


@dataclass(frozen=True, kw_only=True)
class SigningKey:
    """The key that signs service-account tokens, and its public half, as PEM files."""

    key_file: Path
    public_key_file: Path

    @classmethod
    def create(cls, folder: Path) -> SigningKey:
        key = ec.generate_private_key(ec.SECP256R1())
        signing_key = cls(key_file=folder / "sa.key", public_key_file=folder / "sa.pub")
        write_secret(signing_key.key_file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        signing_key.public_key_file.write_bytes(
            key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        )
        return signing_key


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that is never, not even for a moment, readable by others."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
