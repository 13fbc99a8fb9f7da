"""The input and the result of a segment's check: `SegmentJob` and `SegmentReport`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from waltzctl.engine.findings import Finding, SegmentFiles, Where, loss_finding, told_of_end
from waltzctl.engine.inspect.digests import Digest
from waltzctl.engine.log.assess import Stretch
from waltzctl.engine.log.header_judgement import Expected
from waltzctl.engine.log.view import FileState, PartitionView, index_name_of
from waltzctl.engine.losses import ShortHeader
from waltzctl.formats.segment import segment_name


@dataclass(frozen=True, slots=True)
class SegmentJob:
    """A segment to check, and what is known about it from its surroundings.

    ======================= ==================================================================================
    `directory`             the directory of its two files
    `first`                 the transaction id in their names
    `partition`             None where it is not known; the same for `cluster_key`, `local_low_water_mark`
    `last`                  there was no data file with a larger id when the job was made
    `storage`               the storage directory that remedies name
    `held`                  a process holds the lock of `storage`, so that files may grow while they are read
    `name`                  the name of the data file if it is not that of a segment (a stray)
    `bytes`                 the size of the data file when the job was made
    `following`             the id in the name of the next data file; None without one, or if not looked for
    `hash_to`               hash the first so many bytes of the data file; None: no hash
    `durable_to`            the last transaction that is proven to have been durable in the partition
                            (`engine.log.evidence`); -1 for none
    ======================= ==================================================================================
    """

    directory: PurePath
    first: int
    partition: int | None = None
    last: bool = True
    storage: PurePath | None = None
    cluster_key: uuid.UUID | None = None
    local_low_water_mark: int | None = None
    held: bool = False
    name: str | None = None
    bytes: int = 0
    following: int | None = None
    hash_to: int | None = None
    durable_to: int = -1

    _paths: tuple[PurePath, PurePath] | None = field(default=None, init=False, repr=False, compare=False)
    """The paths of both files, made at the first use: a check uses them nine times, the planning of jobs never."""

    @property
    def data_path(self) -> PurePath:
        """The data file."""
        return (self._paths or self._made())[0]

    @property
    def index_path(self) -> PurePath:
        """The index file."""
        return (self._paths or self._made())[1]

    def _made(self) -> tuple[PurePath, PurePath]:
        name = self.name or segment_name(self.first)
        paths = self.directory / name, self.directory / index_name_of(name)
        object.__setattr__(self, "_paths", paths)
        return paths

    @property
    def where(self) -> Where:
        """The segment's partition, as the place of a finding."""
        return Where(self.storage, self.partition, self.directory)

    @property
    def files(self) -> SegmentFiles:
        """The segment's files, as the place of a finding."""
        return SegmentFiles(self.where, self.first, self.data_path, self.index_path)

    @property
    def expected(self) -> Expected:
        """What the segment's headers must contain."""
        return Expected(self.first, self.partition, self.cluster_key)

    def short_header(self, size: int, entries: int) -> Finding:
        """The finding that the data file has `size` bytes, fewer than its header; its index has `entries` entries."""
        return loss_finding(ShortHeader(self.first, size, entries, self.following), self.where)


def jobs_of(view: PartitionView, template: SegmentJob) -> Iterator[SegmentJob]:
    """All segments of a partition, in the order of their names; `template` has the values of the partition."""
    present = view.data_segments
    behind = [*(segment.first_transaction_id for segment in present[1:]), None]
    for segment, following in zip(present, behind, strict=False):
        if segment.data is not None:
            yield replace(
                template,
                first=segment.first_transaction_id,
                last=following is None,
                bytes=segment.data.size,
                following=following,
                name=None,
            )


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """The result of the check of one segment.  Ids are transaction ids.

    =============== ==========================================================================================
    `begins`        the id of the first record, in the name or in the header, whichever the data confirms
    `last_id`       the id of the last intact record; None without any
    `accounted`     the id of the last record, intact or damaged; `begins` - 1 without any
    `uncertain`     whether records may follow `accounted`, because the end was not read or is not decided
    `next_id`       the id with which the next segment must begin; None where damage at the end leaves it open
    `index_end`     the id after the index's last entry; None without an index
    `records`       number of intact records
    `findings`      those of the data file first, then by offset; without `index_excess`
    `index_excess`  the finding that the index has more entries than the data file has records.  It is kept
                    apart because a gap after this segment, which this check does not see, replaces it
    `torn`          whether the segment has a torn tail
    `gone`          whether the files were removed while they were read, or changed at every attempt
    `finished`      False when the time limit ended the check
    `states`        data file and index file when they were read
    `digest`        of the first `hash_to` bytes; None without that request, or if the file is shorter
    =============== ==========================================================================================
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
        """The segment as its neighbours and its partition need to know it."""
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
            told_of_end(self.findings),
        )
