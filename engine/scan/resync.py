"""Resynchronisation: finding the next valid record after damage.

The only hint in a record that fails its checksum is its length field, which may itself be damaged.  And a record's data comes
from a client and may contain anything: whole records with plausible ids, even a copy of a segment.  So a record after the damage
is accepted on evidence only, strongest first:

1. *Closing*: the damaged record provably ends where the next record begins.  With the length that follows from these bounds, one
   of its two checksums is right, or both differ by the same amount, which means that only data is damaged.  If the damaged record
   closes at the end of the file, or before another damaged record, everything inside it that looks like a record is its data.
2. *Index*: the entry of the record's id is exactly its offset.
3. *Length*: the damaged record's length field leads to the record, the record's id is the next one, and no other candidate
   contradicts it.
4. *Chain*: valid records with rising ids follow one another, back to back.  If a later chain repeats ids of an earlier one, one
   of the two is data: the chain that reaches the end of the segment wins, else the longer one.  (A chain inside a record's data
   cannot reach the end, because that record's checksum follows the data.)  If the index proves not the next record but a later
   one, the search ends at that record, so that an index that is wrong elsewhere hides nothing.  A chain that begins with the
   damaged record's own id, inside the bounds given by its header, is its data.

A torn record is one with the expected id and a plausible length that leads beyond the end of the file.  Records after its header
are taken for its data, unless evidence of kind 1 or 2 contradicts, or a chain reaches the end of the file exactly.

The work is bounded.  The checksum of a long span is derived from checkpoints and not from all of its bytes, so a thousand
candidates with lengths of megabytes cost little; and all searches of one scan share a budget proportional to the size scanned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.scan.byte_source import ByteSource, read_bytes
from waltzctl.engine.scan.kernel import OVERHEAD, Kernel, Status
from waltzctl.engine.scan.probe import Candidates, Found, Probe
from waltzctl.engine.scan.walk import RecordWalk, following
from waltzctl.formats.ids import LAST_TRANSACTION_ID
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, INDEX_ENTRY, SegmentHeader, entry_position

SLACK = 4096
"""A record's id may exceed what fits between the damage and the record by so many: bytes may have been cut out of the file."""
CONFLICT_WINDOW = 16 << 20
"""Bytes after the end of a first chain that are searched for a better one."""
LOOKAHEAD = 64 << 20
"""Bytes of an unbroken chain that count as if it reached the end."""
FOLLOW_BLOCK = 64 << 10
"""Bytes per read when following a chain."""
INDEX_ENTRIES = 4096
"""Index entries after the damage that are tried, at most."""
ENDS = 1000
"""Damaged records with the next id at which the closing of the damaged one is tried, at most: data may be full of them."""


def out_of_reach(transaction_id: int, expected: int, room: int, ceiling: int | None) -> bool:
    """Whether a record with the id `transaction_id` cannot follow the damage.

    `expected`: the id at the damage; `room`: bytes from there to the record; `ceiling`: the id with which the next segment
    begins, None if it is not known.  The record cannot follow if its id belongs to the next segment and more records would be
    missing than fit into `room`.
    """
    return ceiling is not None and ceiling <= transaction_id > expected + room // OVERHEAD


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where a scan goes on after damage."""

    offset: int
    expected: int
    """The id to expect at `offset`."""
    transaction_id: int
    """The id of the record there; it differs from `expected` where the ids after the damage are out of order, too."""
    proof: str
    """As in `engine.scan.columns.Damage`."""


@dataclass(frozen=True, slots=True)
class _Chain:
    """Records back to back from `head` on, with consecutive ids up to `last_id`."""

    head: Found
    end: int
    last_id: int
    reached: bool
    """It goes on to the end of the scan, or is longer than LOOKAHEAD."""
    led: bool
    """The damaged record's length field leads to its head."""

    @property
    def count(self) -> int:
        return self.last_id - self.head.transaction_id + 1


class _Closed(NamedTuple):
    """Where a damaged record provably ends, and the id that the next record, which is damaged as well, should have."""

    offset: int
    expected: int


def _fits(known: Found | None, end: int, last_id: int) -> bool:
    """Whether a chain may precede the proven record `known`: it ends there in both offset and id, or in neither."""
    if known is None:
        return True
    if end == known.offset:
        return last_id + 1 == known.transaction_id
    return last_id + 1 < known.transaction_id


def _support(chains: list[_Chain]) -> tuple[bool, bool, int]:
    """A key for the evidence of chains that do not contradict each other; larger is better."""
    return any(c.reached for c in chains), any(c.led for c in chains), sum(c.count for c in chains)


class IndexHint:
    """Entries of an index file, as hints: an index has no checksums, and a missing or broken one is not an error."""

    def __init__(self, source: ByteSource | None, first_transaction_id: int, start: int) -> None:
        """`first_transaction_id` is the id of the record at `start`."""
        self._source = source
        self._first = first_transaction_id
        if source is None:
            return
        try:
            header = read_bytes(source, 0, HEADER_SIZE)
        except DiskReadError:
            self._source = None
            return
        named = (
            SegmentHeader.decode(header).first_transaction_id if len(header) == HEADER_SIZE else first_transaction_id
        )
        self._first = named
        if self.entries(first_transaction_id, 1) == [start]:
            return
        self._first = first_transaction_id
        if start != HEADER_SIZE:
            self._source = None

    def entries(self, transaction_id: int, count: int) -> list[int]:
        """The entries of `count` ids from `transaction_id` on; fewer where the index ends."""
        if self._source is None or transaction_id < self._first:
            return []
        at = entry_position(transaction_id, self._first)
        try:
            raw = read_bytes(self._source, at, count * ENTRY_SIZE)
        except (DiskReadError, OverflowError):
            return []
        return [entry for (entry,) in INDEX_ENTRY.struct.iter_unpack(raw[: len(raw) // ENTRY_SIZE * ENTRY_SIZE])]


class Resynchroniser:
    """Finds where a scan that ends at `probe.stop` goes on after damage.

    Methods may raise DiskReadError, BudgetExhaustedError.
    """

    def __init__(self, probe: Probe, kernel: Kernel, index: IndexHint, ceiling: int | None = None) -> None:
        """`ceiling`: the id with which the next segment begins; None where it is not known."""
        self.probe = probe
        self._ceiling = ceiling
        self._kernel = kernel
        self._index = index
        self._walk: RecordWalk | None = None

    def find(self, offset: int, expected: int) -> Resumption | None:
        """The next valid record after the damage at `offset`, where the record `expected` should be; None where there is none."""
        if expected > LAST_TRANSACTION_ID:
            return None  # no record has such an id
        known = self.by_index(offset, expected)
        if known is not None and known.transaction_id <= expected + 1:
            return Resumption(known.offset, known.transaction_id, known.transaction_id, "index")
        return self._search(offset, expected, known)

    def follow(self, head: Found, stop: int, most: int | None = None) -> tuple[int, int, bool]:
        """The chain from `head`, of at most `most` records: its end, its last id, whether it reaches `stop` (or LOOKAHEAD)."""
        walk = self._walk
        if walk is None:
            self._walk = walk = RecordWalk(
                self.probe.source,
                self._kernel,
                start=0,
                stop=FOLLOW_BLOCK,
                expected=0,
                max_record=self.probe.max_record,
                wide=False,
                rows=4096,
                block=FOLLOW_BLOCK,
            )
        walk.restart(head.offset, head.transaction_id, stop)
        self.probe.budget.spend(FOLLOW_BLOCK)
        left, spent_to, end, last_id = most, head.offset, head.offset, head.transaction_id
        while True:
            status = walk.advance()
            if walk.pending:
                run = walk.take_run()
                taken = len(run) if left is None else min(left, len(run))
                end = run.end if taken == len(run) else int(run.offset[taken])
                last_id = run.first_transaction_id + taken - 1
                if left is not None:
                    left -= taken
            self.probe.budget.spend(walk.offset - spent_to)
            spent_to = walk.offset
            if status is not Status.FULL or left == 0 or end - head.offset > LOOKAHEAD:
                return end, last_id, end == stop or end - head.offset > LOOKAHEAD

    def indexed(self, transaction_id: int, count: int) -> list[int]:
        """As `IndexHint.entries`."""
        return self._index.entries(transaction_id, count)

    def by_index(self, offset: int, expected: int) -> Found | None:
        """The first record after `offset` that the index proves: its id and checksum are right at the offset of its entry."""
        for place, entry in enumerate(self._index.entries(expected, INDEX_ENTRIES)):
            if entry > offset:
                found = self.probe.check(entry)
                if found is not None and found.transaction_id == expected + place:
                    return found
        return None

    def _search(self, offset: int, expected: int, known: Found | None) -> Resumption | None:
        """Search up to `known`, the first record after the damage that the index proves, or up to the end for None."""
        while isinstance(found := self._search_behind(offset, expected, known), _Closed):
            offset, expected = found
        return found

    def _named(self, place: int) -> int | None:
        """The id in the record header at `place`; None where the file ends inside of that header."""
        header = self.probe.header(place)
        return None if header is None else header.transaction_id

    def _search_behind(self, offset: int, expected: int, known: Found | None) -> Resumption | _Closed | None:
        """As `_search`; a `_Closed` if the damaged record at `offset` provably ends where another damaged record begins."""
        probe = self.probe
        stop = probe.stop if known is None else known.offset
        at_known = None if known is None else Resumption(stop, known.transaction_id, known.transaction_id, "index")
        while True:  # skip damaged records that close at the end given by their own length
            header = probe.header(offset)
            end = None if header is None else probe.end_of(offset, header, stop)
            if end is None or not probe.closes(offset, expected, end):
                break
            offset, expected = end, following(expected)
            successor = probe.check(end, stop)
            if successor is not None:
                return Resumption(end, expected, successor.transaction_id, "length")
        looks_torn = (
            known is None
            and header is not None
            and header.transaction_id == expected
            and 0 <= header.data_length <= probe.max_record
            and end is None
        )
        named = None if header is None else header.transaction_id
        chains: list[_Chain] = []
        candidates = Candidates(probe, offset + 1, stop, expected, expected + SLACK, offset)
        begin, horizon, tried = offset, stop, 0
        while (place := candidates.following(begin, horizon)) is not None:
            begin = place + 1
            head = probe.check(place, stop)
            if head is None and tried < ENDS and self._named(place) == expected + 1:
                tried += 1
                if probe.closes(offset, expected, place):
                    return _Closed(place, following(expected))  # chains before `place` are data of the damaged record
            if head is None or out_of_reach(head.transaction_id, expected, place - offset, self._ceiling):
                continue
            if head.transaction_id > expected and probe.closes(offset, expected, place):
                # exactly one record was damaged
                return Resumption(place, following(expected), head.transaction_id, "checksum")
            chain_end, last_id, reached = self.follow(head, stop)
            again = head.transaction_id == expected == named and end is not None and chain_end <= end
            if again or not _fits(known, chain_end, last_id):  # it is data of the damaged record
                begin = chain_end
                continue
            chain = _Chain(head, chain_end, last_id, reached, place == end and head.transaction_id == expected + 1)
            _admit(chains, chain)
            if reached:
                break
            begin = chain_end
            if not looks_torn:
                horizon = min(stop, chains[0].end + CONFLICT_WINDOW)
        if not chains or (looks_torn and not chains[-1].reached):
            return at_known
        if not chains[-1].reached and probe.closes(offset, expected, stop):
            return at_known  # the damaged record ends at `stop`, so the chains are its data
        best = chains[0]
        first_id = best.head.transaction_id
        return Resumption(best.head.offset, first_id, first_id, "length" if best.led else "chain")


def _admit(chains: list[_Chain], chain: _Chain) -> None:
    """Add a chain that begins after all the others; if it repeats ids of earlier chains, keep the side with better evidence."""
    rivals = [other for other in chains if chain.head.transaction_id <= other.last_id]
    if not rivals:
        chains.append(chain)
    elif _support([chain]) > _support(rivals):
        chains[:] = [other for other in chains if other not in rivals] + [chain]
