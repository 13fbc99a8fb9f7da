"""What every store of metadata keeps, over the embedded one and over a real ZooKeeper."""

from __future__ import annotations

import asyncio

import pytest

from tests.metadata.stores import Stores
from waltzctl.engine.metadata.metadata_store import (
    Check,
    Create,
    Delete,
    MetadataStore,
    NodeExistsError,
    NodeMissingError,
    NodeNotEmptyError,
    NodeVersionError,
    Set,
)

SOON = 10.0


async def rooted(stores: Stores) -> MetadataStore:
    store = await stores.open()
    assert await store.create_root()
    return store


def test_a_root_is_made_once(stores: Stores) -> None:
    async def test(stores: Stores) -> None:
        store = await stores.open()
        assert await store.exists("") is None
        assert await store.create_root()
        assert not await store.create_root()
        data, state = await store.get("")
        assert (data, state.version, state.cversion) == (b"", 0, 0)

    stores.run(test)


def test_a_node_is_written_under_its_version_only(stores: Stores) -> None:
    async def test(stores: Stores) -> None:
        store = await rooted(stores)
        assert await store.create("a", b"one") == "a"
        assert await store.get("a") == (b"one", await store.exists("a"))
        assert (await store.set("a", b"two", 0)).version == 1
        for version in (0, 2):
            with pytest.raises(NodeVersionError):
                await store.set("a", b"three", version)
        assert (await store.set("a", b"three")).version == 2
        assert (await store.get("a"))[0] == b"three"
        for version in (1, 3):
            with pytest.raises(NodeVersionError):
                await store.delete("a", version)
        await store.delete("a", 2)
        assert await store.exists("a") is None

    stores.run(test)


def test_what_is_not_there_is_told(stores: Stores) -> None:
    async def test(stores: Stores) -> None:
        store = await rooted(stores)
        for call in (store.get("x"), store.children("x"), store.set("x", b""), store.delete("x"), store.create("x/y")):
            with pytest.raises(NodeMissingError, match="no such node"):
                await call
        await store.create("x")
        with pytest.raises(NodeExistsError):
            await store.create("x")
        await store.create("x/y")
        with pytest.raises(NodeNotEmptyError):
            await store.delete("x")

    stores.run(test)


def test_children_are_counted_where_they_come_and_go_not_where_they_are_written(stores: Stores) -> None:
    async def test(stores: Stores) -> None:
        store = await rooted(stores)
        await store.create("a")
        await store.create("a/2", b"x")
        await store.create("a/1")
        await store.create("a/1/below")
        await store.set("a/2", b"y")
        assert await store.children("a") == ("1", "2")
        state = await store.exists("a")
        assert state is not None
        assert (state.version, state.cversion) == (0, 2)
        await store.delete("a/2")
        state = await store.exists("a")
        assert state is not None
        assert state.cversion == 3
        assert await store.children("") == ("a",)

    stores.run(test)


def test_sequential_names_ascend_and_none_comes_twice(stores: Stores) -> None:
    async def test(stores: Stores) -> None:
        store = await rooted(stores)
        await store.create("s")
        first = await store.create("s/x_", sequence=True)
        second = await store.create("s/x_", sequence=True)
        await store.delete(second)
        third = await store.create("s/x_", sequence=True)
        assert first < second < third
        assert all(len(one) == len("s/x_") + 10 and one[len("s/x_") :].isdigit() for one in (first, second, third))

    stores.run(test)


@pytest.mark.parametrize(
    "changes",
    [
        (Create("new"), Set("a", b"2", 1)),
        (Set("a", b"2", 0), Create("a")),
        (Set("a", b"2", 0), Check("b", 1)),
        (Delete("b"), Delete("c")),
        (Create("a/below"), Delete("a")),
        (Set("a", b"2"), Set("nowhere", b"")),
    ],
)
def test_a_transaction_is_all_or_nothing(stores: Stores, changes: tuple[Create | Set | Delete | Check, ...]) -> None:
    async def test(stores: Stores) -> None:
        store = await rooted(stores)
        await store.commit((Create("a", b"1"), Create("b")))
        before = await store.exists("")
        with pytest.raises((NodeVersionError, NodeExistsError, NodeMissingError, NodeNotEmptyError)):
            await store.commit(changes)
        assert await store.children("") == ("a", "b")
        assert await store.children("a") == ()
        data, state = await store.get("a")
        assert (data, state.version) == (b"1", 0)
        assert await store.exists("") == before

    stores.run(test)


def test_a_transaction_sees_what_it_changed_itself(stores: Stores) -> None:
    async def test(stores: Stores) -> None:
        store = await rooted(stores)
        await store.commit((Create("a"), Create("a/b", b"x"), Set("a", b"y", 0), Check("a", 1), Delete("a/b", 0)))
        assert await store.get("a") == (b"y", await store.exists("a"))
        assert await store.children("a") == ()

    stores.run(test)


async def fires(watch: asyncio.Event) -> None:
    await asyncio.wait_for(watch.wait(), SOON)


@pytest.mark.parametrize("own", [True, False], ids=["by itself", "by another"])
@pytest.mark.parametrize("change", ["set", "child", "delete", "create"])
def test_a_watch_tells_of_a_change(stores: Stores, change: str, own: bool) -> None:
    async def test(stores: Stores) -> None:
        store = await rooted(stores)
        await store.create("a")
        writer = store if own else await stores.open()
        told = asyncio.Event()
        if change == "create":
            assert await store.exists("b", told.set) is None
            await writer.create("b")
        elif change == "child":
            await store.get("a", told.set)
            await writer.create("a/x")
        elif change == "set":
            await store.get("a", told.set)
            await writer.set("a", b"x")
        else:
            await store.exists("a", told.set)
            await writer.delete("a")
        await fires(told)

    stores.run(test)


@pytest.mark.parametrize("look", ["get", "exists", "children"])
def test_whoever_looks_again_and_again_is_told_once(stores: Stores, look: str) -> None:
    """A process that looks every few seconds for weeks would otherwise keep a watch for each look."""

    class Looking:
        def __init__(self) -> None:
            self.told = 0

        def changed(self) -> None:
            self.told += 1

    async def test(stores: Stores) -> None:
        store, other = await rooted(stores), await stores.open()
        await store.create("a")
        one, two = Looking(), Looking()
        for _ in range(5):
            await getattr(store, look)("a", one.changed)
        await getattr(store, look)("a", two.changed)
        await (other.create("a/b") if look == "children" else other.set("a", b"x"))
        async with asyncio.timeout(SOON):
            while not (one.told and two.told):
                await asyncio.sleep(0.01)
        assert (one.told, two.told) == (1, 1)

    stores.run(test)


def test_a_watch_that_was_set_after_a_change_sees_the_next(stores: Stores) -> None:
    async def test(stores: Stores) -> None:
        store, writer = await rooted(stores), await stores.open()
        await store.create("a")
        for number in range(5):
            told = asyncio.Event()
            data, _ = await store.get("a", told.set)
            assert data == (b"" if not number else str(number).encode())
            await writer.set("a", str(number + 1).encode())
            await fires(told)

    stores.run(test)


def test_an_ephemeral_node_goes_with_its_session(stores: Stores) -> None:
    async def test(stores: Stores) -> None:
        store = await rooted(stores)
        other = await stores.open()
        await store.create("servers")
        path = await other.create("servers/s_", b"me", ephemeral=True, sequence=True)
        found = await store.exists(path)
        assert found is not None
        assert found.ephemeral
        before = await store.exists("servers")
        told = asyncio.Event()
        await store.get("servers", told.set)
        await other.close()
        await fires(told)
        assert await store.exists(path) is None
        after = await store.exists("servers")
        assert before is not None
        assert after is not None
        assert after.cversion == before.cversion + 1

    stores.run(test)


def test_of_two_that_write_at_the_same_version_one_does(stores: Stores) -> None:
    async def test(stores: Stores) -> None:
        first = await rooted(stores)
        second = await stores.open()
        await first.create("n", b"0")

        async def add(store: MetadataStore) -> None:
            for _ in range(10):
                while True:
                    data, state = await store.get("n")
                    try:
                        await store.set("n", str(int(data) + 1).encode(), state.version)
                        break
                    except NodeVersionError:
                        continue

        await asyncio.gather(add(first), add(second))
        data, state = await first.get("n")
        assert (data, state.version) == (b"20", 20)

    stores.run(test)


def test_after_the_end_nothing_is_asked(stores: Stores) -> None:
    async def test(stores: Stores) -> None:
        store = await rooted(stores)
        await store.close()
        await store.close()

    stores.run(test)
