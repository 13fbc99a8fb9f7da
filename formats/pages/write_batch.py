"""Write batches: the records of a page store's log.  A batch is a list of edits of pages, with the location of their data.

A record is a version of 4 bytes, followed by edits up to its end.  The lower half of the version is the layout of the edits (1:
the one below).  The upper half is the kind of the checksums in page entries (0: CRC-64 of released programs, which is not read
here; 1: CRC-32C in the lower half of the field).  Integers are little-endian, without padding.

Every edit begins with a type of 1 byte.

===========================  =======================================================================  ==================
type                         fields                                                                   bytes
===========================  =======================================================================  ==================
0 PUT, 4 UPSERT,             flags 1, page 16, version 16, reference count 8, page entry              86 + 16 a field
5 VAR_ENTRY
2 REF, 6 VAR_REF             page 16, origin page 16, version 16                                      49
1 PUT_EXTERNAL,              page 16, version 16, reference count 8                                   41
7 VAR_EXTERNAL
3 DEL, 8 VAR_DELETE          page 16, version 16                                                      33
9 VAR_HIGHEST                page 16, version 16                                                      33
===========================  =======================================================================  ==================

One flag of a PUT is defined (`EditFlag`), by us; the meaning of the flags of released programs is not documented.

A page is its id (8) and then its namespace (8); a version a sequence (8) and an epoch (8).  A page entry is blob file id 4,
offset 8, size 8, checksum 8, tag 8, number of fields 8, and for each field its offset 8 and checksum 8; offsets of fields count
from the page's first byte.  The checksum of a page is that of all its bytes, as they are.

The table of the design document contradicts itself: a page entry begins at bit 272, where the reference count is, and page ids
have 124 bits.  The offsets here follow from the sizes in that table.  The document has no UPSERT, no VAR_* and no type numbers;
these are the released program's.

The VAR_* edits occur in checkpoints only, in the order in which they are to be applied: a VAR_REF refers to the last VAR_ENTRY or
VAR_EXTERNAL of its origin before it.  VAR_HIGHEST is ours: the highest page id that a namespace ever had, and the last sequence
in the checkpoint, so that neither is used again after the pages that had them are deleted.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from construct import Int8ul, Int32ul, Int64sl, Int64ul, Struct

from waltzctl.formats.checksums import Buffer
from waltzctl.formats.schema import compile_schema

if TYPE_CHECKING:
    import numpy as np

BATCH_LAYOUT = 1
CRC64_CHECKSUMS, CRC32C_CHECKSUMS = 0, 1
"""Kinds of checksum in the upper half of a version."""
BATCH_VERSION = BATCH_LAYOUT | CRC32C_CHECKSUMS << 16
"""The version that is written."""
NO_FILE = 0
"""Blob file id of a page without data."""

_PAGE_ID = Struct("id" / Int64ul, "namespace" / Int64ul)
_VERSION = Struct("sequence" / Int64ul, "epoch" / Int64ul)
VERSION_SCHEMA = Struct("version" / Int32ul)
ENTRY_SCHEMA = Struct(
    "file_id" / Int32ul,
    "offset" / Int64ul,
    "size" / Int64ul,
    "checksum" / Int64ul,
    "tag" / Int64ul,
    "num_fields" / Int64ul,
)
FIELD_SCHEMA = Struct("offset" / Int64ul, "checksum" / Int64ul)
PUT_SCHEMA = Struct(
    "type" / Int8ul,
    "flags" / Int8ul,
    "page" / _PAGE_ID,
    "version" / _VERSION,
    "references" / Int64sl,
    "entry" / ENTRY_SCHEMA,
)
REF_SCHEMA = Struct("type" / Int8ul, "page" / _PAGE_ID, "origin" / _PAGE_ID, "version" / _VERSION)
EXTERNAL_SCHEMA = Struct("type" / Int8ul, "page" / _PAGE_ID, "version" / _VERSION, "references" / Int64sl)
DELETE_SCHEMA = Struct("type" / Int8ul, "page" / _PAGE_ID, "version" / _VERSION)

BATCH_HEADER = compile_schema(VERSION_SCHEMA)
PUT_EDIT = compile_schema(PUT_SCHEMA)
REF_EDIT = compile_schema(REF_SCHEMA)
EXTERNAL_EDIT = compile_schema(EXTERNAL_SCHEMA)
DELETE_EDIT = compile_schema(DELETE_SCHEMA)
FIELD = compile_schema(FIELD_SCHEMA)

_HEAD, _PUT, _REF, _EXTERNAL, _DELETE, _FIELD = (
    one.struct for one in (BATCH_HEADER, PUT_EDIT, REF_EDIT, EXTERNAL_EDIT, DELETE_EDIT, FIELD)
)


class BatchError(ValueError):
    """The bytes are not a write batch, or one of an unsupported version."""


class EditType(enum.IntEnum):
    """What an edit does."""

    PUT = 0
    PUT_EXTERNAL = 1
    REF = 2
    DELETE = 3
    UPSERT = 4
    VAR_ENTRY = 5
    VAR_REF = 6
    VAR_EXTERNAL = 7
    VAR_DELETE = 8
    VAR_HIGHEST = 9


class EditFlag(enum.IntFlag):
    """Flags of an edit with an entry.

    FLUSHED_WITH_RECORD: the page's data and the record became durable by the same flush, so that after a crash the record may be
    there without the data.  Without this flag the data was durable before the record was written.
    """

    FLUSHED_WITH_RECORD = 1


WITH_ENTRY = frozenset({EditType.PUT, EditType.UPSERT, EditType.VAR_ENTRY})
WITH_ORIGIN = frozenset({EditType.REF, EditType.VAR_REF})
EXTERNAL = frozenset({EditType.PUT_EXTERNAL, EditType.VAR_EXTERNAL})


class PageId(NamedTuple):
    """A page of a namespace; ordered by namespace, then by id."""

    namespace: int
    id: int

    def __str__(self) -> str:
        return f"{self.namespace}:{self.id}"


class Version(NamedTuple):
    """A page's version: the sequence of the batch that wrote it, and how many times its data was moved since."""

    sequence: int
    epoch: int = 0


class FieldEntry(NamedTuple):
    """A field of a page: its byte offset in the page, and the checksum of its bytes."""

    offset: int
    checksum: int


class PageEntry(NamedTuple):
    """The location of a page's data: bytes `offset` to `offset + size` of a blob file.  An empty page is in no file."""

    file_id: int
    offset: int
    size: int
    checksum: int
    tag: int = 0
    fields: tuple[FieldEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit.  `entry` and `flags` belong to types in `WITH_ENTRY`, `origin` to those in `WITH_ORIGIN`."""

    type: EditType
    page: PageId
    version: Version
    entry: PageEntry | None = None
    origin: PageId | None = None
    references: int = 1
    flags: int = 0


def flushed_with_record(edits: Iterable[Edit]) -> list[PageEntry]:
    """Entries of the pages whose data becomes durable by the same flush as the record of these edits."""
    flag = EditFlag.FLUSHED_WITH_RECORD
    return [edit.entry for edit in edits if edit.entry is not None and edit.entry.size and edit.flags & flag]


def encode_edit(edit: Edit) -> bytes:
    """The bytes of one edit.  Raises struct.error for a number that does not fit."""
    kind, (namespace, page), (sequence, epoch) = edit.type, edit.page, edit.version
    if (entry := edit.entry) is not None:
        head = _PUT.pack(
            kind, edit.flags, page, namespace, sequence, epoch, edit.references,
            entry.file_id, entry.offset, entry.size, entry.checksum, entry.tag, len(entry.fields),
        )  # fmt: skip
        return head + b"".join([_FIELD.pack(*field) for field in entry.fields]) if entry.fields else head
    if edit.origin is not None:
        return _REF.pack(kind, page, namespace, edit.origin.id, edit.origin.namespace, sequence, epoch)
    if kind in EXTERNAL:
        return _EXTERNAL.pack(kind, page, namespace, sequence, epoch, edit.references)
    return _DELETE.pack(kind, page, namespace, sequence, epoch)


def encode_batch(edits: Iterable[Edit]) -> bytes:
    """A record of the log."""
    return _HEAD.pack(BATCH_VERSION) + b"".join(map(encode_edit, edits))


def of_another_version(data: Buffer) -> bool:
    """Whether a record is a write batch of a version that only another program reads."""
    return len(data) >= _HEAD.size and _HEAD.unpack_from(data)[0] != BATCH_VERSION


def decode_batch(data: Buffer) -> list[Edit]:
    """The edits of a record.  Raises BatchError."""
    view = memoryview(data)
    if len(view) < _HEAD.size:
        raise BatchError(f"a write batch of {len(view)} bytes has no version")
    (version,) = _HEAD.unpack_from(view)
    if version != BATCH_VERSION:
        if version in (1, 2):
            raise BatchError(f"a write batch of version {version}, which released programs write, is not read here")
        raise BatchError(f"a write batch of version {version:#x}, and only {BATCH_VERSION:#x} is known")
    edits, offset = [], _HEAD.size
    while offset < len(view):
        try:
            kind = EditType(view[offset])
        except ValueError:
            raise BatchError(f"an edit of type {view[offset]} at byte {offset} of a write batch") from None
        edit, offset = _decode_edit(view, offset, kind)
        edits.append(edit)
    return edits


def _decode_edit(view: memoryview, offset: int, kind: EditType) -> tuple[Edit, int]:
    layout = _PUT if kind in WITH_ENTRY else _REF if kind in WITH_ORIGIN else _EXTERNAL if kind in EXTERNAL else _DELETE
    end = offset + layout.size
    if end > len(view):
        raise BatchError(
            f"an edit of type {kind} at byte {offset} needs {layout.size} bytes, {len(view) - offset} are left"
        )
    values = layout.unpack_from(view, offset)
    if kind in WITH_ENTRY:
        _, flags, page, namespace, sequence, epoch, references, file_id, start, size, checksum, tag, num_fields = values
        if num_fields > (len(view) - end) // _FIELD.size:
            raise BatchError(f"an edit at byte {offset} has {num_fields} fields, more than the write batch has bytes")
        fields = tuple(map(FieldEntry._make, _FIELD.iter_unpack(view[end : end + num_fields * _FIELD.size])))
        entry = PageEntry(file_id, start, size, checksum, tag, fields)
        edit = Edit(kind, PageId(namespace, page), Version(sequence, epoch), entry, references=references, flags=flags)
        return edit, end + num_fields * _FIELD.size
    if kind in WITH_ORIGIN:
        _, page, namespace, origin, origin_namespace, sequence, epoch = values
        place, source = PageId(namespace, page), PageId(origin_namespace, origin)
        return Edit(kind, place, Version(sequence, epoch), origin=source), end
    _, page, namespace, sequence, epoch, *counted = values
    references = counted[0] if counted else 1
    return Edit(kind, PageId(namespace, page), Version(sequence, epoch), references=references), end


def plain_entries(data: Buffer) -> np.ndarray[Any, Any] | None:
    """The edits of a record as an array of `PUT_EDIT.dtype`, if all are VAR_ENTRY without flags and fields, with one reference.

    None for any other record, which only `decode_batch` can read.
    """
    import numpy as np

    size = len(data) - _HEAD.size
    if size <= 0 or size % PUT_EDIT.size or _HEAD.unpack_from(data)[0] != BATCH_VERSION:
        return None
    table = np.frombuffer(data, PUT_EDIT.dtype, offset=_HEAD.size)
    plain = (table["type"] == EditType.VAR_ENTRY) & (table["flags"] == 0)
    plain &= (table["references"] == 1) & (table["entry.num_fields"] == 0)
    return table if plain.all() else None
