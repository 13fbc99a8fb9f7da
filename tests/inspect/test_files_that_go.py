"""What goes, or is written, between the moment when files are listed and the moment when they are read hides nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.builders import KEY, build_directory, make_records, write_segment
from tests.inspect.helpers import age, codes, cut, idx, seg
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect import dump, dump_records, segment_checks
from waltzctl.engine.inspect.dump_index import dump_index
from waltzctl.engine.inspect.dump_records import _Segment
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_checks import FilesChangedError, SegmentCheck
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.inspect.segment_reach import SegmentReach
from waltzctl.engine.log.view import FileState

Reader = Callable[[Path], Iterator[object]]
READERS: dict[str, Reader] = {
    "records": lambda path: dump_records.dump_records(path, data=False),
    "records, backwards": lambda path: dump_records.dump_records(path, data=False, reverse=True),
    "index": dump_index,
    "index, backwards": lambda path: dump_index(path, reverse=True),
    "segments": dump.dump_segments,
}


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Segments 0, 10 and 20 of ten records each."""
    return age(build_directory(tmp_path / "s", {0: 30}, per_segment=10, size=20, local_low_water_mark=14))


def shown(items: Iterator[object]) -> set[int]:
    """The segments of which anything is shown."""
    return {one.segment for one in items if not isinstance(one, Finding)}  # type: ignore[attr-defined]


@pytest.mark.parametrize("gone", [0, 10, 20])
@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
def test_a_segment_that_went_since_it_was_listed_hides_no_other(storage: Path, read: Reader, gone: int) -> None:
    items = read(storage)
    for path in (seg(storage, 0, gone), idx(storage, 0, gone)):
        path.unlink()
    assert shown(items) == {0, 10, 20} - {gone}


@pytest.mark.parametrize("changed", [0, 20])
def test_a_gap_beside_a_segment_that_is_written_just_now_is_none_yet(storage: Path, changed: int) -> None:
    """Whichever of the two it is."""
    for path in (seg(storage, 0, 10), idx(storage, 0, 10)):
        path.unlink()

    def looked_at(first: int) -> _Segment:
        job = SegmentJob(storage / "0", first, 0, cluster_key=KEY, last=first == 20)
        reach = SegmentReach(job, ReadLimits())
        segment = _Segment(job, ReadLimits(), dump_records._Range(None, None), False, reach)
        list(segment.forwards(None))
        return segment

    before, behind = looked_at(0), looked_at(20)
    assert codes(before.joined(before, behind)) == ["segment-gap"]
    os.utime(seg(storage, 0, changed))
    assert codes(before.joined(before, behind)) == []


def test_a_data_file_whose_index_goes_while_both_are_opened_is_let_go_of(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = segment_checks.open_source

    def opened(path: Path, size: int) -> object:
        if path == idx(storage, 0, 20):
            raise FileNotFoundError(path)
        return original(path, size)

    monkeypatch.setattr(segment_checks, "open_source", opened)
    check, before = SegmentCheck(SegmentJob(storage / "0", 20, 0), ReadLimits()), len(os.listdir("/proc/self/fd"))
    with pytest.raises(FilesChangedError):
        check.__enter__()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_segment_whose_header_cannot_be_read_is_shown_with_what_is_known_of_it(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = os.open

    def failing(path: str | Path, *more: int, **options: int) -> int:
        if Path(path) == seg(storage, 0, 10):
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, *more, **options)

    monkeypatch.setattr(os, "open", failing)
    (found,) = [one for one in dump.dump_segments(storage) if isinstance(one, dump.SegmentDump) and one.segment == 10]
    state = FileState.of(seg(storage, 0, 10))
    assert state is not None
    assert (found.first_transaction_id, found.version, found.data_bytes) == (None, None, state.size)


def test_the_ids_in_front_of_a_segment_that_is_called_the_first_are_missing_to_who_wants_one(storage: Path) -> None:
    """Its name says 0, its header and its records begin with 10."""
    for suffix in (".seg", ".idx"):
        seg(storage, 0, 10).with_suffix(suffix).replace(seg(storage, 0, 0).with_suffix(suffix))
    age(storage)
    for options, told in (({}, True), ({"first": 0}, True), ({"first": 0, "last": 0}, True), ({"first": 10}, False)):
        found = codes(one for one in dump_records.dump_records(storage, **options) if isinstance(one, Finding))  # type: ignore[arg-type]
        assert ("segment-gap" in found) is told, options


@pytest.mark.parametrize("place", [1, 2, 3])
def test_any_segment_behind_may_hold_what_is_missing_in_front(tmp_path: Path, place: int) -> None:
    """Under a name that is too large."""
    storage = build_directory(tmp_path / "s", {0: 50}, per_segment=10, size=20)
    write_segment(storage / "0", make_records(10, size=20))
    for suffix in (".seg", ".idx"):
        seg(storage, 0, 10 * place).with_suffix(suffix).unlink()
        seg(storage, 0, 0).with_suffix(suffix).rename(seg(storage, 0, 10 * place).with_suffix(suffix))
    items = dump_records.dump_records(age(storage), first=0, last=9, data=False)
    assert [one.transaction_id for one in items if isinstance(one, Finding) and one.code == "segment-gap"] == []


@pytest.mark.parametrize("place", [0, 10, 20])
def test_any_segment_in_front_of_the_last_may_hold_what_is_missing_at_the_end(tmp_path: Path, place: int) -> None:
    """Only the one at `place` goes on to the mark."""
    records = make_records(45, size=20)
    storage = build_directory(tmp_path / "s", {0: 40}, per_segment=10, size=20, local_low_water_mark=44)
    write_segment(storage / "0", records[place:])
    items = list(dump_records.dump_records(age(storage), first=40, data=False))
    assert "acknowledged-missing" not in codes(one for one in items if isinstance(one, Finding))
    cut(seg(storage, 0, place), seg(storage, 0, place).stat().st_size - 60)
    items = list(dump_records.dump_records(age(storage), first=40, data=False))
    assert "acknowledged-missing" in codes(one for one in items if isinstance(one, Finding))


@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
def test_of_a_directory_that_no_partition_of_the_cluster_has_only_its_place_is_told(
    storage: Path, read: Reader
) -> None:
    """Whatever is missing in it."""
    build_directory(storage.parent / "other", {3: 20}, per_segment=10, num_partitions=4)
    (storage.parent / "other" / "3").rename(storage / "3")
    seg(storage, 3, 0).unlink()
    seg(storage, 3, 10).unlink()
    found = [one for one in read(age(storage)) if isinstance(one, Finding)]
    assert [(one.code.value, one.partition) for one in found] == [("partition-not-assigned", 3)]
