"""The sessions of one partition as its server asks for them: under which generation they are begun."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.server.storing import LOG, until
from waltzctl.engine.errors import ConcurrentUpdateError, InvalidRequestError, PeerUnreachableError
from waltzctl.engine.net.configuration import load_configuration
from waltzctl.engine.server.server_settings import LOG_SERVER, SessionOptions
from waltzctl.engine.server.storage_nodes import Storage, StorageNodes
from waltzctl.engine.server.store_partition import PartitionClosedError, StorePartition
from waltzctl.formats.znodes import PartitionMetadata, ReplicaState


class Metadata:
    """Of a partition for which another server begins sessions; it notes under which generations this one tried."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.why = "made up"

    async def assigned(self, partition: int) -> tuple[str, ...]:
        return ("node-0:1",)

    async def begin_session(self, partition: int, generation: int) -> PartitionMetadata:
        self.begun.append(generation)
        raise ConcurrentUpdateError(self.why)

    async def write_replicas(self, partition: int, session_id: int, replicas: tuple[ReplicaState, ...]) -> None:
        raise AssertionError("there is no session")


async def nowhere(node: str) -> Storage:
    raise AssertionError(node)


@pytest.mark.parametrize(("heard", "counts"), [(4, 5), (5, 5), (6, 6)])
def test_an_assignment_that_is_heard_of_late_does_not_take_the_generation_back(heard: int, counts: int) -> None:
    async def work() -> None:
        metadata = Metadata()
        store = StorePartition(0, 5, metadata, StorageNodes(nowhere, log=LOG), log=LOG)
        assert store.raise_generation(heard) is (heard > 5)
        assert store.state.generation == counts
        waiting = asyncio.ensure_future(store.session())
        await until(lambda: metadata.begun)
        await store.close()
        with pytest.raises(PartitionClosedError):
            await waiting
        assert metadata.begun == [counts]

    asyncio.run(work())


@pytest.mark.parametrize(("told", "sessions"), [((), 1), (("node-1:1", "node-0:1"), 1), (("node-1:1", "node-2:1"), 2)])
def test_an_assignment_that_changes_while_a_session_begins_is_the_next_one_s(
    told: tuple[str, ...], sessions: int
) -> None:
    """Over the old nodes it might wait for ever for those that are no longer assigned.  Told the same, it goes on."""

    class Changing(Metadata):
        nodes = ("node-0:1", "node-1:1")

        async def assigned(self, partition: int) -> tuple[str, ...]:
            return self.nodes

        async def begin_session(self, partition: int, generation: int) -> PartitionMetadata:
            self.begun.append(generation)
            if told and len(self.begun) == 1:
                self.nodes = told
                await store.reassign(told)
            return PartitionMetadata(generation, len(self.begun), ())

    async def unreachable(node: str) -> Storage:
        reached.add(node)
        raise PeerUnreachableError(node, "made up")

    async def work() -> None:
        nonlocal store
        store = StorePartition(0, 5, metadata, StorageNodes(unreachable, log=LOG), log=LOG)
        waiting = asyncio.ensure_future(store.session())
        await until(lambda: len(reached) == 2)
        assert len(metadata.begun) == sessions
        assert set(store.state.nodes) == reached == set(told or Changing.nodes)
        await store.close()
        with pytest.raises(PartitionClosedError):
            await waiting

    metadata, reached = Changing(), set[str]()
    store: StorePartition
    asyncio.run(work())


@pytest.mark.parametrize(("heard", "generations"), [(5, [5]), (6, [5, 6])])
@pytest.mark.parametrize("when", ["it begins", "it is being opened"])
def test_a_session_of_an_earlier_assignment_is_not_opened(when: str, heard: int, generations: list[int]) -> None:
    class Assigned(Metadata):
        async def begin_session(self, partition: int, generation: int) -> PartitionMetadata:
            self.begun.append(generation)
            if when == "it begins" and len(self.begun) == 1:
                store.raise_generation(heard)
            return PartitionMetadata(generation, len(self.begun), ())

    async def unreachable(node: str) -> Storage:
        reached.append(store.state.session_id)
        raise PeerUnreachableError(node, "made up")

    async def work() -> None:
        nonlocal store
        options = SessionOptions(first_retry=0.001, longest_retry=0.01)
        store = StorePartition(0, 5, metadata, StorageNodes(unreachable, log=LOG), log=LOG, options=options)
        waiting = asyncio.ensure_future(store.session())
        await until(lambda: reached)
        if when == "it is being opened":
            store.raise_generation(heard)
        await until(lambda: reached[-1] == len(generations))
        assert metadata.begun == generations
        await store.close()
        with pytest.raises(PartitionClosedError):
            await waiting

    metadata, reached = Assigned(), list[int]()
    store: StorePartition
    asyncio.run(work())


@pytest.mark.parametrize("what", ["assigned to nodes", "assigned anew"])
def test_an_attempt_that_failed_under_an_assignment_is_made_again_as_soon_as_there_is_another(what: str) -> None:
    """A pause, which may have come to be long, is for what nobody tells; told the same, it goes on."""

    class Later(Metadata):
        nodes: tuple[str, ...] = () if what == "assigned to nodes" else ("node-0:1",)

        async def assigned(self, partition: int) -> tuple[str, ...]:
            looks.append(self.nodes)
            return self.nodes

    async def work() -> None:
        options = SessionOptions(first_retry=3600.0, longest_retry=3600.0)
        store = StorePartition(0, 5, metadata, StorageNodes(nowhere, log=LOG), log=LOG, options=options)
        waiting = asyncio.ensure_future(store.session())
        await until(lambda: looks and store.state.waits_for != "no session was wanted yet")
        await store.reassign(metadata.nodes)
        await asyncio.sleep(0.05)
        assert len(looks) == 1
        if what == "assigned anew":
            store.raise_generation(6)
        else:
            metadata.nodes = ("node-0:1",)
            await store.reassign(metadata.nodes)
        await until(lambda: metadata.begun and metadata.begun[-1] == store.generation)
        assert len(looks) == 2
        await store.close()
        with pytest.raises(PartitionClosedError):
            await waiting

    metadata, looks = Later(), list[tuple[str, ...]]()
    asyncio.run(work())


def test_why_there_is_no_session_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """And again where it is for another reason: thousands of partitions may be tried for days."""

    async def work() -> None:
        metadata = Metadata()
        options = SessionOptions(first_retry=0.001, longest_retry=0.001)
        store = StorePartition(0, 5, metadata, StorageNodes(nowhere, log=LOG), log=LOG, options=options)
        waiting = asyncio.ensure_future(store.session())
        for why in ("made up", "another reason"):
            metadata.why, tried = why, len(metadata.begun)
            await until(lambda tried=tried: len(metadata.begun) > tried + 5)
            assert [one.message for one in caplog.records].count(f"partition 0: no session: {why}") == 1
        await store.close()
        with pytest.raises(PartitionClosedError):
            await waiting

    asyncio.run(work())


@pytest.mark.parametrize(
    ("first", "longest", "pauses"),
    [
        ("0", "0", [0.001, 0.001, 0.001]),
        ("0", "3", [0.001, 0.002, 0.003]),
        ("1", "0", [0.001, 0.001, 0.001]),
        ("2", "3", [0.002, 0.003, 0.003]),
    ],
)
def test_no_pause_between_attempts_is_a_setting_as_in_the_release(
    tmp_path: Path, first: str, longest: str, pauses: list[float]
) -> None:
    """A file of the release that has it did not start this server; a pause there is, so that others have their turn."""
    file, needed = tmp_path / "server.yml", "server.port: 1001\n"
    file.write_text(f"{needed}storage.initialRetryInterval: {first}\nstorage.maxRetryInterval: {longest}\n")
    options = load_configuration(LOG_SERVER, file=file).options.server.session
    found, pause = [], 0.0
    for _ in pauses:
        pause = options.pause_after(pause)
        found.append(pause)
    assert found == pauses
    file.write_text(f"{needed}storage.initialRetryInterval: -1\n")
    with pytest.raises(InvalidRequestError, match="must be a whole number of milliseconds, at least 0, not -1"):
        load_configuration(LOG_SERVER, file=file)
