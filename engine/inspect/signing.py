"""Signatures of manifests: Ed25519 keys in PEM files; the private key signs, the public key verifies."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import InvalidRequestError
from waltzctl.engine.inspect.directory_manifest import Manifest, Signature
from waltzctl.engine.log.view import FileState

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_LIMIT = 64 << 10
_ADVICE = (
    "make a pair with: openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out key.pub"
)


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key and the path of its file.  `private` is None where the file has the public key only."""

    path: PurePath
    public: Ed25519PublicKey = field(repr=False)
    private: Ed25519PrivateKey | None = field(default=None, repr=False)

    def sign(self, manifest: Manifest) -> Manifest:
        """The manifest with a signature.  Raises InvalidRequestError without a private key."""
        if self.private is None:
            raise InvalidRequestError(
                f"{self.path}: a public key, and a manifest is signed with the private one", advice=_ADVICE
            )
        signature = self.private.sign(manifest.signed_bytes()).hex()
        return replace(manifest, signature=Signature(self.public.public_bytes_raw().hex(), signature))

    def objection(self, manifest: Manifest) -> str | None:
        """Why a manifest is rejected; None if its signature by this key is valid."""
        from cryptography.exceptions import InvalidSignature

        if manifest.signature is None:
            return "it is not signed"
        if manifest.signature.public_key != self.public.public_bytes_raw().hex():
            return f"it is signed with another key ({manifest.signature.public_key})"
        try:
            self.public.verify(bytes.fromhex(manifest.signature.signature), manifest.signed_bytes())
        except InvalidSignature:
            return "its signature is not that of its contents"
        return None


def load_key(path: PurePath) -> SigningKey:
    """The Ed25519 key in a PEM file, private or public.  Raises InvalidRequestError for anything else, DiskReadError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

    if FileState.of(path) is None:
        raise InvalidRequestError(f"{path}: no such file, or no access", advice=_ADVICE)
    data = disk.read_range(path, 0, _LIMIT)
    try:
        if b"PRIVATE KEY" in data:
            private = serialization.load_pem_private_key(data, None)
            if isinstance(private, Ed25519PrivateKey):
                return SigningKey(path, private.public_key(), private)
        else:
            public = serialization.load_pem_public_key(data)
            if isinstance(public, Ed25519PublicKey):
                return SigningKey(path, public)
    except TypeError as error:
        raise InvalidRequestError(
            f"{path}: the key has a password, which nobody can be asked for", advice="give it without, in a safe place"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidRequestError(f"{path}: no key in PEM form", advice=_ADVICE) from error
    raise InvalidRequestError(f"{path}: not an Ed25519 key", advice=_ADVICE)
