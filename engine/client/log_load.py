"""A load on a cluster's log, and a test of its guarantees: the commands ``log bench`` and ``log validate``.

`validate` is the release's test of the same name.  Every client appends under one common lock; the data is the client's
high-water mark + 1, the id that the transaction gets if no other is committed first.  Optimistic locking works if no transaction
of a validating client lies between the mark that a transaction was built on and that transaction.  Transactions of other
programs, which do not use the lock, may lie between; the release's test takes that for a failure.

Source: release 0.13.2 (its client and performance tools).
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

import numpy as np

from waltzctl.engine.client.latency import LatencyHistogram, LatencySummary
from waltzctl.engine.client.log_client import LogClient
from waltzctl.engine.client.log_transaction import Build, Draft, Lock
from waltzctl.engine.errors import DamageError

T = TypeVar("T")
_LONG = struct.Struct(">q")
_LOCK: Lock = ("validate-lock", 0)
"""The lock that all clients of a validation use."""


@dataclass(frozen=True, slots=True)
class LogLoadOptions:
    """`data_size`: bytes.  `seconds`: duration.  `lock_pool`: each append takes one of this many locks at random; 0: none."""

    partitions: tuple[int, ...]
    data_size: int = 100
    seconds: float = 5.0
    lock_pool: int = 0


@dataclass(frozen=True, slots=True)
class LogLoadResult:
    """`retries`: how often an append was built again.  `latency`: from the time a draft is taken until it is committed."""

    partitions: tuple[int, ...]
    transactions: int
    bytes: int
    seconds: float
    retries: int
    latency: LatencySummary


async def load(client: LogClient, options: LogLoadOptions) -> LogLoadResult:
    """Append to all partitions as fast as possible, with the client's `in_flight`.  Raises as `LogClient.append_all`."""
    data = bytes(options.data_size)
    calls = 0
    chance = Random()

    without_locks = Draft(data)

    def draft(_mark: int) -> Draft:
        nonlocal calls
        calls += 1
        if not options.lock_pool:
            return without_locks
        return Draft(data, write_locks=[("performance_analysis_lock", chance.randrange(options.lock_pool))])

    async def produce(partition: int) -> list[int]:
        """Append to one partition; returns the latency of each append in nanoseconds."""
        taken: list[int] = []

        def drafts() -> Iterator[Build]:
            while time.monotonic() < until:
                taken.append(-time.perf_counter_ns())  # minus the start; `committed` adds the end
                yield draft

        def committed(place: int, _transaction_id: int) -> None:
            taken[place] += time.perf_counter_ns()

        await client.append_all(partition, drafts(), on_commit=committed)
        return taken

    for partition in options.partitions:
        await client.append(partition, draft)  # mounts it
    calls = 0
    begun = time.monotonic()
    until = begun + options.seconds
    produced = await _gather(produce(partition) for partition in options.partitions)
    seconds = time.monotonic() - begun
    histogram, done = LatencyHistogram(), 0
    for taken in produced:
        histogram.add(np.asarray(taken, np.int64))
        done += len(taken)
    return LogLoadResult(options.partitions, done, done * options.data_size, seconds, calls - done, histogram.summary())


@dataclass(frozen=True, slots=True)
class Validation:
    """What was appended and verified.  `retries`: how often an append was built again after a conflict."""

    transactions: int
    retries: int
    seconds: float


async def validate(clients: Sequence[LogClient], partitions: Sequence[int], each: int) -> Validation:
    """Let every client append `each` transactions to random partitions, then read all of them and compare.

    Raises DamageError when a transaction is missing or duplicated, or when its lock did not prevent a conflict.
    """
    begun = time.monotonic()
    reader = clients[0]
    before = {partition: await reader.high_water_mark(partition) for partition in partitions}
    chance, calls = Random(), 0
    told: dict[tuple[int, int], int] = {}

    def draft(mark: int) -> Draft:
        nonlocal calls
        calls += 1
        return Draft(_LONG.pack(mark + 1), write_locks=[_LOCK])

    async def produce(client: LogClient) -> None:
        for _ in range(each):
            partition = chance.choice(partitions)
            found = await client.append(partition, draft)
            assert found is not None, "there always is a draft"
            place = partition, found.transaction_id
            if place in told:
                raise DamageError(f"partition {partition}: transaction {found.transaction_id} was given to two appends")
            told[place] = found.request_id.client

    await _gather(produce(client) for client in clients)
    after = {partition: await reader.high_water_mark(partition) for partition in partitions}
    for partition in partitions:
        await _check(reader, partition, before[partition], after[partition], told)
    missing = [place for place in told if place[1] > after[place[0]]]
    if missing:
        raise DamageError(f"partition {missing[0][0]}: transaction {missing[0][1]} was committed and is not there")
    return Validation(len(told), calls - len(told), time.monotonic() - begun)


async def _gather(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all coroutines, run concurrently.  The first one that fails cancels the others; its error is raised."""
    try:
        async with asyncio.TaskGroup() as tasks:
            begun = [tasks.create_task(one) for one in works]
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    return [one.result() for one in begun]


async def _check(client: LogClient, partition: int, before: int, last: int, told: dict[tuple[int, int], int]) -> None:
    expected, latest, writers = before, -1, {*told.values()}
    feed = client.feed(partition, after=before, until=lambda _: last, timeout=client.options.timeout)
    async for one in feed:
        expected += 1
        if one.transaction_id != expected:
            raise DamageError(f"partition {partition}: transaction {one.transaction_id} came where {expected} is next")
        data = await client.data(partition, expected)
        writer, client_id = told.get((partition, expected)), one.request_id.client
        if writer is None and client_id in writers:
            raise DamageError(
                f"partition {partition}: transaction {expected} is of client {client_id}, and none of its appends became that:"
                " one is there twice"
            )
        if writer is not None and client_id != writer:
            raise DamageError(
                f"partition {partition}: transaction {expected} was given to client {writer}, and is of client {client_id}"
            )
        if writer is not None:
            built_on = _LONG.unpack(data)[0] - 1
            if not latest <= built_on < expected:
                raise DamageError(
                    f"partition {partition}: transaction {expected} was written on transaction {built_on}, and transaction"
                    f" {latest} has the lock: optimistic locking does not work"
                )
            latest = expected
