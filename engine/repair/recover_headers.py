"""Mending a data file's header: a field is restored when another witness says what it was.

Witnesses are the control file (cluster key), the directory (partition), the file's name and first record (first
transaction id), and the header of the index file, which is the same.  Cluster key and partition are only restored when the
index file's header agrees with them: without it, nothing tells a damaged header from a file that lies in the wrong place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.findings import Code
from engine.repair.content import Content
from engine.scan.columns import RecordView
from engine.scan.scanner import read_record_at
from formats.control import ControlFile
from formats.segment import FORMAT_VERSION, HEADER_SIZE, MAX_DATA_LENGTH, SegmentHeader

MOMENT_MS = 60_000
"""Milliseconds by which the creation times of a data file and its index may be apart."""


@dataclass(frozen=True, slots=True)
class HeaderVerdict:
    """The header as it should be (None: a person must decide), why, and which codes stand against it."""

    header: SegmentHeader | None
    why: str = ""
    codes: tuple[Code, ...] = ()


def mend_header(
    data: SegmentHeader, index: SegmentHeader | None, control: ControlFile, partition: int, named: int, content: Content
) -> HeaderVerdict:
    """What a data file's header should be.  `named` is the id in the file's name.  Raises DiskReadError."""
    key = control.header.cluster_key
    record = read_record_at(content, HEADER_SIZE, expected_id=None, max_record=MAX_DATA_LENGTH)
    first_record = record.transaction_id if isinstance(record, RecordView) else None
    wrong: list[Code] = []
    unproven: list[Code] = []
    reasons: list[str] = []
    if data.first_transaction_id != named:
        wrong.append(Code.SEGMENT_NAME)
        if first_record == named:
            reasons.append("file name and first record agree on the first transaction id")
        elif first_record is None and index is not None and index.first_transaction_id == named:
            reasons.append("file name and index header agree on the first transaction id")
        else:
            unproven.append(Code.SEGMENT_NAME)
    if data.cluster_key != key:
        wrong.append(Code.SEGMENT_KEY)
        if index is not None and index.cluster_key == key:
            reasons.append("control file and index header agree on the cluster key")
        else:
            unproven.append(Code.SEGMENT_KEY)
    if data.partition != partition:
        wrong.append(Code.SEGMENT_PARTITION)
        if index is not None and index.partition == partition:
            reasons.append("directory and index header agree on the partition")
        else:
            unproven.append(Code.SEGMENT_PARTITION)
    if data.version != FORMAT_VERSION:
        wrong.append(Code.UNKNOWN_VERSION)
        if first_record is not None or (index is not None and index.version == FORMAT_VERSION):
            reasons.append("everything else reads as the only version there is")
        else:
            unproven.append(Code.UNKNOWN_VERSION)
    if unproven:
        return HeaderVerdict(None, "", tuple(unproven))
    right = SegmentHeader(FORMAT_VERSION, data.created, key, partition, named, data.reserved)
    twin = index is not None and index == replace(right, created=index.created, reserved=index.reserved)
    if index is not None and twin and len(wrong) > 1 and abs(index.created - data.created) > MOMENT_MS:
        right = index  # little of the header is left, its time is gone as well; both files were created together
        reasons.append("the creation time is the index header's")
    return HeaderVerdict(right, ", ".join(reasons), tuple(wrong))
