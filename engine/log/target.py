"""What a path on the command line names: a storage directory, a partition's, or a single file."""

from __future__ import annotations

import enum
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import PurePath

from waltzctl.engine.amounts import format_ranges
from waltzctl.engine.errors import InvalidRequestError, NotWaltzError
from waltzctl.engine.log import places
from waltzctl.engine.log.access import PlaceKind
from waltzctl.engine.log.partition_directories import listing_errors, partition_number
from waltzctl.engine.log.view import view_storage
from waltzctl.formats.control import CONTROL_FILE_NAME
from waltzctl.formats.segment import INDEX_SUFFIX, SEGMENT_SUFFIX, parse_name


class TargetKind(enum.StrEnum):
    """The kind of file or directory that a path on the command line names."""

    STORAGE = "storage directory"
    PARTITION = "partition directory"
    CONTROL = "control file"
    SEGMENT = "data file"
    INDEX = "index file"


@dataclass(frozen=True, slots=True)
class Target:
    """A path and the kind of thing that it names.

    `storage`: the storage directory that the path is or lies in; None for a file or partition directory outside of one.
    `partition`: the partition of the path, by the name of its directory; None where that is no number, or does not apply.
    """

    kind: TargetKind
    path: PurePath
    storage: PurePath | None
    partition: int | None

    def selected(self, partitions: Collection[int] | None) -> Collection[int] | None:
        """The partitions to inspect: those among `partitions` (None: all) that the path names.

        Raises InvalidRequestError when the path names a partition that is not among `partitions`: the arguments contradict each
        other.
        """
        if self.partition is None:
            return partitions
        if partitions is not None and self.partition not in partitions:
            raise InvalidRequestError(
                f"{self.path}: lies in partition {self.partition}, and partition {format_ranges(partitions)} was asked for",
                advice="leave one of the two out, or name the storage directory",
            )
        return frozenset((self.partition,))


def _enclosing(partition_directory: PurePath) -> tuple[PurePath | None, int | None]:
    parent = partition_directory.parent
    number = partition_number(partition_directory.name)
    return (parent if places.still_named(parent / CONTROL_FILE_NAME) else None), number


def resolve(path: PurePath) -> Target:
    """The kind of thing that a path names.  Raises NotWaltzError when it is nothing of Waltz, DiskReadError."""
    absolute = places.absolute(path)
    kind = places.access(absolute).kind(absolute)
    if kind is PlaceKind.DIRECTORY:
        with listing_errors(absolute):
            names = set(places.names(absolute))
        if CONTROL_FILE_NAME in names:
            return Target(TargetKind.STORAGE, path, path, None)
        if any(parse_name(name) for name in names) or partition_number(absolute.name) is not None:
            storage, number = _enclosing(absolute)
            if storage is not None or any(parse_name(name) for name in names):
                return Target(TargetKind.PARTITION, path, _relative(path, storage), number)
        # raises NotWaltzError unless partitions lie there without a control file
        view_storage(path, each_alone=True)
        return Target(TargetKind.STORAGE, path, path, None)
    if kind is None:
        raise NotWaltzError(f"{path}: no such file or directory")
    if kind is not PlaceKind.FILE:
        raise NotWaltzError(f"{path}: it is {places.special(absolute)}, neither a file nor a directory")
    if absolute.suffix == ".ctl":
        storage_path = path.parent if absolute.name == CONTROL_FILE_NAME else None
        return Target(TargetKind.CONTROL, path, storage_path, None)
    kinds = {SEGMENT_SUFFIX: TargetKind.SEGMENT, INDEX_SUFFIX: TargetKind.INDEX}
    named = next((kind for suffix, kind in kinds.items() if absolute.name.endswith(suffix)), None)
    if named is not None:
        storage, number = _enclosing(absolute.parent)
        return Target(named, path, _relative(path.parent, storage), number)
    raise NotWaltzError(f"{path}: not a storage directory, partition directory, .ctl, .seg or .idx file")


def _relative(partition_directory: PurePath, storage: PurePath | None) -> PurePath | None:
    """The storage directory in the user's terms: relative if the user gave a relative path, not made absolute."""
    if storage is None:
        return None
    if partition_directory.is_absolute() or len(partition_directory.parts) < 2:
        return storage
    return partition_directory.parent
