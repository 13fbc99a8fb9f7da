"""What a store session keeps for replicas that are behind, over real storage nodes, and that it sends nothing behind its end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.node.running import run
from tests.server.storing import held, packed, records, running_cluster, until
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.errors import StoreSessionClosedError
from waltzctl.engine.server import replica_session
from waltzctl.engine.server.server_settings import SessionOptions
from waltzctl.engine.server.storage_nodes import StorageNodes
from waltzctl.engine.server.store_session import StoreSession


@pytest.mark.parametrize(("batches", "more_bytes", "kept"), [(100, 0, 3), (100, -1, 2), (2, 0, 2), (3, 0, 3)])
def test_batches_are_kept_for_a_replica_that_is_behind_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int, more_bytes: int, kept: int
) -> None:
    """It takes part, and acknowledges nothing for a while; what is beyond the bounds then it copies from another one."""
    size = len(packed(10, 5).data)  # as of all that end behind transaction 9
    options = SessionOptions(
        first_retry=0.01, longest_retry=0.05, in_flight=1, copied=7, kept=batches, kept_bytes=3 * size + more_bytes
    )
    go_on = asyncio.Event()
    real = StorageClient.start_append_encoded

    def start(self: StorageClient, *sent: Any) -> asyncio.Future[Any]:
        if self is not slow:
            return real(self, *sent)

        async def later() -> None:
            await go_on.wait()
            await real(self, *sent)

        return asyncio.ensure_future(later())

    async def work() -> None:
        nonlocal slow
        async with running_cluster(tmp_path) as cluster, cluster.session(options) as session:
            await session.open()
            replicas = session._replicas
            await until(lambda: all(one.takes_part for one in replicas.values()))
            behind = replicas[cluster.names[1]]
            slow = behind._storage
            for first in range(0, 40, 5):
                await session.append(packed(first, 5))
            await until(lambda: sum(one.acknowledged == 39 for one in replicas.values()) == 2)
            assert (behind.takes_part, behind.acknowledged, len(session._kept)) == (True, -1, kept)
            go_on.set()
            await until(lambda: behind.acknowledged == 39)
            assert not session._kept
            assert session._kept_bytes == 0
            assert await session.append(packed(40, 5)) == 44
            await until(lambda: all(one.acknowledged == 44 for one in replicas.values()))
            assert not session._kept
            assert await held(cluster, session.session_id) == dict.fromkeys(cluster.names, records(0, 45))

    slow: object = None
    monkeypatch.setattr(StorageClient, "start_append_encoded", start)
    run(work())


@pytest.mark.parametrize("ended", [False, True])
def test_behind_its_end_a_session_sends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: bool) -> None:
    """Also where the end is what an acknowledgement leads to."""

    async def work() -> None:
        async with running_cluster(tmp_path, 1) as cluster, cluster.session() as session:
            await session.open()
            assert await session.append(packed(0, 2)) == 1
            (replica,) = session._replicas.values()
            with monkeypatch.context() as patch:
                patch.setattr(replica_session.ReplicaSession, "pump", lambda _: None)
                session.append(packed(2, 1))
            if ended:
                session.end("made up")
            assert replica._in_flight == 0
            replica.pump()
            assert replica._in_flight == (not ended)

    run(work())


def test_an_answer_behind_the_end_of_a_session_changes_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with running_cluster(tmp_path, 1) as cluster, cluster.session() as session:
            await session.open()
            (replica,) = session._replicas.values()
            committed = session.append(packed(0, 2))
            session.end("made up")
            storage = replica._storage
            assert storage is not None
            await storage.max_transaction_id(session.session_id, session.partition)  # answered behind the batch
            assert (replica.acknowledged, session.high_water_mark) == (-1, -1)
            with pytest.raises(StoreSessionClosedError, match="made up"):
                await committed

    run(work())


def test_an_answer_that_cannot_be_worked_on_ends_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch is undecided, and the next session finds it in the log."""

    def written(_session: StoreSession, _node: str, _last: int) -> None:
        raise MemoryError("made up")

    async def work() -> None:
        async with running_cluster(tmp_path, 1) as cluster, cluster.session() as session:
            await session.open()
            monkeypatch.setattr(StoreSession, "written", written)
            with pytest.raises(StoreSessionClosedError, match="MemoryError: made up"):
                await session.append(packed(0, 2))
            assert await session.closed == "MemoryError: made up"
            monkeypatch.undo()
            async with cluster.session() as following:
                assert await following.open() == 1

    run(work())
    assert any(record.exc_info for record in caplog.records), "with its traceback"


def test_batches_are_kept_for_a_replica_of_which_nothing_was_heard_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session opens with a quorum, and begins with work; the third replica connects a moment later, and copies nothing."""
    go_on, copied = asyncio.Event(), list[str]()
    get, copy = StorageNodes.get, StoreSession.copied

    async def later(self: StorageNodes, node: str) -> object:
        if node == last and not go_on.is_set():
            await go_on.wait()
        return await get(self, node)

    async def noted(self: StoreSession, source: str, first: int, count: int) -> object:
        copied.append(source)
        return await copy(self, source, first, count)

    async def work() -> None:
        nonlocal last
        async with running_cluster(tmp_path) as cluster:
            last = cluster.names[2]
            async with cluster.session() as session:
                await session.open()
                for first in range(0, 20, 5):
                    await session.append(packed(first, 5))
                others = [one for name, one in session._replicas.items() if name != last]
                await until(lambda: all(one.acknowledged == 19 for one in others))
                assert len(session._kept) == 4
                go_on.set()
                await until(lambda: session._replicas[last].acknowledged == 19)
                assert not session._kept
                assert copied == []

    last = ""
    monkeypatch.setattr(StorageNodes, "get", later)
    monkeypatch.setattr(StoreSession, "copied", noted)
    run(work())
