"""A segment to check, and what came out of it: the values that pass between the planning and the checking of segments."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import PurePath

from waltzctl.engine.findings import Code, Finding, SegmentFiles, Severity, Where, loss_finding
from waltzctl.engine.inspect.digests import Digest
from waltzctl.engine.log.assess import Stretch
from waltzctl.engine.log.header_judgement import Expected
from waltzctl.engine.log.view import FileState, index_name_of
from waltzctl.engine.losses import ShortHeader
from waltzctl.formats.segment import segment_name


@dataclass(frozen=True, slots=True)
class SegmentJob:
    """A segment and what its surroundings say about it.

    ======================= ==================================================================================
    `directory`             where its two files are
    `first`                 the transaction id in their name
    `partition`             None where nothing tells it; so with `cluster_key` and `local_low_water_mark`
    `last`                  no data file with a larger id was there when this was planned
    `storage`               the storage directory that remedies name
    `held`                  a process holds that directory, so that files may grow while they are read
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
    """Name of the data file where it is not the usual one."""
    bytes: int = 0
    """Size of the data file when it was planned."""
    following: int | None = None
    """The id in the name of the next data file; None where there is none, or none was looked for."""
    hash_to: int | None = None
    """So many bytes of the data file, from its beginning, are hashed on the way; None: none are."""
    durable_to: int = -1
    """The last transaction that the partition's marks and files prove to have been durable (`engine.log.evidence`)."""

    _paths: tuple[PurePath, PurePath] | None = field(default=None, init=False, repr=False, compare=False)
    """Of both files, made when they are first asked for: a check asks nine times, a plan never."""

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
        return loss_finding(ShortHeader(self.first, size, entries, self.following), self.where)


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """What a check of one segment says.  Ids are transaction ids.

    =============== ==========================================================================================
    `begins`        of the first record: that in the name or that in the header, whichever the data supports
    `last_id`       of the last intact record; None without any
    `accounted`     of the last record that is here, intact or damaged; `begins` - 1 without any
    `uncertain`     whether records may follow that one, as the end was not read or not understood
    `next_id`       with which the next segment must begin; None where damage at the end leaves that open
    `index_end`     behind the index's last entry; None without an index
    `records`       intact records that were counted
    `findings`      what is wrong, data file first, by offset; without `index_excess`
    `index_excess`  that the index lists more than is here.  Apart from the others: a gap behind this segment
                    says the same with more right, and only who sees both segments can tell
    `torn`          whether it has a torn tail
    `gone`          whether the files went away while they were read
    `finished`      False when the time was over first
    `states`        data file and index as they were when they were read
    `digest`        of the bytes that the job asked to be hashed, where the file has so many
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
