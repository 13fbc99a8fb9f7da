"""Answering requests for lists of few records at once, from segments that are open and that the system has in memory.

Whoever received requests would wait for a thread and back longer than such an answer takes.  All that arrived for a partition is
answered in one call: two reads of the system, a pass over the records that compares both checksums, and the frame of the answer.
Nothing waits for the disk: a read that would have to says so, and the request is left to a thread.
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
"""Records that one list may have."""
FEW_BYTES = 32 << 10
"""Bytes on disk that they may have."""
ROOM = 128 << 10
"""Bytes of the answers that are made in one go, at most: of four lists as long as they may be."""
LIST_TYPES = (RecordListRequest.TYPE, RecordHeaderListRequest.TYPE)
NO_WAIT = getattr(os, "RWF_NOWAIT", 1 << 30)
"""A flag that no system knows where there is no such flag: the read fails, and is done in the way that waits."""
_BODY = int(FrameColumn.BODY)
_HEADS = list_heads()


class OpenSegment(NamedTuple):
    """Both files of a segment, open: descriptors, and the records ``[first, next)`` in the bytes ``[start, end)`` of the data.

    `segment`: the id by which its files are named.  `longest`: bytes of data that a record may have.
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
    """Requests of one partition: frames of `received` that `table` describes (int64, columns by `FrameColumn`).

    Of `session` those are that may be answered: each with at most `most` bytes on disk, all together with `room` bytes.
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
        """Take requests, of which none is answered yet.  Raises ValueError for a table of another kind."""
        table = requests.table
        if table.ndim != 2 or table.shape[1] != COLUMNS or not table.flags.c_contiguous:
            raise ValueError("a table has eight columns of 64-bit words")
        self._requests, self._state = requests, new_state()
        state, words = self._state, self._words
        state[ROWS] = len(table)
        if len(table):  # what the loop is to look at is no more than the requests: so it is known for a short call
            state[POSITION] = int(table[0, _BODY])
            state[FILLED] = min(int(table[-1, _BODY]) + LIST_BODY, len(requests.received))
        words[OpenWord.SESSION] = requests.session
        words[OpenWord.MOST] = min(requests.most, FEW_BYTES)
        words[OpenWord.ROOM] = min(requests.room, ROOM)

    @property
    def answered(self) -> int:
        """How many of the requests are answered."""
        return self._state[ROW]

    @property
    def first_transaction_id(self) -> int | None:
        """What the next request asks for; None when there is none, or it is no such request."""
        requests, row = self._requests, self._state[ROW]
        if row == len(requests.table):
            return None
        body = int(requests.table[row, _BODY])
        if not 0 <= body <= len(requests.received) - LIST_BODY:
            return None
        first: int = LIST_RANGE.struct.unpack_from(requests.received, body + LIST_FIRST_AT)[0]
        return first

    def answer_from(self, segment: OpenSegment, shown: int) -> bool:
        """Answer requests as long as their records lie in a segment; whether another segment may have the next one's.

        `shown`: the id behind the last record of the log that anybody is shown.
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
