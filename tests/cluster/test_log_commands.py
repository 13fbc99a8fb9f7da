"""The actions of ``log`` over a cluster that really runs."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import zlib
from typing import Any

import pytest

from tests import warm_start
from tests.cli.running import Answer, command_line, environment, invoke, on_full_disk
from tests.cli.test_schemas import check_object
from tests.cluster.processes import ClusterOfProcesses
from tests.interop.processes import wait_until
from waltzctl.engine.cluster.tracing import ReplicaAnswer, ReplicaTrace, accepted_by, trace_of, written_in
from waltzctl.engine.errors import PeerError, RemoteError, WaltzError
from waltzctl.engine.metadata.cluster_state import ServerState
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import RECORD_HEADER, RECORD_OVERHEAD
from waltzctl.formats.wire.failure import FailureCode
from waltzctl.formats.wire.records import SessionInfo, WireRecord
from waltzctl.formats.znodes import AssignedPartition


def mark(made: ClusterOfProcesses, partition: int) -> int:
    (one,) = made.log("high-water-mark", "--partition", partition, "--format", "ndjson").objects
    check_object(one)
    assert one["partition"] == partition
    return int(one["high_water_mark"])


def test_lines_become_transactions_in_their_order(made: ClusterOfProcesses) -> None:
    before = mark(made, 0)
    lines = [f"line {n}" for n in range(200)]
    done = made.log("append", "--partition", 0, "--format", "ndjson", given="\n".join(lines))
    assert done.status == 0
    (result,) = done.objects
    check_object(result)
    assert (result["first_transaction_id"], result["last_transaction_id"]) == (before + 1, before + 200)
    assert (result["records"], result["bytes"]) == (200, 200 * 40 + sum(map(len, lines)))
    tail = made.log("tail", "--partition", 0, "--from", before + 1, "--data", "utf8", "--format", "ndjson")
    assert tail.status == 0
    for one in tail.objects:
        check_object(one)
    assert [one["data"] for one in tail.objects] == lines
    assert [one["transaction_id"] for one in tail.objects] == [*range(before + 1, before + 201)]
    assert mark(made, 0) == before + 200


def test_a_tail_begins_ends_and_leaves_data_out_as_it_is_told(made: ClusterOfProcesses) -> None:
    for partition in (1, 2):
        made.log("append", "--partition", partition, given="a\nb\nc\n")
    first = mark(made, 1) - 2

    def ids(*options: object) -> list[tuple[int, int]]:
        shown = made.log("tail", "--format", "ndjson", "--data", "none", *options)
        assert shown.status == 0, shown.err
        assert all("data" not in one and "data_b64" not in one for one in shown.objects)
        return [(one["partition"], one["transaction_id"]) for one in shown.objects]

    assert ids("--partition", 1, "--from", first) == [(1, first), (1, first + 1), (1, first + 2)]
    assert ids("--partition", 1, "--from", first, "--to", first + 1) == [(1, first), (1, first + 1)]
    assert ids("--partition", 1, "--from", first + 1, "--limit", 1) == [(1, first + 1)]
    assert ids("--partition", 1, "--from", first + 3) == []
    both = ids("--partition", "1-2")
    for partition in (1, 2):
        assert [number for one, number in both if one == partition] == [*range(mark(made, partition) + 1)]
    assert {one for one, _ in ids()} >= {1, 2}


def test_single_transactions_are_shown_or_refused(made: ClusterOfProcesses) -> None:
    made.log("append", "--partition", 3, given="x\ny\nz\n")
    last = mark(made, 3)
    shown = made.log("get", "--partition", 3, last, last - 2, "--format", "ndjson")
    assert [(one["transaction_id"], base64.b64decode(one["data_b64"])) for one in shown.objects] == [
        *((last - 2, b"x"), (last, b"z"))
    ]
    refused = made.log("get", "--partition", 3, last + 1)
    assert (refused.status, f"the last one is {last}" in refused.err) == (13, True)


def test_locks_headers_and_data_come_from_objects(made: ClusterOfProcesses) -> None:
    lines = [
        {"data": {"a": 1}, "header": 7, "write_locks": [["account", 5]]},
        {"data_b64": base64.b64encode(b"\x00\xff").decode(), "read_locks": [["account", 5]], "append_locks": []},
    ]
    given = "\n".join(map(json.dumps, lines))
    done = made.log("append", "--partition", 3, "--input-format", "ndjson", "--format", "ndjson", given=given)
    assert done.status == 0, done.err
    (result,) = done.objects
    got = made.log("get", "--partition", 3, result["first_transaction_id"], "--data", "json", "--format", "ndjson")
    assert (got.objects[0]["header"], got.objects[0]["data"]) == (7, {"a": 1})
    for wrong in (
        '{"data": 1, "write_locks": [["a"]]}',
        '{"data": 1, "write_locks": 3}',
        '{"data": 1, "unknown": 3}',
        "{",
    ):
        refused = made.log("append", "--partition", 3, "--input-format", "ndjson", given=f'{{"data": 0}}\n{wrong}')
        assert refused.status == 2
        assert "input line 2" in refused.err


def test_what_is_committed_is_told_as_it_rises(made: ClusterOfProcesses) -> None:
    done = made.log("append", "--partition", 0, "--progress-ids", "-q", "--in-flight", 1, given="a\nb\nc\n")
    last = mark(made, 0)
    assert done.out.split() == [str(last - 2), str(last - 1), str(last)]


def test_nonsense_is_refused(made: ClusterOfProcesses) -> None:
    for arguments, status, message in (
        (("append", "--partition", 9), 2, "0 to 3"),
        (("tail", "--partition", "7"), 2, "0 to 3"),
        (("get", "--partition", 9, 0), 2, "0 to 3"),
        (("high-water-mark", "--partition", "x"), 2, "'x'"),
        (("append",), 2, "--partition"),
    ):
        done = made.log(*arguments, given="a\n")
        assert (done.status, message in done.err) == (status, True), (arguments, done)


def test_validation_finds_that_locks_work(made: ClusterOfProcesses) -> None:
    done = made.log("validate", "--clients", 2, "--transactions", 20, "--partition", "0-1", "--format", "ndjson")
    assert done.status == 0, done.err
    (result,) = done.objects
    check_object(result)
    assert result["transactions"] == 40


def test_a_load_is_measured(made: ClusterOfProcesses) -> None:
    done = made.log("bench", "--partition", "0-1", "--duration", "300ms", "--lock-pool", 3, "--format", "ndjson")
    assert done.status == 0, done.err
    (result,) = done.objects
    check_object(result)
    assert result["transactions"] > 0
    assert 0 < result["latency_seconds"]["p50"] <= result["latency_seconds"]["max"]
    lost = on_full_disk("log", "bench", "--metadata", made.metadata, "--plaintext", "--duration", "100ms")
    assert (lost.status, "what was done" in lost.err, "transactions" in lost.err) == (14, True, True), lost.err


@pytest.mark.turns(10)
def test_a_stream_through_the_death_of_a_server_is_whole(made: ClusterOfProcesses) -> None:
    """A producer and a follower, as processes; the server of their partition is killed in between."""
    before = mark(made, 1)
    options = ("--metadata", made.metadata, "--plaintext")
    follower = warm_start.Popen(
        command_line(
            *("log", "tail", *options, "--partition", 1, "--from", before + 1, "--to", before + 400, "-f"),
            *("--data", "utf8", "--format", "ndjson"),
        ),
        stdout=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    producer = warm_start.Popen(
        command_line("log", "append", *options, "--partition", 1, "--progress-ids", "-q"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    assert producer.stdin is not None
    lines = [f"{n}" for n in range(400)]
    producer.stdin.write("\n".join(lines[:200]) + "\n")
    producer.stdin.flush()
    wait_until(lambda: mark(made, 1) > before, "something is committed")
    owner = next(
        server["server_id"]
        for server in made.state()["servers"]
        if 1 in [held["partition"] for held in server["partitions"]]
    )
    number = next(number for number in made.servers if made.ready(f"s{number}")["server_id"] == owner)
    made.servers[number].kill()
    told, _ = producer.communicate("\n".join(lines[200:]) + "\n", timeout=60)
    assert producer.returncode == 0
    assert int(told.split()[-1]) == before + 400
    out, _ = follower.communicate(timeout=60)
    found = [json.loads(line) for line in out.splitlines()]
    assert [one["transaction_id"] for one in found] == [*range(before + 1, before + 401)]
    data = [one["data"] for one in found]
    assert sorted(data, key=int) == lines, (
        "each once, though what was under way may be sent again behind what follows it"
    )
    wait_until(lambda: len(made.state()["servers"]) == 1, "the dead server is gone")
    made.start_servers(number)
    made.settle()


def test_a_transaction_is_followed_to_its_replicas(made: ClusterOfProcesses) -> None:
    made.log("append", "--partition", 2, given="a\nb\n")
    last = mark(made, 2)

    def look() -> dict[str, Any]:
        (found,) = made.log("trace", "--partition", 2, last, "--format", "ndjson").objects
        check_object(found)
        return found

    wait_until(lambda: "missing" not in [one["state"] for one in look()["replicas"]], "all replicas have it")
    found = look()
    assert (found["transaction_id"], found["committed"], found["high_water_mark"]) == (last, True, last)
    assert [one["state"] for one in found["replicas"]] == ["equal"] * 3
    assert {one["data_checksum"] for one in found["replicas"]} == {f"{zlib.crc32(b'b'):08x}"}
    (server,) = (one for one in made.state()["servers"] if 2 in [held["partition"] for held in one["partitions"]])
    assert found["accepted_by"] == found["server_id"] == server["server_id"]
    assert found["written_in"] == found["session_id"]
    for number in (1, 2, 3):
        dumped = invoke(
            *("dump", made.directory(number), "--partition", 2, "--from", last, "--to", last, "--format", "ndjson")
        )
        (one,) = dumped.only("record")
        place = (one["segment"], one["offset"])
        assert place in [(replica["segment"], replica["offset"]) for replica in found["replicas"]]
    number = ":".join(str(found["request_id"][key]) for key in ("client", "generation", "partition", "sequence"))
    (again,) = made.log("trace", "--request-id", number, "--from", last - 1, "--format", "ndjson").objects
    assert again == found
    (beyond,) = made.log("trace", "--partition", 2, last + 1, "--format", "ndjson").objects
    assert (beyond["committed"], beyond["request_id"]) == (False, None)
    assert [one["state"] for one in beyond["replicas"]] == ["missing"] * 3
    assert made.log("trace", "--request-id", "1:1:2:999999").status == 13
    for wrong in (("--request-id", "1:2:3"), ("--partition", 0), (), ("--request-id", f"{2**31}:0:0:0")):
        assert made.log("trace", *wrong).status == 2


@pytest.mark.parametrize("field", ["data_length", "data"])
def test_a_replica_whose_record_is_damaged_is_told_by_a_trace(made: ClusterOfProcesses, field: str) -> None:
    """Its node gives the record out to nobody, and says why."""
    made.log("append", "--partition", 3, given="here\n")
    last = mark(made, 3)

    def answer() -> Answer:
        return made.log("trace", "--partition", 3, last, "--format", "ndjson")

    wait_until(lambda: "missing" not in answer().out, "all replicas have it")
    file = max((made.directory(2) / "3").glob("*.seg"))
    place = file.stat().st_size - (RECORD_OVERHEAD + len("here"))
    place += RECORD_HEADER.size if field == "data" else RECORD_HEADER.offset_of(field)
    with file.open("r+b", buffering=0) as data:
        right = os.pread(data.fileno(), 1, place)
        os.pwrite(data.fileno(), bytes([right[0] ^ 0x40]), place)
        try:
            found = answer()
        finally:
            os.pwrite(data.fileno(), right, place)
    (told,) = found.objects
    check_object(told)
    assert sorted(one["state"] for one in told["replicas"]) == ["damaged", "equal", "equal"]
    (damaged,) = (one for one in told["replicas"] if one["state"] == "damaged")
    assert f"transaction {last} at offset" in damaged["problem"]
    assert found.status == 4
    assert answer().status == 0


@pytest.mark.parametrize("code", FailureCode)
def test_a_node_that_gives_no_record_out_says_whether_it_is_damaged(code: FailureCode) -> None:
    damaged = code in {"corrupt-record", "damaged", "data-checksum"}
    answer = RemoteError("n", "text", code=code.value)
    assert trace_of("n", ReplicaAnswer(answer), None) == ReplicaTrace(
        "n", "damaged" if damaged else "unknown", None, str(answer)
    )


@pytest.mark.parametrize("answer", [RemoteError("n", "text"), PeerError("n", "gone")], ids=["no code", "no answer"])
def test_of_a_node_that_says_nothing_of_the_record_it_is_unknown(answer: WaltzError) -> None:
    assert trace_of("n", ReplicaAnswer(answer), None) == ReplicaTrace("n", "unknown", None, str(answer))


OWNER = ServerState(4, "s:1", (), (AssignedPartition(2, 7), AssignedPartition(3, 8)))


@pytest.mark.parametrize(
    ("partition", "generation", "server"), [(2, 7, 4), (2, 6, None), (2, 8, None), (3, 8, 4), (1, 7, None)]
)
def test_who_accepted_a_request_is_known_while_the_partition_stays(
    partition: int, generation: int, server: int | None
) -> None:
    assert accepted_by(OWNER, RequestId(1, generation, partition, 5)) == server


@pytest.mark.parametrize(
    ("holders", "session"),
    [
        ([(9, 19)], 9),
        ([(9, 20)], None),  # it is what the session began with
        ([(8, 10)], None),
        ([], None),
        ([(8, 10), (9, 19)], 9),
        ([(9, 19), (9, 20)], None),
    ],
)
def test_which_session_wrote_a_record_is_known_behind_the_mark_it_began_with(
    holders: list[tuple[int, int]], session: int | None
) -> None:
    """Transaction 20 in session 9, asked of replicas in these sessions and with these low-water marks."""
    record = WireRecord.make(20, RequestId(1, 7, 2, 5), 0, b"data")
    answers = [ReplicaAnswer(record, None, SessionInfo(number, mark, mark)) for number, mark in holders]
    for silent in (ReplicaAnswer(None), ReplicaAnswer(PeerError("n", "gone")), ReplicaAnswer(record)):
        assert written_in(9, record, [*answers, silent]) == session
    other = WireRecord.make(20, RequestId(1, 7, 2, 6), 0, b"data")
    assert written_in(9, other, answers) is None, "no replica in the session holds it"
