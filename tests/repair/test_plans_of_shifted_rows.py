"""What recovery plans for long rows of records whose ids are too low: they read like repeats, and others missing further on.

A reader that looks sixteen records ahead does not see where such a row ends; a replica tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.builders import build_directory, make_records
from tests.repair.twelve import told
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.formats.segment import HEADER_SIZE, Record, index_name, segment_name

SIZE = 60
RECORDS = make_records(60, size=20)
"""Transactions 0 to 59, 60 bytes each."""
Change = Callable[[list[Record]], list[Record]]


def under(number: int, record: Record) -> Record:
    return Record.make(number, record.request_id, record.header, record.data)


def low(first: int, stop: int, by: int = 1) -> Change:
    """Transactions `first` to `stop` - 1 get ids that are `by` too low."""
    return lambda held: [
        under(one.transaction_id - by, one) if first <= place < stop else one for place, one in enumerate(held)
    ]


def plan(path: Path, *changes: Change, replica: Sequence[Record] = RECORDS, spoiled: Sequence[int] = ()) -> list[str]:
    """With a replica, of a partition with one segment in which the records at the places `spoiled` are damaged."""
    held = RECORDS
    for change in changes:
        held = change(held)
    build_directory(path / "d", {0: [held]}, local_low_water_mark=30)
    build_directory(path / "r", {0: [replica]}, local_low_water_mark=30)
    file = path / "d" / "0" / segment_name(0)
    data = bytearray(file.read_bytes())
    for number in spoiled:
        data[place(number) + 50] ^= 1
    file.write_bytes(data)
    return told(plan_recover(path / "d", replicas=[path / "r"]))


def place(number: int) -> int:
    return HEADER_SIZE + SIZE * number


@pytest.mark.parametrize("count", [16, 17, 18, 19, 20, 40])
@pytest.mark.parametrize("by", [1, 2, 3])
def test_a_row_of_any_length_comes_back_in_its_place(tmp_path: Path, count: int, by: int) -> None:
    where = f"[{place(5)}+{SIZE * count}]"
    wanted = [f"restore-record 0.seg 5..{4 + count} {where}", f"= write 0.seg {where}"]
    assert plan(tmp_path, low(5, 5 + count, by)) == wanted


def restored(first: int, stop: int, at: int | None = None) -> str:
    begin = first if at is None else at
    return f"restore-record 0.seg {first}..{stop - 1} [{place(begin)}+{SIZE * (stop - first)}]"


def test_two_rows_in_one_segment(tmp_path: Path) -> None:
    found = plan(tmp_path, low(2, 21), low(39, 58))
    assert [one for one in found if one[0] != "="] == [restored(39, 58), restored(2, 21)]


def test_a_row_behind_a_record_that_stands_twice_and_one_that_is_damaged(tmp_path: Path) -> None:
    """Both tell nothing of the row."""

    def twice(held: list[Record]) -> list[Record]:
        return [*held[:3], held[2], *held[3:]]

    found = plan(tmp_path, low(30, 50), twice, spoiled=(8,))
    assert [one for one in found if one[0] != "="] == [
        restored(30, 50, 31),
        restored(7, 8, 8),
        f"remove-bytes 0.seg [{place(3)}+{SIZE}] loses",
        "rebuild-index 0.idx",
    ]


def test_a_record_that_stands_twice_and_one_that_is_missing_are_two_losses(tmp_path: Path) -> None:
    """The replica's records from the one to the other take more room."""

    def changed(held: list[Record]) -> list[Record]:
        return [*held[:5], under(4, held[50]), *held[5:30], *held[32:]]

    assert [one for one in plan(tmp_path, changed) if one[0] != "="] == [
        f"restore-record 0.seg 30..31 [{place(31)}+0]",
        f"remove-bytes 0.seg [{place(5)}+{SIZE}] loses",
        "rebuild-index 0.idx",
    ]


@pytest.mark.parametrize("replica", [RECORDS[:40], RECORDS[:26], RECORDS[:25], [*RECORDS[:25], under(25, RECORDS[3])]])
def test_a_row_comes_back_where_the_replica_has_the_record_behind_it(tmp_path: Path, replica: Sequence[Record]) -> None:
    found = plan(tmp_path, low(5, 25), replica=replica)
    assert (restored(5, 25) in found) is (replica[25:26] == RECORDS[25:26])


@pytest.mark.parametrize("alone", [False, True])
def test_a_row_at_the_beginning_needs_a_record_in_front(tmp_path: Path, *, alone: bool) -> None:
    """That of another segment, if there is one; the row further on comes back either way."""
    held = low(39, 58)(low(2, 21)(RECORDS))
    build_directory(tmp_path / "d", {0: [held[:2], held[2:]]}, local_low_water_mark=30)
    build_directory(tmp_path / "r", {0: [RECORDS]}, local_low_water_mark=30)
    if alone:
        for name in (segment_name(0), index_name(0)):
            (tmp_path / "d" / "0" / name).unlink()
    found = told(plan_recover(tmp_path / "d", replicas=[tmp_path / "r"]))
    assert "restore-record 2.seg 39..57 [2348+1140]" in found
    assert ("restore-record 2.seg 2..20 [128+1140]" in found) is not alone
