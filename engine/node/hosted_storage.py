"""An open storage directory as the ports see it: its partitions' services, and what an administrator may do with them.

Lists of partitions are checked as a whole before anything is changed; the release finds out half-way, or not at all.
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
from waltzctl.engine.errors import DiskError
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
from waltzctl.engine.storage.assignment import put_aside_path
from waltzctl.engine.storage.availability_marks import Availability
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.storage.fences import SessionFences
from waltzctl.engine.storage.retired import prepare_relocation
from waltzctl.engine.storage.wire_records import WireRecords
from waltzctl.formats.wire.storage import SessionInfo

__all__ = ["HostedStorage", "ServiceOptions"]

_ROOM_PROBE = "room-probe"
MOST_WORKERS = 32
"""Threads for all partitions unless told otherwise."""


class HostedStorage:
    """A storage directory under service; it belongs to the service from now on.  Thread-safe.

    What changes anything blocks: call it in a thread.
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
        """`health`: how much space a partition that found the disk full waits for.  `executor`, `flusher`: who executes what is
        queued and makes it durable, closed with the storage; threads of its own unless given.

        Raises InvalidRequestError, DamageError for a file of fences that cannot be understood, DiskError.
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
            self._pool, self._flusher, shared=SharedCommits(self._encoder, log), journal=storage.journal
        )
        probe = DiskProbe(storage.path, min_free_bytes=health.min_free_bytes, name=_ROOM_PROBE)
        self._room = Room(probe, max_age=health.max_age)
        self._services: dict[int, PartitionService] = {}
        self._closing = self._closed = False
        self._lock = threading.RLock()
        with contextlib.suppress(DiskError):  # where it is full already a deletion says so
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
        """Take partitions in, in their order; one that is assigned stays as it is.

        All numbers are checked before the first is taken.  Raises InvalidRequestError, RefusedError when closed,
        PartitionQuarantinedError when a partition's info is damaged, DiskError; partitions in front of the one that fails stay.
        """
        with self._lock:
            for number in self._checked(partitions):
                if number not in self._services:
                    self.storage.assign(number)
                    self._serve(number)

    def unassign(self, partitions: Sequence[int], *, delete_files: bool) -> None:
        """Give partitions up, in their order; whatever waits in their queues is answered with a failure.

        With `delete_files` also one that is not assigned and left files behind.  All are checked before the first is given up.
        Raises NotAssignedError, InvalidRequestError, RefusedError (also when its disk hangs), PartitionQuarantinedError,
        DiskError; a partition that cannot be given up, and those behind it, go on being served.
        """
        with self._lock:
            numbers = self._checked(partitions)
            for number in numbers:
                if number not in self._services and not (delete_files and self._left_files(number)):
                    raise NotLoadedError(number)
            for number in numbers:
                self._give_up(number, delete_files=delete_files)

    def _give_up(self, number: int, *, delete_files: bool) -> None:
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
        self._metrics.forget(service.number)

    def _left_files(self, number: int) -> bool:
        path = self.storage.path
        return (path / str(number)).is_dir() or put_aside_path(path, number).is_dir()

    def set_availability(
        self, partitions: Sequence[int], *, readable: bool | None = None, writable: bool | None = None
    ) -> None:
        """Allow or forbid reading and writing, durably; None leaves as it is.  Unassigned partitions may be marked, too.

        One that is switched on and takes no part in sessions is opened anew: that is how an operator says that the disk is
        well again.  All are checked before the first is changed.  Raises InvalidRequestError, PartitionQuarantinedError when
        a partition's info is damaged, RefusedError when closed, DamageError, DiskError.
        """
        with self._lock:
            numbers = self._checked(partitions)
            for number in numbers:
                self.storage.check_markable(number)
            for number in numbers:
                self.storage.set_availability(number, readable=readable, writable=writable)
                service = self._services.get(number)
                if service is not None:
                    before, service.availability = service.availability, self.storage.availability(number)
                    if service.availability.available and not before.available and service.outage is not None:
                        self.reopen(number)

    def availability(self, partition: int) -> Availability:
        """Whether a partition may be read and written.  Raises InvalidRequestError, DamageError, DiskReadError."""
        service = self._services.get(partition)
        return self.storage.availability(partition) if service is None else service.availability

    def session_info(self, partition: int) -> SessionInfo:
        """Persisted session and marks.  Raises NotAssignedError, PartitionQuarantinedError when they are damaged."""
        return session_info(self._loaded(partition).partition)

    def read_wire(self, partition: int, first: int, count: int, max_bytes: int | None = None) -> WireRecords:
        """Records for the admin port, outside of the queue and of all permissions, as in the release.

        Bounded by `max_list_bytes` in any case.  Raises NotAssignedError, CorruptRecordError, DiskReadError.
        """
        found = self._loaded(partition).partition
        limit = self.options.max_list_bytes if max_bytes is None else min(max_bytes, self.options.max_list_bytes)
        return found.read_wire(first, max(count, 0), limit)

    def assigned_status(self) -> list[tuple[int, bool]]:
        """Each assigned partition, ascending, and whether it is also available."""
        return [(service.number, service.availability.available) for service in self.services]

    def use_health(self, health: HealthOptions) -> None:
        """How much space a partition that found the disk full waits for from now on, and how long a look at it is believed."""
        self._room.probe.min_free_bytes = health.min_free_bytes
        self._room.max_age = health.max_age

    def reopen(self, partition: int) -> None:
        """Close and open one partition again: what is needed after a failed sync.  Raises NotAssignedError, DiskError."""
        with self._lock:
            service = self._loaded(partition)
            self._hold(service)
            try:
                self.storage.reopen(partition)
            finally:
                service.resume(self.storage.partitions[partition])

    # --- opening and closing -----------------------------------------------------------------------------------------

    def close(self, seconds: float | None = None) -> bool:
        """Execute what is queued, then close every partition and the directory; a second call does nothing.

        False when that took longer than `seconds`: everybody was answered, but what hangs in the system holds its partition's
        files, and the directory stays locked until the process ends.  Raises DiskWriteError.
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
        """Stop a partition's work, or say that it hangs: then others must not wait for this one."""
        if not service.hold(self.options.stall_seconds):
            raise DeniedError(busy(service.number, self.options.stall_seconds))

    def _loaded(self, number: int) -> PartitionService:
        service = self._services.get(number)
        if service is None:
            raise NotLoadedError(number)
        return service

    def _checked(self, partitions: Iterable[int]) -> list[int]:
        """Each number once, in order, all of them known to the control file."""
        if self._closing:
            raise DeniedError(closed())
        numbers = list(dict.fromkeys(partitions))
        for number in numbers:
            self.storage.info(number)
        return numbers
