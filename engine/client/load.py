"""A load generator for the data port of a node, ours or a released one: appends or reads as fast as the node accepts them.

Every partition has the same number of requests in flight; each response is followed by the next request at once.
`engine.client.load_frames` makes the requests, and the node's own frame splitter finds the responses, both for all responses of
one read from the socket together, so that a request costs the load generator less than the node.

`survey` runs first.  It changes nothing and fences no session off: it sends a request without a valid session id, and reads the
current session from the node's refusal.  A load of appends then begins a session above the current one, which fences off a server
that uses the partition.  A load of reads uses the current session.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from waltzctl.engine.client.latency import LatencyHistogram
from waltzctl.engine.client.load_connection import LoadConnection, Measured
from waltzctl.engine.client.load_frames import LoadPartition
from waltzctl.engine.client.load_options import LoadOptions, SurveyedPartition
from waltzctl.engine.client.open_connection import open_connection
from waltzctl.engine.client.storage_client import StorageClient
from waltzctl.engine.errors import DeadlineError, PeerUnreachableError, RefusedError, RemoteError
from waltzctl.engine.net.addresses import Address

__all__ = [
    "LoadOptions",
    "LoadPartition",
    "LoadResult",
    "SurveyedPartition",
    "begin",
    "run_load",
    "survey",
    "take_away",
]

_NO_SESSION = -1
"""A session id below every real one."""
_CURRENT_SESSION = re.compile(r"session id has changed to (-?\d+), but request context contains")
"""The text with which a node refuses a lower session id (release 0.13.2); it names the current session."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What was done in `seconds` after the warm-up.

    `last_transaction_ids`: the last transaction of each partition of the load at the end; -1: the partition is empty.
    """

    seconds: float
    requests: int
    transactions: int
    data_bytes: int
    latency: LatencyHistogram
    last_transaction_ids: tuple[int, ...]


async def survey(client: StorageClient, partitions: Sequence[int]) -> tuple[SurveyedPartition, ...]:
    """The session and last transaction of each partition; begins no session.  Raises RemoteError and what the calls raise."""
    found = []
    for partition in partitions:
        session = await _current_session(client, partition)
        found.append(SurveyedPartition(partition, session, await client.max_transaction_id(session, partition)))
    return tuple(found)


async def _current_session(client: StorageClient, partition: int) -> int:
    try:
        await client.last_session_info(_NO_SESSION, partition)
    except RemoteError as error:
        told = _CURRENT_SESSION.search(error.message)
        if told is None:
            raise
        return int(told[1])
    return _NO_SESSION


async def begin(
    client: StorageClient, surveyed: Sequence[SurveyedPartition], options: LoadOptions
) -> tuple[LoadPartition, ...]:
    """Begin the load's session in each partition.

    Raises RefusedError when a partition has fewer records than the lists that the load reads, and what the calls raise.
    """
    options.check()
    places = []
    for found in surveyed:
        session = options.session_of(found)
        await client.last_session_info(session, found.partition)
        last = await client.max_transaction_id(session, found.partition)
        if options.read and last + 1 < options.batch:
            raise RefusedError(
                f"{client.address}: partition {found.partition} holds {last + 1} records, too few for lists of {options.batch}",
                advice="read shorter lists, or fill it first: waltzctl bench without --read",
            )
        places.append(LoadPartition(found.partition, session, last))
    return tuple(places)


async def run_load(
    client: StorageClient,
    places: Sequence[LoadPartition],
    options: LoadOptions,
    *,
    ssl_context: ssl.SSLContext | None,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> LoadResult:
    """Run the load over connections of its own; `client` reads the state of the partitions at the end.

    `on_phase` is called with ``warm-up``, ``measuring`` and ``finishing``.  Raises RemoteError, DeadlineError,
    PeerUnreachableError, ProtocolError.
    """
    options.check()
    shares = [places[start :: options.connections] for start in range(min(options.connections, len(places)))]
    connections: list[LoadConnection] = []
    try:
        for share in shares:
            connection = await _connect(client.address, share, options, ssl_context)
            connections.append(connection)
        measured, seconds = await _drive(connections, options, on_phase)
    finally:
        for connection in connections:
            connection.abort()
    histogram = LatencyHistogram()
    for one in measured:
        histogram.merge(one.latency)
    return LoadResult(
        seconds,
        sum(one.requests for one in measured),
        sum(one.transactions for one in measured),
        sum(one.data_bytes for one in measured),
        histogram,
        tuple([await client.max_transaction_id(place.session_id, place.partition) for place in places]),
    )


async def take_away(client: StorageClient, places: Sequence[LoadPartition]) -> None:
    """Truncate every partition to its last transaction before the load.

    After an aborted load a node may still execute queued appends; they no longer continue the partition, so it refuses them.
    """
    for place in places:
        await client.truncate(place.session_id, place.partition, place.last_transaction_id)


async def _connect(
    address: Address, places: Sequence[LoadPartition], options: LoadOptions, ssl_context: ssl.SSLContext | None
) -> LoadConnection:
    connection = LoadConnection(str(address), places, options)
    try:
        async with asyncio.timeout(options.timeout):
            await open_connection(
                lambda: connection,
                address,
                ssl=ssl_context,
                server_hostname=address.host if ssl_context is not None else None,
            )
            await connection.greeted
    except BaseException as error:
        connection.abort()
        if isinstance(error, TimeoutError):
            raise DeadlineError(str(address), f"no greeting within {options.timeout:g} s") from None
        if isinstance(error, OSError):
            raise PeerUnreachableError(str(address), f"cannot connect: {error.strerror or error}") from None
        raise
    return connection


async def _drive(
    connections: Sequence[LoadConnection], options: LoadOptions, on_phase: Callable[[str], None]
) -> tuple[list[Measured], float]:
    over = asyncio.wait([connection.ended for connection in connections], return_when=asyncio.FIRST_EXCEPTION)
    ended = asyncio.ensure_future(over)
    try:
        on_phase("warm-up")
        for connection in connections:
            connection.begin()
        await _until(ended, options.warm_up, connections, options)
        on_phase("measuring")
        began = time.perf_counter()
        for connection in connections:
            connection.reset()
        await _until(ended, options.seconds, connections, options)
        measured = [connection.reset() for connection in connections]
        seconds = time.perf_counter() - began
        on_phase("finishing")
        for connection in connections:
            connection.finish()
        await _until(ended, None, connections, options)
    finally:
        ended.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await ended
    return measured, seconds


async def _until(
    ended: asyncio.Future[Any], seconds: float | None, connections: Sequence[LoadConnection], options: LoadOptions
) -> None:
    """Wait `seconds`, or (None) until all connections have ended.

    Raises the error of a connection that failed, and DeadlineError when one gets no response for `options.timeout` seconds.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    while True:
        left = 1.0 if deadline is None else min(1.0, deadline - time.monotonic())
        if left > 0:
            await asyncio.wait([ended], timeout=left)
        for connection in connections:
            connection.expect_progress(options.timeout)
            if connection.ended.done() and (error := connection.ended.exception()) is not None:
                raise error
        if ended.done() or (deadline is not None and time.monotonic() >= deadline):
            return
