"""Random access for searches: headers, checksums of spans and whole records at any offset, with bounded work.

Used where a scan cannot simply go on: in the search after damage, in carving, and to read single records.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from waltzctl.engine.scan.byte_source import ByteSource, read_bytes
from waltzctl.engine.scan.index_mask import inside_index
from waltzctl.engine.scan.kernel import HEADER, HEADER_WORDS, OVERHEAD
from waltzctl.formats.checksums import crc32, multiply, shift_operator
from waltzctl.formats.ids import LAST_TRANSACTION_ID
from waltzctl.formats.segment import CHECKSUM, RECORD_HEADER

GRANULE = 32 << 10
"""Bytes between two checkpoints of a running checksum."""
CACHE = 256 << 10
"""Bytes per read."""
FORGET_AFTER = 1 << 30
"""Bytes after which checkpoints are dropped; that many bytes have 128 KiB of checkpoints."""
CROWD = 2048
"""With more than one candidate in so many bytes, it is checked whether they are entries of an index."""
FLAT_CHARGE = 8192
"""Fixed cost of checking an offset besides its bytes, in bytes of checksum that take the same time."""

_shift = lru_cache(maxsize=256)(shift_operator)


_MIN_ID = -(2**63)


class BudgetExhaustedError(Exception):
    """The budget of a search is used up; never leaves this package."""


@dataclass(slots=True)
class SearchBudget:
    """The work that the searches of a scan may do, in bytes of checksum; `spent` is what they have done.

    `check`: called as they go on; what it raises ends the scan.
    """

    limit: int
    spent: int = 0
    check: Callable[[], object] | None = None

    def spend(self, amount: int) -> None:
        """Count `amount`.  Raises BudgetExhaustedError when the budget is used up."""
        if self.check is not None:
            self.check()
        self.spent += amount
        if self.spent > self.limit:
            raise BudgetExhaustedError


@dataclass(frozen=True, slots=True)
class Header:
    """A record header as stored, of a valid record or not."""

    raw: bytes
    transaction_id: int
    data_length: int
    data_checksum: int

    def replaced(self, **fields: int) -> bytes:
        """The 36 bytes with fields replaced (names of the schema's leaves)."""
        raw = bytearray(self.raw)
        for field in RECORD_HEADER.fields:
            if field.name in fields:
                signed = field.code.islower()
                raw[field.offset : field.offset + field.size] = fields[field.name].to_bytes(field.size, signed=signed)
        return bytes(raw)


@dataclass(frozen=True, slots=True)
class Found:
    """A record whose record checksum is right."""

    offset: int
    transaction_id: int
    end: int


class Probe:
    """Reads and checks at any offset of ``[0, stop)``.  Not thread-safe.

    Every method may raise DiskReadError, BudgetExhaustedError.
    """

    def __init__(self, source: ByteSource, stop: int, max_record: int, budget: SearchBudget) -> None:
        self.source = source
        self.stop = stop
        self.max_record = max_record
        self.budget = budget
        self._cache = bytearray()
        self._cache_at = 0
        self._checkpoints = array("I", [0])
        self._origin = 0

    def read(self, offset: int, length: int) -> memoryview:
        """The bytes at `offset`, fewer than `length` only at `stop`.  `length` is at most about 2 * GRANULE."""
        length = max(0, min(length, self.stop - offset))
        if length and not self._cache_at <= offset <= offset + length <= self._cache_at + len(self._cache):
            self._cache = read_bytes(self.source, offset, min(max(length, CACHE), self.stop - offset))
            self._cache_at = offset
        start = offset - self._cache_at
        return memoryview(self._cache)[start : start + length]

    def header(self, offset: int) -> Header | None:
        """The bytes at `offset` as a record header; None if fewer bytes are left."""
        raw = bytes(self.read(offset, HEADER))
        if len(raw) < HEADER:
            return None
        transaction_id, _, _, _, length, checksum = HEADER_WORDS.unpack(raw)
        return Header(raw, transaction_id, length, checksum)

    def word(self, offset: int) -> int:
        """The unsigned big-endian 32-bit word at `offset`; -1 if it does not end before `stop`."""
        raw = self.read(offset, CHECKSUM.size)
        return int.from_bytes(raw) if len(raw) == CHECKSUM.size else -1

    def end_of(self, offset: int, header: Header, stop: int | None = None) -> int | None:
        """The end of the record by its length field; None when that length is out of bounds."""
        end = offset + OVERHEAD + header.data_length
        if 0 <= header.data_length <= self.max_record and end <= (self.stop if stop is None else stop):
            return end
        return None

    def crc(self, start: int, end: int) -> int:
        """CRC-32 of ``[start, end)``.  Once its checkpoints are made, a long span costs two granules."""
        if end - start <= 2 * GRANULE:
            self.budget.spend(end - start + FLAT_CHARGE)
            return crc32(self.read(start, end - start))
        frontier = self._origin + (len(self._checkpoints) - 1) * GRANULE
        if not self._origin <= start <= frontier:
            self._origin, self._checkpoints = start, array("I", [0])
        return self._prefix(end) ^ multiply(_shift(end - start), self._prefix(start))

    def forget(self, before: int) -> None:
        """Drop checkpoints far below `before`; the caller will not use offsets below it any more."""
        if before - self._origin > FORGET_AFTER:
            self._origin, self._checkpoints = before, array("I", [0])

    def _prefix(self, end: int) -> int:
        """CRC-32 of everything from the origin of the checkpoints to `end`."""
        whole, rest = divmod(end - self._origin, GRANULE)
        while len(self._checkpoints) <= whole:
            at = self._origin + (len(self._checkpoints) - 1) * GRANULE
            self.budget.spend(GRANULE)
            self._checkpoints.append(crc32(self.read(at, GRANULE), self._checkpoints[-1]))
        self.budget.spend(rest + FLAT_CHARGE)
        return crc32(self.read(end - rest, rest), self._checkpoints[whole])

    def check(self, offset: int, stop: int | None = None) -> Found | None:
        """The record at `offset` if its record checksum is right and it ends at or before `stop`; else None."""
        place = offset - self._cache_at
        if 0 <= place <= len(self._cache) - HEADER:  # the common case, in few steps: the record is in the cache
            transaction_id, _, _, _, length, _ = HEADER_WORDS.unpack_from(self._cache, place)
            end = place + OVERHEAD + length
            if not 0 <= length <= self.max_record or self._cache_at + end > (self.stop if stop is None else stop):
                return None
            if end <= len(self._cache) and length <= 2 * GRANULE:
                self.budget.spend(length + FLAT_CHARGE)
                raw = memoryview(self._cache)
                if crc32(raw[place : end - CHECKSUM.size]) != int.from_bytes(raw[end - CHECKSUM.size : end]):
                    return None
                return Found(offset, transaction_id, self._cache_at + end)
        header = self.header(offset)
        if header is None or (end := self.end_of(offset, header, stop)) is None:
            return None
        if self.crc(offset, end - CHECKSUM.size) != self.word(end - CHECKSUM.size):
            return None
        return Found(offset, header.transaction_id, end)

    def closes(self, offset: int, expected: int, end: int) -> bool:
        """Whether the damaged record at `offset` provably ends at `end`.

        Any of these proves it:

        - the data checksum is right for exactly these bounds;
        - the record checksum is right once the length (and perhaps the id and the data checksum) is replaced by what it must be;
        - both checksums differ from the stored ones by the same amount: damage to the data only has that effect, because both
          checksums end with the data.
        """
        header = self.header(offset)
        length = end - offset - OVERHEAD
        if header is None or not 0 <= length <= self.max_record:
            return False
        data_sum, stored = self.crc(offset + HEADER, end - CHECKSUM.size), self.word(end - CHECKSUM.size)
        difference = data_sum ^ header.data_checksum
        if length and not difference:
            return True
        shift = _shift(length)
        for fields in ({}, {"transaction_id": expected}):
            raw = header.replaced(data_length=length, **fields)
            if multiply(shift, crc32(raw)) ^ data_sum ^ stored == difference:
                return True
            raw = header.replaced(data_length=length, data_checksum=data_sum, **fields)
            if multiply(shift, crc32(raw)) ^ data_sum == stored:
                return True
        return False


class Candidates:
    """Offsets where a record might begin, judged by id and length alone, in rising order.

    `lowest`, `highest`: bounds for the id; any integers.  `origin`: an offset from which the upper bound rises by one for each
    record of the smallest size that fits between it and the candidate; None: the bound is constant.
    """

    def __init__(self, probe: Probe, begin: int, stop: int, lowest: int, highest: int, origin: int | None) -> None:
        self._probe = probe
        self._stop = stop
        self._lowest, self._highest, self._origin = max(lowest, _MIN_ID), min(highest, LAST_TRANSACTION_ID), origin
        self._places: list[int] = []
        self._searched = begin

    def following(self, begin: int, horizon: int) -> int | None:
        """The first candidate at or after `begin` and before `horizon`; None without one.  `begin` must not fall."""
        horizon = min(horizon, self._stop - OVERHEAD + 1)
        while True:
            place = bisect_left(self._places, begin)
            if place < len(self._places):
                found = self._places[place]
                return found if found < horizon else None
            at = max(begin, self._searched)
            if at >= horizon:
                return None
            self._places = self._search(at)

    def _search(self, at: int) -> list[int]:
        count = min(CACHE // 2, self._stop - OVERHEAD + 1 - at)
        self._searched = at + count
        self._probe.budget.spend(count // 4)
        window = np.frombuffer(self._probe.read(at, count + OVERHEAD - 1), np.uint8)
        count = len(window) - OVERHEAD + 1
        if count <= 0:
            return []
        risen = (at + count - self._origin) // OVERHEAD if self._origin is not None else 0
        highest = min(self._highest + risen, LAST_TRANSACTION_ID)
        if highest < self._lowest:
            return []
        if not window.any():  # all zero is not a record: the checksum of zeros is not zero
            return []
        mask = window[LENGTH_AT : LENGTH_AT + count] <= self._probe.max_record >> 24
        low, high = (number.to_bytes(8, signed=True) for number in (self._lowest, highest))
        for place in range(8):
            if low[place] != high[place]:
                break
            mask &= window[place : place + count] == low[place]
        places = np.flatnonzero(mask)
        ids = _at_every_byte(window, RECORD_HEADER.dtype["transaction_id"], 0)[places].astype(np.int64)
        keep = (ids >= self._lowest) & (ids <= highest)
        places, ids = places[keep], ids[keep]
        if self._origin is not None:
            rise = (at + places - self._origin) // OVERHEAD
            keep = ids <= self._highest + np.minimum(
                rise, min(LAST_TRANSACTION_ID - self._highest, LAST_TRANSACTION_ID)
            )
            places, ids = places[keep], ids[keep]
        lengths = _at_every_byte(window, RECORD_HEADER.dtype["data_length"], LENGTH_AT)[places].astype(np.int64)
        keep = (lengths >= 0) & (lengths <= self._probe.max_record) & (at + places + OVERHEAD + lengths <= self._stop)
        places = places[keep]
        blank = np.ones(len(places), np.bool_)
        for word in range(0, OVERHEAD, 8):
            blank &= _at_every_byte(window, np.dtype(np.int64), word)[places] == 0
        places = places[~blank]
        if self._origin is None and len(places) > count // CROWD:
            inside = inside_index(window)
            places = places[~(inside[places] & inside[places + OVERHEAD - 1])]
        found: list[int] = (places + at).tolist()
        return found


LENGTH_AT = RECORD_HEADER.offset_of("data_length")


def _at_every_byte(window: npt.NDArray[np.uint8], dtype: np.dtype[Any], offset: int) -> npt.NDArray[np.generic]:
    """The values of type `dtype` that begin at each byte of `window` from `offset` on."""
    return np.ndarray((len(window) - offset - dtype.itemsize + 1,), dtype, window, offset, (1,))
