"""The scanner: reads a segment's records, in columns, and the damage between them, in bounded memory.

=====================  =============================================================================================
`scan_records`         all columns of each record
`summarise_records`    offsets and the result of the data checksum only, in buffers that are reused; for checks
`read_record_at`       one record at a known offset
`engine.scan.carve`    records in bytes that are not a segment
=====================  =============================================================================================

The first two use the same kernel and go on after damage in the same way.

A scan takes the memory of its buffer (half a mebibyte and a little; 8 MiB with `borrowed`) and its columns, whatever the size of
the file.  A record that is larger than the buffer is checked piece by piece; only with ``data=True`` is it held in memory as a
whole, after its length was compared with the file's size and `max_record`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from waltzctl.engine.scan import kernels
from waltzctl.engine.scan.byte_source import ByteSource, read_bytes
from waltzctl.engine.scan.carve import holds_records
from waltzctl.engine.scan.columns import Damage, DamageCause, RecordBatch, RecordRun, RecordView
from waltzctl.engine.scan.kernel import HEADER, HEADER_WORDS, INTERPRETED, OVERHEAD, Kernel, Status
from waltzctl.engine.scan.known_records import KnownRecords
from waltzctl.engine.scan.order import OrderJudge
from waltzctl.engine.scan.probe import BudgetExhaustedError, Probe, SearchBudget
from waltzctl.engine.scan.resync import IndexHint, Resynchroniser
from waltzctl.engine.scan.walk import BLOCK, RecordWalk
from waltzctl.formats.checksums import crc32
from waltzctl.formats.ids import LAST_TRANSACTION_ID
from waltzctl.formats.segment import CHECKSUM, HEADER_SIZE, MAX_DATA_LENGTH

BATCH_ROWS = 8192
RUN_ROWS = 16384
LENT_BLOCK, LENT_ROWS = 8 << 20, 65536
"""Bytes and rows of a scan with a `borrowed` buffer: there the cost per batch outweighs the gain of fitting the CPU's cache."""
BUDGET_BASE = 2 << 30
BUDGET_PER_BYTE = 64
"""Budget of all searches of one scan, in bytes of checksum: BUDGET_BASE, and BUDGET_PER_BYTE for each byte scanned."""
FIRST_READ = 4096
"""Bytes of the first read for a single record."""
_T = TypeVar("_T")

_CAUSES = {Status.LENGTH: DamageCause.RECORD_LENGTH, Status.CHECKSUM: DamageCause.RECORD_CHECKSUM}


def scan_records(
    source: ByteSource,
    *,
    first_transaction_id: int,
    start: int = HEADER_SIZE,
    stop: int | None = None,
    index: ByteSource | None = None,
    data: bool = False,
    max_record: int = MAX_DATA_LENGTH,
    ceiling: int | None = None,
    compiled: bool | None = None,
    known: KnownRecords | None = None,
    borrowed: bool = False,
) -> Iterator[RecordBatch | Damage]:
    """Every valid record of the bytes ``[start, stop)`` in file order, in batches, and every damaged span in its place.

    ======================== ======================================================================================
    `first_transaction_id`   the id that the record at `start` must have
    `stop`                   None: the size of the source when the iteration begins, also if the file grows then
    `index`                  the index file; it helps to go on after damage and is never trusted alone
    `data`                   each batch carries the bytes of its records
    `max_record`             bound for a record's data length
    `ceiling`                the id with which the next segment begins, if known; used where ids are out of order
    `compiled`               chooses the kernel; None: by the size of the source
    `known`                  records of another copy; while the source has the same bytes, these batches are yielded
    `borrowed`               `data` is a view of the scan's buffer, which the next step of the iteration overwrites
    ======================== ======================================================================================

    Raises DiskReadError.
    """
    scan = _Scan(
        source,
        first_transaction_id,
        start,
        stop,
        index,
        max_record,
        ceiling,
        compiled,
        wide=True,
        keep_data=data,
        block=LENT_BLOCK if borrowed else BLOCK,
        rows=LENT_ROWS if borrowed else BATCH_ROWS,
    )
    scan.known, scan.walk.borrowed = known, borrowed
    return scan.run_and_close(scan.walk.take_batch)


def summarise_records(
    source: ByteSource,
    *,
    first_transaction_id: int,
    start: int = HEADER_SIZE,
    stop: int | None = None,
    index: ByteSource | None = None,
    max_record: int = MAX_DATA_LENGTH,
    ceiling: int | None = None,
    compiled: bool | None = None,
    most: int | None = None,
    check: Callable[[], object] | None = None,
    searched: ByteSource | None = None,
) -> Iterator[RecordRun | Damage]:
    """As `scan_records`, for checks: runs of records with their offsets, in buffers that the next step overwrites.

    `most`: about how many bytes a run has at most (a block and a record more); without it, a run of long records can be a whole
    segment.  `check`: called while damage is searched, which takes time; what it raises ends the scan.
    `searched`: the same bytes as `source`, from which they are read while damage is searched; what its reads raise ends the scan.
    Raises DiskReadError.
    """
    scan = _Scan(
        source,
        first_transaction_id,
        start,
        stop,
        index,
        max_record,
        ceiling,
        compiled,
        wide=False,
        keep_data=False,
        most=most,
        searched=searched,
    )
    scan.budget.check = check
    return scan.run(scan.walk.take_run)


class _Scan:
    """State of one scan."""

    def __init__(
        self,
        source: ByteSource,
        first: int,
        start: int,
        stop: int | None,
        index: ByteSource | None,
        max_record: int,
        ceiling: int | None,
        compiled: bool | None,
        *,
        wide: bool,
        keep_data: bool,
        block: int = BLOCK,
        rows: int = RUN_ROWS,
        most: int | None = None,
        searched: ByteSource | None = None,
    ) -> None:
        end = source.size()
        stop = end if stop is None else min(stop, end)
        stop = max(start, stop)
        self.kernel: Kernel = kernels.choose(stop - start, compiled)
        if first + (stop - start) // OVERHEAD > LAST_TRANSACTION_ID:  # ids may overflow; in a compiled loop they wrap
            self.kernel = INTERPRETED
        self.walk = RecordWalk(
            source,
            self.kernel,
            start=start,
            stop=stop,
            expected=first,
            max_record=max_record,
            wide=wide,
            rows=rows,
            block=block,
            keep_data=keep_data,
            most=most,
        )
        self.budget = SearchBudget(BUDGET_BASE + BUDGET_PER_BYTE * (stop - start))
        self._index_source, self._first, self._start = index, first, start
        self._ceiling = ceiling
        self._searched = source if searched is None else searched
        self._search: Resynchroniser | None = None
        self.known: KnownRecords | None = None

    def run(self, take: Callable[[], _T]) -> Iterator[_T | Damage]:
        """Scan to the end; `take` fetches the rows that the walk has gathered."""
        walk = self.walk
        yield from self._of_known()
        while True:
            status = walk.advance()
            if walk.pending:
                yield take()
            if status is Status.END:
                return
            if status is Status.FULL:
                yield from self._of_known()
            else:
                damage, expected = self._explain(status)
                yield damage
                if expected is None:
                    return
                walk.seek(damage.end, expected)

    def _of_known(self) -> Iterator[Any]:
        """Batches of `known`, as long as the source has the same bytes.  Only for `scan_records`."""
        walk = self.walk
        while self.known is not None:
            batch = self.known.at(walk.source, walk.offset, walk.expected, walk.stop)
            if batch is None:
                return
            walk.seek(batch.end, int(batch.transaction_id[-1]) + 1)
            yield batch

    def run_and_close(self, take: Callable[[], _T]) -> Iterator[_T | Damage]:
        """As `run`, where `take` gives copies."""
        try:
            yield from self.run(take)
        finally:
            self.walk.close()

    @property
    def search(self) -> Resynchroniser:
        """The search, made at the first use; its `stop` is always the current one of the walk."""
        if self._search is None:
            probe = Probe(self._searched, self.walk.stop, self.walk.max_record, self.budget)
            index = IndexHint(self._index_source, self._first, self._start)
            self._search = Resynchroniser(probe, self.kernel, index, self._ceiling)
        self._search.probe.stop = self.walk.stop
        return self._search

    def _explain(self, status: Status) -> tuple[Damage, int | None]:
        """The damage at the walk's offset, and the id to expect after it; None: the scan ends with it."""
        offset, expected, stop = self.walk.offset, self.walk.expected, self.walk.stop
        cause = _CAUSES.get(status, DamageCause.TORN_TAIL)
        if status is Status.SHORT:  # there is no room for a record, and nothing to search
            return self._damage(DamageCause.TORN_TAIL, offset, stop, expected, None, "end"), None
        try:
            if status is Status.ORDER:
                return self._out_of_order(offset, expected)
            found = self.search.find(offset, expected)
            inside = found is None and self._holds_records(offset, expected)
        except BudgetExhaustedError:
            if status is Status.ORDER:
                cause = DamageCause.RECORD_ORDER
            return self._damage(cause, offset, stop, expected, None, "budget"), None
        if found is None:
            torn = self._damage(DamageCause.TORN_TAIL, offset, stop, expected, None, "end")
            return replace(torn, holds_records=inside), None
        return self._damage(cause, offset, found.offset, expected, found.expected, found.proof), found.expected

    def _holds_records(self, offset: int, expected: int) -> bool:
        """Whether the torn tail holds records that may belong to the log; not if it is provably one whole damaged record."""
        stop = self.walk.stop
        if expected > LAST_TRANSACTION_ID or self.search.probe.closes(offset, expected, stop):
            return False
        return holds_records(self._searched, offset, stop, expected, self._ceiling, self.budget)

    def _out_of_order(self, offset: int, expected: int) -> tuple[Damage, int]:
        """The damage for a valid record with another id than the expected one, and the id to expect after it."""
        found = OrderJudge(self.search, self.walk.stop, self._ceiling).judge(offset, expected)
        damage = self._damage(DamageCause.RECORD_ORDER, offset, found.end, expected, found.next_id, found.proof)
        return damage, expected if found.next_id is None else found.next_id

    def _damage(
        self, cause: DamageCause, offset: int, end: int, expected: int, next_id: int | None, proof: str
    ) -> Damage:
        probe = self.search.probe  # it has the bytes, which another one would read again for each damaged record
        probe.budget = SearchBudget(2**63)
        try:
            return describe(probe, cause, offset, end, expected, next_id, proof)
        finally:
            probe.budget = self.budget


def describe(
    probe: Probe, cause: DamageCause, offset: int, end: int, expected: int, next_id: int | None, proof: str
) -> Damage:
    """A `Damage` with the values of the record header and the checksum at `offset`."""
    header = probe.header(offset)
    found_id = found_length = stored = computed = None
    if header is not None:
        found_id, found_length = header.transaction_id, header.data_length
        record_end = probe.end_of(offset, header)
        if record_end is not None:
            stored = probe.word(record_end - CHECKSUM.size)
            computed = probe.crc(offset, record_end - CHECKSUM.size)
    return Damage(cause, offset, end - offset, expected, next_id, found_id, found_length, stored, computed, proof)


def read_record_at(
    source: ByteSource,
    offset: int,
    *,
    expected_id: int | None,
    limit: int | None = None,
    max_record: int = MAX_DATA_LENGTH,
) -> RecordView | Damage:
    """The record at `offset`, with both checksums compared; a Damage if there is no valid one.

    `expected_id`: None accepts any id.  `limit`: the offset beyond which the record must not reach; None: the size of the source.
    No memory is allocated for a length that was not compared with `limit` and `max_record`.  The Damage's `length` is that of the
    record by its own length field if that is possible, else 0; no search follows, so its `next_transaction_id` is None.

    Raises DiskReadError.
    """
    end_of_file = source.size()
    stop = end_of_file if limit is None else min(limit, end_of_file)
    raw = read_bytes(source, offset, max(0, min(FIRST_READ, stop - offset)))
    wanted = -1 if expected_id is None else expected_id
    if len(raw) < OVERHEAD:
        return Damage(DamageCause.TORN_TAIL, offset, len(raw), wanted, None, None, None, None, None, "end")
    transaction_id, high, low, header, length, data_checksum = HEADER_WORDS.unpack_from(raw)
    size = OVERHEAD + length
    if not 0 <= length <= max_record or offset + size > stop:
        cause = DamageCause.RECORD_LENGTH
        return Damage(cause, offset, 0, wanted, None, transaction_id, length, None, None, "length")
    if size <= len(raw):
        record = memoryview(raw)[:size]
    else:
        record = memoryview(bytearray(size))
        record[: len(raw)] = raw
        count = len(raw) + source.read_into(offset + len(raw), record[len(raw) :])
        if count < size:
            cause = DamageCause.TORN_TAIL
            return Damage(cause, offset, count, wanted, None, transaction_id, length, None, None, "end")
    (stored,) = CHECKSUM.struct.unpack(record[size - CHECKSUM.size :])
    computed = crc32(record[: size - CHECKSUM.size])
    if computed != stored or (expected_id is not None and transaction_id != expected_id):
        cause = DamageCause.RECORD_CHECKSUM if computed != stored else DamageCause.RECORD_ORDER
        return Damage(cause, offset, size, wanted, None, transaction_id, length, stored, computed, "length")
    data_ok = crc32(record[HEADER : size - CHECKSUM.size]) == data_checksum
    return RecordView(offset, transaction_id, high, low, header, data_checksum, stored, data_ok, record.toreadonly())
