"""The implementation of node recover-partition: plan, confirm, copy, compare, report."""

from __future__ import annotations

import asyncio

from waltzctl.change_procedure import Changed, change
from waltzctl.console import Console
from waltzctl.engine.client.change_plan import NodePlan
from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.client.copying import Copy, CopyOptions, CopyPlan, CopyResult, plan_copy
from waltzctl.engine.errors import RemoteError, WaltzError
from waltzctl.engine.net.addresses import Address
from waltzctl.exit_status import ExitStatus
from waltzctl.formats.wire.failure import FailureCode
from waltzctl.objects.node_objects import node_plan_object
from waltzctl.outcome import say
from waltzctl.render.progress_bar import progress
from waltzctl.repair_procedure import Switches
from waltzctl.values import counted, human_bytes


def recover_partition(
    console: Console,
    switches: Switches,
    reach: ConnectionFactory,
    destination: Address,
    data: Address,
    source: Address,
    options: CopyOptions,
) -> ExitStatus:
    """Bring a partition up to date.  Raises what `plan_copy` and `Copy.run` raise."""
    planned: list[CopyPlan] = []

    async def make() -> NodePlan:
        async with await reach.admin(source) as theirs, await reach.admin(destination) as ours:
            planned.append(await plan_copy(theirs, ours, options))
            return planned[-1].plan

    async def apply(agreed: NodePlan) -> Changed:
        async with (
            await reach.admin(source) as theirs,
            await reach.admin(destination) as ours,
            await reach.storage(data) as port,
        ):
            with progress(quiet=console.quiet, verbose=console.verbose, noun="records") as listener:
                copy = Copy(theirs, ours, port, planned[-1], progress=listener)
                try:
                    result = await copy.run()
                except (WaltzError, asyncio.CancelledError) as error:
                    listener.close()
                    if copy.begun:
                        say(f"waltzctl: partition {options.partition} of {destination} {_left(copy, error)}")
                    raise
        if result.findings:
            say(f"waltzctl: partition {options.partition} of {destination} is left offline: the two sides differ")
        return Changed(_done(options.partition, destination, result), result.findings)

    status = change(console, switches, make, apply, node_plan_object)
    if planned[-1].offline and not switches.dry_run and status is ExitStatus.CLEAN:
        online = _online(destination, options.partition)
        console.note(f"partition {options.partition} of {destination} is offline, as it was before; {online}")
    return status


def _online(destination: Address, partition: int) -> str:
    """The command that makes the partition available again.  Left to the user: it may be offline for a reason."""
    return f"switch it on with waltzctl node {destination} availability --partition {partition} --online true"


def _left(copy: Copy, error: BaseException) -> str:
    kept = f"keeps what is durable, up to transaction {copy.position}" if copy.position >= 0 else "is empty"
    if isinstance(error, RemoteError) and error.code == FailureCode.ONLINE:
        return f"was switched on by somebody else, and {kept}; switched off, the same command goes on from there"
    return f"is offline and {kept}; the same command goes on from there, and leaves it offline"


def _done(partition: int, destination: Address, result: CopyResult) -> str:
    copied = f"{counted(result.records, 'record')} ({human_bytes(result.bytes)}) copied to partition {partition}"
    compared = f"; {counted(result.compared, 'record')} compared" if result.compared else ""
    return f"{copied} of {destination}, the last one is transaction {result.last_transaction_id}{compared}."
