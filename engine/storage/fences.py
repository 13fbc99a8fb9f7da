"""Session fences: the highest session admitted to each partition, durable before the request that raised it is answered.

Sessions fence off a server that was replaced: once a request of a higher session was seen, those of lower sessions are refused.
Release 0.13.2 keeps the highest session in memory only, so after a restart of the node an old server can append again, until the
present one sends a request.  Here the highest session is stored in a file (`formats.fence`), and it never falls.

The file is created when the first session is raised; a storage directory that never served a node has none.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import PurePath
from types import TracebackType

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import OTHER_PROGRAM, DamageError, InvalidRequestError, RefusedError, SyncFailedError
from waltzctl.engine.log import places
from waltzctl.engine.storage.failed_syncs import (
    FENCES,
    forget_failed_sync,
    note_failed_sync,
    sync_failed,
    write_again,
)
from waltzctl.formats.fence import (
    FENCE_FILE_NAME,
    FENCE_HEADER,
    FENCE_PAIR,
    FENCE_SLOT,
    NO_SESSION,
    FenceError,
    FencePair,
    FenceVersionError,
    decode_fence_header,
    decode_pair,
    encode_fence_header,
    encode_slot,
    fence_file_size,
    pair_offset,
)

START_AGAIN = "look after the disk, then restart the node"
"""What to do about a file of the whole directory that could not be synced."""


def fence_path(storage: PurePath) -> PurePath:
    """Path of a storage directory's fence file, whether or not it exists."""
    return storage / disk.STATE_DIRECTORY / FENCE_FILE_NAME


class SessionFences:
    """The fences of an open storage directory.  Thread-safe.

    Nothing is cached: every call reads the file, so several instances may be open at once in the process that holds the
    directory's lock.
    """

    def __init__(self, path: PurePath, num_partitions: int, file: disk.WritableFile | None) -> None:
        self.path = path
        self._num_partitions = num_partitions
        self._file = file
        self._failed: SyncFailedError | None = None
        # of the raise whose sync failed: its partition and the session before, which the file may not show any more
        self._not_raised: tuple[int, int] | None = None
        self._closed = False
        self._lock = threading.Lock()

    @classmethod
    def open(cls, storage: PurePath, num_partitions: int) -> SessionFences:
        """Open the fences of a storage directory; the contents of the file are durable on return.

        Raises DamageError for a damaged file, or one for another number of partitions; DiskError.
        """
        path = fence_path(storage)
        return cls(path, num_partitions, _open_file(storage, num_partitions))

    @property
    def failed(self) -> SyncFailedError | None:
        """The failed sync since which no session is admitted that is newer than the present one; None: there was none."""
        return self._failed

    def get(self, partition: int) -> int:
        """The highest session admitted; -1 when there was none.  One whose sync failed, which the file shows, is none.

        Raises DamageError when the entry is damaged, InvalidRequestError, DiskReadError.
        """
        with self._lock:
            found = self._pair(partition).session_id
            return self._not_raised[1] if self._not_raised and self._not_raised[0] == partition else found

    def raise_to(self, partition: int, session_id: int) -> None:
        """Refuse sessions below `session_id` from now on; durable on return.  Never lowers the fence.

        Raises DamageError, InvalidRequestError for a negative session, DiskWriteError; after a SyncFailedError every further
        raise fails until the fences are opened again.
        """
        with self._lock:
            if session_id < 0:
                raise InvalidRequestError(f"{self.path}: partition {partition}: session {session_id} is no session")
            pair = self._pair(partition)
            if self._failed is not None:
                raise self._failed.with_traceback(None)  # else the traceback grows with every session that asks
            if session_id <= pair.session_id:
                return
            if self._file is None:
                self._file = self._create()
            place = pair_offset(partition) + pair.next_slot * FENCE_SLOT.size
            try:
                self._write(place, encode_slot(partition, session_id))
            except SyncFailedError:
                self._not_raised = partition, pair.session_id
                raise

    def forget(self, partition: int) -> None:
        """Drop the fence of a partition whose files are deleted, durably.  Raises InvalidRequestError, DiskWriteError."""
        with self._lock:
            if self._file is None:
                self._check(partition)
                return
            raw = self._read(partition)
            if any(raw):
                if self._failed is not None:
                    raise self._failed.with_traceback(None)
                self._write(pair_offset(partition), bytes(FENCE_PAIR.size))

    def close(self) -> None:
        """Close the file; everything is durable already.  A second call does nothing."""
        with self._lock:
            self._closed = True
            if self._file is not None:
                self._file.close()

    def __enter__(self) -> SessionFences:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check(self, partition: int) -> None:
        if self._closed:
            raise RefusedError(f"{self.path}: the session fences are closed")
        if not 0 <= partition < self._num_partitions:
            raise InvalidRequestError(
                f"{self.path}: partition {partition}: there are partitions 0 to {self._num_partitions - 1}"
            )

    def _read(self, partition: int) -> bytes:
        self._check(partition)
        assert self._file is not None
        return self._file.read_at(pair_offset(partition), FENCE_PAIR.size)

    def _pair(self, partition: int) -> FencePair:
        self._check(partition)
        if self._file is None:
            return FencePair(NO_SESSION, 0)
        try:
            return decode_pair(self._read(partition), partition)
        except FenceError as error:
            raise _damaged(self.path, error) from error

    def _create(self) -> disk.WritableFile:
        size = fence_file_size(self._num_partitions)
        header = encode_fence_header(self._num_partitions)
        disk.write_whole(self.path, header + bytes(size - len(header)))
        return disk.WritableFile.open(self.path)

    def _write(self, offset: int, data: bytes) -> None:
        assert self._file is not None
        self._file.write_at(offset, data)
        try:
            self._file.sync()
        except SyncFailedError as error:
            error.advice = error.advice or START_AGAIN
            self._failed = error
            note_failed_sync(self.path.parent.parent, FENCES)
            raise


def forget_fence(storage: PurePath, num_partitions: int, partition: int) -> None:
    """Drop the fence of a partition whose files are deleted.  Raises DamageError, DiskError."""
    with SessionFences.open(storage, num_partitions) as fences:
        fences.forget(partition)


def damaged_fences(storage: PurePath, num_partitions: int) -> Iterator[tuple[int | None, DamageError]]:
    """Damage of the fence file, each with its partition, or with None where a node cannot open the directory because of it.

    Writes nothing and takes no lock.  Raises DiskReadError.
    """
    path, size = fence_path(storage), fence_file_size(num_partitions)
    try:
        data = places.read_range(path, 0, size + 1)
    except FileNotFoundError:
        return
    try:
        _check_file(data[: FENCE_HEADER.size], len(data), num_partitions)
    except FenceError as error:
        yield None, _damaged(path, error)
        return
    for partition in range(num_partitions):
        offset = pair_offset(partition)
        try:
            decode_pair(data[offset : offset + FENCE_PAIR.size], partition)
        except FenceError as error:
            yield partition, _damaged(path, error)


def stored_session(storage: PurePath, num_partitions: int, partition: int) -> int:
    """A partition's session in the file; NO_SESSION where there is no file.  Writes nothing and takes no lock.

    Raises DamageError, DiskReadError.
    """
    path, size = fence_path(storage), fence_file_size(num_partitions)
    try:
        data = places.read_range(path, 0, size + 1)
    except FileNotFoundError:
        return NO_SESSION
    try:
        _check_file(data[: FENCE_HEADER.size], len(data), num_partitions)
        begin = pair_offset(partition)
        return decode_pair(data[begin : begin + FENCE_PAIR.size], partition).session_id
    except FenceError as error:
        raise _damaged(path, error) from error


def _check_file(header: bytes, size: int, num_partitions: int) -> None:
    """Raise FenceError unless header and size are those of a fence file for this number of partitions."""
    found = decode_fence_header(header)
    if found != num_partitions:
        raise FenceError(f"it is for {found} partitions, and there are {num_partitions}")
    if size != (expected := fence_file_size(num_partitions)):
        raise FenceError(f"it has {size} bytes instead of {expected}")


def _open_file(storage: PurePath, num_partitions: int) -> disk.WritableFile | None:
    path = fence_path(storage)
    with contextlib.ExitStack() as until_open:  # the file's own exit: an error of close hides no failed sync
        try:
            file = until_open.enter_context(disk.WritableFile.open(path))
        except FileNotFoundError:
            return None
        try:
            _check_file(file.read_at(0, FENCE_HEADER.size), file.size(), num_partitions)
            if sync_failed(storage, FENCES):
                write_again(file)
                forget_failed_sync(storage, FENCES)
            else:
                file.sync()
        except FenceError as error:
            raise _damaged(path, error) from error
        except SyncFailedError:
            note_failed_sync(storage, FENCES)
            raise
        until_open.pop_all()
        return file


def _damaged(path: PurePath, error: FenceError) -> DamageError:
    removing = "make sure that no server of an older session is running, then remove the file"
    return DamageError(
        f"{path}: cannot be understood: {error}",
        advice=OTHER_PROGRAM if isinstance(error, FenceVersionError) else removing,
    )
