"""Whose records stand in a storage directory, by the cluster keys in the headers of its data files.

Salvage writes those of one cluster: where several keys stand there, ``salvage DIR --to NEW`` is refused until one is named, so
that a remedy names it (`SalvagedCluster`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import PurePath
from typing import NamedTuple
from uuid import UUID

from waltzctl.engine.errors import DiskReadError, NotWaltzError
from waltzctl.engine.findings import Code, Finding
from waltzctl.engine.findings.remedies import remedy_for
from waltzctl.engine.log import places
from waltzctl.engine.log.view import FileState, PartitionView, StorageView, read_segment_header, view_storage
from waltzctl.formats.segment import FORMAT_VERSION, HEADER_SIZE, RECORD_OVERHEAD, SegmentHeader

NEAR_KEY = 4
"""Cluster keys that differ in at most so many bits are one damaged key: keys are random, so different ones are never so close."""
MOST_HEADERS = 1000
"""Data files whose headers are read, at most."""
PLACEHOLDER = "KEY"
"""Stands in a remedy for a cluster key that only a person can tell."""
_SALVAGE = "waltzctl salvage "
_LEAST = HEADER_SIZE + RECORD_OVERHEAD
"""Bytes of a data file with one record, at least."""


def join_keys(keys: Iterable[UUID], named: UUID | None = None) -> dict[UUID, UUID]:
    """For each key that was found, the key that it is taken for; keys within NEAR_KEY bits are the same.

    That is `named`, the key that the caller asked for, or else the most frequent key within that distance.
    """
    counts = Counter(keys)
    result: dict[UUID, UUID] = {} if named is None else {named: named}
    for key, _ in counts.most_common():
        known = (one for one in dict.fromkeys(result.values()) if one == key or near(one, key))
        result[key] = next(known, key)
    return result


def near(one: UUID, other: UUID) -> int:
    """In how many bits two keys differ, if so few that one of them is damaged; else 0."""
    bits = (one.int ^ other.int).bit_count()
    return bits if bits <= NEAR_KEY else 0


class SalvagedCluster:
    """Which cluster a salvage of a storage directory has to be told to write; the directory is read when that is first asked."""

    def __init__(self, storage: PurePath | None) -> None:
        self._storage = storage

    def named(self, finding: Finding) -> Finding:
        """A finding whose remedy salvages the directory, with the key that has to be named; any other as it is.

        Where no key is ahead of the others, its message says so.  Where no file can hold a record, it has no remedy.
        """
        remedy = finding.remedy
        if remedy is None or not remedy.startswith(_SALVAGE) or " --key " in remedy:
            return finding
        if self._view is not None and not _may_hold_records(self._view):
            said = "no data file here has room for a record, so that there is nothing to salvage"
            return replace(finding, message=f"{finding.message}; {said}", remedy=None)
        if self._key is None:
            return finding
        key, among = self._key
        message = finding.message
        if among and finding.waits_for is None:
            said = "of these clusters equally many data files stand there, and nothing tells whose directory it is"
            message = f"{message}; {said}: {among}"
        return replace(finding, message=message, remedy=f"{remedy} --key {key}")

    @cached_property
    def _view(self) -> StorageView | None:
        """The directory as it is listed once; None where it cannot be, or is not on this machine."""
        if self._storage is None or not places.on_this_machine(self._storage):
            return None
        try:
            return view_storage(self._storage, each_alone=True)
        except (NotWaltzError, DiskReadError):
            return None

    @cached_property
    def _key(self) -> tuple[str, str] | None:
        """The key, and the keys that are alike where only a person can tell; None where salvage needs none.

        It is the control file's, if it is that of any data file, else the one that most intact headers have.
        """
        view = self._view
        if view is None:
            return None
        headers = list(islice(_headers(view), MOST_HEADERS))
        found = [header.key for header in headers if header.intact]
        own = None if view.control is None else view.control.header.cluster_key
        joined = join_keys((header.key for header in headers), own if own in found else None)
        if len({*joined.values()}) < 2:
            return None
        # a misplaced file says nothing of the directory, but salvage finds its records, too
        counts = Counter(joined[key] for key in found or (header.key for header in headers))
        (first, most), (_, second) = (*counts.most_common(2), (None, 0))[:2]
        if own in counts or most > second:
            return str(own if own in counts else first), ""
        return PLACEHOLDER, ", ".join(sorted(str(key) for key, many in counts.items() if many == most))


def _may_hold_records(view: StorageView) -> bool:
    """Whether any file of the directory may hold a record; of what is no data file, nothing is known."""
    if view.unlisted or view.unmounted or view.unknown or view.temporary:
        return True
    return any(
        one.special or one.unknown or one.temporary or any(file.size >= _LEAST for file, _ in _data_files(one))
        for one in view.partitions.values()
    )


def _data_files(partition: PartitionView) -> Iterator[tuple[FileState, int | None]]:
    """The data files of a partition, each with the first id in its name; None for a stray."""
    for segment in partition.data_segments:
        if segment.data is not None:
            yield segment.data, segment.first_transaction_id
    for stray in partition.strays:
        yield stray.data, None


class _Header(NamedTuple):
    """The cluster key in a data file's header, whether that is intact (`is_intact`), and whether a record may be behind it."""

    key: UUID
    intact: bool
    roomy: bool


def _headers(view: StorageView) -> Iterator[_Header]:
    """The headers of the data files, in the order of partitions; a stray's place tells no first id, and it is not intact."""
    for number, partition in view.partitions.items():
        for file, first in _data_files(partition):
            try:
                header = read_segment_header(file)
            except DiskReadError:
                continue
            if header is not None:
                intact = first is not None and is_intact(header, number, first)
                yield _Header(header.cluster_key, intact, file.size >= _LEAST)


def is_intact(header: SegmentHeader, partition: int | None, first: int) -> bool:
    """Whether a data file's header has the version, and the partition (None: not known) and first id of its place."""
    here = header.partition if partition is None else partition
    return (header.version, header.partition, header.first_transaction_id) == (FORMAT_VERSION, here, first)


def advice_on_replica(storage: PurePath, own: UUID, theirs: UUID) -> str:
    """What comes next where a replica has the cluster key `theirs`, and the storage directory's control file `own`.

    Either the replica is of another cluster, or the control file is, or its key is damaged.  Data files here with the replica's
    key are witnesses, wherever they belong: where those with the control file's do not outnumber them, the command is named that
    writes their records into a new directory.  Raises NotWaltzError, DiskReadError.
    """
    headers = list(islice(_headers(view_storage(storage, each_alone=True)), MOST_HEADERS))
    counts = Counter(header.key for header in headers)
    if not counts[theirs]:
        if bits := near(own, theirs):
            said = f"the two keys differ in {bits} bits alone, so that one of both control files is damaged"
            return f"{said}; bring it back from a backup of the same node"
        return "a replica of another cluster holds none of these records"
    said = (
        f"of the data files here {counts[theirs]} have the replica's key as well, and {counts[own]} the control file's: either"
        " the former and the replica are of another cluster, or the control file is, or its key is damaged"
    )
    if counts[theirs] < counts[own]:
        return f"{said}; move these files away by hand if they are misplaced, and name a replica of this cluster"
    said += ". Then bring this node's own control file back from a backup"
    if not any(header.key == theirs and header.roomy for header in headers):
        return said
    return f"{said}, or write the records into a new directory: {salvaging(storage, theirs)}"


def salvaging(storage: PurePath, key: UUID) -> str:
    """The command line that writes the records of one cluster into a new directory."""
    return f"{remedy_for(Code.CONTROL_FILE_MISSING, storage, None)} --key {key}"
