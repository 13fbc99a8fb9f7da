"""A node's fast path for requests for short lists of records, from open segments in the page cache.

Handing a request to a thread takes longer than making such an answer.  So all requests that arrived together for a partition are
answered in one call, without a thread: for each answer two reads (index and data), the verification of both checksums of each
record, and the frame.  The reads never wait for the disk (``RWF_NOWAIT``): if one would have to, it fails, and the request is
left to a thread.
"""

from __future__ import annotations

import os
from array import array
from typing import NamedTuple

from waltzctl.engine.scan import wire_code
from waltzctl.engine.scan.wire_layout import (
    BYTES,
    COLUMNS,
    ENTRY,
    FILLED,
    LIST_BODY,
    LIST_FIRST_AT,
    LONGEST,
    OPEN_WORDS,
    POSITION,
    ROW,
    ROWS,
    SCRATCH_START,
    FrameColumn,
    ListStop,
    OpenWord,
)
from waltzctl.engine.scan.wire_loops import State, Table, new_state
from waltzctl.formats.wire.storage import LIST_RANGE, RecordHeaderListRequest, RecordListRequest, list_heads

__all__ = ["FEW_BYTES", "FEW_RECORDS", "LIST_BODY", "LIST_TYPES", "ListAnswers", "OpenSegment", "Requests"]

FEW_RECORDS = 100
"""Records of one list, at most."""
FEW_BYTES = 32 << 10
"""Bytes of its records on disk, at most."""
ROOM = 128 << 10
"""Bytes of all answers of one call, at most: four lists of maximum size."""
LIST_TYPES = (RecordListRequest.TYPE, RecordHeaderListRequest.TYPE)
NO_WAIT = getattr(os, "RWF_NOWAIT", 1 << 30)
"""Where the flag does not exist, an unknown one: the read fails, and the request is left to a thread."""
_BODY = int(FrameColumn.BODY)
_HEADS = list_heads()


class OpenSegment(NamedTuple):
    """An open segment: descriptors of both files, and the records ``[first, next)`` at the offsets ``[start, end)``.

    `segment`: the transaction id in the names of the files.  `longest`: bytes of data that a record may have.
    """

    data_file: int
    index_file: int
    segment: int
    first: int
    next: int
    start: int
    end: int
    longest: int


class Requests(NamedTuple):
    """Requests for one partition: the frames in `received` that `table` describes (int64, columns by `FrameColumn`).

    `session`: only requests of this session are answered.  `most`: bytes on disk of one answer's records, at most; `room`: bytes
    of all answers together, at most.
    """

    received: bytes | bytearray | memoryview
    table: Table
    session: int
    most: int
    room: int


class ListAnswers:
    """Makes answers for one thread.  `compiled`: as for `engine.scan.frames.FrameSplitter`."""

    def __init__(self, *, compiled: bool | None = None) -> None:
        self._loops = wire_code.chooser(compiled)
        self._scratch = array("B", bytes(SCRATCH_START + (FEW_RECORDS + 1) * ENTRY + FEW_BYTES))
        self._out = array("B", bytes(ROOM))
        self._state: State = new_state()
        self._requests: Requests
        self._words = array("q", bytes(8 * OPEN_WORDS))
        self._words[OpenWord.FLAGS], self._words[OpenWord.FEW] = NO_WAIT, FEW_RECORDS

    def begin(self, requests: Requests) -> None:
        """Begin with new requests.  Raises ValueError for a table of another shape."""
        table = requests.table
        if table.ndim != 2 or table.shape[1] != COLUMNS or not table.flags.c_contiguous:
            raise ValueError("a table has eight columns of 64-bit words")
        self._requests, self._state = requests, new_state()
        state, words = self._state, self._words
        state[ROWS] = len(table)
        if len(table):  # only the range of the requests, so that the call counts as a short one (`wire_compiled`)
            state[POSITION] = int(table[0, _BODY])
            state[FILLED] = min(int(table[-1, _BODY]) + LIST_BODY, len(requests.received))
        words[OpenWord.SESSION] = requests.session
        words[OpenWord.MOST] = min(requests.most, FEW_BYTES)
        words[OpenWord.ROOM] = min(requests.room, ROOM)

    @property
    def answered(self) -> int:
        """The number of requests that are answered."""
        return self._state[ROW]

    @property
    def first_transaction_id(self) -> int | None:
        """The first id that the next request asks for; None if there is no request left, or it is not one for a list."""
        requests, row = self._requests, self._state[ROW]
        if row == len(requests.table):
            return None
        body = int(requests.table[row, _BODY])
        if not 0 <= body <= len(requests.received) - LIST_BODY:
            return None
        first: int = LIST_RANGE.struct.unpack_from(requests.received, body + LIST_FIRST_AT)[0]
        return first

    def answer_from(self, segment: OpenSegment, shown: int) -> bool:
        """Answer requests as long as their records are in `segment`.

        `shown`: the id after the last record of the log that readers may see.  Returns whether another segment may have the
        records of the next request.
        """
        state, words, before = self._state, self._words, self._state[ROW]
        words[OpenWord.DATA], words[OpenWord.INDEX], words[OpenWord.SEGMENT] = (
            segment.data_file,
            segment.index_file,
            segment.segment,
        )
        words[OpenWord.FIRST], words[OpenWord.NEXT], words[OpenWord.SHOWN] = segment.first, segment.next, shown
        words[OpenWord.START], words[OpenWord.END] = segment.start, segment.end
        state[LONGEST] = segment.longest
        requests = self._requests
        stop = self._loops().answer_lists(
            state, requests.received, requests.table, words, _HEADS, self._scratch, self._out
        )
        return stop == ListStop.OTHER and state[ROW] > before

    def take(self) -> bytes:
        """The answers, whole frames in the order of the requests."""
        return bytes(memoryview(self._out)[: self._state[BYTES]])
