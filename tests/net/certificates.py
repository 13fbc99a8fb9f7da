"""Certificates for tests: an authority, what it issued, and the stores that these are kept in."""

from __future__ import annotations

import functools
import ipaddress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from waltzctl.formats.jks import JksCertificate, JksKey, encode_store, protect_key

PASSWORD = "changeit"
DER, PEM = s.Encoding.DER, s.Encoding.PEM


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _sign(
    subject: str, key: ec.EllipticCurvePrivateKey, issuer: str, signer: ec.EllipticCurvePrivateKey, *, authority: bool,
    names: tuple[str, ...] = (),
) -> x509.Certificate:  # fmt: skip
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    )
    if names:
        alternatives = [
            x509.IPAddress(ipaddress.ip_address(name)) if name[0].isdigit() else x509.DNSName(name) for name in names
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    return builder.sign(signer, hashes.SHA256())


@dataclass(frozen=True)
class Leaf:
    """A key with its certificate and those above it."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    above: tuple[x509.Certificate, ...] = ()

    @property
    def chain(self) -> tuple[x509.Certificate, ...]:
        return (self.certificate, *self.above)

    def certificate_pem(self) -> bytes:
        return b"".join(one.public_bytes(PEM) for one in self.chain)

    def key_pem(self, password: str | None = None) -> bytes:
        protection = s.NoEncryption() if password is None else s.BestAvailableEncryption(password.encode())
        return self.key.private_bytes(PEM, s.PrivateFormat.PKCS8, protection)

    def pkcs12(self, password: str = PASSWORD) -> bytes:
        return pkcs12.serialize_key_and_certificates(
            b"node", self.key, self.certificate, self.above, s.BestAvailableEncryption(password.encode())
        )

    def jks(self, password: str = PASSWORD) -> bytes:
        plain = self.key.private_bytes(DER, s.PrivateFormat.PKCS8, s.NoEncryption())
        chain = tuple(one.public_bytes(DER) for one in self.chain)
        return encode_store([JksKey("node", 0, protect_key(plain, password), chain)], password)

    def write(self, directory: Path, kind: str, password: str = PASSWORD) -> Path:
        """A key store of this kind in a file."""
        path = directory / f"key.{kind.lower()}"
        contents = {"PEM": lambda: self.key_pem() + self.certificate_pem(), "PKCS12": lambda: self.pkcs12(password),
                    "JKS": lambda: self.jks(password)}  # fmt: skip
        path.write_bytes(contents[kind]())
        return path


@dataclass(frozen=True)
class Authority:
    """An authority of one test."""

    name: str = "authority"
    key: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))

    @functools.cached_property
    def certificate(self) -> x509.Certificate:
        return _sign(self.name, self.key, self.name, self.key, authority=True)

    def issue(self, name: str, *names: str) -> Leaf:
        """A certificate for `name`, good for the hosts and addresses `names`."""
        key = ec.generate_private_key(ec.SECP256R1())
        return Leaf(key, _sign(name, key, self.name, self.key, authority=False, names=names), (self.certificate,))

    def write(self, directory: Path, kind: str, password: str = PASSWORD) -> Path:
        """A trust store of this kind in a file."""
        path = directory / f"trust.{kind.lower()}"
        if kind == "PEM":
            contents = self.certificate.public_bytes(PEM)
        elif kind == "JKS":
            contents = encode_store([JksCertificate("ca", 0, self.certificate.public_bytes(DER))], password)
        else:
            trusted = pkcs12.PKCS12Certificate(self.certificate, b"ca")
            contents = pkcs12.serialize_java_truststore([trusted], s.BestAvailableEncryption(password.encode()))
        path.write_bytes(contents)
        return path


def self_made(name: str = "alone") -> Leaf:
    """A certificate that signed itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    return Leaf(key, _sign(name, key, name, key, authority=False))
