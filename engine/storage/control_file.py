"""The control file of an open storage directory: validated once, then updated one struct at a time.

Each partition has a pair of structs, one of which is in force (`formats.control`).  A change of session, marks or flags writes
the struct that is *not* in force, in one write, and syncs; so a torn write damages the older struct only.  A reset writes both,
one after the other with a sync between, so that one valid struct is there at every instant; release 0.13.2 writes both before it
syncs.

After a failed sync the contents of the disk are unknown: every further change is refused until the file is opened again.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from waltzctl.engine.durable import disk, file_status
from waltzctl.engine.durable.directory_lock import moved
from waltzctl.engine.errors import (
    ConcurrentUpdateError,
    DamageError,
    DiskWriteError,
    InvalidRequestError,
    MarkWouldFallError,
    MismatchError,
    NotWaltzError,
    PartitionQuarantinedError,
    SyncFailedError,
    write_error,
)
from waltzctl.engine.findings import Finding
from waltzctl.engine.findings.control_files import (
    control_extended,
    control_short,
    control_size,
    info_findings,
)
from waltzctl.engine.log.view import read_control
from waltzctl.engine.storage.failed_syncs import (
    CONTROL,
    forget_failed_sync,
    note_failed_sync,
    sync_failed,
    write_again,
)
from waltzctl.formats.control import (
    CONTROL_HEADER,
    CONTROL_VERSION,
    ControlFile,
    Layout,
    PartitionInfo,
    PartitionStruct,
    initial_info,
)


def create_control_file(path: Path, control: ControlFile) -> None:
    """Write a new control file: whole under a temporary name, synced, renamed, directory synced.  Raises DiskWriteError."""
    disk.write_whole(path, control.encode())


def settle_control_file(path: Path) -> None:
    """Make the control file durable before it is read; write it again where a sync failed before.  Raises DiskError.

    A process that died may have left its last writes in the page cache only; a power loss would then take back sessions and marks
    that were told.
    """
    try:
        with disk.WritableFile.open(path) as file:
            if sync_failed(path.parent, CONTROL):
                write_again(file)
                forget_failed_sync(path.parent, CONTROL)
            else:
                file.sync()
    except SyncFailedError:
        note_failed_sync(path.parent, CONTROL)
        raise


def load_control(path: Path, *, expected_key: uuid.UUID | None, expected_partitions: int | None) -> ControlFile:
    """Read a control file and check the header and the length.

    Raises NotWaltzError when there is none, DamageError when it is shorter than its header or its length fits neither
    layout, MismatchError when version, cluster key or number of partitions differ from what is expected, DiskReadError.
    """
    control = read_control(path)
    if control is None:
        if not path.exists():
            raise NotWaltzError(f"{path.parent}: not a Waltz storage directory: there is no {path.name}")
        raise _unusable(control_short(path, path.stat().st_size, path.parent))
    header = control.header
    if header.version != CONTROL_VERSION:
        raise MismatchError(
            f"{path}: format version {header.version}, and only {CONTROL_VERSION} is known",
            advice="run waltzctl verify: a damaged version can be restored",
        )
    if not control.size_fits:
        raise _unusable(control_size(path, control, path.parent))
    if expected_key is not None and header.cluster_key != expected_key:
        raise MismatchError(
            f"{path}: the cluster key does not match: {header.cluster_key} here, {expected_key} expected",
            advice="this directory belongs to another cluster",
        )
    if expected_partitions is not None and header.num_partitions != expected_partitions:
        raise MismatchError(
            f"{path}: the number of partitions does not match: {header.num_partitions} here, {expected_partitions} expected"
        )
    return control


def _unusable(finding: Finding) -> DamageError:
    message = f"{finding.path}: {finding.message}"
    return DamageError(message, [finding], advice="run waltzctl verify, then recover or restore a backup")


class OpenControlFile:
    """A control file open for updates.  Thread-safe.  The caller holds the directory's lock."""

    def __init__(self, path: Path, control: ControlFile, file: disk.WritableFile) -> None:
        self.path = path
        self._header = control.header
        self._layout = control.layout
        self._infos = list(control.partitions)
        self._extended = control_extended(path, control, path.parent) if control.extended else None
        self._file = file
        self._failed: SyncFailedError | None = None
        self._lock = threading.RLock()

    @classmethod
    def open(
        cls, path: Path, *, expected_key: uuid.UUID | None = None, expected_partitions: int | None = None
    ) -> OpenControlFile:
        """Validate and open; writes nothing.  Raises as `load_control`, and DiskWriteError."""
        control = load_control(path, expected_key=expected_key, expected_partitions=expected_partitions)
        return cls(path, control, disk.WritableFile.open(path))

    @property
    def control(self) -> ControlFile:
        """The present contents of the file."""
        return ControlFile(
            self._layout, self._header, tuple(self._infos), self._layout.file_size(len(self._infos)), True
        )

    @property
    def layout(self) -> Layout:
        """Layout of the file's body."""
        return self._layout

    @property
    def cluster_key(self) -> uuid.UUID:
        """Key of the directory's cluster."""
        return self._header.cluster_key

    @property
    def num_partitions(self) -> int:
        """Number of partitions of the cluster."""
        return self._header.num_partitions

    @property
    def journaled(self) -> bool:
        """Whether acknowledged records may be in a commit journal and not yet in their segments."""
        return self._header.journaled

    @property
    def file_findings(self) -> tuple[Finding, ...]:
        """Findings of the opening about the file as a whole."""
        return () if self._extended is None else (self._extended,)

    def info(self, partition: int) -> PartitionInfo:
        """A partition's info.  Raises InvalidRequestError for a number that the cluster does not have."""
        if not 0 <= partition < len(self._infos):
            raise InvalidRequestError(
                f"partition {partition}: the control file has partitions 0 to {len(self._infos) - 1}"
            )
        return self._infos[partition]

    def findings(self, partition: int, storage: Path) -> tuple[Finding, ...]:
        """Findings about a partition's info."""
        return tuple(info_findings(self.path, self._layout, self.info(partition), storage))

    @property
    def failed(self) -> SyncFailedError | None:
        """The failed sync since which nothing is written; None: there was none."""
        return self._failed

    def check_in_place(self) -> None:
        """Raise DiskWriteError when the directory was moved, or another one was put at its path, a copy perhaps.

        What is made by name from now on, such as a segment, would get into the other directory, and transactions that were
        acknowledged together would lie apart.
        """
        try:
            if file_status.is_still_at(self.path, self._file.fileno()):
                return
        except OSError as error:  # a directory above that may no longer be entered, for instance
            raise write_error(self.path, None, error) from error
        raise write_error(self.path, None, moved())

    def set_low_water_mark(
        self, partition: int, session_id: int, low_water_mark: int, local_low_water_mark: int
    ) -> None:
        """Start, or confirm, a session: write its id and both marks, durably.

        The marks never fall, but the local one may be above the other (release 0.13.2).  Raises ConcurrentUpdateError for a
        session older than the present one, MarkWouldFallError, PartitionQuarantinedError when no struct is in force,
        DiskWriteError.
        """
        with self._lock:
            current = self._current(partition)
            if session_id < current.session_id:
                raise ConcurrentUpdateError(
                    f"{self.path}: partition {partition}: session {session_id} is older than session {current.session_id},"
                    " which is in force",
                    advice="start a newer session",
                )
            for name, new, old in (
                ("low-water mark", low_water_mark, current.low_water_mark),
                ("local low-water mark", local_low_water_mark, current.local_low_water_mark),
            ):
                if new < old:
                    raise MarkWouldFallError(
                        f"{self.path}: partition {partition}: unable to set the {name} to {new}: it is {old}"
                    )
            self._update(
                partition,
                session_id=session_id,
                low_water_mark=low_water_mark,
                local_low_water_mark=local_low_water_mark,
            )

    def set_flag(self, partition: int, flag: int, value: bool) -> None:
        """Set or clear a flag of the released layout, durably; writes even when nothing changes, as release 0.13.2 does.

        Raises ValueError in the documented layout, which has no flags; PartitionQuarantinedError; DiskWriteError.
        """
        with self._lock:
            flags = self._current(partition).flags
            if flags is None:
                raise ValueError(f"{self.path}: the documented layout has no flags")
            self._update(partition, flags=flags | flag if value else flags & ~flag)

    def lower_local_low_water_mark(self, partition: int, mark: int) -> None:
        """Lower the local low-water mark to `mark`, durably; the caller has consented to the loss of the transactions above it.

        Raises PartitionQuarantinedError, DiskWriteError.
        """
        with self._lock:
            current = self._current(partition)
            if mark >= current.local_low_water_mark:
                return
            self._update(partition, local_low_water_mark=mark)
            if not self._layout.has_flags:  # in this layout the higher marks win, so both structs have to be lowered
                lowered = replace(current, local_low_water_mark=mark).sealed()
                for number in (1, 2):
                    if self._infos[partition].structs[number - 1].marks != lowered.marks:
                        self._write(partition, number, lowered)

    def set_journaled(self, journaled: bool) -> None:
        """Set or clear the mark that acknowledged records may be in a commit journal only, durably.  Raises DiskWriteError."""
        with self._lock:
            header = replace(self._header, journaled=journaled)
            if self._failed is not None:
                raise self._failed.with_traceback(None)
            place, size = CONTROL_HEADER.offset_of("num_partitions"), CONTROL_HEADER.size_of("num_partitions")
            self._file.write_at(place, header.encode()[place : place + size])
            self._sync()
            self._header = header

    def reset(self, partition: int) -> None:
        """Write the initial values into both structs, one after the other, each synced.  Raises DiskWriteError.

        The bytes are those of a reset by release 0.13.2: the struct that was in force gets sequence -1, the other one 0.
        """
        with self._lock:
            info = self.info(partition)
            if info.stored_partition != partition:
                raise self._no_struct(partition, f"its info says partition {info.stored_partition}")
            older, newer = initial_info(self._layout, partition).structs
            first = 3 - (info.current or 1)
            present = info.current_struct
            if present is not None and present.sequence is not None and present.sequence == newer.sequence:
                # sequence 0 is in force already, and between the two writes a second one would be a tie
                newer = replace(newer, sequence=1).sealed()
                older = replace(older, sequence=0).sealed()
            self._write(partition, first, newer)
            self._write(partition, 3 - first, older)

    def close(self) -> None:
        """Close the file; everything is durable already."""
        self._file.close()

    def __enter__(self) -> OpenControlFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _current(self, partition: int) -> PartitionStruct:
        info = self.info(partition)
        if info.stored_partition != partition:
            raise self._no_struct(partition, f"its info says partition {info.stored_partition}")
        current = info.current_struct
        if current is None:
            raise self._no_struct(partition, f"no struct of its pair is in force ({info.choice})")
        return current

    def _no_struct(self, partition: int, why: str) -> PartitionQuarantinedError:
        return PartitionQuarantinedError(
            f"{self.path}: partition {partition}: {why}",
            self.findings(partition, self.path.parent),
            advice="run waltzctl recover",
        )

    def _update(self, partition: int, **changes: int) -> None:
        number, written = self._infos[partition].updated(**changes)
        self._write(partition, number, written)

    def _write(self, partition: int, number: int, written: PartitionStruct) -> None:
        """Write one struct in one write and sync; the copy in memory is updated after that."""
        if self._failed is not None:
            raise self._failed.with_traceback(None)  # else the traceback grows with every call that raises it
        self.check_in_place()
        self._file.write_at(self._layout.struct_offset(partition, number), written.encode())
        self._sync()
        self._infos[partition] = self._infos[partition].with_struct(number, written)

    def _sync(self) -> None:
        try:
            self._file.sync()
        except SyncFailedError as error:
            self._failed = error
            self.note_failed_sync(CONTROL)
            raise

    def note_failed_sync(self, what: int | str) -> None:
        """See `engine.storage.failed_syncs`; a copy that is in the directory's place by now has nothing to do with it."""
        with contextlib.suppress(DiskWriteError):
            self.check_in_place()
            note_failed_sync(self.path.parent, what)
