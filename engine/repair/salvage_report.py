"""The report of a salvage: what was read, found, written and left out."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from waltzctl.engine.findings import Finding
from waltzctl.engine.repair.salvage_control import FoundControl
from waltzctl.engine.repair.salvage_selection import Conflict
from waltzctl.engine.repair.salvage_sources import UnreadableRange, UnreadPlace
from waltzctl.formats.control import Layout


@dataclass(frozen=True, slots=True)
class IdRange:
    """Transaction ids, both ends inclusive."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class DoubtfulRun:
    """Intact records that were not written: they could not be attributed, or lie inside a damaged record.

    `offset` and `length`: bytes in the file `path`.
    """

    path: Path
    offset: int
    length: int
    first_transaction_id: int
    last_transaction_id: int
    records: int
    reason: str


@dataclass(frozen=True, slots=True)
class SalvagedPartition:
    """What was written of a partition.  `missing`: ids from 0 to the last written one that were not found."""

    partition: int
    first_transaction_id: int
    last_transaction_id: int
    records: int
    segments: int
    bytes: int
    missing: tuple[IdRange, ...]
    marks: tuple[int, int, int]
    """Session, low-water mark and local low-water mark as written; all -1 when no control file had them."""
    by_witness: Mapping[str, int]
    """Number of records found, duplicates included, by `AttributionReason`."""
    contradicted: int
    """Number of records found, duplicates included, whose request ids name another partition."""

    @property
    def acknowledged_missing(self) -> IdRange | None:
        """Ids after the last written transaction up to the local low-water mark: durable here, but not found."""
        mark = self.marks[2]
        return IdRange(self.last_transaction_id + 1, mark) if mark > self.last_transaction_id else None


class PartitionCountSource(enum.StrEnum):
    """Where the number of partitions of a salvaged directory comes from: caller, control file, or highest partition found."""

    GIVEN = "given"
    CONTROL_FILE = "control-file"
    RECORDS = "records"


@dataclass(frozen=True, slots=True)
class SalvageReport:
    """What was read, found, written and left out.

    ``found == written + duplicates + superseded + doubtful_records + elsewhere``.
    """

    path: Path
    """The directory that was written."""
    cluster_key: UUID
    num_partitions: int
    num_partitions_from: PartitionCountSource
    layout: Layout
    sources: int
    """Number of files read."""
    bytes: int
    """Bytes examined."""
    headers: int
    """Number of segment, index and control file headers found."""
    found: int
    """Number of records found; the sum given above."""
    joined: int
    """Number of records, included in `found`, that were joined from fragments."""
    written: int
    duplicates: int
    """Further copies with the same bytes."""
    superseded: int
    """Further copies with other bytes; each stands in `conflicts`."""
    doubtful_records: int
    elsewhere: int
    """Records of another cluster, or of a partition that was not asked for."""
    partitions: tuple[SalvagedPartition, ...]
    conflicts: tuple[Conflict, ...]
    doubtful: tuple[DoubtfulRun, ...]
    unreadable: tuple[UnreadableRange, ...]
    findings: tuple[Finding, ...]
    """About written records: data that does not match its checksum, and segments whose records are another partition's."""
    controls: tuple[FoundControl, ...] = ()
    """The control files of the cluster that were found; each says whether it is used, and why or why not."""
    marks_unknown: tuple[int, ...] = ()
    """Partitions written with initial marks, although a control file was used that has the marks of others."""
    unread: tuple[UnreadPlace, ...] = ()
    """What is below the sources and was not read: nobody knows which records are there."""

    @property
    def marks_known(self) -> bool:
        """Whether sessions and marks were taken from a control file."""
        return any(one.used for one in self.controls)

    @property
    def missing(self) -> int:
        """Number of transactions not found, over all written partitions, each up to its last written transaction."""
        return sum(gap.last - gap.first + 1 for one in self.partitions for gap in one.missing)

    @property
    def acknowledged_missing(self) -> int:
        """Number of transactions not found after each partition's last written one, though durable according to its mark."""
        gaps = [one.acknowledged_missing for one in self.partitions]
        return sum(gap.last - gap.first + 1 for gap in gaps if gap is not None)

    @property
    def exit_status_name(self) -> str:
        """``clean`` when nothing is missing, unknown, doubtful or in conflict, else ``damage-remains``."""
        lacking = self.missing or self.acknowledged_missing or self.marks_unknown
        whole = not (lacking or self.conflicts or self.doubtful or self.unreadable or self.unread or self.findings)
        return "clean" if whole else "damage-remains"
