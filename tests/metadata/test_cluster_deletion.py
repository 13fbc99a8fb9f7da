"""Deleting a cluster: what goes with it, and what is refused."""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from tests.metadata.made_clusters import KEY, last_session, over, three
from tests.metadata.stores import Stores
from waltzctl.engine.errors import (
    DeadlineError,
    NotWaltzError,
    RefusedError,
    StalePlanError,
)
from waltzctl.engine.metadata import cluster_deletion
from waltzctl.engine.metadata.cluster_changes import (
    add_node,
    assign,
)
from waltzctl.engine.metadata.cluster_creation import create_cluster
from waltzctl.engine.metadata.cluster_deletion import delete_cluster
from waltzctl.engine.metadata.cluster_state import read_cluster_state
from waltzctl.engine.metadata.cluster_steps import PLAN_ONLY, Mode
from waltzctl.engine.metadata.membership import Membership
from waltzctl.engine.metadata.metadata_store import Change, MetadataStore
from waltzctl.engine.metadata.partition_sessions import store_parameters
from waltzctl.formats.znodes import (
    LOCK_PATH,
    STORE_PATH,
    ClusterParameters,
)


def test_a_cluster_is_deleted_by_its_name_when_nobody_is_at_work(stores: Stores) -> None:
    async def test(store: MetadataStore) -> None:
        await three(store)
        await last_session(store, 1, "n0:1")
        with pytest.raises(RefusedError, match="is called 'demo', not 'dem'"):
            await delete_cluster(store, name="dem")
        await store.create("serverDescriptors/s_", ephemeral=True, sequence=True)
        with pytest.raises(RefusedError, match="at work"):
            await delete_cluster(store, name="demo")
        (name,) = await store.children("serverDescriptors")
        await store.delete(f"serverDescriptors/{name}")
        await delete_cluster(store, name="demo")
        assert await store.exists("") is None

    over(stores, test)


def test_a_node_that_goes_while_a_deletion_looks_at_it_is_not_told_as_missing(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of another tool, as a rule."""

    async def test(store: MetadataStore) -> None:
        await store.create(LOCK_PATH)
        get = store.get

        async def late(path: str, *more: Any) -> Any:
            if path == LOCK_PATH:
                await store.delete(path)
            return await get(path, *more)

        monkeypatch.setattr(store, "get", late)
        await delete_cluster(store, mode=Mode(agreed=await delete_cluster(store, mode=PLAN_ONLY)))
        assert await store.exists("") is None

    over(stores, test)


@pytest.mark.parametrize("what", ["a node", "a server", "nothing"])
def test_a_deletion_that_somebody_is_ahead_of_deletes_nothing(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It was told as a node with another version, or as one that has children."""

    async def test(store: MetadataStore) -> None:
        agreed, commit = await delete_cluster(store, mode=PLAN_ONLY), store.commit

        async def behind(changes: Any) -> None:
            monkeypatch.setattr(store, "commit", commit)
            if what == "a node":
                await add_node(store, "h:1", admin_port=2, group=0)
            elif what == "a server":
                await store.create("serverDescriptors/s_", ephemeral=True, sequence=True)
            await commit(changes)

        monkeypatch.setattr(store, "commit", behind)
        if what == "nothing":
            await delete_cluster(store, mode=Mode(agreed=agreed))
            assert await store.exists("") is None
            return
        error = StalePlanError if what == "a node" else RefusedError
        with pytest.raises(error, match=r"has changed since the plan was made|belongs to a process that is at work"):
            await delete_cluster(store, mode=Mode(agreed=agreed))
        assert await store.exists(STORE_PATH) is not None

    over(stores, test)


@pytest.mark.parametrize("data", [ClusterParameters("inner", 4).encode(), b"", b"of another program"])
def test_a_cluster_that_lies_below_another_does_not_go_with_it(stores: Stores, data: bytes) -> None:
    """Somebody else made it there, and its log servers do not run at the moment."""

    async def test(store: MetadataStore) -> None:
        await store.create("teams")
        await store.create("teams/inner", data)
        if data[:1] != b"\xb4":
            await delete_cluster(store)
            assert await store.exists("") is None
            return
        with pytest.raises(RefusedError, match="another cluster lies below it, teams/inner; nothing was changed"):
            await delete_cluster(store)
        await read_cluster_state(store)
        await store.delete("teams/inner")
        await delete_cluster(store)
        assert await store.exists("") is None

    over(stores, test)


def test_the_servers_of_a_cluster_that_lies_below_are_not_to_be_stopped(stores: Stores) -> None:
    """They are somebody else's: stopped as advised, their cluster would have been what refuses the deletion."""

    async def test(store: MetadataStore) -> None:
        await store.create("inner", ClusterParameters("inner", 4).encode())
        await store.create("inner/serverDescriptors")
        await store.create("inner/serverDescriptors/s_", ephemeral=True, sequence=True)
        with pytest.raises(RefusedError, match="another cluster lies below it, inner; nothing was changed"):
            await delete_cluster(store)

    over(stores, test)


@pytest.mark.turns(8)
@pytest.mark.parametrize("meanwhile", ["made anew", "assigned"])
def test_a_cluster_that_is_another_by_now_is_not_deleted(stores: Stores, meanwhile: str) -> None:
    async def test(store: MetadataStore) -> None:
        await three(store, range(1))
        agreed = await delete_cluster(store, mode=PLAN_ONLY)
        if meanwhile == "assigned":
            await assign(store, "n0:1", [3])
        else:
            await delete_cluster(store)
            await create_cluster(store, name="demo", num_partitions=4, cluster_key=uuid.uuid4())
            await three(store, range(1))
        before = await read_cluster_state(store)
        with pytest.raises(StalePlanError):
            await delete_cluster(store, mode=Mode(agreed=agreed))
        assert await read_cluster_state(store) == before
        await delete_cluster(store, mode=Mode(agreed=await delete_cluster(store, mode=PLAN_ONLY)))
        assert await store.exists("") is None

    over(stores, test)


def test_what_is_said_of_half_a_cluster_leads_to_a_whole_one(stores: Stores) -> None:
    """A creation of the release that was killed, or a deletion of many nodes."""

    async def test(store: MetadataStore) -> None:
        for path in ("store/connection", "store/assignment", "store/group", "store/partition", "store"):
            await store.delete(path)
        with pytest.raises(NotWaltzError) as looked:
            await read_cluster_state(store)
        with pytest.raises(RefusedError) as made:
            await create_cluster(store, name="demo", num_partitions=4, cluster_key=KEY)
        assert "waltzctl cluster delete" in (looked.value.advice or "")
        assert "waltzctl cluster delete" in (made.value.advice or "")
        await delete_cluster(store)
        await create_cluster(store, name="demo", num_partitions=4, cluster_key=KEY)

    over(stores, test)


@pytest.mark.turns(10)
@pytest.mark.parametrize("foreign", [0, 4])
def test_a_deletion_of_many_nodes_that_is_interrupted_leaves_no_cluster(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, foreign: int
) -> None:
    """Storage nodes started with the key that was left, and with other nodes at the root servers were registered as well.

    Wherever it is interrupted the next deletion completes it.
    """
    monkeypatch.setattr(cluster_deletion, "_DELETED_AT_ONCE", 4)
    commits = 0

    async def test(store: MetadataStore) -> None:
        nonlocal commits
        real = store.commit
        for done in range(1, 9):
            if done > 1:
                await create_cluster(store, name="demo", num_partitions=7, cluster_key=KEY)
            await three(store, range(7))
            for partition in range(7):
                await last_session(store, partition, "n0:1")
            for number in range(foreign):
                await store.create(f"a{number}")
            left = done

            async def few(changes: Sequence[Change]) -> None:
                nonlocal left
                if not left:
                    raise DeadlineError("here", "gone")
                left -= 1
                await real(changes)

            monkeypatch.setattr(store, "commit", few)
            with contextlib.suppress(DeadlineError):
                await delete_cluster(store, name="demo")
            monkeypatch.setattr(store, "commit", real)
            if await store.exists("") is None:
                break
            commits += 1
            for look in (store_parameters, read_cluster_state):
                with pytest.raises(NotWaltzError) as looked:
                    await look(store)
                assert "waltzctl cluster delete" in (looked.value.advice or "")
            with pytest.raises(NotWaltzError):
                await Membership(store, log=logging.getLogger("test")).register("here", 1)
            with pytest.raises(RefusedError, match="not 'another'"):
                await delete_cluster(store, name="another")
            await delete_cluster(store, name="demo")
            assert await store.exists("") is None

    over(stores, test, partitions=7)
    assert commits >= 3
