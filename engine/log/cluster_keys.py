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
from uuid import UUID

from waltzctl.engine.errors import DiskReadError, NotWaltzError
from waltzctl.engine.findings import Finding
from waltzctl.engine.log import places
from waltzctl.engine.log.view import StorageView, read_segment_header, view_storage
from waltzctl.formats.segment import FORMAT_VERSION, SegmentHeader

NEAR_KEY = 4
"""Cluster keys that differ in at most so many bits are one damaged key: keys are random, so different ones are never so close."""
MOST_HEADERS = 1000
"""Data files whose headers are read, at most."""
PLACEHOLDER = "KEY"
"""Stands in a remedy for a cluster key that only a person can tell."""
_SALVAGE = "waltzctl salvage "


def join_keys(keys: Iterable[UUID], named: UUID | None = None) -> dict[UUID, UUID]:
    """For each key that was found, the key that it is taken for; keys within NEAR_KEY bits are the same.

    That is `named`, the key that the caller asked for, or else the most frequent key within that distance.
    """
    counts = Counter(keys)
    result: dict[UUID, UUID] = {} if named is None else {named: named}
    for key, _ in counts.most_common():
        near = (known for known in dict.fromkeys(result.values()) if (known.int ^ key.int).bit_count() <= NEAR_KEY)
        result[key] = next(near, key)
    return result


class SalvagedCluster:
    """Which cluster a salvage of a storage directory has to be told to write; the directory is read when that is first asked."""

    def __init__(self, storage: PurePath | None) -> None:
        self._storage = storage

    def named(self, finding: Finding) -> Finding:
        """A finding whose remedy salvages the directory, with the key that has to be named; any other as it is.

        Where no key is ahead of the others, its message says so.
        """
        remedy = finding.remedy
        if remedy is None or not remedy.startswith(_SALVAGE) or " --key " in remedy or self._key is None:
            return finding
        key, among = self._key
        message = finding.message
        if among and finding.waits_for is None:
            said = "of these clusters equally many data files stand there, and nothing tells whose directory it is"
            message = f"{message}; {said}: {among}"
        return replace(finding, message=message, remedy=f"{remedy} --key {key}")

    @cached_property
    def _key(self) -> tuple[str, str] | None:
        """The key, and the keys that are alike where only a person can tell; None where salvage needs none.

        It is the control file's, if it is that of any data file, else the one that most intact headers have.
        """
        if self._storage is None or not places.on_this_machine(self._storage):
            return None
        try:
            view = view_storage(self._storage, each_alone=True)
        except (NotWaltzError, DiskReadError):
            return None
        found = list(islice(_keys(view), MOST_HEADERS))
        own = None if view.control is None else view.control.header.cluster_key
        joined = join_keys(found, own if own in found else None)
        counts = Counter(joined[key] for key in found)
        if len(counts) < 2:
            return None
        (first, most), (_, second) = counts.most_common(2)
        if own in counts or most > second:
            return str(own if own in counts else first), ""
        return PLACEHOLDER, ", ".join(sorted(str(key) for key, many in counts.items() if many == most))


def _keys(view: StorageView) -> Iterator[UUID]:
    """The keys of the data files whose headers are intact: version, partition and first id are those of their place."""
    for number, partition in view.partitions.items():
        for segment in partition.data_segments:
            try:
                header = read_segment_header(segment.data)
            except DiskReadError:
                continue
            if header is not None and is_intact(header, number, segment.first_transaction_id):
                yield header.cluster_key


def is_intact(header: SegmentHeader, partition: int | None, first: int) -> bool:
    """Whether a data file's header has the version, and the partition (None: not known) and first id of its place."""
    here = header.partition if partition is None else partition
    return (header.version, header.partition, header.first_transaction_id) == (FORMAT_VERSION, here, first)
