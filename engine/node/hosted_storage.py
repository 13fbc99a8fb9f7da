"""An open storage directory as it is served: the services of its partitions, and the operations of the admin port.

An operation on a list of partitions checks all of them before it changes the first one; the release checks one at a time, or not
at all.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Iterable, Sequence

from waltzctl.engine.durable.file_system import FileSystem
from waltzctl.engine.durable.flusher import MOST_THREADS, Flusher
from waltzctl.engine.durable.relocation import DELETING
from waltzctl.engine.errors import DiskError, WaltzError
from waltzctl.engine.net.executor import Executor, JobExecutor
from waltzctl.engine.node.commit_passes import CommitPasses
from waltzctl.engine.node.disk_probe import DiskProbe
from waltzctl.engine.node.node_metrics import NodeMetrics
from waltzctl.engine.node.node_settings import HealthOptions, ServiceOptions
from waltzctl.engine.node.outages import Room
from waltzctl.engine.node.partition_requests import session_info
from waltzctl.engine.node.partition_service import PartitionService
from waltzctl.engine.node.permissions import (
    DeniedError,
    NotLoadedError,
    OtherClusterError,
    busy,
    closed,
    not_loaded,
    wrong_cluster_key,
    wrong_number_of_partitions,
)
from waltzctl.engine.node.shared_commit import SharedCommits
from waltzctl.engine.scan.transcode import AppendEncoder
from waltzctl.engine.storage.availability_marks import Availability
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.storage.fences import SessionFences
from waltzctl.engine.storage.retired import left_directories, prepare_relocation
from waltzctl.engine.storage.wire_records import WireRecords
from waltzctl.formats.wire.storage import SessionInfo

__all__ = ["HostedStorage", "ServiceOptions"]

_SPACE_PROBE_NAME = "room-probe"
MOST_WORKERS = 32
"""Upper bound of the default number of worker threads (`ServiceOptions.workers`)."""


class HostedStorage:
    """Serves a storage directory, which it owns from now on.  Thread-safe.

    Methods that change anything block; do not call them in the event loop.
    """

    def __init__(
        self,
        storage: StorageDirectory,
        *,
        options: ServiceOptions,
        metrics: NodeMetrics,
        log: logging.Logger,
        health: HealthOptions = HealthOptions(),  # noqa: B008  # frozen
        executor: JobExecutor | None = None,
        flusher: Flusher | None = None,
    ) -> None:
        """`health`: the free space that ends a *disk-full* outage.  `executor`, `flusher`: execute the queues and sync the files,
        and are closed with the storage; None: ones with threads of their own.

        Raises InvalidRequestError, DamageError for an invalid file of fences, DiskError.
        """
        options.check()
        self.storage = storage
        self.options = options
        self._metrics, self._log = metrics, log
        self._encoder = AppendEncoder(max_data_length=storage.options.max_data_length)
        self._fences = SessionFences.open(storage.path, storage.num_partitions)
        workers = options.workers or min(MOST_WORKERS, storage.num_partitions + 2)
        self._pool = executor or Executor(workers, log=log)
        self._flusher = flusher or Flusher(
            log=log,
            threads=min(MOST_THREADS, storage.num_partitions - 1),
            file_system=FileSystem.of(storage.path) if options.flush_file_system else None,
        )
        self._passes = CommitPasses(
            self._pool,
            self._flusher,
            shared=SharedCommits(self._encoder, log),
            journal=storage.journal,
            clock=self._pool.time,
        )
        probe = DiskProbe(storage.path, min_free_bytes=health.min_free_bytes, name=_SPACE_PROBE_NAME)
        self._room = Room(probe, max_age=health.max_age)
        self._services: dict[int, PartitionService] = {}
        self._closing = self._closed = False
        self._lock = threading.RLock()
        with contextlib.suppress(DiskError):  # if the disk is full, a later deletion reports it
            prepare_relocation(storage.path, DELETING)
        try:
            for number in sorted(storage.partitions):
                self._serve(number)
        except BaseException:
            self._fences.close()
            self._flusher.close()
            raise

    # --- for the data port -------------------------------------------------------------------------------------------

    def service(self, partition: int) -> PartitionService | None:
        """The service of an assigned partition; None for any other number.  Does not block."""
        return self._services.get(partition)

    @property
    def services(self) -> tuple[PartitionService, ...]:
        """The services of all assigned partitions, in ascending order."""
        return tuple(service for _, service in sorted(self._services.copy().items()))

    def check_open(self, cluster_key: uuid.UUID, num_partitions: int) -> None:
        """Compare an open request with the control file.  Raises MismatchError, RefusedError when closed."""
        if self._closing:
            raise DeniedError(closed())
        if cluster_key != self.storage.cluster_key:
            raise OtherClusterError(wrong_cluster_key())
        if num_partitions != self.storage.num_partitions:
            raise OtherClusterError(wrong_number_of_partitions())

    # --- for the admin port ------------------------------------------------------------------------------------------

    def assign(self, partitions: Sequence[int]) -> None:
        """Assign partitions, in order; those that are assigned already stay as they are.

        All numbers are checked before the first one is assigned.  Raises InvalidRequestError, RefusedError when closed,
        PartitionQuarantinedError when a partition's info in the control file is damaged, DiskError; after an error, partitions
        in front of the failing one are assigned.
        """
        with self._lock:
            for number in self._checked(partitions):
                if number not in self._services:
                    self.storage.assign(number)
                    self._serve(number)

    def unassign(self, partitions: Sequence[int], *, delete_files: bool) -> None:
        """Unassign partitions, in order; their queued requests are answered with a failure.

        With `delete_files`, also partitions that are not assigned and whose files were left behind.  All numbers are checked
        before the first one is unassigned.  Raises NotAssignedError, InvalidRequestError, RefusedError (also when a partition's
        disk hangs), PartitionQuarantinedError, DiskError; after an error, the failing partition and those behind it are still
        served.
        """
        with self._lock:
            numbers = self._checked(partitions)
            for number in numbers:
                if number not in self._services and not (delete_files and left_directories(self.storage.path, number)):
                    raise NotLoadedError(number)
            for number in numbers:
                self._unassign_one(number, delete_files=delete_files)

    def _unassign_one(self, number: int, *, delete_files: bool) -> None:
        service = self._services.get(number)
        if service is not None:
            self._hold(service)
        try:
            self.storage.unassign(number, delete_files=delete_files)
        except BaseException:
            if service is not None:
                if number in self.storage.partitions:
                    service.resume()
                else:
                    self._forget(service)
            raise
        if service is not None:
            self._forget(service)

    def _forget(self, service: PartitionService) -> None:
        self._services.pop(service.number, None)
        service.end(not_loaded(service.number))
        self._passes.forget(service)
        self._metrics.forget(service.number)

    def set_availability(
        self, partitions: Sequence[int], *, readable: bool | None = None, writable: bool | None = None
    ) -> None:
        """Allow or forbid reading and writing, durably; None: unchanged.  Unassigned partitions may be marked, too.

        A partition that becomes available while it has an outage is opened again: this is how an operator says that the disk is
        repaired.  All numbers are checked before the first one is changed.  Raises InvalidRequestError,
        PartitionQuarantinedError when a partition's info in the control file is damaged, RefusedError when closed, DamageError,
        DiskError.
        """
        with self._lock:
            numbers = self._checked(partitions)
            for number in numbers:
                self.storage.check_markable(number)
            for number in numbers:
                self.storage.set_availability(number, readable=readable, writable=writable)
                service = self._services.get(number)
                if service is not None:
                    access = service.access
                    before, access.availability = access.availability, self.storage.availability(number)
                    if access.availability.available and not before.available and access.outage is not None:
                        self.reopen(number)

    @property
    def sessions_failed(self) -> WaltzError | None:
        """Why no session can begin until a restart: the fences or the control file could not be synced; None: they can."""
        return self._fences.failed or self.storage.control_failed

    def availability(self, partition: int) -> Availability:
        """Whether a partition may be read and written.  Raises InvalidRequestError, DamageError, DiskReadError."""
        service = self._services.get(partition)
        return self.storage.availability(partition) if service is None else service.access.availability

    def session_info(self, partition: int) -> SessionInfo:
        """The persisted session and marks.  Raises NotAssignedError, PartitionQuarantinedError when they are damaged."""
        return session_info(self._service_of(partition).partition)

    def read_wire(self, partition: int, first: int, count: int, max_bytes: int | None = None) -> WireRecords:
        """Read records for the admin port, bypassing the queue and all permission checks, as in the release.

        `max_bytes` is bounded by `ServiceOptions.max_list_bytes`.  Raises NotAssignedError, CorruptRecordError, DiskReadError.
        """
        found = self._service_of(partition).partition
        limit = self.options.max_list_bytes if max_bytes is None else min(max_bytes, self.options.max_list_bytes)
        return found.read_wire(first, max(count, 0), limit)

    def place_of(self, partition: int, transaction_id: int) -> tuple[int, int] | None:
        """The first transaction of a record's segment, and the record's byte offset there; None if there is no such record.

        Reads as `read_wire`.  Raises NotAssignedError, CorruptRecordError, DiskReadError.
        """
        return self._service_of(partition).partition.place_of(transaction_id)

    def assigned_status(self) -> list[tuple[int, bool]]:
        """Each assigned partition, ascending, and whether it is also available."""
        return [(service.number, service.access.availability.available) for service in self.services]

    def use_health(self, health: HealthOptions) -> None:
        """Apply other options: the free space that ends a *disk-full* outage, and the age of usable checks."""
        self._room.probe.min_free_bytes = health.min_free_bytes
        self._room.max_age = health.max_age

    def reopen(self, partition: int) -> None:
        """Close and open one partition again, as is needed after a failed sync.  Raises NotAssignedError, DiskError."""
        with self._lock:
            service = self._service_of(partition)
            self._hold(service)
            try:
                self.storage.reopen(partition)
            finally:
                service.resume(self.storage.partitions[partition])

    # --- opening and closing -----------------------------------------------------------------------------------------

    def close(self, seconds: float | None = None) -> bool:
        """Execute the queues, then close every partition and the directory; a second call does nothing.

        Returns False if that took longer than `seconds`: queued requests were answered, but a system call that hangs keeps its
        partition's files open, and the directory stays locked until the process ends.  Raises DiskWriteError.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        self._closing = True
        if not self._lock.acquire(timeout=-1 if seconds is None else seconds):
            self._log.error("a change of a partition does not come to an end; the files are left as they are")
            return False
        try:
            if self._closed:
                return True
            for service in self.services:
                service.refuse(closed())
            late = []
            for service in self.services:
                left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
                if not service.drain(closed(), left):
                    late.append(service.number)
            if late:
                self._log.error("partitions %s do not come to an end; their files are left as they are", late)
                return False
            self._closed = True
            self._pool.close()
            self._flusher.close()
            self._fences.close()
            self.storage.close()
            return True
        finally:
            self._lock.release()

    def _serve(self, number: int) -> None:
        try:
            self._services[number] = PartitionService(
                self.storage.partition(number),
                self.storage.availability(number),
                fences=self._fences,
                pool=self._pool,
                passes=self._passes,
                encoder=self._encoder,
                metrics=self._metrics.partition(number),
                room=self._room,
                options=self.options,
                max_data_length=self.storage.options.max_data_length,
                log=self._log,
            )
        except BaseException:
            self._metrics.forget(number)
            raise

    def _hold(self, service: PartitionService) -> None:
        """Pause a service.  Raises DeniedError (*busy*) if it hangs, so that the caller does not hold the lock for ever."""
        if not service.hold(self.options.stall_seconds):
            raise DeniedError(busy(service.number, self.options.stall_seconds))

    def _service_of(self, number: int) -> PartitionService:
        service = self._services.get(number)
        if service is None:
            raise NotLoadedError(number)
        return service

    def _checked(self, partitions: Iterable[int]) -> list[int]:
        """The numbers without repetitions, in order.  Raises InvalidRequestError for one beyond the control file's."""
        if self._closing:
            raise DeniedError(closed())
        numbers = list(dict.fromkeys(partitions))
        for number in numbers:
            self.storage.info(number)
        return numbers
