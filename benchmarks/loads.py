"""Two clients that put the same load on any node: the released one (driver ``Bench``) and ours (`engine.client.load`).

Both append to an empty partition and truncate it again after each cell, and both read lists round and round what is there.
"""

from __future__ import annotations

import asyncio
import fnmatch
import itertools
import re
import ssl
import subprocess
from collections.abc import Coroutine, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import uvloop
from running_nodes import KEY, PARTITIONS, RunningNode, java

from waltzctl.engine.client.admin_client import AdminClient
from waltzctl.engine.client.load import LoadOptions, begin, run_load, survey, take_away
from waltzctl.engine.client.load_frames import AppendFrames, LoadPartition
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.net.tls import client_context
from waltzctl.engine.net.tls_options import TlsOptions
from waltzctl.formats.wire.records import SMALLEST_RECORD

Result = TypeVar("Result")

WARM_SECONDS = 0.6
MOST_MEGABYTES = 1500
"""Data of a cell at most; a cell that reaches it ends early (the released client's rule, ours runs its time)."""


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One load.  `records`: in a request, or asked for in a list.  `data`: bytes of a record's data."""

    operation: str
    partitions: int
    records: int
    data: int
    in_flight: int

    def __str__(self) -> str:
        return f"{self.operation} {self.partitions}x{self.records}x{self.data}x{self.in_flight}"


def like(cells: Iterable[Cell], patterns: str) -> list[Cell]:
    """Those of the cells that are like one of the patterns, which stand between commas."""
    wanted = [pattern.strip() for pattern in patterns.split(",")]
    return [cell for cell in cells if any(fnmatch.fnmatch(str(cell), pattern) for pattern in wanted)]


@dataclass(frozen=True, slots=True)
class Figures:
    """Records a second, and milliseconds within which half and 99 % of the requests were answered."""

    rate: float
    p50: float
    p99: float


def products(cells: Iterable[Cell]) -> Iterator[list[Cell]]:
    """The cells in groups that are whole products of partitions, sizes, records and in flight: one run of ``Bench`` each."""
    wanted = sorted(set(cells))
    for operation in sorted({cell.operation for cell in wanted}):
        own = [cell for cell in wanted if cell.operation == operation]
        if len(own) == len(list(_product(own))):
            yield own
            continue
        for partitions, data in sorted({(cell.partitions, cell.data) for cell in own}):
            part = [cell for cell in own if (cell.partitions, cell.data) == (partitions, data)]
            if len(part) == len(list(_product(part))):
                yield part
            else:
                yield from ([cell] for cell in part)


def _product(cells: list[Cell]) -> Iterator[tuple[int, ...]]:
    axes = zip(*((cell.partitions, cell.records, cell.data, cell.in_flight) for cell in cells), strict=True)
    return itertools.product(*(sorted(set(axis)) for axis in axes))


def _listed(values: Iterable[int]) -> str:
    return ",".join(map(str, sorted(set(values))))


_LINE = re.compile(
    r"(?P<operation>append|read) parts=(?P<partitions>\d+) (?:batch|list)=(?P<records>\d+)(?: data=(?P<data>\d+))?"
    r" inflight=(?P<in_flight>\d+) .*?(?:tx|rec)/s=(?P<rate>[\d.]+) .*p50ms=(?P<p50>[\d.]+) p99ms=(?P<p99>[\d.]+)"
)


def released_client(
    node: RunningNode, cells: list[Cell], *, seconds: float, seed: int, place: Path
) -> dict[Cell, Figures]:
    """One pass over a product of cells with the released client, after an unmeasured one that warms client and node."""
    first = cells[0]
    arguments: list[object] = [first.operation, "--host", "localhost", "--port", node.port, "--key", KEY]
    arguments += ["--num-partitions", PARTITIONS, "--rounds", 1, "--warm-rounds", 1, "--warm-seconds", WARM_SECONDS]
    arguments += ["--seconds", seconds, "--seed", seed, "--max-mb", MOST_MEGABYTES]
    arguments += [] if node.tls else ["--plain"]
    arguments += ["--partitions", _listed(cell.partitions for cell in cells)]
    arguments += ["--inflight", _listed(cell.in_flight for cell in cells)]
    records = _listed(cell.records for cell in cells)
    if first.operation == "append":
        arguments += ["--batch", records, "--data", _listed(cell.data for cell in cells)]
    else:
        arguments += ["--list", records]
    done = subprocess.run(java(place, "Bench", *arguments), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"the released client failed on {node.name} (which {node.state()}): {done.stdout[-1000:]}{done.stderr[-3000:]}"
        )
    found = {}
    for line in done.stdout.splitlines():
        match = _LINE.match(line)
        if match is None:
            raise SystemExit(f"the released client printed what is not understood: {line}")
        data = int(match["data"]) if match["data"] else first.data
        numbers = (int(match[name]) for name in ("partitions", "records"))
        cell = Cell(match["operation"], *numbers, data, int(match["in_flight"]))
        found[cell] = Figures(float(match["rate"]), float(match["p50"]), float(match["p99"]))
    if set(found) != set(cells):
        raise SystemExit(f"the released client measured {sorted(map(str, found))} and not {sorted(map(str, cells))}")
    return found


def our_client(node: RunningNode, cell: Cell, *, seconds: float) -> Figures:
    """One cell with our client, warmed up by the first part of it."""
    return _run(_measure(node, cell, seconds))


def fill(node: RunningNode, *, partitions: int, data: int, megabytes: int) -> None:
    """Append about so many megabytes of records to each of the first partitions, which must be empty."""
    _run(_fill(node, partitions, data, megabytes))


def empty(node: RunningNode) -> None:
    """Truncate every partition to nothing."""
    _run(_empty(node))


def assign(node: RunningNode) -> None:
    """Give the node all partitions."""
    _run(_assign(node))


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def _context(node: RunningNode) -> ssl.SSLContext | None:
    return client_context(TlsOptions(), trust_all=True) if node.tls else None


async def _measure(node: RunningNode, cell: Cell, seconds: float) -> Figures:
    context = _context(node)
    async with await StorageClient.connect("localhost", node.port, ssl_context=context) as client:
        options = LoadOptions(
            batch=cell.records,
            data_size=cell.data,
            in_flight=cell.in_flight,
            seconds=seconds,
            warm_up=WARM_SECONDS,
            read=cell.operation == "read",
        )
        places = await begin(client, await survey(client, range(cell.partitions)), options)
        done = await run_load(client, places, options, ssl_context=context)
        if not options.read:
            await take_away(client, places)
    found = done.latency.summary()
    if found.p50 is None or found.p99 is None:
        raise SystemExit(f"{node.name}: no answer within {seconds} s in {cell}")
    return Figures(done.transactions / done.seconds, found.p50 * 1000, found.p99 * 1000)


async def _fill(node: RunningNode, partitions: int, data: int, megabytes: int) -> None:
    batch = 1000
    async with await StorageClient.connect("localhost", node.port, ssl_context=_context(node)) as client:
        for partition in range(partitions):
            session = await _newer_session(client, partition)
            frames = AppendFrames([LoadPartition(partition, session, -1)], batch=batch, data_size=data)
            for number in range(max(1, megabytes * 1_000_000 // (batch * (data + 40)))):
                frame = frames.make(np.array([number], np.int64))
                records = frame[-1 - batch * (SMALLEST_RECORD + data) : -1]
                await client.append_encoded(session, partition, batch, records)


async def _newer_session(client: object, partition: int) -> int:
    from waltzctl.engine.client.load import survey

    assert isinstance(client, StorageClient)
    (found,) = await survey(client, [partition])
    await client.last_session_info(found.session_id + 1, partition)
    return found.session_id + 1


async def _empty(node: RunningNode) -> None:
    async with await StorageClient.connect("localhost", node.port, ssl_context=_context(node)) as client:
        for partition in range(PARTITIONS):
            await client.truncate(await _newer_session(client, partition), partition, -1)


async def _assign(node: RunningNode) -> None:
    async with await AdminClient.connect("localhost", node.admin_port, ssl_context=_context(node)) as client:
        await client.assign(list(range(PARTITIONS)))
