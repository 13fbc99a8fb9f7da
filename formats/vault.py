"""The pages of a backup vault, which is a page store (`formats.pages`).

==========================  ====  ==========================================================================================
namespace                   page  holds
==========================  ====  ==========================================================================================
CONFIGURATION               1, 2  the vault's configuration, twice: JSON, never compressed or encrypted
BACKUPS, BACKUP_COPIES      id    a backup's head, once in each: JSON in a sealed page
DATA                        n     pieces of files, and sections that say how files are made of them, in sealed pages
==========================  ====  ==========================================================================================

A backup owns the `num_pages` pages of DATA from `first_page` on.  A page whose content was in the vault before is a reference to
the page that holds it.  A *piece* is a run of bytes of the backed-up files.  A *section* describes the files of one partition, or
those of the storage directory outside of partitions; it is stored twice, in two consecutive pages.  The pages of its pieces are
consecutive, from `first_piece` on.

A *sealed page* is a header, a nonce if the vault is encrypted, and the payload: the content, compressed if that makes it smaller,
and encrypted if the vault is.  The layouts are ours; integers are little-endian, as in the page store.
"""

from __future__ import annotations

import base64
import binascii
import enum
import json
import struct
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from construct import Bytes, Int8ul, Int32ul, Int64sl, Int64ul, Struct

from waltzctl.formats.schema import compile_schema

FORMAT_VERSION = 1
DIGEST_SIZE = 32
NONCE_SIZE = 12
TAG_SIZE = 16

SEALED_PAGE = compile_schema(Struct("version" / Int8ul, "flags" / Int8ul, "size" / Int64ul))
"""The header of a sealed page.  `size`: bytes of the uncompressed content."""
PIECE = compile_schema(
    Struct(
        "digest" / Bytes(DIGEST_SIZE),
        "size" / Int64ul,
        "stored" / Int64ul,
        "first_transaction_id" / Int64sl,
        "records" / Int64ul,
    )
)
"""A piece in a section's table.  `stored`: bytes of its sealed page.  `first_transaction_id`: -1 unless it holds records."""
SECTION_HEADER = compile_schema(Struct("document_size" / Int32ul, "pieces" / Int32ul))
"""The header of a section; its JSON document and its table of pieces follow."""


class Namespace(enum.IntEnum):
    """Namespaces of the page store."""

    CONFIGURATION = 1
    BACKUPS = 2
    BACKUP_COPIES = 3
    DATA = 4


_LARGEST_SCRYPT = 1 << 24
"""The largest scrypt cost times block size that is accepted, 2 GiB of memory: a vault must not make its reader allocate more."""
CONFIGURATION_PAGES = (1, 2)
SECTION_COPIES = 2
BESIDE = -1
"""In place of a partition's number: the files of a storage directory outside of its partitions."""


class Flag(enum.IntFlag):
    """Flags of a sealed page."""

    COMPRESSED = 1
    ENCRYPTED = 2


class VaultFormatError(ValueError):
    """The bytes are not of a vault of a known version."""


@dataclass(frozen=True, slots=True)
class Encryption:
    """The vault's key, wrapped with AES-256-GCM under a key that scrypt (RFC 7914) derives from the password.

    `salt`, `cost`, `block_size`, `parallelism`: parameters of scrypt (N, r, p).  `nonce`: of AES-256-GCM.
    """

    salt: bytes
    cost: int
    block_size: int
    parallelism: int
    nonce: bytes
    wrapped_key: bytes


@dataclass(frozen=True, slots=True)
class VaultConfiguration:
    """A vault's configuration.  `compression_level`: of zstd; None: no compression.  `encryption`: None: not encrypted."""

    vault_id: uuid.UUID
    compression_level: int | None
    encryption: Encryption | None

    def encode(self) -> bytes:
        """JSON."""
        body: dict[str, Any] = {
            "format": FORMAT_VERSION,
            "vault_id": str(self.vault_id),
            "compression": None if self.compression_level is None else {"zstd": self.compression_level},
            "encryption": None,
        }
        if self.encryption is not None:
            kept = self.encryption
            body["encryption"] = {
                "cipher": "aes-256-gcm",
                "scrypt": {"n": kept.cost, "r": kept.block_size, "p": kept.parallelism, "salt": _text(kept.salt)},
                "nonce": _text(kept.nonce),
                "key": _text(kept.wrapped_key),
            }
        return json.dumps(body, sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes | memoryview) -> VaultConfiguration:
        """Raises VaultFormatError."""
        try:
            body = json.loads(bytes(data))
            if body["format"] != FORMAT_VERSION:
                raise VaultFormatError(f"the vault has format {body['format']}, and {FORMAT_VERSION} is known here")
            kept = body["encryption"]
            encryption = None
            if kept is not None:
                scrypt = kept["scrypt"]
                n, r, p = (int(scrypt[name]) for name in ("n", "r", "p"))
                some = n > 1 and n & (n - 1) == 0 and n * r <= _LARGEST_SCRYPT and 0 < r <= 64 and 0 < p <= 64
                if kept["cipher"] != "aes-256-gcm" or not some:
                    raise VaultFormatError(f"cipher {kept['cipher']} with scrypt {(n, r, p)} is not known here")
                encryption = Encryption(_bytes(scrypt["salt"]), n, r, p, _bytes(kept["nonce"]), _bytes(kept["key"]))
            compression = body["compression"]
            return cls(
                uuid.UUID(body["vault_id"]), None if compression is None else int(compression["zstd"]), encryption
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise (
                error if isinstance(error, VaultFormatError) else VaultFormatError(f"no configuration: {error!r}")
            ) from error


@dataclass(frozen=True, slots=True)
class Piece:
    """Content that is stored as one page.

    `digest`: of the content, keyed if the vault is encrypted.  `size`: bytes of the content.  `stored`: bytes of the sealed page.
    A piece of records holds `records` consecutive ones from `first_transaction_id` on; for any other piece the two are 0 and -1.
    """

    digest: bytes
    size: int
    stored: int
    first_transaction_id: int = -1
    records: int = 0

    @property
    def next_transaction_id(self) -> int:
        """The id after that of the last record."""
        return self.first_transaction_id + self.records


@dataclass(frozen=True, slots=True)
class Literal:
    """Bytes of a file that are stored in the section itself."""

    data: bytes

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data)


@dataclass(frozen=True, slots=True)
class Slice:
    """`size` bytes of a file, from `offset` in the section's piece number `piece` on; they may run over the following pieces."""

    piece: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class DerivedIndex:
    """The entries of an index file, not stored: they are the offsets of the records in the data file `segment`."""

    segment: str
    size: int


Extent = Literal | Slice | DerivedIndex


@dataclass(frozen=True, slots=True)
class BackedFile:
    """A file at the time of the backup.

    `name`: path below the storage directory.  `modified_ns`: last modification, nanoseconds since 1970.  `extents`: content, in
    order.
    """

    name: str
    size: int
    modified_ns: int
    inode: int
    extents: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """The files and directories of a partition, or those of a storage directory outside of its partitions."""

    directories: tuple[str, ...]
    files: tuple[BackedFile, ...]
    pieces: tuple[Piece, ...]

    def encode(self) -> bytes:
        """The bytes of the section: header, JSON document, table of pieces."""
        document = json.dumps(
            {"directories": self.directories, "files": [_file_document(one) for one in self.files]},
            separators=(",", ":"),
        ).encode()
        pack = PIECE.struct.pack
        table = b"".join(
            pack(one.digest, one.size, one.stored, one.first_transaction_id, one.records) for one in self.pieces
        )
        return SECTION_HEADER.struct.pack(len(document), len(self.pieces)) + document + table

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Section:
        """Raises VaultFormatError."""
        view = memoryview(data)
        try:
            size, count = SECTION_HEADER.struct.unpack_from(view)
            start = SECTION_HEADER.size
            end = start + size
            if len(view) != end + count * PIECE.size:
                raise VaultFormatError("a section has another size than it says")
            body = json.loads(bytes(view[start:end]))
            pieces = tuple(Piece(*one) for one in PIECE.struct.iter_unpack(view[end:]))
            files = tuple(_file(one) for one in body["files"])
            section = cls(tuple(str(one) for one in body["directories"]), files, pieces)
        except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError, struct.error) as error:
            raise (
                error if isinstance(error, VaultFormatError) else VaultFormatError(f"no section: {error!r}")
            ) from error
        section.check()
        return section

    def check(self) -> None:
        """Raise VaultFormatError if a name leads out of the directory, or the extents do not fit the files and pieces."""
        ends = [0]
        for piece in self.pieces:
            ends.append(ends[-1] + piece.size)
        for name in (*self.directories, *(one.name for one in self.files)):
            if (
                not name
                or name.startswith("/")
                or "\0" in name
                or any(part in ("", ".", "..") for part in name.split("/"))
            ):
                raise VaultFormatError(f"the name {name!r} leads elsewhere")
        names = {one.name for one in self.files}
        for file in self.files:
            if sum(one.size for one in file.extents) != file.size:
                raise VaultFormatError(f"{file.name}: its parts are not as long as it is")
            for one in file.extents:
                if isinstance(one, Slice):
                    inside = 0 <= one.piece < len(self.pieces) and one.offset >= 0 and one.size >= 0
                    if not inside or ends[one.piece] + one.offset + one.size > ends[-1]:
                        raise VaultFormatError(f"{file.name}: it is to have bytes of pieces that are not there")
                if isinstance(one, DerivedIndex) and one.segment not in names:
                    raise VaultFormatError(f"{file.name}: its data file is not there")


@dataclass(frozen=True, slots=True)
class BackedPartition:
    """A partition in a backup.

    The transaction ids are None when it has no records.  `size`: bytes of its files.  `section`: the section's first page;
    `first_piece`: that of its first piece; `pieces`: their number.  Pages are counted from the backup's `first_page`.
    """

    partition: int
    first_transaction_id: int | None
    last_transaction_id: int | None
    size: int
    section: int
    first_piece: int
    pieces: int


@dataclass(frozen=True, slots=True)
class BackupHead:
    """The head of a backup: all that is known of it except the files.

    ==============================  ====================================================================================
    `created_ms`                    milliseconds since 1970
    `storage`                       the files outside of partitions
    `first_page`, `num_pages`       the backup's pages in DATA
    `size`                          bytes of all files
    `pages`, `new_pages`            pieces of the backup; those whose content was not in the vault before
    `new_bytes`                     bytes that the vault grew by
    `live`                          another process held the storage directory during the backup
    `damaged`                       number of places in the source that are damaged, or lack records, and of `unread`
    `partial`                       only some partitions were backed up (absent in older heads)
    `unread`                        partitions that were to be, and could not be read (only in a head that has any)
    ==============================  ====================================================================================
    """

    id: int
    created_ms: int
    source: str
    tag: str | None
    cluster_key: uuid.UUID | None
    num_partitions: int | None
    partitions: tuple[BackedPartition, ...]
    storage: BackedPartition
    first_page: int
    num_pages: int
    size: int
    pages: int
    new_pages: int
    new_bytes: int
    elapsed_seconds: float
    live: bool
    damaged: int
    partial: bool = False
    unread: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """16 hex digits."""
        return f"{self.id:016x}"

    @property
    def sections(self) -> tuple[BackedPartition, ...]:
        """The partitions', then that of the storage directory."""
        return (*self.partitions, self.storage)

    def encode(self) -> bytes:
        """JSON."""
        body = {name: getattr(self, name) for name in _PLAIN}
        body["cluster_key"] = None if self.cluster_key is None else str(self.cluster_key)
        body["partitions"] = [[getattr(one, name) for name in _PARTITION] for one in self.partitions]
        body["storage"] = [getattr(self.storage, name) for name in _PARTITION]
        if self.unread:
            body["unread"] = self.unread
        return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes | memoryview) -> BackupHead:
        """Raises VaultFormatError."""
        try:
            body = json.loads(bytes(data))
            key = body["cluster_key"]
            return cls(
                **{
                    name: body[name] for name in _PLAIN if name in body
                },  # a missing field without a default raises TypeError
                cluster_key=None if key is None else uuid.UUID(key),
                partitions=tuple(BackedPartition(*one) for one in body["partitions"]),
                storage=BackedPartition(*body["storage"]),
                unread=tuple(int(one) for one in body.get("unread", ())),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise VaultFormatError(f"no head of a backup: {error!r}") from error


_PARTITION = tuple(BackedPartition.__dataclass_fields__)
_OWN_FORM = ("cluster_key", "partitions", "storage", "unread")
_PLAIN = tuple(name for name in BackupHead.__dataclass_fields__ if name not in _OWN_FORM)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise VaultFormatError(f"no base64: {error}") from error


def _file_document(file: BackedFile) -> list[Any]:
    return [file.name, file.size, file.modified_ns, file.inode, [_extent_document(one) for one in file.extents]]


def _extent_document(extent: Extent) -> list[Any]:
    match extent:
        case Literal(data):
            return ["literal", _text(data)]
        case Slice(piece, offset, size):
            return ["slice", piece, offset, size]
        case DerivedIndex(segment, size):
            return ["index", segment, size]


def _file(document: Sequence[Any]) -> BackedFile:
    name, size, modified_ns, inode, extents = document
    return BackedFile(str(name), int(size), int(modified_ns), int(inode), tuple(_extents(extents)))


def _extents(documents: Iterable[Sequence[Any]]) -> Iterable[Extent]:
    for kind, *rest in documents:
        if kind == "literal":
            yield Literal(_bytes(rest[0]))
        elif kind == "slice":
            piece, offset, size = rest
            yield Slice(int(piece), int(offset), int(size))
        elif kind == "index":
            yield DerivedIndex(str(rest[0]), int(rest[1]))
        else:
            raise VaultFormatError(f"an extent of kind {kind!r}")


def merged(extents: Iterable[Extent], pieces: Sequence[Piece]) -> tuple[Extent, ...]:
    """The same extents, adjacent slices joined and empty extents removed."""
    found: list[Extent] = []
    for one in extents:
        last = found[-1] if found else None
        if not one.size:
            continue
        if isinstance(one, Slice) and isinstance(last, Slice) and _place(last, pieces) == (one.piece, one.offset):
            found[-1] = replace(last, size=last.size + one.size)
        else:
            found.append(one)
    return tuple(found)


def _place(one: Slice, pieces: Sequence[Piece]) -> tuple[int, int]:
    """The piece and offset where a slice ends; the end of a piece is given as offset 0 of the next."""
    piece, offset = one.piece, one.offset + one.size
    while piece < len(pieces) and offset >= pieces[piece].size:
        offset -= pieces[piece].size
        piece += 1
    return piece, offset
