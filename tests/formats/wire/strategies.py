"""Random messages, made from the types of their fields."""

from __future__ import annotations

import uuid
from dataclasses import fields
from typing import Any, get_args, get_type_hints

from hypothesis import strategies as st

from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import RecordHeader
from waltzctl.formats.wire import admin, storage
from waltzctl.formats.wire.failure import Failure, StackElement
from waltzctl.formats.wire.hello import Hello
from waltzctl.formats.wire.records import SessionInfo, WireRecord

i16 = st.integers(-(2**15), 2**15 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
request_ids = st.builds(RequestId, i32, i32, i32, i32)
headers = st.builds(RecordHeader, i64, request_ids, i32)
records = st.builds(WireRecord, i64, request_ids, i32, st.binary(max_size=60), st.integers(0, 2**32 - 1))
failures = st.builds(
    Failure,
    text,
    st.lists(st.builds(StackElement, text, text, st.none() | text, i32), max_size=4).map(tuple),
)
infos = st.builds(SessionInfo, i64, i64, i64)
hellos = st.builds(Hello, st.lists(i16, max_size=6).map(tuple), text)

_NARROW = {"partition", "num_partitions", "max_count"}
_BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    str: text,
    uuid.UUID: st.uuids(),
    Failure: failures,
    SessionInfo: infos,
    RecordHeader | None: st.none() | headers,
    WireRecord | None: st.none() | records,
    tuple[WireRecord, ...]: st.lists(records, max_size=5).map(tuple),
    tuple[RecordHeader, ...]: st.lists(headers, max_size=5).map(tuple),
    tuple[int, ...]: st.lists(i32, max_size=6).map(tuple),
    tuple[tuple[int, bool], ...]: st.lists(st.tuples(i32, st.booleans()), max_size=6).map(tuple),
}
STORAGE_KINDS: tuple[Any, ...] = get_args(storage.StorageMessage)
ADMIN_KINDS: tuple[Any, ...] = get_args(admin.AdminMessage)
_KNOWN = {"uuid": uuid, **vars(storage), **vars(admin)}


def messages_of(kind: Any) -> st.SearchStrategy[Any]:
    """Messages of one kind; integers as wide as the layout has them."""
    hints = get_type_hints(kind, localns=_KNOWN)
    return st.builds(
        kind,
        **{
            field.name: (i32 if field.name in _NARROW else i64)
            if hints[field.name] is int
            else _BY_TYPE[hints[field.name]]
            for field in fields(kind)
        },
    )


storage_messages = st.one_of([messages_of(kind) for kind in STORAGE_KINDS])
ADMIN_BY_VERSION: tuple[tuple[Any, ...], ...] = tuple(
    tuple(kind for kind in ADMIN_KINDS if kind in codec.schemas) for codec in admin.CODECS
)
