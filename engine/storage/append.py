"""Appending to a storage directory that no node serves: as a new session, in batches, each durable before the next begins.

What is appended here becomes the partition's own history.  A replica that is behind its cluster (its last transaction is below
its low-water mark) is refused: other replicas hold other transactions under the ids that would be given away.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.errors import InvalidRequestError, NotAvailableError, RefusedError
from engine.storage.directory import StorageDirectory, StorageOptions
from engine.storage.partition import Partition
from formats.request_id import RequestId
from formats.segment import RECORD_OVERHEAD, Record

DEFAULT_BATCH = 1000
"""Records in a batch unless told otherwise."""
BATCH_BYTES = 16 << 20
"""A batch ends when its records have this many bytes, however many there are, so that memory stays bounded."""


@dataclass(frozen=True, slots=True)
class PendingRecord:
    """A transaction to append.  `header` is a signed 32-bit integer; without a request id it gets one of the session's."""

    data: bytes
    header: int = 0
    request_id: RequestId | None = None


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What was appended; ids are None when there was nothing.  `bytes` counts what the records take on disk."""

    partition: int
    first_transaction_id: int | None
    last_transaction_id: int | None
    records: int
    bytes: int


def append_lines(
    path: Path,
    *,
    partition: int,
    records: Iterable[PendingRecord],
    batch: int = DEFAULT_BATCH,
    on_durable: Callable[[int], None] | None = None,
    expected_key: uuid.UUID | None = None,
    options: StorageOptions = StorageOptions(),  # noqa: B008  # frozen
) -> AppendResult:
    """Append records to a partition of a storage directory.

    `batch` is the number of records that are written and synced together; `on_durable` is called after each sync with the
    last transaction id that is durable.  Default request ids: client 0, generation the low 32 bits of the session, the
    partition, and the place in the input from 0.

    When the input or a write fails, what `on_durable` told stays durable and the error is raised.  Raises NotWaltzError,
    DirectoryLockedError, NotAssignedError, NotAvailableError, RefusedError for a replica that is behind,
    PartitionQuarantinedError, InvalidRequestError, DiskError.
    """
    if batch < 1:
        raise InvalidRequestError(f"a batch has at least one record, not {batch}")
    with StorageDirectory.open(path, expected_key=expected_key, options=options) as storage:
        opened = storage.partition(partition)
        if not storage.availability(partition).writable:
            raise NotAvailableError(
                f"{path}: partition {partition} is not available for writing", advice="switch it on first"
            )
        session = _start_session(opened)
        first = opened.next_transaction_id
        written = 0
        for group in _groups(records, batch):
            made = [
                _record(
                    opened.next_transaction_id + place,
                    session,
                    partition,
                    opened.next_transaction_id + place - first,
                    item,
                )
                for place, item in enumerate(group)
            ]
            opened.append(made)
            written += sum(record.size for record in made)
            if on_durable is not None:
                on_durable(opened.max_transaction_id)
        count = opened.next_transaction_id - first
        return AppendResult(
            partition, first if count else None, opened.max_transaction_id if count else None, count, written
        )


def _start_session(partition: Partition) -> int:
    """Begin a session newer than the last one, with everything that is here as its low-water mark."""
    last = partition.max_transaction_id
    if last < partition.low_water_mark and not partition.quarantined:
        raise RefusedError(
            f"{partition.path}: partition {partition.number} ends with transaction {last}, below its low-water mark"
            f" {partition.low_water_mark}: this replica is behind its cluster",
            advice="let a running cluster bring it up to date first",
        )
    session = partition.session_id + 1
    partition.set_low_water_mark(session, last)
    return session


def _groups(records: Iterable[PendingRecord], batch: int) -> Iterator[list[PendingRecord]]:
    group: list[PendingRecord] = []
    size = 0
    for record in records:
        group.append(record)
        size += RECORD_OVERHEAD + len(record.data)
        if len(group) >= batch or size >= BATCH_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _record(transaction_id: int, session: int, partition: int, place: int, item: PendingRecord) -> Record:
    request_id = item.request_id
    if request_id is None:
        request_id = RequestId.from_words(session & 0xFFFFFFFF, (partition << 32) | (place & 0xFFFFFFFF))
    if not -(2**31) <= item.header < 2**31:
        raise InvalidRequestError(f"transaction {transaction_id}: header {item.header} is no signed 32-bit integer")
    if not all(
        -(2**31) <= part < 2**31
        for part in (request_id.client, request_id.generation, request_id.partition, request_id.sequence)
    ):
        raise InvalidRequestError(
            f"transaction {transaction_id}: request id {request_id} is not four signed 32-bit integers"
        )
    return Record.make(transaction_id, request_id, item.header, item.data)
