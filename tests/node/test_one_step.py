"""Comparisons of the node that decide who may write and what may be cut, each one step to each side."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.memory import in_memory
from tests.node.service_support import CONCURRENT, appended, created, serving
from tests.storage.support import damage, data_path
from waltzctl.engine.errors import CorruptRecordError, DiskFullError, DiskReadError, DiskWriteError, InvalidRequestError
from waltzctl.engine.node.outages import Return, outage_of, reads_again
from waltzctl.engine.node.permissions import check_low_water_mark
from waltzctl.engine.storage.availability_marks import Availability
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.storage.fences import SessionFences
from waltzctl.formats.control import Layout
from waltzctl.formats.wire.failure import FailureCode
from waltzctl.formats.wire.storage import (
    FailureResponse,
    MaxTransactionIdResponse,
    SetLowWaterMarkRequest,
    SuccessResponse,
    TruncateRequest,
)

LAYOUTS = pytest.mark.parametrize("layout", list(Layout))


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    with in_memory(tmp_path) as path:
        yield path


# --- which session is in force -----------------------------------------------------------------------------------------


@LAYOUTS
@pytest.mark.parametrize(
    ("persisted", "fence", "in_force"), [(7, None, 7), (7, 6, 7), (7, 7, 7), (7, 8, 8), (-1, 3, 3), (-1, None, -1)]
)
def test_the_session_in_force_is_the_higher_one_of_control_file_and_fence(
    tmp_path: Path, layout: Layout, persisted: int, fence: int | None, in_force: int
) -> None:
    """A directory that a released node wrote has no fences; what its control file says holds all the same."""
    build_directory(tmp_path, {0: 10}, layout=layout, session=persisted, local_low_water_mark=-1)
    if fence is not None:
        (tmp_path / ".waltzctl").mkdir()
        with SessionFences.open(tmp_path, 1) as fences:
            fences.raise_to(0, fence)
    with serving(tmp_path) as served:
        if in_force >= 0:
            failure = served.failure(appended(10, session=in_force - 1))
            assert failure.message.startswith(CONCURRENT + f"session id has changed to {in_force}, ")
        served.succeed(appended(10, session=max(in_force, 0)))
        served.succeed(appended(11, session=max(in_force, 0) + 1))
        assert served.failure(appended(12, session=max(in_force, 0))).message.startswith(CONCURRENT)


def test_a_session_is_let_in_durably_and_an_older_one_is_out_behind_a_restart(tmp_path: Path) -> None:
    created(tmp_path, 1)
    with serving(tmp_path) as served:
        served.succeed(appended(0, session=5))
    with serving(tmp_path) as served:
        assert served.failure(appended(1, session=4)).message.startswith(CONCURRENT)
        served.succeed(appended(1, session=5))


@pytest.mark.parametrize(
    ("session", "mark", "last", "expected"),
    [
        (5, 20, 20, None),
        (5, 21, 20, None),
        (5, 20, 21, FailureCode.MARK_WOULD_FALL),
        (6, 20, 20, None),
        (4, 20, 20, FailureCode.SESSION_CHANGED),
        (5, 18, 18, FailureCode.MARK_WOULD_FALL),
        (5, 19, 18, None),
        (5, 19, 17, FailureCode.MARK_WOULD_FALL),
    ],
)
def test_marks_and_sessions_never_fall(session: int, mark: int, last: int, expected: FailureCode | None) -> None:
    """In force: session 5, low-water mark 19, local low-water mark 18."""
    denial = check_low_water_mark(
        session_id=session, low_water_mark=mark, max_transaction_id=last, persisted=(5, 19, 18)
    )
    assert (denial and denial.code) == expected


# --- truncation --------------------------------------------------------------------------------------------------------


@LAYOUTS
@pytest.mark.parametrize(
    ("after", "refused"), [(-2, True), (-1, True), (11, True), (12, False), (13, False), (19, False)]
)
def test_a_session_truncates_down_to_the_local_mark_and_not_one_further(
    tmp_path: Path, layout: Layout, after: int, refused: bool
) -> None:
    build_directory(tmp_path, {0: 20}, layout=layout, session=3, local_low_water_mark=12)
    with serving(tmp_path) as served:
        message = TruncateRequest(3, 1, 0, after, False)
        answer = served.one(message)
        assert isinstance(answer, FailureResponse) == refused
        if not refused:
            assert answer == MaxTransactionIdResponse(3, 1, 0, after)
        service = served.hosted.service(0)
        assert service is not None
        assert service.partition.max_transaction_id == (19 if refused else after)


@pytest.mark.parametrize(("after", "left", "mark"), [(-2, None, 12), (-1, -1, -1), (11, 11, 11), (12, 12, 12)])
def test_offline_recovery_truncates_below_the_mark_which_falls_with_it(
    tmp_path: Path, after: int, left: int | None, mark: int
) -> None:
    build_directory(tmp_path, {0: 20}, session=3, local_low_water_mark=12)
    with serving(tmp_path) as served:
        served.hosted.set_availability([0], readable=False, writable=False)
        answer = served.one(TruncateRequest(3, 1, 0, after, True))
        assert isinstance(answer, FailureResponse) == (left is None)
        assert served.hosted.session_info(0).local_low_water_mark == mark


# --- availability ------------------------------------------------------------------------------------------------------


@LAYOUTS
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_switching_several_partitions_leaves_each_what_is_its_own(
    tmp_path: Path, layout: Layout, order: tuple[int, ...]
) -> None:
    """Only writing is switched: what each one says of reading stays, for whoever asks next and behind a restart."""
    created(tmp_path, 3, layout=layout)
    with serving(tmp_path) as served:
        hosted = served.hosted
        hosted.set_availability([1], readable=False)
        hosted.set_availability(order, writable=False)
        expected = [Availability(True, False), Availability(False, False), Availability(True, False)]
        assert [hosted.availability(number) for number in range(3)] == expected
        assert [service.access.availability for service in hosted.services] == expected
        hosted.set_availability(order[:2], writable=True)
        for number in order[:2]:
            expected[number] = Availability(expected[number].readable, True)
        assert [hosted.availability(number) for number in range(3)] == expected
    with serving(tmp_path) as served:
        assert [served.hosted.availability(number) for number in range(3)] == expected


def test_a_list_with_a_number_behind_the_last_partition_changes_nothing(tmp_path: Path) -> None:
    created(tmp_path, 2)
    with serving(tmp_path) as served:
        for wrong in (-1, 2):
            with pytest.raises(InvalidRequestError):
                served.hosted.set_availability([0, wrong], writable=False)
        assert served.hosted.assigned_status() == [(0, True), (1, True)]


# --- who takes part ----------------------------------------------------------------------------------------------------


def open_partition(path: Path, count: int = 10) -> StorageDirectory:
    build_directory(path, {0: count}, local_low_water_mark=-1)
    return StorageDirectory.open(path)


@pytest.mark.parametrize(
    ("number", "out"),
    [(errno.EMFILE, False), (errno.ENFILE, False), (errno.ENOMEM, False), (errno.EINTR, False), (errno.EAGAIN, False),
     (errno.EIO, True), (errno.EROFS, True), (errno.EDQUOT, True)],
)  # fmt: skip
def test_an_error_of_the_disk_keeps_a_partition_out_and_a_short_process_does_not(
    tmp_path: Path, number: int, out: bool
) -> None:
    with open_partition(tmp_path) as storage:
        error = DiskWriteError(tmp_path, 0, OSError(number, "x"))
        found = outage_of(error, storage.partition(0), None)
        assert (found is not None) == out
        assert found is None or found.returns is Return.OPENED


@pytest.mark.parametrize("transaction_id", [None, 0, 3])
def test_a_record_that_cannot_be_read_keeps_a_partition_out_if_a_request_had_to_read_it(
    tmp_path: Path, transaction_id: int | None
) -> None:
    """Transaction 0 too."""
    with open_partition(tmp_path) as storage:
        partition = storage.partition(0)
        for error, code in (
            (DiskReadError(tmp_path, 0, OSError(errno.EIO, "x")), FailureCode.IO_ERROR),
            (CorruptRecordError("x"), FailureCode.CORRUPT_RECORD),
        ):
            found = outage_of(error, partition, transaction_id)
            assert (found is None) == (transaction_id is None)
            if found is not None:
                assert (found.code, found.returns, found.transaction_id) == (code, Return.RECORD, transaction_id)
        assert outage_of(InvalidRequestError("x"), partition, transaction_id) is None
        full = outage_of(DiskFullError(tmp_path, 0, OSError(errno.ENOSPC, "x")), partition, transaction_id)
        assert full is not None
        assert full.returns is Return.SPACE


def test_a_partition_comes_back_with_the_very_record_it_could_not_read(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 10}, local_low_water_mark=-1)
    damage(data_path(tmp_path), 128 + 9)
    with StorageDirectory.open(tmp_path) as storage:
        partition = storage.partition(0)
        assert [reads_again(partition, number) for number in (0, 1, 9, 10)] == [False, True, True, True]


@pytest.mark.parametrize("offline", [False, True])
def test_nothing_lies_in_front_of_transaction_0(tmp_path: Path, offline: bool) -> None:
    created(tmp_path, 1)
    with serving(tmp_path) as served:
        if offline:
            served.hosted.set_availability([0], readable=False, writable=False)
        session = served.hosted.session_info(0).session_id
        assert served.one(TruncateRequest(session, 1, 0, -1, offline)) == MaxTransactionIdResponse(session, 1, 0, -1)
        failure = served.failure(TruncateRequest(session, 1, 0, -2, offline))
        assert failure.code == "below-low-water-mark"
        assert "truncating partition 0 after -2 would lose acknowledged transactions" in failure.message


@LAYOUTS
def test_the_mark_is_set_with_what_is_here_and_a_replica_that_is_behind_says_so(tmp_path: Path, layout: Layout) -> None:
    build_directory(tmp_path, {0: 20}, layout=layout, session=3, local_low_water_mark=12)
    with serving(tmp_path) as served:
        assert isinstance(served.one(SetLowWaterMarkRequest(4, 1, 0, 18)), FailureResponse)
        for session, mark in ((4, 19), (5, 20)):
            assert served.one(SetLowWaterMarkRequest(session, 1, 0, mark)) == SuccessResponse(session, 1, 0)
            info = served.hosted.session_info(0)
            assert (info.session_id, info.low_water_mark, info.local_low_water_mark) == (session, mark, 19)
