"""What compare tells of each replica: what verify tells of the same directory, however the replicas are cut into ranges."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import make_records, write_segment
from tests.compare.clusters import compared, flip, keep_up_to, make_cluster, place_of, remove_segment
from tests.inspect.helpers import age
from tests.storage.support import write_at
from waltzctl.engine.compare import ranges
from waltzctl.engine.findings import Finding, Severity
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.scan import scanner
from waltzctl.formats.segment import SegmentHeader, index_name, segment_name


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
    "renamed": _renamed,
    "header of another partition": _header_of_another,
    "under another name": _stray,
    "record flipped": lambda storage: flip(storage, 70),
    "directory lost": lambda storage: shutil.rmtree(storage / "0"),
}


def _of(findings: list[Finding]) -> list[str]:
    """What is lost or doubtful, as it is told."""
    meant = [one for one in findings if one.severity is Severity.DAMAGE]
    return sorted(f"{one.code} {one.path} {one.segment} {one.transaction_id} {one.message}" for one in meant)


@pytest.mark.turns(2)
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
    assert bool(_of(told)) == (injury not in ("nothing", "last record torn"))
