"""A copied partition is equal to its source up to the source's acknowledged transactions, or the copy says why not."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import builders
from tests.builders import build_directory, make_records
from tests.client.nodes import admin_of, data_of, records
from tests.client.peers import ReleasedAdmin, scripted
from tests.descriptors import let_syncs_fail
from tests.node.running import run, running
from waltzctl.engine.client import copying
from waltzctl.engine.client.admin_client import AdminClient
from waltzctl.engine.client.change_plan import NodeAction
from waltzctl.engine.client.copying import Comparison, Copy, CopyOptions, CopyResult, plan_copy
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.errors import (
    DamageError,
    InvalidRequestError,
    MismatchError,
    PeerUnreachableError,
    ProtocolError,
    RefusedError,
    RemoteError,
    StalePlanError,
)
from waltzctl.engine.findings import Code
from waltzctl.engine.inspect.verification import VerifyOptions
from waltzctl.engine.inspect.verify import verify
from waltzctl.formats.segment import Record, segment_name
from waltzctl.formats.wire.records import SessionInfo, WireRecord


@contextlib.asynccontextmanager
async def pair(
    tmp_path: Path, source: Sequence[Record], destination: Sequence[Record], *, mark: int, kept: int
) -> AsyncIterator[tuple[AdminClient, AdminClient, StorageClient]]:
    """Two nodes with one partition, whose marks are these; admin clients of both and a data client of the second."""
    build_directory(tmp_path / "source", {0: [source]}, session=8, local_low_water_mark=mark)
    build_directory(tmp_path / "destination", {0: [destination]}, session=5, local_low_water_mark=kept)
    async with (
        running(tmp_path / "source") as one,
        running(tmp_path / "destination") as other,
        admin_of(one) as theirs,
        admin_of(other) as ours,
        data_of(other) as data,
    ):
        yield theirs, ours, data


async def copy(theirs: AdminClient, ours: AdminClient, data: StorageClient, **options: object) -> CopyResult:
    wanted = CopyOptions(0, **{"offline_first": True, **options})
    return await Copy(theirs, ours, data, await plan_copy(theirs, ours, wanted)).run()


def check_clean(storage: Path) -> None:
    *findings, _ = verify([storage], VerifyOptions())
    assert findings == []


@pytest.mark.turns(8)
@pytest.mark.parametrize("comparison", list(Comparison))
def test_a_replica_that_is_behind_gets_what_is_acknowledged(tmp_path: Path, comparison: Comparison) -> None:
    made = make_records(3000)

    async def work() -> None:
        async with pair(tmp_path, made, made[:700], mark=2500, kept=600) as (theirs, ours, data):
            result = await copy(theirs, ours, data, comparison=comparison, batch_records=300)
            assert (result.records, result.last_transaction_id, result.findings) == (1900, 2500, ())
            assert (result.compared == 0) is (comparison is Comparison.NONE)
            if comparison is Comparison.ALL:
                assert result.compared == 2501
            assert await ours.records(0, 0, 10_000) == await theirs.records(0, 0, 2501)
            assert await ours.session_info(0) == SessionInfo(5, 2500, 2500), "the session stays what it was"
            assert await ours.assigned_status() == ((0, True),), "and it is online again"

    run(work())
    check_clean(tmp_path / "destination")


def test_an_empty_partition_is_filled(tmp_path: Path) -> None:
    """Behaviour 138: a source of ten records; afterwards the destination's last is 9."""
    made = make_records(10)

    async def work() -> None:
        async with pair(tmp_path, made, [], mark=9, kept=-1) as (theirs, ours, data):
            plan = (await plan_copy(theirs, ours, CopyOptions(0, offline_first=True))).plan
            assert [step.action for step in plan.steps] == [
                NodeAction.SWITCH_OFF,
                NodeAction.COPY,
                NodeAction.SWITCH_ON,
            ]
            assert (await copy(theirs, ours, data)).records == 10
            assert await data.max_transaction_id(5, 0) == 9

    run(work())


def test_a_node_of_another_cluster_gives_nothing(tmp_path: Path) -> None:
    """An empty destination keeps no transaction by which the two could be told apart."""
    build_directory(tmp_path / "source", {0: 10}, key=uuid.UUID(int=7), session=8, local_low_water_mark=9)
    build_directory(tmp_path / "destination", {0: [[]]}, session=5, local_low_water_mark=-1)

    async def work() -> None:
        async with (
            running(tmp_path / "source") as one,
            running(tmp_path / "destination") as other,
            admin_of(one) as theirs,
            admin_of(other) as ours,
        ):
            with pytest.raises(MismatchError, match=f"{uuid.UUID(int=7)}.*{builders.KEY}"):
                await plan_copy(theirs, ours, CopyOptions(0, offline_first=True))

    run(work())


def test_what_stands_above_the_mark_is_shown_and_replaced(tmp_path: Path) -> None:
    """Behaviour 139: cut to the low-water mark 10, then up to the source's local mark 31, not beyond."""
    made = make_records(40)
    dirty = [*made[:11], *make_records(20, first=11, seed=9)]

    async def work() -> None:
        async with pair(tmp_path, made, dirty, mark=31, kept=10) as (theirs, ours, data):
            plan = (await plan_copy(theirs, ours, CopyOptions(0, offline_first=True))).plan
            _, cut, copied, _ = plan.steps
            assert (cut.action, cut.from_transaction_id, cut.to_transaction_id, cut.loses_data) == (
                NodeAction.TRUNCATE,
                11,
                30,
                True,
            )
            assert (copied.from_transaction_id, copied.to_transaction_id) == (11, 31)
            assert (await copy(theirs, ours, data, comparison=Comparison.ALL)).last_transaction_id == 31
            assert await ours.records(0, 0, 100) == await theirs.records(0, 0, 32)

    run(work())
    check_clean(tmp_path / "destination")


@pytest.mark.parametrize("kept", [9, 15])
def test_a_replica_that_has_it_all_is_left_alone(tmp_path: Path, kept: int) -> None:
    """Not even what is above the mark is cut then."""
    made = make_records(20)

    async def work() -> None:
        async with pair(tmp_path, made, made, mark=9, kept=kept) as (theirs, ours, _):
            assert (await plan_copy(theirs, ours, CopyOptions(0, offline_first=True))).plan.steps == ()

    run(work())


def test_an_online_destination_is_refused_unless_it_may_be_switched_off(tmp_path: Path) -> None:
    made = make_records(10)

    async def work() -> None:
        async with pair(tmp_path, made, [], mark=9, kept=-1) as (theirs, ours, data):
            with pytest.raises(RefusedError, match="online"):
                await plan_copy(theirs, ours, CopyOptions(0))
            await ours.set_available([0], False)
            await copy(theirs, ours, data, offline_first=False)
            assert await ours.assigned_status() == ((0, False),), "what was offline stays so"

    run(work())


def test_an_interrupted_copy_goes_on_where_it_was(tmp_path: Path) -> None:
    """The source dies half-way; what was copied is durable and marked, and the next copy begins there."""
    made = make_records(4000, size=50)
    asked: list[int] = []

    async def work() -> None:
        async with pair(tmp_path, made, [], mark=3999, kept=-1) as (theirs, ours, data):
            options = CopyOptions(0, offline_first=True, batch_records=100)
            first = Copy(theirs, ours, data, await plan_copy(theirs, ours, options))

            class Stop:
                def start(self, what: str, total: int) -> None:
                    asked.append(total)

                def advance(self, amount: int) -> None:
                    if first.position > 1000:
                        asyncio.get_running_loop().create_task(theirs.close())

            first._progress = Stop()
            with pytest.raises(PeerUnreachableError):
                await first.run()
            assert first.begun
            assert 1000 < first.position < 3999
            info = await ours.session_info(0)
            assert info == SessionInfo(5, first.position, first.position)
            assert await ours.assigned_status() == ((0, False),)
            async with await AdminClient.connect(theirs.address.host, theirs.address.port, ssl_context=None) as again:
                second = await copy(again, ours, data, comparison=Comparison.ALL, offline_first=False)
            assert second.records == 3999 - first.position

    run(work())
    assert asked == [4000]
    check_clean(tmp_path / "destination")


def test_a_cancelled_copy_leaves_what_is_durable(tmp_path: Path) -> None:
    made = make_records(4000, size=50)

    async def work() -> None:
        async with pair(tmp_path, made, [], mark=3999, kept=-1) as (theirs, ours, data):
            options = CopyOptions(0, offline_first=True, batch_records=50)
            one = Copy(theirs, ours, data, await plan_copy(theirs, ours, options))
            task = asyncio.create_task(one.run())
            while one.position < 500:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await data.max_transaction_id(5, 0, offline=True)  # answered after whatever was still under way
            assert (await ours.session_info(0)).low_water_mark >= one.position >= 500
            result = await copy(theirs, ours, data, offline_first=False, comparison=Comparison.ALL)
            assert result.last_transaction_id == 3999

    run(work())
    check_clean(tmp_path / "destination")


def test_sides_that_disagree_below_the_mark_are_not_joined(tmp_path: Path) -> None:
    made, other = make_records(20), make_records(11, seed=5)

    async def work() -> None:
        async with pair(tmp_path, made, other, mark=19, kept=10) as (theirs, ours, _):
            with pytest.raises(DamageError, match="has something else under transaction 10"):
                await plan_copy(theirs, ours, CopyOptions(0, offline_first=True))

    run(work())


def test_a_difference_below_the_joint_is_found_by_comparing_all(tmp_path: Path) -> None:
    made = make_records(20)
    wrong = [*made[:4], make_records(1, first=4, seed=77)[0], *made[5:11]]
    assert wrong[4] != made[4]

    async def work() -> None:
        async with pair(tmp_path, made, wrong, mark=19, kept=10) as (theirs, ours, data):
            result = await copy(theirs, ours, data, comparison=Comparison.ALL)
            (finding,) = result.findings
            assert (finding.code, finding.partition, finding.transaction_id) == (Code.REPLICA_DIFFERS, 0, 4)
            assert finding.path == ours.address.url
            assert await ours.assigned_status() == ((0, False),), "it is not put to use"

    run(work())


def test_a_plan_is_stale_once_the_destination_has_changed(tmp_path: Path) -> None:
    made = make_records(20)

    async def work() -> None:
        async with pair(tmp_path, made, made[:11], mark=19, kept=5) as (theirs, ours, data):
            plan = await plan_copy(theirs, ours, CopyOptions(0, offline_first=True))
            await data.set_low_water_mark(6, 0, 10)
            one = Copy(theirs, ours, data, plan)
            with pytest.raises(StalePlanError):
                await one.run()
            assert not one.begun
            assert await ours.assigned_status() == ((0, True),)

    run(work())


@pytest.mark.parametrize("written", [0, 1])
def test_what_is_written_until_the_destination_is_off_is_not_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """A Waltz server appended between the last look and the switch: what the node had acknowledged was cut without a word."""
    made = make_records(20)
    switch = AdminClient.set_available

    async def work() -> None:
        async with pair(tmp_path, made, made[:6], mark=19, kept=5) as (theirs, ours, data):

            async def later(self: AdminClient, partitions: Sequence[int], available: bool) -> None:
                if not available and written:
                    await data.append(5, 0, records(6, written))
                await switch(self, partitions, available)

            monkeypatch.setattr(AdminClient, "set_available", later)
            one = Copy(theirs, ours, data, await plan_copy(theirs, ours, CopyOptions(0, offline_first=True)))
            if not written:
                assert (await one.run()).last_transaction_id == 19
                return
            with pytest.raises(
                StalePlanError, match="ended with transaction 5 when the plan was made, and ends with 6 now"
            ):
                await one.run()
            assert not one.begun
            assert await ours.assigned_status() == ((0, True),)
            assert await data.max_transaction_id(5, 0) == 6

    run(work())


@pytest.mark.parametrize("there", [6, 9], ids=["nothing to cut", "something to cut"])
@pytest.mark.parametrize("off", [False, True])
def test_of_two_copies_that_begin_at_once_one_fills_the_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: int, *, off: bool
) -> None:
    """Each looked before the other one began: the later one cut what the first one had copied, below the low-water mark."""
    made = make_records(20)

    async def nothing(*_: object) -> None:
        pass

    async def work() -> None:
        async with pair(tmp_path, made, made[:there], mark=19, kept=5) as (theirs, ours, data):
            if off:
                await ours.set_available([0], False)
            options = CopyOptions(0, offline_first=not off)
            first, second = [Copy(theirs, ours, data, await plan_copy(theirs, ours, options)) for _ in range(2)]
            await first.run()
            monkeypatch.setattr(copying, "check_still_holds", nothing)
            with pytest.raises(StalePlanError, match=f"ended with transaction {there - 1} .* and ends with 19 now"):
                await second.run()
            assert await ours.session_info(0) == SessionInfo(5, 19, 19)
            assert await ours.assigned_status() == ((0, not off),)
            assert (first.begun, second.begun) == (True, False)

    run(work())
    check_clean(tmp_path / "destination")


def test_a_destination_that_another_copy_has_switched_off_stays_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is at work: whoever finds that something was written would switch the partition on again."""
    made = make_records(20)

    async def nothing(*_: object) -> None:
        pass

    async def work() -> None:
        async with pair(tmp_path, made, made[:6], mark=19, kept=5) as (theirs, ours, data):
            one = Copy(theirs, ours, data, await plan_copy(theirs, ours, CopyOptions(0, offline_first=True)))
            await ours.set_available([0], False)
            monkeypatch.setattr(copying, "check_still_holds", nothing)
            with pytest.raises(StalePlanError, match="was switched off since the plan was made"):
                await one.run()
            assert await ours.assigned_status() == ((0, False),)
            assert not one.begun

    run(work())


# --- a source that cannot be trusted ------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def from_released(
    tmp_path: Path, source: ReleasedAdmin
) -> AsyncIterator[tuple[AdminClient, AdminClient, StorageClient]]:
    build_directory(tmp_path, {0: 0}, session=5)
    async with (
        scripted(source) as address,
        await AdminClient.connect(address.host, address.port, ssl_context=None) as theirs,
        running(tmp_path) as node,
        admin_of(node) as ours,
        data_of(node) as data,
    ):
        yield theirs, ours, data


def test_a_released_node_is_asked_whether_it_is_of_the_same_cluster(tmp_path: Path) -> None:
    """It does not report its cluster, but compares the one that it is asked about."""

    async def work() -> None:
        source = ReleasedAdmin(records(0, 10), key=uuid.UUID(int=7))
        async with from_released(tmp_path, source) as (theirs, ours, _):
            for one, other in ((theirs, ours), (ours, theirs)):
                with pytest.raises(RemoteError, match="cluster key is inconsistent") as caught:
                    await plan_copy(one, other, CopyOptions(0, offline_first=True))
                assert caught.value.status == "mismatch"

    run(work())


def test_damaged_data_is_not_copied(tmp_path: Path) -> None:
    """A released node neither checks what it gives out nor, when it copies, what it takes."""
    made = records(0, 100)
    made[60] = replace(made[60], data=b"damaged")

    async def work() -> None:
        async with from_released(tmp_path, ReleasedAdmin(made)) as (theirs, ours, data):
            with pytest.raises(DamageError) as caught:
                await copy(theirs, ours, data, batch_records=10)
            (finding,) = caught.value.findings
            assert (finding.code, finding.transaction_id, finding.path) == (Code.DATA_CHECKSUM, 60, theirs.address.url)
            last = (await ours.session_info(0)).low_water_mark
            assert await ours.records(0, 0, 100) == tuple(made[: last + 1])
            assert last < 60

    run(work())


@pytest.mark.parametrize("there", [0, 40])
def test_a_source_without_what_it_promised_ends_the_copy(tmp_path: Path, there: int) -> None:
    """The release would ask for ever."""

    async def work() -> None:
        source = ReleasedAdmin(records(0, there), last=99, mark=99)
        async with from_released(tmp_path, source) as (theirs, ours, data):
            with pytest.raises(ProtocolError, match=rf"no transaction {there}, though its local low-water mark is 99"):
                await copy(theirs, ours, data)
            assert len(source.asked) < 20

    run(work())


def test_records_out_of_order_end_the_copy(tmp_path: Path) -> None:
    class Jumping(ReleasedAdmin):
        def _answer(self, request: object) -> object:
            answer = super()._answer(request)
            found = getattr(answer, "records", None)
            if found:
                return replace(answer, records=(*found[:-1], replace(found[-1], transaction_id=500)))
            return answer

    async def work() -> None:
        async with from_released(tmp_path, Jumping(records(0, 50))) as (theirs, ours, data):
            with pytest.raises(ProtocolError, match="gave transaction 500 in place of"):
                await copy(theirs, ours, data)

    run(work())


def test_large_records_are_asked_for_few_at_a_time(tmp_path: Path) -> None:
    """A released node bounds an answer by its count only."""
    made = [WireRecord.make(one.transaction_id, one.request_id, one.header, bytes(200_000)) for one in records(0, 60)]

    async def work() -> None:
        source = ReleasedAdmin(made)
        async with from_released(tmp_path, source) as (theirs, ours, data):
            await copy(theirs, ours, data, batch_bytes=1 << 20, comparison=Comparison.NONE)
            assert max(count for _, count in source.asked) <= 5

    run(work())


def test_what_cannot_be_copied_is_refused(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 5}, num_partitions=2)

    async def work() -> None:
        async with running(tmp_path) as node, admin_of(node) as client, admin_of(node) as same:
            with pytest.raises(InvalidRequestError, match="onto itself"):
                await plan_copy(client, same, CopyOptions(0))
        async with pair(tmp_path / "two", make_records(3), [], mark=2, kept=-1) as (theirs, ours, _):
            with pytest.raises(InvalidRequestError, match="not assigned to this node: partition 1"):
                await plan_copy(theirs, ours, CopyOptions(1))
            with pytest.raises(InvalidRequestError):
                await plan_copy(theirs, ours, CopyOptions(0, batch_records=0))

    run(work())


def test_a_destination_of_which_the_node_reads_nothing_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it was to be copied anew: the partition was switched off, refused the copy, and stayed off."""
    made = make_records(10)

    async def work() -> None:
        async with pair(tmp_path, made, made[:5], mark=9, kept=-1) as (theirs, ours, data):
            with pytest.raises(RefusedError, match="gives no transaction of partition 0, which is out of service"):
                await copy(theirs, ours, data)
            assert await ours.assigned_status() == ((0, True),)

    def build(path: Path, *rest: Any, **options: Any) -> Path:
        built = builders.build_directory(path, *rest, **options)
        if path.name == "destination":
            with (path / "0" / segment_name(0)).open("ab") as file:
                file.write(b"torn")
        return built

    monkeypatch.setitem(globals(), "build_directory", build)
    let_syncs_fail(monkeypatch, "/destination/.waltzctl/quarantine/")
    run(work())


def test_a_partition_that_comes_online_meanwhile_ends_the_copy(tmp_path: Path) -> None:
    """Offline requests are refused by an online partition: two writers are never at work."""
    made = make_records(10)

    async def work() -> None:
        async with pair(tmp_path, made, [], mark=9, kept=-1) as (theirs, ours, data):
            await ours.set_available([0], False)
            plan = await plan_copy(theirs, ours, CopyOptions(0))
            await ours.set_available([0], True)
            with pytest.raises((StalePlanError, RefusedError, RemoteError)):
                await Copy(theirs, ours, data, plan).run()
            assert await data.max_transaction_id(5, 0) == -1

    run(work())


def test_commands_that_are_advised_reach_the_nodes_as_this_one_does(tmp_path: Path) -> None:
    made = make_records(10)

    async def work() -> None:
        async with pair(tmp_path, made, made, mark=9, kept=5) as (theirs, ours, _):
            options = CopyOptions(
                0, offline_first=True, connecting=("--plaintext", "--trust-store", "a b"), data_port=7
            )
            asking = scripted_nothing(ours)
            with pytest.raises(DamageError) as told:
                await plan_copy(theirs, asking, options)
            assert told.value.advice is not None
            node = f"waltzctl node {ours.address} --data-port 7 --plaintext --trust-store 'a b'"
            lines = told.value.advice.splitlines()
            assert [line.strip().startswith(node) for line in lines[-3:]] == [True] * 3
            verify = f"waltzctl verify {theirs.address.url} --partition 0 --plaintext --trust-store 'a b'"
            assert f"({verify})" in told.value.advice

    run(work())


def scripted_nothing(client: AdminClient) -> AdminClient:
    """The same node, as if it gave no record that it should keep, and were behind."""

    async def none(*_: object) -> tuple[WireRecord, ...]:
        return ()

    client.records = none  # type: ignore[method-assign]
    return client
