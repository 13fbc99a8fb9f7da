"""The request frames of a load, made many at a time: frames are encoded once, then only their numeric fields are changed.

Every layout is derived from the schemas of `formats.wire`.  A request's sequence number determines its partition: request `n` of
the load's partition with index `i`, of `P` partitions, has the sequence number ``n * P + i``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from construct import Bytes, Int32sb, Int32ub, Struct

from waltzctl.formats.checksums import crc32
from waltzctl.formats.schema import compile_schema
from waltzctl.formats.wire.frame import FRAME_HEADER, FRAME_HEADER_SCHEMA, Magic
from waltzctl.formats.wire.records import RECORD_HEADER_SCHEMA
from waltzctl.formats.wire.storage import PREFIX_SCHEMA, STORAGE_VERSION, AppendRequest, RecordListRequest

Numbers = npt.NDArray[np.int64]

_CLIENT, _GENERATION = 7, 1
"""Client id and generation in the request ids of a load; their sequence numbers are the transaction ids."""
_PIECE = 256 << 10
"""Bytes of frames that are made at a time."""
_MOST_ROWS = 1024
"""Frames that are made at a time at most."""


@dataclass(frozen=True, slots=True)
class LoadPartition:
    """A partition of a load, with the session to use and its last transaction when the load begins (-1: it is empty)."""

    partition: int
    session_id: int
    last_transaction_id: int


class Frames(Protocol):
    """Makes the frames of requests from their sequence numbers."""

    rows: int
    """Number of frames that one call of `make` can return."""
    size: int
    """Bytes of one frame."""

    def make(self, numbers: Numbers) -> bytes:
        """The frames of these requests, back to back."""


def _set_common_fields(rows: Any, kind: int, head: str) -> None:
    rows[f"{head}magic"], rows[f"{head}version"] = Magic.STORAGE, STORAGE_VERSION
    rows[f"{head}length"] = rows.dtype.itemsize - FRAME_HEADER.size
    rows[f"{head}type"] = kind


class AppendFrames:
    """Append requests of `batch` records, `data_size` bytes of data each.  The data is random, and the same in every request."""

    def __init__(self, places: Sequence[LoadPartition], *, batch: int, data_size: int, seed: int = 7) -> None:
        head = compile_schema(Struct(*FRAME_HEADER_SCHEMA.subcons, *PREFIX_SCHEMA.subcons, "count" / Int32sb))
        record = compile_schema(
            Struct(
                *RECORD_HEADER_SCHEMA.subcons,
                "data_length" / Int32sb,
                "data" / Bytes(data_size),
                "data_checksum" / Int32ub,
            )
        )
        layout = np.dtype(
            [(name, head.dtype[name]) for name in head.dtype.names or ()]
            + [("records", record.dtype, (batch,)), ("offline", "u1")]
        )
        self.size = layout.itemsize
        self.rows = max(1, min(_MOST_ROWS, _PIECE // self.size))
        self._batch = batch
        self._places = len(places)
        self._partitions = np.array([place.partition for place in places], np.int64)
        self._sessions = np.array([place.session_id for place in places], np.int64)
        self._first = np.array([place.last_transaction_id + 1 for place in places], np.int64)
        self._steps = np.arange(batch, dtype=np.int64)
        self._buffer = np.zeros(self.rows, layout)
        _set_common_fields(self._buffer, AppendRequest.TYPE, "")
        self._buffer["count"] = batch
        records = self._buffer["records"]
        records["request_id.client"], records["request_id.generation"] = _CLIENT, _GENERATION
        records["data_length"] = data_size
        generator = np.random.default_rng(seed)
        for step in range(batch):
            data = generator.bytes(data_size)
            records["data"][:, step] = np.void(data) if data_size else records["data"][:, step]
            records["data_checksum"][:, step] = crc32(data)

    def make(self, numbers: Numbers) -> bytes:
        """Frames whose records continue their partition."""
        rows = self._buffer[: len(numbers)]
        turns, places = np.divmod(numbers, self._places)
        partitions = self._partitions[places]
        rows["session_id"] = self._sessions[places]
        rows["sequence"] = numbers
        rows["partition"] = partitions
        ids = (self._first[places] + turns * self._batch)[:, None] + self._steps
        records = rows["records"]
        records["transaction_id"] = ids
        records["request_id.partition"] = partitions[:, None]
        records["request_id.sequence"] = records["header"] = ids.astype(np.int32)
        return rows.tobytes()


class ReadFrames:
    """Requests for lists of `batch` records; the lists run through the whole partition, again and again."""

    def __init__(self, places: Sequence[LoadPartition], *, batch: int) -> None:
        layout = compile_schema(
            Struct(*FRAME_HEADER_SCHEMA.subcons, *PREFIX_SCHEMA.subcons, *RecordListRequest.FIELDS.subcons)
        ).dtype
        self.size = layout.itemsize
        self.rows = max(1, min(_MOST_ROWS, _PIECE // self.size))
        self._batch = batch
        self._places = len(places)
        self._partitions = np.array([place.partition for place in places], np.int64)
        self._sessions = np.array([place.session_id for place in places], np.int64)
        self._lists = np.array([max(1, (place.last_transaction_id + 1) // batch) for place in places], np.int64)
        self._buffer = np.zeros(self.rows, layout)
        _set_common_fields(self._buffer, RecordListRequest.TYPE, "")
        self._buffer["max_count"] = batch

    def make(self, numbers: Numbers) -> bytes:
        """The frames of requests for consecutive lists."""
        rows = self._buffer[: len(numbers)]
        turns, places = np.divmod(numbers, self._places)
        rows["session_id"] = self._sessions[places]
        rows["sequence"] = numbers
        rows["partition"] = self._partitions[places]
        rows["first_transaction_id"] = turns % self._lists[places] * self._batch
        return rows.tobytes()
