"""What compare tells of each replica: what verify tells of the same directory, however the replicas are cut into ranges."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import make_records, write_segment
from tests.compare.clusters import compared, flip, keep_up_to, make_cluster, place_of, read, remove_segment
from tests.inspect.helpers import age
from tests.storage.support import write_at
from waltzctl.engine.compare import ranges
from waltzctl.engine.findings import Finding, Severity
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.scan import scanner
from waltzctl.formats.control import CONTROL_FILE_NAME, CONTROL_HEADER, Layout
from waltzctl.formats.segment import (
    HEADER_SIZE,
    SegmentHeader,
    encode_entries,
    encode_records,
    index_name,
    segment_name,
)


def _seg(storage: Path, first: int) -> Path:
    return storage / "0" / segment_name(first)


def _cut(first: int, by: int) -> Callable[[Path], None]:
    def injure(storage: Path) -> None:
        data = _seg(storage, first)
        data.write_bytes(data.read_bytes()[:-by])

    return injure


def _overlap(storage: Path) -> None:
    """Segment 50 goes on with what segment 100 holds as well."""
    for path in (_seg(storage, 50), storage / "0" / index_name(50)):
        path.unlink()
    write_segment(storage / "0", make_records(55, first=50))


def _empty_inside(*, last: bool) -> Callable[[Path], None]:
    """Segment 0 goes on with what segment 50 holds (`last`: segment 100 as well), and that one is empty."""

    def injure(storage: Path) -> None:
        for first in (0, 50, 100) if last else (0, 50):
            remove_segment(storage, first)
        write_segment(storage / "0", make_records(130 if last else 100))
        write_segment(storage / "0", [], first=50)

    return injure


def _renamed(storage: Path) -> None:
    for name in (segment_name, index_name):
        (storage / "0" / name(50)).rename(storage / "0" / name(51))


def _header_of_another(storage: Path) -> None:
    for path in (_seg(storage, 50), storage / "0" / index_name(50)):
        header = SegmentHeader.decode(path.read_bytes())
        write_at(path, 0, replace(header, partition=7).encode())


def _stray(storage: Path) -> None:
    _seg(storage, 50).rename(storage / "0" / "old.seg")
    (storage / "0" / index_name(50)).rename(storage / "0" / "old.idx")


def _stranger(first: int, place: int) -> Callable[[Path], None]:
    """A record that does not belong there, with right checksums, in front of the record `place` of a segment."""

    def injure(storage: Path) -> None:
        data, strange = _seg(storage, first), read(_seg(storage, 0))[4]
        records = read(data)
        body, offsets = encode_records([*records[:place], strange, *records[place:]])
        data.write_bytes(data.read_bytes()[:HEADER_SIZE] + body)
        entries = [HEADER_SIZE + offset for number, offset in enumerate(offsets) if number != place]
        index = data.with_suffix(".idx")
        index.write_bytes(index.read_bytes()[:HEADER_SIZE] + encode_entries(entries))

    return injure


def _appended(first: int, data: bytes) -> Callable[[Path], None]:
    def injure(storage: Path) -> None:
        path = _seg(storage, first)
        path.write_bytes(path.read_bytes() + data)

    return injure


def _control(offset: int, data: bytes) -> Callable[[Path], None]:
    return lambda storage: write_at(storage / CONTROL_FILE_NAME, offset, data)


INJURIES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda storage: None,
    "first segment lost": lambda storage: remove_segment(storage, 0),
    "segment lost": lambda storage: remove_segment(storage, 50),
    "two segments lost": lambda storage: (remove_segment(storage, 0), remove_segment(storage, 50)),
    "last segment ends in front of the mark": lambda storage: keep_up_to(storage, 40),
    "sealed segment torn": _cut(50, 30),
    "sealed segment ends early": lambda storage: os.truncate(_seg(storage, 50), place_of(storage, 90)[1]),
    "last record torn": _cut(100, 30),
    "data file lost": lambda storage: _seg(storage, 50).unlink(),
    "last data file lost": lambda storage: _seg(storage, 100).unlink(),
    "overlap": _overlap,
    "empty inside of another": _empty_inside(last=False),
    "empty and last inside of another": _empty_inside(last=True),
    "renamed": _renamed,
    "header of another partition": _header_of_another,
    "under another name": _stray,
    "record flipped": lambda storage: flip(storage, 70),
    "stranger in front of all": _stranger(0, 0),
    "stranger in front of a segment": _stranger(50, 0),
    "stranger in a segment": _stranger(50, 13),
    "stranger behind a segment": _stranger(50, 50),
    "stranger behind all": _stranger(100, 30),
    "bytes behind a segment": _appended(50, b"no record" * 9),
    "a few bytes behind a segment": _appended(50, b"few"),
    "directory lost": lambda storage: shutil.rmtree(storage / "0"),
    "version of the control file": _control(CONTROL_HEADER.offset_of("version"), b"\0\0\0\1"),
    "partition id in the control file": _control(Layout.RELEASED.info_offset(0), b"\0\0\0\7"),
}


COSTS_NOTHING = ("nothing", "last record torn", "bytes behind a segment", "a few bytes behind a segment")


def _of(findings: list[Finding]) -> list[str]:
    """What is lost or doubtful, as it is told."""
    meant = [one for one in findings if one.severity is Severity.DAMAGE]
    return sorted(f"{one.code} {one.path} {one.segment} {one.transaction_id} {one.message}" for one in meant)


@pytest.mark.turns(10)
@pytest.mark.parametrize("size", [900, 5000, 1 << 30])
@pytest.mark.parametrize("injury", INJURIES)
def test_what_is_told_of_a_replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, injury: str, size: int) -> None:
    nodes = make_cluster(tmp_path)
    INJURIES[injury](nodes[1])
    age(nodes[1])
    monkeypatch.setattr(ranges, "RANGE", size)
    if size == 900:
        monkeypatch.setattr(scanner, "BATCH_ROWS", 7)
    told = [one for one in compared(*nodes).findings if nodes[1] in (Path(one.path), *Path(one.path).parents)]
    assert _of(told) == _of([one for one in verify([nodes[1]]) if isinstance(one, Finding)])
    assert bool(_of(told)) == (injury not in COSTS_NOTHING)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("size", [900, 1 << 30])
def test_what_no_finding_tells_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, last: bool
) -> None:
    """It was to be restored from another replica, and counted as damaged where it is decided what recovery keeps."""
    nodes = make_cluster(tmp_path)
    _empty_inside(last=last)(nodes[1])
    monkeypatch.setattr(ranges, "RANGE", size)
    told = compared(*nodes)
    assert {one.code.value for one in told.findings} == {"segment-overlap"}
    assert [(one.state, one.damaged, one.cut_after) for one in told[0].replicas] == [("equal", (), None)] * 3
    assert told.summary.exit_status_name == "repairable"


@pytest.mark.turns(10)
@pytest.mark.parametrize("size", [900, 5000])
def test_a_stranger_is_named_wherever_ranges_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """It loses no transaction, so that neither the range in front of it nor the one behind it needs it."""
    whole = make_cluster(tmp_path, 2)
    monkeypatch.setattr(ranges, "RANGE", size)
    for place in range(51):
        nodes = [Path(shutil.copytree(path, tmp_path / f"{place}" / path.name)) for path in whole]
        _stranger(50, place)(nodes[1])
        age(nodes[1])
        answer = compared(*nodes)
        assert _of(list(answer.findings)) == _of([one for one in verify([nodes[1]]) if isinstance(one, Finding)]), place
        assert len(answer.findings) == 1, place
        assert answer.summary.exit_status_name == "repairable", place
        assert not answer[0].replicas[1].damaged
