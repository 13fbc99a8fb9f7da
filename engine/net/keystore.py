"""Files that hold certificates and private keys: PEM, PKCS #12 and Java's JKS.

JKS and PKCS #12 are told apart by the file's contents, whichever of them is configured, as Java does since version 8.  PEM has to
be configured by name, so that a text file is not trusted by mistake.

Errors are InvalidRequestError with the file's name, because the configuration has to change, and DiskReadError when the system
cannot read the file.  No message contains a password.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.net.small_file import read_small_file
from waltzctl.engine.net.tls_options import StoreType, store_type_of
from waltzctl.engine.shell_words import shell_quote

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
    from cryptography.x509 import Certificate

_JKS_MAGIC = bytes.fromhex("feedfeed")
_JCEKS_MAGIC = bytes.fromhex("cececece")
_DER_SEQUENCE = b"\x30"
_PEM_BEGIN = b"-----BEGIN "
_PEM_ENDS = re.compile(rb"-----END [^\r\n]*-----")
_PEM_PRIVATE_KEY = b"PRIVATE KEY-----"
_IN_A_CHAIN = re.compile(r"(?:[A-Z]+|[0-9.]+)=")
"""How the name of a certificate begins that Java wrote to a PKCS #12 store as one above a key's own: its subject.

The aliases of entries are in lower case there.  The library tells of the first key only, and not which certificates are above the
others' own ones.
"""
MAX_STORE_SIZE = 16 << 20
"""Bytes; a longer file is refused."""


@dataclass(frozen=True, slots=True)
class KeyMaterial:
    """A private key and its certificate chain, the key's own certificate first."""

    key: PrivateKeyTypes
    chain: tuple[Certificate, ...]

    def to_pem(self, password: str) -> bytes:
        """The key, encrypted with `password`, and the chain, as PEM."""
        from cryptography.hazmat.primitives import serialization as s

        key = self.key.private_bytes(
            s.Encoding.PEM, s.PrivateFormat.PKCS8, s.BestAvailableEncryption(password.encode())
        )
        return key + b"".join(one.public_bytes(s.Encoding.PEM) for one in self.chain)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the key's certificate (DER), in hex."""
        from cryptography.hazmat.primitives import hashes

        return self.chain[0].fingerprint(hashes.SHA256()).hex()


def read_key_store(path: Path, password: str | None, store_type: str) -> KeyMaterial:
    """The private key of a store and its chain; the first key where there are several.

    Raises InvalidRequestError (no such file, unknown type, wrong password, damaged, no private key), DiskReadError.
    """
    data = _read(path)
    kind = _kind_of(path, data, store_type_of(store_type))
    if kind is StoreType.PEM:
        return _pem_material(path, data, path, data, password)
    if password is None:
        raise InvalidRequestError(f"{path}: a private key cannot be read without the store's password")
    match kind:
        case StoreType.JKS:
            return _jks_material(path, data, password)
        case StoreType.PKCS12:
            return _pkcs12_material(path, data, password)


def read_trust_store(path: Path, password: str | None, store_type: str) -> tuple[bytes, ...]:
    """The trusted certificates of a store (DER), including the own certificate of each private key.

    A JKS store can be read without its password; its checksum is not verified then, as in Java.  Raises as `read_key_store`; a
    store without any certificate is an error, because no peer could connect.
    """
    data = _read(path)
    match _kind_of(path, data, store_type_of(store_type)):
        case StoreType.PEM:
            found = _pem_certificates(path, data)
        case StoreType.JKS:
            found = _jks_certificates(path, data, password)
        case StoreType.PKCS12:
            found = _pkcs12_certificates(path, data, password)
    if not found:
        raise InvalidRequestError(f"{path}: the trust store holds no certificate")
    return found


def read_certificate_and_key(certificate: Path, key: Path | None, password: str | None) -> KeyMaterial:
    """A chain and its private key from PEM files; from one file if `key` is None.  Raises as `read_key_store`."""
    chain = _read(certificate)
    _check_whole_pem(certificate, chain)
    return _pem_material(certificate, chain, key or certificate, chain if key is None else _read(key), password)


def _read(path: Path) -> bytes:
    data = read_small_file(path, MAX_STORE_SIZE, contents="certificates or keys", kind="key store")
    if not data:
        raise InvalidRequestError(f"{path}: the file is empty")
    return data


def _kind_of(path: Path, data: bytes, wanted: StoreType) -> StoreType:
    """The type of a store by its contents.  Raises InvalidRequestError if it is unknown, or one of it and `wanted` is PEM."""
    if data.startswith(_JCEKS_MAGIC):
        new = path.with_name(f"{path.name}.p12")
        store, converted = shell_quote(str(path)), shell_quote(str(new))
        line = f"keytool -importkeystore -srckeystore {store} -srcstoretype JCEKS -destkeystore {converted} -deststoretype PKCS12"
        raise InvalidRequestError(
            f"{path}: a key store of type JCEKS, whose keys are encrypted in a way of Java's own; it is not read here",
            advice=f"convert it with: {line}; then name {new}, of type PKCS12",
        )
    text = _PEM_BEGIN in data
    if wanted is StoreType.PEM:
        if not text:
            raise InvalidRequestError(f"{path}: not PEM", advice="name the store's type, JKS or PKCS12")
        _check_whole_pem(path, data)
        return wanted
    if data.startswith(_JKS_MAGIC):
        return StoreType.JKS
    if data.startswith(_DER_SEQUENCE):
        return StoreType.PKCS12
    if text:
        raise InvalidRequestError(f"{path}: PEM, not {wanted}", advice="set the store's type to PEM")
    raise InvalidRequestError(f"{path}: neither JKS nor PKCS12; it begins with {data[:4].hex()}")


def _check_whole_pem(path: Path, data: bytes) -> None:
    """Refuse a truncated PEM file, which would otherwise be read as one with fewer certificates."""
    last = data[data.rfind(b"\n") + 1 :].strip()
    if data.count(_PEM_BEGIN) != len(_PEM_ENDS.findall(data)) or (last and _PEM_BEGIN.startswith(last)):
        raise InvalidRequestError(f"{path}: a block of PEM is cut off")


# --- PEM -----------------------------------------------------------------------------------------------------------------


def _pem_material(
    chain_path: Path, chain_data: bytes, key_path: Path, key_data: bytes, password: str | None
) -> KeyMaterial:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    encrypted = b"ENCRYPTED" in key_data
    if encrypted and password is None:
        raise InvalidRequestError(f"{key_path}: the private key is encrypted and no password is given")
    try:
        key = load_pem_private_key(_key_part(key_path, key_data), (password or "").encode() if encrypted else None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        why = "wrong password, or damaged" if encrypted else "damaged, or of an unknown kind"
        raise InvalidRequestError(f"{key_path}: the private key cannot be read: {why}") from None
    try:
        chain = tuple(x509.load_pem_x509_certificates(chain_data))
    except ValueError:
        raise InvalidRequestError(f"{chain_path}: no certificate in PEM form can be read from it") from None
    return _checked(chain_path, KeyMaterial(key, chain))


def _key_part(path: Path, data: bytes) -> bytes:
    """The first PEM block that is a private key."""
    at = data.find(_PEM_PRIVATE_KEY)
    begin = data.rfind(_PEM_BEGIN, 0, at)
    end = data.find(_PEM_PRIVATE_KEY, at + len(_PEM_PRIVATE_KEY))
    if at < 0 or begin < 0 or end < 0:
        raise InvalidRequestError(f"{path}: holds no whole private key in PEM form")
    return data[begin : end + len(_PEM_PRIVATE_KEY)] + b"\n"


def _pem_certificates(path: Path, data: bytes) -> tuple[bytes, ...]:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    try:
        return tuple(one.public_bytes(Encoding.DER) for one in x509.load_pem_x509_certificates(data))
    except ValueError:
        raise InvalidRequestError(f"{path}: no certificate in PEM form can be read from it") from None


# --- PKCS #12 ------------------------------------------------------------------------------------------------------------


def _pkcs12_material(path: Path, data: bytes, password: str) -> KeyMaterial:
    key, certificate, others = _open_pkcs12(path, data, password.encode())
    if key is None or certificate is None:
        raise InvalidRequestError(f"{path}: the key store holds no private key with its certificate")
    return _checked(path, KeyMaterial(key, _ordered_chain(certificate, [one for _, one in others])))


def _pkcs12_certificates(path: Path, data: bytes, password: str | None) -> tuple[bytes, ...]:
    from cryptography.hazmat.primitives.serialization import Encoding

    _, certificate, others = _open_pkcs12(path, data, None if password is None else password.encode())
    # Java does not trust who issued the certificate of a key, unless the store has that certificate as an entry, too
    found = [one for name, one in others if not _IN_A_CHAIN.match(name or "")]
    if certificate is not None:
        own, *above = _ordered_chain(certificate, [one for _, one in others])
        for issuer in above if len(found) == len(others) else ():
            found.remove(issuer)
        found = [own, *found]
    return tuple(one.public_bytes(Encoding.DER) for one in found)


def _open_pkcs12(
    path: Path, data: bytes, password: bytes | None
) -> tuple[PrivateKeyTypes | None, Certificate | None, list[tuple[str | None, Certificate]]]:
    """The first private key with its certificate, and all other certificates, each with its name in the store."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import pkcs12

    try:
        store = pkcs12.load_pkcs12(data, password)
    except UnsupportedAlgorithm as error:
        raise InvalidRequestError(f"{path}: a key or cipher of an unknown kind: {error}") from None
    except ValueError as error:
        raise _pkcs12_error(path, error) from None
    others = [
        (None if (name := one.friendly_name) is None else name.decode("utf-8", "replace"), one.certificate)
        for one in store.additional_certs
    ]
    return store.key, None if store.cert is None else store.cert.certificate, others


def _pkcs12_error(path: Path, error: ValueError) -> InvalidRequestError:
    if "password" in str(error).lower() or "mac" in str(error).lower():
        return InvalidRequestError(f"{path}: the store's password is wrong, or the store was changed")
    return InvalidRequestError(f"{path}: a damaged or unknown PKCS12 store")


# --- JKS -----------------------------------------------------------------------------------------------------------------


def _jks_material(path: Path, data: bytes, password: str) -> KeyMaterial:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_der_private_key

    from waltzctl.formats.jks import JksError, JksKey, JksPasswordError, JksStore, unprotect_key

    try:
        store = JksStore.decode(data)
        store.check_password(password)
        entry = next((one for one in store.entries if isinstance(one, JksKey)), None)
        if entry is None:
            raise InvalidRequestError(f"{path}: the key store holds no private key with its certificate")
        plain = unprotect_key(entry.protected, password)
    except (JksError, JksPasswordError) as error:
        raise InvalidRequestError(f"{path}: {error}") from None
    try:
        key = load_der_private_key(plain, None)
        chain = tuple(x509.load_der_x509_certificate(der) for der in entry.chain)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidRequestError(f"{path}: the key or a certificate of {entry.alias!r} cannot be read") from None
    return _checked(path, KeyMaterial(key, chain))


def _jks_certificates(path: Path, data: bytes, password: str | None) -> tuple[bytes, ...]:
    from waltzctl.formats.jks import JksCertificate, JksError, JksPasswordError, JksStore

    try:
        store = JksStore.decode(data)
        if password is not None:
            store.check_password(password)
    except (JksError, JksPasswordError) as error:
        raise InvalidRequestError(f"{path}: {error}") from None
    found = []
    for entry in store.entries:
        if isinstance(entry, JksCertificate):
            found.append(entry.der)
        elif entry.chain:
            found.append(entry.chain[0])
    return tuple(found)


# --- for all types -------------------------------------------------------------------------------------------------------


def _ordered_chain(own: Certificate, others: Sequence[Certificate]) -> tuple[Certificate, ...]:
    """The chain from `own` upwards, as far as the issuers are among `others`."""
    chain = [own]
    left = list(others)
    while chain[-1].issuer != chain[-1].subject:
        above = next((one for one in left if one.subject == chain[-1].issuer), None)
        if above is None:
            break
        chain.append(above)
        left.remove(above)
    return tuple(chain)


def _checked(path: Path, material: KeyMaterial) -> KeyMaterial:
    """The material.  Raises InvalidRequestError if the key does not belong to the first certificate."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    if not material.chain:
        raise InvalidRequestError(f"{path}: the private key has no certificate")
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    try:
        certified = material.chain[0].public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidRequestError(f"{path}: the key of the first certificate cannot be read: {error}") from None
    if certified.public_bytes(*form) != material.key.public_key().public_bytes(*form):
        raise InvalidRequestError(f"{path}: the private key does not belong to the first certificate")
    return material
