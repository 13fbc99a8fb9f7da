"""Finding the next believable record behind a place where there is none.

A record that fails its checksum says, at most, how long it claims to be.  That claim may be the very thing that is damaged; and
the data of a record is the client's, so it may hold anything: whole records with plausible ids, even a copy of a segment.  So
a record behind the damage is believed on evidence, strongest first:

1. The damaged record *closes* in front of it: with the length that follows from these bounds one of its two checksums agrees,
   or both disagree by the same amount, which says that nothing but data is damaged.  Where it closes at the end of the file,
   nothing follows, and what looks like a record is its data; so it is where it closes in front of another damaged record.
2. The *index* entry of the record's id holds exactly its offset.
3. The damaged record's own *length* leads to it, its id is the next one, and nothing found speaks against it.
4. Records follow one another from there in a *chain*.  Ids rise through a segment, so when a later chain repeats ids of an
   earlier one, one of the two is somebody's data: the one that reaches the end of the segment wins, as data never does (its
   record's checksum stands behind it), else the longer one.  Where the index proves no next record but a later one, the
   segment ends there for this purpose: an index that is wrong but for that entry hides nothing that would be found without it.
   A chain that begins with the damaged record's own id, within the bounds that its own header gives it, is its data.

A place that looks like a record cut off by the end of the file (right id, plausible length that leads beyond the end) is taken
for what it looks like, as a torn record may hold records in its data; unless evidence of the first two kinds says otherwise, or
a chain reaches the end of the file to the byte.

Work is bounded.  The checksum of a long span is derived from checkpoints instead of from its bytes, so that a thousand
candidates with lengths of megabytes cost little; and all searches of one scan share a budget in proportion to the size of what
is scanned.
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
"""Ids by which a record may be ahead of what fits between the damage and itself: bytes may have been cut out of the file."""
CONFLICT_WINDOW = 16 << 20
"""Bytes behind a first chain that are searched for a better one."""
LOOKAHEAD = 64 << 20
"""Bytes of an unbroken chain that count as much as reaching the end."""
FOLLOW_BLOCK = 64 << 10
"""Bytes that are read at once to follow a chain."""
INDEX_ENTRIES = 4096
"""Index entries behind the damage that are tried."""
ENDS = 1000
"""Places where the next id and nothing intact stands that are tried as the end of a damaged record: data may be full of them."""


def out_of_reach(transaction_id: int, expected: int, room: int, ceiling: int | None) -> bool:
    """Whether an id that stands `room` bytes behind the place of `expected` cannot be what follows the damage there.

    It belongs to the next segment, which begins with `ceiling` (None: not known), and more are missing than there is room for.
    """
    return ceiling is not None and ceiling <= transaction_id > expected + room // OVERHEAD


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where a scan goes on behind damage."""

    offset: int
    expected: int
    """The id to expect at `offset`."""
    transaction_id: int
    """The id that stands there; larger or smaller than `expected` where ids are out of order behind the damage too."""
    proof: str


@dataclass(frozen=True, slots=True)
class _Chain:
    """Records that follow one another from `head`."""

    head: Found
    end: int
    last_id: int
    reached: bool
    """It goes on to the end of the walk, or for so long that it counts as much."""
    led: bool
    """The damaged record's own length leads to its head."""

    @property
    def count(self) -> int:
        return self.last_id - self.head.transaction_id + 1


class _Closed(NamedTuple):
    """Where a damaged record provably ends, and the id that the next one there should have."""

    offset: int
    expected: int


def _fits(known: Found | None, end: int, last_id: int) -> bool:
    """Whether a chain may stand in front of the proven record: it leads there in bytes and ids alike, or in neither."""
    if known is None:
        return True
    if end == known.offset:
        return last_id + 1 == known.transaction_id
    return last_id + 1 < known.transaction_id


def _support(chains: list[_Chain]) -> tuple[bool, bool, int]:
    """How well chains that agree with each other are supported; larger is better."""
    return any(c.reached for c in chains), any(c.led for c in chains), sum(c.count for c in chains)


class IndexHint:
    """Entries of an index file, as hints: nothing in an index is checksummed, and a missing or broken one is no error."""

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
        """Offsets that the index gives for `transaction_id` and those behind it; fewer than `count` where it ends."""
        if self._source is None or transaction_id < self._first:
            return []
        at = entry_position(transaction_id, self._first)
        try:
            raw = read_bytes(self._source, at, count * ENTRY_SIZE)
        except (DiskReadError, OverflowError):
            return []
        return [entry for (entry,) in INDEX_ENTRY.struct.iter_unpack(raw[: len(raw) // ENTRY_SIZE * ENTRY_SIZE])]


class Resynchroniser:
    """Finds where a scan of ``[.., probe.stop)`` goes on.  Methods may raise DiskReadError, BudgetExhaustedError."""

    def __init__(self, probe: Probe, kernel: Kernel, index: IndexHint, ceiling: int | None = None) -> None:
        """`ceiling`: the id with which the next segment begins, None where that is not known."""
        self.probe = probe
        self._ceiling = ceiling
        self._kernel = kernel
        self._index = index
        self._walk: RecordWalk | None = None

    def find(self, offset: int, expected: int) -> Resumption | None:
        """The first believable record behind the damaged one at `offset`, which should have had the id `expected`."""
        if expected > LAST_TRANSACTION_ID:
            return None  # no record has such an id
        known = self.by_index(offset, expected)
        if known is not None and known.transaction_id <= expected + 1:
            return Resumption(known.offset, known.transaction_id, known.transaction_id, "index")
        return self._search(offset, expected, known)

    def follow(self, head: Found, stop: int, most: int | None = None) -> tuple[int, int, bool]:
        """Where the chain from `head` ends, its last id, and whether it reaches `stop` (or LOOKAHEAD); at most `most` records."""
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
        """Offsets that the index gives for `transaction_id` and those behind it, as hints; fewer where it ends."""
        return self._index.entries(transaction_id, count)

    def by_index(self, offset: int, expected: int) -> Found | None:
        """The first record behind `offset` that the index proves: its entry is where a right record with its id stands."""
        for place, entry in enumerate(self._index.entries(expected, INDEX_ENTRIES)):
            if entry > offset:
                found = self.probe.check(entry)
                if found is not None and found.transaction_id == expected + place:
                    return found
        return None

    def _search(self, offset: int, expected: int, known: Found | None) -> Resumption | None:
        """Search up to `known`, the first record behind the damage that is already proven, or up to the end."""
        while isinstance(found := self._search_behind(offset, expected, known), _Closed):
            offset, expected = found
        return found

    def _named(self, place: int) -> int | None:
        """The id that stands at a place where a record might begin."""
        header = self.probe.header(place)
        return None if header is None else header.transaction_id

    def _search_behind(self, offset: int, expected: int, known: Found | None) -> Resumption | _Closed | None:
        """As `_search`; or the next damaged record, where the one at `offset` provably ends with it."""
        probe = self.probe
        stop = probe.stop if known is None else known.offset
        at_known = None if known is None else Resumption(stop, known.transaction_id, known.transaction_id, "index")
        while True:  # records that are damaged but close, one behind the other
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
                    return _Closed(place, following(expected))  # what was found in front of it is its data
            if head is None or out_of_reach(head.transaction_id, expected, place - offset, self._ceiling):
                continue
            if head.transaction_id > expected and probe.closes(offset, expected, place):
                return Resumption(place, following(expected), head.transaction_id, "checksum")  # one record lay there
            chain_end, last_id, reached = self.follow(head, stop)
            again = head.transaction_id == expected == named and end is not None and chain_end <= end
            if again or not _fits(known, chain_end, last_id):  # a record does not hold itself: that is its data
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
            return at_known  # the damaged record ends there, or with the file: what was found is its data
        best = chains[0]
        first_id = best.head.transaction_id
        return Resumption(best.head.offset, first_id, first_id, "length" if best.led else "chain")


def _admit(chains: list[_Chain], chain: _Chain) -> None:
    """Add a chain that was found behind all the others; where ids repeat, keep the better supported side."""
    rivals = [other for other in chains if chain.head.transaction_id <= other.last_id]
    if not rivals:
        chains.append(chain)
    elif _support([chain]) > _support(rivals):
        chains[:] = [other for other in chains if other not in rivals] + [chain]
