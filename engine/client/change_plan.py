"""Plans: the changes of a node as they are shown before they are made, and their execution.

A plan's hash covers its steps and the node's state that their reasons mention.  `apply_plan` makes the plan again and refuses to
run it when the hash differs: the node has changed in between.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field

from waltzctl.engine.amounts import format_ranges
from waltzctl.engine.client.admin_client import MOST_CHANGED, AdminClient
from waltzctl.engine.client.partition_readings import PartitionReading, read_partitions
from waltzctl.engine.errors import ProtocolError, StalePlanError, WaltzError
from waltzctl.engine.net.addresses import Address


class NodeAction(enum.StrEnum):
    """What a step does to a partition of a node."""

    ASSIGN = "assign"
    UNASSIGN = "unassign"
    UNASSIGN_AND_DELETE = "unassign-and-delete"
    SWITCH_ON = "switch-on"
    SWITCH_OFF = "switch-off"
    READS_ON = "reads-on"
    READS_OFF = "reads-off"
    WRITES_ON = "writes-on"
    WRITES_OFF = "writes-off"
    TRUNCATE = "truncate"
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class NodeStep:
    """One step.  The transaction ids: first and last that is cut or copied.  `reason`: why, with the state it depends on."""

    action: NodeAction
    partition: int
    reason: str
    from_transaction_id: int | None = None
    to_transaction_id: int | None = None
    loses_data: bool = False


@dataclass(frozen=True, slots=True)
class NodePlan:
    """Steps in the order of their execution.  `source`: the node that records are copied from; `partitions`: those asked for."""

    command: str
    address: Address
    steps: tuple[NodeStep, ...]
    partitions: tuple[int, ...]
    source: Address | None = None
    hash: str = field(init=False, default="")

    def __post_init__(self) -> None:
        content = [self.command, str(self.address), str(self.source), [asdict(step) for step in self.steps]]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        object.__setattr__(self, "hash", digest)


_OF_SEVERAL = frozenset((NodeAction.ASSIGN, NodeAction.UNASSIGN, NodeAction.UNASSIGN_AND_DELETE))
"""Actions that one request can do to several partitions."""
Replan = Callable[[], Awaitable[NodePlan]]


async def check_still_holds(plan: NodePlan, replan: Replan) -> None:
    """Make the plan again.  Raises StalePlanError when its hash differs."""
    if (await replan()).hash != plan.hash:
        raise StalePlanError(
            f"{plan.address}: the node has changed since the plan was made; nothing was done", advice="look at it again"
        )


async def apply_plan(client: AdminClient, plan: NodePlan, replan: Replan) -> None:
    """`check_still_holds`, then `do_steps`; raises as these do."""
    await check_still_holds(plan, replan)
    await do_steps(client, plan)


async def do_steps(client: AdminClient, plan: NodePlan) -> None:
    """Do the steps, then verify the node's state.

    Consecutive steps of the same action go into one request if the protocol has one for several partitions.  Raises ProtocolError
    when the node reported success but its state says otherwise, and what the calls raise; the advice of such an error lists the
    steps that were done before it.
    """
    done = 0
    while done < len(plan.steps):
        action = plan.steps[done].action
        end, most = done + 1, 1 if _one_by_one(client, action) else MOST_CHANGED
        while end < min(len(plan.steps), done + most) and plan.steps[end].action is action:
            end += 1
        try:
            await _run(client, action, [step.partition for step in plan.steps[done:end]])
        except WaltzError as error:
            if done:
                told = f"done before that: {_describe(plan.steps[:done])}"
                error.advice = told if error.advice is None else f"{error.advice}\n  {told}"
            raise
        done = end
    await _verify(client, plan)


def _one_by_one(client: AdminClient, action: NodeAction) -> bool:
    """Whether the action needs a request for each partition, so that a later one can fail after earlier ones were done."""
    switches = action in (NodeAction.SWITCH_ON, NodeAction.SWITCH_OFF)
    return client.has_two_switches if switches else action not in _OF_SEVERAL


def _describe(steps: Sequence[NodeStep]) -> str:
    actions = dict.fromkeys(step.action for step in steps)
    by_action = ((action, [step.partition for step in steps if step.action is action]) for action in actions)
    return "; ".join(f"{action} of partitions {format_ranges(numbers)}" for action, numbers in by_action)


async def _run(client: AdminClient, action: NodeAction, partitions: list[int]) -> None:
    match action:
        case NodeAction.ASSIGN:
            await client.assign(partitions)
        case NodeAction.UNASSIGN | NodeAction.UNASSIGN_AND_DELETE:
            await client.unassign(partitions, delete_files=action is NodeAction.UNASSIGN_AND_DELETE)
        case NodeAction.SWITCH_ON | NodeAction.SWITCH_OFF:
            await client.set_available(partitions, action is NodeAction.SWITCH_ON)
        case NodeAction.READS_ON | NodeAction.READS_OFF:
            for partition in partitions:
                await client.set_readable(partition, action is NodeAction.READS_ON)
        case NodeAction.WRITES_ON | NodeAction.WRITES_OFF:
            for partition in partitions:
                await client.set_writable(partition, action is NodeAction.WRITES_ON)
        case NodeAction.TRUNCATE | NodeAction.COPY:
            raise AssertionError(f"{action}: done by engine.client.copying")


async def _verify(client: AdminClient, plan: NodePlan) -> None:
    if not plan.steps:
        return
    now = {one.partition: one for one in await read_partitions(client, {step.partition for step in plan.steps})}
    for step in plan.steps:
        if not _holds(step.action, now[step.partition], plan):
            raise ProtocolError(
                str(client.address),
                f"the node says that it is done, but {step.action} of partition {step.partition} has not happened",
                advice="look with list; another program may have changed it at the same time",
            )


def _holds(action: NodeAction, now: PartitionReading, plan: NodePlan) -> bool:
    """Whether the node's state is the one that the step should leave, as far as the node reports it."""
    match action:
        case NodeAction.ASSIGN:
            return now.assigned is True
        case NodeAction.UNASSIGN | NodeAction.UNASSIGN_AND_DELETE:
            return not now.assigned
        case NodeAction.SWITCH_ON:
            return now.available is not False
        case NodeAction.SWITCH_OFF | NodeAction.READS_OFF | NodeAction.WRITES_OFF:
            return now.available is not True
        case _:  # reads-on or writes-on: the node only reports whether both are on
            return True
