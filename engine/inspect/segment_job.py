"""A segment to check, and what came out of it: the values that pass between the planning and the checking of segments."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path

from waltzctl.engine.findings import Code, Finding, SegmentFiles, Severity, Where, loss_finding
from waltzctl.engine.inspect.digests import Digest
from waltzctl.engine.log.assess import Stretch
from waltzctl.engine.log.headers import Expected
from waltzctl.engine.losses import ShortHeader
from waltzctl.engine.storage.view import FileState, index_path_of
from waltzctl.formats.segment import segment_name


@dataclass(frozen=True, slots=True)
class SegmentJob:
    """A segment and what its surroundings say about it.

    `first` is the id in its name.  `last`: no data file with a larger id was there.  `cluster_key`, `partition` and
    `local_low_water_mark` are None where nothing tells them.  `held`: a process holds the storage directory.  `storage` is
    the directory that remedies name.
    """

    directory: Path
    first: int
    partition: int | None = None
    last: bool = True
    storage: Path | None = None
    cluster_key: uuid.UUID | None = None
    local_low_water_mark: int | None = None
    held: bool = False
    name: str | None = None
    """Name of the data file where it is not the usual one."""
    bytes: int = 0
    """Size of the data file when it was planned."""
    following: int | None = None
    """The id in the name of the next data file; None where there is none, or none was looked for."""
    hash_to: int | None = None
    """So many bytes of the data file, from its beginning, are hashed on the way; None: none are."""
    durable_to: int = -1
    """The last transaction that the partition's marks and files prove to have been durable (`engine.storage.evidence`)."""

    @property
    def data_path(self) -> Path:
        """The data file."""
        return self.directory / (self.name or segment_name(self.first))

    @property
    def index_path(self) -> Path:
        """The index file."""
        return index_path_of(self.data_path)

    @property
    def where(self) -> Where:
        """Its partition, for what is told of more than this segment."""
        return Where(self.storage, self.partition, self.directory)

    @property
    def files(self) -> SegmentFiles:
        """Its files, for what is told of them."""
        return SegmentFiles(self.where, self.first, self.data_path, self.index_path)

    @property
    def expected(self) -> Expected:
        """What its headers have to say."""
        return Expected(self.first, self.partition, self.cluster_key)

    def finding(
        self,
        code: Code,
        message: str,
        *,
        index: bool = False,
        severity: Severity | None = None,
        transaction_id: int | None = None,
        offset: int | None = None,
        length: int | None = None,
        missing: int | None = None,
    ) -> Finding:
        """A finding in the data file, or in the index."""
        return self.files.finding(
            code,
            message,
            index=index,
            severity=severity,
            transaction_id=transaction_id,
            offset=offset,
            length=length,
            missing=missing,
        )

    def short_header(self, size: int, entries: int) -> Finding:
        """The data file has `size` bytes, fewer than a header; its index has `entries` entries."""
        return loss_finding(ShortHeader(self.first, size, entries, self.last), self.where)


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """What a check of one segment says.

    `begins`: id of the first record, by name or header, whichever the data supports.  `next_id`: the id that the next segment
    must begin with, None when this one's own damage leaves that open.  `accounted`: the last id that is here, intact or
    damaged, `begins` - 1 when there is none; `uncertain`: there may be more.  `index_excess`: a finding about index entries
    without records, apart from the others because a gap behind this segment may be their cause; `index_end`: the id behind
    the index's last entry.  `last_id`: the last intact record.  `torn`: it has a torn tail.  `gone`: the file vanished.
    `finished` is False when the time was over.  `digest`: of the bytes that the job asked to be hashed, where there were so many.
    """

    job: SegmentJob
    begins: int
    next_id: int | None = None
    accounted: int = -1
    uncertain: bool = False
    records: int = 0
    findings: tuple[Finding, ...] = ()
    index_excess: Finding | None = None
    index_end: int | None = None
    last_id: int | None = None
    torn: bool = False
    gone: bool = False
    finished: bool = True
    states: tuple[FileState | None, FileState | None] = field(default=(None, None))
    digest: Digest | None = None

    @property
    def stretch(self) -> Stretch:
        """What its neighbours and its partition have to know of it."""
        return Stretch(
            self.job.first,
            self.begins,
            self.next_id,
            self.accounted,
            self.uncertain,
            self.index_end,
            self.index_excess is not None,
            self.torn,
            self.finished and not self.gone,
        )
