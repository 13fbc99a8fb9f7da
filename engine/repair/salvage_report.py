"""What salvage tells: what was looked at, found, written and left out."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from waltzctl.engine.findings import Finding
from waltzctl.engine.repair.salvage_control import FoundControl
from waltzctl.engine.repair.salvage_selection import Conflict
from waltzctl.engine.repair.salvage_sources import UnreadableRange
from waltzctl.formats.control import Layout


@dataclass(frozen=True, slots=True)
class IdRange:
    """Transaction ids, both ends inclusive."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class DoubtfulRun:
    """Records that are intact but were not used, as nothing tells whose they are, or as something speaks against them.

    `offset` and `length` in bytes of the file `path`.
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
    """What was written of a partition.  `missing`: ids from 0 to the last one written that were not found."""

    partition: int
    first_transaction_id: int
    last_transaction_id: int
    records: int
    segments: int
    bytes: int
    missing: tuple[IdRange, ...]
    marks: tuple[int, int, int]
    """Session, low-water mark and local low-water mark as written; all -1 where no control file told them."""
    by_witness: Mapping[str, int]
    """Records found, duplicates included, by what tells that they are this partition's."""
    contradicted: int
    """Records found, duplicates included, whose request ids name another partition."""

    @property
    def acknowledged_missing(self) -> IdRange | None:
        """Behind the last transaction that was written: those that the local low-water mark says were durable here."""
        mark = self.marks[2]
        return IdRange(self.last_transaction_id + 1, mark) if mark > self.last_transaction_id else None


class PartitionCountSource(enum.StrEnum):
    """What the number of partitions of a salvaged directory goes by: the caller, a control file, or the highest one found."""

    GIVEN = "given"
    CONTROL_FILE = "control-file"
    RECORDS = "records"


@dataclass(frozen=True, slots=True)
class SalvageReport:
    """What was looked at, found, written and left out.

    ``found == written + duplicates + superseded + doubtful_records + elsewhere``.
    """

    path: Path
    """The directory that was written."""
    cluster_key: UUID
    num_partitions: int
    num_partitions_from: PartitionCountSource
    layout: Layout
    sources: int
    """Files that were read."""
    bytes: int
    """Bytes that were examined."""
    headers: int
    """Segment, index and control file headers that were seen."""
    found: int
    joined: int
    """Of these, records that a file system had split and that were put together."""
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
    """About what was written: records whose data disagrees with its own checksum."""
    controls: tuple[FoundControl, ...] = ()
    """The control files of the cluster that were found, whether each tells the marks, and why or why not."""
    marks_unknown: tuple[int, ...] = ()
    """Partitions that were written with initial marks, although a control file tells those of others."""

    @property
    def marks_known(self) -> bool:
        """Whether a control file told sessions and marks."""
        return any(one.used for one in self.controls)

    @property
    def missing(self) -> int:
        """Transactions that were not found, of all partitions that were written, up to the last one that was."""
        return sum(gap.last - gap.first + 1 for one in self.partitions for gap in one.missing)

    @property
    def acknowledged_missing(self) -> int:
        """Transactions that were not found, behind those that were, though marks say that they were durable."""
        gaps = [one.acknowledged_missing for one in self.partitions]
        return sum(gap.last - gap.first + 1 for gap in gaps if gap is not None)

    @property
    def exit_status_name(self) -> str:
        """``clean`` when nothing is missing, unknown, doubtful or in conflict, else ``damage-remains``."""
        lacking = self.missing or self.acknowledged_missing or self.marks_unknown
        whole = not (lacking or self.conflicts or self.doubtful or self.unreadable or self.findings)
        return "clean" if whole else "damage-remains"
