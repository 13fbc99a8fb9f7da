"""Changes of a cluster and of a server's place in it, each cancelled at each of its awaits; in virtual time, and over a file."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.cancelling import WAYS, Moment, at_each_await
from tests.server.storing import LOG
from tests.simulation.metadata import Tree, TreeStore
from tests.simulation.virtual_time import simulate
from waltzctl.engine.metadata.cluster_changes import add_node, assign, remove_node, unassign
from waltzctl.engine.metadata.cluster_creation import create_cluster
from waltzctl.engine.metadata.embedded_store import EmbeddedStore
from waltzctl.engine.metadata.membership import Membership, new_client_id, read_servers
from waltzctl.engine.metadata.metadata_store import MetadataStore
from waltzctl.engine.metadata.zookeeper_store import NotPermittedError
from waltzctl.formats.znodes import LOCK_PATH

pytestmark = pytest.mark.turns(10)

PARTITIONS = 2


@dataclass
class Operated:
    """Two operators' connections to one cluster, of three nodes, of which one has all partitions and one has none."""

    store: MetadataStore
    other: MetadataStore


async def _fill(store: MetadataStore) -> None:
    await create_cluster(store, name="c", num_partitions=PARTITIONS, cluster_key=uuid.UUID(int=1))
    for group, name in enumerate(("a:1", "b:1", "e:1")):
        await add_node(store, name, admin_port=2, group=group)
    await assign(store, "a:1", range(PARTITIONS))
    await assign(store, "b:1", [1])


@contextlib.asynccontextmanager
async def in_memory() -> AsyncIterator[Operated]:
    tree = Tree(Random(1))
    made: Any = Operated(TreeStore(tree), TreeStore(tree))
    await _fill(made.store)
    yield made
    await made.store.close()
    await made.other.close()
    assert tree.children("")
    assert not [path for path, node in tree.nodes.items() if node.owner is not None]


async def adds(made: Operated) -> None:
    await add_node(made.store, "c:1", admin_port=2, group=2)


async def assigns(made: Operated) -> None:
    await assign(made.store, "b:1", [0])


async def unassigns(made: Operated) -> None:
    await unassign(made.store, "b:1", [1])


async def removes(made: Operated) -> None:
    await remove_node(made.store, "e:1")


async def asks_for_an_id(made: Operated) -> None:
    await new_client_id(made.store)


CHANGES = [adds, assigns, unassigns, removes, asks_for_an_id]
Change = Callable[[Operated], Coroutine[Any, Any, None]]


async def others_can_change(made: Operated) -> None:
    """At once: the lock of a tool that was interrupted is not kept, though its connection stays open."""
    await asyncio.sleep(0.1)
    assert await made.store.exists(LOCK_PATH) is None
    await add_node(made.other, "d:1", admin_port=2, group=3)


@pytest.mark.parametrize("change", CHANGES)
@WAYS
def test_a_change_that_is_cancelled_keeps_nobody_from_the_next_one(change: Change, moment: Moment, again: int) -> None:
    assert at_each_await(in_memory, change, others_can_change, moment=moment, again=again) > 0


@WAYS
def test_a_change_that_is_cancelled_in_a_file_keeps_nobody_from_the_next_one(
    tmp_path: Path, moment: Moment, again: int
) -> None:
    made = 0

    @contextlib.asynccontextmanager
    async def in_a_file() -> AsyncIterator[Operated]:
        nonlocal made
        path, made = tmp_path / str(made), made + 1
        store = await EmbeddedStore.open(path, create=True)
        other = await EmbeddedStore.open(path)
        await _fill(store)
        yield Operated(store, other)
        await store.close()
        await other.close()

    awaits = at_each_await(in_a_file, adds, others_can_change, moment=moment, again=again, run=asyncio.run)
    assert awaits > 0


# ---- a server among the servers ------------------------------------------------------------------------------------------


@dataclass
class Member:
    membership: Membership
    other: TreeStore


@contextlib.asynccontextmanager
async def member(*, registered: bool) -> AsyncIterator[Member]:
    async with in_memory() as made:
        one = Membership(made.store, log=LOG)
        if registered:
            await one.register("here", 1)
        assert isinstance(made.other, TreeStore)
        yield Member(one, made.other)


async def registers(made: Member) -> None:
    await made.membership.register("here", 1)


async def prefers(made: Member) -> None:
    await made.membership.prefer([1], True)


async def follows(made: Member) -> None:
    told = asyncio.Event()
    following = asyncio.ensure_future(made.membership.follow(lambda _: told.set()))
    try:
        await told.wait()
    finally:
        following.cancel()
        await asyncio.wait([following])


async def unregisters(made: Member) -> None:
    await made.membership.unregister()


@pytest.mark.parametrize("call", [registers, prefers, follows, unregisters])
@WAYS
def test_a_server_can_register_and_leave_behind_a_call_that_was_cancelled(
    call: Callable[[Member], Coroutine[Any, Any, None]], moment: Moment, again: int
) -> None:
    async def then(made: Member) -> None:
        number = await made.membership.register("here", 1)
        assert [one.server for _, one in (await read_servers(made.other))[3]] == [number]
        await made.membership.prefer([0], True)
        await made.membership.unregister()
        assert (await read_servers(made.other))[3] == ()

    awaits = at_each_await(lambda: member(registered=call is not registers), call, then, moment=moment, again=again)
    assert awaits > 0


@pytest.mark.parametrize("refused", ["create", "delete"])
def test_an_error_of_the_lock_does_not_replace_a_cancellation(refused: str) -> None:
    """As where the ACL of the cluster's node permits the one and not the other."""

    async def test() -> None:
        async with in_memory() as made:
            begun, go_on = asyncio.Event(), asyncio.Event()

            async def refuse(*_: object, **__: object) -> str:
                begun.set()
                await go_on.wait()
                raise NotPermittedError("not permitted")

            with pytest.MonkeyPatch.context() as patch:
                if refused == "delete":  # it is cancelled under the lock
                    commit = made.store.commit

                    async def held(changes: Any) -> None:
                        begun.set()
                        await go_on.wait()
                        await commit(changes)

                    patch.setattr(made.store, "commit", held)
                patch.setattr(made.store, refused, refuse)
                adding = asyncio.ensure_future(adds(made))
                await begun.wait()
                adding.cancel()
                await asyncio.sleep(0)
                go_on.set()
                await asyncio.wait([adding])
                assert adding.cancelled()

    simulate(test())


def test_who_is_cancelled_while_the_lock_is_created_does_not_wait_for_metadata_that_are_silent() -> None:
    """The lock is given back behind that, if it is created after all."""

    async def test() -> None:
        async with in_memory() as made:
            assert isinstance(made.store, TreeStore)
            begun, create = asyncio.Event(), made.store.create

            async def silent(path: str, data: bytes = b"", *, ephemeral: bool = False, sequence: bool = False) -> str:
                begun.set()
                await asyncio.sleep(30.0)
                return await create(path, data, ephemeral=ephemeral, sequence=sequence)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(made.store, "create", silent)
                adding = asyncio.ensure_future(adds(made))
                await begun.wait()
                adding.cancel()
                before = asyncio.get_running_loop().time()
                await asyncio.wait([adding])
                assert adding.cancelled()
                assert asyncio.get_running_loop().time() - before < 5.0
                await asyncio.sleep(60.0)
            await others_can_change(made)

    simulate(test())
