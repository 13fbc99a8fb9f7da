"""A session with the metadata that is over: whoever had it is told, its nodes go, and nothing is changed in its name."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import resource
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.descriptors import open_descriptors
from tests.zookeeper import ZooKeeperServer, ensemble, new_root, running
from waltzctl.engine.errors import DeadlineError, NotWaltzError, PeerUnreachableError, ProtocolError, RefusedError
from waltzctl.engine.metadata import embedded_file, embedded_sessions, embedded_store, zookeeper_store
from waltzctl.engine.metadata.embedded_nodes import EmbeddedNodes
from waltzctl.engine.metadata.embedded_sessions import has_ended
from waltzctl.engine.metadata.embedded_store import EmbeddedStore
from waltzctl.engine.metadata.metadata_store import NodeExistsError, SessionLostError
from waltzctl.engine.metadata.zookeeper_options import ZooKeeperOptions
from waltzctl.engine.metadata.zookeeper_store import ZooKeeperStore
from waltzctl.engine.node import cluster_metadata

pytestmark = pytest.mark.turns(12)

SOON = 20.0

DIES = """
import asyncio, sys
from pathlib import Path
from waltzctl.engine.metadata.embedded_store import EmbeddedStore

async def main():
    store = await EmbeddedStore.open(Path(sys.argv[1]), session_timeout=float(sys.argv[2]))
    await store.create("mine", ephemeral=True)
    print("there", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def gone(store: EmbeddedStore | ZooKeeperStore, path: str) -> None:
    while True:
        told = asyncio.Event()
        if await store.exists(path, told.set) is None:
            return
        await asyncio.wait_for(told.wait(), SOON)


@pytest.mark.parametrize(
    ("number", "timeout", "namespace"),
    [
        pytest.param(signal.SIGSTOP, 0.4, None, id="stopped"),
        pytest.param(signal.SIGKILL, 600.0, None, id="ended"),
        pytest.param(signal.SIGKILL, 0.4, 0, id="ended where nobody can tell"),
    ],
)
def test_the_nodes_of_a_process_that_is_not_heard_of_go(
    tmp_path: Path, number: int, timeout: float, namespace: int | None
) -> None:
    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True, session_timeout=0.4)
        await store.create_root()
        with subprocess.Popen(
            [sys.executable, "-c", DIES, tmp_path / "m", str(timeout)], stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                assert await asyncio.to_thread(process.stdout.readline) == "there\n"
                await store.create("ours", ephemeral=True)  # from here on somebody looks at the others
                assert await store.exists("mine") is not None
                if namespace is not None:
                    with contextlib.closing(sqlite3.connect(tmp_path / "m", isolation_level=None)) as database:
                        database.execute(
                            "UPDATE session SET pid = ? WHERE pid LIKE ?",
                            (f"{namespace}:{process.pid}", f"%:{process.pid}"),
                        )
                os.kill(process.pid, number)
                if number == signal.SIGKILL:
                    process.wait()
                begun = time.monotonic()
                await gone(store, "mine")
                assert (time.monotonic() - begun < timeout / 2) == (timeout == 600.0)
                assert await store.exists("ours") is not None
            finally:
                process.kill()
        await store.close()

    asyncio.run(test())


@pytest.mark.parametrize("ahead", [-3600, 86_400])
def test_the_session_of_a_container_with_a_clock_of_its_own_is_as_long_as_every_other(
    tmp_path: Path, ahead: int
) -> None:
    """A time namespace: whose monotonic clock is behind kept no session, and whose is ahead kept it when it was stopped."""
    if time.monotonic() < 3700:
        ahead = max(ahead, -int(time.monotonic() / 2))
    apart = ["unshare", "--time", f"--monotonic={ahead}"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("this user may make no time namespace")

    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True, session_timeout=1.0)
        await store.create_root()
        await store.create("ours", ephemeral=True)
        with subprocess.Popen(
            [*apart, sys.executable, "-c", DIES, tmp_path / "m", "1.0"], stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                assert await asyncio.to_thread(process.stdout.readline) == "there\n"
                await asyncio.sleep(2.0)  # meanwhile each of the two ends the sessions of others that are over
                assert await store.exists("mine") is not None
                assert await store.exists("ours") is not None
                os.kill(process.pid, signal.SIGSTOP)
                await gone(store, "mine")
                assert await store.exists("ours") is not None
            finally:
                process.kill()
        await store.close()

    asyncio.run(test())


def test_of_which_processes_it_is_known_that_they_have_ended() -> None:
    namespace = os.stat("/proc/self/ns/pid").st_ino
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert has_ended(f"{namespace}:{process.pid}")
    for one in (f"{namespace}:{os.getpid()}", f"{namespace}:1", f"{namespace + 1}:{process.pid}", process.pid):
        assert not has_ended(one), one


def test_a_session_that_another_ended_changes_nothing_any_more(tmp_path: Path) -> None:
    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True)
        await store.create_root()
        await store.create("mine", ephemeral=True)
        lost = store.lost
        with contextlib.closing(sqlite3.connect(tmp_path / "m", isolation_level=None)) as database:
            database.execute("DELETE FROM session")
        with pytest.raises(SessionLostError, match="is over"):
            await store.create("more")
        assert "is over" in await lost
        assert await store.exists("more") is None
        await store.create("again", ephemeral=True)  # a new one
        assert not store.lost.done()
        await store.close()

    asyncio.run(test())


@pytest.mark.parametrize(("seconds", "holds"), [(-1.0, False), (1.0, True)])
def test_a_session_ends_at_its_deadline(tmp_path: Path, seconds: float, holds: bool) -> None:
    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True)
        await store.create_root()
        await store.create("mine", ephemeral=True)
        with contextlib.closing(sqlite3.connect(tmp_path / "m", isolation_level=None)) as database:
            now = asyncio.get_running_loop().time()
            database.execute("UPDATE session SET deadline = ?", (now + seconds,))
        if holds:
            await store.create("more")
        else:
            with pytest.raises(SessionLostError):
                await store.create("more")
        await store.close()

    asyncio.run(test())


def test_a_process_without_a_descriptor_is_told_that_its_session_is_lost_and_sees_changes_afterwards(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True, session_timeout=0.4)
        other = await EmbeddedStore.open(tmp_path / "m")
        await store.create_root()
        await store.create("mine", ephemeral=True)
        lost, told = store.lost, asyncio.Event()
        await store.exists("theirs", told.set)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, limits[1]))
        try:
            await asyncio.wait_for(lost, SOON)
            with pytest.raises(PeerUnreachableError):
                await store.create("more")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await other.create("theirs")
        await asyncio.wait_for(told.wait(), SOON)
        await store.create("again", ephemeral=True)
        await store.close()
        await other.close()

    asyncio.run(test())


@pytest.mark.parametrize("lasts", [0.9, None])
def test_a_file_that_is_damaged_for_a_while_ends_no_session_without_a_word(tmp_path: Path, lasts: float | None) -> None:
    """As where somebody copies another one over it, and back: the process goes on saying that it lives."""

    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True, session_timeout=2.0)
        await store.create_root()
        await store.create("mine", ephemeral=True)
        lost = store.lost
        whole = (tmp_path / "m").read_bytes()
        (tmp_path / "m").write_bytes(b"no database".ljust(len(whole), b"x"))
        with pytest.raises(NotWaltzError):
            await store.create("more")
        if lasts is None:  # until the session is over
            await asyncio.wait_for(lost, SOON)
        else:
            await asyncio.sleep(lasts)
            assert not lost.done()
        (tmp_path / "m").write_bytes(whole)
        if lasts is not None:
            await asyncio.sleep(3.0)
            assert await store.exists("mine") is not None
        await store.close()

    asyncio.run(test())


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_file_that_was_deleted_while_it_was_in_use_is_written_no_more(tmp_path: Path, how: str) -> None:
    """Whoever comes later finds none, or another one: what went into the first nobody would ever see."""

    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True, session_timeout=0.8)
        await store.create_root()
        await store.create("mine", ephemeral=True)
        lost = store.lost
        (tmp_path / "m").rename(tmp_path / "elsewhere")
        if how == "replaced":
            shutil.copyfile(tmp_path / "elsewhere", tmp_path / "m")
        for call in (store.create("more"), store.get("")):
            with pytest.raises(PeerUnreachableError, match="was moved or replaced while it was open"):
                await call
        assert "was moved or replaced while it was open" in await asyncio.wait_for(lost, SOON)
        (tmp_path / "elsewhere").rename(tmp_path / "m")
        assert await store.children("") == ()
        await store.create("again", ephemeral=True)
        await store.close()

    asyncio.run(test())


def test_a_deleted_file_can_be_closed(tmp_path: Path) -> None:
    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True)
        await store.create_root()
        await store.create("mine", ephemeral=True)
        (tmp_path / "m").unlink()
        await store.close()
        assert [*tmp_path.iterdir()] == []

    asyncio.run(test())


def test_a_damaged_file_can_be_closed(tmp_path: Path) -> None:
    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True)
        await store.create_root()
        await store.create("mine", ephemeral=True)
        size = (tmp_path / "m").stat().st_size
        (tmp_path / "m").write_bytes(b"no database".ljust(size, b"x"))
        await store.close()
        with pytest.raises(PeerUnreachableError, match="is closed"):
            await store.get("")

    asyncio.run(test())


def test_a_moment_without_memory_ends_no_session_and_no_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True, session_timeout=0.8)
        other = await EmbeddedStore.open(tmp_path / "m")
        await store.create_root()
        await store.create("mine", ephemeral=True)
        told, lost = asyncio.Event(), store.lost
        await store.exists("theirs", told.set)

        async def none(*_given: Any, **_more: Any) -> Any:
            raise MemoryError

        with monkeypatch.context() as patch:
            patch.setattr(store, "_run", none)
            await asyncio.sleep(0.4)
        await asyncio.sleep(1.2)  # longer than a session lasts of which nothing is heard
        assert await other.exists("mine") is not None
        assert not lost.done()
        await other.create("theirs")
        await asyncio.wait_for(told.wait(), SOON)
        await store.close()
        await other.close()

    asyncio.run(test())


def test_a_change_that_was_made_is_told_also_where_the_watches_cannot_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True)
        await store.create_root()
        told = asyncio.Event()
        await store.exists("a", told.set)

        async def locked() -> None:
            raise DeadlineError("the metadata", "locked")

        with monkeypatch.context() as patch:
            patch.setattr(store, "_fire", locked)
            await store.create("a")
        await asyncio.wait_for(told.wait(), SOON)
        await store.close()

    asyncio.run(test())


def test_a_session_is_over_for_its_process_when_it_is_for_others_however_long_it_took_to_say_that_it_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was said counts from when it was written; its commit waits for readers."""
    extend, says = embedded_sessions.extend, list[float]()

    def locked(_database: sqlite3.Connection, _session: int) -> bool:
        if len(says) == 2:
            raise sqlite3.OperationalError("database is locked")
        return False

    def slowly(database: sqlite3.Connection, session: int, seconds: float) -> None:
        says.append(time.monotonic())
        extend(database, session, seconds)
        time.sleep(1.6)

    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True, session_timeout=2.0)
        await store.create_root()
        await store.create("mine", ephemeral=True)
        with monkeypatch.context() as patch:
            patch.setattr(embedded_sessions, "extend", slowly)
            patch.setattr(embedded_sessions, "is_over", locked)
            says.append(0.0)
            await asyncio.wait_for(store.lost, SOON)
            assert asyncio.get_running_loop().time() - says[1] < 3.0
        await store.close()

    asyncio.run(test())


def test_a_session_of_before_the_machine_was_started_is_over(tmp_path: Path) -> None:
    async def test() -> None:
        first = await EmbeddedStore.open(tmp_path / "m", create=True)
        await first.create_root()
        await first.create("mine", ephemeral=True)
        with contextlib.closing(sqlite3.connect(tmp_path / "m", isolation_level=None)) as database:
            database.execute("UPDATE session SET boot = 'another'")
        second = await EmbeddedStore.open(tmp_path / "m")
        await second.create("ours", ephemeral=True)
        assert await second.children("") == ("ours",)
        await first.close()
        await second.close()

    asyncio.run(test())


# --- another machine ------------------------------------------------------------------------------------------------------


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of this machine."""
    monkeypatch.setattr(embedded_sessions, "machine", lambda: "ours")
    return "ours"


def came_from(path: Path, machine: str, boot: str = "another") -> None:
    """Every session is of that machine."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("UPDATE session SET boot = ?, pid = ?", (boot, f"{machine}/1:1"))


async def with_a_node(path: Path, timeout: float) -> EmbeddedStore:
    store = await EmbeddedStore.open(path, create=True, session_timeout=timeout)
    await store.create_root()
    await store.create("theirs", ephemeral=True)
    return store


@pytest.mark.usefixtures("ours")
def test_a_file_that_a_process_of_another_machine_uses_is_refused(tmp_path: Path) -> None:
    """Over a file server: each of the two took the other's log servers for dead, and removed them."""

    async def test() -> None:
        theirs = await with_a_node(tmp_path / "m", 0.4)
        came_from(tmp_path / "m", "theirs")  # from now on its heartbeat shows that it lives, and no clock
        with pytest.raises(RefusedError, match="a process of another machine uses it") as caught:
            await EmbeddedStore.open(tmp_path / "m", session_timeout=SOON)
        assert "zk://" in str(caught.value.advice)
        assert not theirs.lost.done()
        assert await theirs.exists("theirs") is not None
        await theirs.close()

    asyncio.run(test())


@pytest.mark.usefixtures("ours")
def test_what_a_process_of_another_machine_left_goes(tmp_path: Path) -> None:
    """The file was moved here: nobody says that the process lives."""

    async def test() -> None:
        theirs = await with_a_node(tmp_path / "m", SOON)
        came_from(tmp_path / "m", "theirs")
        store = await EmbeddedStore.open(tmp_path / "m", session_timeout=0.1)
        assert await store.exists("theirs") is None
        await store.create("ours", ephemeral=True)
        assert await store.children("") == ("ours",)
        with contextlib.closing(sqlite3.connect(tmp_path / "m")) as database:
            assert database.execute("SELECT count(*) FROM znode WHERE path = 'theirs'").fetchone() == (0,)
        await store.close()
        await theirs.close()

    asyncio.run(test())


@pytest.mark.usefixtures("ours")
def test_whoever_had_the_file_open_before_leaves_another_machines_session_alone(tmp_path: Path) -> None:
    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True)
        theirs = await with_a_node(tmp_path / "m", 1.0)
        came_from(tmp_path / "m", "theirs")  # its heartbeat shows that it lives
        await store.create("other")
        assert await store.children("") == ("other", "theirs")
        with pytest.raises(RefusedError, match="a process of another machine uses it"):
            await store.create("ours", ephemeral=True)
        await theirs.close()
        await store.create("ours", ephemeral=True)
        await store.close()

    asyncio.run(test())


@pytest.mark.usefixtures("ours")
def test_a_process_of_another_machine_that_was_killed_keeps_nobody_out_for_ever(tmp_path: Path) -> None:
    """Whoever had the file open before, as a log server that was stopped for a while, could begin no session until it was
    started again.
    """

    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True, session_timeout=0.1)
        theirs = await with_a_node(tmp_path / "m", SOON)
        came_from(tmp_path / "m", "theirs")  # no heartbeat comes as long as this test lasts
        await store.create("ours", ephemeral=True)
        assert await store.children("") == ("ours",)
        await store.close()
        await theirs.close()

    asyncio.run(test())


@pytest.mark.parametrize("same", ["machine", "boot", "older"])
def test_a_session_of_this_machine_is_over_at_once_behind_its_start_and_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same: str
) -> None:
    """A container may have another name than its machine, and none has a start of its own."""
    monkeypatch.setattr(embedded_sessions, "machine", lambda: "ours")
    change = {
        "machine": "boot = 'another', pid = 'ours/1:1'",
        "boot": "pid = 'theirs/1:1'",
        "older": "boot = 'another', pid = '1:1'",
    }[same]

    async def test() -> None:
        theirs = await with_a_node(tmp_path / "m", SOON)
        with contextlib.closing(sqlite3.connect(tmp_path / "m", isolation_level=None)) as database:
            database.execute(f"UPDATE session SET {change}")
        store = await EmbeddedStore.open(tmp_path / "m", session_timeout=SOON)
        assert (await store.exists("theirs") is not None) == (same == "boot")
        await store.close()
        await theirs.close()

    asyncio.run(test())


@pytest.mark.parametrize("content", [None, b"", b"no database, but long enough to be looked at" * 9])
def test_what_is_no_metadata_is_told_and_left_alone(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "m"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(NotWaltzError, match=str(path)):
        asyncio.run(EmbeddedStore.open(path))
    assert [one.name for one in tmp_path.iterdir()] == ([] if content is None else ["m"])
    assert content is None or path.read_bytes() == content


def test_a_database_of_another_program_is_not_taken(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "m", isolation_level=None)) as database:
        database.execute("CREATE TABLE theirs (x)")
    for create in (False, True):
        with pytest.raises(NotWaltzError, match="no metadata of a Waltz cluster"):
            asyncio.run(EmbeddedStore.open(tmp_path / "m", create=create))


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE znode SET data = 5000000000000",
        "UPDATE znode SET data = 'text'",
        "UPDATE znode SET cversion = 'text'",
        "UPDATE session SET deadline = 'text'",
        "UPDATE session SET pid = pid || 'x'",
        "UPDATE session SET pid = pid || '99999999999999999999'",
        "DROP TABLE session",
        "DROP TABLE znode",
    ],
)
def test_values_that_nobody_wrote_there_are_told_as_damage(tmp_path: Path, damage: str) -> None:
    """SQLite has no checksums: one changed bit gives a value another type."""
    path = tmp_path / "metadata"

    async def test() -> None:
        store = await EmbeddedStore.open(path, create=True)
        try:
            await store.create_root()
            await store.create("mine", ephemeral=True)
            with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute(damage)
            with pytest.raises(NotWaltzError, match="no metadata that waltzctl wrote, or it is damaged"):
                await store.get("")
        finally:
            await store.close()

    asyncio.run(test())


def test_a_file_that_another_process_keeps_locked_is_waited_for_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_file, "_BUSY_SECONDS", 0.2)
    path = tmp_path / "metadata"

    async def test() -> None:
        store = await EmbeddedStore.open(path, create=True, session_timeout=5.0)
        try:
            await store.create_root()
            with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN EXCLUSIVE")
                with pytest.raises(DeadlineError, match=r"metadata: another process kept it locked for 0\.2 s"):
                    await store.create("a")
                other.execute("ROLLBACK")
            await store.create("a")
        finally:
            await store.close()

    asyncio.run(test())


async def opened(store: EmbeddedStore) -> None:
    await (await EmbeddedStore.open(Path(store.where))).close()


@pytest.mark.turns(8)
@pytest.mark.parametrize(
    "turn",
    [
        pytest.param(lambda store, number: store.create(f"n{number}"), id="change"),
        pytest.param(lambda store, _: store.get(""), id="read"),
        pytest.param(lambda store, _: store.children(""), id="children"),
        pytest.param(lambda store, _: opened(store), id="opening"),
    ],
)
def test_a_process_with_one_change_right_behind_the_other_keeps_no_other_process_from_its_turn(
    tmp_path: Path, turn: Callable[[EmbeddedStore, int], Coroutine[Any, Any, object]]
) -> None:
    """As a log server that opens thousands of partitions: SQLite tries ten times a second, and sessions of others expired.

    Nearly all the time of a change is that of its commit, in which nobody else can read, either.
    """
    path, begun, done = tmp_path / "metadata", threading.Event(), threading.Event()

    def change() -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            while not done.is_set():
                other.execute("BEGIN EXCLUSIVE")
                begun.set()
                time.sleep(0.6)
                other.execute("ROLLBACK")
                begun.clear()
                time.sleep(0.03)

    async def test() -> None:
        store = await EmbeddedStore.open(path, create=True, session_timeout=5.0)
        await store.create_root()
        changing = asyncio.ensure_future(asyncio.to_thread(change))
        waited = []
        try:
            for number in range(4):
                await asyncio.to_thread(begun.wait)
                before = time.monotonic()
                await turn(store, number)
                waited.append(time.monotonic() - before)
        finally:
            done.set()
            await changing
            await store.close()
        assert max(waited) < 0.7, "it met the first moment between two"

    asyncio.run(test())


async def read_two_hundred_times(store: EmbeddedStore) -> None:
    """As a process with thousands of partitions does."""
    await asyncio.gather(*(store.get("mine") for _ in range(200)))


async def refused_two_hundred_times(store: EmbeddedStore) -> None:
    """As `create` of thousands of nodes that are there already: what is rolled back does not extend the session."""
    refused = await asyncio.gather(*(store.create("mine") for _ in range(200)), return_exceptions=True)
    assert {type(one) for one in refused} == {NodeExistsError}


@pytest.mark.parametrize("work", [read_two_hundred_times, refused_two_hundred_times])
def test_a_session_outlasts_more_calls_than_its_timeout_has_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Callable[[EmbeddedStore], Coroutine[Any, Any, None]]
) -> None:
    """The heartbeat is behind all of them."""
    real = EmbeddedNodes.node

    def slow(nodes: EmbeddedNodes, path: str) -> object:
        time.sleep(0.01)
        return real(nodes, path)

    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata", create=True, session_timeout=1.0)
        try:
            await store.create_root()
            await store.create("mine", ephemeral=True)
            lost = store.lost
            monkeypatch.setattr(EmbeddedNodes, "node", slow)
            await work(store)
            await store.set("mine", b"still here")
            assert not lost.done()
        finally:
            monkeypatch.undo()
            await store.close()

    asyncio.run(test())


def test_a_call_late_in_its_session_waits_once_for_a_file_that_is_kept_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a heartbeat does, which then tells that the session is lost: it extends the session itself."""
    path = tmp_path / "metadata"

    async def test() -> None:
        store = await EmbeddedStore.open(path, create=True, session_timeout=60.0)
        try:
            await store.create_root()
            await store.create("mine", ephemeral=True)
            monkeypatch.setattr(embedded_file, "_BUSY_SECONDS", 1.0)
            store._session_deadline = time.monotonic() + 20.0  # as far as nobody has extended it since
            with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN EXCLUSIVE")
                for call in (lambda: store.set("mine", b""), lambda: store.get("mine")):
                    before = time.monotonic()
                    with pytest.raises(DeadlineError):
                        await call()
                    assert time.monotonic() - before < 1.6
                other.execute("ROLLBACK")
            assert store._session_deadline < time.monotonic() + 20.0
            await store.get("mine")
            assert store._session_deadline > time.monotonic() + 50.0, "a read extends it"
        finally:
            await store.close()

    asyncio.run(test())


def test_what_is_opened_for_a_caller_that_was_cancelled_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "metadata"
    path.touch()

    async def test() -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            opening = asyncio.ensure_future(EmbeddedStore.open(path, create=True))
            while [*open_descriptors().values()].count(str(path)) < 2:  # one of them is ours
                await asyncio.sleep(0.001)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
            other.execute("ROLLBACK")
        while "metadata_0" in {one.name for one in threading.enumerate()}:  # opens it, now that it can
            await asyncio.sleep(0.001)
        assert str(path) not in open_descriptors().values()

    asyncio.run(test())


def test_a_connection_to_zookeeper_that_comes_about_for_a_caller_that_was_cancelled_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However long somebody keeps the error, which leads to it."""
    connecting, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    @contextlib.contextmanager
    def connected(_: ZooKeeperOptions) -> Iterator[tuple[None, None]]:
        connecting.set()
        assert go_on.wait(10)
        try:
            yield None, None
        finally:
            closed.set()

    async def test() -> None:
        opening = asyncio.ensure_future(ZooKeeperStore.open(ZooKeeperOptions("127.0.0.1:1", "/root")))
        while not connecting.is_set():
            await asyncio.sleep(0.001)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError) as kept:
            await opening
        go_on.set()
        assert await asyncio.to_thread(closed.wait, 5)
        assert kept.value is not None

    monkeypatch.setattr(zookeeper_store, "connected", connected)
    asyncio.run(test())


def test_a_connection_to_zookeeper_is_closed_also_where_its_close_is_cancelled_before_a_thread_is_free() -> None:
    closed, go_on = threading.Event(), threading.Event()

    async def test() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, go_on.wait, 10)
        stack = contextlib.ExitStack()
        stack.callback(closed.set)
        client = SimpleNamespace(add_listener=lambda _: None, remove_listener=lambda _: None)
        contact: Any = SimpleNamespace(granted=None, heard=time.monotonic())
        store = ZooKeeperStore(client, contact, ZooKeeperOptions("127.0.0.1:1", "/root"), stack)
        closing = asyncio.ensure_future(store.close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.wait([closing])
        assert closing.cancelled()
        await busy

    asyncio.run(test())
    assert closed.is_set()


def zookeeper_that_answers(exception: Exception | None, value: object) -> Any:
    """A client of kazoo whose every read has this outcome."""

    def read(_path: str, **_: object) -> Any:
        answered = SimpleNamespace(exception=exception, value=value, get=lambda *_: answered_now())

        def answered_now() -> object:
            if exception is not None:
                raise exception
            return value

        answered.rawlink = lambda call: call(answered)
        return answered

    def ignored(_: object) -> None:
        pass

    handler = SimpleNamespace(timeout_exception=TimeoutError)
    return SimpleNamespace(
        add_listener=ignored, remove_listener=ignored, get_async=read, handler=handler, client_state="CONNECTED"
    )


async def read_root(client: Any) -> bytes:
    contact: Any = SimpleNamespace(granted=None, heard=time.monotonic())
    store = ZooKeeperStore(client, contact, ZooKeeperOptions("127.0.0.1:1", "/root"), contextlib.ExitStack())
    try:
        return (await store.get(""))[0]
    finally:
        await store.close()


def test_a_znode_without_data_is_an_empty_one() -> None:
    """Java's clients may make one with null in place of data."""
    client = zookeeper_that_answers(None, (None, SimpleNamespace(version=0, cversion=0, ephemeralOwner=0)))
    assert asyncio.run(read_root(client)) == b""
    assert cluster_metadata._get(client, "/root", ZooKeeperOptions("127.0.0.1:1", "/root")) == b""


@pytest.mark.parametrize(
    "error",
    [struct.error("requires a buffer"), UnicodeDecodeError("utf-8", b"x", 0, 1, "why"), IndexError("out of range")],
)
def test_an_answer_of_zookeeper_that_is_none_is_an_error_of_the_peer(error: Exception) -> None:
    client = zookeeper_that_answers(error, None)
    with pytest.raises(
        ProtocolError, match=r"ZooKeeper at 127\.0\.0\.1:1: an answer about node /root that cannot be read"
    ):
        asyncio.run(read_root(client))
    with pytest.raises(
        ProtocolError, match=r"ZooKeeper at 127\.0\.0\.1:1: an answer about node /root that cannot be read"
    ):
        cluster_metadata._get(client, "/root", ZooKeeperOptions("127.0.0.1:1", "/root"))


@pytest.mark.parametrize("seconds", [0, 0.1])
def test_a_close_that_is_cancelled_ends_the_session_and_closes_the_file_all_the_same(
    tmp_path: Path, seconds: float
) -> None:
    path = tmp_path / "metadata"

    async def test() -> None:
        store = await EmbeddedStore.open(path, create=True)
        await store.create_root()
        await store.create("mine", ephemeral=True)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            closing = asyncio.ensure_future(store.close())
            await asyncio.sleep(seconds)  # the session cannot be ended now
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            other.execute("ROLLBACK")
        async with asyncio.timeout(5):
            while "metadata_0" in {one.name for one in threading.enumerate()}:
                await asyncio.sleep(0.001)
        assert str(path) not in open_descriptors().values()
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
            assert database.execute("SELECT count(*) FROM session").fetchone() == (0,)
            assert database.execute("SELECT count(*) FROM znode WHERE session IS NOT NULL").fetchone() == (0,)

    asyncio.run(test())


def test_a_node_of_the_session_that_is_made_while_its_store_is_closed_goes_with_the_session(tmp_path: Path) -> None:
    """A tool that was interrupted while it waited for the lock left it to nobody, for ever: the node belonged to no session."""
    path = tmp_path / "metadata"

    async def test() -> None:
        store = await EmbeddedStore.open(path, create=True)
        await store.create_root()
        await store.create("mine", ephemeral=True)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            making = asyncio.ensure_future(store.create("lock", ephemeral=True))
            await asyncio.sleep(0.05)
            making.cancel()
            with pytest.raises(asyncio.CancelledError):
                await making
            closing = asyncio.ensure_future(store.close())
            await asyncio.sleep(0.05)
            other.execute("ROLLBACK")
            await closing
            assert other.execute("SELECT path FROM znode").fetchall() == [("",)]

    asyncio.run(test())


@pytest.mark.parametrize("call", ["exists", "create"])
def test_a_call_that_is_under_way_when_its_store_is_closed_leaves_nothing_at_work(tmp_path: Path, call: str) -> None:
    """The polls for its watch never ended, and the heartbeats of its session went on until that was over."""
    path = tmp_path / "metadata"

    async def test() -> None:
        store = await EmbeddedStore.open(path, create=True)
        await store.create_root()
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            calling = asyncio.ensure_future(
                store.exists("", lambda: None) if call == "exists" else store.create("mine", ephemeral=True)
            )
            await asyncio.sleep(0.05)
            closing = asyncio.ensure_future(store.close())
            await asyncio.sleep(0.05)
            other.execute("ROLLBACK")
            await closing
            await asyncio.wait([calling])
            assert (calling.exception() is None) is (call == "exists")
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(test())


def test_a_reader_that_holds_up_a_change_locks_nobody_out_once_it_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for a reader is the end of the transaction, which then fails."""
    monkeypatch.setattr(embedded_file, "_BUSY_SECONDS", 0.2)
    path = tmp_path / "metadata"

    async def test() -> None:
        store = await EmbeddedStore.open(path, create=True, session_timeout=5.0)
        await store.create_root()
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM znode").fetchall()
            for _ in range(2):
                with pytest.raises(DeadlineError, match="another process kept it locked"):
                    await store.create("a")
        await store.create("b")
        other = await EmbeddedStore.open(path)
        assert await other.children("") == ("b",)
        await other.close()
        await store.close()

    asyncio.run(test())


def test_a_full_disk_is_told_as_one_and_the_next_change_is_made(tmp_path: Path) -> None:
    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True)
        await store.create_root()
        (pages,) = store._nodes.database.execute("PRAGMA page_count").fetchone()
        store._nodes.database.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(PeerUnreachableError, match="disk is full"):
            await store.create("large", bytes(1 << 20))
        assert await store.children("") == ()
        await store.create("small")
        await store.close()

    asyncio.run(test())


def test_where_no_file_can_be_made_is_told(tmp_path: Path) -> None:
    with pytest.raises(PeerUnreachableError, match="unable to open database file") as told:
        asyncio.run(EmbeddedStore.open(tmp_path / "none" / "metadata", create=True, session_timeout=5.0))
    assert "is its directory there" in (told.value.advice or "")


def test_a_directory_is_no_metadata(tmp_path: Path) -> None:
    with pytest.raises(NotWaltzError, match="no regular file"):
        asyncio.run(EmbeddedStore.open(tmp_path, create=True))


def test_a_file_that_cannot_be_looked_at_is_metadata_that_cannot_be_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any, **__: Any) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", failing)
        with pytest.raises(PeerUnreachableError, match=os.strerror(errno.EIO)):
            asyncio.run(EmbeddedStore.open(tmp_path / "metadata"))


# --- ZooKeeper -----------------------------------------------------------------------------------------------------------


class Wire:
    """A port before a server's; once it is `cut` connections stay, and nothing goes over them, or over new ones."""

    def __init__(self, beyond: int) -> None:
        self._beyond, self._through = beyond, True
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()

    def cut(self) -> None:
        self._through = False

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._beyond)
        self._writers += [writer, back]
        with contextlib.suppress(OSError):
            await asyncio.gather(self._carry(reader, back), self._carry(there, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if self._through:
                writer.write(data)


def options(server: ZooKeeperServer, root: str) -> ZooKeeperOptions:
    return ZooKeeperOptions(server.connect_string, root, session_timeout=1.0, connect_timeout=10.0)


def test_a_session_that_zookeeper_ended_is_told(zookeeper: ZooKeeperServer) -> None:
    from kazoo.client import KazooClient

    async def test() -> None:
        store = await ZooKeeperStore.open(options(zookeeper, new_root()))
        await store.create_root()
        await store.create("mine", ephemeral=True)
        lost = store.lost
        thief = KazooClient(zookeeper.connect_string, client_id=store._client.client_id)
        await asyncio.to_thread(thief.start)
        await asyncio.to_thread(thief.stop)  # which closes the session that both have
        await asyncio.to_thread(thief.close)
        assert "over" in await asyncio.wait_for(lost, SOON)
        while True:
            try:
                assert await store.exists("mine") is None
                break
            except PeerUnreachableError:
                continue
        assert not store.lost.done()
        await store.close()

    asyncio.run(test())


def test_a_zookeeper_that_is_silent_for_the_timeout_counts_as_lost(tmp_path: Path) -> None:
    async def test(server: ZooKeeperServer) -> None:
        store = await ZooKeeperStore.open(options(server, "/x"))
        await store.create_root()
        lost = store.lost
        server.pause()
        try:
            assert "was not reached for" in await asyncio.wait_for(lost, SOON)
        finally:
            server.resume()
        await store.close()

    with running(tmp_path) as server:
        asyncio.run(test(server))


@pytest.mark.parametrize(("stopped", "answers", "lost"), [(1.6, True, False), (1.6, False, True), (0.9, False, True)])
def test_a_process_that_was_stopped_hears_what_zookeeper_says_before_it_gives_its_session_up(
    stopped: float, answers: bool, lost: bool
) -> None:
    """Where ZooKeeper stood still as well, the session is in force: all partitions of a log server were closed and begun anew."""

    async def test() -> None:
        contact: Any = SimpleNamespace(granted=1.0, heard=time.monotonic())
        where = ZooKeeperOptions("127.0.0.1:1", "/root")
        store = ZooKeeperStore(zookeeper_that_answers(None, None), contact, where, contextlib.ExitStack())
        told, loop = store.lost, asyncio.get_running_loop()
        time.sleep(stopped)  # the loop is held up as by a SIGSTOP
        if answers:  # in the library's thread, as soon as there is one
            loop.call_later(0.02, lambda: setattr(contact, "heard", time.monotonic()))
        begun = loop.time()
        await asyncio.wait([told], timeout=0.6)
        assert told.done() is lost
        assert not lost or loop.time() - begun < 0.4
        await store.close()

    asyncio.run(test())


def test_whose_packets_vanish_knows_that_its_session_is_over_when_others_see_it(zookeeper: ZooKeeperServer) -> None:
    """The library needs two thirds of a timeout to find such a connection broken, and its own count begins there."""

    async def test() -> None:
        async with Wire(zookeeper.port) as wire:
            root = new_root()
            wanted = ZooKeeperOptions(f"127.0.0.1:{wire.port}", root, session_timeout=2.0)
            cut = await ZooKeeperStore.open(wanted)
            other = await ZooKeeperStore.open(options(zookeeper, root))
            await other.create_root()
            await cut.create("mine", ephemeral=True)
            lost = cut.lost
            wire.cut()
            await gone(other, "mine")
            assert "was not reached for 2 s" in await asyncio.wait_for(lost, 0.5)
            await other.close()
            await cut.close()

    asyncio.run(test())


@pytest.mark.parametrize(("asked", "granted"), [(60.0, 60.0), (61.0, 60.0), (0.4, 0.4), (0.1, 0.4)])
def test_a_session_lasts_as_long_as_the_ensemble_grants(
    zookeeper: ZooKeeperServer, asked: float, granted: float
) -> None:
    async def test() -> None:
        store = await ZooKeeperStore.open(ZooKeeperOptions(zookeeper.connect_string, new_root(), session_timeout=asked))
        assert store.session_timeout == granted
        await store.close()

    asyncio.run(test())


def test_a_call_to_a_zookeeper_that_is_silent_ends(tmp_path: Path) -> None:
    async def test(server: ZooKeeperServer) -> None:
        patient = ZooKeeperOptions(server.connect_string, "/x", session_timeout=4.0, connect_timeout=0.5)
        store = await ZooKeeperStore.open(patient)
        await store.create_root()
        server.pause()
        try:
            with pytest.raises((DeadlineError, PeerUnreachableError), match=server.connect_string):
                await store.get("")
        finally:
            server.resume()
        await store.close()

    with running(tmp_path) as server:
        asyncio.run(test(server))


def test_a_session_lasts_as_long_as_was_asked_for_however_long_connecting_may_take(zookeeper: ZooKeeperServer) -> None:
    async def test() -> None:
        for session, connect in ((2.0, 10.0), (20.0, 2.0)):
            wanted = ZooKeeperOptions(
                zookeeper.connect_string, new_root(), session_timeout=session, connect_timeout=connect
            )
            store = await ZooKeeperStore.open(wanted)
            assert store.session_timeout == session
            await store.close()

    asyncio.run(test())


def test_hosts_that_hang_leave_time_for_the_others(zookeeper: ZooKeeperServer) -> None:
    """Whichever comes first: the library shuffles them."""

    async def test() -> None:
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
            hosts = [zookeeper.connect_string, *(f"127.0.0.1:{one.getsockname()[1]}" for one in silent)]
            wanted = ZooKeeperOptions(",".join(hosts), new_root(), session_timeout=30.0, connect_timeout=3.0)
            store = await ZooKeeperStore.open(wanted)
            assert await store.create_root()
            await store.close()

    asyncio.run(test())


def test_addresses_of_one_name_that_hang_leave_time_for_the_others(
    zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The servers of an ensemble behind one name, as of a headless service: one that hung kept everybody out."""
    real = socket.getaddrinfo

    async def test() -> None:
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(2)]
            ports = [*silent, zookeeper.port]

            def found(host: Any, *given: Any, **more: Any) -> Any:
                if host != "ensemble.test":
                    return real(host, *given, **more)
                return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]

            monkeypatch.setattr(socket, "getaddrinfo", found)
            monkeypatch.setattr(random, "shuffle", lambda _: None)
            wanted = ZooKeeperOptions("ensemble.test", new_root(), session_timeout=30.0, connect_timeout=3.0)
            store = await ZooKeeperStore.open(wanted)
            assert await store.create_root()
            await store.close()

    asyncio.run(test())


def test_a_name_with_many_addresses_leaves_each_the_time_to_answer(
    zookeeper: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new session is written to a quorum's disks: all of thirty addresses were given up after a fifth of a second."""
    real = socket.getaddrinfo

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", zookeeper.port)

        async def pump(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
            while some := await source.read(4096):
                to.write(some)
            to.close()

        try:
            await asyncio.sleep(0.3)
            with contextlib.suppress(OSError):
                await asyncio.gather(pump(reader, back), pump(there, writer))
        finally:
            back.close()
            writer.close()

    async def test() -> None:
        relay = await asyncio.start_server(late, "127.0.0.1", 0)
        place = relay.sockets[0].getsockname()

        def found(host: Any, *given: Any, **more: Any) -> Any:
            if host != "ensemble.test":
                return real(host, *given, **more)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place)] * 30

        monkeypatch.setattr(socket, "getaddrinfo", found)
        wanted = ZooKeeperOptions("ensemble.test", new_root(), session_timeout=30.0, connect_timeout=6.0)
        async with relay:
            store = await ZooKeeperStore.open(wanted)
            assert await store.create_root()
            await store.close()

    asyncio.run(test())


@pytest.mark.parametrize("name", ["a" * 64, "a..b"])
def test_a_name_that_cannot_be_one_keeps_nobody_from_the_others(
    zookeeper: ZooKeeperServer, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    async def test() -> None:
        hosts = f"{name}:2181,{zookeeper.connect_string}"
        store = await ZooKeeperStore.open(ZooKeeperOptions(hosts, new_root(), connect_timeout=SOON))
        await store.close()
        with pytest.raises(PeerUnreachableError, match=f"Cannot resolve {name}"):
            await ZooKeeperStore.open(ZooKeeperOptions(f"{name}:2181", "/x", connect_timeout=0.5))

    asyncio.run(test())
    assert "Traceback" not in capfd.readouterr().err


def test_names_that_cannot_be_looked_up_for_a_while_end_no_store_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system without memory at the moment: the library's thread ended, and a server never got its session back."""

    async def test(server: ZooKeeperServer) -> None:
        loop, asked = asyncio.get_running_loop(), asyncio.Event()

        def fails(*_: object, **__: object) -> Any:
            loop.call_soon_threadsafe(asked.set)
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

        store = await ZooKeeperStore.open(options(server, "/x"))
        await store.create_root()
        with monkeypatch.context() as patch:
            patch.setattr(socket, "getaddrinfo", fails)
            server.kill()
            await asyncio.wait_for(asked.wait(), SOON)
        server.start()
        async with asyncio.timeout(SOON):
            while True:
                with contextlib.suppress(PeerUnreachableError, DeadlineError):
                    assert await store.exists("") is not None
                    break
                await asyncio.sleep(0.1)
        await store.close()

    with running(tmp_path) as server:
        asyncio.run(test(server))


def test_an_ensemble_whose_leader_is_killed_keeps_metadata_and_session(tmp_path: Path) -> None:
    async def test(servers: tuple[ZooKeeperServer, ...]) -> None:
        hosts = ",".join(server.connect_string for server in servers)
        store = await ZooKeeperStore.open(ZooKeeperOptions(hosts, "/x", session_timeout=4.0, connect_timeout=10.0))
        await store.create_root()
        await store.create("mine", b"kept", ephemeral=True)
        lost = store.lost
        (leader,) = [server for server in servers if b"Mode: leader" in server.says(b"srvr")]
        leader.kill()
        while True:
            try:
                assert (await store.get("mine"))[0] == b"kept"
                await store.create("more")
                break
            except (PeerUnreachableError, DeadlineError):
                await asyncio.sleep(0.05)
        assert not lost.done()
        await store.close()

    with ensemble(tmp_path) as servers:
        asyncio.run(test(servers))


def test_the_nodes_of_the_last_process_are_gone_for_who_only_reads(tmp_path: Path) -> None:
    """Nobody is left who would delete them, and reading writes nothing."""

    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True)
        await store.create_root()
        await store.create("servers")
        await store.create("servers/s_", b"me", ephemeral=True, sequence=True)
        reader = await EmbeddedStore.open(tmp_path / "m")
        before = await reader.exists("servers")
        told = asyncio.Event()
        await reader.get("servers", told.set)
        with contextlib.closing(sqlite3.connect(tmp_path / "m", isolation_level=None)) as database:
            database.execute("UPDATE session SET deadline = 0")
        written = (tmp_path / "m").read_bytes()
        assert await reader.children("servers") == ()
        assert await reader.exists("servers/s_0000000000") is None
        after = await reader.exists("servers")
        assert before is not None
        assert after is not None
        assert after.cversion == before.cversion + 1
        await asyncio.wait_for(told.wait(), SOON)
        assert (tmp_path / "m").read_bytes() == written
        await reader.set("servers", b"x")  # with a change they go for good
        assert (await reader.get("servers"))[1].cversion == after.cversion
        with contextlib.closing(sqlite3.connect(tmp_path / "m", isolation_level=None)) as database:
            assert database.execute("SELECT count(*) FROM znode WHERE session IS NOT NULL").fetchone() == (0,)
        await reader.close()
        await store.close()

    asyncio.run(test())


def test_a_process_that_has_much_to_change_is_heard_of_meanwhile(tmp_path: Path) -> None:
    """A server that opens a thousand partitions: what says that it lives waited behind all that."""

    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True, session_timeout=0.6)
        await store.create_root()
        await store.create("mine", ephemeral=True)
        lost = store.lost

        async def change() -> None:
            await store._transaction(lambda: time.sleep(0.01))

        await asyncio.gather(*(change() for _ in range(200)))
        assert not lost.done()
        assert await store.exists("mine") is not None
        await store.close()

    asyncio.run(test())


def test_two_that_make_their_first_nodes_at_once_share_a_session(tmp_path: Path) -> None:
    """The first of two sessions was not heard of any more, and its node went."""

    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True)
        await store.create_root()
        await asyncio.gather(*(store.create(name, ephemeral=True) for name in "ab"))
        with contextlib.closing(sqlite3.connect(tmp_path / "m", isolation_level=None)) as database:
            assert database.execute("SELECT count(*) FROM session").fetchone() == (1,)
        await store.close()

    asyncio.run(test())


def malformed() -> sqlite3.DatabaseError:
    """What SQLite raises for a damaged page, and for one that could not be read (EIO)."""
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


@pytest.mark.parametrize("lasts", [False, True])
def test_a_read_that_failed_is_not_told_as_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lasts: bool) -> None:
    """A moment's EIO of a whole file: the metadata was called damaged, and nobody was told to look at the disk."""
    path = tmp_path / "m"

    async def make() -> None:
        store = await EmbeddedStore.open(path, create=True)
        await store.create_root()
        await store.close()

    asyncio.run(make())
    if lasts:

        def unreadable(_copy: object, progress: object) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        broken = SimpleNamespace(backup=unreadable, close=lambda: None)
        monkeypatch.setattr(sqlite3, "connect", lambda *_args, **_options: broken)
    with (
        pytest.raises(PeerUnreachableError, match="disk I/O error" if lasts else "a read failed"),
        embedded_file.translated_errors(path),
    ):
        raise malformed()


def test_a_look_at_what_is_malformed_waits_for_no_lock_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process, that stands still within a change, held up everything that uses the metadata here."""
    path = tmp_path / "m"
    database, opened = embedded_file.open_file(path, True)
    os.close(opened)
    monkeypatch.setattr(embedded_file, "_BUSY_SECONDS", 0.1)
    code = (
        "import sqlite3, sys; database = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "database.execute('BEGIN EXCLUSIVE'); print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(path)]
    with (
        contextlib.closing(database),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other,
    ):
        assert other.stdout is not None
        other.stdout.readline()
        ends = threading.Timer(SOON, other.kill)
        ends.start()
        try:
            with pytest.raises(DeadlineError, match="kept it locked"), embedded_file.translated_errors(path):
                raise malformed()
        finally:
            ends.cancel()
            other.kill()


def test_a_page_that_is_damaged_is_told_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "m"

    async def test() -> None:
        store = await EmbeddedStore.open(path, create=True)
        await store.create_root()
        await store.close()
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * 4096)
        store = await EmbeddedStore.open(path)
        with pytest.raises(NotWaltzError, match="or it is damaged"):
            await store.get("")
        await store.close()

    asyncio.run(test())


def test_what_is_committed_is_not_undone_by_a_journal_that_comes_back(tmp_path: Path) -> None:
    """With less than EXTRA (3) SQLite does not sync the directory behind a journal that it removed, which ends a transaction.

    A power failure brings the journal back, and that undoes the transaction: a session id was issued twice.
    """

    async def test() -> None:
        store = await EmbeddedStore.open(tmp_path / "m", create=True)
        assert store._nodes.database.execute("PRAGMA synchronous").fetchone() == (3,)
        assert store._nodes.database.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        await store.close()

    asyncio.run(test())


@pytest.mark.parametrize("allowed", [True, False])
def test_a_file_that_could_not_be_opened_for_writing_once_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: bool
) -> None:
    """SQLite then opens it for reading only: a log server that had no descriptor for a moment never came to have a session."""
    path, really, modes = tmp_path / "m", sqlite3.connect, ["mode=ro", "mode=rw"]

    async def test() -> None:
        store = await EmbeddedStore.open(path, create=True)
        await store.create_root()
        await store.close()
        monkeypatch.setattr(
            sqlite3, "connect", lambda name, **options: really(name.replace("mode=rw", modes.pop(0)), **options)
        )
        monkeypatch.setattr(os, "access", lambda *_: allowed)
        store = await EmbeddedStore.open(path)
        assert await store.children("") == ()
        if allowed:
            await store.create("mine", ephemeral=True)
            await store.create("also")
            assert await store.children("") == ("also", "mine")
        else:
            with pytest.raises(PeerUnreachableError, match="readonly"):
                await store.create("mine", ephemeral=True)
        await store.close()
        assert len(modes) == (0 if allowed else 1)

    before = open_descriptors()
    asyncio.run(test())
    assert open_descriptors() == before


def test_what_is_opened_again_is_no_other_file_that_stands_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the file put back, as the error tells to do, the other one was read."""
    path, other, really, modes = tmp_path / "m", tmp_path / "other", sqlite3.connect, ["mode=ro"]

    async def test() -> None:
        for one in (path, other):
            store = await EmbeddedStore.open(one, create=True)
            await store.create_root()
            await store.create(one.name)
            await store.close()
        with monkeypatch.context() as patched:
            patched.setattr(
                sqlite3, "connect", lambda name, **options: really(name.replace("mode=rw", modes.pop()), **options)
            )
            store = await EmbeddedStore.open(path)

        def replaced(opened: Path, create: bool) -> tuple[sqlite3.Connection, int]:
            path.rename(tmp_path / "aside")
            other.rename(path)
            return embedded_file.open_file(opened, create)

        with monkeypatch.context() as patched:
            patched.setattr(embedded_store, "open_file", replaced)
            with pytest.raises(PeerUnreachableError, match="was moved or replaced while it was open"):
                await store.create("first")
        path.rename(other)
        (tmp_path / "aside").rename(path)
        assert await store.children("") == ("m",)
        await store.create("second")
        assert await store.children("") == ("m", "second")
        await store.close()

    before = open_descriptors()
    asyncio.run(test())
    assert open_descriptors() == before


def test_a_program_that_is_interrupted_while_it_connects_to_zookeeper_ends_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waited as long as a connection may take to come about."""
    connecting, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    @contextlib.contextmanager
    def connected(_: ZooKeeperOptions) -> Iterator[tuple[None, None]]:
        connecting.set()
        go_on.wait(20)
        try:
            yield None, None
        finally:
            closed.set()

    async def test() -> None:
        opening = asyncio.ensure_future(ZooKeeperStore.open(ZooKeeperOptions("127.0.0.1:1", "/root")))
        while not connecting.is_set():
            await asyncio.sleep(0.001)
        opening.cancel()
        await asyncio.wait([opening])
        assert opening.cancelled()

    monkeypatch.setattr(zookeeper_store, "connected", connected)
    asyncio.run(test())
    assert not closed.is_set()
    go_on.set()
    assert closed.wait(5), "what came about for nobody is closed"
