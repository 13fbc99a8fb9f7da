"""Whom a partition admits: sessions, switches and outages.  No thread, no disk, and a clock that is set by hand."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest

from tests.node.service_support import request_of
from tests.node.test_partition_service import SESSION, Alone
from waltzctl.engine.errors import CorruptRecordError, DiskFullError, DiskWriteError, SyncFailedError
from waltzctl.engine.node.permissions import RequiredAccess, closed
from waltzctl.engine.storage.availability_marks import Availability
from waltzctl.engine.storage.partition_condition import DAMAGED, WRITABLE
from waltzctl.formats.wire.storage import (
    TruncateRequest,
)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Alone:
    return Alone(monkeypatch)


@pytest.mark.parametrize(("fence", "session"), [(-1, 5), (4, 5), (6, 6)])
def test_the_higher_of_fence_and_control_file_is_in_force(
    monkeypatch: pytest.MonkeyPatch, fence: int, session: int
) -> None:
    assert Alone(monkeypatch, fence).service.access.session_id == session


def test_a_newer_session_is_durable_before_it_is_answered_and_an_older_one_is_refused(alone: Alone) -> None:
    for session, raised in ((5, []), (8, [(3, 8)]), (8, [(3, 8)]), (7, [(3, 8)])):
        alone.service.submit(alone.item(session=session))
        alone.work()
        assert alone.fences.raised == raised
    assert alone.codes() == ["", "", "", "session-changed"]
    assert alone.service.access.session_id == 8


def test_a_session_that_cannot_be_made_durable_is_not_let_in(alone: Alone, caplog: pytest.LogCaptureFixture) -> None:
    def fails(number: int, session: int) -> None:
        raise DiskWriteError(Path("/d/fences"), 0, OSError(errno.EIO, "no"))

    alone.fences.raise_to = fails  # type: ignore[method-assign]
    alone.service.submit(alone.item(session=9))
    alone.work()
    assert alone.codes() == ["io-error"]
    assert alone.service.access.session_id == SESSION
    assert alone.service.access.outage is None, "the partition can write"
    assert [record.getMessage().partition(" failed")[0] for record in caplog.records] == [
        "partition 3: MaxTransactionIdRequest of session 9"
    ]


def test_appends_of_the_session_in_force_need_no_look_while_the_partition_takes_part(alone: Alone) -> None:
    service, partition = alone.service, alone.partition
    assert service.access.open_session() == SESSION
    service.access.availability = Availability(True, False)
    assert service.access.open_session() is None
    service.access.availability = Availability(False, True)
    assert service.access.open_session() == SESSION
    partition.condition = DAMAGED
    assert service.access.open_session() is None
    partition.condition = WRITABLE.after(SyncFailedError(Path("/d"), 0, OSError(errno.EIO, "no")))
    assert service.access.open_session() is None
    partition.condition = WRITABLE
    service.access.note_failure(DiskFullError(Path("/d"), 0, OSError(errno.ENOSPC, "full")))
    assert service.access.open_session() is None


# ---- outages ------------------------------------------------------------------------------------------------------------


FULL = DiskFullError(Path("/d"), 0, OSError(errno.ENOSPC, "full"))
BROKEN = DiskWriteError(Path("/d"), 0, OSError(errno.EIO, "broken"))


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """Severity and the first words of each line since the last time."""
    found = [(record.levelno, record.getMessage().partition(":")[0]) for record in caplog.records]
    caplog.clear()
    return found


def test_the_first_outage_counts_and_each_change_is_told_once(alone: Alone, caplog: pytest.LogCaptureFixture) -> None:
    service = alone.service
    service.access.note_failure(FULL)
    assert told(caplog) == [(logging.ERROR, "partition 3 found the disk full")]
    service.access.note_failure(BROKEN)
    service.access.note_failure(FULL)
    assert told(caplog) == []
    assert service.access.outage is not None
    assert service.access.outage.code == "disk-full"
    assert (service.access.check(SESSION, False) or closed()).code == "disk-full"
    assert service.access.check(SESSION, False, RequiredAccess.READ) is None
    assert (service.access.check(SESSION - 1, False) or closed()).code == "session-changed", (
        "who may not need not know more"
    )
    alone.room.is_there = True
    assert service.access.check(SESSION, False) is None
    assert service.access.outage is None
    assert told(caplog) == [(logging.WARNING, "partition 3 takes part in sessions again")]
    service.access.note_failure(BROKEN)
    assert (service.access.check(SESSION, False) or closed()).code == "io-error", "space does not help"
    assert told(caplog) == [(logging.ERROR, "partition 3 cannot write")]
    alone.partition.condition = DAMAGED
    service.access.note_failure(FULL)
    assert told(caplog) == [(logging.ERROR, "partition 3 is quarantined, every byte is kept")]
    alone.partition.condition = WRITABLE
    service.resume(alone.partition)  # type: ignore[arg-type]
    assert service.access.outage is None
    assert told(caplog) == [(logging.WARNING, "partition 3 takes part in sessions again")]


@pytest.mark.parametrize(("age", "free"), [(9.0, True), (10.0, True), (11.0, False)])
def test_a_look_that_began_behind_the_outage_ends_it(
    alone: Alone, age: float, free: bool, caplog: pytest.LogCaptureFixture
) -> None:
    alone.service.access.note_failure(FULL)
    told(caplog)
    alone.now += 10
    alone.service.access.note_space(age)
    assert (alone.service.access.outage is None) == free
    assert told(caplog) == [(logging.WARNING, "partition 3 takes part in sessions again")] * free


def test_space_ends_no_other_outage(alone: Alone) -> None:
    alone.service.access.note_space(0.0)
    alone.service.access.note_failure(BROKEN)
    alone.now += 10
    alone.service.access.note_space(0.0)
    assert alone.service.access.outage is not None


def test_a_record_that_could_not_be_read_keeps_sessions_out_until_it_can(alone: Alone) -> None:
    service = alone.service
    service.access.note_failure(CorruptRecordError("torn"))
    assert service.access.outage is None, "no request had to read it"
    alone.partition.unreadable = {7}
    service.access.note_failure(CorruptRecordError("torn"), 7)
    assert (service.access.check(SESSION, False) or closed()).code == "corrupt-record"
    service.resume(alone.partition)  # type: ignore[arg-type]
    assert service.access.outage is not None, "opening it again does not mend a record"
    service.access.availability = Availability(False, False)
    assert service.access.check(SESSION, True) is None, "a tool may write it anew"
    assert service.access.outage is not None
    service.access.availability = Availability(True, True)
    alone.partition.unreadable = {6, 8}
    assert service.access.check(SESSION, False) is None
    assert service.access.outage is None


def test_a_request_that_meets_a_record_keeps_the_partition_out(alone: Alone) -> None:
    def torn(after: int, *, allow_data_loss: bool) -> int:
        raise CorruptRecordError("torn")

    alone.partition.unreadable = {12}
    alone.partition.truncate = torn  # type: ignore[method-assign]
    alone.service.submit(request_of(alone.peer, TruncateRequest(SESSION, 1, 3, 12)))
    alone.work()
    assert alone.codes() == ["corrupt-record"]
    assert alone.service.access.outage is not None
    assert alone.service.access.outage.transaction_id == 12


def test_a_partition_that_says_itself_that_it_cannot_write_is_believed(alone: Alone) -> None:
    alone.partition.writable = BROKEN
    assert (alone.service.access.check(SESSION, False) or closed()).code == "io-error"
    assert alone.service.access.check(SESSION, False, RequiredAccess.READ) is None
