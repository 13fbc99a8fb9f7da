"""A storage directory as its quarantine sees it: which partitions an entry touches, and how they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.storage.support import LAYOUTS, data_path
from waltzctl.engine.durable.manifest import KeptFile, KeptMove, KeptRange, PartitionLeft, QuarantineEntry, RepairState
from waltzctl.engine.log.view import read_control
from waltzctl.engine.storage.store import STATE_FILES, concerned, file_sizes, marks_of, partition_states, view_or_empty
from waltzctl.formats.checksums import Buffer
from waltzctl.formats.control import Layout, PartitionInfo
from waltzctl.formats.segment import index_name, segment_name

CONTROL = "waltz-storage.ctl"


def entry(storage: Path, **fields: object) -> QuarantineEntry:
    path = storage / ".waltzctl" / "quarantine" / "1"
    base = QuarantineEntry("1", 1, "recover", (), "2026-11-22T08:51:18.000Z", "0", RepairState.PREPARED, path)
    return replace(base, **fields)  # type: ignore[arg-type]


def touching(*spans: tuple[int, int, int]) -> KeptFile:
    """The control file with edits in place: offset, bytes that go, bytes that come."""
    ranges = tuple(KeptRange(offset, length, written, None, None, None, None) for offset, length, written in spans)
    return KeptFile(CONTROL, None, None, ranges)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "s", {0: 25, 2: 5}, per_segment=10, num_partitions=4)


@LAYOUTS
def test_the_infos_that_an_edit_of_the_control_file_reaches(tmp_path: Path, layout: Layout) -> None:
    path = build_directory(tmp_path / "s", {0: 5, 3: 5}, layout=layout)
    size = layout.info_schema.size
    info = layout.info_offset
    for spans, reached in (
        ([(info(1), size, size)], {1}),
        ([(info(1), 1, 1)], {1}),
        ([(info(1) - 1, 1, 1)], {0}),
        ([(info(1) - 1, 2, 1)], {0, 1}),
        ([(info(1) - 1, 1, 2)], {0, 1}),
        ([(info(2) - 1, 1, 1)], {1}),
        ([(info(1), size + 1, 0)], {1, 2}),
        ([(info(0), 4, 4)], {0}),
        ([(info(0), 4 * size, 0)], {0, 1, 2, 3}),
        ([(info(3), 0, 9 * size)], {3}),
        ([(info(0) - 1, 1, 1)], {0, 1, 2, 3}),
        ([(0, 4, 4)], {0, 1, 2, 3}),
        ([(info(0), 4, 4), (info(2) + size - 1, 1, 1)], {0, 2}),
        ([], {0, 1, 2, 3}),
    ):
        assert concerned(entry(path, files=(touching(*spans),))) == reached, spans


def test_files_directories_and_moves_name_their_partition(storage: Path) -> None:
    files = tuple(KeptFile(name, None, None) for name in (f"2/{segment_name(0)}", ".waltzctl/sessions", "notes"))
    assert concerned(entry(storage, files=files)) == {2}
    assert concerned(entry(storage, directories=("3",))) == {3}
    move = KeptMove("1", ".waltzctl/unassigned/1")
    assert concerned(entry(storage, moves=(move,), files=files)) == {1, 2}
    assert concerned(entry(storage, files=(touching((128, 1, 1)), *files))) == {0, 2}
    (storage / CONTROL).unlink()
    assert concerned(entry(storage, files=(touching((128, 1, 1)), *files))) == {2}


def test_what_an_entry_says_itself_counts(storage: Path) -> None:
    left = (PartitionLeft(1, None, ()), PartitionLeft(3, None, ()))
    assert concerned(entry(storage, files=(touching(),), partitions=left)) == {1, 3}
    assert concerned(entry(storage, files=(touching(),), partitions=())) == frozenset()


def test_how_the_partitions_are(storage: Path) -> None:
    (storage / "0" / segment_name(10)).unlink()
    (storage / "0" / "notes").write_bytes(b"x")
    sizes = {path.name: path.stat().st_size for path in (storage / "0").iterdir() if path.name != "notes"}
    assert file_sizes(storage, 0) == sizes
    assert file_sizes(storage, 1) == {}
    assert (view_or_empty(storage, 1).segments, view_or_empty(storage, 1).path) == ((), storage / "1")
    assert len(view_or_empty(storage, 0).segments) == 3
    whole = entry(storage, files=(KeptFile(f"2/{index_name(0)}", None, None), KeptFile("0/x", None, None)))
    control = read_control(storage / CONTROL)
    assert control is not None
    assert [marks_of(control, number) for number in range(5)] == [
        (3, 12, 12),
        (-1, -1, -1),
        (3, 2, 2),
        (-1, -1, -1),
        None,
    ]
    assert marks_of(None, 0) is None
    assert partition_states(whole) == (
        PartitionLeft(0, (3, 12, 12), tuple(sorted(sizes.items()))),
        PartitionLeft(2, (3, 2, 2), tuple(sorted(file_sizes(storage, 2).items()))),
    )
    raw = bytearray((storage / CONTROL).read_bytes())
    for number in (1, 2):
        raw[Layout.RELEASED.struct_offset(2, number)] ^= 1
    (storage / CONTROL).write_bytes(raw)
    assert partition_states(whole)[1].marks is None
    assert data_path(storage, 0, 2).name in dict(partition_states(whole)[1].files)


def test_what_of_our_own_state_a_repair_may_change() -> None:
    assert {
        ".waltzctl/availability.json",
        ".waltzctl/sessions",
        ".waltzctl/accepted-losses",
        ".waltzctl/commit-journal.json",
    } == STATE_FILES


def test_what_a_repair_may_change_of_our_own_state() -> None:
    """What goes with the partitions, and nothing that says what was repaired."""
    assert {
        ".waltzctl/availability.json",
        ".waltzctl/sessions",
        ".waltzctl/accepted-losses",
        ".waltzctl/commit-journal.json",
    } == STATE_FILES


def test_the_state_of_one_partition_is_read_without_the_infos_of_all_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of thousands of repairs, one for each partition, decoded the whole control file."""
    storage = build_directory(tmp_path / "s", {2: 4}, num_partitions=300)
    read: list[int] = []
    decode = PartitionInfo.decode

    def heard(layout: Layout, partition: int, data: Buffer, offset: int) -> PartitionInfo:
        read.append(partition)
        return decode(layout, partition, data, offset)

    monkeypatch.setattr(PartitionInfo, "decode", heard)
    (found,) = partition_states(entry(storage, files=(KeptFile(f"2/{segment_name(0)}", None, None),)))
    assert (found.marks, read) == ((3, 1, 1), [2])
    (beyond,) = partition_states(entry(storage, files=(KeptFile(f"300/{segment_name(0)}", None, None),)))
    assert beyond.marks is None
    (storage / CONTROL).write_bytes(b"x" * 127)
    (short,) = partition_states(entry(storage, files=(KeptFile(f"2/{segment_name(0)}", None, None),)))
    assert short.marks is None
