"""Directories that the released programs wrote: every value that they print is the value that we read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.builders import digest
from tests.golden import GOLDEN, golden_directories, needs_golden
from tests.inspect.helpers import codes, run
from waltzctl.engine.inspect.dump import (
    DumpedRecord,
    IndexEntry,
    SegmentDump,
    dump_control,
    dump_index,
    dump_records,
    dump_segments,
)
from waltzctl.engine.inspect.status import storage_status
from waltzctl.formats.adapters import format_time

pytestmark = needs_golden

DIRECTORIES = golden_directories()
NAMES = [path.name for path in DIRECTORIES]
# What a kill -9 left behind: code, severity, partition, transaction id.
CRASHED = {
    "idx-header-no-seg": [("index-orphan", "repairable", 0, 164)],
    "seg-empty": [("segment-header-short", "repairable", 2, None)],
    "torn-header-only": [("torn-tail", "repairable", 1, 48)],
}


def expected(path: Path) -> Path:
    """Where the values are that the release printed of a directory (of a crashed one: after it had mended it)."""
    assert GOLDEN is not None
    place = GOLDEN / "expected" / path.relative_to(GOLDEN)
    return place / "after-recovery" if "crashed" in path.parts else place


OPENED = [path for path in DIRECTORIES if expected(path).is_dir()]  # the release refuses the others


@pytest.mark.parametrize("path", DIRECTORIES, ids=NAMES)
def test_verify_finds_what_a_crash_left_and_nothing_else(path: Path) -> None:
    """Clean replicas are clean."""
    before = digest(path)
    findings, summary = run(path)
    found = [(one.code.value, one.severity.value, one.partition, one.transaction_id) for one in findings]
    assert found == CRASHED.get(path.name, [])
    assert summary.status == ("repairable" if path.name in CRASHED else "clean")
    assert summary.complete
    assert codes(run(path, quick=True)[0]) == codes(findings)
    assert digest(path) == before


@pytest.mark.parametrize("path", OPENED, ids=lambda path: path.name)
def test_every_record_has_the_values_that_the_release_prints(path: Path) -> None:
    """Ids, request ids, headers, lengths, both checksums, offsets and sizes."""
    count = 0
    for number in range(4):
        lines = (expected(path) / f"partition-{number}.jsonl").read_text().splitlines()
        items = [one for one in dump_records(path, partitions=[number]) if isinstance(one, DumpedRecord)]
        assert len(items) == len(lines)
        for item, line in zip(items, lines, strict=True):
            value = json.loads(line)
            high, low = (word & (2**64 - 1) for word in item.request_id.words)
            assert (item.transaction_id, f"{high:016x}", f"{low:016x}") == (
                value["transactionId"],
                value["reqIdMsb"],
                value["reqIdLsb"],
            )
            assert (item.header, item.data_length, item.offset, item.size) == (
                value["header"],
                value["dataLength"],
                value["offset"],
                value["size"],
            )
            assert f"{item.data_checksum:08x}" == value["dataCrc32"]
            assert f"{item.record_checksum:08x}" == value["recordCrc32"]
            assert f"{item.segment:019d}.seg" == value["segment"]
            assert item.data is not None
            assert len(item.data) == item.data_length
            count += 1
        entries = [one for one in dump_index(path, partitions=[number]) if isinstance(one, IndexEntry)]
        known = {item.transaction_id: item.offset for item in items}
        assert {one.transaction_id: one.offset for one in entries if one.transaction_id in known} == known
    print(f"{path.name}: {count} records agree in every field")


@pytest.mark.parametrize("path", OPENED, ids=lambda path: path.name)
def test_the_control_file_has_the_values_that_the_release_prints(path: Path) -> None:
    """Header, both structs of each pair, and which is current."""
    value = json.loads((expected(path) / "control-file.json").read_text())
    dump = dump_control(path)
    assert (dump.version, str(dump.cluster_key), dump.num_partitions) == (
        value["version"],
        value["key"],
        value["numPartitions"],
    )
    assert dump.created == format_time(value["creationTime"])
    assert dump.layout == "released"
    assert dump.size == (path / "waltz-storage.ctl").stat().st_size
    for info, wanted in zip(dump.partitions, value["partitions"], strict=True):
        assert info.stored_partition == wanted["partitionId"]
        current = info.current_struct
        assert current is not None
        assert (info.current is not None) == wanted["current"]["valid"]
        other = info.structs[2 - (info.current or 0)]
        for struct, name in ((current, "current"), (other, "next")):
            assert struct.valid == wanted[name]["valid"]
            assert {
                "sessionId": struct.session_id,
                "lowWaterMark": struct.low_water_mark,
                "localLowWaterMark": struct.local_low_water_mark,
                "flags": struct.flags,
                "sequenceNumber": struct.sequence,
            }.items() <= wanted[name].items()
        assert (current.assigned, current.available) == (wanted["isAssigned"], wanted["isAvailable"])


@pytest.mark.parametrize("path", OPENED, ids=lambda path: path.name)
def test_segments_have_the_values_that_the_release_prints(path: Path) -> None:
    """Headers, first and last ids, sizes."""
    wanted = json.loads((expected(path) / "segments.json").read_text())
    found = [one for one in dump_segments(path) if isinstance(one, SegmentDump)]
    assert [(one.partition, one.path.name) for one in found] == [(one["partitionId"], one["file"]) for one in wanted]
    for one, value in zip(found, wanted, strict=True):
        assert (one.version, str(one.cluster_key), one.first_transaction_id) == (
            value["version"],
            value["key"],
            value["firstTransactionId"],
        )
        assert one.created == format_time(value["creationTime(seg)"])
        last = one.segment - 1 if one.last_transaction_id is None else one.last_transaction_id
        assert last == value["maxTransactionId"]
        assert one.records == last + 1 - one.segment
        if (path.name, one.partition) != ("torn-header-only", 1):  # the release cut it before it printed the sizes
            assert (one.data_bytes, one.index_bytes) == (value["sizeBeforeRecovery"], value["idxSizeBeforeRecovery"])
        assert one.index == "ok"


@pytest.mark.parametrize("path", DIRECTORIES, ids=NAMES)
def test_status_agrees_with_the_records(path: Path) -> None:
    """Ends and counts without reading the data are those of the whole dump."""
    status = storage_status(path)
    for one in status.partitions:
        records = [item for item in dump_records(path, partitions=[one.partition]) if isinstance(item, DumpedRecord)]
        ids = [item.transaction_id for item in records]
        assert (one.records, one.first_transaction_id, one.last_transaction_id) == (
            len(ids),
            min(ids, default=None),
            max(ids, default=None),
        )
        assert one.assigned
    unwell = {one.partition: one.health for one in status.partitions if one.health != "ok"}
    assert unwell == {partition: severity for _, severity, partition, _ in CRASHED.get(path.name, [])}
