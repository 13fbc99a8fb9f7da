"""A node looked at from outside: what is wrong is found and named as in a directory, and what cannot be seen is said."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.builders import build_directory, digest
from tests.cli.damage import damage_record, segment_of
from tests.client.nodes import admin_of, records
from tests.client.peers import ReleasedAdmin, scripted
from tests.descriptors import let_syncs_fail
from tests.node.running import run, running
from waltzctl.engine.client import inspect as inspect_module
from waltzctl.engine.client.admin_client import AdminClient
from waltzctl.engine.client.admin_records import BatchSize, read_batches
from waltzctl.engine.client.changes import plan_remove
from waltzctl.engine.client.inspect import NodeRecord, NodeVerification, NodeVerifyOptions, node_status, read_records
from waltzctl.engine.errors import InvalidRequestError, RemoteError
from waltzctl.engine.findings import Code, Finding, Severity
from waltzctl.engine.inspect.verification import VerifySummary


async def verified(
    client: AdminClient, options: NodeVerifyOptions | None = None
) -> tuple[list[Finding], VerifySummary]:
    work = NodeVerification(options or NodeVerifyOptions())
    found = [finding async for finding in work.findings(client)]
    return found, work.summary()


def test_a_sound_node_is_clean_and_nothing_is_changed(tmp_path: Path) -> None:
    storage = build_directory(tmp_path, {0: 120, 1: 0, 2: 3}, num_partitions=4)

    async def work() -> None:
        async with running(storage) as node, admin_of(node) as client:
            before = digest(storage)
            found, summary = await verified(client)
            assert [(finding.code, finding.severity) for finding in found] == [(Code.SEEN_FROM_OUTSIDE, Severity.NOTE)]
            assert (summary.status, summary.exit_status_name, summary.complete) == ("clean", "clean", True)
            assert (summary.partitions, summary.records, summary.segments, summary.notes) == (3, 123, 0, 1)
            files = sum(file.stat().st_size - 128 for file in storage.glob("*/*.seg"))
            assert summary.bytes == files
            assert digest(storage) == before
            _, part = await verified(client, NodeVerifyOptions(partitions={2}))
            assert (part.partitions, part.records) == (1, 3)
            with pytest.raises(InvalidRequestError, match="not assigned to this node: partition 3"):
                await verified(client, NodeVerifyOptions(partitions={3}))

    run(work())


def test_a_record_that_the_node_does_not_give_out_is_named_and_passed(tmp_path: Path) -> None:
    storage = build_directory(tmp_path, {0: 60}, per_segment=100)

    async def work() -> None:
        async with running(storage) as node, admin_of(node) as client:
            for place in (20, 21, 40):
                damage_record(segment_of(storage), place)
            (_, *found), summary = await verified(client)
            assert [(one.code, one.transaction_id, one.partition) for one in found] == [
                (Code.RECORD_CHECKSUM, number, 0) for number in (20, 21, 40)
            ]
            assert all(one.path == client.address.url for one in found)
            assert (summary.status, summary.records) == ("damaged", 57)
            shown = [item async for item in read_records(client, None, first=19, last=22)]
            assert [item.record.transaction_id if isinstance(item, NodeRecord) else item.code for item in shown] == [
                19, Code.RECORD_CHECKSUM, Code.RECORD_CHECKSUM, 22]  # fmt: skip

    run(work())


def test_a_partition_that_the_node_has_quarantined_is_not_clean(tmp_path: Path) -> None:
    """Every record that the node still has may be sound, and the damage in a file that it does not count."""
    storage = build_directory(tmp_path, {0: 10, 1: 3}, per_segment=5, local_low_water_mark=2)
    last = max((storage / "0").glob("*.seg"))
    last.unlink()
    last.mkdir()

    async def work() -> None:
        async with running(storage) as node, admin_of(node) as client:
            (_, *found), summary = await verified(client)
            assert [(one.code, one.partition, one.severity) for one in found] == [(Code.READ_ERROR, 0, Severity.DAMAGE)]
            assert (summary.exit_status_name, summary.records) == ("io-error", 8)

    run(work())


@pytest.mark.parametrize("mark", [-1, 2])
def test_a_partition_of_which_the_node_reads_nothing_is_not_clean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: int
) -> None:
    """A flush failed when it was opened: it was told to have no transactions, and that all is well."""
    storage = build_directory(tmp_path, {0: 10, 1: 3}, local_low_water_mark=mark)
    with segment_of(storage, 0).open("ab") as file:
        file.write(b"torn")
    let_syncs_fail(monkeypatch, "/quarantine/")

    async def work() -> None:
        async with running(storage) as node, admin_of(node) as client:
            (_, *found), summary = await verified(client)
            assert [(one.code, one.partition, one.severity) for one in found] == [(Code.READ_ERROR, 0, Severity.DAMAGE)]
            assert (summary.exit_status_name, summary.records) == ("io-error", 3)
            status = await node_status(client)
            assert [[one.code for one in part.findings] for part in status.partitions] == [[Code.READ_ERROR], []]
            for first, last in ((None, None), (3, 5)):
                shown = [item async for item in read_records(client, {0}, first=first, last=last)]
                assert [item.code for item in shown if isinstance(item, Finding)] == [Code.READ_ERROR]
            (step,) = (await plan_remove(client, {0}, delete_files=True)).steps
            assert (step.loses_data, step.from_transaction_id, step.to_transaction_id) == (True, None, None)

    run(work())


async def released(source: ReleasedAdmin) -> tuple[list[Finding], VerifySummary]:
    async with (
        scripted(source) as address,
        await AdminClient.connect(address.host, address.port, ssl_context=None) as client,
    ):
        (_, *found), summary = await verified(client)
        return found, summary


def test_what_a_released_node_serves_without_looking_is_looked_at() -> None:
    made = records(0, 50)
    made[7] = replace(made[7], data=b"damaged")

    async def work() -> None:
        found, summary = await released(ReleasedAdmin(made))
        assert [(one.code, one.transaction_id, one.length) for one in found] == [(Code.DATA_CHECKSUM, 7, 7)]
        assert summary.records == 50

    run(work())


def test_a_released_node_is_not_asked_where_a_record_is() -> None:
    async def work() -> None:
        async with (
            scripted(ReleasedAdmin(records(0, 3))) as address,
            await AdminClient.connect(address.host, address.port, ssl_context=None) as client,
        ):
            assert await client.place_of(0, 1) is None

    run(work())


@pytest.mark.parametrize(("mark", "code"), [(49, Code.ACKNOWLEDGED_MISSING), (10, Code.RECORD_ORDER)])
def test_a_record_that_is_missing_is_named(mark: int, code: Code) -> None:
    async def work() -> None:
        found, summary = await released(ReleasedAdmin(records(0, 30), last=49, mark=mark))
        assert [(one.code, one.transaction_id) for one in found] == [(code, 30)]
        assert summary.exit_status_name == "damaged"

    run(work())


def test_a_partition_that_ends_below_its_mark_is_damaged(tmp_path: Path) -> None:
    async def work() -> None:
        async with (
            scripted(ReleasedAdmin(records(0, 30), mark=35)) as address,
            await AdminClient.connect(address.host, address.port, ssl_context=None) as client,
        ):
            (_, *found), _ = await verified(client)
            assert [(one.code, one.transaction_id) for one in found] == [(Code.ACKNOWLEDGED_MISSING, 30)]
            (one,) = (await node_status(client)).partitions
            assert (one.health, one.findings) == ("damaged", tuple(found))

    run(work())


def test_a_gap_is_named_and_ends_the_partition() -> None:
    class Gap(ReleasedAdmin):
        def _answer(self, request: object) -> object:
            answer = super()._answer(request)
            if getattr(answer, "records", None):
                moved = tuple(
                    replace(one, transaction_id=one.transaction_id + (one.transaction_id > 20))
                    for one in answer.records
                )
                return replace(answer, records=moved)
            return answer

    async def work() -> None:
        found, summary = await released(Gap(records(0, 50)))
        assert [(one.code, one.transaction_id) for one in found] == [(Code.RECORD_ORDER, 21)]
        assert summary.records == 21

    run(work())


def test_a_failure_that_is_no_damage_ends_the_verification(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 5000}, per_segment=1000)

    async def work() -> None:
        async with running(tmp_path) as node, admin_of(node) as client, admin_of(node) as other:
            work = NodeVerification(NodeVerifyOptions())

            async def take_away_while_reading() -> None:
                async with aclosing(work.findings(client)) as findings:
                    async for _ in findings:
                        await other.unassign([0])

            with pytest.raises(RemoteError, match="not assigned"):
                await take_away_while_reading()
            assert not work.summary().complete

    run(work())


@pytest.mark.turns(10)
def test_time_and_rate_are_kept() -> None:
    async def work() -> None:
        made = records(0, 2000)
        async with (
            scripted(ReleasedAdmin(made)) as address,
            await AdminClient.connect(address.host, address.port, ssl_context=None) as client,
        ):
            _, summary = await verified(client, NodeVerifyOptions(max_duration=1e-9))
            assert not summary.complete
            assert summary.records < 2000
            started = asyncio.get_running_loop().time()
            rate = 200_000
            _, summary = await verified(client, NodeVerifyOptions(limit_rate=rate))
            assert summary.complete
            assert asyncio.get_running_loop().time() - started >= summary.bytes / rate * 0.9

    run(work())


def test_the_rate_is_kept_for_records_that_take_more_than_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(inspect_module, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(inspect_module, "asyncio", SimpleNamespace(sleep=sleep))

    async def work() -> None:
        async with (
            scripted(ReleasedAdmin(records(0, 20, size=1000))) as address,
            await AdminClient.connect(address.host, address.port, ssl_context=None) as client,
        ):
            _, summary = await verified(client, NodeVerifyOptions(limit_rate=100))
            assert summary.complete
            assert now >= summary.bytes / 100 * 0.99

    run(work())


def test_an_unfinished_verification_says_so(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 50})

    async def work() -> None:
        async with running(tmp_path) as node, admin_of(node) as client:
            work = NodeVerification(NodeVerifyOptions())
            async with aclosing(work.findings(client)) as findings:
                async for _ in findings:
                    break
            summary = work.summary(interrupted=True)
            assert (summary.exit_status_name, summary.complete) == ("interrupted", False)

    run(work())


def test_the_status_tells_only_what_the_node_tells(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 10, 2: 0}, num_partitions=3)

    async def work() -> None:
        async with running(tmp_path) as node, admin_of(node) as client:
            await client.set_available([2], False)
            found = await node_status(client, {0, 1, 2})
            assert (found.path, found.cluster_key, found.layout, found.num_partitions, found.locked_by) == (
                client.address.url, None, None, None, None)  # fmt: skip
            zero, one, two = found.partitions
            assert (zero.readable, zero.writable, zero.session_id, zero.last_transaction_id) == (True, True, 3, 9)
            assert (zero.segments, zero.bytes, zero.records, zero.first_transaction_id, zero.health) == (None,) * 5
            assert (one.assigned, one.health) == (False, "unassigned")
            assert (two.readable, two.writable, two.last_transaction_id) == (None, None, None)
            with pytest.raises(
                InvalidRequestError, match=r"^partition 3 does not exist: they are 0 to 2"
            ):  # as of a directory
                await node_status(client, {0, 3, 7})

    run(work())


@pytest.mark.parametrize(("first", "last", "limit", "shown"), [
    (None, None, None, range(10)), (3, 5, None, range(3, 6)), (8, None, None, range(8, 10)), (None, 0, None, range(1)),
    (2, None, 3, range(2, 5)), (None, None, 0, range(0)), (50, None, None, range(0)), (None, 99, None, range(10)),
])  # fmt: skip
def test_records_are_picked(
    tmp_path: Path, first: int | None, last: int | None, limit: int | None, shown: range
) -> None:
    build_directory(tmp_path, {0: 10})

    async def work() -> None:
        async with running(tmp_path) as node, admin_of(node) as client:
            found = [item async for item in read_records(client, {0}, first=first, last=last, limit=limit)]
            assert [item.record.transaction_id for item in found if isinstance(item, NodeRecord)] == list(shown)

    run(work())


def test_a_limit_spans_partitions(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 3, 1: 3, 2: 3})

    async def work() -> None:
        async with running(tmp_path) as node, admin_of(node) as client:
            found = [item async for item in read_records(client, None, limit=5)]
            assert [(item.partition, item.record.transaction_id) for item in found if isinstance(item, NodeRecord)] == [
                (0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]  # fmt: skip

    run(work())


def test_batches_grow_to_their_size_and_no_further() -> None:
    async def work() -> None:
        source = ReleasedAdmin(records(0, 5000, size=100))
        async with (
            scripted(source) as address,
            await AdminClient.connect(address.host, address.port, ssl_context=None) as client,
        ):
            size = BatchSize(records=10_000, bytes_=100_000)
            read = [one async for batch in read_batches(client, 0, 0, 4999, size) for one in batch]
            assert read == list(source.records.values())
            counts = [count for _, count in source.asked]
            assert counts[0] == 4
            assert max(counts) <= 100_000 // 36
            assert len(counts) < 20

    run(work())
