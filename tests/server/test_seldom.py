"""What seldom happens to a log server: an answer that comes too late, a node with no name, a start that fails half-way."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from tests.server.storing import LOG
from waltzctl.engine.errors import (
    InvalidRequestError,
    MismatchError,
    PeerError,
    PeerUnreachableError,
    RemoteError,
    StoreSessionClosedError,
    WaltzError,
)
from waltzctl.engine.metadata.metadata_location import MetadataLocation
from waltzctl.engine.metadata.zookeeper_options import ZooKeeperOptions, ZooKeeperPlace, ZooKeeperTimeouts
from waltzctl.engine.net.configuration import load_configuration
from waltzctl.engine.net.metrics import Meter
from waltzctl.engine.quorum import recovery_actions, recovery_events
from waltzctl.engine.server import served_partition as served_partition_module
from waltzctl.engine.server import server as server_module
from waltzctl.engine.server import store_session as store_session_module
from waltzctl.engine.server.client_port import ClientConnection, ClientPort
from waltzctl.engine.server.data_requests import DataRequests
from waltzctl.engine.server.log_server import LogServer
from waltzctl.engine.server.replica_session import ReplicaSession
from waltzctl.engine.server.served_partition import Partition
from waltzctl.engine.server.server import Server, _advertised_host, location_of
from waltzctl.engine.server.server_collector import ServerCollector
from waltzctl.engine.server.server_health import ServerHealthReport
from waltzctl.engine.server.server_metrics import ServerPartitionMetrics, ServerPartitionReading, ServerReading
from waltzctl.engine.server.server_settings import LOG_SERVER, LogServerOptions, ServerOptions, SessionOptions
from waltzctl.engine.server.storage_nodes import StorageNodes, address_of
from waltzctl.engine.server.store_partition import PartitionClosedError, StorePartition
from waltzctl.engine.server.store_session import StoreSession
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import client as wire
from waltzctl.formats.znodes import PartitionMetadata


def raising(error: BaseException) -> Callable[..., Awaitable[Any]]:
    async def raises(*_: object, **__: object) -> NoReturn:
        raise error

    return raises


def returning(value: object = None) -> Callable[..., Awaitable[Any]]:
    async def returns(*_: object, **__: object) -> object:
        return value

    return returns


# --- replicas --------------------------------------------------------------------------------------------------------


class Session(SimpleNamespace):
    """What a replica session tells its store session."""

    def __init__(self, **more: Any) -> None:
        told: list[object] = []
        super().__init__(
            told=told,
            session_id=5,
            partition=1,
            options=SessionOptions(),
            is_open=True,
            tell=told.append,
            lost=lambda node, error, **_: told.append(("lost", node, str(error))),
            replica_failed=lambda node, error: told.append(("failed", node)),
            written=lambda node, last: told.append(("written", node, last)),
            next_transaction_id=0,
            **more,
        )


GONE = PeerError("b:1", "it is gone")


def replica(session: Session, storage: object | None) -> ReplicaSession:
    made = ReplicaSession(cast("Any", session), "a:1")
    made._storage = cast("Any", storage)
    return made


@pytest.mark.parametrize("why", ["not connected", "failed meanwhile", "failed, and failing", "connected"])
def test_an_action_of_a_replica_that_has_failed_since_reports_nothing(why: str) -> None:
    """The recovery was told of the failure; an outcome of the connection before would be taken for one of the next."""
    session = Session()

    async def truncate(*_: object) -> int:
        if why.startswith("failed"):
            made.fail(GONE)
        if why == "failed, and failing":
            raise GONE
        return 7

    made = replica(session, None if why == "not connected" else SimpleNamespace(truncate=truncate, closed=False))
    asyncio.run(made.perform(recovery_actions.Truncate("a:1", 7)))
    assert session.told == {
        "not connected": [],
        "connected": [recovery_events.Truncated("a:1", 7)],
    }.get(why, [("lost", "a:1", str(GONE))])


@pytest.mark.parametrize("last", [-2, -1, 7, 8])
def test_a_node_that_ends_elsewhere_than_it_was_cut_to_is_not_believed(last: int) -> None:
    session = Session()
    made = replica(session, SimpleNamespace(truncate=returning(last), closed=False))
    asyncio.run(made.perform(recovery_actions.Truncate("a:1", 7)))
    (told,) = session.told
    if -1 <= last <= 7:
        assert told == recovery_events.Truncated("a:1", last)
    else:
        assert f"partition 1 ends with transaction {last} after a cut behind 7" in cast("Any", told)[2]


@pytest.mark.parametrize("error", [GONE, RemoteError("b:1", "no such record")])
def test_a_copy_from_a_replica_that_cannot_be_read_is_that_one_s_failure(error: WaltzError) -> None:
    session = Session(copied=raising(error))
    made = replica(session, SimpleNamespace(append=raising(AssertionError("nothing was read")), closed=False))
    asyncio.run(made.perform(recovery_actions.CatchUp("a:1", "b:1", 4, 9)))
    assert session.told == [("failed", "b:1"), recovery_events.CaughtUp("a:1", 3)]


@pytest.mark.parametrize("how", ["replaced", "gone", "failing", "failed and failing"])
def test_what_was_copied_for_a_connection_that_is_gone_is_not_sent(how: str) -> None:
    made: ReplicaSession

    async def read(*_: object) -> tuple[object, ...]:
        if how in ("replaced", "failed and failing"):
            made.fail(GONE)
        if how == "replaced":
            made._storage = cast("Any", SimpleNamespace(append=raising(AssertionError("not this one")), closed=False))
        if how == "gone":
            made._storage = None
        if how.endswith("failing"):
            raise StoreSessionClosedError("nobody gives it out")
        return (SimpleNamespace(transaction_id=0, size=1),)

    session = Session(read=read)
    made = replica(session, SimpleNamespace(append=raising(AssertionError("not the old one")), closed=False))
    asyncio.run(made._copy(made._epoch))
    expected = {
        "replaced": [str(GONE)],
        "gone": [],
        "failing": ["nobody gives it out"],
        "failed and failing": [str(GONE)],
    }
    assert [cast("Any", one)[2] for one in session.told] == expected[how]


def test_an_error_of_an_append_that_is_none_of_the_node_s_is_not_swallowed() -> None:
    session = Session()
    made = replica(session, SimpleNamespace(closed=False))
    with pytest.raises(MemoryError):
        made._answered(3, made._epoch, MemoryError())
    made._answered(3, made._epoch - 1, MemoryError())
    made._answered(3, made._epoch, GONE)
    assert session.told == [("lost", "a:1", str(GONE))]


# --- sessions --------------------------------------------------------------------------------------------------------


def session_of(nodes: tuple[str, ...] = ("a:1", "b:1")) -> StoreSession:
    async def nowhere(node: str) -> NoReturn:
        raise PeerUnreachableError(node, "nobody answers")

    storage = StorageNodes(nowhere, log=LOG)
    return StoreSession(5, PartitionMetadata(1, 5), 1, nodes, storage, returning(), log=LOG)


def test_an_error_of_a_session_s_own_task_ends_it_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        made = session_of()
        calls: list[BaseException | None] = []
        done = asyncio.get_running_loop().create_future()
        made.when_done(done, calls.append)
        made.spawn(cast("Any", raising(ValueError("made up"))()))
        assert "ValueError: made up" in await made.closed
        done.set_result(None)
        await asyncio.sleep(0)
        assert calls == [], "the session has ended"
        await made.close()

    asyncio.run(work())
    assert [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR] == ["partition 1: session 5"]


def test_whom_a_session_waits_for_are_those_that_have_not_failed() -> None:
    async def work() -> None:
        made = session_of()
        assert made.late == ("a:1", "b:1")
        made.lost("a:1", PeerError("a:1", "refused"))
        assert made.late == ("b:1",)
        made.replica_failed("b:1", PeerError("b:1", "reads fail"))
        assert made.late == ()
        assert "b:1 (reads fail)" in made.waits_for

    asyncio.run(work())


class Metadata:
    """Nobody asks."""

    assigned = begin_session = write_replicas = staticmethod(raising(AssertionError("nobody asks")))


def store(options: SessionOptions | None = None) -> StorePartition:
    nodes = StorageNodes(cast("Any", raising(AssertionError("nobody connects"))), log=LOG)
    return StorePartition(1, 1, cast("Any", Metadata()), nodes, log=LOG, options=options)


@pytest.mark.parametrize(("nodes", "closed"), [(("a:1", "b:1"), False), (("b:1", "a:1"), False), (("a:1",), True)])
def test_a_session_over_other_nodes_than_are_assigned_is_closed(nodes: tuple[str, ...], closed: bool) -> None:
    reasons: list[str] = []

    async def close(reason: str) -> None:
        reasons.append(reason)

    async def work() -> None:
        made = store()
        made._session = cast("Any", SimpleNamespace(assigned=frozenset({"a:1", "b:1"}), close=close))
        await made.reassign(nodes)

    asyncio.run(work())
    assert reasons == (["the partition's storage nodes changed"] if closed else [])


def test_a_read_outlasts_a_session_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        made = store(SessionOptions(first_retry=0.001, longest_retry=0.002))
        with pytest.raises(StoreSessionClosedError, match="partition 1 has no session"):
            await made.records_now(0, 1)
        made._session = cast("Any", SimpleNamespace(is_open=False, read=raising(AssertionError("it is closed"))))
        with pytest.raises(StoreSessionClosedError, match="partition 1 has no session"):
            await made.records_now(0, 1)
        closed: list[str] = []

        async def close(reason: str) -> None:
            closed.append(reason)

        sessions = iter(
            [
                SimpleNamespace(is_open=True, read=raising(StoreSessionClosedError("ended")), close=close),
                SimpleNamespace(is_open=True, read=returning(("a record",))),
            ]
        )

        async def session() -> None:
            made._session = cast("Any", next(sessions))

        monkeypatch.setattr(made, "session", session)
        assert await made.records(0, 1) == ("a record",)
        assert closed == ["ended"]

    asyncio.run(work())


def test_what_is_told_to_a_session_that_has_ended_begins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        made = session_of()
        made.end("it is over")
        monkeypatch.setattr(store_session_module.recovery, "step", lambda *_: pytest.fail("nothing follows"))
        made.tell(recovery_events.MetadataWritten())

    asyncio.run(work())


@pytest.mark.parametrize("fails", ["locks", "keep", ""])
def test_an_append_that_is_in_the_log_is_committed_once_whatever_fails(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """One whose commit failed before anybody saw it is looked for in the next session; one that readers saw is not."""
    over: list[int] = []
    request = RequestId(7, 1, 1, 0)
    client = SimpleNamespace(over=lambda count, _: over.append(count))
    one = SimpleNamespace(records=_Records(request), locks=object(), client=client, size=1)
    committed = SimpleNamespace(high_water_mark=4)

    def step(name: str) -> Callable[..., None]:
        def do(batch: Any, *_: object) -> None:
            if name == fails:
                raise MemoryError(name)
            if name == "advance":
                committed.high_water_mark = batch.last

        return do

    committed.advance, committed.keep = step("advance"), step("keep")
    made = Partition.__new__(Partition)
    made.committed, made._locks = cast("Any", committed), cast("Any", SimpleNamespace(commit=step("locks")))
    made._pending, made._queue, made._locks_stale = deque([(5, cast("Any", one))]), deque(), False
    made._contended = deque()
    monkeypatch.setattr(served_partition_module, "numbered", lambda *_: SimpleNamespace(last=5))
    with pytest.raises(MemoryError) if fails else contextlib.nullcontext():
        made._resolve_pending({5: request})
    assert [number for number, _ in made._pending] == ([5] if fails == "locks" else [])
    assert (made._locks_stale, made.high_water_mark) == (bool(fails), 4 if fails == "locks" else 5)
    assert over == ([] if fails == "locks" else [1])
    assert not made._queue, "it is not sent again"


class _Records:
    """The record of one append."""

    def __init__(self, request: RequestId) -> None:
        self.request = request

    def __len__(self) -> int:
        return 1

    def request_id(self, place: int) -> RequestId:
        return self.request


# --- nodes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a", "a:", "a:x", ":1", "a:99999", ""])
def test_a_name_that_is_no_address_is_one_node_that_is_missing(name: str) -> None:
    """The other replicas go on without it; an error of another kind would end the session of all."""
    with pytest.raises(PeerUnreachableError, match="the metadata names a storage node so"):
        address_of(name)
    assert str(address_of("a:1")) == "a:1"


def test_an_end_ends_whoever_waits_for_a_node() -> None:
    async def work() -> None:
        nodes = StorageNodes(cast("Any", raising(PeerUnreachableError("a:1", "nobody"))), log=LOG)
        waiting = asyncio.ensure_future(nodes.returned("a:1", 3600.0))
        await asyncio.sleep(0)
        await nodes.close()
        await waiting

    asyncio.run(work())


# --- clients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "closed", "logged"),
    [
        (None, False, []),
        (PartitionClosedError("partition 1 is closed"), False, [(logging.INFO, "peer: partition 1 is closed")]),
        (ValueError("made up"), True, [(logging.ERROR, "peer")]),
    ],
)
def test_an_error_of_a_request_ends_its_connection(
    error: Exception | None, closed: bool, logged: list[tuple[int, str]], caplog: pytest.LogCaptureFixture
) -> None:
    """A client would wait for ever for an answer that was lost.  That a partition is closed its client hears otherwise."""
    caplog.set_level(logging.DEBUG)
    seen: list[str] = []

    async def work() -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(cast("Any", raising(error)() if error else returning()()))
        await asyncio.wait({task})
        connection = SimpleNamespace(
            _tasks={task: (3, None)},
            _port=SimpleNamespace(log=LOG),
            peer="peer",
            _lost=False,
            close=lambda: seen.append("close"),
            send=lambda: seen.append("send"),
            _ended=lambda parked, standing: seen.append(f"ended {parked}"),
        )
        ClientConnection._task_done(cast("Any", connection), task)
        assert not connection._tasks

    asyncio.run(work())
    assert seen == [*(["close"] if closed else []), "send", "ended 3"]
    assert [(one.levelno, one.getMessage()) for one in caplog.records if one.name == LOG.name] == logged


@pytest.mark.parametrize(
    ("kept", "given_up"), [(100, []), (60, []), (59, [2]), (30, [2]), (29, [2, 3]), (10, [2, 3]), (9, [2, 3, 1])]
)
def test_only_as_many_appends_are_given_up_as_make_room(kept: int, given_up: list[int]) -> None:
    """The partition with the most of them first, and none once the rest is what is kept back for small requests."""
    gone: list[int] = []
    waiting = {1: 10, 2: 30, 3: 20, 4: 0}
    partitions = {
        number: SimpleNamespace(
            number=number, waiting_for_session=size, give_up=lambda number=number: gone.append(number)
        )
        for number, size in waiting.items()
    }
    port = SimpleNamespace(partitions=partitions, budget=SimpleNamespace(kept=kept), log=LOG)
    ClientPort._make_room(cast("Any", _Hashable(port)))
    assert gone == given_up


class _Hashable:
    """A port whose partitions can be keys, as real ones are."""

    def __init__(self, port: SimpleNamespace) -> None:
        self.budget, self.log = port.budget, port.log
        self.partitions = {number: _Partition(one) for number, one in port.partitions.items()}


class _Partition:
    def __init__(self, one: SimpleNamespace) -> None:
        self.number, self.waiting_for_session, self.give_up = one.number, one.waiting_for_session, one.give_up


REQUEST = wire.TransactionDataRequest(RequestId(7, 1, 1, 0), 4)


@pytest.mark.parametrize(
    ("error", "served", "said"),
    [
        (StoreSessionClosedError("ended"), False, "partition not ready: 1 is not served here"),
        (PartitionClosedError("closed"), True, "partition not ready: closed"),
        (WaltzError("made up"), True, "made up"),
    ],
)
def test_why_data_is_not_given(error: WaltzError, served: bool, said: str) -> None:
    """A beginning of *partition not ready* lets the client ask another server."""
    replies: list[wire.TransactionDataResponse] = []
    partitions: dict[int, Any] = {}

    async def data(_: int) -> None:
        if not served:
            partitions.clear()  # it was taken away meanwhile
        raise error

    partitions[1] = SimpleNamespace(committed=SimpleNamespace(data=data))
    asker = SimpleNamespace(reply=replies.append, begin_task=None)

    async def work() -> None:
        made = DataRequests.__new__(DataRequests)
        made._connection, made._partitions, made._room = cast("Any", asker), partitions, lambda: 100
        made._window = cast("Any", SimpleNamespace(widen=lambda _: None))
        await made._answer_read(REQUEST, 0.0)

    asyncio.run(work())
    (reply,) = replies
    assert reply.outcome == wire.TransactionRefused(said)


# --- the whole server ------------------------------------------------------------------------------------------------


def options(**more: Any) -> ServerOptions:
    return ServerOptions(plaintext=True, storage_plaintext=True, host="127.0.0.1", port=0, http_port=None, **more)


def test_a_server_has_to_be_told_where_the_metadata_is() -> None:
    for check in (options().check, LogServerOptions(server=options()).check):
        with pytest.raises(InvalidRequestError, match="nothing says where the cluster's metadata is"):
            check()
    assert not options().beyond_loopback
    assert ServerOptions(host="192.0.2.1").beyond_loopback


def test_where_the_metadata_is() -> None:
    place = ZooKeeperPlace(connect_string="h:2181", cluster_root="/r")
    timeouts = ZooKeeperTimeouts(session_timeout=7.0, connect_timeout=3.0)
    known = ZooKeeperOptions("h:2181", "/r", 7.0, 3.0)
    for where in (
        {"zookeeper": place},
        {"metadata": "zk://h:2181/r"},
        {"metadata": "zk://h:2181/r", "zookeeper": ZooKeeperPlace("other:2181", "/other")},
    ):
        assert location_of(options(zookeeper_timeouts=timeouts, **where)) == MetadataLocation(known, None)
    assert location_of(options(metadata="/m", zookeeper_timeouts=timeouts)) == MetadataLocation(None, Path("/m"))


def test_the_timeouts_of_zookeeper_need_no_other_key() -> None:
    variables = {
        "WALTZCTL_LOG_SERVER_ZOOKEEPER_SESSION_TIMEOUT": "7000",
        "WALTZCTL_LOG_SERVER_ZOOKEEPER_CONNECT_TIMEOUT": "3s",
    }
    for where in ({"METADATA": "zk://h:2181/r"}, {"ZOOKEEPER": "h:2181", "CLUSTER_ROOT": "/r"}):
        given = {f"WALTZCTL_LOG_SERVER_{name}": text for name, text in where.items()}
        read = load_configuration(LOG_SERVER, environment={**variables, **given}).options.server
        assert location_of(read).zookeeper == ZooKeeperOptions("h:2181", "/r", 7.0, 3.0)
    with pytest.raises(InvalidRequestError, match="nothing says where the cluster's metadata is"):
        load_configuration(LOG_SERVER, environment=variables).check()


@pytest.mark.parametrize(
    ("asked", "bound", "published"),
    [
        ("localhost", "127.0.0.1", "localhost"),
        ("", "127.0.0.1", "127.0.0.1"),
        ("name", "192.0.2.1", "192.0.2.1"),
        ("0.0.0.0", "0.0.0.0", "this.machine"),
        ("::", "::", "this.machine"),
        ("", "", "this.machine"),
    ],
)
def test_the_host_that_is_published(monkeypatch: pytest.MonkeyPatch, asked: str, bound: str, published: str) -> None:
    monkeypatch.setattr(server_module.socket, "getfqdn", lambda: "this.machine")
    assert _advertised_host(asked, bound) == published


def test_a_start_that_fails_half_way_stops_what_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[str] = []

    async def half(self: Server) -> None:
        async def stop() -> None:
            stopped.append("begun")

        self._exit_stack.push_async_callback(stop)
        raise MismatchError("made up")

    monkeypatch.setattr(Server, "_start", half)
    monkeypatch.setattr(ServerOptions, "check", lambda _: None)
    with pytest.raises(MismatchError, match="made up"):
        asyncio.run(Server.start(options(), log=LOG))
    assert stopped == ["begun"]


def server() -> Server:
    made = Server(options(), version="test", log=LOG)
    made._cluster = cast("Any", SimpleNamespace(num_partitions=3, name="c"))
    made._store = cast("Any", SimpleNamespace(where="zk"))
    return made


@pytest.mark.parametrize(("cluster", "stored"), [(3, 3), (3, 4), (4, 3)])
def test_a_cluster_and_its_store_have_to_agree(monkeypatch: pytest.MonkeyPatch, cluster: int, stored: int) -> None:
    monkeypatch.setattr(server_module, "cluster_parameters", returning(SimpleNamespace(num_partitions=cluster)))
    monkeypatch.setattr(server_module, "store_parameters", returning(SimpleNamespace(num_partitions=stored)))

    async def work() -> None:
        if cluster == stored:
            await server()._parameters()
            return
        with pytest.raises(MismatchError, match=f"zk: the cluster has {cluster} partitions, its store {stored}"):
            await server()._parameters()

    asyncio.run(work())


@pytest.mark.parametrize("number", [2, 3])
def test_only_a_partition_of_the_cluster_can_be_preferred(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    @contextlib.asynccontextmanager
    async def opened() -> Any:
        yield SimpleNamespace(where="zk")

    monkeypatch.setattr(server_module, "location_of", lambda _: SimpleNamespace(open=opened))
    parameters = SimpleNamespace(num_partitions=3, name="c")
    monkeypatch.setattr(Server, "_parameters", returning((parameters, parameters)))
    monkeypatch.setattr(server_module.wire_code, "prepare", lambda: (_ for _ in ()).throw(KeyError("further on")))
    made = Server(options(preferred=(0, number)), version="test", log=LOG)
    expected = KeyError if number < 3 else InvalidRequestError
    with pytest.raises(expected, match="further on" if number < 3 else "partition 3 is to be preferred, and .* 0 to 2"):
        asyncio.run(made._start())


@pytest.mark.parametrize(
    ("partitions", "error", "done"),
    [((0, 2), None, True), ((0, 3), None, False), ((-1,), None, False), ((1,), PeerError("zk", "gone"), False)],
)
def test_what_is_preferred_is_written_or_told_not_to_be(
    partitions: tuple[int, ...], error: Exception | None, done: bool
) -> None:
    written: list[tuple[tuple[int, ...], bool]] = []

    async def prefer(numbers: tuple[int, ...], preferred: bool) -> None:
        if error is not None:
            raise error
        written.append((numbers, preferred))

    made = server()
    made._membership = cast("Any", SimpleNamespace(prefer=prefer))
    assert asyncio.run(made._prefer(partitions, True)) is done
    assert written == ([(partitions, True)] if done else [])


def test_an_error_of_what_follows_the_metadata_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        made = server()
        made._begin(cast("Any", raising(ValueError("made up"))()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not made._tasks

    asyncio.run(work())
    assert [one.getMessage() for one in caplog.records] == ["made up"]


def test_an_assignment_that_is_overtaken_is_not_applied() -> None:
    made = server()
    served: list[object] = []

    async def assign(generations: object) -> None:
        served.append(generations)

    made.log_server = cast("Any", SimpleNamespace(assign=assign))
    old, new = {0: 1}, {0: 1, 1: 1}
    made._assignment = new
    asyncio.run(made._serve(old))
    asyncio.run(made._serve(new))
    assert served == [new]


def test_storage_nodes_are_told_from_the_sessions_where_the_metadata_does_not_answer() -> None:
    answers = {"a:1": True, "b:1": False}

    async def get(name: str) -> None:
        if not answers[name]:
            raise PeerUnreachableError(name, "gone")

    partition = SimpleNamespace(store=SimpleNamespace(state=SimpleNamespace(nodes=("b:1", "a:1"))))
    for metadata in (raising(PeerError("zk", "gone")), returning(frozenset(answers))):
        port = SimpleNamespace(
            _metadata=SimpleNamespace(nodes=metadata),
            _log=LOG,
            partitions={1: partition},
            _nodes=SimpleNamespace(get=get, known=frozenset(), drop=lambda _: None),
            replicas={},
            _storage_nodes=frozenset(),
        )
        port._in_session = partial(LogServer._in_session, cast("Any", port))
        assert asyncio.run(LogServer.check_connectivity(cast("Any", port))) == (("a:1", True), ("b:1", False))


# --- what is told of it ----------------------------------------------------------------------------------------------


def reading(number: int, waits_for: str = "", seconds: float | None = None) -> ServerPartitionReading:
    return ServerPartitionReading(number, ServerPartitionMetrics(), 4, 9, 17, 2, 3, waits_for, seconds)


@pytest.mark.parametrize(
    ("registered", "metadata", "listening", "draining", "begins"),
    [
        (True, True, True, False, []),
        (False, False, True, False, ["the server is starting"]),
        (True, False, True, False, ["the metadata does not answer"]),
        (True, True, False, False, ["the client port does not listen"]),
        (True, True, True, True, ["the server is stopping"]),
        (True, False, False, True, ["the metadata", "the client port", "the server is stopping"]),
    ],
)
def test_what_is_wrong_with_a_server(
    registered: bool, metadata: bool, listening: bool, draining: bool, begins: list[str]
) -> None:
    found = ServerHealthReport(metadata, listening, (reading(1),), draining, registered=registered)
    assert len(found.problems) == len(begins)
    assert all(one.startswith(said) for one, said in zip(found.problems, begins, strict=True))
    assert found.healthy == (not begins)


def test_metrics_of_each_partition() -> None:
    whole = ServerReading("v", "c", 3, "h:1", (reading(1), reading(2, "b:1", 7.5)), {}, Meter(), Meter(), (10, 20), 4)
    report = ServerHealthReport(True, True, whole.partitions, False)
    found = {family.name: family.samples for family in ServerCollector(whole, report).collect()}
    prefix = next(iter(found)).removesuffix("_info")
    values = {
        name.removeprefix(f"{prefix}_"): {
            tuple(sample.labels.values()): sample.value for sample in samples if sample.labels.keys() == {"partition"}
        }
        for name, samples in found.items()
    }
    assert values["recovering_seconds"] == {("1",): 0.0, ("2",): 7.5}
    assert values["undecided_appends"] == {("1",): 3, ("2",): 3}
    outcomes = {tuple(one.labels.values()): one.value for one in found[f"{prefix}_appends"]}
    assert outcomes == {(str(n), outcome): 0 for n in (1, 2) for outcome in ("committed", "rejected")}
    assert {one.labels["partition"] for one in found[f"{prefix}_append_latency_seconds"]} == {"1", "2"}
