"""New storage directories for a cluster.

The control file comes last, under a temporary name first: until it is there the directory is nothing of Waltz, and from
then on everything that it speaks of is durable.  Those of several directories come when all else is there, so that what fails on
the way can be taken back as a whole.  (Release 0.13.2 takes a control file that is too short for a new one and
writes initial values over it.)
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.new_directory import check_new
from waltzctl.engine.errors import DiskError, InvalidRequestError, WaltzError
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


@dataclass(frozen=True, slots=True)
class CreatedDirectory:
    """A new storage directory and the partitions assigned to it."""

    path: Path
    assigned: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClusterResult:
    """What `create_cluster` made."""

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
    """Make storage directories with one cluster key (a random one unless given) for all.

    Directories that are missing are made, one level deep; others must be empty.  `assign`: partitions of every directory,
    all by default.  Raises InvalidRequestError, RefusedError before anything is made when one is not empty,
    DiskWriteError; what was made is then taken away again.
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
    try:
        for path in paths:
            _make_partitions(path, chosen, key, made)
        for path in paths:
            create_control_file(path / CONTROL_FILE_NAME, _new_control(layout, key, num_partitions, chosen))
    except BaseException as error:
        _take_back(made)
        whole = [path for path in paths if (path / CONTROL_FILE_NAME).exists()]
        if whole and isinstance(error, WaltzError):
            error.advice = f"made and kept: {', '.join(map(str, whole))}; the same with --key {key} makes the others"
        raise
    return ClusterResult(key, num_partitions, layout, tuple(CreatedDirectory(path, chosen) for path in paths))


def _make_partitions(path: Path, assigned: Collection[int], key: uuid.UUID, made: list[tuple[Path, Path]]) -> None:
    """Everything but the control file.  `made` gets each directory that is made, with the storage directory that it is for."""
    if not path.exists():
        _make_directory(path, path, made)
        disk.sync_directory(path.absolute().parent)
    for number in assigned:
        directory = path / str(number)
        _make_directory(directory, path, made)
        create_segment(directory, partition=number, first_transaction_id=0, cluster_key=key)
    disk.sync_directory(path)


def _make_directory(directory: Path, storage: Path, made: list[tuple[Path, Path]]) -> None:
    made.append((storage, directory))  # first: an interrupt may come behind the making
    try:
        disk.make_directory(directory)
    except DiskError:
        made.pop()  # what stands there is somebody else's
        raise


def _new_control(layout: Layout, key: uuid.UUID, num_partitions: int, assigned: Collection[int]) -> ControlFile:
    control = initial_control(layout, key, num_partitions, disk.now_ms())
    infos = list(control.partitions)
    for number in assigned if layout.has_flags else ():
        struct, written = infos[number].updated(flags=FLAG_AVAILABLE | FLAG_ASSIGNED)
        infos[number] = infos[number].with_struct(struct, written)
    return replace(control, partitions=tuple(infos))


def _take_back(made: Sequence[tuple[Path, Path]]) -> None:
    """Remove what was made, as far as the system lets it: what stays behind would keep the next attempt from the place.

    A directory that has its control file is whole, and somebody may be using it: it stays.
    """
    for storage, directory in reversed(made):
        with contextlib.suppress(DiskError):
            if (storage / CONTROL_FILE_NAME).exists():
                continue
            half_made = storage / f"{CONTROL_FILE_NAME}{disk.TEMPORARY_SUFFIX}"  # by an interrupt while it is made
            if half_made.exists():
                disk.unlink(half_made)
            if directory == storage:
                disk.remove_directory(directory)  # refused where somebody put something there meanwhile
            else:
                disk.remove_tree(directory)
