"""TLS contexts of the ports and of the clients, compatible with release 0.13.2.

======= ============= ======================================================================================
side    option        effect
======= ============= ======================================================================================
node    key store     shows the store's certificate
node    none          shows a self-signed certificate, made at start and kept in memory only
node    trust store   requires a client certificate that leads to a certificate of the store
node    none          requests no client certificate
client  trust store   verifies the node's chain against the store; host names if `TlsOptions.verify_names`
                      (the release never verifies names, so its certificates usually have no matching ones)
client  none          accepts every certificate if `trust_all`; otherwise verifies chain and host name with
                      the certificates that this machine trusts
======= ============= ======================================================================================

A private key is never written to a file in plaintext: OpenSSL loads it from a file encrypted with a password that exists in this
process only, and that file is in memory (memfd) or is deleted at once.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import ssl
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.net.tls_options import TlsOptions

if TYPE_CHECKING:
    from waltzctl.engine.net.keystore import KeyMaterial

MINIMUM_VERSION = ssl.TLSVersion.TLSv1_2
_SELF_SIGNED_DAYS = 3650
_CLOCK_SKEW = timedelta(days=1)


def server_context(options: TlsOptions) -> ssl.SSLContext:
    """The context of a node's ports.  Raises InvalidRequestError (an unusable store), DiskReadError."""
    options.check()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context)
    _load_own(context, options, make_one=True)
    if options.trust_store is not None:
        _load_trusted(context, options)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(options: TlsOptions, *, trust_all: bool = False) -> ssl.SSLContext:
    """The context of a client; see the module for what it verifies.

    `trust_all`: without a trust store, accept every certificate.  Raises InvalidRequestError, DiskReadError.
    """
    options.check()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    _load_own(context, options, make_one=False)
    if options.trust_store is not None:
        context.check_hostname = options.verify_names
        _load_trusted(context, options)
    elif trust_all:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = MINIMUM_VERSION
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION


def _load_own(context: ssl.SSLContext, options: TlsOptions, *, make_one: bool) -> None:
    from waltzctl.engine.net.keystore import read_key_store

    if options.certificate is not None:
        _load_pem(context, options.certificate, options.key, options.key_password)
    elif options.key_store is not None:
        store = read_key_store(options.key_store, options.key_store_password, options.key_store_type)
        load_material(context, store, str(options.key_store))
    elif make_one:
        load_material(context, self_signed(), "the self-signed certificate")


def _load_pem(context: ssl.SSLContext, certificate: Path, key: Path | None, password: str | None) -> None:
    from waltzctl.engine.net.keystore import read_certificate_and_key

    material = read_certificate_and_key(certificate, key, password)
    load_material(context, material, str(certificate))


def _load_trusted(context: ssl.SSLContext, options: TlsOptions) -> None:
    from waltzctl.engine.net.keystore import read_trust_store

    assert options.trust_store is not None
    trusted = read_trust_store(options.trust_store, options.trust_store_password, options.trust_store_type)
    try:
        context.load_verify_locations(cadata=b"".join(trusted))
    except ssl.SSLError as error:
        raise InvalidRequestError(f"{options.trust_store}: its certificates cannot be used: {error.reason}") from error
    # as in the release, a certificate in the store is trusted even if it is not self-signed
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN


def load_material(context: ssl.SSLContext, material: KeyMaterial, where: str) -> None:
    """Load a certificate chain and its key into a context.  `where`: their source, in errors.  Raises InvalidRequestError."""
    password = secrets.token_urlsafe(24)
    with _unnamed_file(material.to_pem(password)) as path:
        try:
            context.load_cert_chain(path, password=password)
        except ssl.SSLError as error:
            raise InvalidRequestError(f"{where}: certificate and key cannot be used: {error.reason}") from error


@contextlib.contextmanager
def _unnamed_file(contents: bytes) -> Iterator[str]:
    """A path at which `contents` can be read during the ``with`` block: in memory (memfd) where the system supports it."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
        try:
            os.write(descriptor, contents)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory(prefix="waltzctl-") as private:  # mode 0700
        path = os.path.join(private, "certificate")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as out:
            out.write(contents)
        yield path


def self_signed(names: tuple[str, ...] = ()) -> KeyMaterial:
    """A new self-signed certificate with a P-256 key, in memory only.

    `names`: further host names or addresses to write into it, besides this machine's and the loopback ones.
    """
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    from waltzctl.engine.net.keystore import KeyMaterial

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "waltz storage node")])
    alternatives: list[x509.GeneralName] = []
    for name in dict.fromkeys((*names, socket.gethostname(), "localhost", "127.0.0.1", "::1")):
        try:
            alternatives.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            if name.isascii() and name:
                alternatives.append(x509.DNSName(name))
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=_SELF_SIGNED_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    return KeyMaterial(key, (certificate,))
