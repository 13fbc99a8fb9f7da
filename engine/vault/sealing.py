"""Content to sealed pages and back: compressed with zstd, encrypted with AES-256-GCM, told apart by digests.

A digest is SHA-256; in an encrypted vault HMAC-SHA-256, so that it tells nothing to who has no key.  (BLAKE2b takes more than
twice the time on processors with instructions for SHA.)
An encrypted page is bound to its digest and to the vault's id: one that was put into another one's place does not open.
Nonces are random; 2^32 pages can be encrypted with one key before two nonces are the same with a probability of 2^-32.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import uuid
from dataclasses import dataclass

from waltzctl.engine.errors import InvalidRequestError, RefusedError
from waltzctl.formats.vault import (
    DIGEST_SIZE,
    FORMAT_VERSION,
    NONCE_SIZE,
    SEALED_PAGE,
    TAG_SIZE,
    Encryption,
    Flag,
    VaultConfiguration,
    VaultFormatError,
)

KEY_SIZE = 32
SCRYPT_COST = 1 << 17
"""With blocks of 8: 128 MiB of memory for one try of a password."""
DEFAULT_LEVEL = 3
"""Of zstd."""
LARGEST = 1 << 32
"""Bytes of content that a page may claim to hold."""


class WrongPasswordError(RefusedError):
    """The password does not open the vault."""


@dataclass(frozen=True, slots=True)
class VaultKeys:
    """Made of the vault's key: one to encrypt with, one for digests."""

    encryption: bytes
    digest: bytes

    @classmethod
    def of(cls, master: bytes) -> VaultKeys:
        """Two keys of one."""
        first, second = (hashlib.blake2b(b"", key=master, person=name, digest_size=32) for name in (b"page", b"digest"))
        return cls(first.digest(), second.digest())


def new_encryption(password: bytes, vault_id: uuid.UUID, *, cost: int = SCRYPT_COST) -> Encryption:
    """A new key, kept under a password.  Raises InvalidRequestError for an empty one."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if not password:
        raise InvalidRequestError("the password is empty", advice="give a file whose first line it is")
    salt, nonce, master = os.urandom(16), os.urandom(NONCE_SIZE), os.urandom(KEY_SIZE)
    wrapped = AESGCM(_password_key(password, salt, cost, 8, 1)).encrypt(nonce, master, vault_id.bytes)
    return Encryption(salt, cost, 8, 1, nonce, wrapped)


def open_keys(configuration: VaultConfiguration, password: bytes | None, where: object) -> VaultKeys | None:
    """The keys of a vault; None where it is not encrypted.  Raises InvalidRequestError without a password, WrongPasswordError."""
    kept = configuration.encryption
    if kept is None:
        return None
    if password is None:
        raise InvalidRequestError(
            f"{where}: the vault is encrypted", advice="give --password-file, or set WALTZCTL_VAULT_PASSWORD_FILE"
        )
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    key = _password_key(password, kept.salt, kept.cost, kept.block_size, kept.parallelism)
    try:
        master = AESGCM(key).decrypt(kept.nonce, kept.wrapped_key, configuration.vault_id.bytes)
    except (InvalidTag, ValueError):
        raise WrongPasswordError(f"{where}: the password does not open the vault") from None
    return VaultKeys.of(master)


def _password_key(password: bytes, salt: bytes, cost: int, block_size: int, parallelism: int) -> bytes:
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    return Scrypt(salt=salt, length=KEY_SIZE, n=cost, r=block_size, p=parallelism).derive(password)


class Sealer:
    """Makes sealed pages of content, and content of sealed pages.  Thread-safe."""

    def __init__(self, configuration: VaultConfiguration, keys: VaultKeys | None) -> None:
        self._id = configuration.vault_id.bytes
        self._level = configuration.compression_level
        self._inner, self._outer = hashlib.sha256(), None
        if keys is not None:  # HMAC (RFC 2104), begun once
            key = keys.digest.ljust(hashlib.sha256().block_size, b"\0")
            self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key))
            self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in key))
        self._cipher = None
        if keys is not None:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            self._cipher = AESGCM(keys.encryption)

    def digest(self, content: bytes | bytearray | memoryview) -> bytes:
        """32 bytes."""
        inner = self._inner.copy()
        inner.update(content)  # without the interpreter's lock
        if self._outer is None:
            return inner.digest()
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()

    def seal(self, content: bytes | bytearray | memoryview, digest: bytes) -> bytes:
        """A sealed page.  `digest`: of the content, or for a page that nothing names by its content what stands for that."""
        size, flags, payload = len(content), Flag(0), bytes(content) if isinstance(content, bytearray) else content
        if self._level is not None and size:
            import zstandard

            smaller = zstandard.ZstdCompressor(level=self._level, write_content_size=True).compress(content)
            if len(smaller) < size:
                flags, payload = Flag.COMPRESSED, smaller
        if self._cipher is not None:
            flags |= Flag.ENCRYPTED
            nonce = os.urandom(NONCE_SIZE)
            header = SEALED_PAGE.struct.pack(FORMAT_VERSION, flags, size)
            payload = nonce + self._cipher.encrypt(nonce, payload, self._bound_to(header, digest))
        return SEALED_PAGE.struct.pack(FORMAT_VERSION, flags, size) + payload

    def open(self, page: bytes | memoryview, digest: bytes, *, check: bool = True) -> bytes:
        """The content of a sealed page.  `check`: whether `digest` is that of the content.  Raises VaultFormatError."""
        view = memoryview(page)
        if len(view) < SEALED_PAGE.size:
            raise VaultFormatError("a page is shorter than its header")
        version, flags, size = SEALED_PAGE.struct.unpack_from(view)
        if version != FORMAT_VERSION or size > LARGEST:
            raise VaultFormatError(f"a page of version {version} and {size} bytes")
        payload: bytes | memoryview = view[SEALED_PAGE.size :]
        if flags & Flag.ENCRYPTED:
            payload = self._decrypted(view, digest)
        elif self._cipher is not None:
            raise VaultFormatError("a page that is not encrypted, in a vault that is")
        if flags & Flag.COMPRESSED:
            import zstandard

            try:
                payload = zstandard.ZstdDecompressor().decompress(payload, max_output_size=size)
            except zstandard.ZstdError as error:
                raise VaultFormatError(f"a page does not decompress: {error}") from None
        if len(payload) != size:
            raise VaultFormatError(f"a page of {len(payload)} bytes that says {size}")
        content = bytes(payload)
        if check and not hmac.compare_digest(self.digest(content), digest):
            raise VaultFormatError("a page holds something else than its digest says")
        return content

    def _decrypted(self, page: memoryview, digest: bytes) -> bytes:
        if self._cipher is None:
            raise VaultFormatError("a page that is encrypted, in a vault that is not")
        header, payload = bytes(page[: SEALED_PAGE.size]), page[SEALED_PAGE.size :]
        if len(payload) < NONCE_SIZE + TAG_SIZE:
            raise VaultFormatError("an encrypted page is shorter than what encryption adds")
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(
                bytes(payload[:NONCE_SIZE]), payload[NONCE_SIZE:], self._bound_to(header, digest)
            )
        except InvalidTag:
            raise VaultFormatError("a page does not decrypt: it was changed, or is another one's") from None

    def _bound_to(self, header: bytes, digest: bytes) -> bytes:
        return self._id + header + digest


def head_digest(backup: int) -> bytes:
    """What stands for the digest of a backup's head, which nothing names by its content."""
    return backup.to_bytes(8, "big").rjust(DIGEST_SIZE, b"\0")


def section_digest(backup: int, section: int) -> bytes:
    """The same of a section: its backup, and its page counted from the backup's first."""
    return (backup.to_bytes(8, "big") + section.to_bytes(8, "big")).rjust(DIGEST_SIZE, b"\1")
