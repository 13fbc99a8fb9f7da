"""Copy a partition from one storage node to another: what the release's recover-partition does, without its defects.

During the copy the destination's partition is offline, so that no Waltz server writes to it.

1. The destination keeps its transactions up to its low-water mark: the cluster agreed on them.
2. Its transactions above that mark are truncated: they were perhaps never acknowledged.
3. The source's transactions from there up to the source's *local* low-water mark are copied: they are acknowledged.

The destination's session id does not change.  After each batch its low-water mark is raised to the last durable transaction, so
that after an interruption the next copy continues there.

Differences to the release: the nodes must be of one cluster; checksums are verified; the last transaction that is kept is
compared with the source's; a source that has fewer transactions than it reported is an error instead of an endless loop; batches
are bounded in bytes; the result is compared with the source.

Source: release 0.13.2.
"""

from __future__ import annotations

import asyncio
import enum
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from waltzctl.engine.client.admin_client import AdminClient
from waltzctl.engine.client.admin_records import DEFAULT_BYTES, DEFAULT_RECORDS, BatchSize, read_batches
from waltzctl.engine.client.change_plan import NodeAction, NodePlan, NodeStep, check_still_holds
from waltzctl.engine.client.partition_readings import (
    PartitionReading,
    need_assigned,
    need_read,
    read_cluster,
    read_partitions,
)
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.errors import (
    DamageError,
    InvalidRequestError,
    MismatchError,
    PartitionQuarantinedError,
    ProtocolError,
    RefusedError,
    StalePlanError,
)
from waltzctl.engine.findings import Code, Finding, make_finding
from waltzctl.engine.net.addresses import Address
from waltzctl.engine.progress import SILENT, Progress
from waltzctl.engine.shell_words import shell_join
from waltzctl.formats.wire.failure import FailureCode
from waltzctl.formats.wire.records import WireRecord

_SAMPLES = 32
"""Random places that `Comparison.SAMPLE` compares."""
_SAMPLE_RECORDS = 64
"""Records that are compared at each place."""
_MOST_DIFFERENCES = 100
"""Findings after which a comparison ends."""


class Comparison(enum.StrEnum):
    """How much of both sides is compared after a copy."""

    NONE = "none"
    SAMPLE = "sample"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """What is copied and how.

    `offline_first`: switch the destination off before the copy, and on again after a copy without findings.  `batch_records`,
    `batch_bytes`: approximate size of a batch.

    Two options only serve the commands that errors advise: `connecting`, the command-line options that reach both nodes, and
    `data_port`, the destination's data port where it is not the admin port - 1.
    """

    partition: int
    offline_first: bool = False
    batch_records: int = DEFAULT_RECORDS
    batch_bytes: int = DEFAULT_BYTES
    comparison: Comparison = Comparison.SAMPLE
    connecting: tuple[str, ...] = ()
    data_port: int | None = None

    def check(self) -> None:
        """Raise InvalidRequestError for a value out of range."""
        if self.batch_records < 1 or self.batch_bytes < 1:
            raise InvalidRequestError("a batch has at least one record and one byte")


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The steps of a copy, and the numbers they are based on.

    `keep`: the last transaction that the destination keeps.  `target`: the last one that it gets.  `session_id`: the
    destination's session.  `mark`: the higher of the destination's two marks; a node refuses a lower one.  `last`: its last
    transaction.  `offline`: the destination was offline before, perhaps because of an interrupted copy, and stays offline.
    """

    plan: NodePlan
    options: CopyOptions
    session_id: int
    mark: int
    last: int
    keep: int
    target: int
    offline: bool

    @property
    def records(self) -> int:
        """Number of transactions to copy."""
        return max(self.target - self.keep, 0)


@dataclass(frozen=True, slots=True)
class CopyResult:
    """What a copy did.  `records`, `bytes`: copied.  `compared`: records compared with the source; `findings`: differences."""

    records: int
    bytes: int
    compared: int
    last_transaction_id: int
    findings: tuple[Finding, ...]


async def plan_copy(source: AdminClient, destination: AdminClient, options: CopyOptions) -> CopyPlan:
    """Read the state of both nodes and plan the copy; changes nothing.

    =========================  =======================================================================================
    raised                     when
    =========================  =======================================================================================
    InvalidRequestError        the partition is not assigned to one of the nodes, or both are the same node
    MismatchError              the nodes report different clusters (see `_check_cluster`)
    RefusedError               the destination is online and `offline_first` is not set, or gives no transaction for an error
                               of its disk
    PartitionQuarantinedError  the destination accepts no writes
    DamageError                the last transaction that the destination would keep differs from the source's
    =========================  =======================================================================================
    """
    options.check()
    if source.address == destination.address:
        raise InvalidRequestError(f"{source.address}: a partition cannot be copied onto itself")
    await _check_cluster(source, destination)
    partition = options.partition
    (theirs,) = await read_partitions(source, {partition})
    need_assigned([theirs], str(source.address))
    (ours,) = await read_partitions(destination, {partition})
    need_assigned([ours], str(destination.address))
    if ours.out_of_service == FailureCode.QUARANTINED:
        raise PartitionQuarantinedError(
            f"{destination.address}: partition {partition} is quarantined: damage was found in it, and it accepts no writes",
            advice=_advice_to_restart(destination.address, source.address, options),
        )
    need_read(ours, destination.address)
    session, mark, local = (
        _reported(ours, name, destination.address) for name in ("session_id", "low_water_mark", "local_low_water_mark")
    )
    last = _reported(ours, "last_transaction_id", destination.address)
    target = _reported(theirs, "local_low_water_mark", source.address)
    keep = min(mark, last)
    steps: list[NodeStep] = []
    if keep < target:
        if ours.available and not options.offline_first:
            raise RefusedError(
                f"{destination.address}: partition {partition} is online, a Waltz server may be writing it",
                advice="switch it off first, or let --offline-first do it",
            )
        await _check_last_kept(source, destination, options, keep)
        steps = list(_steps(options, source.address, keep, last, target, switch=ours.available is True))
    plan = NodePlan("recover-partition", destination.address, tuple(steps), (partition,), source.address)
    return CopyPlan(plan, options, session, max(mark, local), last, keep, target, ours.available is False)


async def _check_cluster(source: AdminClient, destination: AdminClient) -> None:
    """Raise MismatchError, or RemoteError with that status, if the nodes are of different clusters.

    The records cannot tell: the destination may keep none.  Where one node does not report its cluster, as those of the release,
    it compares that of the other one with its own.
    """
    theirs, ours = await read_cluster(source), await read_cluster(destination)
    if theirs is not None and ours is not None and theirs != ours:
        raise MismatchError(
            f"{source.address}: cluster key {theirs.cluster_key}, {theirs.num_partitions} partitions; {destination.address} has"
            f" {ours.cluster_key}, {ours.num_partitions} partitions",
            advice="name a node of the same cluster",
        )
    if theirs is None and ours is not None:
        await source.open(ours.cluster_key, ours.num_partitions)
    elif theirs is not None and ours is None:
        await destination.open(theirs.cluster_key, theirs.num_partitions)


def _advice_to_restart(destination: Address, source: Address, options: CopyOptions) -> str:
    """Advice for a destination from which no copy can continue: commands that can be run as they are."""
    partition, connecting = options.partition, options.connecting
    port = () if options.data_port is None else ("--data-port", str(options.data_port))
    node = shell_join(("waltzctl", "node", str(destination), *port, *connecting))
    verify = shell_join(("waltzctl", "verify", source.url, "--partition", str(partition), *connecting))
    return "\n  ".join(
        (
            "either stop that node, mend its storage directory PATH with what that of another replica has, and start it again:",
            f"  waltzctl recover PATH --partition {partition} --from REPLICA",
            f"or, where the source is whole ({verify}), copy all of it anew:",
            f"  {node} remove-partition --partition {partition} --delete-storage-files",
            f"  {node} add-partition --partition {partition}",
            f"  {node} recover-partition --partition {partition} --from {source} --offline-first",
        )
    )


def _reported(reading: PartitionReading, name: str, address: Address) -> int:
    value = getattr(reading, name)
    if value is None:
        raise ProtocolError(
            str(address), f"the node does not tell the {name.replace('_', ' ')} of partition {reading.partition}"
        )
    assert isinstance(value, int)
    return value


def _steps(options: CopyOptions, source: Address, keep: int, last: int, target: int, *, switch: bool) -> list[NodeStep]:
    partition = options.partition
    steps = []
    if switch:
        steps.append(
            NodeStep(NodeAction.SWITCH_OFF, partition, "every read and write of a Waltz server is refused meanwhile")
        )
    if last > keep:
        steps.append(
            NodeStep(
                NodeAction.TRUNCATE,
                partition,
                f"what is above the low-water mark {keep} was perhaps never acknowledged; it is replaced by what {source} has",
                keep + 1,
                last,
                loses_data=True,
            )
        )
    steps.append(
        NodeStep(
            NodeAction.COPY, partition, f"from {source}, up to its local low-water mark {target}", keep + 1, target
        )
    )
    if switch:
        steps.append(NodeStep(NodeAction.SWITCH_ON, partition, "as it was before"))
    return steps


async def _check_last_kept(source: AdminClient, destination: AdminClient, options: CopyOptions, keep: int) -> None:
    """Raise DamageError unless the last transaction that the destination keeps is the same on both nodes."""
    if keep < 0:
        return
    partition = options.partition
    theirs = _record_of(await source.records(partition, keep, 1), keep)
    ours = _record_of(await destination.records(partition, keep, 1), keep)
    if ours is None:
        raise DamageError(
            f"{destination.address}: partition {partition} does not give transaction {keep}, which should stay",
            advice=_advice_to_restart(destination.address, source.address, options),
        )
    if theirs != ours:
        said = "does not have" if theirs is None else "has something else under"
        raise DamageError(
            f"{source.address}: partition {partition} {said} transaction {keep}, the last that {destination.address} would keep",
            advice="one of the two is wrong below the low-water mark: find out which before copying",
        )


def _record_of(records: tuple[WireRecord, ...], transaction_id: int) -> WireRecord | None:
    return records[0] if records and records[0].transaction_id == transaction_id else None


class Copy:
    """One copy.  When `run` fails or is cancelled, the next copy continues after the transactions that are durable by then."""

    def __init__(
        self,
        source: AdminClient,
        destination: AdminClient,
        data: StorageClient,
        plan: CopyPlan,
        *,
        progress: Progress = SILENT,
    ) -> None:
        """`data` is a connection to the destination's data port."""
        self._source = source
        self._destination = destination
        self._data = data
        self._plan = plan
        self._progress = progress
        self._partition = plan.options.partition
        self._records = 0
        self._bytes = 0
        self.position = plan.keep
        """The last transaction that is durable in the destination: the next copy continues after it."""
        self.begun = False
        """Whether the destination may have been changed already."""

    async def run(self) -> CopyResult:
        """Do the steps.

        Raises StalePlanError before anything is cut or copied, DamageError for a record whose data does not agree with its
        checksum, ProtocolError where a node contradicts what it reported, and what the calls of the two clients raise.
        """
        plan, partition = self._plan, self._partition

        async def replan() -> NodePlan:
            return (await plan_copy(self._source, self._destination, plan.options)).plan

        await check_still_holds(plan.plan, replan)
        actions = {step.action for step in plan.plan.steps}
        if NodeAction.SWITCH_OFF in actions:
            if not dict(await self._destination.assigned_status()).get(partition):
                raise StalePlanError(
                    f"{self._destination.address}: partition {partition} was switched off since the plan was made: another copy"
                    " may be at work; nothing was done",
                    advice="look at it again",
                )
            self.begun = True
            await self._destination.set_available([partition], False)
        self.begun = True
        if NodeAction.COPY in actions:
            await self._check_end(switched_off=NodeAction.SWITCH_OFF in actions)
            await self._copy()
        compared, findings = await self._compare()
        if NodeAction.SWITCH_ON in actions and not findings:
            await self._destination.set_available([partition], True)
        return CopyResult(self._records, self._bytes, compared, self.position, tuple(findings))

    async def _check_end(self, *, switched_off: bool) -> None:
        """Raise StalePlanError if the destination no longer ends where it did when the plan was made.

        Until it was offline a Waltz server may have written to it, which acknowledged what the cut would remove; and another copy
        may have filled it.  Such a destination is as available as before.
        """
        plan, where = self._plan, self._destination.address
        last = await self._data.max_transaction_id(plan.session_id, self._partition, offline=True)
        if last == plan.last:
            return
        if switched_off:
            await self._destination.set_available([self._partition], True)
        self.begun = False
        raise StalePlanError(
            f"{where}: partition {self._partition} ended with transaction {plan.last} when the plan was made, and ends with"
            f" {last} now: a Waltz server or another copy has written to it; nothing was cut or copied",
            advice="look at it again",
        )

    async def _copy(self) -> None:
        plan, partition, session = self._plan, self._partition, self._plan.session_id
        if plan.last > plan.keep:  # a cut that is not in the plan would remove what another copy has written
            kept = await self._data.truncate(session, partition, plan.keep, offline=True)
            if kept != plan.keep:
                raise ProtocolError(
                    str(self._data.address),
                    f"partition {partition} ends with transaction {kept} after a cut behind {plan.keep}",
                )
        self._progress.start(f"copying partition {partition}", plan.records)
        size = BatchSize(plan.options.batch_records, plan.options.batch_bytes)
        async with aclosing(read_batches(self._source, partition, plan.keep + 1, plan.target, size)) as batches:
            async for batch in batches:
                self._check(batch)
                await self._data.append(session, partition, batch, offline=True)
                last = batch[-1].transaction_id
                if last >= plan.mark:
                    await self._data.set_low_water_mark(session, partition, last, offline=True)
                self.position = last
                self._records += len(batch)
                self._bytes += sum(record.size for record in batch)
                self._progress.advance(len(batch))
        if self.position < plan.target:
            raise ProtocolError(
                str(self._source.address),
                f"partition {partition} has no transaction {self.position + 1}, though its local low-water mark is {plan.target}",
                advice="verify the source; what was copied stays, and the partition stays offline",
            )
        last = await self._data.max_transaction_id(session, partition, offline=True)
        if last != plan.target:
            raise ProtocolError(
                str(self._data.address),
                f"partition {partition} ends with transaction {last} after a copy up to {plan.target}",
            )

    def _check(self, batch: tuple[WireRecord, ...]) -> None:
        """Raise unless the records follow `position` without a gap and their checksums are right."""
        for expected, record in enumerate(batch, self.position + 1):
            if record.transaction_id != expected:
                raise ProtocolError(
                    str(self._source.address),
                    f"partition {self._partition} gave transaction {record.transaction_id} in place of {expected}",
                )
            if not record.data_ok:
                finding = damaged_data(self._source.address, self._partition, record)
                raise DamageError(
                    f"{self._source.address}: a record of partition {self._partition} is damaged; nothing after transaction"
                    f" {self.position} was copied",
                    [finding],
                    advice="copy from another replica; the partition stays offline, and what was copied stays",
                )

    async def _compare(self) -> tuple[int, list[Finding]]:
        target, how = min(self._plan.target, self.position), self._plan.options.comparison
        if how is Comparison.NONE or target < 0:
            return 0, []
        compared = 0
        findings: list[Finding] = []
        spans = [(0, target)] if how is Comparison.ALL else _spans(self._plan.keep, target)
        self._progress.start(f"comparing partition {self._partition}", sum(end - begin + 1 for begin, end in spans))
        for begin, end in spans:
            async with aclosing(self._pairs(begin, end)) as pairs:
                async for transaction_id, ours, theirs in pairs:
                    compared += 1
                    self._progress.advance(1)
                    if ours != theirs:
                        findings.append(self._difference(transaction_id, ours, theirs))
                    if len(findings) == _MOST_DIFFERENCES:
                        return compared, findings
        return compared, findings

    async def _pairs(
        self, first: int, last: int
    ) -> AsyncGenerator[tuple[int, WireRecord | None, WireRecord | None], None]:
        """For each transaction id, the destination's record and the source's; None where a node has none."""
        size, position = BatchSize(), first
        while position <= last:
            count = min(size.count, last - position + 1)
            ours, theirs = await asyncio.gather(
                self._destination.records(self._partition, position, count),
                self._source.records(self._partition, position, count),
            )
            size.learn(ours)
            common = max(min(len(ours), len(theirs)), 1)
            for place in range(common):
                yield (
                    position + place,
                    ours[place] if place < len(ours) else None,
                    theirs[place] if place < len(theirs) else None,
                )
            position += common

    def _difference(self, transaction_id: int, ours: WireRecord | None, theirs: WireRecord | None) -> Finding:
        if ours is not None and not ours.data_ok:
            return damaged_data(self._destination.address, self._partition, ours)
        said = (
            "is missing on one side"
            if ours is None or theirs is None
            else f"differs from that of {self._source.address}"
        )
        return make_finding(
            Code.REPLICA_DIFFERS,
            self._destination.address.url,
            f"transaction {transaction_id} {said}",
            partition=self._partition,
            transaction_id=transaction_id,
        )


def damaged_data(address: Address, partition: int, record: WireRecord) -> Finding:
    """The finding for a record whose data does not agree with its checksum."""
    from waltzctl.formats.checksums import crc32

    return make_finding(
        Code.DATA_CHECKSUM,
        address.url,
        f"transaction {record.transaction_id}: the data has checksum {crc32(record.data):08x}, not {record.data_checksum:08x}",
        partition=partition,
        transaction_id=record.transaction_id,
        length=len(record.data),
    )


def _spans(keep: int, target: int) -> list[tuple[int, int]]:
    """The ranges of a sample: both ends of the copied range, and random places of the whole partition."""
    starts = {max(keep, 0), keep + 1, max(target - _SAMPLE_RECORDS + 1, 0)}
    starts |= {random.randint(0, target) for _ in range(_SAMPLES)}
    spans: list[tuple[int, int]] = []
    for start in sorted(start for start in starts if start <= target):
        begin = max(start, spans[-1][1] + 1) if spans else start
        end = min(start + _SAMPLE_RECORDS - 1, target)
        if begin <= end:
            spans.append((begin, end))
    return spans
