"""A log server's fast path for appends of clients: from frames in a receive buffer to records, many at a time.

Decoding each append in Python would dominate a server's time.  One call here decodes all appends in a receive buffer and verifies
their data checksums (`AppendTaker`); another assigns ids to the records of a batch and builds the frames that feeds send for them
(`numbered`).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from waltzctl.engine.scan import wire_code
from waltzctl.engine.scan.wire_layout import (
    EXPECTED,
    FEED_FRAME,
    FILLED,
    HELD_COLUMNS,
    HELD_STOP,
    LISTS,
    LOCKS,
    LONGEST,
    MAGIC,
    MOST_LOCKS,
    POSITION,
    ROWS,
    RUN_COLUMNS,
    RUNS,
    TAKEN,
    VERSION,
    WORD,
    FrameVerdict,
)
from waltzctl.engine.scan.wire_loops import new_state
from waltzctl.formats.wire.client import CLIENT_VERSIONS, LOCK_LISTS
from waltzctl.formats.wire.feed_frames import feed_prefix
from waltzctl.formats.wire.frame import Magic
from waltzctl.formats.wire.primitives import Limits
from waltzctl.formats.wire.records import PackedRecords


@dataclass(frozen=True, slots=True)
class HeldLocks:
    """The optimistic locks of a sequence of appends.

    `appends`: two words for each append, the client's high-water mark and the end of its locks in `locks`
    (`engine.scan.wire_layout.HeldColumn`).  `locks`: a word for each lock, its kind above the 32 bits of its id.
    """

    appends: array[int]
    locks: array[int]

    def part(self, first: int, stop: int) -> HeldLocks:
        """The locks of the appends `first` to `stop` - 1, counted from 0: a copy, which keeps no other locks in memory."""
        if first == 0 and stop == len(self):
            return self
        begin, end = (
            self.appends[(number - 1) * HELD_COLUMNS + HELD_STOP] if number else 0 for number in (first, stop)
        )
        appends = self.appends[first * HELD_COLUMNS : stop * HELD_COLUMNS]
        if begin:
            np.frombuffer(appends, np.int64)[HELD_STOP::HELD_COLUMNS] -= begin
        return HeldLocks(appends, self.locks[begin:end])

    def __len__(self) -> int:
        return len(self.appends) // HELD_COLUMNS

    @property
    def size(self) -> int:
        """Size in memory, in bytes."""
        return self.appends.itemsize * (len(self.appends) + len(self.locks))


class ClientAppends(NamedTuple):
    """Consecutive appends of one client to one partition, all with locks or all without (`locks` None).

    `records`: their records, with the id 0.
    """

    client: int
    partition: int
    records: PackedRecords
    locks: HeldLocks | None


class AppendTaker:
    """Decodes appends in receive buffers, of any connections of one thread.

    `rows`: appends per call, at most; `compiled`: as for `engine.scan.frames.FrameSplitter`.
    """

    def __init__(self, *, rows: int = 1024, compiled: bool | None = None) -> None:
        if rows < 1:
            raise ValueError(f"{rows} appends at a time")
        self._rows = rows
        self._loops = wire_code.chooser(compiled)
        self._runs = np.empty((rows, RUN_COLUMNS), np.int64)
        self._places = np.empty(rows + 1, np.int64)
        self._held = np.empty((rows, HELD_COLUMNS), np.int64)
        self._locks = np.empty(0, np.int64)
        self._out = np.empty(0, np.uint8)

    def take(
        self, buffer: bytes | bytearray | memoryview, start: int, end: int, version: int, max_body: int, limits: Limits
    ) -> tuple[list[ClientAppends], int]:
        """The whole and valid appends at the beginning of ``buffer[start:end]``, and the offset after the last one.

        No appends if the first frame is another message, or an invalid one.  An append is valid if `formats.wire.client.decode`
        accepts it under these `limits`, its body has at most `max_body` bytes, and its data checksum is right.

        Raises ValueError when the range is not inside of the buffer.
        """
        if not 0 <= start <= end <= len(buffer):
            raise ValueError(f"bytes {start} to {end} of a buffer of {len(buffer)}")
        if len(self._out) < end - start:
            self._out = np.empty(end - start, np.uint8)
            self._locks = np.empty((end - start) // WORD, np.int64)
        state = new_state()
        state[POSITION], state[FILLED], state[ROWS] = start, end, self._rows
        state[MAGIC], state[VERSION], state[LONGEST] = Magic.CLIENT, version, max_body
        state[LISTS], state[MOST_LOCKS] = LOCK_LISTS[version], limits.max_list
        self._loops().take_appends(state, buffer, self._runs, self._places, self._held, self._locks, self._out)
        places = self._places[: state[TAKEN] + 1].tolist()
        found, begun, out = list[ClientAppends](), 0, self._out.data
        if state[LOCKS]:
            rows, words = self._held[: state[TAKEN]], self._locks[: state[LOCKS]]
            held = HeldLocks(array("q", rows.tobytes()), array("q", words.tobytes()))
        for stop, client, partition, locked in self._runs[: state[RUNS]].tolist():
            begin, end = places[begun], places[stop]
            if stop == begun + 1:
                own = [0, end - begin]
            else:
                own = [place - begin for place in places[begun : stop + 1]] if begin else places[: stop + 1]
            locks = held.part(begun, stop) if locked else None
            found.append(ClientAppends(client, partition, PackedRecords(out[begin:end].tobytes(), own), locks))
            begun = stop
        return found, state[POSITION]


_FEED = feed_prefix(CLIENT_VERSIONS[-1])


class NumberedRecords(NamedTuple):
    """Records with their ids, and the frames, in the latest version of the protocol, that feeds send for them."""

    first: int
    records: PackedRecords
    feed: bytes

    @property
    def last(self) -> int:
        """The id of the last record."""
        return self.first + len(self.records) - 1


def numbered(parts: list[PackedRecords], first: int, *, compiled: bool | None = None) -> NumberedRecords:
    """All of these records, with ids from `first` on.  Raises ValueError if the bytes are not whole records."""
    records = bytearray().join([part.data for part in parts])
    places = [0]
    for part in parts:
        base = places[-1]
        places += [base + place for place in part.places[1:]] if base else part.places[1:]
    count = len(places) - 1
    feed = bytearray(count * FEED_FRAME)
    state = new_state()
    state[FILLED], state[ROWS], state[EXPECTED] = len(records), count, first
    if wire_code.chooser(compiled)().number_records(state, records, _FEED, feed) != FrameVerdict.DONE:
        raise ValueError(f"record {state[TAKEN]} of {count} is not whole")
    return NumberedRecords(first, PackedRecords(bytes(records), places), bytes(feed))
