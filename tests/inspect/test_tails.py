"""What stands behind the last record is seen by a quick check as by a full one, however much of it there is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.inspect.helpers import age, codes, idx, run, seg
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect import partial
from waltzctl.engine.inspect.status import storage_status
from waltzctl.engine.inspect.verification import VerifySummary
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, Record

SIZE = 100
RECORDS = 30
LAST = 20
"""First id of the last segment, which holds ten records."""


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds that a test can step over; their proportions are those of the real ones."""
    monkeypatch.setattr(partial, "TAIL", 8 << 10)
    monkeypatch.setattr(partial, "SEARCH", 64 << 10)
    monkeypatch.setattr(partial, "ZEROS", 256 << 10)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "s", {0: RECORDS}, per_segment=10, size=SIZE)


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def record(number: int, size: int = SIZE) -> bytes:
    return Record.make(number, RequestId(1, 1, 0, number), 0, bytes([number % 251]) * size).encode()


def looks(storage: Path) -> tuple[list[Finding], list[Finding], list[Finding]]:
    """Findings of status, of a quick and of a full verification."""
    status = storage_status(age(storage))
    return list(status.partitions[0].findings), run(storage, quick=True)[0], run(storage)[0]


def place(finding: Finding) -> tuple[object, ...]:
    return finding.code, finding.severity, finding.path, finding.transaction_id, finding.offset, finding.length


@pytest.mark.parametrize("length", [1, 39, 40, 41, 8191, 8192, 8193, 65535, 65536, 65537, 327680])
def test_zeros_behind_the_last_record_are_a_torn_tail_whatever_their_number(storage: Path, length: int) -> None:
    """To each side of every bound up to the last; all three looks say the same."""
    append(seg(storage, 0, LAST), bytes(length))
    status, quick, full = looks(storage)
    assert codes(full) == ["torn-tail"]
    assert [place(one) for one in status] == [place(one) for one in quick] == [place(one) for one in full]


@pytest.mark.parametrize("length", [1 << 20, 16 << 20, 64 << 20, 2 << 30])
def test_a_preallocated_end_is_a_torn_tail_and_costs_nothing(storage: Path, length: int) -> None:
    """A hole is not read, so that its length is no bound."""
    path = seg(storage, 0, LAST)
    os.truncate(path, path.stat().st_size + length)
    assert codes(storage_status(age(storage)).partitions[0].findings) == ["torn-tail"]
    findings, summary = run(storage, quick=True)
    assert codes(findings) == ["torn-tail"]
    assert findings[0].length == length
    assert isinstance(summary, VerifySummary)


def test_a_zero_too_many_to_be_read_is_damage_of_which_more_is_not_known(storage: Path) -> None:
    """Zeros that are no hole: behind the last bound nobody knows what follows, and nobody says that all is well."""
    written = b"\1" + bytes((64 << 10) + (256 << 10) + (2 << 20))
    append(seg(storage, 0, LAST), written)
    status, quick, full = looks(storage)
    assert codes(full) == ["torn-tail"]
    assert codes(status) == codes(quick) == ["record-checksum"]
    assert "what follows was not examined" in quick[0].message


@pytest.mark.parametrize(("length", "told"), [(65535, "torn-tail"), (65536, "torn-tail"), (65537, "record-length")])
def test_junk_is_searched_for_records_up_to_a_bound(storage: Path, length: int, told: str) -> None:
    """One step to each side: behind the bound it may be damage in front of records, and is not called torn."""
    append(seg(storage, 0, LAST), b"\xa5" * length)
    status, quick, full = looks(storage)
    assert codes(full) == ["torn-tail"]
    assert codes(status) == codes(quick) == [told]


@pytest.mark.parametrize("zeros", [1, 8192, 60000, 70000])
def test_records_behind_zeros_are_damage(storage: Path, zeros: int) -> None:
    """The index ends, zeros follow, then records: within the bound they are found, behind it they may be there."""
    append(seg(storage, 0, LAST), bytes(zeros) + record(RECORDS + 1) + record(RECORDS + 2))
    status, quick, full = looks(storage)
    assert "record-checksum" in codes(full)
    for found in (status, quick):
        assert codes(found)[0] == "record-checksum"
        assert found[0].severity == "damage"


@pytest.mark.parametrize("many", [1, 58, 59, 60, 2000])
def test_records_that_the_index_does_not_list_are_told_whatever_their_number(storage: Path, many: int) -> None:
    """An index that lags behind by more than is read on is short as well."""
    append(seg(storage, 0, LAST), b"".join(record(RECORDS + number) for number in range(many)))
    status, quick, full = looks(storage)
    assert codes(status) == codes(quick) == codes(full) == ["index-short"]


@pytest.mark.parametrize("size", [8152, 8153, 20000, 100000])
def test_a_large_record_that_the_index_does_not_list_is_no_torn_tail(storage: Path, size: int) -> None:
    """It reaches beyond what is read on at first, and is read to its end."""
    append(seg(storage, 0, LAST), record(RECORDS, size))
    status, quick, full = looks(storage)
    assert codes(status) == codes(quick) == codes(full) == ["index-short"]


def test_a_large_record_that_is_damaged_is_a_torn_tail(storage: Path) -> None:
    """Its length leads to the end of the file, and its checksum is wrong."""
    append(seg(storage, 0, LAST), record(RECORDS, 20000)[:-1] + b"\0")
    status, quick, full = looks(storage)
    assert codes(status) == codes(quick) == codes(full) == ["torn-tail"]


@pytest.mark.parametrize("entries", [1, 9, 10, 11, 1000, 100_000])
def test_an_index_with_any_number_of_empty_entries_hides_nothing(storage: Path, entries: int) -> None:
    """Zeros at the end of both files: the last record that the index proves is found in front of them."""
    append(idx(storage, 0, LAST), bytes(ENTRY_SIZE * entries))
    append(seg(storage, 0, LAST), bytes(100_000))
    status, quick, full = looks(storage)
    assert set(codes(full)) == {"torn-tail", "index-long"}
    assert set(codes(status)) == {"torn-tail", "index-long"}
    assert {"torn-tail", "index-long"} <= set(codes(quick))
    assert storage_status(storage).partitions[0].last_transaction_id == RECORDS - 1


@pytest.mark.parametrize("left", range(11))
def test_the_last_record_that_an_index_proves_is_found(storage: Path, left: int) -> None:
    """However many of the records that an index lists are gone from the end of the file."""
    path = seg(storage, 0, LAST)
    os.truncate(path, HEADER_SIZE + left * (SIZE + 40))
    findings = storage_status(age(storage)).partitions[0].findings
    assert storage_status(storage).partitions[0].records == 20 + left
    assert ("index-long" in codes(findings)) is (left < 10)


@pytest.mark.parametrize("entries", [1, 9])
def test_an_index_that_ends_in_front_of_what_was_not_read_lacks_so_many_entries_at_least(
    storage: Path, entries: int
) -> None:
    last = seg(storage, 0, LAST)
    append(last, b"".join(record(number) for number in range(RECORDS, RECORDS + 200)))
    index = last.with_suffix(".idx")
    index.write_bytes(index.read_bytes()[: HEADER_SIZE + ENTRY_SIZE * entries])
    _, quick, full = looks(storage)
    (guessed,) = [one for one in quick if one.code == "index-short"]
    (known,) = [one for one in full if one.code == "index-short"]
    assert "the segment has at least " in guessed.message
    assert "the segment has 210 records" in known.message
