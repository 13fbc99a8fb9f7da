"""Carving: finds every valid record in bytes of any origin, without a header, an index or a file name.

A record is valid when its record checksum is right.  From a valid record on, records that follow back to back are read; then the
next candidate is searched for.  Records inside the data of a valid record are its data, and are not yielded.  Records inside the
data of a damaged record are yielded, as they cannot be distinguished from others: the caller compares their ids and offsets.
"""

from __future__ import annotations

from collections.abc import Iterator

from waltzctl.engine.scan import kernels
from waltzctl.engine.scan.byte_source import ByteSource
from waltzctl.engine.scan.columns import RecordBatch
from waltzctl.engine.scan.kernel import Status
from waltzctl.engine.scan.probe import Candidates, Found, Probe, SearchBudget
from waltzctl.engine.scan.resync import out_of_reach
from waltzctl.engine.scan.walk import RecordWalk
from waltzctl.formats.segment import MAX_DATA_LENGTH

DEFAULT_MAX_ID = 2**56 - 1
"""Largest id with which a run of records may begin: random bytes look like ids of 63 bits far too often."""
BATCH_ROWS = 4096


def holds_records(
    source: ByteSource, offset: int, stop: int, expected: int, ceiling: int | None, budget: SearchBudget | None = None
) -> bool:
    """Whether a torn tail ``[offset, stop)`` contains valid records that may belong to the log.

    `expected`: the id that the record at `offset` should have; `ceiling`: as in `out_of_reach`; `budget`: that of the scan.

    A record whose length leads beyond the file is torn, or a bit of its length has flipped.  If a chain of records after it
    reaches the end of the file exactly, the scanner has decided that the length is wrong.  For any other records it is not known
    whether they are data of the torn record or follow it.  Raises DiskReadError, BudgetExhaustedError.
    """
    found = carve_records(
        source,
        budget=budget,
        start=offset + 1,
        stop=stop,
        min_id=expected,
        max_id=expected + stop - offset,
    )
    return any(
        not out_of_reach(int(batch.transaction_id[0]), expected, int(batch.offset[0]) - offset, ceiling)
        for batch in found
    )


def carve_records(
    source: ByteSource,
    *,
    start: int = 0,
    stop: int | None = None,
    max_record: int = MAX_DATA_LENGTH,
    min_id: int = 0,
    max_id: int | None = None,
    data: bool = False,
    compiled: bool | None = None,
    budget: SearchBudget | None = None,
) -> Iterator[RecordBatch]:
    """Every valid record of the bytes ``[start, stop)`` with an id from `min_id` to `max_id`, in file order.

    Each batch holds records with consecutive ids, back to back.  `max_id`: None allows any id, but the first record of a run must
    have an id up to DEFAULT_MAX_ID.  Memory is bounded, whatever the size; so is the work, if a `budget` is given.  Raises
    DiskReadError, BudgetExhaustedError.
    """
    end = source.size()
    stop = end if stop is None else min(stop, end)
    highest = DEFAULT_MAX_ID if max_id is None else max_id
    probe = Probe(source, stop, max_record, SearchBudget(2**63) if budget is None else budget)
    candidates = Candidates(probe, start, stop, min_id, highest, None)
    walk: RecordWalk | None = None
    position = start
    while (place := candidates.following(position, stop)) is not None:
        head = probe.check(place)
        if head is None:
            position = place + 1
            continue
        probe.forget(place)
        if walk is None:
            walk = RecordWalk(
                source,
                kernels.choose(stop - start, compiled),
                start=head.offset,
                stop=stop,
                expected=head.transaction_id,
                max_record=max_record,
                wide=True,
                rows=BATCH_ROWS,
                keep_data=data,
            )
        else:
            walk.seek(head.offset, head.transaction_id)
        yield from _row(walk, probe, min_id, max_id)
        position = max(walk.offset, place + 1)


def _row(walk: RecordWalk, probe: Probe, min_id: int, max_id: int | None) -> Iterator[RecordBatch]:
    """Records back to back from the walk's offset on; a batch ends where an id does not follow its predecessor."""
    while True:
        status = walk.advance()
        if walk.pending:
            batch = walk.take_batch()
            keep = len(batch) if max_id is None else min(len(batch), max_id + 1 - int(batch.transaction_id[0]))
            if keep > 0:
                yield batch.first(keep)
        if status is Status.ORDER:
            behind: Found | None = probe.check(walk.offset)
            if behind is None or behind.transaction_id < min_id:
                return
            if max_id is not None and behind.transaction_id > max_id:
                return
            walk.seek(walk.offset, behind.transaction_id)
        elif status is not Status.FULL:
            return
