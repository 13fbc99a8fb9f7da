"""The implementation of verify and status for a node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing

from waltzctl.engine.client.connection_factory import ConnectionFactory
from waltzctl.engine.client.inspect import NodeVerification, NodeVerifyOptions, node_status
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.status import StorageStatus
from waltzctl.engine.inspect.verification import VerifySummary
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.progress import Progress
from waltzctl.event_loop import run_async


def verify_nodes(
    addresses: Sequence[Address],
    reach: ConnectionFactory,
    options: NodeVerifyOptions,
    progress: Progress,
    show: Callable[[Finding | VerifySummary], None],
) -> None:
    """Verify nodes one after the other; on Ctrl-C the summary of what was checked so far is shown.

    Raises what the connections raise.
    """
    run_async(_verify(addresses, reach, options, progress, show))


async def _verify(
    addresses: Sequence[Address],
    reach: ConnectionFactory,
    options: NodeVerifyOptions,
    progress: Progress,
    show: Callable[[Finding | VerifySummary], None],
) -> None:
    work = NodeVerification(options, progress)
    try:
        for address in addresses:
            async with await reach.admin(address) as client, aclosing(work.findings(client)) as findings:
                async for finding in findings:
                    show(finding)
            if work.cut:
                break
    except (asyncio.CancelledError, KeyboardInterrupt):
        show(work.summary(interrupted=True))
        return
    show(work.summary())


def status_of_node(address: Address, reach: ConnectionFactory, partitions: Collection[int] | None) -> StorageStatus:
    """The status of a node, as it reports it.  Raises what the connection raises."""
    return run_async(_status(address, reach, partitions))


async def _status(address: Address, reach: ConnectionFactory, partitions: Collection[int] | None) -> StorageStatus:
    async with await reach.admin(address) as client:
        return await node_status(client, partitions)
