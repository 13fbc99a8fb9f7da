"""A partition's service, request by request, on real storage directories (behaviours C29 and D30 to D42 of the release)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.node.service_support import CONCURRENT, STORAGE, Peer, Served, appended, created, record, serving
from tests.storage.support import built, damage, data_path, offset_of
from waltzctl.engine.errors import InvalidRequestError, MismatchError, NotAssignedError
from waltzctl.engine.node.failure_responses import failure_of
from waltzctl.engine.node.hosted_storage import ServiceOptions
from waltzctl.engine.node.node_metrics import REQUEST_COUNTERS
from waltzctl.engine.storage.directory import StorageOptions
from waltzctl.formats.control import Layout
from waltzctl.formats.segment import RECORD_OVERHEAD
from waltzctl.formats.wire.failure import Failure
from waltzctl.formats.wire.storage import (
    FailureResponse,
    LastSessionInfoRequest,
    LastSessionInfoResponse,
    MaxTransactionIdRequest,
    MaxTransactionIdResponse,
    RecordHeader,
    RecordHeaderListRequest,
    RecordHeaderListResponse,
    RecordHeaderRequest,
    RecordHeaderResponse,
    RecordListRequest,
    RecordListResponse,
    RecordRequest,
    RecordResponse,
    SessionInfo,
    SetLowWaterMarkRequest,
    SuccessResponse,
    TruncateRequest,
)


def max_id(served: Served, partition: int = 0, session: int = 1) -> int:
    answer = served.one(MaxTransactionIdRequest(session, 77, partition))
    assert isinstance(answer, MaxTransactionIdResponse)
    return answer.transaction_id


def info(served: Served, session: int) -> SessionInfo:
    answer = served.one(LastSessionInfoRequest(session, 5, 0))
    assert isinstance(answer, LastSessionInfoResponse)
    return answer.info


@pytest.mark.parametrize("layout", list(Layout))
def test_d30_a_fresh_partition_has_no_session_until_its_low_water_mark_is_set(tmp_path: Path, layout: Layout) -> None:
    created(tmp_path / "s", layout=layout)
    with serving(tmp_path / "s") as served:
        assert info(served, 0) == SessionInfo(-1, -1, -1)
        served.succeed(SetLowWaterMarkRequest(0, 1, 0, -1))
        assert info(served, 0) == SessionInfo(0, -1, -1)


def test_d31_records_and_headers_come_back_as_they_were_appended_and_partitions_are_apart(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        served.succeed(appended(0, 3), appended(3, 1), appended(4, 6))
        served.succeed(appended(0, 2, partition=1, data=b"x" * 999))
        records = tuple(record(number) for number in range(10))
        assert served.one(RecordListRequest(1, 2, 0, 0, 99)) == RecordListResponse(1, 2, 0, records)
        headers = tuple(RecordHeader(r.transaction_id, r.request_id, r.header) for r in records)
        assert served.one(RecordHeaderListRequest(1, 3, 0, 4, 3)) == RecordHeaderListResponse(1, 3, 0, headers[4:7])
        assert served.one(RecordRequest(1, 4, 0, 7)) == RecordResponse(1, 4, 0, records[7])
        assert served.one(RecordHeaderRequest(1, 5, 0, 9)) == RecordHeaderResponse(1, 5, 0, headers[9])
        assert served.one(RecordRequest(1, 6, 1, 1)) == RecordResponse(1, 6, 1, record(1, b"x" * 999))
        assert (max_id(served), max_id(served, 1)) == (9, 1)


@pytest.mark.parametrize("first", [-1, 0, 4, 6, 2**62])
def test_d32_an_append_that_does_not_continue_the_sequence_is_out_of_order(tmp_path: Path, first: int) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        served.succeed(appended(0, 5))
        assert served.failure(appended(first, 2)).message == STORAGE + "transaction out of order"
        assert max_id(served) == 4


def test_an_append_of_nothing_succeeds(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        served.succeed(appended(7, 0))
        assert max_id(served) == -1


def test_d33_a_newer_session_shuts_out_the_older_one_and_goes_on(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        served.succeed(SetLowWaterMarkRequest(4, 0, 0, -1), appended(0, 1, session=4))
        assert info(served, 5) == SessionInfo(4, -1, -1)
        old = CONCURRENT + "session id has changed to 5, but request context contains 4"
        assert served.failure(appended(1, 1, session=4)).message == old
        assert served.failure(RecordRequest(4, 0, 0, 0)).message == old
        served.succeed(SetLowWaterMarkRequest(5, 0, 0, 0), appended(1, 1, session=5))
        assert info(served, 5) == SessionInfo(5, 0, 0)


def test_s1_a_session_is_shut_out_after_a_restart_as_well(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        served.succeed(appended(0, 1, session=4))
        assert max_id(served, session=9) == 0
    with serving(tmp_path / "s") as served:
        assert info(served, 9) == SessionInfo(-1, -1, -1)  # the control file knows nothing of it
        message = CONCURRENT + "session id has changed to 9, but request context contains 8"
        assert served.failure(appended(1, 1, session=8)).message == message
        served.succeed(appended(1, 1, session=9))


def test_s1_a_request_that_is_refused_shuts_out_nobody(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        served.succeed(appended(0, 1, session=4))
        online = STORAGE + "cannot run offline recovery while partition is online"
        assert served.failure(appended(1, 1, session=99, offline=True)).message == online
        served.hosted.set_availability([0], readable=False, writable=False)
        disabled = STORAGE + "read and write for partition=0 have been disabled on storage node"
        assert served.failure(appended(1, 1, session=99)).message == disabled
        served.hosted.set_availability([0], readable=True, writable=True)
        assert "out of order" in served.failure(appended(7, 1, session=99)).message
        served.succeed(appended(1, 1, session=4))


def test_d34_truncation_tells_the_new_end_and_later_records_are_absent(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        served.succeed(appended(0, 10))
        assert served.one(TruncateRequest(1, 3, 0, 99)) == MaxTransactionIdResponse(1, 3, 0, 9)
        assert served.one(TruncateRequest(1, 4, 0, 4)) == MaxTransactionIdResponse(1, 4, 0, 4)
        assert served.one(RecordRequest(1, 5, 0, 4)) == RecordResponse(1, 5, 0, record(4))
        assert served.one(RecordRequest(1, 6, 0, 5)) == RecordResponse(1, 6, 0, None)
        assert served.one(RecordHeaderRequest(1, 6, 0, 5)) == RecordHeaderResponse(1, 6, 0, None)
        assert served.one(RecordRequest(1, 6, 0, -1)) == RecordResponse(1, 6, 0, None)
        assert served.one(RecordListRequest(1, 7, 0, 3, 9)) == RecordListResponse(1, 7, 0, (record(3), record(4)))


@pytest.mark.parametrize("count", [0, -5, -(2**31)])
def test_lists_of_nothing_are_empty(tmp_path: Path, count: int) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        served.succeed(appended(0, 3))
        assert served.one(RecordListRequest(1, 7, 0, 0, count)) == RecordListResponse(1, 7, 0, ())
        assert served.one(RecordHeaderListRequest(1, 7, 0, 0, count)) == RecordHeaderListResponse(1, 7, 0, ())
        for first in (-1, 3, 2**63 - 1):
            assert served.one(RecordListRequest(1, 7, 0, first, 5)) == RecordListResponse(1, 7, 0, ())


def test_d35_d36_the_persisted_session_changes_with_the_low_water_mark_only(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        served.succeed(appended(0, 5), SetLowWaterMarkRequest(1, 0, 0, 70))
        assert info(served, 1) == SessionInfo(1, 70, 4)
        assert info(served, 2) == SessionInfo(1, 70, 4)
        lower = "unable to set low watermark to value 69 because it's less than current low watermark 70"
        assert served.failure(SetLowWaterMarkRequest(2, 0, 0, 69)).message == STORAGE + lower
        below = "low-water mark is lower than the max transaction id"
        assert served.failure(SetLowWaterMarkRequest(2, 0, 0, 3)).message == STORAGE + below
        served.succeed(SetLowWaterMarkRequest(2, 0, 0, 70))
        assert info(served, 2) == SessionInfo(2, 70, 4)


def test_d37_truncation_drops_segments_and_minus_one_leaves_one_empty(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s", storage=StorageOptions(segment_size_threshold=400)) as served:
        served.succeed(*(appended(number) for number in range(40)))
        segments = len(list((tmp_path / "s" / "0").glob("*.seg")))
        assert segments > 3
        served.one(TruncateRequest(1, 0, 0, 20))
        assert 1 < len(list((tmp_path / "s" / "0").glob("*.seg"))) < segments
        assert served.one(TruncateRequest(1, 1, 0, -1)) == MaxTransactionIdResponse(1, 1, 0, -1)
        assert [path.name for path in (tmp_path / "s" / "0").glob("*.seg")] == ["0000000000000000000.seg"]
        served.succeed(appended(0, 2))


def test_d38_an_append_needs_no_low_water_mark_in_its_session(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        served.succeed(appended(0, 1, session=3))


def test_d39_an_unavailable_partition_refuses_reads_and_appends_with_exactly_this_text(tmp_path: Path) -> None:
    created(tmp_path / "s")
    message = (
        "com.wepay.waltz.storage.exception.StorageException: read and write for partition=0 have been disabled"
        " on storage node"
    )
    with serving(tmp_path / "s") as served:
        served.hosted.set_availability([0], readable=False, writable=False)
        for request in (appended(0), RecordRequest(1, 0, 0, 0), RecordListRequest(1, 0, 0, 0, 1)):
            assert served.failure(request).message == message
        assert served.hosted.assigned_status() == [(0, False), (1, True)]
    with serving(tmp_path / "s") as served:  # it is durable
        assert served.failure(appended(0)).message == message
        served.hosted.set_availability([0], readable=True, writable=True)
        served.succeed(appended(0))


def test_reading_and_writing_are_switched_apart(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        served.succeed(appended(0))
        served.hosted.set_availability([0], writable=False)
        assert served.failure(appended(1)).code == "not-available"
        assert max_id(served) == 0
        assert served.hosted.assigned_status() == [(0, False), (1, True)]
        served.hosted.set_availability([0], readable=False, writable=True)
        served.succeed(appended(1))
        assert served.failure(MaxTransactionIdRequest(1, 0, 0)).code == "not-available"


def test_d40_d41_the_admin_port_reads_past_queue_and_permissions(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        served.succeed(appended(0, 10), SetLowWaterMarkRequest(6, 0, 0, 9))
        served.hosted.set_availability([0], readable=False, writable=False)
        assert served.hosted.read_wire(0, 0, 1).count == 1
        assert served.hosted.read_wire(0, 1, 99).count == 9
        assert served.hosted.read_wire(0, 1, -1).count == 0
        assert served.hosted.session_info(0) == SessionInfo(6, 9, 9)


def test_c29_a_partition_that_is_not_loaded_is_not_assigned(tmp_path: Path) -> None:
    created(tmp_path / "s", 3, assigned=[1])
    with serving(tmp_path / "s") as served:
        assert served.hosted.service(0) is None
        assert served.hosted.service(77) is None
        for question in (lambda: served.hosted.session_info(2), lambda: served.hosted.read_wire(2, 0, 1)):
            with pytest.raises(NotAssignedError) as caught:
                question()
            assert failure_of(caught.value).message == "java.lang.Exception: Partition:2 is not assigned."
            assert failure_of(caught.value).code == "not-assigned"


def test_a_partition_that_was_deleted_comes_back_available(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        served.hosted.set_availability([0], readable=False, writable=False)
        served.hosted.unassign([0], delete_files=True)
        served.hosted.assign([0])
        assert served.hosted.assigned_status() == [(0, True), (1, True)]
        served.succeed(appended(0))


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("at_once", [True, False])
def test_d42_partitions_are_assigned_all_at_once_or_one_by_one(tmp_path: Path, layout: Layout, at_once: bool) -> None:
    created(tmp_path / "s", 4, layout=layout, assigned=[])
    with serving(tmp_path / "s") as served:
        assert served.hosted.assigned_status() == []
        for numbers in [[2, 0, 3, 1, 0]] if at_once else [[0], [1], [2], [3], [0]]:
            served.hosted.assign(numbers)
        assert served.hosted.assigned_status() == [(number, True) for number in range(4)]
        served.succeed(appended(0, partition=3))
        served.hosted.assign([])


def test_c28_unassigning_keeps_or_deletes_the_files(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        served.succeed(appended(0, 3, session=7))
        served.succeed(appended(0, 3, session=7, partition=1))
        served.hosted.unassign([0], delete_files=False)
        served.hosted.unassign([1], delete_files=True)
        assert data_path(tmp_path / "s").exists()
        assert not data_path(tmp_path / "s", partition=1).exists()
        served.hosted.assign([0, 1])
        # what was kept goes on where it was, its session included; what was deleted begins anew
        assert served.failure(appended(3, session=6)).code == "session-changed"
        served.succeed(appended(3, session=7))
        served.succeed(appended(0, session=0, partition=1))


def test_s9_a_list_with_a_wrong_partition_changes_nothing(tmp_path: Path) -> None:
    created(tmp_path / "s", 3, assigned=[0])
    with serving(tmp_path / "s") as served:
        with pytest.raises(InvalidRequestError):
            served.hosted.assign([1, 77])
        with pytest.raises(InvalidRequestError):
            served.hosted.set_availability([0, -1], readable=False, writable=False)
        with pytest.raises(NotAssignedError):
            served.hosted.unassign([0, 1], delete_files=False)
        assert served.hosted.assigned_status() == [(0, True)]
        served.succeed(appended(0))


def test_the_open_request_compares_key_and_number_of_partitions(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        key = served.hosted.storage.cluster_key
        served.hosted.check_open(key, 2)
        with pytest.raises(MismatchError) as caught:
            served.hosted.check_open(type(key)(int=1), 3)
        wrong_key = "Provided cluster key is inconsistent with key in control file."
        assert failure_of(caught.value) == Failure.with_code(STORAGE + wrong_key, "mismatch")
        with pytest.raises(MismatchError) as caught:
            served.hosted.check_open(key, 3)
        wrong_number = (
            "Provided number of partitions is inconsistent with the total number of partitions in control file."
        )
        assert failure_of(caught.value).message == STORAGE + wrong_number


def test_a_response_sent_to_a_node_is_an_unknown_message_type(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        message = "java.lang.IllegalStateException: unknown message type: 7"
        assert served.failure(SuccessResponse(1, 2, 0)).message == message
        served.succeed(appended(0, session=5))
        assert served.failure(SuccessResponse(1, 2, 0)).code == "session-changed"  # permissions come first


# --- offline recovery ------------------------------------------------------------------------------------------------


def test_offline_requests_run_in_the_persisted_session_while_the_partition_is_off(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        served.succeed(appended(0, 3, session=100), SetLowWaterMarkRequest(100, 0, 0, 5))
        assert max_id(served, session=101) == 2
        served.hosted.set_availability([0], readable=False, writable=False)
        changed = "partition last session id has changed to 100, but request context contains 101"
        assert served.failure(MaxTransactionIdRequest(101, 0, 0, True)).message == STORAGE + changed
        assert served.one(MaxTransactionIdRequest(100, 0, 0, True)) == MaxTransactionIdResponse(100, 0, 0, 2)
        assert served.one(TruncateRequest(100, 0, 0, 1, True)) == MaxTransactionIdResponse(100, 0, 0, 1)
        served.succeed(appended(2, 2, session=100, offline=True), SetLowWaterMarkRequest(100, 0, 0, 6, True))
        assert served.one(LastSessionInfoRequest(100, 0, 0, True)) == LastSessionInfoResponse(
            100, 0, 0, SessionInfo(100, 6, 3)
        )
        served.hosted.set_availability([0], readable=True, writable=True)
        assert served.failure(appended(4, session=100)).code == "session-changed"  # 101 was there, online
        served.succeed(appended(4, session=101))
    with serving(tmp_path / "s") as served:  # the mark was lowered with the truncation: the log opens
        assert max_id(served, session=101) == 4


def test_truncation_below_the_local_low_water_mark_is_refused_online(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        served.succeed(appended(0, 5), SetLowWaterMarkRequest(1, 0, 0, 4), appended(5))
        failure = served.failure(TruncateRequest(1, 0, 0, 3))
        assert failure.message.startswith(STORAGE + "transaction id out of range: ")
        assert failure.code == "below-low-water-mark"
        assert served.failure(TruncateRequest(1, 0, 0, -2)).code == "below-low-water-mark"
        assert max_id(served) == 5
        assert served.one(TruncateRequest(1, 0, 0, 4)) == MaxTransactionIdResponse(1, 0, 0, 4)


# --- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("room", "expected"), [(0, 1), (1, 1), (2000, 2), (1 << 30, 8)])
def test_a_list_holds_what_the_peer_has_room_for_and_at_least_one_record(
    tmp_path: Path, room: int, expected: int
) -> None:
    created(tmp_path / "s")
    size = 1000 - RECORD_OVERHEAD
    with serving(tmp_path / "s", options=ServiceOptions(max_list_bytes=8000)) as served:
        served.succeed(appended(0, 20, data=b"x" * size))
        peer = Peer(room=room)
        served.submit(peer, RecordListRequest(1, 0, 0, 0, 20))
        (answer,) = peer.wait(1)
        assert isinstance(answer, RecordListResponse)
        assert len(answer.records) == expected
        assert served.hosted.read_wire(0, 0, 20).count == 8


@pytest.mark.parametrize(("room", "expected"), [(0, 1), (56, 2), (1 << 30, 20)])
def test_a_list_of_headers_is_bounded_likewise(tmp_path: Path, room: int, expected: int) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        served.succeed(appended(0, 20))
        peer = Peer(room=room)
        served.submit(peer, RecordHeaderListRequest(1, 0, 0, 0, 20))
        (answer,) = peer.wait(1)
        assert isinstance(answer, RecordHeaderListResponse)
        assert len(answer.headers) == expected


NEWER = 1000
"""A session above those of directories that were built by hand."""


# --- damage ----------------------------------------------------------------------------------------------------------


def test_a_corrupt_record_is_named_and_never_served(tmp_path: Path) -> None:
    records = built(tmp_path / "s", 10, mark=-1)
    with serving(tmp_path / "s") as served:
        damage(data_path(tmp_path / "s"), offset_of(records, 4) + 45)
        for request in (
            RecordRequest(NEWER, 0, 0, 4),
            RecordHeaderRequest(NEWER, 0, 0, 4),
            RecordListRequest(NEWER, 0, 0, 4, 3),
        ):
            failure = served.failure(request)
            assert failure.code == "corrupt-record"
            assert "partition 0, transaction 4" in failure.message
            assert failure.message.startswith(STORAGE)
        answer = served.one(RecordListRequest(NEWER, 0, 0, 2, 8))
        assert isinstance(answer, RecordListResponse)
        assert [found.transaction_id for found in answer.records] == [2, 3]  # the list ends in front of it
        assert isinstance(served.one(RecordRequest(NEWER, 0, 0, 5)), RecordResponse)


def test_a_quarantined_partition_is_read_and_not_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    records = built(tmp_path / "s", 30, per_segment=10, mark=29)
    damage(data_path(tmp_path / "s", 20), offset_of(records[20:], 24) + 45)
    with serving(tmp_path / "s") as served:
        service = served.hosted.service(0)
        assert service is not None
        assert service.partition.quarantined
        assert any("partition 0 is quarantined" in entry.message for entry in caplog.records)
        for request in (
            appended(24, session=NEWER),
            appended(30, session=NEWER),
            TruncateRequest(NEWER, 0, 0, 29),
            SetLowWaterMarkRequest(NEWER, 0, 0, 40),
        ):
            failure = served.failure(request)
            assert failure.code == "quarantined"
            assert "quarantined" in failure.message
        assert served.failure(RecordRequest(NEWER, 0, 0, 24)).code == "corrupt-record"
        answer = served.one(RecordRequest(NEWER, 0, 0, 27))
        assert isinstance(answer, RecordResponse)
        assert answer.record is not None
        assert answer.record.data == records[27].data


def test_the_session_of_damaged_partition_info_is_not_made_up(tmp_path: Path) -> None:
    path = tmp_path / "s"
    build_directory(path, {0: 3})
    control = path / "waltz-storage.ctl"
    with serving(path) as served:
        offset = served.hosted.storage.layout.struct_offset(0, 1)
        second = served.hosted.storage.layout.struct_offset(0, 2)
    damage(control, offset)
    damage(control, second)
    with serving(path) as served:
        assert served.failure(LastSessionInfoRequest(1, 0, 0)).code == "quarantined"
        assert served.failure(appended(3)).code == "quarantined"
        assert isinstance(served.one(RecordRequest(1, 0, 0, 2)), RecordResponse)


def test_each_request_is_counted_under_its_name_and_under_no_other(tmp_path: Path) -> None:
    created(tmp_path)
    asked = {
        "last_session_info_request": LastSessionInfoRequest(1, 0, 0),
        "set_low_water_mark_request": SetLowWaterMarkRequest(1, 0, 0, 5),
        "truncate_request": TruncateRequest(1, 0, 0, 5),
        "record_header_request": RecordHeaderRequest(1, 0, 0, 0),
        "record_request": RecordRequest(1, 0, 0, 0),
        "max_transaction_request": MaxTransactionIdRequest(1, 0, 0),
        "record_header_list_request": RecordHeaderListRequest(1, 0, 0, 0, 1),
        "record_list_request": RecordListRequest(1, 0, 0, 0, 1),
    }
    assert tuple(asked) == REQUEST_COUNTERS
    with serving(tmp_path) as served:
        service = served.hosted.service(0)
        assert service is not None
        expected = dict.fromkeys(asked, 0)
        for name, message in asked.items():
            served.one(message)
            expected[name] += 1
            assert {one: getattr(service.metrics, one).count for one in asked} == expected


def test_every_failure_tells_which_request_it_is_for(tmp_path: Path) -> None:
    created(tmp_path / "s")
    with serving(tmp_path / "s") as served:
        wrong = [appended(9, sequence=number, session=number % 2) for number in range(1, 6)]
        answers = served.ask(*wrong)
        assert [(answer.session_id, answer.sequence) for answer in answers] == [(n % 2, n) for n in range(1, 6)]
        assert all(isinstance(answer, FailureResponse) for answer in answers)
