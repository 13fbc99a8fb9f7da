"""A walk over records back to back: the kernel's loop, fed from a source through one buffer of fixed size.

Blocks are read to a fixed position in the buffer.  In front of it is room for the beginning of a record that the last block left
unfinished, so every block is read from a page boundary of the file to a page boundary of memory, and its bytes are read once.  A
record that is larger than a block is not held in the buffer: its checksums are computed piece by piece.
"""

from __future__ import annotations

import numpy as np

from waltzctl.engine.scan.byte_source import ByteSource
from waltzctl.engine.scan.columns import RecordBatch, RecordRun
from waltzctl.engine.scan.kernel import (
    BASE,
    EXPECTED,
    FILLED,
    HEADER,
    HEADER_WORDS,
    INTERPRETED,
    MORE,
    OVERHEAD,
    POSITION,
    ROOM,
    ROW,
    Kernel,
    Status,
    data_length,
)
from waltzctl.formats.checksums import crc32
from waltzctl.formats.segment import CHECKSUM

PAGE = 4096
BLOCK = 512 << 10
"""Bytes per read.  A block and the columns fit into a core's second-level cache; larger blocks read no faster."""
_STATUS = {int(status): status for status in Status}
CARRY = 128 << 10
"""Bytes of an unfinished record that are kept in front of the next block, at most; a longer beginning is read again."""


def following(transaction_id: int) -> int:
    """The id after `transaction_id`, as a signed 64-bit word of a lane's state: it wraps after the largest one."""
    return (transaction_id + 1 + 2**63) % 2**64 - 2**63


class RecordWalk:
    """Walks ``[start, stop)`` of a source; the record at `start` must have the id `expected`.

    `advance` runs until rows have to be taken, or a record is not valid; after damage, `seek` sets where to go on.
    `wide`, `rows`: as for `Kernel.lane`.  `keep_data`: batches carry the bytes of their records.  `block`: bytes per read.
    `most`: about how many bytes of records the rows may stand for, however few rows that are; None: any number.
    """

    def __init__(
        self,
        source: ByteSource,
        kernel: Kernel,
        *,
        start: int,
        stop: int,
        expected: int,
        max_record: int,
        wide: bool,
        rows: int,
        keep_data: bool = False,
        block: int = BLOCK,
        most: int | None = None,
    ) -> None:
        self.source = source
        self._most = most
        self._block = min(block, (stop - start) // PAGE * PAGE + 2 * PAGE)
        self._carry = PAGE + min(CARRY, self._block)  # the compiled loop loads bytes in front of a record: a page more
        self._kernel = kernel
        self._lane = kernel.lane(self._carry + self._block, rows, wide=wide, max_length=max_record)
        self._state = self._lane.state
        self._memory = self._lane.memory
        self._keep_data = keep_data
        self.max_record = max_record
        self._streamed: memoryview | None = None
        self.borrowed = False
        self.restart(start, expected, stop)  # a reused lane has the state of an earlier walk

    def close(self) -> None:
        """Give the lane back.  No run of `take_run`, and no `borrowed` data, may be in use any more."""
        self._kernel.give_back(self._lane)

    @property
    def offset(self) -> int:
        """File offset of the next record."""
        return int(self._state[BASE] + self._state[POSITION])

    @property
    def expected(self) -> int:
        """The id that the next record must have; after the largest id 2^63, which no record has."""
        expected = int(self._state[EXPECTED])
        return expected if expected >= self._sought else expected + 2**64  # words of a compiled loop wrap

    def _expect(self, expected: int) -> None:
        self._state[EXPECTED] = expected if self._kernel is INTERPRETED else following(expected - 1)

    @property
    def pending(self) -> int:
        """Number of rows that can be taken."""
        return int(self._state[ROW])

    def seek(self, offset: int, expected: int) -> None:
        """Go on at `offset` with the id `expected`.  Rows must have been taken."""
        state = self._state
        self._sought = expected
        self._expect(expected)
        position = offset - state[BASE]
        if self._carry <= position <= state[FILLED]:  # still in the buffer
            state[POSITION] = position
        else:
            self._place(offset)
        self._first_offset = offset

    def restart(self, offset: int, expected: int, stop: int) -> None:
        """Walk ``[offset, stop)`` from the beginning, with the same buffer."""
        self.stop = stop
        self._lane.take(copy=False)
        self._place(offset)
        self.seek(offset, expected)

    def _place(self, offset: int) -> None:
        """Empty the buffer; the next byte to read is the one at `offset`."""
        state = self._state
        position = self._carry + offset % PAGE
        state[BASE] = offset - position
        state[POSITION] = state[FILLED] = position
        state[ROOM] = self.stop - state[BASE]

    def advance(self) -> Status:
        """Walk on until the rows are full, the walk ends, or a record is not valid.

        With `keep_data` it also stops (FULL) before the buffer is overwritten, so that it still holds the data of the rows; with
        `most`, before a read once the rows stand for that many bytes.  Raises DiskReadError.
        """
        lane, state = self._lane, self._state
        while True:
            status = lane.walk()
            if status != MORE:
                return _STATUS[status]
            if state[ROW] and (self._keep_data or self._has_most):
                return Status.FULL
            answer = self._more()
            if answer is not None:
                return answer

    @property
    def _has_most(self) -> bool:
        return self._most is not None and self.offset - self._first_offset >= self._most

    def _more(self) -> Status | None:
        """Read the next block, because the next record is not wholly in the buffer.  None: the loop can go on."""
        state, memory, carry = self._state, self._memory, self._carry
        base, position, filled = state[BASE], state[POSITION], state[FILLED]
        stop = self.stop
        left = stop - base - position
        if left < OVERHEAD:
            return Status.SHORT if left else Status.END
        held = filled - position
        if held >= HEADER:
            length = data_length(memory, position)
            if length + OVERHEAD > self._block - PAGE:
                return self._stream(length)
        if held > carry - PAGE:
            held = 0
        else:
            position = filled
        offset = base + position  # of the next byte to read
        target = carry + offset % PAGE
        if held:
            memory[target - held : target] = memory[filled - held : filled]
        state[BASE] = base = offset - target
        state[POSITION] = target - held
        state[ROOM] = stop - base
        end = min(carry + self._block, stop - base)
        count = self.source.read_into(offset, memory[target:end])
        state[FILLED] = target + count
        if target + count < end:  # the file became shorter
            self.stop = offset + count
        return None

    def _stream(self, length: int) -> Status | None:
        """Check a record that does not fit into the buffer.  The loop has compared its length with the bounds."""
        state = self._state
        offset, size = self.offset, OVERHEAD + length
        header = bytes(self._memory[state[POSITION] : state[POSITION] + HEADER])
        whole = memoryview(bytearray(size)) if self._keep_data else None  # bounded by max_record and by the file itself
        block = self._memory[self._carry : self._carry + self._block]
        data_sum, record_sum, done = 0, crc32(header), HEADER
        while done < size:
            last = size - CHECKSUM.size
            wanted = min(len(block), last - done) or CHECKSUM.size
            piece = block[:wanted] if whole is None else whole[done : done + wanted]
            if (count := self.source.read_into(offset + done, piece)) < wanted:
                self.stop = offset + done + count
                self._place(offset)
                return None  # the file became shorter; the loop compares the length with the new end
            if done < last:
                data_sum, record_sum = crc32(piece, data_sum), crc32(piece, record_sum)
            else:
                (stored,) = CHECKSUM.struct.unpack(piece)
            done += wanted
        values = HEADER_WORDS.unpack(header)
        if stored != record_sum or values[0] != state[EXPECTED]:
            self._place(offset)
            return Status.CHECKSUM if stored != record_sum else Status.ORDER
        self._lane.push((offset, *values, record_sum, values[-1] == data_sum))
        self._expect(values[0] + 1)
        self._place(offset + size)
        if whole is not None:
            whole[:HEADER] = header
            self._streamed = whole
            return Status.FULL
        return None

    def take_batch(self) -> RecordBatch:
        """The pending rows with all columns; there must be one.  With `borrowed` their data is a view of the walk's buffer."""
        start, self._first_offset = self._first_offset, self.offset
        data = None
        if self._keep_data:
            data, self._streamed = self._streamed, None
            if data is None:
                base = self._state[BASE]
                here = self._memory[start - base : self._state[POSITION]]
                data = here if self.borrowed else memoryview(bytes(here))
        return RecordBatch(**self._lane.take(copy=True), data=data, data_base=start)

    def take_run(self) -> RecordRun:
        """The pending rows as a summary; there must be one."""
        end, expected = self.offset, self.expected
        columns = self._lane.take(copy=False)
        offsets, verdicts = columns["offset"], columns["data_ok"]
        self._first_offset = end
        damaged = len(verdicts) - int(np.count_nonzero(verdicts))
        return RecordRun(expected - len(offsets), int(offsets[0]), end, offsets, verdicts, damaged)
