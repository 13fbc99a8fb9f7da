"""Appending to a storage directory that no node serves: in a new session, in batches, each durable before the next begins.

Only the partition that is appended to is touched, and only after the first batch was checked, so a refused call changes no file.
What a crash left in the partition is then mended, as when a node opens it, and reported.

Two kinds of replicas are refused, because the ids that would be assigned may belong to other transactions elsewhere:

- a replica that is behind its cluster: its last transaction is below its low-water mark;
- a replica whose last transactions were lost, and the loss accepted (`engine.storage.loss_ledger`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from waltzctl.engine.errors import InvalidRequestError, NotAvailableError, PartitionQuarantinedError, RefusedError
from waltzctl.engine.findings import Finding
from waltzctl.engine.log.places import local
from waltzctl.engine.log.target import TargetKind, resolve
from waltzctl.engine.storage.batch import batch_of_records
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.engine.storage.fences import SessionFences
from waltzctl.engine.storage.loss_ledger import ledger_path, read_ledger, still_lost
from waltzctl.engine.storage.partition import Partition
from waltzctl.formats.ids import LAST_SESSION_ID
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import RECORD_OVERHEAD, Record

DEFAULT_BATCH = 1000
"""Records in a batch unless told otherwise."""
BATCH_BYTES = 16 << 20
"""A batch ends when its records have this many bytes, however many there are, so that memory stays bounded."""


@dataclass(frozen=True, slots=True)
class PendingRecord:
    """A transaction to append.

    `header`: signed 32-bit integer.  `request_id`: None for one that the session makes (see `append_lines`).
    """

    data: bytes
    header: int = 0
    request_id: RequestId | None = None


@dataclass(frozen=True, slots=True)
class AppendResult:
    """Result of appending; the ids are None when nothing was appended.

    `bytes`: size of the records on disk.  `mended`: findings of the partition that were mended first.  `undo_ids`: quarantine
    entries that keep the bytes which mending removed.  `taken_back`: ids of interrupted repairs of the directory that were rolled
    back before that.
    """

    partition: int
    first_transaction_id: int | None
    last_transaction_id: int | None
    records: int
    bytes: int
    mended: tuple[Finding, ...] = ()
    undo_ids: tuple[str, ...] = ()
    taken_back: tuple[str, ...] = ()


class AppendSession:
    """A new session on one partition of an open storage directory.

    Its session id is above every session that a node here has admitted (`engine.storage.fences`), also above one that has not yet
    set a low-water mark.  With an id not above it, the server of that session would continue, and take the appended records for
    its own.

    The session starts with the first batch: the low-water marks are then set to the partition's last transaction, so that its
    records count as acknowledged.  Before that nothing in the partition is changed.
    """

    def __init__(self, storage: StorageDirectory, partition: int) -> None:
        """Raises NotAssignedError, NotAvailableError, PartitionQuarantinedError; RefusedError for a replica that is behind or
        whose last transactions were lost, and when no session id is left; DamageError when the partition's fence is damaged;
        DiskWriteError when what a crash left in the partition could not be mended.
        """
        found = storage.outlook(partition)
        if found.condition.quarantined:
            raise found.condition.error or _quarantined(found.path, partition, found.findings)
        if not storage.availability(partition).writable:
            raise NotAvailableError(
                f"{found.path}: partition {partition} is not available for writing",
                advice="switch it on first",
            )
        current = storage.info(partition).current_struct
        assert current is not None, "otherwise it is quarantined"
        last, mark = found.last_transaction_id, current.low_water_mark
        _check_losses(storage, partition, last, current.local_low_water_mark)
        if last < mark:
            raise RefusedError(
                f"{found.path}: partition {partition} ends with transaction {last}, below its low-water mark {mark}:"
                " this replica is behind its cluster",
                advice="let a running cluster bring it up to date first",
            )
        with SessionFences.open(storage.path, storage.num_partitions) as fences:
            newest = max(current.session_id, fences.get(partition))
        if newest == LAST_SESSION_ID:
            raise RefusedError(
                f"{found.path}: partition {partition}: session {newest} is the last that there can be",
                advice="waltzctl set-partition --session-id lowers it, with --allow-data-loss",
            )
        self._storage, self._number, self._path = storage, partition, found.path
        self._last = last
        self._partition: Partition | None = None
        self.session_id = newest + 1
        self.first_transaction_id: int | None = None
        self.records = 0
        self.bytes = 0

    @property
    def last_transaction_id(self) -> int | None:
        """The last transaction appended, which is durable; None when there is none."""
        return self._last if self.records else None

    @property
    def result(self) -> AppendResult:
        """The result so far."""
        opened = self._partition
        return AppendResult(
            self._number,
            self.first_transaction_id,
            self.last_transaction_id,
            self.records,
            self.bytes,
            () if opened is None else opened.mended,
            () if opened is None else opened.undo_ids,
            self._storage.taken_back,
        )

    def append(self, batch: Sequence[PendingRecord]) -> None:
        """Append a batch, all or none of it; durable on return.  Raises InvalidRequestError, DiskError."""
        first = self._last + 1
        made = [self._record(first + place, self.records + place, item) for place, item in enumerate(batch)]
        if not made:
            return
        partition = self._partition or self._begin(made)
        partition.append(made)
        if self.first_transaction_id is None:
            self.first_transaction_id = first
        self._last += len(made)
        self.records += len(made)
        self.bytes += sum(record.size for record in made)

    def _begin(self, first_batch: Sequence[Record]) -> Partition:
        """Check the first batch, then open and mend the partition and start the session."""
        longest = self._storage.options.max_data_length
        batch_of_records(first_batch, self._last + 1, f"{self._path}: partition {self._number}", longest)
        self._partition = self._storage.partition(self._number)
        condition = self._partition.condition
        if condition.quarantined:
            raise condition.error or _quarantined(self._path, self._number, self._partition.findings)
        self._partition.set_low_water_mark(self.session_id, self._partition.max_transaction_id)
        return self._partition

    def _record(self, transaction_id: int, place: int, item: PendingRecord) -> Record:
        words = self.session_id & 0xFFFFFFFF, (self._number << 32) | (place & 0xFFFFFFFF)
        request_id = item.request_id or RequestId.from_words(*words)
        parts = (item.header, request_id.client, request_id.generation, request_id.partition, request_id.sequence)
        if not all(-(2**31) <= part < 2**31 for part in parts):
            raise InvalidRequestError(
                f"transaction {transaction_id}: header {item.header} and request id {request_id} must be signed 32-bit integers"
            )
        return Record.make(transaction_id, request_id, item.header, item.data)


def _quarantined(path: PurePath, partition: int, findings: Sequence[Finding]) -> PartitionQuarantinedError:
    return PartitionQuarantinedError(
        f"{path}: partition {partition} is quarantined: damage was found in it",
        findings,
        advice="run waltzctl verify, then recover; every byte was kept",
    )


def storage_to_append_to(path: Path, partition: int) -> Path:
    """The storage directory of a path, which is the storage directory itself or the directory of partition `partition`.

    Raises NotWaltzError, InvalidRequestError for the directory of another partition, DiskReadError.
    """
    target = resolve(path)
    target.selected((partition,))
    return local(target.storage) if target.kind is TargetKind.PARTITION and target.storage is not None else path


def _check_losses(storage: StorageDirectory, partition: int, last: int, mark: int) -> None:
    """Raise RefusedError when accepted losses have ids behind the last transaction: they would be assigned a second time."""
    ledger = read_ledger(storage.path)
    if ledger.fault is not None:
        raise RefusedError(
            f"{ledger_path(storage.path)}: the ledger of accepted losses cannot be read in full: {ledger.fault}; new transactions"
            " might get the ids of lost ones",
            advice=None if ledger.other_version else "set it aside with recover --forget-losses",
        )
    for loss in ledger.of_partition(partition):
        if loss.last > last and still_lost(loss, (), mark):
            raise RefusedError(
                f"{storage.path / str(partition)}: partition {partition} ends with transaction {last}; transactions up to"
                f" {loss.last} were here and were given up on {loss.time}, and others may know them by their ids",
                advice="let a running cluster bring it up to date, or bring them back with recover --from; if nobody has"
                " them, recover --forget-losses lets their ids be given away again",
            )


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
    """Append records to a partition of a storage directory that no other process has open.

    `path`: the storage directory, or the partition's directory in it.  `batch`: number of records that are written and synced
    together.  `on_durable`: called after each sync with the last transaction id that is durable.

    Default request ids: client 0, generation the low 32 bits of the session, the partition, and as sequence the position in the
    input, from 0.

    When the input or a write fails, the error is raised, and the transactions reported to `on_durable` stay durable.  Raises
    NotWaltzError, DirectoryLockedError, InvalidRequestError, DiskError, and as `AppendSession`.
    """
    if batch < 1:
        raise InvalidRequestError(f"a batch has at least one record, not {batch}")
    storage_path = storage_to_append_to(path, partition)
    with StorageDirectory.open(storage_path, expected_key=expected_key, partitions=(), options=options) as storage:
        session = AppendSession(storage, partition)
        for group in grouped(records, batch):
            session.append(group)
            last = session.last_transaction_id
            assert last is not None
            if on_durable is not None:
                on_durable(last)
        return session.result


def grouped(records: Iterable[PendingRecord], batch: int) -> Iterator[list[PendingRecord]]:
    """Batches of up to `batch` records; a batch ends early when its records take `BATCH_BYTES` or more on disk."""
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
