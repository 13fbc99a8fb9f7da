"""Plans for a node's partitions: their assignment, and whether they can be read and written.

Planning only reads the node's state; `engine.client.change_plan.apply_plan` makes the changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from waltzctl.engine.amounts import chosen_partitions
from waltzctl.engine.client.admin_client import AdminClient
from waltzctl.engine.client.change_plan import NodeAction, NodePlan, NodeStep
from waltzctl.engine.client.partition_readings import PartitionReading, read_cluster, read_partitions
from waltzctl.formats.wire.failure import FailureCode


async def plan_add(client: AdminClient, partitions: Collection[int]) -> NodePlan:
    """Assign partitions; those that are assigned already need no step."""
    readings = await read_partitions(client, partitions)
    return _plan("add-partition", client, partitions, [_assign(one) for one in readings if not one.assigned])


async def plan_remove(client: AdminClient, partitions: Collection[int], *, delete_files: bool) -> NodePlan:
    """Take partitions away; those that the node does not have need no step."""
    readings = await read_partitions(client, partitions)
    steps = [_unassign(one, delete_files=delete_files) for one in readings if one.assigned is not False]
    return _plan("remove-partition", client, partitions, steps)


async def plan_availability(
    client: AdminClient,
    partitions: Collection[int],
    *,
    online: bool | None = None,
    readable: bool | None = None,
    writable: bool | None = None,
) -> NodePlan:
    """Switch partitions on or off, both reads and writes (`online`) or one of them; None leaves a switch as it is.

    Raises RefusedError when only one of them is to be switched and the node has one switch for both.  Raises InvalidRequestError
    for a partition that the node's cluster does not have; it is checked here because each partition is a request of its own, and
    the earlier ones would already be switched when the node refuses.
    """
    if readable is not None or writable is not None:
        client.need_two_switches("reads" if readable is not None else "writes")
    if (cluster := await read_cluster(client)) is not None:
        chosen_partitions(partitions, cluster.num_partitions)
    steps: list[NodeStep] = []
    for one in await read_partitions(client, partitions):
        steps += _switches(one, online, readable, writable)
    return _plan("availability", client, partitions, steps)


async def plan_sync(client: AdminClient, wanted: Collection[int], *, only_add: bool = False) -> NodePlan:
    """Assign exactly the `wanted` partitions: add the missing ones and, unless `only_add`, take the others away.

    Files are kept in either case.  The release makes these changes without asking (weakness T10); here a plan is shown first.
    """
    present, kept = {one.partition: one for one in await read_partitions(client)}, {*wanted}
    missing = await read_partitions(client, kept - {*present})
    steps = [_assign(one) for one in missing]
    if not only_add:
        steps += [_unassign(one, delete_files=False) for number, one in present.items() if number not in kept]
    return _plan("sync-partitions", client, wanted, steps)


def _plan(command: str, client: AdminClient, partitions: Collection[int], steps: list[NodeStep]) -> NodePlan:
    return NodePlan(command, client.address, tuple(steps), tuple(sorted(set(partitions))))


def _assign(one: PartitionReading) -> NodeStep:
    reason = "not assigned to this node; files that are there are used (a released node begins session and marks anew)"
    return NodeStep(NodeAction.ASSIGN, one.partition, reason)


def _unassign(one: PartitionReading, *, delete_files: bool) -> NodeStep:
    state = f"session {_known(one.session_id)}, low-water mark {_known(one.low_water_mark)}"
    if not delete_files:
        return NodeStep(
            NodeAction.UNASSIGN, one.partition, f"the files stay; a released node forgets session and marks ({state})"
        )
    last = one.last_transaction_id
    untold = one.unread or one.out_of_service == FailureCode.QUARANTINED  # its files may hold more than it tells
    holds = last is None or last >= 0 or untold
    return NodeStep(
        NodeAction.UNASSIGN_AND_DELETE,
        one.partition,
        f"session, marks and every file are removed ({state})",
        from_transaction_id=0 if last is not None and last >= 0 else None,
        to_transaction_id=last if last is not None and last >= 0 else None,
        loses_data=holds,
    )


def _switches(
    one: PartitionReading, online: bool | None, readable: bool | None, writable: bool | None
) -> Iterator[NodeStep]:
    where = "" if one.assigned else "; it is not assigned to this node"
    if online is not None and one.available is not online:
        words = "reads and writes are allowed" if online else "every read and write of a Waltz server is refused"
        yield NodeStep(NodeAction.SWITCH_ON if online else NodeAction.SWITCH_OFF, one.partition, f"{words} then{where}")
    for wanted, known, on, off, words in (
        (readable, one.readable, NodeAction.READS_ON, NodeAction.READS_OFF, "reads"),
        (writable, one.writable, NodeAction.WRITES_ON, NodeAction.WRITES_OFF, "writes"),
    ):
        if wanted is not None and known is not wanted:
            reason = f"{words} are {'allowed' if wanted else 'refused'} then{where}"
            yield NodeStep(on if wanted else off, one.partition, reason)


def _known(number: int | None) -> str:
    return "unknown" if number is None else str(number)
