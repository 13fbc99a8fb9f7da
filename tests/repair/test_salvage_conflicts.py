"""Records that were found more than once: identical ones count once, of differing ones the better attested is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import make_records
from tests.repair.salvage_cases import assert_adds_up, assert_clean, data_file, records_in
from waltzctl.engine.repair.salvage import salvage
from waltzctl.formats.checksums import crc32
from waltzctl.formats.segment import Record, pack_record_header


def write(path: Path, *parts: bytes) -> Path:
    path.write_bytes(b"".join(parts))
    return path


def other(record: Record) -> Record:
    """An intact record of the same id and size with other data."""
    return Record.make(record.transaction_id, record.request_id, record.header, bytes(len(record.data)))


def with_wrong_data(record: Record) -> Record:
    """A record that is intact as a whole while its data disagrees with the data checksum."""
    data = bytes(len(record.data))
    head = pack_record_header(record.transaction_id, record.request_id, record.header, len(data), record.data_checksum)
    return replace(record, data=data, record_checksum=crc32(data, crc32(head)))


def test_copies_in_segments_with_other_bounds_count_once(tmp_path: Path) -> None:
    records = make_records(50)
    one = write(tmp_path / "one", data_file(records[:20]), data_file(records[20:]))
    two = write(tmp_path / "two", data_file(records[:35]), data_file(records[30:45]))
    report = salvage([one, two], to=tmp_path / "to")
    assert records_in(report.path) == {0: records}
    assert (report.duplicates, report.superseded, report.conflicts) == (50, 0, ())
    assert report.exit_status_name == "clean"
    assert_clean(report)


def test_what_one_copy_lost_another_has(tmp_path: Path) -> None:
    records = make_records(30, size=40)
    raw = bytearray(data_file(records))
    raw[128 + 80 * 7 + 50] ^= 1
    raw[128 + 80 * 8 + 50] ^= 1
    again = bytearray(data_file(records))
    again[128 + 80 * 22 + 50] ^= 1
    report = salvage([write(tmp_path / "a", raw), write(tmp_path / "b", again)], to=tmp_path / "to")
    assert records_in(report.path) == {0: records}
    assert (report.missing, report.conflicts) == (0, ())


def test_a_record_whose_data_agrees_with_its_checksum_is_preferred(tmp_path: Path) -> None:
    """Even against one that stands among many more records."""
    records = make_records(30, size=40)
    many = write(tmp_path / "many", data_file([*records[:5], with_wrong_data(records[5]), *records[6:]]))
    few = write(tmp_path / "few", data_file(records[5:7]))
    report = salvage([many, few], to=tmp_path / "to")
    assert records_in(report.path) == {0: records}
    (conflict,) = report.conflicts
    assert (conflict.partition, conflict.transaction_id) == (0, 5)
    assert (conflict.kept.path, conflict.kept.offset, conflict.kept.size) == (few, 128, 80)
    assert [(place.path, place.offset) for place in conflict.others] == [(many, 128 + 5 * 80)]
    assert "data checksum" in conflict.reason
    assert (report.superseded, report.duplicates, report.findings) == (1, 1, ())
    assert report.exit_status_name == "damage-remains"
    assert_clean(report)


@pytest.mark.parametrize("order", [0, 1])
def test_the_record_among_more_others_is_preferred(tmp_path: Path, order: int) -> None:
    records = make_records(30, size=40)
    many = write(tmp_path / "many", data_file(records))
    few = write(tmp_path / "few", data_file([records[9], other(records[10]), records[11]]))
    report = salvage([many, few][:: 1 - 2 * order], to=tmp_path / "to")
    assert records_in(report.path) == {0: records}
    (conflict,) = report.conflicts
    assert (conflict.kept.path, conflict.reason) == (many, "more records stand together with it")
    assert_adds_up(report)


def test_of_equals_in_one_source_the_later_one_is_preferred(tmp_path: Path) -> None:
    """A segment that was truncated and written again lies behind its older self, if anything can be said at all."""
    records = make_records(10, size=40)
    newer = [*records[:5], *map(other, records[5:])]
    source = write(tmp_path / "source", data_file(records), b"-", data_file(newer))
    report = salvage([source], to=tmp_path / "to")
    assert records_in(report.path) == {0: newer}
    assert {conflict.reason for conflict in report.conflicts} == {"it stands later in its source"}
    assert (len(report.conflicts), report.duplicates) == (5, 5)
    assert_clean(report)


def test_wrong_data_of_one_record_says_nothing_of_the_others_beside_it(tmp_path: Path) -> None:
    records = make_records(20, size=40)
    many = write(tmp_path / "many", data_file([*records[:5], with_wrong_data(records[5]), *records[6:]]))
    few = write(tmp_path / "few", data_file([other(records[3])]))
    report = salvage([few, many], to=tmp_path / "to")
    (conflict,) = report.conflicts
    assert (conflict.transaction_id, conflict.kept.path) == (3, many)
    assert conflict.reason == "more records stand together with it"


def test_three_differing_records_are_all_named(tmp_path: Path) -> None:
    records = make_records(3, size=40)
    second = [records[0], other(records[1]), records[2]]
    third = [records[0], Record.make(1, records[1].request_id, 0, b"of another length"), records[2]]
    sources = [write(tmp_path / str(n), data_file(rows)) for n, rows in enumerate((records, second, third))]
    report = salvage(sources, to=tmp_path / "to")
    (conflict,) = report.conflicts
    assert {conflict.kept.path, *(place.path for place in conflict.others)} == set(sources)
    assert (report.superseded, report.duplicates, report.written) == (2, 4, 3)
    assert_clean(report)


@settings(max_examples=30)
@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 15), st.sets(st.integers(0, 35), max_size=4)),
        min_size=1,
        max_size=6,
    )
)
def test_any_overlap_gives_each_transaction_once(tmp_path_factory, parts) -> None:  # type: ignore[no-untyped-def]
    """Whatever overlaps, each id is written once, as one of the records that were there, and every copy is accounted for."""
    directory = tmp_path_factory.mktemp("overlap")
    records = make_records(36, size=8)
    present: dict[int, set[Record]] = {}
    sources = []
    for place, (first, count, changed) in enumerate(parts):
        rows = [other(r) if r.transaction_id in changed else r for r in records[first : first + count]]
        for row in rows:
            present.setdefault(row.transaction_id, set()).add(row)
        sources.append(write(directory / str(place), data_file(rows)))
    report = salvage(sources, to=directory / "to")
    written = records_in(report.path)[0]
    assert [row.transaction_id for row in written] == sorted(present)
    assert all(row in present[row.transaction_id] for row in written)
    assert {c.transaction_id for c in report.conflicts} == {t for t, rows in present.items() if len(rows) > 1}
    assert_adds_up(report)
