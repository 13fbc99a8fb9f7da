"""The lock of the operators' tools: who waits for it, and who gives it back."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.metadata.made_clusters import over
from tests.metadata.stores import Stores
from tests.metadata.test_membership import end_session
from waltzctl.engine.errors import (
    DeadlineError,
    PeerError,
    PeerUnreachableError,
    RefusedError,
)
from waltzctl.engine.metadata import tools_lock
from waltzctl.engine.metadata.cluster_changes import (
    add_node,
)
from waltzctl.engine.metadata.cluster_state import read_cluster_state
from waltzctl.engine.metadata.metadata_store import Change, MetadataStore
from waltzctl.formats.znodes import (
    LOCK_PATH,
)


def test_a_tool_that_holds_the_lock_is_waited_for(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(store: MetadataStore) -> None:
        await store.create(LOCK_PATH)
        waiting = asyncio.ensure_future(add_node(store, "a:1", admin_port=2, group=0))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await store.delete(LOCK_PATH)
        await waiting
        assert await store.exists(LOCK_PATH) is None
        await store.create(LOCK_PATH)
        monkeypatch.setattr(tools_lock, "LOCK_SECONDS", 0.05)
        with pytest.raises(DeadlineError, match="another tool holds"):
            await add_node(store, "b:1", admin_port=2, group=0)

    over(stores, test)


def test_a_store_that_does_not_answer_is_no_tool_that_holds_the_lock(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(store: MetadataStore) -> None:
        async def create(self: MetadataStore, path: str, data: bytes = b"", **how: bool) -> str:
            await asyncio.sleep(0.1)  # longer than another tool is waited for
            raise DeadlineError("the store", "no answer")

        monkeypatch.setattr(tools_lock, "LOCK_SECONDS", 0.05)
        monkeypatch.setattr(type(store), "create", create)
        with pytest.raises(DeadlineError, match="no answer"):
            await add_node(store, "a:1", admin_port=2, group=0)

    over(stores, test)


def test_a_change_that_was_made_is_told_also_where_the_lock_cannot_be_given_back(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(store: MetadataStore) -> None:
        async def delete(self: MetadataStore, path: str, version: int = -1) -> None:
            raise PeerUnreachableError("the store", "the connection was lost")

        with monkeypatch.context() as patch:
            patch.setattr(type(store), "delete", delete)
            assert await add_node(store, "a:1", admin_port=2, group=0)
        assert [one.node for one in (await read_cluster_state(store)).nodes] == ["a:1"]

    over(stores, test)


def test_a_tool_whose_session_ended_leaves_the_lock_to_the_one_that_has_it_now(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was stopped behind its change for longer than a session lasts; what it changed is told as changed."""

    async def test(store: MetadataStore) -> None:
        other, commit, lost = await stores.open(), type(store).commit, []

        async def commit_and_stop(self: MetadataStore, changes: Sequence[Change]) -> None:
            lost.append(self.lost)
            await commit(self, changes)
            await end_session(stores, self)
            if stores.zookeeper is not None:
                await asyncio.wait_for(lost[0], 20.0)
            async with asyncio.timeout(20.0):
                while await other.exists(LOCK_PATH) is not None:
                    await asyncio.sleep(0.05)
            await other.create(LOCK_PATH, ephemeral=True)

        monkeypatch.setattr(type(store), "commit", commit_and_stop)
        assert await add_node(store, "a:1", admin_port=2, group=0)
        assert await other.exists(LOCK_PATH) is not None

    over(stores, test)


@pytest.mark.parametrize("kind", [PeerUnreachableError, DeadlineError])
def test_a_store_that_is_gone_behind_the_change_makes_no_failure_of_it(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, kind: type[PeerError]
) -> None:
    async def test(store: MetadataStore) -> None:
        async def lost(_self: MetadataStore, path: str) -> None:
            raise kind("the metadata", f"no connection, and {path} is to be deleted")

        monkeypatch.setattr(type(store), "delete", lost)
        assert await add_node(store, "a:1", admin_port=2, group=0)
        monkeypatch.undo()
        await store.delete(LOCK_PATH)
        assert [one.node for one in (await read_cluster_state(store)).nodes] == ["a:1"]
        monkeypatch.setattr(type(store), "delete", lost)
        with pytest.raises(RefusedError, match="is in the cluster already"):
            await add_node(store, "a:1", admin_port=2, group=0)

    over(stores, test)
