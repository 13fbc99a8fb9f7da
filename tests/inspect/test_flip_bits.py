"""Single bits of a small directory, flipped: each one that carries meaning is named, once, by the right code.

One bit of every byte, every bit with ``--long``.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.builders import build_directory, digest
from tests.inspect.helpers import age, codes, flip, run
from waltzctl.formats.control import CONTROL_HEADER, Layout
from waltzctl.formats.segment import HEADER_SIZE, SEGMENT_HEADER

# The only bits that carry no meaning: nothing can tell which creation time is the right one.
MEANINGLESS = {
    ".ctl": range(CONTROL_HEADER.offset_of("created"), CONTROL_HEADER.offset_of("created") + 8),
    ".seg": range(SEGMENT_HEADER.offset_of("created"), SEGMENT_HEADER.offset_of("created") + 8),
    ".idx": range(SEGMENT_HEADER.offset_of("created"), SEGMENT_HEADER.offset_of("created") + 8),
}

RECORDS = {"record-checksum", "record-length", "torn-tail"}
STRUCTS = {"control-struct-checksum"}


def segment_codes(offset: int) -> set[str]:
    for field, name in [
        ("version", "unknown-version"),
        ("cluster_key", "segment-key"),
        ("partition", "segment-partition"),
        ("first_transaction_id", "segment-name"),
        ("reserved", "reserved-not-zero"),
    ]:
        start = SEGMENT_HEADER.offset_of(field)
        if start <= offset < start + SEGMENT_HEADER.size_of(field):
            return {name}
    return RECORDS


def index_codes(offset: int) -> set[str]:
    if offset >= HEADER_SIZE:
        return {"index-entry"}
    (name,) = segment_codes(offset)
    return {name if name in ("unknown-version", "reserved-not-zero") else "index-header"}


def control_codes(offset: int, layout: Layout) -> set[str]:
    for field, name in [
        ("version", "unknown-version"),
        ("cluster_key", "segment-key"),
        ("num_partitions", "control-file-size"),
        ("reserved", "reserved-not-zero"),
    ]:
        start = CONTROL_HEADER.offset_of(field)
        if start <= offset < start + CONTROL_HEADER.size_of(field):
            return {name}
    inside = (offset - CONTROL_HEADER.size) % layout.info_schema.size
    return {"control-partition-id"} if inside < 4 else STRUCTS


def expected(path: Path, offset: int, layout: Layout) -> set[str]:
    if offset in MEANINGLESS[path.suffix]:
        return set()
    if path.suffix == ".ctl":
        return control_codes(offset, layout)
    return segment_codes(offset) if path.suffix == ".seg" else index_codes(offset)


@pytest.mark.turns(10)
@pytest.mark.parametrize(
    ("layout", "partitions", "pattern"),
    [
        (Layout.RELEASED, 1, "*.[si]*"),
        (Layout.RELEASED, 2, "*.ctl"),
        (Layout.DOCUMENTED, 2, "*.ctl"),
        pytest.param(Layout.RELEASED, 2, "*", marks=pytest.mark.long),
    ],
)
def test_every_flipped_bit_is_named_by_exactly_one_finding(
    tmp_path: Path, request: pytest.FixtureRequest, layout: Layout, partitions: int, pattern: str
) -> None:
    """Partitions of two segments of two records: every byte of every file, one bit at a time."""
    every = request.config.getoption("--long")
    storage = age(
        build_directory(tmp_path / "s", dict.fromkeys(range(partitions), 4), layout=layout, per_segment=2, size=6)
    )
    before = digest(storage)
    flipped = meaningless = 0
    wrong = []
    for path in sorted(one for one in storage.rglob(pattern) if one.is_file()):
        for offset in range(path.stat().st_size):
            for bit in range(8) if every else [(5 * offset + 1) % 8]:
                flip(path, offset, bit)
                findings, summary = run(storage)
                flip(path, offset, bit)
                wanted = expected(path, offset, layout)
                flipped += 1
                meaningless += not wanted
                named = codes(findings)
                if len(named) != bool(wanted) or not set(named) <= wanted or any(one.path != path for one in findings):
                    wrong.append((path.name, offset, bit, named))
                assert (summary.status == "clean") == all(one.severity == "note" for one in findings)
    assert wrong == []
    assert digest(storage) == before, "verify wrote to what it inspected"
    files = len([one for one in storage.rglob(pattern) if one.is_file()])
    assert meaningless == files * (64 if every else 8)
    print(f"{flipped} bits flipped in {files} files; {meaningless} of them (creation times) carry no meaning")


def test_a_flipped_creation_time_is_shown_by_dump_though_verify_cannot_judge_it(tmp_path: Path) -> None:
    """What no check can tell is at least visible."""
    from waltzctl.engine.inspect.dump import dump_segments

    storage = age(build_directory(tmp_path / "s", {0: 2}))
    (path,) = (storage / "0").glob("*.seg")
    (before,) = dump_segments(storage)
    flip(path, SEGMENT_HEADER.offset_of("created") + 7, 3)
    (after,) = dump_segments(storage)
    assert before.created != after.created
    assert os.path.samefile(before.path, after.path)
