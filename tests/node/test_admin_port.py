"""The admin port: the release's requests and texts, ids checked as a whole, order, bounds, wrong frames."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import KEY, make_records
from tests.node.serving import LOOPS, METRICS, SESSION, WAYS, Serving, header, serving, wire
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.node.hosted_storage import ServiceOptions
from waltzctl.engine.storage.availability_marks import Availability
from waltzctl.formats.wire import admin, storage
from waltzctl.formats.wire.frame import Magic, frame, keep_alive
from waltzctl.formats.wire.records import SessionInfo

STORAGE_EXCEPTION = "com.wepay.waltz.storage.exception.StorageException"
COUNT = 20


@pytest.fixture(params=WAYS)
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Serving]:
    loop, tls = request.param
    with serving(tmp_path / "d", partitions=2, records=COUNT, size=50, loop=loop, tls=tls) as found:
        yield found


def statuses(served: Serving) -> dict[int, bool]:
    with served.connect_admin() as peer:
        return dict(peer.ask(admin.AssignedPartitionStatusRequest(1)).statuses)


def test_open_compares_key_and_number_of_partitions_and_nothing_requires_it(served: Serving) -> None:
    with served.connect_admin() as peer:
        assert peer.ask(admin.MetricsRequest(1)).sequence == 1
        assert peer.ask(admin.OpenRequest(KEY, 3)) == admin.SuccessResponse(-1)
        wrong_key, wrong_count = admin.OpenRequest(uuid.UUID(int=1), 3), admin.OpenRequest(KEY, 4)
        answer = peer.ask(wrong_key)
        assert answer.sequence == -1
        assert answer.failure.message == (
            f"{STORAGE_EXCEPTION}: Provided cluster key is inconsistent with key in control file."
        )
        answer = peer.ask(wrong_count)
        assert answer.failure.message == (
            f"{STORAGE_EXCEPTION}: Provided number of partitions is inconsistent with the total number of partitions in"
            " control file."
        )


def test_availability_of_a_list_and_of_one_partition_by_version(served: Serving) -> None:
    with served.connect_admin() as peer:
        assert peer.ask(admin.PartitionAvailableRequest(5, (0, 1, 2), False)) == admin.SuccessResponse(5)
        assert statuses(served) == {0: False, 1: False}
        assert peer.ask(admin.PartitionAvailableRequest(6, (1,), True)) == admin.SuccessResponse(6)
        assert statuses(served) == {0: False, 1: True}
        assert peer.ask(admin.PartitionAvailableRequest(7, (), True)) == admin.SuccessResponse(7)
    with served.connect_admin(versions=(0, 1)) as peer:
        assert peer.ask(admin.PartitionReadRequest(1, 0, True)) == admin.SuccessResponse(1)
        assert served.hosted.availability(0) == Availability(readable=True, writable=False)
        assert peer.ask(admin.PartitionWriteRequest(2, 0, True)) == admin.SuccessResponse(2)
        assert peer.ask(admin.PartitionReadRequest(3, 1, False)) == admin.SuccessResponse(3)
        assert served.hosted.availability(1) == Availability(readable=False, writable=True)
    assert statuses(served) == {0: True, 1: False}


def test_assignment_and_giving_up_with_and_without_files(served: Serving) -> None:
    directory = served.hosted.storage.path
    with served.connect_admin() as peer, served.connect() as data:
        assert peer.ask(admin.PartitionAssignmentRequest(1, (2, 0), True)) == admin.SuccessResponse(1)
        assert data.ask(storage.MaxTransactionIdRequest(SESSION, 1, 2)).transaction_id == -1
        assert peer.ask(admin.PartitionAssignmentRequest(2, (0,), False)) == admin.SuccessResponse(2)
        assert data.ask(storage.MaxTransactionIdRequest(SESSION, 1, 0)).failure.code == "not-assigned"
        assert (directory / "0").is_dir()
        assert peer.ask(admin.PartitionAssignmentRequest(3, (1,), False, True)) == admin.SuccessResponse(3)
        assert not (directory / "1").exists()
        assert statuses(served) == {2: True}


@pytest.mark.parametrize("assigned", [True, False])
def test_a_list_with_a_number_beyond_the_cluster_fails_as_a_whole_and_the_connection_stays(
    served: Serving, assigned: bool
) -> None:
    with served.connect_admin() as peer:
        for number in (77, -1, 3, 2**31 - 1):
            answer = peer.ask(admin.PartitionAssignmentRequest(4, (2 if assigned else 0, number), assigned))
            assert (answer.sequence, answer.failure.code) == (4, "invalid-request")
            answer = peer.ask(admin.PartitionAvailableRequest(5, (0, number), False))
            assert (answer.sequence, answer.failure.code) == (5, "invalid-request")
        assert statuses(served) == {0: True, 1: True}


def test_giving_up_what_is_not_assigned_fails_as_a_whole(served: Serving) -> None:
    with served.connect_admin() as peer:
        answer = peer.ask(admin.PartitionAssignmentRequest(4, (0, 2), False))
        assert answer.failure.message == "java.lang.Exception: Partition:2 is not assigned."
        assert statuses(served) == {0: True, 1: True}


def test_records_and_session_past_permissions_and_queue(served: Serving) -> None:
    records = [wire(record) for record in make_records(COUNT, size=50)]
    service = served.hosted.service(0)
    assert service is not None
    service.hold()
    with served.connect_admin() as peer:
        peer.ask(admin.PartitionAvailableRequest(1, (0,), False))
        for first, count, expected in (
            (0, 1, records[:1]),
            (1, 9, records[1:10]),
            (15, 100, records[15:]),
            (COUNT, 5, []),
            (0, 0, []),
            (0, -5, []),
        ):
            answer = peer.ask(admin.RecordListRequest(2, 0, first, count))
            assert answer == admin.RecordListResponse(2, 0, tuple(expected))
        assert peer.ask(admin.LastSessionInfoRequest(3, 0)) == admin.LastSessionInfoResponse(
            3, 0, SessionInfo(SESSION, (COUNT - 1) // 2, (COUNT - 1) // 2)
        )
        for message in (admin.RecordListRequest(4, 2, 0, 1), admin.LastSessionInfoRequest(4, 77)):
            answer = peer.ask(message)
            assert answer.sequence == 4
            assert answer.failure.message == f"java.lang.Exception: Partition:{message.partition} is not assigned."
    with served.connect_admin(versions=(0, 1)) as peer:
        for number, place in ((0, (0, 128)), (COUNT - 1, None), (COUNT, (-1, -1)), (-1, (-1, -1))):
            answer = peer.ask(admin.RecordPlaceRequest(5, 0, number))
            assert (answer.sequence, answer.partition) == (5, 0)
            segment, offset = place or (answer.segment, answer.offset)
            assert (answer.segment, answer.offset) == (segment, offset)
            if place is None:
                file = served.hosted.storage.path / "0" / f"{segment:019}.seg"
                assert file.stat().st_size == offset + make_records(COUNT, size=50)[-1].size
        answer = peer.ask(admin.RecordPlaceRequest(6, 2, 0))
        assert answer.failure.message == "java.lang.Exception: Partition:2 is not assigned."
    service.resume()


def test_metrics_are_what_the_node_makes_of_them(served: Serving) -> None:
    with served.connect_admin() as peer:
        answer = peer.ask(admin.MetricsRequest(8))
        assert (answer.sequence, json.loads(answer.json)) == (8, json.loads(METRICS))


def test_requests_of_a_connection_are_answered_in_order_while_others_are_served(served: Serving) -> None:
    with served.connect_admin() as peer, served.connect_admin() as other, served.connect() as data:
        sent = [
            admin.PartitionAssignmentRequest(1, (2,), True),
            admin.LastSessionInfoRequest(2, 2),
            admin.PartitionAssignmentRequest(3, (2,), False),
            admin.LastSessionInfoRequest(4, 2),
            admin.MetricsRequest(5),
        ]
        peer.send(*(admin.encode(message) for message in sent))
        assert other.ask(admin.MetricsRequest(9)).sequence == 9
        assert data.ask(storage.MaxTransactionIdRequest(SESSION, 1, 0)).transaction_id == COUNT - 1
        answers = [peer.receive() for _ in sent]
    assert [answer.sequence for answer in answers] == [1, 2, 3, 4, 5]
    assert [type(answer) for answer in answers] == [
        admin.SuccessResponse,
        admin.LastSessionInfoResponse,
        admin.SuccessResponse,
        admin.FailureResponse,
        admin.MetricsResponse,
    ]


def test_many_requests_at_once_and_byte_by_byte(served: Serving) -> None:
    with served.connect_admin() as peer:
        peer.send(*(admin.encode(admin.LastSessionInfoRequest(n, n % 2)) for n in range(500)))
        assert [peer.receive().sequence for _ in range(500)] == list(range(500))
        stream = keep_alive(Magic.ADMIN, 0) + b"".join(admin.encode(admin.MetricsRequest(n)) for n in range(3))
        for byte in stream:
            peer.send(bytes([byte]))
            served.settle()
        assert [peer.receive().sequence for _ in range(3)] == [0, 1, 2]
        long = admin.PartitionAvailableRequest(9, tuple(n % 3 for n in range(60_000)), True)
        assert peer.ask(long) == admin.SuccessResponse(9)


GOOD = admin.encode(admin.LastSessionInfoRequest(1, 0))
WRONG = {
    "magic": header(Magic.STORAGE, 0, 13) + GOOD[7:],
    "version": header(Magic.ADMIN, 1, 13) + GOOD[7:],
    "negative length": header(Magic.ADMIN, 0, -5),
    "long": header(Magic.ADMIN, 0, (1 << 20) + 1),
    "left over": header(Magic.ADMIN, 0, 14) + GOOD[7:] + b"\0",
    "cut": header(Magic.ADMIN, 0, 12) + GOOD[7:-1],
    "prefix cut": frame(Magic.ADMIN, 0, b"\x0b\0\0"),
    "type 0": frame(Magic.ADMIN, 0, bytes(9)),
    "type 5 is not of version 0": frame(Magic.ADMIN, 0, b"\x05" + bytes(13)),
    "type 99": frame(Magic.ADMIN, 0, b"\x63" + bytes(8)),
    "list count": frame(Magic.ADMIN, 0, b"\x04" + bytes(8) + b"\x7f\xff\xff\xff" + bytes(9)),
    "success": admin.encode(admin.SuccessResponse(3)),
    "records": admin.encode(admin.RecordListResponse(3, 0, ())),
}


def test_a_wrong_frame_closes_its_connection_and_no_other(served: Serving, caplog: pytest.LogCaptureFixture) -> None:
    with served.connect_admin() as other:
        for name, sent in WRONG.items():
            caplog.clear()
            with served.connect_admin() as peer:
                peer.send(sent)
                assert peer.rest() == b"", name
                assert other.ask(admin.LastSessionInfoRequest(1, 0)).sequence == 1
            assert sent[:32].hex(" ") in caplog.text, name


def test_record_lists_are_bounded_in_bytes(tmp_path: Path) -> None:
    limits = PortLimits(max_list_bytes=3000)
    with serving(tmp_path / "d", records=20, size=1000, limits=limits) as served, served.connect_admin() as peer:
        assert len(peer.ask(admin.RecordListRequest(5, 0, 0, 20)).records) == 2
    service = ServiceOptions(max_list_bytes=10)
    with serving(tmp_path / "e", records=20, size=1000, service=service) as served, served.connect_admin() as peer:
        assert len(peer.ask(admin.RecordListRequest(5, 0, 0, 20)).records) == 1


@pytest.mark.turns(8)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_peer_that_never_reads_stops_being_served_and_is_ended(tmp_path: Path, loop: str) -> None:
    limits = PortLimits(unread_seconds=0.4, output=1 << 20, connection_output=1 << 18, max_list_bytes=1 << 18)
    with (
        serving(tmp_path / "d", records=300, size=4000, loop=loop, limits=limits) as served,
        served.connect_admin() as peer,
        served.connect_admin() as other,
    ):
        peer.send(admin.encode(admin.RecordListRequest(5, 0, 0, 300)) * 500)
        largest = 0
        while served.call(lambda: len(served.admin.connections)) > 1:
            assert other.ask(admin.LastSessionInfoRequest(1, 0)).sequence == 1
            largest = max(largest, served.call(lambda: served.admin.output_budget.queued))
        peer.wait_until_reset()
        assert largest <= 2 * limits.connection_output + limits.max_list_bytes


def test_draining_answers_what_was_asked_and_closes(tmp_path: Path) -> None:
    with serving(tmp_path / "d") as served, served.connect_admin() as peer:
        peer.send(*(admin.encode(admin.MetricsRequest(n)) for n in range(50)))
        served.settle()
        draining = served.begin(served.admin.drain(30))
        assert [peer.receive().sequence for _ in range(50)] == list(range(50))
        assert peer.rest() == b""
        draining.result(60)
