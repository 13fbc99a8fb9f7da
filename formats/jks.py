r"""Java key stores of type JKS: certificates and private keys under names, sealed by a password.

::

    u4  magic FEEDFEED
    u4  version, 1 or 2
    u4  number of entries
        u4  kind: 1 private key with its chain, 2 trusted certificate
        UTF alias (u2 length, modified UTF-8)
        i8  created, milliseconds since 1970-01-01 UTC
        kind 1: u4 length and the protected key; u4 number of certificates, each as below
        kind 2: one certificate: UTF type (version 2 only; "X.509"), u4 length, DER
    20  SHA-1 of the password (two bytes a character, big-endian), the words "Mighty Aphrodite" and everything before

A protected key is a DER EncryptedPrivateKeyInfo whose algorithm is Sun's own (1.3.6.1.4.1.42.2.17.1.1): 20 bytes of salt,
the PKCS #8 key combined with a stream of SHA-1 over password and previous block, and SHA-1 of password and key.

Numbers are big-endian.  Source: the layout is public knowledge, described by the Java platform's key tool; checked against
stores that ``keytool`` writes.  JCEKS (magic CECECECE) is another type and is not read.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from construct import (
    Array,
    Bytes,
    Const,
    ConstructError,
    GreedyBytes,
    If,
    IfThenElse,
    Int16ub,
    Int32ub,
    Int64sb,
    OneOf,
    Prefixed,
    Struct,
    Tell,
    this,
)

from waltzctl.formats.java_text import decode_modified_utf8, encode_modified_utf8

JKS_MAGIC = 0xFEEDFEED
JCEKS_MAGIC = 0xCECECECE
PRIVATE_KEY = 1
TRUSTED_CERTIFICATE = 2
DIGEST_SIZE = 20
SUN_KEY_PROTECTION = bytes.fromhex("2b060104012a02110101")
"""The object identifier's contents, 1.3.6.1.4.1.42.2.17.1.1."""

_WHITENER = b"Mighty Aphrodite"
_X509 = "X.509"
_NOT_WRAPPED = "a private key is not wrapped as an EncryptedPrivateKeyInfo"

CERTIFICATE_SCHEMA = Struct(
    "type" / If(this._root.version == 2, Prefixed(Int16ub, GreedyBytes)),
    "der" / Prefixed(Int32ub, GreedyBytes),
)
PRIVATE_KEY_SCHEMA = Struct(
    "protected" / Prefixed(Int32ub, GreedyBytes),
    "count" / Int32ub,
    "chain" / Array(this.count, CERTIFICATE_SCHEMA),
)
ENTRY_SCHEMA = Struct(
    "kind" / OneOf(Int32ub, (PRIVATE_KEY, TRUSTED_CERTIFICATE)),
    "alias" / Prefixed(Int16ub, GreedyBytes),
    "created" / Int64sb,
    "value" / IfThenElse(this.kind == PRIVATE_KEY, PRIVATE_KEY_SCHEMA, CERTIFICATE_SCHEMA),
)
JKS_SCHEMA = Struct(
    "magic" / Const(JKS_MAGIC, Int32ub),
    "version" / OneOf(Int32ub, (1, 2)),
    "count" / Int32ub,
    "entries" / Array(this.count, ENTRY_SCHEMA),
    "end" / Tell,
    "digest" / Bytes(DIGEST_SIZE),
)


class JksError(ValueError):
    """The bytes are not a JKS key store, or a damaged one."""


class JksPasswordError(ValueError):
    """The password is wrong, or the bytes were changed: the digest cannot tell these apart."""


@dataclass(frozen=True, slots=True)
class JksKey:
    """A private key, still protected, and its certificate chain (DER, the key's own certificate first)."""

    alias: str
    created: int
    protected: bytes
    chain: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class JksCertificate:
    """A trusted certificate (DER)."""

    alias: str
    created: int
    der: bytes


JksEntry = JksKey | JksCertificate


@dataclass(frozen=True, slots=True)
class JksStore:
    """A key store, its entries in file order.  `sealed`: the bytes that `digest` (the seal) covers.  `version`: 1 or 2."""

    version: int
    entries: tuple[JksEntry, ...]
    sealed: bytes
    digest: bytes

    @classmethod
    def decode(cls, data: bytes) -> JksStore:
        """From a whole file.  Raises JksError.  The seal is checked by `check_password`."""
        stream = io.BytesIO(data)
        try:
            parsed = JKS_SCHEMA.parse_stream(stream)
        except (ConstructError, OverflowError) as error:
            reason = str(error).strip().splitlines()[-1]
            raise JksError(
                f"no whole JKS key store, at offset {stream.tell()} of {len(data)} bytes: {reason}"
            ) from None
        if stream.tell() != len(data):
            raise JksError(f"{len(data) - stream.tell()} bytes too many follow the seal at offset {stream.tell()}")
        return cls(parsed.version, tuple(_entry(one) for one in parsed.entries), data[: parsed.end], parsed.digest)

    def check_password(self, password: str) -> None:
        """Raise JksPasswordError unless the seal was made with this password over these bytes."""
        if not hmac.compare_digest(seal(self.sealed, password), self.digest):
            raise JksPasswordError("the password is wrong, or the store was changed or damaged")


def _entry(parsed: Any) -> JksEntry:
    try:
        alias = decode_modified_utf8(parsed.alias)
    except ValueError as error:
        raise JksError(f"an alias cannot be read: {error}") from None
    if parsed.kind == PRIVATE_KEY:
        chain = tuple(_certificate(one) for one in parsed.value.chain)
        return JksKey(alias, parsed.created, parsed.value.protected, chain)
    return JksCertificate(alias, parsed.created, _certificate(parsed.value))


def _certificate(parsed: Any) -> bytes:
    if parsed.type is not None and parsed.type != _X509.encode():
        raise JksError(f"a certificate is of type {bytes(parsed.type)!r}; only {_X509} is read")
    return bytes(parsed.der)


def encode_store(entries: Sequence[JksEntry], password: str, *, version: int = 2) -> bytes:
    """A whole file, sealed with the password."""
    kind = _X509.encode() if version == 2 else None
    rows = []
    for entry in entries:
        row: dict[str, Any] = {"alias": encode_modified_utf8(entry.alias), "created": entry.created}
        if isinstance(entry, JksKey):
            chain = [{"type": kind, "der": der} for der in entry.chain]
            row |= {"kind": PRIVATE_KEY, "value": {"protected": entry.protected, "count": len(chain), "chain": chain}}
        else:
            row |= {"kind": TRUSTED_CERTIFICATE, "value": {"type": kind, "der": entry.der}}
        rows.append(row)
    whole = JKS_SCHEMA.build({"version": version, "count": len(rows), "entries": rows, "digest": bytes(DIGEST_SIZE)})
    sealed = whole[:-DIGEST_SIZE]
    return bytes(sealed + seal(sealed, password))


def seal(sealed: bytes, password: str) -> bytes:
    """The 20 bytes that end a file."""
    return _sha1(_password_bytes(password) + _WHITENER + sealed)


def unprotect_key(protected: bytes, password: str) -> bytes:
    """The PKCS #8 key (DER) of a protected one.  Raises JksError (not protected this way), JksPasswordError."""
    held = _encrypted_data(protected)
    if len(held) < 2 * DIGEST_SIZE:
        raise JksError(f"a protected key has at least {2 * DIGEST_SIZE} bytes, here are {len(held)}")
    salt, hidden, check = held[:DIGEST_SIZE], held[DIGEST_SIZE:-DIGEST_SIZE], held[-DIGEST_SIZE:]
    key = _combine(hidden, salt, password)
    if not hmac.compare_digest(_sha1(_password_bytes(password) + key), check):
        raise JksPasswordError("the password of the private key is wrong, or the key was changed or damaged")
    return key


def protect_key(key: bytes, password: str, *, salt: bytes | None = None) -> bytes:
    """A PKCS #8 key (DER) as a store holds it; `salt`: 20 bytes, random unless given."""
    salt = secrets.token_bytes(DIGEST_SIZE) if salt is None else salt
    check = _sha1(_password_bytes(password) + key)
    algorithm = _der(0x30, _der(0x06, SUN_KEY_PROTECTION) + _der(0x05, b""))
    return _der(0x30, algorithm + _der(0x04, salt + _combine(key, salt, password) + check))


def _combine(data: bytes, salt: bytes, password: str) -> bytes:
    """Data XOR the key stream that salt and password determine; its own inverse."""
    secret = _password_bytes(password)
    blocks: list[bytes] = []
    block = salt
    for _ in range(0, len(data), DIGEST_SIZE):
        block = _sha1(secret + block)
        blocks.append(block)
    stream = b"".join(blocks)[: len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big")


def _password_bytes(password: str) -> bytes:
    return password.encode("utf-16-be", "surrogatepass")


def _sha1(data: bytes) -> bytes:
    return hashlib.sha1(data, usedforsecurity=False).digest()


def _encrypted_data(protected: bytes) -> bytes:
    """The encrypted bytes of an EncryptedPrivateKeyInfo.  Raises JksError."""
    info, rest = _contents(0x30, protected)
    algorithm, after = _contents(0x30, info)
    oid, _ = _contents(0x06, algorithm)
    held, left = _contents(0x04, after)
    if rest or left:
        raise JksError(_NOT_WRAPPED)
    if oid != SUN_KEY_PROTECTION:
        raise JksError(f"a private key is protected by another algorithm (object identifier {oid.hex()})")
    return held


def _contents(tag: int, data: bytes) -> tuple[bytes, bytes]:
    """The contents of the first DER value, which must have this tag, and what follows it.  Raises JksError."""
    found, contents, rest = _take(data)
    if found != tag:
        raise JksError(_NOT_WRAPPED)
    return contents, rest


def _take(data: bytes) -> tuple[int, bytes, bytes]:
    """The first DER value's tag and contents, and what follows it.  Raises JksError."""
    if len(data) < 2:
        raise JksError("a private key ends within its wrapping")
    length, start = data[1], 2
    if length & 0x80:
        start += length & 0x7F
        if not 1 <= length & 0x7F <= 4:
            raise JksError("a private key's wrapping has a length that cannot be")
        length = int.from_bytes(data[2:start], "big")
    if start + length > len(data):
        raise JksError("a private key ends within its wrapping")
    return data[0], data[start : start + length], data[start + length :]


def _der(tag: int, contents: bytes) -> bytes:
    size = len(contents)
    if size < 0x80:
        return bytes((tag, size)) + contents
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + contents
