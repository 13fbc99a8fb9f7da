"""What the tests of salvage share: reading a directory back, and pieces of bytes to salvage from."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.builders import KEY, segment_header
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.repair.salvage import SalvageReport
from waltzctl.formats.segment import HEADER_SIZE, Record, encode_records, parse_name

OTHER = uuid.UUID("fedcba98-7654-3210-fedc-ba9876543210")


def records_in(storage: Path) -> dict[int, list[Record]]:
    """Every record of a clean directory by partition, in order; read without the engine."""
    found: dict[int, list[Record]] = {}
    for path in sorted(storage.glob("*/*.seg"), key=lambda path: (int(path.parent.name), path.name)):
        data = path.read_bytes()
        offset = HEADER_SIZE
        while offset < len(data):
            (length,) = struct.unpack_from(">i", data, offset + 28)
            record = Record.decode(data[offset : offset + 40 + length])
            assert record.record_ok
            found.setdefault(int(path.parent.name), []).append(record)
            offset += record.size
    return found


def data_file(records: Sequence[Record], *, partition: int = 0, key: uuid.UUID = KEY) -> bytes:
    """A data file of these records."""
    return segment_header(partition, records[0].transaction_id, key=key).encode() + encode_records(records)[0]


def assert_clean(report: SalvageReport, *, gaps: int = 0) -> None:
    """Verify finds nothing in what was written but the gaps that the report names; counts add up."""
    *findings, summary = list(verify([report.path]))
    assert [found.code for found in findings] == ["segment-gap"] * gaps  # type: ignore[union-attr]
    assert summary.records == report.written  # type: ignore[union-attr]
    assert_adds_up(report)


def assert_adds_up(report: SalvageReport) -> None:
    """No record that was found is left out of the account."""
    parts = (report.written, report.duplicates, report.superseded, report.doubtful_records, report.elsewhere)
    assert report.found == sum(parts)
    assert min(parts) >= 0
    assert report.doubtful_records == sum(one.records for one in report.doubtful)
    assert report.written == sum(one.records for one in report.partitions)
    assert report.superseded == sum(len(one.others) for one in report.conflicts)
    for one in report.partitions:
        gaps = sum(gap.last - gap.first + 1 for gap in one.missing)
        assert one.last_transaction_id + 1 == one.records + gaps
    for path in report.path.glob("*/*"):
        assert parse_name(path.name) is not None


def without(records: Iterable[Record], *numbers: int) -> list[Record]:
    """Records but for those with these ids."""
    return [record for record in records if record.transaction_id not in numbers]
