"""Splitting a receive buffer into frames, a thousand at a time.

Every Waltz connection carries frames: a header of seven bytes (magic, version, length of the body) and a body that begins with a
message type.  Reading frames one by one in Python would dominate a node's time; here one call enters all whole frames of a buffer
into a table, with the fields that every message of the storage protocol begins with.

A frame's length is compared with its bound before the rest is awaited and memory is allocated for it.  Source of the frame's
layout and of the keep-alive (a frame without body): release 0.13.2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from waltzctl.engine.scan import wire_code
from waltzctl.engine.scan.wire_layout import (
    COLUMNS,
    FILLED,
    LONGEST,
    MAGIC,
    NEEDED,
    POSITION,
    ROWS,
    TAKEN,
    VERSION,
    FrameColumn,
    SplitStatus,
)
from waltzctl.engine.scan.wire_loops import Table, new_state

__all__ = ["FrameColumn", "FrameSplitter", "Split", "SplitStatus"]

_STATUS = {int(status): status for status in SplitStatus}


class Split(NamedTuple):
    """Frames of a buffer.

    `table`: int64, one row for each frame, columns by `FrameColumn`.  `consumed`: offset in the buffer after the last whole
    frame.  `needed`: total size of the incomplete frame that begins there; 0 when its header is incomplete, or when the status
    is not MORE.
    """

    table: Table
    consumed: int
    status: SplitStatus
    needed: int


class FrameSplitter:
    """Splits buffers of one connection, or of any number of connections of one thread.

    `magic`: the byte that every frame of the protocol begins with.  `max_body`: bytes of the longest body that is accepted.
    `rows`: frames per call, at most.  `compiled`: False for the interpreted loop; None for the best that is ready (see
    `engine.scan.wire_code`); True to wait for the compiled one, if it is available.
    """

    def __init__(self, *, magic: int, max_body: int, rows: int = 1024, compiled: bool | None = None) -> None:
        if rows < 1 or not 0 <= max_body < 2**31:
            raise ValueError(f"a splitter of {rows} rows for bodies of up to {max_body} bytes")
        self._magic, self._max_body, self._rows = magic, max_body, rows
        self._loops = wire_code.chooser(compiled)
        self._table = np.empty((rows, COLUMNS), np.int64)

    @property
    def loops(self) -> str:
        """The name of the loops in use, for people."""
        return self._loops().name

    def split(self, buffer: bytes | bytearray | memoryview, start: int, end: int, version: int) -> Split:
        """The whole frames of ``buffer[start:end]``, at most as many as there are rows; keep-alives are skipped.

        A status other than MORE and FULL says what is wrong with the frame at `consumed`; the frames before it are valid.
        Raises ValueError when the range is not inside of the buffer.
        """
        if not 0 <= start <= end <= len(buffer):
            raise ValueError(f"bytes {start} to {end} of a buffer of {len(buffer)}")
        state = new_state()
        state[POSITION], state[FILLED], state[ROWS] = start, end, self._rows
        state[MAGIC], state[VERSION], state[LONGEST] = self._magic, version, self._max_body
        status = self._loops().split(state, buffer, self._table)
        return Split(self._table[: state[TAKEN]].copy(), state[POSITION], _STATUS[status], state[NEEDED])
