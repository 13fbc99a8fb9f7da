"""The released disk tool reads what this engine writes, and changes no byte of it.

The tool opens a segment as a released node does (with recovery), so that a file that comes out byte for byte the same is
one which the release would have written itself.  Needs Java and ``WALTZ_CLASSPATH``: the class path of a built Waltz 0.13.2.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.builders import digest, make_records
from waltzctl.engine.storage.append import PendingRecord, append_lines
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions, create_cluster
from waltzctl.formats.control import Layout
from waltzctl.formats.segment import Record

CLASSPATH = os.environ.get("WALTZ_CLASSPATH")
pytestmark = pytest.mark.skipif(
    not CLASSPATH or shutil.which("java") is None,
    reason="needs Java and WALTZ_CLASSPATH, the class path of a built Waltz 0.13.2",
)


def _disk_tool(*arguments: str) -> str:
    assert CLASSPATH is not None
    command = ["java", "-cp", CLASSPATH, "com.wepay.waltz.tools.storage.disk.DiskCli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, list[Record]]:
    """A released-layout directory with several segments, written by the engine."""
    path = tmp_path / "written"
    create_cluster([path], num_partitions=2, layout=Layout.RELEASED)
    records = make_records(2500, partition=1)
    with StorageDirectory.open(path, options=StorageOptions(segment_size_threshold=400_000)) as storage:
        partition = storage.partition(1)
        partition.set_low_water_mark(0, -1)
        for start in range(0, len(records), 37):
            partition.append(records[start : start + 37])
    return path, records


def test_released_tool_verifies_our_segments_and_changes_nothing(written: tuple[Path, list[Record]]) -> None:
    path, _ = written
    before = digest(path)
    segment = path / "1" / "0000000000000000000.seg"
    assert "all check pass" in _disk_tool("verify-segment", str(segment))
    assert digest(path) == before


def test_released_tool_reads_our_records(written: tuple[Path, list[Record]]) -> None:
    path, records = written
    shown = _disk_tool("dump-segment", "-r", "-t", "7", str(path / "1" / "0000000000000000000.seg"))
    record = records[7]
    signed = record.data_checksum - (1 << 32 if record.data_checksum >> 31 else 0)
    assert re.search(rf"\b7 +ReqId\(c:{record.request_id.client},g:2,p:1,s:7\) +{record.header} +{signed}\b", shown)


def test_released_tool_reads_our_control_file(tmp_path: Path) -> None:
    path = tmp_path / "written"
    create_cluster([path], num_partitions=3, layout=Layout.RELEASED, assign=[1])
    append_lines(path, partition=1, records=[PendingRecord(b"one")])
    shown = _disk_tool("dump-control-file", "-a", "true", str(path / "waltz-storage.ctl"))
    rows = [line.split() for line in shown.splitlines() if re.match(r"\s+\d", line)]
    assert rows == [["1", "0", "-1", "-1", "true", "true"]]
