"""Session fences: the highest session that was let in, durable before the request that raised it is answered.

Waltz protects a partition from a server that was replaced by its session: once a request of a higher session was seen, lower ones
are refused.  Release 0.13.2 remembers the highest one in memory only, so that after a restart of the node a server of long ago
may append again, until the right one says something.  Here it stands in a file of our own (`formats.fence`), and it never falls.

The file is made when the first session is raised; a storage directory that never served a node has none.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import PurePath
from types import TracebackType

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DamageError, InvalidRequestError, RefusedError, SyncFailedError
from waltzctl.engine.log import places
from waltzctl.formats.fence import (
    FENCE_FILE_NAME,
    FENCE_HEADER,
    FENCE_PAIR,
    FENCE_SLOT,
    NO_SESSION,
    FenceError,
    FencePair,
    decode_fence_header,
    decode_pair,
    encode_fence_header,
    encode_slot,
    fence_file_size,
    pair_offset,
)


def fence_path(storage: PurePath) -> PurePath:
    """Where the fences of a storage directory are, or would be."""
    return storage / disk.STATE_DIRECTORY / FENCE_FILE_NAME


class SessionFences:
    """The fences of a storage directory that is open.  Thread-safe.

    Every question is answered from the file, so that several of these may be open at once in the process that holds the
    directory.
    """

    def __init__(self, path: PurePath, num_partitions: int, file: disk.WritableFile | None) -> None:
        self.path = path
        self._num_partitions = num_partitions
        self._file = file
        self._failed: SyncFailedError | None = None
        self._closed = False
        self._lock = threading.Lock()

    @classmethod
    def open(cls, storage: PurePath, num_partitions: int) -> SessionFences:
        """Open the fences of a storage directory; what stands in the file is durable on return.

        Raises DamageError for a file that cannot be understood or is for another number of partitions, DiskError.
        """
        path = fence_path(storage)
        return cls(path, num_partitions, _open_file(path, num_partitions))

    def get(self, partition: int) -> int:
        """The highest session that was let in; -1 when there was none.

        Raises DamageError when it can no longer be told, InvalidRequestError, DiskReadError.
        """
        with self._lock:
            return self._pair(partition).session_id

    def raise_to(self, partition: int, session_id: int) -> None:
        """Make sure that sessions below `session_id` stay out; durable on return.  Never lowers.

        Raises DamageError, InvalidRequestError for a negative session, DiskWriteError; after a SyncFailedError every further
        raise fails until the fences are opened again.
        """
        with self._lock:
            if session_id < 0:
                raise InvalidRequestError(f"{self.path}: partition {partition}: session {session_id} is no session")
            pair = self._pair(partition)
            if self._failed is not None:
                raise self._failed
            if session_id <= pair.session_id:
                return
            if self._file is None:
                self._file = self._create()
            place = pair_offset(partition) + pair.next_slot * FENCE_SLOT.size
            self._write(place, encode_slot(partition, session_id))

    def forget(self, partition: int) -> None:
        """Drop a partition's fence, durably: its files are gone.  Raises InvalidRequestError, DiskWriteError."""
        with self._lock:
            if self._file is None:
                self._check(partition)
                return
            raw = self._read(partition)
            if any(raw):
                if self._failed is not None:
                    raise self._failed
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
            self._failed = error
            raise


def forget_fence(storage: PurePath, num_partitions: int, partition: int) -> None:
    """Drop the fence of a partition whose files are deleted.  Raises DamageError, DiskError."""
    with SessionFences.open(storage, num_partitions) as fences:
        fences.forget(partition)


def damaged_fences(storage: PurePath, num_partitions: int) -> Iterator[tuple[int | None, DamageError]]:
    """What keeps a node from opening the directory (None), or what is asked of a partition from being answered.

    Nothing is written, and no lock is held.  Raises DiskReadError.
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


def _check_file(header: bytes, size: int, num_partitions: int) -> None:
    """Raises FenceError for a file that is not one of a directory with so many partitions."""
    found = decode_fence_header(header)
    if found != num_partitions:
        raise FenceError(f"it is for {found} partitions, and there are {num_partitions}")
    if size != (expected := fence_file_size(num_partitions)):
        raise FenceError(f"it has {size} bytes instead of {expected}")


def _open_file(path: PurePath, num_partitions: int) -> disk.WritableFile | None:
    try:
        file = disk.WritableFile.open(path)
    except FileNotFoundError:
        return None
    try:
        _check_file(file.read_at(0, FENCE_HEADER.size), file.size(), num_partitions)
        file.sync()
    except FenceError as error:
        file.close()
        raise _damaged(path, error) from error
    except BaseException:
        file.close()
        raise
    return file


def _damaged(path: PurePath, error: FenceError) -> DamageError:
    return DamageError(
        f"{path}: cannot be understood: {error}",
        advice="make sure that no server of an older session is running, then remove the file",
    )
