"""New storage directories for a cluster.

The control file comes last, under a temporary name first: until it is there the directory is nothing of Waltz, and from
then on everything that it speaks of is durable.  (Release 0.13.2 takes a control file that is too short for a new one and
writes initial values over it.)
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.new_directory import check_new
from waltzctl.engine.errors import InvalidRequestError
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
    all by default.  Raises InvalidRequestError, RefusedError before anything is made when one is not empty, DiskWriteError.
    """
    if not paths:
        raise InvalidRequestError("name at least one directory")
    if not 0 < num_partitions <= MAX_PARTITIONS:
        raise InvalidRequestError(f"the number of partitions must be 1 to {MAX_PARTITIONS}, not {num_partitions}")
    chosen = tuple(range(num_partitions)) if assign is None else tuple(sorted(set(assign)))
    if beyond := [p for p in chosen if not 0 <= p < num_partitions]:
        listed = ", ".join(map(str, beyond))
        raise InvalidRequestError(f"partition {listed}: there are partitions 0 to {num_partitions - 1}")
    if len({os.path.realpath(path) for path in paths}) != len(paths):
        raise InvalidRequestError("a directory is named twice")
    for path in paths:
        check_new(path, renamed=False)
    key = cluster_key or uuid.uuid4()
    for path in paths:
        _create_directory(path, initial_control(layout, key, num_partitions, disk.now_ms()), chosen)
    return ClusterResult(key, num_partitions, layout, tuple(CreatedDirectory(path, chosen) for path in paths))


def _create_directory(path: Path, control: ControlFile, assigned: tuple[int, ...]) -> None:
    if not path.exists():
        disk.make_directory(path)
        disk.sync_directory(path.absolute().parent)
    infos = list(control.partitions)
    for number in assigned:
        directory = path / str(number)
        disk.make_directory(directory)
        create_segment(directory, partition=number, first_transaction_id=0, cluster_key=control.header.cluster_key)
        if control.layout.has_flags:
            struct, written = infos[number].updated(flags=FLAG_AVAILABLE | FLAG_ASSIGNED)
            infos[number] = infos[number].with_struct(struct, written)
    disk.sync_directory(path)
    create_control_file(path / CONTROL_FILE_NAME, replace(control, partitions=tuple(infos)))
