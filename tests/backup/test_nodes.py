"""A node is backed up through its port: its records are the pages that its directory has, whatever moves meanwhile."""

import asyncio
import random
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.backup.vaults import PIECE, backup, codes, findings, records_of, restored, vault
from tests.builders import KEY, build_directory, digest
from tests.cli.damage import damage_record, segment_of
from tests.client.nodes import data_of, records
from tests.client.peers import ReleasedAdmin, scripted
from tests.descriptors import let_syncs_fail
from tests.node.running import run, running
from waltzctl.engine.backup import backup_writer, node_backup
from waltzctl.engine.backup.backup_restore import RestoreOptions, restore_backup
from waltzctl.engine.backup.node_backup import create_node_backup
from waltzctl.engine.backup.section_plan import SourceChangedError
from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.client.partition_readings import ClusterIdentity
from waltzctl.engine.errors import InvalidRequestError, RemoteError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.verification import VerifyOptions
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.node.node import Node
from waltzctl.engine.pages.blob_stats import BlobSpan
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.storage.storage_options import StorageOptions
from waltzctl.engine.vault.vault_reader import VaultReader
from waltzctl.formats.control import decode_control
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, Record
from waltzctl.formats.vault import BackupHead, Namespace
from waltzctl.formats.wire import admin
from waltzctl.formats.wire.failure import Failure
from waltzctl.formats.wire.records import WireRecord

REACH = ConnectionFactory(plaintext=True)
CLUSTER = ClusterIdentity(KEY, 3)
SEGMENT = 3000


def address_of(node: Node) -> Address:
    return Address(node.addresses.host, node.addresses.admin_port)


async def taken(place: Path, address: Address, **given: Any) -> BackupHead:
    return await create_node_backup(place, address, REACH, piece_limit=PIECE, segment_size=SEGMENT, **given)


def verified(path: Path, *, released: bool = False) -> list[Finding]:
    options = VerifyOptions(for_released=released)
    return [one for one in verify([path], options) if isinstance(one, Finding)]


def log_of(directory: Path, partition: int = 0) -> list[Record]:
    return [one for path in sorted((directory / str(partition)).glob("*.seg")) for one in records_of(path)]


@pytest.mark.parametrize("password", [None, b"secret"])
def test_the_pages_are_those_of_its_directory(tmp_path: Path, password: bytes | None) -> None:
    source = build_directory(tmp_path / "source", {0: 230, 2: 41}, num_partitions=4, per_segment=37)
    place = vault(tmp_path, password)

    async def work() -> None:
        async with running(source) as node:
            before = digest(source)
            first = backup(place, source, password)
            head = await taken(place, address_of(node), password=password, tag="night")
            assert (head.pages, head.new_pages) == (first.pages, 0)
            assert (head.source, head.tag, head.live, head.damaged) == (address_of(node).url, "night", True, 0)
            assert (head.cluster_key, head.num_partitions) == (KEY, 4)
            assert [(one.partition, one.first_transaction_id, one.last_transaction_id) for one in head.partitions] == [
                (0, 0, 229), (2, 0, 40),
            ]  # fmt: skip
            assert {name: one for name, one in digest(source).items() if not name.startswith(".")} == {
                name: one for name, one in before.items() if not name.startswith(".")
            }
            assert (await taken(place, address_of(node), password=password)).new_pages == 0

    run(work())
    restored(place, "latest", tmp_path / "back", password=password)
    assert verified(tmp_path / "back", released=True) == []
    for partition in (0, 2):
        assert log_of(tmp_path / "back", partition) == log_of(source, partition)
        segments = sorted((tmp_path / "back" / str(partition)).glob("*.seg"))
        assert all(SEGMENT < path.stat().st_size < SEGMENT + 400 for path in segments[:-1])
    ours, theirs = (decode_control((one / "waltz-storage.ctl").read_bytes()) for one in (tmp_path / "back", source))
    for one, other in zip(ours.partitions, theirs.partitions, strict=True):
        assert one.current_struct is not None
        assert other.current_struct is not None
        assert one.current_struct.marks == other.current_struct.marks
        assert (one.current_struct.assigned, one.current_struct.available) == (one.partition in (0, 2), True)


def test_the_first_backup_may_be_the_nodes(tmp_path: Path) -> None:
    source = build_directory(tmp_path / "source", {0: 230, 1: 0}, per_segment=37)
    place = vault(tmp_path)

    async def work() -> None:
        async with running(source) as node:
            head = await taken(place, address_of(node))
            assert head.new_pages == head.pages > 3
            assert [(one.first_transaction_id, one.last_transaction_id) for one in head.partitions] == [
                (0, 229), (None, None),
            ]  # fmt: skip

    run(work())
    assert backup(place, source).new_pages == 0
    assert findings(place) == []
    options = RestoreOptions(until={0: 100}, partitions=frozenset({0}))
    restored(place, _first(place), tmp_path / "back", options)
    assert len(log_of(tmp_path / "back")) == 101
    assert verified(tmp_path / "back") == []
    restored(place, _first(place), tmp_path / "rejoin", RestoreOptions(for_rejoin=True))
    assert len(log_of(tmp_path / "rejoin")) == 115, "up to the low-water mark"
    assert verified(tmp_path / "rejoin") == []


def _first(place: Path) -> str:
    return next(head.name for head in VaultReader.open(place).heads() if isinstance(head, BackupHead))


def test_segments_are_those_that_a_node_writes(tmp_path: Path) -> None:
    """The same records, appended in any batches, are in the same segments."""
    source = build_directory(tmp_path / "source", {0: 0})
    sizes = random.Random(7)
    made = [
        WireRecord.make(number, RequestId(1, 1, 0, number), 0, bytes(sizes.choice([0, 3, 400, 1500])))
        for number in range(400)
    ]
    place = vault(tmp_path)

    async def work() -> None:
        async with (
            running(source, storage=StorageOptions(segment_size_threshold=SEGMENT)) as node,
            data_of(node) as port,
        ):
            await port.set_low_water_mark(5, 0, -1)
            while made:
                count = sizes.randrange(1, 40)
                await port.append(5, 0, made[:count])
                del made[:count]
            await taken(place, address_of(node))

    run(work())
    restored(place, "latest", tmp_path / "back")
    for name in sorted(path.name for path in (source / "0").iterdir()):
        content = [(one / "0" / name).read_bytes()[HEADER_SIZE:] for one in (source, tmp_path / "back")]
        assert content[0] == content[1], name
    assert len(list((tmp_path / "back" / "0").iterdir())) == len(list((source / "0").iterdir()))


def test_some_partitions_and_a_large_control_file(tmp_path: Path) -> None:
    source = build_directory(tmp_path / "source", {0: 20, 7: 30, 50: 10}, num_partitions=60)
    place = vault(tmp_path)

    async def work() -> None:
        async with running(source) as node:
            with pytest.raises(InvalidRequestError, match="not assigned to this node: partition 1"):
                await taken(place, address_of(node), partitions=frozenset({0, 1}))
            head = await taken(place, address_of(node), partitions=frozenset({7, 50}))
            assert [one.partition for one in head.partitions] == [7, 50]
            assert (await taken(place, address_of(node), partitions=frozenset({7, 50}))).new_pages == 0

    run(work())
    restored(place, "latest", tmp_path / "back")
    assert verified(tmp_path / "back") == []
    control = decode_control((tmp_path / "back" / "waltz-storage.ctl").read_bytes())
    assert [one.partition for one in control.partitions if one.current_struct and one.current_struct.assigned] == [
        7,
        50,
    ]


# ---- what is not read again --------------------------------------------------------------------------------------------


class Scripted(ReleasedAdmin):
    """A released node of which every answer can be changed; it is of `CLUSTER`."""

    def __init__(self, made: list[WireRecord], **given: int) -> None:
        super().__init__(made, **given)
        self.session, self.truncations = 3, 0
        self.before_records: Callable[[int], None] = lambda first: None

    @property
    def metrics(self) -> str:
        counted = f'"counters":{{"waltz-storage.partition-0.truncate-request":{{"count":{self.truncations}}}}}'
        gauges = super().metrics.replace('session-id":{"value":3', f'session-id":{{"value":{self.session}')
        return gauges[:-1] + "," + counted + "}"

    def _answer(self, request: admin.AdminMessage) -> admin.AdminMessage:
        match request:
            case admin.OpenRequest(cluster_key=key, num_partitions=count):
                if (key, count) == (CLUSTER.cluster_key, CLUSTER.num_partitions):
                    return admin.SuccessResponse(-1)
                text = "com.wepay.Exception: Provided cluster key is inconsistent with key in control file."
                return admin.FailureResponse(-1, Failure(text))
            case admin.RecordListRequest(first_transaction_id=first):
                self.before_records(first)
        return super()._answer(request)

    def put(self, made: list[WireRecord]) -> None:
        self.records |= {one.transaction_id: one for one in made}
        self.last = max(self.records)


@asynccontextmanager
async def node_of(script: Scripted) -> AsyncIterator[Address]:
    async with scripted(script) as address:
        yield address


def other(first: int, count: int) -> list[WireRecord]:
    return [replace(one, header=77) for one in records(first, count)]


@pytest.mark.turns(10)
def test_what_cannot_have_changed_is_not_read_again(tmp_path: Path) -> None:
    place, script = vault(tmp_path), Scripted(records(0, 1000), mark=400)

    async def work() -> None:
        async with node_of(script) as address:
            first = await taken(place, address, cluster=CLUSTER)

            async def again() -> tuple[int, BackupHead]:
                script.asked.clear()
                head = await taken(place, address)  # the cluster is known from the backup
                assert findings(place) == []
                return min(asked for asked, _ in script.asked), head

            low, head = await again()
            assert low > 800
            assert (head.new_pages, head.pages) == (0, first.pages)
            script.put(records(1000, 500))
            low, head = await again()
            assert low > 800, "the same session only appends"
            assert 0 < head.new_pages < head.pages / 2
            script.session = 4
            low, head = await again()
            assert 300 < low <= 400, "a recovery takes nothing back up to the mark"
            assert head.new_pages == 0
            script.mark, script.session = 1400, 5
            script.records = {number: one for number, one in script.records.items() if number <= 500}
            script.put(other(501, 1000))
            low, head = await again()
            assert 300 < low <= 400
            script.records |= {one.transaction_id: one for one in other(1300, 101)}
            low, head = await again()
            assert low > 1300
            script.records |= {one.transaction_id: replace(one, header=5) for one in records(0, 1501)}
            low, head = await again()
            assert low == 0, "what is read once more differs, and so all of it is read"
            assert head.new_pages == head.pages

    run(work())
    restored(place, "latest", tmp_path / "back")
    assert verified(tmp_path / "back") == []
    assert {one.header for one in log_of(tmp_path / "back")} == {5}
    assert len(log_of(tmp_path / "back")) == 1501


def test_a_log_that_is_shorter_now(tmp_path: Path) -> None:
    place, script = vault(tmp_path), Scripted(records(0, 600), mark=100)

    async def work() -> None:
        async with node_of(script) as address:
            await taken(place, address, cluster=CLUSTER)
            for last in (350, 100, 5):
                script.records = {number: one for number, one in script.records.items() if number <= last}
                script.last = last
                script.mark = min(script.mark, last)
                head = await taken(place, address)
                assert (head.partitions[0].last_transaction_id, head.damaged, head.new_pages <= 2) == (last, 0, True)

    run(work())
    assert findings(place) == []


# ---- one moment --------------------------------------------------------------------------------------------------------


def truncating(script: Scripted, at: int, after: int, *, counted: bool, session: bool) -> None:
    """When record `at` is asked for, all behind `after` becomes other records."""

    def change(first: int) -> None:
        if first >= at:
            script.before_records = lambda _: None
            script.records |= {one.transaction_id: one for one in other(after + 1, script.last - after)}
            script.truncations += counted
            script.session += session

    script.before_records = change


@pytest.mark.turns(8)
@pytest.mark.parametrize(("counted", "session"), [(True, False), (False, True)])
def test_a_truncation_between_two_readings(tmp_path: Path, counted: bool, session: bool) -> None:
    place, script = vault(tmp_path), Scripted(records(0, 3000), mark=400)
    truncating(script, 1000, 500, counted=counted, session=session)

    async def work() -> None:
        async with node_of(script) as address:
            await taken(place, address, cluster=CLUSTER)
            firsts = [first for first, _ in script.asked]
            assert firsts.count(0) == 1, "what is at or below the mark is not read again"
            assert any(300 < one <= 400 for one in firsts[5:]), "what is above it is"

    run(work())
    restored(place, "latest", tmp_path / "back")
    assert [one.header == 77 for one in log_of(tmp_path / "back")] == [number > 500 for number in range(3000)]
    assert findings(place) == []


def test_other_records_at_the_end_are_seen_without_a_count(tmp_path: Path) -> None:
    place, script = vault(tmp_path), Scripted(records(0, 3000), mark=400)
    truncating(script, 2400, 2970, counted=False, session=False)

    async def work() -> None:
        async with node_of(script) as address:
            await taken(place, address, cluster=CLUSTER)

    run(work())
    restored(place, "latest", tmp_path / "back")
    assert [one.header == 77 for one in log_of(tmp_path / "back")] == [number > 2970 for number in range(3000)]


def test_sessions_that_follow_one_another_cost_what_they_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log server that makes checkpoints begins a session now and then, more often than a long log can be read."""
    place, script = vault(tmp_path), Scripted(records(0, 3000), mark=2900)
    monkeypatch.setattr(node_backup, "_PAUSE", 0)
    sessions = []

    def begin(first: int) -> None:
        if first > 2000 and len(sessions) < 6:
            sessions.append(script.session)
            script.mark = script.last
            script.session += 1
            script.truncations += 1
            script.put(records(script.last + 1, 50))

    script.before_records = begin

    async def work() -> None:
        async with node_of(script) as address:
            head = await taken(place, address, cluster=CLUSTER)
            assert head.partitions[0].last_transaction_id == 3299
            assert head.num_pages == head.pages + 4, "pieces of the partition, and two sections: nothing else was kept"
            firsts = [first for first, _ in script.asked]
            assert firsts.count(0) == 1
            assert len(firsts) < 40

    run(work())
    restored(place, "latest", tmp_path / "back")
    assert [one.transaction_id for one in log_of(tmp_path / "back")] == list(range(3300))
    assert verified(tmp_path / "back") == []
    assert findings(place) == []


def test_what_never_stands_still_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, script = vault(tmp_path), Scripted(records(0, 300), mark=40)
    monkeypatch.setattr(node_backup, "_PAUSE", 0)

    def count(_: int) -> None:
        script.truncations += 1

    script.before_records = count

    async def work() -> None:
        async with node_of(script) as address:
            with pytest.raises(SourceChangedError, match="partition 0 changed while it was read: it was truncated"):
                await taken(place, address, cluster=CLUSTER)
            assert list(VaultReader.open(place).heads()) == []
            script.before_records = lambda _: None
            assert (await taken(place, address, cluster=CLUSTER)).new_pages

    run(work())
    assert findings(place) == [], "no room was lost"


@pytest.mark.turns(8)
def test_under_sessions_that_append_and_truncate(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Every backup is a beginning of the log as it was at some moment."""
    source, place = build_directory(tmp_path / "source", {0: 0}), vault(tmp_path)
    rounds = 60 if request.config.getoption("--long") else 8
    states: list[tuple[int, ...]] = [()]
    dice = random.Random(11)

    async def live(node: Node) -> None:
        log: list[int] = []
        marks = -1
        async with data_of(node) as port:
            session = 3
            while True:  # as a server does that takes the partition over again and again
                session += 1
                keep = dice.randint(marks, len(log) - 1)
                await port.truncate(session, 0, keep)
                log = log[: keep + 1]
                states.append(tuple(log))
                for _ in range(dice.randrange(1, 6)):
                    new = [replace(one, header=session) for one in records(len(log), dice.randrange(1, 30))]
                    await port.append(session, 0, new)
                    log += [session] * len(new)
                    states.append(tuple(log))
                marks = len(log) - 1
                await port.set_low_water_mark(session, 0, marks)
                await asyncio.sleep(dice.choice([0, 0, 0.3]))

    async def work() -> None:
        async with running(source) as node:
            writer = asyncio.ensure_future(live(node))
            heads = []
            for _ in range(rounds):
                before = len(states)
                while len(states) == before and not writer.done():
                    await asyncio.sleep(0.001)
                heads.append(await taken(place, address_of(node)))
            assert not writer.done(), writer.exception()
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
        assert len({head.partitions[0].last_transaction_id for head in heads}) > 1
        for number, head in enumerate(heads):
            target = tmp_path / f"back-{number}"
            restore_backup(place, head.name, target)
            assert verified(target) == []
            found = tuple(one.header for one in log_of(target))
            assert any(state[: len(found)] == found for state in states), number

    run(work())
    assert findings(place) == []


def test_a_log_of_one_record_that_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, script = vault(tmp_path), Scripted(records(0, 1), mark=-1)
    monkeypatch.setattr(node_backup, "_PAUSE", 0)
    original = node_backup.read_partitions
    times: list[int] = []

    async def cut_at_the_end(*given: Any) -> Any:
        times.append(1)
        if len(times) == 4:  # after the partition was read
            script.records, script.last = {}, -1
        return await original(*given)

    monkeypatch.setattr(node_backup, "read_partitions", cut_at_the_end)

    async def work() -> None:
        async with node_of(script) as address:
            head = await taken(place, address, cluster=CLUSTER)
            assert head.partitions[0].last_transaction_id is None
            assert head.new_pages == 0

    run(work())
    assert findings(place) == []


def test_a_damaged_control_file_of_the_last_backup_costs_a_reading(tmp_path: Path) -> None:
    source, place = build_directory(tmp_path / "source", {0: 120}, num_partitions=60), vault(tmp_path)

    async def work() -> None:
        async with running(source) as node:
            first = await taken(place, address_of(node))
            blob = place / "blob" / "blobfile_1"
            reader = VaultReader.open(place)
            entry = reader.entry(Namespace.DATA, first.first_page + first.storage.first_piece)
            assert entry is not None
            content = bytearray(blob.read_bytes())
            content[entry.offset + 20] ^= 1
            blob.write_bytes(content)
            second = await taken(place, address_of(node))
            assert second.pages == first.pages

    run(work())


# ---- damage ------------------------------------------------------------------------------------------------------------


def test_what_the_node_does_not_give_out_is_missing(tmp_path: Path) -> None:
    source, place = build_directory(tmp_path / "source", {0: 200, 1: 10}, per_segment=300), vault(tmp_path)

    async def work() -> None:
        async with running(source) as node:
            for number in (20, 21, 140):
                damage_record(segment_of(source), number)
            head = await taken(place, address_of(node))
            assert (head.damaged, head.partitions[0].last_transaction_id) == (2, 199)
            assert (await taken(place, address_of(node))).new_pages == 0

    run(work())
    restored(place, "latest", tmp_path / "back")
    assert codes(verified(tmp_path / "back")) == {"segment-gap"}
    kept = {one.transaction_id for one in log_of(tmp_path / "back")}
    assert kept == set(range(200)) - {20, 21, 140}
    assert findings(place) == [], "the vault itself is whole"


@pytest.mark.parametrize("mark", [-1, 2])
def test_a_partition_of_which_the_node_reads_nothing_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: int
) -> None:
    """A flush failed when it was opened, all of it is of its first session: the backup had none of it and was called sound."""
    source, place = build_directory(tmp_path / "source", {0: 10, 1: 3}, local_low_water_mark=mark), vault(tmp_path)
    with segment_of(source).open("ab") as file:
        file.write(b"torn")
    let_syncs_fail(monkeypatch, "/source/.waltzctl/quarantine/")

    async def work() -> None:
        async with running(source) as node:
            head = await taken(place, address_of(node))
            assert (head.damaged, head.partitions[0].last_transaction_id) == (1, None)
            assert (await taken(place, address_of(node), partitions=frozenset({1}))).damaged == 0

    run(work())


@pytest.mark.parametrize("lost", [0, 100])
def test_what_a_node_cannot_reach_behind_lost_records_is_damage(tmp_path: Path, lost: int) -> None:
    """It is quarantined, and ends before the gap: at its mark or above that nothing else told of the rest."""
    mark = -1 if lost == 0 else 60
    source = build_directory(tmp_path / "source", {0: 200, 1: 70}, per_segment=50, local_low_water_mark=mark)
    place = vault(tmp_path)
    for path in (source / "0").glob(f"{lost:019}.*"):
        path.unlink()

    async def work() -> None:
        async with running(source) as node:
            for _ in ("whole", "incremental"):
                head = await taken(place, address_of(node))
                assert (head.damaged, head.partitions[0].last_transaction_id) == (1, lost - 1 if lost else None)
            assert (await taken(place, address_of(node), partitions=frozenset({1}))).damaged == 0

    run(work())


def test_damaged_data_is_kept_as_it_came(tmp_path: Path) -> None:
    made = records(0, 60)
    for number in (7, 8, 59):
        made[number] = replace(made[number], data=b"damaged")
    place, script = vault(tmp_path), Scripted(made)

    async def work() -> None:
        async with node_of(script) as address:
            head = await taken(place, address, cluster=CLUSTER)
            assert (head.damaged, head.partitions[0].last_transaction_id) == (3, 59)

    run(work())
    restored(place, "latest", tmp_path / "back")
    found = [one for one in verified(tmp_path / "back") if one.severity != "note"]
    assert [(one.code, one.transaction_id) for one in found] == [("data-checksum", number) for number in (7, 8, 59)]
    assert [one.data for one in log_of(tmp_path / "back")] == [one.data for one in made]


def test_an_end_below_the_mark_is_damage(tmp_path: Path) -> None:
    place, script = vault(tmp_path), Scripted(records(0, 60), mark=80)

    async def work() -> None:
        async with node_of(script) as address:
            assert (await taken(place, address, cluster=CLUSTER)).damaged == 1

    run(work())
    restored(place, "latest", tmp_path / "back")
    assert "acknowledged-missing" in codes(verified(tmp_path / "back"))


def test_a_mark_that_rises_between_two_answers_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """End and mark are two answers: what was appended and marked in between is no damage."""
    place, script = vault(tmp_path), Scripted(records(0, 60), mark=80)
    monkeypatch.setattr(node_backup, "_PAUSE", 0)
    original = node_backup.read_partitions
    times: list[int] = []

    async def growing(*given: Any) -> Any:
        found = await original(*given)
        times.append(1)
        if len(times) == 2:
            script.put(records(60, 30))
        return found

    monkeypatch.setattr(node_backup, "read_partitions", growing)

    async def work() -> None:
        async with node_of(script) as address:
            head = await taken(place, address, cluster=CLUSTER)
            assert (head.damaged, head.partitions[0].last_transaction_id) == (0, 89)

    run(work())


# ---- the cluster -------------------------------------------------------------------------------------------------------


def test_the_cluster_of_a_node_that_does_not_tell_it(tmp_path: Path) -> None:
    place, script = vault(tmp_path), Scripted(records(0, 60))

    async def work() -> None:
        async with node_of(script) as address:
            with pytest.raises(InvalidRequestError, match="does not tell of which cluster") as told:
                await taken(place, address)
            assert "--key" in str(told.value.advice)
            for wrong in (ClusterIdentity(uuid.UUID(int=5), 3), ClusterIdentity(KEY, 4)):
                with pytest.raises(RemoteError, match="inconsistent"):
                    await taken(place, address, cluster=wrong)
            backup(place, build_directory(tmp_path / "other", {0: 3}, num_partitions=3, key=uuid.UUID(int=9)))
            with pytest.raises(InvalidRequestError, match="none that the vault knows"):
                await taken(place, address)
            backup(place, build_directory(tmp_path / "replica", {0: 3}, num_partitions=3))
            backup(place, build_directory(tmp_path / "third", {0: 3}, num_partitions=3, key=uuid.UUID(int=8)))
            head = await taken(place, address)
            assert (head.cluster_key, head.num_partitions) == (KEY, 3)

    run(work())


def test_a_session_that_the_metrics_do_not_tell(tmp_path: Path) -> None:
    class Brief(Scripted):
        @property
        def metrics(self) -> str:
            return super().metrics.replace("session-id", "something")

    place, script = vault(tmp_path), Brief(records(0, 60), mark=30)

    async def work() -> None:
        async with node_of(script) as address:
            await taken(place, address, cluster=CLUSTER)

    run(work())
    restored(place, "latest", tmp_path / "back")
    control = decode_control((tmp_path / "back" / "waltz-storage.ctl").read_bytes())
    assert control.partitions[0].current_struct is not None
    assert control.partitions[0].current_struct.marks == (3, 30, 30)


def test_what_a_thread_is_writing_when_a_backup_is_cancelled_is_taken_back_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vault is given up and closed only behind the thread: what it wrote afterwards nobody would take back."""
    source, place = build_directory(tmp_path / "source", {0: 230}, per_segment=37), vault(tmp_path)
    before = {one.name: one.stat().st_size for one in (place / "blob").iterdir()}
    begun, go_on = threading.Event(), threading.Event()
    real = PageStorage.place

    def held_up(store: PageStorage, data: Sequence[memoryview | bytes]) -> tuple[BlobSpan, ...]:
        made = real(store, data)
        if made[-1].offset > max(before.values()):  # where the file grows
            begun.set()
            assert go_on.wait(10)
        return made

    async def work() -> None:
        async with running(source) as node:
            taking = asyncio.ensure_future(taken(place, address_of(node)))
            while not begun.is_set():
                await asyncio.sleep(0.001)
            for _ in range(2):  # whoever is impatient
                taking.cancel()
                await asyncio.sleep(0.1)
            assert not taking.done()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await taking

    monkeypatch.setattr(backup_writer, "WRITTEN_AT_ONCE", 1)  # each piece
    monkeypatch.setattr(PageStorage, "place", held_up)
    run(work())
    assert {one.name: one.stat().st_size for one in (place / "blob").iterdir()} == before
    assert findings(place) == []
