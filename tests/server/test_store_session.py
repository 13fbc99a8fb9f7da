"""Store sessions over real storage nodes: quorum, replicas that go and come back, one writer at a time, verified copies."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from pathlib import Path
from typing import cast

import pytest

from tests.node.running import LOOPS, run
from tests.server.storing import LOG, PARTITION, Cluster, committed, held, packed, records, running_cluster, until
from waltzctl.engine.client.admin_client import AdminClient
from waltzctl.engine.client.admin_records import DEFAULT_BYTES
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.errors import PeerError, PeerUnreachableError, ProtocolError, StoreSessionClosedError
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.server import replica_session
from waltzctl.engine.server.replica_session import SentBatch
from waltzctl.engine.server.server_settings import SessionOptions
from waltzctl.engine.server.storage_nodes import StorageNodes
from waltzctl.engine.server.store_session import StoreSession
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import Record
from waltzctl.formats.wire.records import PackedRecords, WireRecord
from waltzctl.formats.znodes import UNRESOLVED, PartitionMetadata, ReplicaState


@LOOPS
def test_batches_are_committed_in_order_and_stand_on_every_replica(tmp_path: Path, loop: str) -> None:
    async def work() -> None:
        async with running_cluster(tmp_path) as cluster, cluster.session() as session:
            assert await session.open() == -1
            batches = [session.append(packed(first, 3)) for first in range(0, 90, 3)]
            assert [await one for one in batches] == list(range(2, 90, 3))
            assert (session.high_water_mark, session.next_transaction_id, session.undecided) == (89, 90, 0)
            assert await committed(session, 85, 100) == records(85, 5)
            assert await session.read(90, 5) == ()
            await until(lambda: all(one.acknowledged == 89 for one in session._replicas.values()))
            assert (await held(cluster, session.session_id)) == dict.fromkeys(cluster.names, records(0, 90))
            states = {(one.session_id, one.closing_high_water_mark) for one in cluster.metadata.replicas}
            assert states == {(session.session_id, UNRESOLVED)}

    run(work(), loop)


def test_one_of_three_may_be_missing_and_catches_up_when_it_returns(tmp_path: Path) -> None:
    async def work() -> None:
        async with running_cluster(tmp_path) as cluster:
            lost = cluster.names[1]
            await cluster.stop(lost)
            async with cluster.session(
                SessionOptions(first_retry=0.01, longest_retry=0.05, kept=4, copied=16)
            ) as session:
                assert await session.open() == -1
                for first in range(0, 100, 2):
                    await session.append(packed(first, 2))
                assert session.high_water_mark == 99
                await cluster.start(lost)
                await until(lambda: session._replicas[lost].acknowledged == 99)
                assert await session.append(packed(100, 1)) == 100
                await until(lambda: session._replicas[lost].acknowledged == 100)
                found = await held(cluster, session.session_id)
                assert found == dict.fromkeys(cluster.names, records(0, 101))
                assert {one.session_id for one in cluster.metadata.replicas} == {session.session_id}

    run(work())


def test_a_replica_that_fails_under_load_returns_into_the_open_session(tmp_path: Path) -> None:
    async def work() -> None:
        async with running_cluster(tmp_path) as cluster, cluster.session() as session:
            await session.open()
            done = []
            for first in range(0, 300, 5):
                if first in (50, 150):  # a session opens with two of three, and needs two that stay
                    await until(lambda: all(one.takes_part for one in session._replicas.values()))
                    await cluster.stop(cluster.names[first // 100])
                if first in (100, 200):
                    await cluster.start(cluster.names[first // 200])
                    name = cluster.names[first // 200]
                    await until(lambda name=name: session._replicas[name].takes_part)
                done.append(session.append(packed(first, 5)))
                if first % 25 == 0:
                    await done[-1]
            assert [await one for one in done][-1] == 299
            await until(lambda: all(one.acknowledged == 299 for one in session._replicas.values()))
            assert await held(cluster, session.session_id) == dict.fromkeys(cluster.names, records(0, 300))

    run(work())


def test_no_pause_is_longer_than_the_longest_the_first_one_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = []

    async def returned(_: StorageNodes, node: str, seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(0.01)

    async def work() -> None:
        monkeypatch.setattr(StorageNodes, "returned", returned)
        async with running_cluster(tmp_path) as cluster:
            await cluster.stop(cluster.names[0])
            async with cluster.session(SessionOptions(first_retry=3600.0, longest_retry=0.02)) as session:
                await session.open(timeout=20)
                await until(lambda: len(pauses) > 2)
        assert {*pauses} == {0.02}

    run(work())


@LOOPS
def test_that_a_node_is_gone_is_said_of_the_node_and_not_by_each_partition(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, loop: str
) -> None:
    async def work() -> None:
        async with running_cluster(tmp_path) as cluster, cluster.session() as session:
            await session.open()
            await session.append(packed(0, 5))
            gone = cluster.names[0]
            await until(lambda: session._replicas[gone].takes_part)
            caplog.clear()
            await cluster.stop(gone)
            await until(lambda: not session._replicas[gone].takes_part)
            await asyncio.sleep(0)
            said = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
            assert [one.partition(" until")[0] for one in said] == [f"storage node {gone} is left out"]

    run(work(), loop)


def test_whom_an_opening_session_waits_for_is_said_with_what_is_wrong_now(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A replica that refuses from the beginning, and one that is gone, and then refuses."""

    async def work() -> None:
        async with running_cluster(tmp_path) as cluster:
            _, damaged, gone = cluster.names
            async with cluster.session() as session:
                await session.open()
                await session.append(packed(0, 5))
                await until(lambda: all(one.acknowledged == 4 for one in session._replicas.values()))
            for name in (damaged, gone):
                await cluster.stop(name)
                for file in (cluster.paths[name] / str(PARTITION)).iterdir():
                    file.unlink()
            await cluster.start(damaged)
            caplog.clear()
            async with cluster.session() as session:
                opening = asyncio.ensure_future(session.open(timeout=20))
                await until(lambda: f"{gone} (nobody answers)" in session.waits_for)
                await until(lambda: f"{damaged} (127.0.0.1" in session.waits_for)
                assert "quarantined" in session.waits_for
                await cluster.start(gone)
                await until(lambda: session.waits_for.count("quarantined") == 2)
                await asyncio.sleep(0.2)  # both are asked again and again, and say the same
                for name in (damaged, gone):
                    said = [one for one in caplog.messages if f"replica {name}: " in one and "quarantined" in one]
                    assert len(said) == 1
                assert not opening.done()
                opening.cancel()

    run(work())


def test_a_batch_is_committed_once_a_quorum_has_written_it_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with running_cluster(tmp_path) as cluster, cluster.session() as session:
            await session.open()
            monkeypatch.setattr(replica_session.ReplicaSession, "pump", lambda _: None)  # nothing is sent
            one, other = session.append(packed(0, 2)), session.append(packed(2, 3))
            first, second, third = cluster.names
            for node, last, done in (
                (first, 4, (False, False)),
                (first, 4, (False, False)),
                (second, 0, (False, False)),
                (second, 1, (True, False)),
                (third, 3, (True, False)),
                (third, 4, (True, True)),
            ):
                session.written(node, last)
                assert (one.done(), other.done()) == done
            assert (one.result(), other.result(), session.high_water_mark) == (1, 4, 4)

    run(work())


def test_a_session_goes_on_while_its_first_batch_can_have_a_quorum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has written a batch counts for it whatever becomes of that replica; the next batch ends the session in its turn."""

    async def work() -> None:
        async with running_cluster(tmp_path) as cluster, cluster.session() as session:
            await session.open()
            await until(lambda: all(one.takes_part for one in session._replicas.values()))
            monkeypatch.setattr(replica_session.ReplicaSession, "pump", lambda _: None)  # nothing is sent
            one, other = session.append(packed(0, 2)), session.append(packed(2, 3))
            first, second, third = cluster.names
            session.written(second, 1)
            for name in (second, third):
                session._replicas[name].takes_part = False
            session._decide()
            assert session.is_open
            session.written(first, 1)
            assert one.result() == 1
            assert not session.is_open
            with pytest.raises(StoreSessionClosedError, match="1 of 3 replicas take part, 2 are a quorum"):
                await other

    run(work())


@pytest.mark.turns(10)
@pytest.mark.parametrize("lost", [False, True])
def test_what_a_replica_wrote_and_comes_back_without_has_no_vote_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lost: bool
) -> None:
    """A node that starts on a damaged end cuts it off: another replica that writes the batch would be the only one to hold it."""

    async def work() -> None:
        async with running_cluster(tmp_path) as cluster, cluster.session() as session:
            await session.open()
            await until(lambda: all(one.takes_part for one in session._replicas.values()))
            await session.append(packed(0, 3))
            first, second, _ = cluster.names
            real = replica_session.ReplicaSession.pump

            def pump(replica: replica_session.ReplicaSession) -> None:
                if replica.node == first and not stopped:
                    real(replica)

            stopped = list[str]()
            monkeypatch.setattr(replica_session.ReplicaSession, "pump", pump)
            undecided = session.append(packed(3, 2))
            await until(lambda: session._replicas[first].acknowledged == 4)
            stopped.append(first)
            await cluster.stop(first)
            await until(lambda: not session._replicas[first].takes_part)
            if lost:
                apply(plan_truncate(cluster.paths[first], partition=PARTITION, after=3), arguments=[])
            await cluster.start(first)
            await until(lambda: session._replicas[first].takes_part)
            session.written(second, 4)
            assert undecided.done() is not lost
            said = [one for one in caplog.messages if "has lost" in one]
            assert len(said) == lost
            undecided.cancel()

    run(work())


def test_what_a_replica_comes_back_with_and_was_never_sent_is_not_taken_for_the_sessions(tmp_path: Path) -> None:
    """It was taken for the batches that were given these ids later: a vote for what it never wrote, and wrong records read."""

    async def work() -> None:
        async with running_cluster(tmp_path) as cluster, cluster.session() as session:
            await session.open()
            await until(lambda: all(one.takes_part for one in session._replicas.values()))
            await session.append(packed(0, 3))
            first = cluster.names[0]
            await until(lambda: session._replicas[first].acknowledged == 2)
            await cluster.stop(first)
            await until(lambda: not session._replicas[first].takes_part)
            with StorageDirectory.open(cluster.paths[first]) as storage:
                storage.partition(PARTITION).append(
                    [Record.make(number, RequestId(99, 1, PARTITION, number), 0, b"by hand") for number in (3, 4)]
                )
            await cluster.start(first)
            await until(
                lambda: session._replicas[first].takes_part or "never sent" in session._recovery.replicas[first].reason
            )
            for begin in (3, 5, 7):
                await session.append(packed(begin, 2))
            assert not session._replicas[first].takes_part
            for replica in session._replicas.values():
                replica.weight = 0.0 if replica.node == first else 1.0
            assert await committed(session, 0, 9) == records(0, 9)

    run(work())


def test_so_many_batches_are_in_flight_to_a_replica_as_may_be(tmp_path: Path) -> None:
    async def work() -> None:
        options = SessionOptions(first_retry=0.01, longest_retry=0.05, in_flight=2)
        async with running_cluster(tmp_path, 1) as cluster, cluster.session(options) as session:
            await session.open()
            (replica,) = session._replicas.values()
            sent: list[asyncio.Future[None]] = []

            class Slow:
                closed = False

                def start_append_encoded(self, *_: object) -> asyncio.Future[None]:
                    sent.append(asyncio.get_running_loop().create_future())
                    return sent[-1]

            replica._storage = cast("StorageClient", Slow())
            done = [session.append(packed(n, 1)) for n in range(5)]
            assert len(sent) == 2
            for count in (3, 4, 5, 5, 5):
                next(one for one in sent if not one.done()).set_result(None)
                await asyncio.sleep(0.01)
                assert len(sent) == count
            assert [await one for one in done] == list(range(5))

    run(work())


def test_what_is_read_comes_from_a_replica_that_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has exactly that one transaction is asked for it, and one that ends in front of it is not."""

    async def work() -> None:
        async with running_cluster(tmp_path) as cluster, cluster.session() as session:
            await session.open()
            await session.append(packed(0, 10))
            await until(lambda: all(one.acknowledged == 9 for one in session._replicas.values()))
            asked: list[tuple[str, int, int]] = []
            rotten: set[str] = set()

            async def copied(source: str, first: int, count: int) -> tuple[WireRecord, ...]:
                asked.append((source, first, count))
                if source in rotten:
                    raise ProtocolError(source, f"transaction {first} has a wrong checksum")
                return tuple(records(first, count))

            monkeypatch.setattr(session, "copied", copied)
            names = cluster.names
            replicas = [session._replicas[name] for name in names]
            for replica, acknowledged, weight in zip(replicas, (4, 5, 9), (0.0, 1.0, 2.0), strict=True):
                replica.acknowledged, replica.weight = acknowledged, weight
            replicas[2].takes_part = False
            assert await session.read(5, 3) == tuple(records(5, 1))
            assert asked == [(names[1], 5, 1)]
            with pytest.raises(
                StoreSessionClosedError, match="nobody gives out transaction 6: no replica that takes part has"
            ):
                await session.read(6, 3)
            replicas[2].takes_part = True
            assert await session.read(9, 1) == tuple(records(9, 1)), "the last one that is committed"
            assert await session.read(10, 1) == ()
            assert asked[1:] == [(names[2], 9, 1)]
            replicas[1].acknowledged, rotten = 9, rotten | {names[1]}
            assert await session.read(8, 2) == tuple(records(8, 2)), "of the next one"
            assert [source for source, *_ in asked[2:]] == [names[1], names[2]]
            assert not replicas[1].takes_part, "it connects again, and is asked anew what it holds"

    run(work())


def test_without_a_quorum_the_session_ends_and_what_was_undecided_is_found_by_the_next(tmp_path: Path) -> None:
    async def work() -> None:
        async with running_cluster(tmp_path) as cluster:
            async with cluster.session() as session:
                await session.open()
                await session.append(packed(0, 10))
                await until(lambda: all(one.takes_part for one in session._replicas.values()))
                for name in cluster.names[1:]:
                    await cluster.stop(name)
                undecided = session.append(packed(10, 5)) if session.is_open else None
                await session.closed
                if undecided is not None:
                    with pytest.raises(StoreSessionClosedError, match=r"1 of 3 replicas take part, 2 are a quorum"):
                        await undecided
                with pytest.raises(StoreSessionClosedError):
                    session.append(packed(10, 1))
            async with cluster.session() as session:
                with pytest.raises(StoreSessionClosedError, match=r"did not open within 0.3 s: .*missing: node-"):
                    await session.open(timeout=0.3)
            await cluster.start(cluster.names[1])
            async with cluster.session() as session:
                mark = await session.open(timeout=20)
                assert mark in (9, 14)
                assert await committed(session, 0, 100) == records(0, mark + 1)
                assert await session.append(packed(mark + 1, 2, client=2)) == mark + 2

    run(work())


def test_a_later_session_shuts_the_earlier_one_out(tmp_path: Path) -> None:
    async def work() -> None:
        async with running_cluster(tmp_path) as cluster, cluster.session() as old:
            await old.open()
            await old.append(packed(0, 5))
            async with cluster.session() as new:
                assert await new.open() == 4
                late = old.append(packed(5, 1)) if old.is_open else None
                assert await new.append(packed(5, 3, client=2)) == 7
                if late is not None:
                    with pytest.raises(StoreSessionClosedError):
                        await late
                await asyncio.wait_for(old.closed, 20)
                assert await committed(new, 0, 10) == records(0, 5) + records(5, 3, client=2)

    run(work())


def test_a_session_that_lost_its_metadata_does_not_open(tmp_path: Path) -> None:
    async def work() -> None:
        async with running_cluster(tmp_path) as cluster, cluster.session() as session:
            cluster.metadata = type(cluster.metadata)(2, 99, ())
            with pytest.raises(StoreSessionClosedError, match="session 99 is later"):
                await session.open()

    run(work())


@pytest.mark.parametrize("done", [False, True])
def test_an_open_session_goes_on_while_the_metadata_does_not_answer(tmp_path: Path, done: bool) -> None:
    """A replica that comes late waits for it; also where the write was `done`, and only its answer was lost."""

    async def work() -> None:
        async with running_cluster(tmp_path) as cluster, cluster.session() as session:
            late = cluster.names[2]
            await cluster.stop(late)
            await session.open()
            real, tried = session._write_replicas, list[object]()

            async def unanswered(replicas: tuple[ReplicaState, ...]) -> None:
                if done or len(tried) > 2:
                    await real(replicas)
                tried.append(replicas)
                if len(tried) <= 3:
                    raise PeerUnreachableError("the metadata", "no answer")

            session._write_replicas = unanswered
            await cluster.start(late)
            await until(lambda: len(tried) >= 2)
            assert await asyncio.wait_for(session.append(packed(0, 3)), 20) == 2
            await until(lambda: session._replicas[late].acknowledged == 2)
            assert session.is_open
            assert len(tried) == 4
            assert {one.session_id for one in cluster.metadata.replicas} == {session.session_id}

    run(work())


def test_a_session_that_is_not_open_yet_ends_where_the_metadata_does_not_answer(tmp_path: Path) -> None:
    async def work() -> None:
        async with running_cluster(tmp_path) as cluster, cluster.session() as session:

            async def unanswered(_replicas: tuple[ReplicaState, ...]) -> None:
                raise PeerUnreachableError("the metadata", "no answer")

            session._write_replicas = unanswered
            with pytest.raises(StoreSessionClosedError, match="no answer"):
                await session.open()

    run(work())


def test_records_that_do_not_follow_are_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with running_cluster(tmp_path, 1) as cluster, cluster.session() as session:
            with pytest.raises(StoreSessionClosedError, match="not open"):
                session.append(packed(0, 1))
            await session.open()
            for wrong in ([], records(1, 1), [*records(0, 1), *records(2, 1)]):
                with pytest.raises(ValueError, match="has to begin at 0"):
                    session.append(PackedRecords.of(wrong))
            assert await session.append(packed(0, 1)) == 0

    run(work())


def _damage(cluster: Cluster, name: str, transaction_id: int) -> None:
    """Change a byte of a record's data on a node's disk."""
    text = f"1: transaction {transaction_id}".encode()
    for path in (cluster.paths[name] / str(PARTITION)).glob("*.seg"):
        content = path.read_bytes()
        at = content.find(text)
        if at >= 0:
            path.write_bytes(content[:at] + b"X" + content[at + 1 :])


def bulky(first: int, count: int, size: int) -> list[WireRecord]:
    return [
        WireRecord.make(one, RequestId(1, 1, PARTITION, one), 0, bytes(size)) for one in range(first, first + count)
    ]


@pytest.mark.parametrize("when", ["in the session", "in the recovery"])
def test_who_is_behind_is_sent_no_longer_frames_than_it_may_take(tmp_path: Path, when: str) -> None:
    """What the others give out at once are 4 MB, and this one takes 2 MiB."""

    async def work() -> None:
        async with running_cluster(tmp_path) as cluster:
            lost, other = cluster.names[:2]
            await cluster.stop(lost)
            options = SessionOptions(first_retry=0.01, longest_retry=0.05, kept=1)
            async with cluster.session(options) as session:
                await session.open()
                for first in range(0, 40, 2):
                    await session.append(PackedRecords.of(bulky(first, 2, 100_000)))
                if when == "in the recovery":
                    await session.close()
                    await cluster.stop(other)
                    await cluster.start(lost, limits=PortLimits(max_body=2 << 20))
                    async with cluster.session(options) as later:
                        assert await later.open() == 39
                        assert (await held(cluster, later.session_id))[lost] == bulky(0, 40, 100_000)
                    return
                await cluster.start(lost, limits=PortLimits(max_body=2 << 20))
                await until(lambda: session._replicas[lost].acknowledged == 39)
                assert (await held(cluster, session.session_id))[lost] == bulky(0, 40, 100_000)

    run(work())


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [
        ([], 100, []),
        ([64], 100, [1]),
        ([65], 100, [1]),
        ([0, 28], 100, [2]),
        ([0, 29], 100, [1, 1]),
        ([100, 0, 0, 0], 100, [1, 2, 1]),
        ([0, 100, 0], 100, [1, 1, 1]),
    ],
)
def test_portions_of_records_are_as_long_as_may_be(sizes: list[int], most: int, expected: list[int]) -> None:
    """A record has 36 bytes beside its data."""
    made = [WireRecord.make(at, RequestId(1, 1, PARTITION, at), 0, bytes(size)) for at, size in enumerate(sizes)]
    parts = [*replica_session.portions(made, most)]
    assert [len(part) for part in parts] == expected
    assert [one for part in parts for one in part] == made


def test_a_damaged_record_is_not_copied_and_another_replica_gives_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with running_cluster(tmp_path) as cluster:
            first, _, late = cluster.names
            await cluster.stop(late)
            async with cluster.session(
                SessionOptions(first_retry=0.01, longest_retry=0.05, kept=1, copied=8)
            ) as session:
                await session.open()
                for n in range(40):
                    await session.append(packed(n, 1))
                _damage(cluster, first, 20)
                await cluster.start(late)
                await until(lambda: session._replicas[late].acknowledged == 39)
                found = await _read(cluster, late, session)
                assert found == records(0, 40)

    run(work())


def test_of_a_node_that_bounds_its_answers_by_their_count_few_long_records_are_asked_for() -> None:
    """A released node puts 256 records of 2 MB into one answer, if asked to: longer than any that is read."""
    long = [WireRecord.make(n, RequestId(1, 1, PARTITION, n), 0, bytes(2_000_000)) for n in range(40)]
    everything = [*records(0, 300), *(dataclasses.replace(one, transaction_id=300 + at) for at, one in enumerate(long))]
    everything += records(340, 700)
    answers: list[list[WireRecord]] = []

    class Released:
        closed = False

        async def records(self, _session: int, _partition: int, first: int, count: int) -> list[WireRecord]:
            answers.append(everything[first : first + count])
            return answers[-1]

        @property
        def ended(self) -> asyncio.Future[PeerError]:
            return asyncio.get_running_loop().create_future()

        async def close(self) -> None:
            pass

    async def connect(_name: str) -> StorageClient:
        return cast("StorageClient", Released())

    async def work() -> None:
        nodes = StorageNodes(connect, log=LOG)
        session = StoreSession(5, PartitionMetadata(1, 5, ()), PARTITION, ("a", "b", "c"), nodes, _never, log=LOG)
        for begin, end in ((300, 340), (0, 300), (340, 1040)):
            position = begin
            while position < end:
                position += len(await session.copied("a", position, end - position))
            assert [one for answer in answers for one in answer] == everything[begin:end]
            assert max(sum(one.size for one in answer) for answer in answers) <= DEFAULT_BYTES
            answers.clear()
        assert session._read_size.count == session.options.copied, "short ones come many at a time, as before"
        await session.close()
        await nodes.close()

    run(work())


@pytest.mark.parametrize("wrong", ["nothing", "checksum", "order", "empty"])
def test_of_a_replica_that_answers_wrongly_nothing_is_copied(wrong: str) -> None:
    """A released node serves records without a look at their checksums."""
    given = records(20, 3)
    if wrong == "checksum":
        given[2] = dataclasses.replace(given[2], data=b"changed on the disk")
    if wrong == "order":
        given[2] = records(23, 1)[0]

    class Peer:
        async def records(self, _session: int, _partition: int, first: int, _count: int) -> list[WireRecord]:
            assert first == 20
            return [] if wrong == "empty" else given

        @property
        def ended(self) -> asyncio.Future[PeerError]:
            return asyncio.get_running_loop().create_future()

        async def close(self) -> None:
            pass

    async def connect(_name: str) -> StorageClient:
        return cast("StorageClient", Peer())

    async def work() -> None:
        nodes = StorageNodes(connect, log=LOG)
        metadata = PartitionMetadata(1, 5, ())
        session = StoreSession(
            5, metadata, PARTITION, ("a", "b", "c"), nodes, _never, log=LOG, options=SessionOptions()
        )
        if wrong == "nothing":
            assert list(await session.copied("a", 20, 3)) == given
        else:
            with pytest.raises(
                ProtocolError, match=r"22 has a wrong checksum|22 is 23|no record from transaction 20 on"
            ):
                await session.copied("a", 20, 3)
        await session.close()
        await nodes.close()

    run(work())


@pytest.mark.parametrize(
    ("client", "last", "said"),
    [
        pytest.param(1, 12, None, id="the same"),
        pytest.param(2, 12, "transaction 10 is another one than that of node-", id="another"),
        pytest.param(1, 40, "transaction 30 is another one than that of node-", id="beyond"),
    ],
)
def test_a_mark_that_a_released_server_set_too_soon_lets_nothing_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, client: int, last: int, said: str | None
) -> None:
    """It began a session on one replica, with what it held, and ended; the next one wrote on without that replica."""

    async def work() -> None:
        async with running_cluster(tmp_path) as cluster:
            marked = cluster.names[2]
            async with cluster.session() as session:
                await session.open()
                await session.append(packed(0, 10))
                await until(lambda: all(one.acknowledged == 9 for one in session._replicas.values()))
            cluster.session_id += 1
            released = await cluster.connect(marked)
            await released.last_session_info(cluster.session_id, PARTITION)
            await released.append(cluster.session_id, PARTITION, records(10, last - 9, client=client))
            await released.set_low_water_mark(cluster.session_id, PARTITION, last)
            await released.close()
            await cluster.stop(marked)
            async with cluster.session() as session:
                assert await session.open() == 9
                await session.append(packed(10, 20))
            await cluster.start(marked)
            async with cluster.session(SessionOptions(first_retry=0.01, longest_retry=0.05, copied=2)) as session:
                assert await session.open() == 29
                await session.append(packed(30, 1))
                if said is None:
                    await until(lambda: session._replicas[marked].acknowledged == 30)
                else:
                    await until(lambda: said in caplog.text)
                    assert not session._replicas[marked].takes_part
                    where = cluster.nodes[marked].addresses
                    assert where.admin_port is not None
                    admin = await AdminClient.connect(where.host, where.admin_port, ssl_context=None, timeout=20.0)
                    await admin.unassign([PARTITION], delete_files=True)  # what the message advises
                    await admin.assign([PARTITION])
                    await admin.close()
                    await until(lambda: session._replicas[marked].acknowledged == 30)
                for name in cluster.names:
                    assert await _read(cluster, name, session) == records(0, 31)

    run(work())


async def _never(_replicas: object) -> None:
    raise AssertionError("nothing is written here")


async def _read(cluster: Cluster, name: str, session: StoreSession) -> list[object]:
    client = await cluster.connect(name)
    try:
        return list(await client.records(session.session_id, PARTITION, 0, 100))
    finally:
        await client.close()


def test_of_a_batch_a_replica_is_sent_what_it_lacks() -> None:
    async def work() -> None:
        batch = SentBatch(5, packed(5, 4), asyncio.get_running_loop().create_future())
        assert batch.last == 8
        for first in range(5, 9):
            assert batch.records_from(first) == packed(first, 9 - first)

    asyncio.run(work())


def test_a_node_that_keeps_more_than_it_was_told_to_holds_up_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session ended for all of its replicas, and so did each that followed it."""
    truncate, wrong = StorageClient.truncate, list[int]()  # its port
    last, answered = StorageClient.max_transaction_id, list[int]()

    async def less(client: StorageClient, session_id: int, partition: int, to: int, *, offline: bool = False) -> int:
        told = await truncate(client, session_id, partition, to, offline=offline)
        return to + 1 if client.address.port in wrong else told

    async def behind_the_others(client: StorageClient, session_id: int, partition: int) -> int:
        """If the others were asked later, they would copy from it what it alone holds."""
        if client.address.port in wrong:
            await until(lambda: len(answered) >= 2)
        found = await last(client, session_id, partition)
        answered.append(client.address.port)
        return found

    async def work() -> None:
        async with running_cluster(tmp_path) as cluster:
            async with cluster.session() as session:
                await session.open()
                await until(lambda: all(one.takes_part for one in session._replicas.values()))
                await session.append(packed(0, 5))
                await until(lambda: all(one.acknowledged == 4 for one in session._replicas.values()))
            first = cluster.names[0]
            await cluster.stop(first)
            with StorageDirectory.open(cluster.paths[first]) as storage:
                storage.partition(PARTITION).append(
                    [Record.make(number, RequestId(99, 1, PARTITION, number), 0, b"by hand") for number in (5, 6)]
                )
            await cluster.start(first)
            wrong.append(cluster.nodes[first].addresses.port)
            monkeypatch.setattr(StorageClient, "truncate", less)
            monkeypatch.setattr(StorageClient, "max_transaction_id", behind_the_others)
            async with cluster.session() as session:
                assert await session.open() == 4
                await until(lambda: "5 after a cut behind 4" in session._recovery.replicas[first].reason)
                assert await session.append(packed(5, 1)) == 5
                wrong.clear()
                await until(lambda: session._replicas[first].acknowledged == 5)
                assert await held(cluster, session.session_id) == dict.fromkeys(cluster.names, records(0, 6))

    run(work())
