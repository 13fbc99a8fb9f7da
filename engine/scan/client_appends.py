"""Appends of clients as a log server takes them: from frames to the records that they become, many at a time.

A server that makes a message of each append in Python spends its time there.  Here one call takes all that came together, its
data compared with its checksum, and another gives the records of a batch their ids and writes what feeds tell of them.
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
    """What appends say about locks.

    `appends`: for each two words, its client's high-water mark and where its locks end (`engine.scan.wire_layout.HeldColumn`).
    `locks`: a word for each, its kind above the 32 bits of its id.
    """

    appends: array[int]
    locks: array[int]

    def part(self, first: int, stop: int) -> HeldLocks:
        """Of the appends from one on up to another, counted from 0: a copy, so that a few keep no others' locks in memory."""
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
        """Bytes that they take."""
        return self.appends.itemsize * (len(self.appends) + len(self.locks))


class ClientAppends(NamedTuple):
    """Appends of one client to one partition that came one behind the other, all with locks or all without.

    `records`: what they become; their ids are 0 yet.
    """

    client: int
    partition: int
    records: PackedRecords
    locks: HeldLocks | None


class AppendTaker:
    """Takes appends out of buffers of any connections of one thread.

    `rows`: how many one call takes at most; `compiled`: as for `engine.scan.frames.FrameSplitter`.
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
        """The appends at the beginning of ``buffer[start:end]``, as many as are whole and right, and where they end.

        None where the first frame is another message, or a wrong one: what is taken is what `formats.wire.client.decode` reads
        under these `limits`, in frames whose bodies have `max_body` bytes at most, if the data agrees with its checksum.

        Raises ValueError when the range does not lie in the buffer.
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
    """Records that have their ids, and the frames of the latest version by which feeds tell of them."""

    first: int
    records: PackedRecords
    feed: bytes

    @property
    def last(self) -> int:
        """The id of the last record."""
        return self.first + len(self.records) - 1


def numbered(parts: list[PackedRecords], first: int, *, compiled: bool | None = None) -> NumberedRecords:
    """All of these records, with ids from `first` on.  Raises ValueError for what are no whole records."""
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
