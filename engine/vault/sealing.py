"""Sealed pages: content compressed with zstd, encrypted with AES-256-GCM, identified by digests.

- Digest: SHA-256; in an encrypted vault HMAC-SHA-256, so that it reveals nothing without the key.  (BLAKE2b takes more than twice
  the time on processors with SHA instructions.)
- Associated data: an encrypted page is bound to its digest and the vault's id, so a page put in place of another does not
  decrypt.
- Nonces are random: after 2^32 pages under one key, the probability that two nonces are equal is 2^-32.
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
"""scrypt's N. With r = 8, one try of a password takes 128 MiB of memory."""
DEFAULT_LEVEL = 3
"""zstd level."""
LARGEST = 1 << 32
"""The largest content size, in bytes, that a page's header may state."""


class WrongPasswordError(RefusedError):
    """The password does not open the vault."""


@dataclass(frozen=True, slots=True)
class VaultKeys:
    """Keys derived from the vault's master key: one for encryption, one for digests."""

    encryption: bytes
    digest: bytes

    @classmethod
    def of(cls, master: bytes) -> VaultKeys:
        """Derive both keys from the master key."""
        first, second = (hashlib.blake2b(b"", key=master, person=name, digest_size=32) for name in (b"page", b"digest"))
        return cls(first.digest(), second.digest())


def new_encryption(password: bytes, vault_id: uuid.UUID, *, cost: int = SCRYPT_COST) -> Encryption:
    """A new master key, wrapped with a key derived from a password.  Raises InvalidRequestError if the password is empty."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    if not password:
        raise InvalidRequestError("the password is empty", advice="give a file whose first line it is")
    salt, nonce, master = os.urandom(16), os.urandom(NONCE_SIZE), os.urandom(KEY_SIZE)
    wrapped = AESGCM(_password_key(password, salt, cost, 8, 1)).encrypt(nonce, master, vault_id.bytes)
    return Encryption(salt, cost, 8, 1, nonce, wrapped)


def open_keys(configuration: VaultConfiguration, password: bytes | None, where: object) -> VaultKeys | None:
    """The keys of a vault; None if it is not encrypted.  Raises InvalidRequestError without a password, WrongPasswordError."""
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
    """Seals content to pages and opens them again.  Thread-safe."""

    def __init__(self, configuration: VaultConfiguration, keys: VaultKeys | None) -> None:
        self._id = configuration.vault_id.bytes
        self._level = configuration.compression_level
        self._inner, self._outer = hashlib.sha256(), None
        if keys is not None:  # HMAC (RFC 2104); the padded key is hashed only once
            key = keys.digest.ljust(hashlib.sha256().block_size, b"\0")
            self._inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in key))
            self._outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in key))
        self._cipher = None
        if keys is not None:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            self._cipher = AESGCM(keys.encryption)

    def digest(self, content: bytes | bytearray | memoryview) -> bytes:
        """The digest of content, 32 bytes."""
        inner = self._inner.copy()
        inner.update(content)  # releases the interpreter's lock
        if self._outer is None:
            return inner.digest()
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()

    def seal(self, content: bytes | bytearray | memoryview, digest: bytes) -> bytes:
        """A sealed page.  `digest`: that of the content, or for heads and sections `head_digest` or `section_digest`."""
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
            payload = nonce + self._cipher.encrypt(nonce, payload, self._associated_data(header, digest))
        return SEALED_PAGE.struct.pack(FORMAT_VERSION, flags, size) + payload

    def open(self, page: bytes | memoryview, digest: bytes, *, check: bool = True) -> bytes:
        """The content of a sealed page.  `check`: `digest` is that of the content, compare it.  Raises VaultFormatError."""
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
                bytes(payload[:NONCE_SIZE]), payload[NONCE_SIZE:], self._associated_data(header, digest)
            )
        except InvalidTag:
            raise VaultFormatError("a page does not decrypt: it was changed, or is another one's") from None

    def _associated_data(self, header: bytes, digest: bytes) -> bytes:
        return self._id + header + digest


def head_digest(backup: int) -> bytes:
    """The substitute for the digest of a backup's head, which is found by its id and not by its content."""
    return backup.to_bytes(8, "big").rjust(DIGEST_SIZE, b"\0")


def section_digest(backup: int, section: int) -> bytes:
    """The substitute for the digest of a section.

    `section`: the section's page relative to the backup's first page.
    """
    return (backup.to_bytes(8, "big") + section.to_bytes(8, "big")).rjust(DIGEST_SIZE, b"\1")
