"""Write the tables of ``docs/wire.md`` from the schemas: ``python docs/wire_tables.py``.

Layouts come from `formats.wire`, failure codes from the node; the tables' prose is here.
``tests/formats/wire/test_document.py`` fails when the document is not what this program writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

import construct

from waltzctl.formats.adapters import Uuid
from waltzctl.formats.request_id import REQUEST_ID_SCHEMA
from waltzctl.formats.wire import admin, hello, primitives, records, storage
from waltzctl.formats.wire.failure import FAILURE_SCHEMA, STACK_ELEMENT_SCHEMA, FailureCode
from waltzctl.formats.wire.frame import FRAME_HEADER_SCHEMA

DOCUMENT = Path(__file__).resolve().parent / "wire.md"

_NAMED: tuple[tuple[Any, str], ...] = (
    (primitives.Boolean, "boolean"),
    (primitives.ByteArray, "bytes"),
    (primitives.Text, "string"),
    (primitives.NullableText, "string or null"),
    (Uuid, "UUID"),
)
_INTEGERS = {"B": "u8", "h": "i16", "i": "i32", "l": "i32", "L": "u32", "I": "u32", "q": "i64"}

_MEANINGS: dict[FailureCode, str] = {
    FailureCode.NOT_ASSIGNED: "the partition is not assigned to this node, or no longer",
    FailureCode.NOT_AVAILABLE: "reads, or writes, of the partition are switched off",
    FailureCode.ONLINE: "an offline request while the partition may be written",
    FailureCode.SESSION_CHANGED: "a request of an older session, or an offline one with another than the persisted session",
    FailureCode.OUT_OF_ORDER: "an append that does not begin after the partition's last transaction",
    FailureCode.MARK_WOULD_FALL: "a low-water mark below the present one, or below the last transaction",
    FailureCode.BELOW_LOW_WATER_MARK: "a truncation that would lose acknowledged transactions",
    FailureCode.DATA_CHECKSUM: "a record whose data does not agree with its checksum; nothing of the request was written",
    FailureCode.TOO_LONG: "a record with more data than the node accepts; nothing of the request was written",
    FailureCode.INVALID_REQUEST: "an invalid request (such as a partition number that the cluster does not have)",
    FailureCode.UNKNOWN_TYPE: "a message that is not a request",
    FailureCode.BUSY: "the partition's queue made no progress for too long; nothing was done, and the request may be retried",
    FailureCode.CLOSED: "the node is closing",
    FailureCode.REFUSED: "another operation that is not allowed",
    FailureCode.MISMATCH: "the request has another cluster key or number of partitions",
    FailureCode.CORRUPT_RECORD: "a stored record that fails a checksum; it is never served",
    FailureCode.QUARANTINED: "the partition takes no writes, because damage was found in it",
    FailureCode.DAMAGED: "other damage",
    FailureCode.DISK_FULL: "no space is left",
    FailureCode.SYNC_FAILED: "a flush failed; the partition takes no writes until it is opened again",
    FailureCode.IO_ERROR: "a read or write of the disk failed",
    FailureCode.OUT_OF_MEMORY: "the node had too little memory for the request",
    FailureCode.INTERNAL: "a bug in the node",
}

_ANSWERS: tuple[tuple[Any, Any], ...] = (
    (storage.OpenRequest, storage.SuccessResponse),
    (storage.LastSessionInfoRequest, storage.LastSessionInfoResponse),
    (storage.SetLowWaterMarkRequest, storage.SuccessResponse),
    (storage.TruncateRequest, storage.MaxTransactionIdResponse),
    (storage.AppendRequest, storage.SuccessResponse),
    (storage.RecordHeaderRequest, storage.RecordHeaderResponse),
    (storage.RecordRequest, storage.RecordResponse),
    (storage.MaxTransactionIdRequest, storage.MaxTransactionIdResponse),
    (storage.RecordHeaderListRequest, storage.RecordHeaderListResponse),
    (storage.RecordListRequest, storage.RecordListResponse),
    (admin.OpenRequest, admin.SuccessResponse),
    (admin.PartitionAvailableRequest, admin.SuccessResponse),
    (admin.PartitionReadRequest, admin.SuccessResponse),
    (admin.PartitionWriteRequest, admin.SuccessResponse),
    (admin.PartitionAssignmentRequest, admin.SuccessResponse),
    (admin.RecordListRequest, admin.RecordListResponse),
    (admin.LastSessionInfoRequest, admin.LastSessionInfoResponse),
    (admin.MetricsRequest, admin.MetricsResponse),
    (admin.AssignedPartitionStatusRequest, admin.AssignedPartitionStatusResponse),
    (admin.RecordPlaceRequest, admin.RecordPlaceResponse),
)
ANSWERS: dict[Any, Any] = dict(_ANSWERS)
"""Which response means success; every request may be answered by a failure instead."""


def type_name(con: Any) -> str:
    """A field's type in words."""
    while isinstance(con, construct.Renamed):
        con = con.subcon
    for known, name in _NAMED:
        if con is known:
            return name
    if isinstance(con, primitives.ListOf):
        return f"list of {type_name(con.subcon)}"
    if isinstance(con, primitives.ValueOf):
        return str(con.kind.__name__)
    if isinstance(con, construct.FormatField):
        return _INTEGERS[con.fmtstr[1:]]
    if isinstance(con, construct.Struct):
        return "(" + ", ".join(f"{member.name}: {type_name(member)}" for member in con.subcons) + ")"
    if isinstance(con, primitives.Presence):
        return f"{type_name(con.subcon.value)} if present"
    if isinstance(con, construct.IfThenElse):
        return type_name(con.thensubcon)
    if isinstance(con, construct.Adapter):
        return type_name(con.subcon)
    raise TypeError(f"no words for {con!r}")


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def _fields(schema: Any) -> list[str]:
    return _table(("field", "type"), [(f"`{member.name}`", type_name(member)) for member in schema.subcons])


def _messages(kinds: Iterable[Any], versions: Callable[[Any], str] | None = None) -> list[str]:
    rows = []
    for kind in sorted(kinds, key=lambda kind: (kind.TYPE, kind.__name__)):
        layout = ", ".join(f"`{member.name}` {type_name(member)}" for member in kind.FIELDS.subcons) or "none"
        answer = ANSWERS.get(kind)
        row = [str(kind.TYPE), kind.__name__, layout, "" if answer is None else f"{answer.TYPE} {answer.__name__}"]
        rows.append([*row, versions(kind)] if versions else row)
    heads = ["type", "message", "fields after the prefix", "answered by"]
    return _table([*heads, "versions"] if versions else heads, rows)


def _versions(kind: Any) -> str:
    return ", ".join(str(codec.version) for codec in admin.CODECS if kind in codec.schemas)


def _greetings() -> list[str]:
    return _table(
        ("end", "text", "versions", "magic afterwards"),
        [
            ("client of a data port", f"`{hello.STORAGE_CLIENT}`", _numbers(storage.STORAGE_VERSIONS), "S"),
            ("data port", f"`{hello.STORAGE_SERVER}`", _numbers(storage.STORAGE_VERSIONS), "S"),
            ("client of an admin port", f"`{hello.ADMIN_CLIENT}`", _numbers(admin.ADMIN_VERSIONS), "A"),
            ("admin port", f"`{hello.ADMIN_SERVER}`", _numbers(admin.ADMIN_VERSIONS), "A"),
            ("client of a Waltz server", f"`{hello.WALTZ_CLIENT}`", "0 to 4", "L"),
            ("Waltz server", f"`{hello.WALTZ_SERVER}`", "0 to 4", "L"),
        ],
    )


def _numbers(versions: Iterable[int]) -> str:
    return ", ".join(map(str, versions))


def _codes() -> list[str]:
    return _table(("code", "means"), [(f"`{code.value}`", _MEANINGS[code]) for code in FailureCode])


TABLES: dict[str, Callable[[], list[str]]] = {
    "frame": lambda: _fields(FRAME_HEADER_SCHEMA),
    "hello": lambda: _fields(hello.HELLO_SCHEMA),
    "greetings": _greetings,
    "request-id": lambda: _fields(REQUEST_ID_SCHEMA),
    "record-header": lambda: _fields(records.RECORD_HEADER_SCHEMA),
    "record": lambda: _fields(records.WIRE_RECORD_SCHEMA),
    "session-info": lambda: _fields(records.SESSION_INFO_SCHEMA),
    "failure": lambda: _fields(FAILURE_SCHEMA),
    "stack-element": lambda: _fields(STACK_ELEMENT_SCHEMA),
    "storage-prefix": lambda: _fields(storage.PREFIX_SCHEMA),
    "storage-messages": lambda: _messages(get_args(storage.StorageMessage)),
    "admin-prefix": lambda: _fields(admin.PREFIX_SCHEMA),
    "admin-messages": lambda: _messages(get_args(admin.AdminMessage), _versions),
    "codes": _codes,
}
_MARKED = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def rendered(text: str) -> str:
    """The document with its tables made anew.  Raises KeyError for a table that does not exist."""
    return _MARKED.sub(lambda found: found[1] + "\n".join(TABLES[found[2]]()) + "\n" + found[3], text)


if __name__ == "__main__":
    DOCUMENT.write_text(rendered(DOCUMENT.read_text()))
