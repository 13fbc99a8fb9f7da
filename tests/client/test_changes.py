"""A change is planned by asking only, done as planned or not at all, and looked at afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.builders import build_directory, digest
from tests.client.nodes import admin_of
from tests.client.peers import ADMIN_HELLO, Bodies, ReleasedAdmin, scripted
from tests.node.running import run, running
from waltzctl.engine.client.admin_client import AdminClient
from waltzctl.engine.client.change_plan import NodeAction, NodePlan, apply_plan
from waltzctl.engine.client.changes import plan_add, plan_availability, plan_remove, plan_sync
from waltzctl.engine.errors import InvalidRequestError, ProtocolError, RefusedError, RemoteError, StalePlanError
from waltzctl.formats.wire import admin
from waltzctl.formats.wire.frame import Magic

Make = Callable[[AdminClient], Awaitable[NodePlan]]


def steps(plan: NodePlan) -> list[tuple[NodeAction, int]]:
    return [(step.action, step.partition) for step in plan.steps]


async def carry_out(client: AdminClient, make: Make) -> NodePlan:
    plan = await make(client)
    await apply_plan(client, plan, lambda: make(client))
    assert (await make(client)).steps == (), "done once, nothing is left to do"
    return plan


def test_partitions_are_added_and_removed(tmp_path: Path) -> None:
    storage = build_directory(tmp_path, {0: 5, 1: 5}, num_partitions=4)

    async def work() -> None:
        async with running(storage) as node, admin_of(node) as client:
            plan = await carry_out(client, lambda c: plan_add(c, {1, 2, 3}))
            assert steps(plan) == [(NodeAction.ASSIGN, 2), (NodeAction.ASSIGN, 3)]
            assert not any(step.loses_data for step in plan.steps)

            plan = await carry_out(client, lambda c: plan_remove(c, {2}, delete_files=False))
            assert steps(plan) == [(NodeAction.UNASSIGN, 2)]
            assert list((storage / "2").glob("*.seg"))

            plan = await carry_out(client, lambda c: plan_remove(c, {0, 3}, delete_files=True))
            assert [(step.loses_data, step.from_transaction_id, step.to_transaction_id) for step in plan.steps] == [
                (True, 0, 4),
                (False, None, None),
            ]
            assert "session 3, low-water mark 2" in plan.steps[0].reason
            assert not list((storage / "0").glob("*"))
            assert await client.assigned_status() == ((1, True),)

    run(work())


def test_planning_changes_nothing(tmp_path: Path) -> None:
    storage = build_directory(tmp_path, {0: 5}, num_partitions=4)

    async def work() -> None:
        async with running(storage) as node, admin_of(node) as client:
            before = digest(storage)
            assert (await plan_add(client, {1})).steps
            assert (await plan_remove(client, {0}, delete_files=True)).steps
            assert (await plan_availability(client, {0}, online=False)).steps
            assert len((await plan_sync(client, {2})).steps) == 2
            assert digest(storage) == before
            assert await client.assigned_status() == ((0, True),)

    run(work())


def test_switches(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 5, 1: 5})

    async def work() -> None:
        async with running(tmp_path) as node, admin_of(node) as client:
            plan = await carry_out(client, lambda c: plan_availability(c, {0, 1}, online=False))
            assert steps(plan) == [(NodeAction.SWITCH_OFF, 0), (NodeAction.SWITCH_OFF, 1)]
            await carry_out(client, lambda c: plan_availability(c, {0}, online=True))
            assert await client.assigned_status() == ((0, True), (1, False))
            plan = await plan_availability(client, {0, 1}, readable=True, writable=False)
            assert steps(plan) == [(NodeAction.WRITES_OFF, 0), (NodeAction.READS_ON, 1), (NodeAction.WRITES_OFF, 1)]
            await apply_plan(client, plan, lambda: plan_availability(client, {0, 1}, readable=True, writable=False))
            assert await client.assigned_status() == ((0, False), (1, False))
            assert node.storage.availability(0).readable
            assert not node.storage.availability(0).writable
            assert node.storage.availability(1).readable

    run(work())


def test_an_assignment_takes_nothing_away_where_only_adding_was_wanted(tmp_path: Path) -> None:
    """T10: what the release takes away without asking is in the plan, and can be left out."""
    build_directory(tmp_path, {0: 5, 1: 5}, num_partitions=4)

    async def work() -> None:
        async with running(tmp_path) as node, admin_of(node) as client:
            await carry_out(client, lambda c: plan_sync(c, {1, 2}, only_add=True))
            assert [number for number, _ in await client.assigned_status()] == [0, 1, 2]
            plan = await carry_out(client, lambda c: plan_sync(c, {1, 2}))
            assert steps(plan) == [(NodeAction.UNASSIGN, 0)]
            assert list((tmp_path / "0").glob("*.seg")), "files are kept"
            assert [number for number, _ in await client.assigned_status()] == [1, 2]

    run(work())


def test_a_plan_is_stale_once_the_node_has_changed(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 5}, num_partitions=4)

    async def work() -> None:
        async with running(tmp_path) as node, admin_of(node) as client, admin_of(node) as other:
            plan = await plan_remove(client, {0, 1}, delete_files=True)
            await other.assign([1])
            with pytest.raises(StalePlanError, match="nothing was done"):
                await apply_plan(client, plan, lambda: plan_remove(client, {0, 1}, delete_files=True))
            assert await client.assigned_status() == ((0, True), (1, True))

    run(work())


def test_a_partition_that_the_cluster_does_not_have_is_refused_and_nothing_is_done(tmp_path: Path) -> None:
    """S9: all or nothing."""
    build_directory(tmp_path, {0: 5}, num_partitions=4)

    async def work() -> None:
        async with running(tmp_path) as node, admin_of(node) as client:
            plan = await plan_add(client, {1, 77})
            with pytest.raises(RemoteError, match="partition 77"):
                await apply_plan(client, plan, lambda: plan_add(client, {1, 77}))
            assert await client.assigned_status() == ((0, True),)

    run(work())


@pytest.mark.parametrize("switch", ["online", "readable", "writable"])
def test_no_partition_is_switched_where_one_is_named_that_the_cluster_does_not_have(
    tmp_path: Path, switch: str
) -> None:
    """S9: each is a request of its own, and so the others would be switched by the time the node refuses it."""
    build_directory(tmp_path, {0: 5, 1: 5}, num_partitions=2)

    async def work() -> None:
        async with running(tmp_path) as node, admin_of(node) as client:
            with pytest.raises(InvalidRequestError, match="partition 2 does not exist: they are 0 to 1"):
                await carry_out(client, lambda c: plan_availability(c, {0, 1, 2}, **{switch: False}))
            assert await client.assigned_status() == ((0, True), (1, True))
            await carry_out(client, lambda c: plan_availability(c, {0, 1}, online=False))

    run(work())


def test_one_switch_of_two_cannot_be_planned_for_a_released_node() -> None:
    async def work() -> None:
        async with (
            scripted(ReleasedAdmin([])) as address,
            await AdminClient.connect(address.host, address.port, ssl_context=None) as client,
        ):
            with pytest.raises(RefusedError, match="one switch"):
                await plan_availability(client, {0}, writable=False)
            assert steps(await plan_availability(client, {0}, online=False)) == [(NodeAction.SWITCH_OFF, 0)]

    run(work())


def test_a_node_that_says_done_and_has_not_is_not_believed() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(ADMIN_HELLO)
        bodies = Bodies(reader)
        await bodies.next(Magic.HELLO)
        while True:
            request = admin.decode(await bodies.next(Magic.ADMIN))
            answer: admin.AdminMessage = admin.SuccessResponse(request.sequence)
            if isinstance(request, admin.AssignedPartitionStatusRequest):
                answer = admin.AssignedPartitionStatusResponse(request.sequence, ())
            elif isinstance(request, admin.MetricsRequest):
                answer = admin.MetricsResponse(request.sequence, '{"gauges": {}}')
            writer.write(admin.encode(answer))

    async def work() -> None:
        async with (
            scripted(script) as address,
            await AdminClient.connect(address.host, address.port, ssl_context=None) as client,
        ):
            plan = await plan_add(client, {1})
            with pytest.raises(ProtocolError, match="assign of partition 1 has not happened"):
                await apply_plan(client, plan, lambda: plan_add(client, {1}))

    run(work())


def test_planning_for_a_partition_that_cannot_be_is_refused_before_the_wire(tmp_path: Path) -> None:
    build_directory(tmp_path, {0: 0})

    async def work() -> None:
        async with running(tmp_path) as node, admin_of(node) as client:
            with pytest.raises((InvalidRequestError, ValueError)):
                await apply_plan(client, await plan_add(client, {2**31}), lambda: plan_add(client, {2**31}))

    run(work())


def test_what_was_switched_before_one_failed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each partition is requests of its own; which ones were done nobody could know."""
    build_directory(tmp_path, {0: 5, 1: 5, 2: 5})
    switch, refused = AdminClient.set_writable, list[int]()

    async def damaged(client: AdminClient, partition: int, on: bool) -> None:
        if partition in refused:
            raise RemoteError("node:2", "its info is damaged", advice="recover it")
        await switch(client, partition, on)

    async def work() -> None:
        async with running(tmp_path) as node, admin_of(node) as client:

            async def off() -> NodePlan:
                return await plan_availability(client, {0, 1, 2}, online=False)

            for number, told in (
                (2, "recover it\n  done before that: switch-off of partitions 0-1"),
                (0, "recover it"),
            ):
                refused[:] = [number]
                with pytest.raises(RemoteError) as failed:
                    await apply_plan(client, await off(), off)
                assert failed.value.advice == told
                refused.clear()
                await client.set_available([0, 1, 2], True)

    monkeypatch.setattr(AdminClient, "set_writable", damaged)
    run(work())
