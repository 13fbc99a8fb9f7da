"""New storage directories for a cluster.

The control file is written last, by rename: before that the directory is not a storage directory, and after that all partitions
in it are durable.  With several directories, the control files are written once everything else is there, so that a failure
before that can be undone as a whole.  (Release 0.13.2 takes a control file that is too short for a new one, and overwrites it
with initial values.)
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.file_status import is_named, names_in
from waltzctl.engine.durable.new_directory import check_new
from waltzctl.engine.durable.work_directory import lock_directory
from waltzctl.engine.errors import DiskError, InvalidRequestError, RefusedError
from waltzctl.engine.storage.control_file import create_control_file
from waltzctl.engine.storage.segment_files import create_segment
from waltzctl.formats.control import (
    CONTROL_FILE_NAME,
    FLAG_ASSIGNED,
    FLAG_AVAILABLE,
    MAX_PARTITIONS,
    ControlFile,
    Layout,
    initial_control,
)
from waltzctl.formats.segment import HEADER_SIZE, SegmentHeader, index_name, segment_name


@dataclass(frozen=True, slots=True)
class CreatedDirectory:
    """A new storage directory and the partitions assigned to it."""

    path: Path
    assigned: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClusterResult:
    """Result of `create_cluster`."""

    cluster_key: uuid.UUID
    num_partitions: int
    layout: Layout
    directories: tuple[CreatedDirectory, ...]


def create_cluster(
    paths: Sequence[Path],
    *,
    num_partitions: int,
    cluster_key: uuid.UUID | None = None,
    layout: Layout = Layout.DOCUMENTED,
    assign: Collection[int] | None = None,
) -> ClusterResult:
    """Make storage directories with one cluster key for all, a random one unless given.

    A directory that is missing is made, but not its parent; one that exists must be empty.  `assign`: the partitions of each
    directory, all by default.  Raises InvalidRequestError; RefusedError when a directory is not empty, before anything is made;
    DiskWriteError, after which everything that was made is removed again.
    """
    if not paths:
        raise InvalidRequestError("name at least one directory")
    if not 0 < num_partitions <= MAX_PARTITIONS:
        raise InvalidRequestError(f"the number of partitions must be 1 to {MAX_PARTITIONS}, not {num_partitions}")
    chosen = tuple(range(num_partitions)) if assign is None else tuple(sorted(set(assign)))
    if beyond := [p for p in chosen if not 0 <= p < num_partitions]:
        listed = ", ".join(map(str, beyond))
        raise InvalidRequestError(f"partition {listed}: there are partitions 0 to {num_partitions - 1}")
    real = [Path(os.path.realpath(path)) for path in paths]
    if len(set(real)) != len(paths):
        raise InvalidRequestError("a directory is named twice")
    for path, place in zip(paths, real, strict=True):
        if outer := [other for other, above in zip(paths, real, strict=True) if above in place.parents]:
            raise InvalidRequestError(f"{path}: lies inside {outer[0]}, which is to be a storage directory of its own")
    for path in paths:
        check_new(path, renamed=False, not_beside=CONTROL_FILE_NAME)
    key = cluster_key or uuid.uuid4()
    made: list[tuple[Path, Path]] = []
    whole: list[Path] = []
    held = contextlib.ExitStack()
    try:
        for path in paths:
            _make_partitions(path, chosen, key, made, held)
        for path in paths:
            _refuse_control_file_of_others(path, made, key)
            create_control_file(path / CONTROL_FILE_NAME, _new_control(layout, key, num_partitions, chosen))
            whole.append(path)
    except BaseException as error:
        _take_back(made)
        if isinstance(error, DiskError):  # it may have come behind the last rename
            whole = [path for path in paths if (path / CONTROL_FILE_NAME).exists()]
        if whole and isinstance(error, DiskError | RefusedError):  # behind a refusal others may be another run's
            kept = f"made and kept: {', '.join(map(str, whole))}; the same with --key {key} makes the others"
            error.advice = kept if isinstance(error, DiskError) else f"{error.advice}; {kept}"
        raise
    finally:
        held.close()
    return ClusterResult(key, num_partitions, layout, tuple(CreatedDirectory(path, chosen) for path in paths))


def _make_partitions(
    path: Path,
    assigned: Collection[int],
    key: uuid.UUID,
    made: list[tuple[Path, Path]],
    held: contextlib.ExitStack,
) -> None:
    """Make everything but the control file.  Adds each directory to `made`, as (storage directory, directory).

    The storage directory is locked until `held` is closed.  Raises RefusedError when another run is, or was, faster.
    """
    if not path.exists():
        _make_directory(path, path, made)
        disk.sync_directory(path.absolute().parent)
    _hold(path, made, held)
    for number in assigned:
        directory = path / str(number)
        _make_directory(directory, path, made)
        create_segment(directory, partition=number, first_transaction_id=0, cluster_key=key)
    disk.sync_directory(path)


def _hold(path: Path, made: list[tuple[Path, Path]], held: contextlib.ExitStack) -> None:
    """Lock an empty storage directory.

    Without partitions nothing else keeps two runs apart that found it empty: the later control file would replace the earlier.
    """
    try:
        with contextlib.suppress(OSError):  # a file system without such locks
            lock_directory(path, held)
        check_new(path, renamed=False)
    except RefusedError:
        if (path, path) in made:
            made.remove((path, path))  # it is the other run's by now
        raise


def _refuse_control_file_of_others(path: Path, made: list[tuple[Path, Path]], key: uuid.UUID) -> None:
    """Raise RefusedError where a control file has come: this one would replace it.

    Another run may have made it where the file system has no locks (NFS), or a restore may have put a whole directory in the
    place of the empty one.  What was made here is removed from it, but no partition into which somebody has copied another one.
    """
    if not is_named(path / CONTROL_FILE_NAME):
        return
    for storage, directory in reversed(made):
        if storage == path != directory:
            with contextlib.suppress(DiskError, OSError):
                if _is_as_made(directory, key):
                    disk.remove_tree(directory)
    raise RefusedError(
        f"{path}: somebody else made a storage directory there meanwhile; it was left as it is",
        advice="name another directory",
    )


def _is_as_made(directory: Path, key: uuid.UUID) -> bool:
    """Whether a partition has an empty segment of this cluster and nothing else.  Raises OSError, DiskReadError."""
    files = [directory / name for name in (names_in(directory) or ())]
    return {one.name for one in files} == {segment_name(0), index_name(0)} and all(
        one.stat().st_size == HEADER_SIZE and SegmentHeader.decode(one.read_bytes()).cluster_key == key for one in files
    )


def _make_directory(directory: Path, storage: Path, made: list[tuple[Path, Path]]) -> None:
    made.append((storage, directory))  # before it is made, as an interrupt may come right after that
    try:
        disk.make_directory(directory)
    except DiskError:
        made.pop()  # it was not made here
        raise


def _new_control(layout: Layout, key: uuid.UUID, num_partitions: int, assigned: Collection[int]) -> ControlFile:
    control = initial_control(layout, key, num_partitions, disk.now_ms())
    infos = list(control.partitions)
    for number in assigned if layout.has_flags else ():
        struct, written = infos[number].updated(flags=FLAG_AVAILABLE | FLAG_ASSIGNED)
        infos[number] = infos[number].with_struct(struct, written)
    return replace(control, partitions=tuple(infos))


def _take_back(made: Sequence[tuple[Path, Path]]) -> None:
    """Remove what was made, ignoring errors: remains would make the next attempt fail.

    A directory with a control file is complete, and may be in use: it stays.
    """
    for storage, directory in reversed(made):
        with contextlib.suppress(DiskError):
            if (storage / CONTROL_FILE_NAME).exists():
                continue
            half_made = storage / f"{CONTROL_FILE_NAME}{disk.TEMPORARY_SUFFIX}"  # left by an interrupt
            if half_made.exists():
                disk.unlink(half_made)
            if directory == storage:
                disk.remove_directory(directory)  # fails when other files were put there meanwhile
            else:
                disk.remove_tree(directory)
