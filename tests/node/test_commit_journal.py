"""A node with a commit journal: what it shows, and what it does when the journal's device fails, is full or hangs."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import build_directory
from tests.node.running import LOG, LOOPS, Peer, StuckDisk, append, get, node_options, run, running
from tests.node.test_health import unwell
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DiskError, RefusedError, WaltzError
from waltzctl.engine.net.configuration import Given, load_configuration
from waltzctl.engine.node.node import Node
from waltzctl.engine.node.node_settings import SERVE
from waltzctl.engine.storage import commit_journal
from waltzctl.engine.storage.commit_journal import AREA_SIZE, CommitJournal
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.engine.storage.journal_state import read_state
from waltzctl.formats.control import CONTROL_FILE_NAME, ControlHeader
from waltzctl.formats.wire import storage
from waltzctl.formats.wire.storage import SuccessResponse

PARTITIONS = range(8)
ROUNDS = 10


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "storage"
    made.mkdir()
    build_directory(made, dict.fromkeys(PARTITIONS, 0))
    return made


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def journaled(directory: Path) -> bool:
    """Whether the control file says that records may stand in a journal only."""
    return ControlHeader.decode((directory / CONTROL_FILE_NAME).read_bytes()).journaled


def ended(directory: Path) -> set[int]:
    """How many records the partitions of a directory that nobody serves have."""
    with StorageDirectory.open(directory) as opened:
        return {opened.partition(number).next_transaction_id for number in PARTITIONS}


async def prometheus(node: Node) -> str:
    answer = await get(node, "/metrics", Accept="text/plain")
    assert answer.status == 200
    return answer.body.decode()


async def append_to_all(node: Node, first: int, rounds: int = ROUNDS) -> None:
    """Through a peer for each partition, one request in flight in each."""

    async def one(partition: int) -> None:
        peer = await Peer.data(node)
        for number in range(first, first + rounds):
            answer = await peer.request(append(number, partition=partition))
            assert isinstance(answer, SuccessResponse)
        await peer.close()

    async with asyncio.TaskGroup() as group:
        for partition in PARTITIONS:
            group.create_task(one(partition))


def in_use(node: Node) -> CommitJournal:
    """The journal, in which something stands."""
    found = node.storage.journal
    assert found is not None
    assert any(area.partitions for area in found._areas), f"the journal was not used: {found.fault!r}"
    return found


async def until(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.001)


# --- what it shows ----------------------------------------------------------------------------------------------------


@LOOPS
def test_without_memory_for_an_entry_appends_are_answered_all_the_same(
    directory: Path, journal: Path, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    """They waited for ever, and so did a stop: the place of an entry that was never written was not given back."""
    encode, failed = commit_journal.encode_entry, []

    def encoded(*arguments: Any) -> bytes:
        if len(failed) < 2 * commit_journal.AT_A_TIME:
            failed.append(True)
            raise MemoryError
        return encode(*arguments)

    async def work() -> None:
        async with running(directory, journal=journal) as node:
            monkeypatch.setattr(commit_journal, "encode_entry", encoded)
            async with asyncio.timeout(20):
                await append_to_all(node, 0)
            assert failed
            assert in_use(node).fault is None

    run(work(), loop)
    assert ended(directory) == {ROUNDS}
    assert not journaled(directory)


@LOOPS
def test_a_node_shows_its_journal(directory: Path, journal: Path, caplog: pytest.LogCaptureFixture, loop: str) -> None:
    caplog.set_level(logging.INFO)

    async def work() -> None:
        async with running(directory, journal=journal) as node:
            await append_to_all(node, 0)
            assert in_use(node).fault is None
            answer = await get(node, "/health")
            assert answer.status == 200
            assert answer.health["journal"] == {"path": str(journal), "fault": None}
            assert "waltz_storage_journal 1.0" in await prometheus(node)
            assert journaled(directory)

    run(work(), loop)
    assert f"the commit journal {journal} is in force" in caplog.messages
    assert not journaled(directory)
    assert not journal.exists()
    assert ended(directory) == {ROUNDS}


def test_a_node_without_a_journal_shows_none(directory: Path) -> None:
    async def work() -> None:
        async with running(directory) as node:
            assert "journal" not in (await get(node, "/health")).health
            assert "waltz_storage_journal" not in await prometheus(node)

    run(work())


def test_the_journal_is_a_setting(tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text("storage: {port: 0, admin.port: 0, directory: /d}\nwaltzctl.journal: /fast/journal\n")
    assert load_configuration(SERVE, file=file).options.node.journal == Path("/fast/journal")
    given = [Given("directory", "/d"), Given("journal", "here")]
    assert load_configuration(SERVE, given=given).options.node.journal == Path("here")


def test_a_relative_path_is_one_from_the_working_directory(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As every other path that a node is told; it is kept as an absolute one, or from the storage directory if it is in there."""

    async def work(given: Path, kept: Path) -> None:
        async with running(Path("storage"), journal=given) as node:
            assert in_use_path(node) == read_path() == kept
            assert (await get(node, "/health")).health["journal"]["path"] == str(kept)

    def in_use_path(node: Node) -> Path:
        assert node.storage.journal is not None
        return node.storage.journal.path

    def read_path() -> Path:
        state = read_state(directory)
        assert state is not None
        return state.path

    monkeypatch.chdir(tmp_path)
    run(work(Path("journal"), tmp_path / "journal"))
    run(work(Path("storage/.waltzctl/journal"), directory / ".waltzctl" / "journal"))


# --- a start that fails -----------------------------------------------------------------------------------------------


def refused(directory: Path, journal: Path, error: type[WaltzError]) -> str:
    """What a node says that does not start; the directory is as it was."""
    control = (directory / CONTROL_FILE_NAME).read_bytes()

    async def work() -> str:
        with pytest.raises(error) as caught:
            await Node.start(node_options(directory, journal=journal), log=LOG)
        return str(caught.value)

    with asyncio.Runner() as runner:
        said = runner.run(work())
    assert (directory / CONTROL_FILE_NAME).read_bytes() == control
    assert ended(directory) == {0}, "and nobody holds it"
    return said


def test_a_device_without_room_for_the_journal_ends_the_start(directory: Path, journal: Path) -> None:
    """A limit of the system on the length of a file stands for it; what was written of the journal is gone."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (AREA_SIZE, hard))
    try:
        said = refused(directory, journal, DiskError)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(journal) in said
    assert os.strerror(errno.EFBIG) in said
    assert not journal.exists()


def test_what_is_not_a_journal_is_left_alone(directory: Path, tmp_path: Path) -> None:
    """A file of somebody else, an empty one too; a directory, a device that takes everything, one that is nowhere."""
    text, empty = tmp_path / "text", tmp_path / "empty"
    text.write_text("not a journal")
    empty.touch()
    for path in (text, empty):
        assert f"{path}: a file that is no commit journal stands there" in refused(directory, path, RefusedError)
    assert text.read_text() == "not a journal"
    for path in (tmp_path, Path("/dev/full"), tmp_path / "nowhere" / "journal"):
        assert str(path) in refused(directory, path, DiskError)


def test_a_start_that_was_killed_while_it_made_the_journal_is_in_nobodys_way(
    directory: Path, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when half of it was written: nothing was marked, and the next start replaces what it left."""
    real, beside = disk.WritableFile.write_at, journal.with_name(journal.name + disk.TEMPORARY_SUFFIX)

    def until_half(self: disk.WritableFile, offset: int, data: Any) -> None:
        if self.path == beside and offset >= AREA_SIZE:
            raise SystemExit
        real(self, offset, data)

    with monkeypatch.context() as patch, StorageDirectory.open(directory) as opened:
        patch.setattr(disk.WritableFile, "write_at", until_half)
        patch.setattr(disk, "unlink", lambda _: None)  # a process that is killed tidies nothing up
        with pytest.raises(SystemExit):
            opened.begin_journal(journal, log=LOG)
    assert not journal.exists()
    assert beside.stat().st_size == AREA_SIZE
    assert not journaled(directory)

    async def work() -> None:
        async with running(directory, journal=journal) as node:
            await append_to_all(node, 0)
            in_use(node)

    run(work())
    assert ended(directory) == {ROUNDS}


# --- a device that fails ----------------------------------------------------------------------------------------------


@pytest.mark.turns(10)
@LOOPS
@pytest.mark.parametrize("failing", ["fdatasync", "pwrite"])
def test_a_journal_that_cannot_be_written_costs_nothing_but_speed(
    directory: Path,
    journal: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failing: str,
    loop: str,
) -> None:
    """The system refuses to flush it, or has no room: appends go on, all of them; health says so, and the next start is well."""
    number = errno.EIO if failing == "fdatasync" else errno.ENOSPC
    real = getattr(os, failing)

    def refuse(descriptor: int, *rest: Any) -> Any:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(journal):
            raise OSError(number, os.strerror(number))
        return real(descriptor, *rest)

    async def work() -> None:
        async with running(directory, journal=journal) as node:
            await append_to_all(node, 0)
            found = in_use(node)
            with monkeypatch.context() as patch:
                patch.setattr(os, failing, refuse)
                await append_to_all(node, ROUNDS)
                await until(lambda: not journaled(directory))
                answer = await get(node, "/health")
            [problem] = unwell(answer)
            assert problem.startswith(f"{journal}: the commit journal is not used any more: ")
            assert os.strerror(number) in problem
            assert "replace the device and restart the node" in problem
            assert answer.health["journal"] == {"path": str(journal), "fault": str(found.fault)}
            assert answer.health["partitions"]["out_of_service"] == {}
            assert "waltz_storage_journal 0.0" in await prometheus(node)
            await append_to_all(node, 2 * ROUNDS)
            await until(lambda: not journal.exists())

    run(work(), loop)
    assert len([line for line in caplog.messages if "are not journaled any more" in line]) == 1
    assert ended(directory) == {3 * ROUNDS}

    async def again() -> None:
        async with running(directory, journal=journal) as node:
            await append_to_all(node, 3 * ROUNDS)
            in_use(node)
            assert (await get(node, "/health")).status == 200

    run(again(), loop)
    assert ended(directory) == {4 * ROUNDS}


def test_a_journal_that_hangs_stops_those_only_that_wait_for_it(directory: Path, journal: Path) -> None:
    """Two passes are with the journal; who comes later flushes its own segment.  When the device is back they are answered."""
    hanging: list[Path] = []

    def hangs(path: Path) -> bool:
        hanging.append(path)
        return path == journal or path.parent == directory / "7"

    async def work() -> None:
        async with running(directory, journal=journal) as node:
            await append_to_all(node, 0)
            peers = [await Peer.data(node) for _ in PARTITIONS]

            def send(partition: int) -> None:
                peers[partition].writer.write(storage.encode(append(ROUNDS, partition=partition)))

            with StuckDisk(hangs) as stuck:
                send(7)  # alone, with its own segment: so the others find the node at work, and take part in passes
                await stuck.reached()
                for partition in (0, 1):
                    send(partition)
                    await until(lambda: journal in hanging)
                await asyncio.sleep(0.2)
                assert "waltz_storage_journal 1.0" in await prometheus(node), "nothing that is shown waits for it"
                for partition in (2, 3, 4, 5, 6):
                    answer = await peers[partition].request(append(ROUNDS, partition=partition))
                    assert isinstance(answer, SuccessResponse)
            for partition in (0, 1, 7):
                assert isinstance(await peers[partition].receive(), SuccessResponse)
            for peer in peers:
                await peer.close()

    run(work())
    assert ended(directory) == {ROUNDS + 1}
