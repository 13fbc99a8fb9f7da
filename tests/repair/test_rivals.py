"""Two records that bear one id: a replica chooses; without one both stay, or the id is kept in mind as disputed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fixtures.building import LAST, SEGMENTS, clean, put_segment, record, segment
from tests.repair.scenes import actions, codes, recovered, status
from tests.repair.test_wrong_ids import WHOLE, stored, write
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.verification import VerifyOptions
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.recover_ledger import plan_forget
from waltzctl.engine.storage.append import PendingRecord, append_lines
from waltzctl.engine.storage.loss_ledger import read_ledger
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import Record

ENDS = (*SEGMENTS[1:], LAST + 1)


def other(number: int) -> Record:
    return Record.make(number, RequestId(7, 7, 0, 7), 7, b"another")


def doubled(path: Path, number: int, *, false_first: bool, again: Record | None = None, apart: int = 0) -> Path:
    """The clean example with a second record of an id: in front of the true one, behind it, or `apart` records further on."""
    files = clean()
    first, end = next((one, stop) for one, stop in zip(SEGMENTS, ENDS, strict=True) if one <= number < stop)
    records = [record(0, one) for one in range(first, end)]
    place = number - first + (0 if false_first else 1 + apart)
    records.insert(place, other(number) if again is None else again)
    put_segment(files, 0, first, segment(0, first, end, records=records))
    return write(path, files)


PLACES = pytest.mark.parametrize(
    ("number", "false_first", "apart"),
    [(4, True, 0), (4, False, 0), (2, False, 3), (7, True, 0), (7, False, 0), (LAST, True, 0), (LAST, False, 0), (8, True, 0)],
)  # fmt: skip


@pytest.mark.turns(8)
@PLACES
def test_a_replica_chooses(tmp_path: Path, number: int, false_first: bool, apart: int) -> None:
    storage = doubled(tmp_path / "d", number, false_first=false_first, apart=apart)
    replica = write(tmp_path / "replica", clean())
    both = stored(storage)
    assert both.keys() == WHOLE | {other(number).encode()}
    recovered(storage)
    assert stored(storage) == both, "nothing is cut unasked"
    _, result = recovered(storage, replica)
    assert result.status == "clean"
    assert stored(storage) == dict.fromkeys(WHOLE, 1)
    assert read_ledger(storage).losses == ()


@pytest.mark.turns(10)
@PLACES
def test_what_nobody_could_choose_stays_disputed(tmp_path: Path, number: int, false_first: bool, apart: int) -> None:
    storage = doubled(tmp_path / "d", number, false_first=false_first, apart=apart)
    replica = write(tmp_path / "replica", clean())
    recovered(storage, loss=True)
    assert other(number).encode() in stored(storage) if false_first else stored(storage).keys() == WHOLE
    (loss, *ends) = read_ledger(storage).losses
    assert (loss.first, loss.last, loss.disputed) == (number, number, True)
    assert all(one.first > LAST and not one.disputed for one in ends), "what may have been behind the end"
    assert codes(storage) == {"loss-accepted"}
    (said, *_) = [one for one in verify((storage,), VerifyOptions(exclusive=True)) if isinstance(one, Finding)]
    assert "other records bore these ids" in said.message
    if not ends:
        append_lines(storage, partition=0, records=[PendingRecord(b"more")] * 3)
        assert codes(storage) == {"loss-accepted"}, "a session that began since tells nothing of it"
    repair, _ = recovered(storage, replica)
    assert "settle-accepted-loss" in actions(repair)
    assert ("restore-record" in actions(repair)) == false_first
    assert stored(storage).keys() >= WHOLE
    assert other(number).encode() not in stored(storage)


def test_replicas_that_disagree_choose_nothing(tmp_path: Path) -> None:
    storage = doubled(tmp_path / "d", 4, false_first=False)
    replica, wrong = write(tmp_path / "replica", clean()), tmp_path / "wrong"
    files = clean()
    records = [other(4) if number == 4 else record(0, number) for number in range(SEGMENTS[1])]
    put_segment(files, 0, 0, segment(0, 0, SEGMENTS[1], records=records))
    write(wrong, files)
    assert actions(plan_recover(storage, replicas=[replica, wrong])) == ["rebuild-index"]
    apply(plan_recover(storage, allow_data_loss=True), arguments=[])
    assert actions(plan_recover(storage, replicas=[replica, wrong])) == []
    assert status(storage) == "damaged"


def test_a_repeat_is_no_rival(tmp_path: Path) -> None:
    storage = doubled(tmp_path / "d", 4, false_first=False, again=record(0, 4))
    recovered(storage, loss=True)
    assert stored(storage) == dict.fromkeys(WHOLE, 1)
    assert read_ledger(storage).losses == ()
    assert status(storage) == "clean"


def test_a_repeat_in_front_of_the_next_segment_goes_and_costs_nothing(tmp_path: Path) -> None:
    storage = doubled(tmp_path / "d", 7, false_first=False, again=record(0, 7))
    repair, result = recovered(storage)
    assert not repair.plan.loses_data
    assert result.status == "clean"
    assert stored(storage) == dict.fromkeys(WHOLE, 1)


@pytest.mark.parametrize("more", [4, 6])
def test_overlapping_segments_that_differ_leave_disputed_ids(tmp_path: Path, more: int) -> None:
    """The end of the first one was cut away once, and stands behind what was written since; nothing tells which is which."""
    files = {one: data for one, data in clean().items() if "016" not in one}
    end = SEGMENTS[1] + more
    put_segment(files, 0, 0, segment(0, 0, end, records=[record(0, one) for one in range(8)] + [other(8), other(9)][:more]
        + [other(one) for one in range(10, end)]))  # fmt: skip
    put_segment(files, 0, 8, segment(0, 8, end, records=[record(0, one) for one in range(8, end)]))
    storage, replica = write(tmp_path / "d", files), write(tmp_path / "replica", clean())
    assert not plan_recover(storage).plan.loses_data
    recovered(storage, loss=True)
    (loss,) = read_ledger(storage).losses
    assert (loss.first, loss.last, loss.disputed) == (8, end - 1, True)
    assert codes(storage) == {"loss-accepted"}
    _, result = recovered(storage, replica)
    assert result.status == "clean"
    assert stored(storage) == {record(0, one).encode(): 1 for one in range(end)}


def test_a_dispute_can_be_forgotten(tmp_path: Path) -> None:
    storage = doubled(tmp_path / "d", 4, false_first=True)
    apply(plan_recover(storage, allow_data_loss=True), arguments=[])
    assert status(storage) == "damaged"
    apply(plan_forget(storage), arguments=[])
    assert status(storage) == "clean"
