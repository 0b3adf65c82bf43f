"""A certificate authority for the tests, and the certificates that it signs."""

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)
SKEW = datetime.timedelta(hours=1)
_SIGNS = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
"""The usage that OpenSSL's strict mode, Python 3.13's default, requires of an authority."""


@dataclass(frozen=True)
class Pair:
    """Files with a certificate and its private key, PEM."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates; ``certificate`` is the file with the authority's own certificate."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        """Write the authority's files into *folder*."""
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._now = datetime.datetime.now(datetime.UTC)
        self.certificate = folder / f"{name}.pem"
        authority = (
            self._builder(self._name, self._key, self._now + DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False
            )
            .add_extension(_SIGNS, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate.write_bytes(authority.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *others: str, expired: bool = False, passphrase: str = "") -> Pair:
        """Sign a certificate for *name* and *others*, host names or addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        end = self._now - SKEW if expired else self._now + DAY
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            self._builder(subject, key, end)
            .add_extension(
                x509.SubjectAlternativeName([_alternative(host) for host in (name, *others)]),
                critical=False,
            )
            .add_extension(issuer_key, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        stem = f"{self.certificate.stem}-{name.replace(':', '.')}-{certificate.serial_number:x}"
        pair = Pair(self._folder / f"{stem}.pem", self._folder / f"{stem}.key")
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        pair.key.write_bytes(_private(key, passphrase))
        return pair

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, end: datetime.datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self._now - DAY)
            .not_valid_after(end)
        )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _private(key: ec.EllipticCurvePrivateKey, passphrase: str) -> bytes:
    encryption = (
        serialization.BestAvailableEncryption(passphrase.encode())
        if passphrase
        else serialization.NoEncryption()
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )
