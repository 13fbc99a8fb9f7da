"""What the headers of a data file and of its index say, against the control file, the directory, the name and each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from waltzctl.engine.findings import Code, Finding, loss_finding
from waltzctl.engine.inspect.control_checks import first_nonzero
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.losses import ShortHeader
from waltzctl.engine.scan.byte_source import ByteSource
from waltzctl.engine.scan.columns import RecordView
from waltzctl.engine.scan.scanner import read_record_at
from waltzctl.formats.segment import FORMAT_VERSION, HEADER_SIZE, SEGMENT_HEADER, SegmentHeader

_HELD = 64 << 20
"""Bytes of data that the first record may have to tell whether a file was renamed."""


@dataclass(frozen=True, slots=True)
class HeaderVerdict:
    """Findings of both headers; `begins` is the id of the first record, as far as it can be told without a scan."""

    findings: tuple[Finding, ...]
    begins: int


def check_headers(
    job: SegmentJob, data: SegmentHeader, index: SegmentHeader | None, records: ByteSource | None
) -> HeaderVerdict:
    """Check the header of a data file and, where there is one, of its index.  `records` gives the data file's bytes."""
    begins = job.first
    if data.first_transaction_id != job.first and records is not None:
        found = read_record_at(records, HEADER_SIZE, expected_id=None, max_record=_HELD)
        if isinstance(found, RecordView) and found.transaction_id == data.first_transaction_id:
            begins = data.first_transaction_id
    findings = [*_own(job, data, index=False)]
    for field in _fields(job, data, index, begins):
        findings += field.findings(job)
    if index is not None:
        findings += _own(job, index, index=True)
    return HeaderVerdict(tuple(findings), begins)


def short_header(job: SegmentJob, size: int, entries: int) -> Finding:
    """A data file of `size` bytes, fewer than a header has; its index has `entries` entries."""
    return loss_finding(ShortHeader(job.first, size, entries, job.last), job.where)


def _own(job: SegmentJob, header: SegmentHeader, *, index: bool) -> Iterator[Finding]:
    """What a header shows without anything to compare it with."""
    if header.version != FORMAT_VERSION:
        yield job.finding(
            Code.UNKNOWN_VERSION,
            f"the header's format version is {header.version}; only {FORMAT_VERSION} is known",
            index=index,
            offset=SEGMENT_HEADER.offset_of("version"),
            length=SEGMENT_HEADER.size_of("version"),
        )
    if (place := first_nonzero(header.reserved)) is not None:
        yield job.finding(
            Code.RESERVED_NOT_ZERO,
            f"a reserved byte of the header is {header.reserved[place]:#04x} instead of 0",
            index=index,
            offset=SEGMENT_HEADER.offset_of("reserved") + place,
            length=1,
        )


@dataclass(frozen=True, slots=True)
class _Field:
    """One field of both headers and what it should be (None: nothing tells)."""

    name: str
    what: str
    source: str
    code: Code
    wanted: object
    data: object
    index: object

    def findings(self, job: SegmentJob) -> Iterator[Finding]:
        """At most one for each file, and none for the index where it only repeats what the data file says."""
        offset, length = SEGMENT_HEADER.offset_of(self.name), SEGMENT_HEADER.size_of(self.name)
        data_wrong = self.wanted is not None and self.data != self.wanted
        if data_wrong:
            agrees = ""
            if self.index is not None:
                agrees = (
                    f"; the index file's header agrees with {self.source}"
                    if self.index == self.wanted
                    else "; the index file's header says the same"
                    if self.index == self.data
                    else ""
                )
            message = f"the header's {self.what} is {self.data}, {self.source} says {self.wanted}{agrees}"
            yield job.finding(self.code, message, offset=offset, length=length)
        reference = self.data if self.wanted is None else self.wanted
        if self.index is not None and self.index != reference and not (data_wrong and self.index == self.data):
            source = "the data file's header" if self.wanted is None else self.source
            yield job.finding(
                Code.INDEX_HEADER,
                f"the index header's {self.what} is {self.index}, {source} says {reference}",
                index=True,
                offset=offset,
                length=length,
            )


def _fields(job: SegmentJob, data: SegmentHeader, index: SegmentHeader | None, begins: int) -> Iterator[_Field]:
    yield _Field(
        "cluster_key", "cluster key", "the control file", Code.SEGMENT_KEY,
        job.cluster_key, data.cluster_key, index and index.cluster_key,
    )  # fmt: skip
    yield _Field(
        "partition", "partition", "the directory", Code.SEGMENT_PARTITION,
        job.partition, data.partition, None if index is None else index.partition,
    )  # fmt: skip
    source = "the file name" if begins == job.first else "the file name (but the first record agrees with the header)"
    yield _Field(
        "first_transaction_id", "first transaction id", source, Code.SEGMENT_NAME,
        job.first, data.first_transaction_id, None if index is None else index.first_transaction_id,
    )  # fmt: skip
