"""The manifest of a storage directory: what every file of it holds, so that a copy can prove itself.

One JSON object, written by ``verify --manifest`` after a clean verification::

    {"schema": "waltzctl.manifest/1", "type": "manifest", "created": "2026-11-21T08:51:18.000Z", "tool": "waltzctl 0.1.0",
     "cluster_key": ..., "num_partitions": ..., "layout": "released", "control_header": <the first 128 bytes, hex>,
     "partitions": [{"partition": 0, "first_transaction_id": 0, "last_transaction_id": 99, "session_id": ...,
                     "low_water_mark": ..., "local_low_water_mark": ...}],
     "files": [{"name": "0/0000000000000000000.seg", "size": 4711, "sha256": ...}],
     "sha256": ..., "signature": null or {"algorithm": "ed25519", "public_key": ..., "signature": ...}}

It does not contain the directory's path, so that it applies to a copy anywhere.  ``sha256`` is computed over all other keys but
``signature``, as canonical JSON (sorted keys, no spaces, ASCII); the signature is over `signed_bytes`: a line that names the
format, and the same canonical JSON.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from waltzctl.engine.columns.column import ABSENT
from waltzctl.engine.columns.manifest_columns import MANIFEST, SIGNATURE
from waltzctl.engine.strict_json import InvalidJsonError, StrictObject, canonical
from waltzctl.formats.control import CONTROL_HEADER, ControlHeader, Layout

ALGORITHM = "ed25519"
_SEAL = ("sha256", "signature")
_CONTEXT = b"waltzctl.manifest/1 signature\n"
"""Prefix of the signed bytes (domain separation): no signature of other data with the same key is valid for a manifest."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SIGNATURE = re.compile(r"[0-9a-f]{128}")
_HEADER = re.compile(rf"[0-9a-f]{{{2 * CONTROL_HEADER.size}}}")
_MOST_NAME = 16 << 10


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A file: its name relative to the storage directory, with slashes; size in bytes; SHA-256 in hex."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ManifestPartition:
    """What a partition held: its first and last record (None if empty), and session and marks (None if no struct was valid)."""

    partition: int
    first_transaction_id: int | None
    last_transaction_id: int | None
    session_id: int | None
    low_water_mark: int | None
    local_low_water_mark: int | None

    @property
    def marks(self) -> tuple[int, int, int] | None:
        """Session id, low-water mark, local low-water mark."""
        if self.session_id is None or self.low_water_mark is None or self.local_low_water_mark is None:
            return None
        return self.session_id, self.low_water_mark, self.local_low_water_mark


@dataclass(frozen=True, slots=True)
class Signature:
    """An Ed25519 signature and the raw public key that goes with it, both in hex."""

    public_key: str
    signature: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest.  `created` is RFC 3339 in UTC; `tool` says what wrote it; files are in the order of their names."""

    created: str
    tool: str
    header: ControlHeader
    layout: Layout
    partitions: tuple[ManifestPartition, ...]
    files: tuple[ManifestFile, ...]
    signature: Signature | None = None

    def body(self) -> dict[str, Any]:
        """Everything but the seal."""
        return MANIFEST.shown(self, sha256=ABSENT, signature=ABSENT)

    def signed_bytes(self) -> bytes:
        """The bytes that a signature covers."""
        return _CONTEXT + canonical(self.body())

    def encode(self) -> bytes:
        """The file's bytes."""
        body = self.body()
        seal = None
        if self.signature is not None:
            seal = SIGNATURE.keys(self.signature, algorithm=ALGORITHM)
        body |= {"sha256": hashlib.sha256(canonical(body)).hexdigest(), "signature": seal}
        return json.dumps(body, indent=1).encode() + b"\n"


class NoManifestError(ValueError):
    """The bytes are not a manifest at all."""


class DamagedManifestError(ValueError):
    """A manifest whose checksum is wrong, or whose fields have values that this program does not write."""


def decode_manifest(data: bytes) -> Manifest:
    """A manifest from the bytes of its file.

    Raises NoManifestError, DamagedManifestError.  The signature is not verified: that takes a key (`engine.inspect.signing`).
    """
    try:
        document = json.loads(data)
        if document["schema"] != MANIFEST.identity or document["type"] != MANIFEST.name:
            raise NoManifestError(f"its schema is {document['schema']!r}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if MANIFEST.identity.encode() in data[:4096]:
            raise DamagedManifestError(f"it is no whole JSON document: {error}") from error
        raise NoManifestError(str(error)) from error
    try:
        return _decode(document)
    except ValueError as error:
        raise DamagedManifestError(str(error)) from error


def _decode(document: dict[str, Any]) -> Manifest:
    source = StrictObject(document, "manifest")
    stored = source.text("sha256", _SHA256.fullmatch)
    body = {key: value for key, value in document.items() if key not in _SEAL}
    if hashlib.sha256(canonical(body)).hexdigest() != stored:
        raise InvalidJsonError("its SHA-256 is not that of its contents")
    source.text("schema")
    source.text("type")
    header = ControlHeader.decode(bytes.fromhex(source.text("control_header", _HEADER.fullmatch)))
    key, partitions = source.text("cluster_key"), source.number("num_partitions")
    if (key, partitions) != (str(header.cluster_key), header.num_partitions):
        raise InvalidJsonError("its key and number of partitions are not those of its control header")
    manifest = Manifest(
        source.text("created", most=40),
        source.text("tool", most=200),
        header,
        Layout(source.text("layout")),
        tuple(_partition(one, f"partitions[{n}]") for n, one in enumerate(source.items("partitions"))),
        tuple(_file(one, f"files[{n}]") for n, one in enumerate(source.items("files"))),
        _signature(source.child("signature")),
    )
    source.finish()
    if len({one.name for one in manifest.files}) < len(manifest.files):
        raise InvalidJsonError("a file is named twice")
    return manifest


def _partition(value: Any, where: str) -> ManifestPartition:
    source = StrictObject(value, where)
    number = source.number("partition")
    one = ManifestPartition(number, *(source.optional_number(name) for name in ManifestPartition.__slots__[1:]))
    source.finish()
    return one


def _file(value: Any, where: str) -> ManifestFile:
    source = StrictObject(value, where)
    one = ManifestFile(
        source.text("name", most=_MOST_NAME), source.number("size"), source.text("sha256", _SHA256.fullmatch)
    )
    source.finish()
    return one


def _signature(source: StrictObject | None) -> Signature | None:
    if source is None:
        return None
    source.text("algorithm", ALGORITHM.__eq__)
    found = Signature(source.text("public_key", _SHA256.fullmatch), source.text("signature", _SIGNATURE.fullmatch))
    source.finish()
    return found
