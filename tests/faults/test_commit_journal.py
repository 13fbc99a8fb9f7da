"""Nodes with a commit journal as processes: what a stop, a kill and a lost journal leave."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.running import Answer, run
from tests.faults.served import Ledger, ServedNode, compare_everything, load, records_of, take_stock
from tests.interop.processes import Stage
from waltzctl.engine.durable import disk
from waltzctl.engine.inspect.verify import VerifyOptions, verify
from waltzctl.engine.storage.directory import create_cluster
from waltzctl.engine.storage.journal_state import read_state, state_path
from waltzctl.formats.control import CONTROL_FILE_NAME, ControlHeader, Layout
from waltzctl.formats.journal_file import AREAS, read_areas
from waltzctl.formats.segment import HEADER_SIZE, SegmentHeader

PARTITIONS = 6
CLIENTS = 2
APPENDS = 150
KILLS = 3
SIZES = (1, 1, 1, 1, 7, 1, 40)
FREE = ("--port", "0", "--plaintext")
SEGMENTS = ("--segment-size", "128KiB")
"""Small ones, so that they are also rolled over."""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path / "logs") as made:
        yield made


def journaled(directory: Path) -> bool:
    """Whether the control file says that records may stand in a journal only."""
    return ControlHeader.decode((directory / CONTROL_FILE_NAME).read_bytes()).journaled


def contents(directory: Path) -> dict[str, bytes]:
    """Every file of a directory but the lock, which names whoever had it last."""
    files = {str(path.relative_to(directory)): path for path in directory.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if name != f"{disk.STATE_DIRECTORY}/lock"}


def timeless(name: str, raw: bytes) -> bytes:
    """A file without the time at which its segment was made."""
    if not name.endswith((".seg", ".idx")):
        return raw
    return replace(SegmentHeader.decode(raw[:HEADER_SIZE]), created=0).encode() + raw[HEADER_SIZE:]


def entries(directory: Path) -> int:
    """How many entries the journal of a marked directory holds."""
    state = read_state(directory)
    assert state is not None
    raw = state.path.read_bytes()
    size = len(raw) // AREAS
    return sum(len(one.entries) for one in read_areas(state.journal_id, [raw[:size], raw[size:]]))


def damage_of(directory: Path) -> list[str]:
    """What a verification says of lost or doubtful records."""
    *findings, _ = verify([directory], VerifyOptions())
    return [one.message for one in findings if one.severity == "damage"]  # type: ignore[union-attr]


async def append_all(node: ServedNode, session: int) -> None:
    """So many appends to each partition, one under way in each; every client has its share of them."""
    clients = [await node.client() for _ in range(CLIENTS)]

    async def one(partition: int) -> None:
        client, first = clients[partition % CLIENTS], 0
        await client.set_low_water_mark(session, partition, -1)
        for number in range(APPENDS):
            count = SIZES[number % len(SIZES)]
            await client.append(session, partition, records_of(partition, first, count))
            first += count

    async with asyncio.TaskGroup() as group:
        for partition in range(PARTITIONS):
            group.create_task(one(partition))
    for client in clients:
        await client.close()


async def load_and_kill(node: ServedNode, session: int, ledgers: Sequence[Ledger], more: int) -> None:
    """Append through several clients until so many records are acknowledged, then SIGKILL."""
    await take_stock(node, session, ledgers)
    clients = [await node.client() for _ in range(CLIENTS)]
    loading = [
        asyncio.create_task(load(client, session, ledgers[number::CLIENTS], SIZES, in_flight=1))
        for number, client in enumerate(clients)
    ]
    reached = sum(ledger.acknowledged for ledger in ledgers) + more
    while sum(ledger.acknowledged for ledger in ledgers) < reached:
        assert not any(one.done() for one in loading), "the load ended by itself"
        await asyncio.sleep(0.001)
    node.kill()
    await asyncio.gather(*loading)
    for client in clients:
        await client.close()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "storage"
    create_cluster([made], num_partitions=PARTITIONS, layout=Layout.RELEASED)
    return made


def killed(stage: Stage, directory: Path, journal: Path, more: int = 2000) -> list[Ledger]:
    """A directory whose node was killed under load: marked, with something in its journal."""
    node, ledgers = ServedNode(stage, directory, *SEGMENTS), [Ledger(partition) for partition in range(PARTITIONS)]
    node.start("--journal", str(journal))
    asyncio.run(load_and_kill(node, 1, ledgers, more))
    assert journaled(directory)
    assert entries(directory) > 20, "the journal was hardly used"
    return ledgers


def refused(directory: Path, *arguments: object) -> Answer:
    """The answer of a node that does not start."""
    answer = run("serve", directory, *FREE, *arguments)
    assert answer.status not in (0, 1)
    return answer


@pytest.mark.turns(8)
def test_a_stop_leaves_what_a_node_without_a_journal_leaves(stage: Stage, tmp_path: Path, directory: Path) -> None:
    """Byte for byte, but for the times at which segments were made; so a release may open it."""
    node = ServedNode(stage, directory)
    node.start()  # makes the first segments
    assert node.stop() == 0
    other, journal = tmp_path / "other", tmp_path / "journal"
    shutil.copytree(directory, other)
    for place, options in ((directory, ["--journal", str(journal)]), (other, [])):
        node = ServedNode(stage, place, *SEGMENTS)
        node.start(*options)
        assert journaled(place) is bool(options)
        assert journal.exists() is bool(options)
        asyncio.run(append_all(node, 1))
        assert not options or entries(place) > 20, "the journal was hardly used"
        assert node.stop() == 0
    assert not journaled(directory)
    assert not Path(state_path(directory)).exists()
    assert not journal.exists()
    found, wanted = contents(directory), contents(other)
    assert found.keys() == wanted.keys()
    assert len([name for name in found if name.endswith(".seg")]) > PARTITIONS, "nothing was rolled over"
    assert [name for name in found if timeless(name, found[name]) != timeless(name, wanted[name])] == []
    *findings, summary = verify([directory], VerifyOptions(exclusive=True))
    assert (findings, summary.status) == ([], "clean")


@pytest.mark.turns(8)
@pytest.mark.parametrize("inside", [False, True])
def test_an_acknowledged_transaction_outlives_kills(
    stage: Stage, tmp_path: Path, directory: Path, *, inside: bool
) -> None:
    """Three kills under load; after each the node starts again, with a journal and without, and has everything in its order."""
    source = random.Random(7)
    journal = (directory / disk.STATE_DIRECTORY if inside else tmp_path) / "journal"
    ledgers = [Ledger(partition) for partition in range(PARTITIONS)]
    session = 0
    for _ in range(KILLS):
        session += 1
        node = ServedNode(stage, directory, *SEGMENTS)
        node.start("--journal", str(journal))
        asyncio.run(load_and_kill(node, session, ledgers, source.randrange(300, 2000)))
        assert journaled(directory)
        assert damage_of(directory) == []
        copy = tmp_path / f"copy-{session}"
        for with_journal in (True, False):
            if with_journal and inside:
                continue
            if with_journal:
                shutil.copytree(directory, copy)
                shutil.copy(journal, f"{journal}.kept")
            node = ServedNode(stage, directory, *SEGMENTS)
            node.start(*(["--journal", str(journal)] if with_journal else []))
            assert journaled(directory) is with_journal
            asyncio.run(take_stock(node, session + 1, ledgers))
            asyncio.run(compare_everything(node, session + 1, ledgers))
            assert node.stop() == 0
            assert not journaled(directory)
            assert not journal.exists()
            if with_journal:  # the same crash once more
                shutil.rmtree(directory)
                copy.rename(directory)
                Path(f"{journal}.kept").rename(journal)
        session += 1
    *findings, summary = verify([directory], VerifyOptions(exclusive=True))
    assert (findings, summary.status) == ([], "clean")


@pytest.mark.turns(8)
def test_a_journal_that_is_gone_ends_the_start_and_changes_nothing(
    stage: Stage, tmp_path: Path, directory: Path
) -> None:
    """Somebody removed it, or its device is not mounted: when it is back the node starts, with everything."""
    journal = tmp_path / "journal"
    ledgers = killed(stage, directory, journal)
    journal.rename(tmp_path / "elsewhere")
    before = contents(directory)
    for options in ([], ["--journal", journal], ["--journal", tmp_path / "another"]):
        answer = refused(directory, *options)
        assert answer.status == 4
        assert f"{journal}: is not there, and acknowledged records may stand in this commit journal" in answer.err
        assert "bring its device back" in answer.err
        assert "recover --forget-journal" in answer.err
        assert contents(directory) == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "logs", "storage"]
    (tmp_path / "elsewhere").rename(journal)
    node = ServedNode(stage, directory, *SEGMENTS)
    node.start("--journal", str(tmp_path / "another"))
    assert not journal.exists()
    asyncio.run(take_stock(node, 2, ledgers))
    asyncio.run(compare_everything(node, 2, ledgers))
    assert node.stop() == 0
    assert not (tmp_path / "another").exists()


@pytest.mark.turns(8)
def test_a_copy_of_a_marked_directory_leaves_the_journal_to_the_original(
    stage: Stage, tmp_path: Path, directory: Path
) -> None:
    """Somebody copies what a killed node left and serves the copy: it has what the journal holds, and so has the original."""
    journal, copy = tmp_path / "journal", tmp_path / "copy"
    ledgers = killed(stage, directory, journal)
    shutil.copytree(directory, copy)
    held = journal.read_bytes()
    for place in (copy, directory):
        assert journal.read_bytes() == held
        node = ServedNode(stage, place, *SEGMENTS)
        node.start()
        asyncio.run(take_stock(node, 2, ledgers))
        asyncio.run(compare_everything(node, 2, ledgers))
        assert node.stop() == 0
        assert not journaled(place)
    assert not journal.exists()


@pytest.mark.turns(10)
def test_a_journal_belongs_to_one_node(stage: Stage, tmp_path: Path, directory: Path) -> None:
    """A second one that is told the same file does not start; the first goes on, also after a kill."""
    journal = tmp_path / "journal"
    other = tmp_path / "other"
    create_cluster([other], num_partitions=PARTITIONS, layout=Layout.RELEASED)
    node = ServedNode(stage, directory)
    node.start("--journal", str(journal))
    before = journal.stat().st_ino
    answer = refused(other, "--journal", journal)
    assert answer.status == 13
    assert f"{journal}: the commit journal of another directory stands there" in answer.err
    assert "name another path" in answer.err
    assert not journaled(other)
    assert journal.stat().st_ino == before
    node.kill()
    assert refused(other, "--journal", journal).status == 13
    node.start("--journal", str(journal))
    assert node.stop() == 0
    assert not journal.exists()


@pytest.mark.turns(10)
def test_a_relative_path_is_one_from_where_the_node_was_started(
    stage: Stage, tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the paths of key stores are; the next start finds the journal from anywhere."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    node = ServedNode(stage, directory, *SEGMENTS)
    node.start("--journal", "journal")
    ledgers = [Ledger(partition) for partition in range(PARTITIONS)]
    asyncio.run(load_and_kill(node, 1, ledgers, 300))
    state = read_state(directory)
    assert state is not None
    assert state.path == tmp_path / "here" / "journal"
    assert state.path.exists()
    monkeypatch.chdir(tmp_path)
    node.start()
    asyncio.run(take_stock(node, 2, ledgers))
    asyncio.run(compare_everything(node, 2, ledgers))
    assert node.stop() == 0
    assert list((tmp_path / "here").iterdir()) == []
    assert not (directory / CONTROL_FILE_NAME).with_name("journal").exists()
