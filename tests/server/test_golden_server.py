"""What a released server answered to each request of a recorded run, in every version: ours answers the same bytes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.golden import GOLDEN, needs_golden
from tests.node.running import run
from tests.server.serving import QUICK, Stored
from tests.server.storing import LOG, running_cluster, until
from waltzctl.engine.server.client_port import Answers
from waltzctl.engine.server.log_server import LogServer
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.wire import client as wire
from waltzctl.formats.wire.frame import FRAME_HEADER, decode_frame_header
from waltzctl.formats.wire.records import WireRecord

PARTITIONS = 3


def _steps() -> list[dict[str, Any]]:
    assert GOLDEN is not None
    with (GOLDEN / "wire" / "server-steps.jsonl").open() as lines:
        return [json.loads(line) for line in lines]


def _fed(steps: list[dict[str, Any]], partition: int) -> list[wire.FeedData]:
    """What a mount that began at nothing was fed before anything was appended to the partition."""
    mount = next(one for one in steps if one["step"].startswith(f"Mount p{partition} from -1"))
    messages = [wire.decode(bytes.fromhex(one["hex"])[7:], mount["version"]) for one in mount["responses"]]
    return [one for one in messages if isinstance(one, wire.FeedData)]


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await asyncio.wait_for(reader.readexactly(FRAME_HEADER.size), 20)
    return head + await reader.readexactly(decode_frame_header(head).length)


@needs_golden
def test_every_recorded_request_is_answered_as_the_release_answered_it(tmp_path: Path) -> None:
    steps = _steps()
    high_water_mark = steps[1]["responses"][0]["fields"]["transactionId"]
    connectivity = next(one for one in steps if one["step"] == "CheckStorageConnectivity")["responses"][0]
    nodes = tuple(connectivity["fields"]["storageConnectivityMap"].items())

    async def reached() -> tuple[tuple[str, bool], ...]:
        return nodes

    async def prefer(partitions: tuple[int, ...], preferred: bool) -> bool:
        return max(partitions) < PARTITIONS

    async def work() -> None:
        async with running_cluster(tmp_path, 1, partitions=PARTITIONS) as cluster:
            stored = await cluster.connect(cluster.names[0])
            first = [WireRecord.make(n, RequestId(1, 1, 0, n), 0, b"before") for n in range(high_water_mark + 1)]
            second = [WireRecord.make(one.transaction_id, one.request_id, one.header, b"") for one in _fed(steps, 1)]
            for partition, records in ((0, first), (1, second)):
                await stored.set_low_water_mark(9, partition, -1)
                await stored.append(9, partition, records)
            await stored.close()
            server = LogServer(Stored(cluster), cluster.connect, Answers(reached, prefer), log=LOG, options=QUICK)
            host, port = await server.start("127.0.0.1", 0, None)
            await server.assign(dict.fromkeys(range(PARTITIONS), 2))  # the latest that was recorded
            await until(lambda: all(one.high_water_mark > -2 for one in server.partitions.values()))
            await _replay(steps, host, port)
            await server.stop(1.0)

    run(work())


async def _replay(steps: list[dict[str, Any]], host: str, port: int) -> None:
    said = 0
    reader, writer = await asyncio.open_connection(host, port)
    for number, step in enumerate(steps):
        if step["step"].startswith("open-connection") and number:
            writer.close()
            reader, writer = await asyncio.open_connection(host, port)
            version = step["version"]
        version = steps[number + 1]["version"] if step["step"].startswith("open-connection") else step["version"]
        request = bytes.fromhex(step["request"]["hex"])
        if step["step"].startswith("open-connection"):
            request = _hello_of(version)
        writer.write(request)
        for expected in step["responses"]:
            got, wanted = await _frame(reader), bytes.fromhex(expected["hex"])
            if expected["fields"].get("exception"):  # the words are each server's own
                one, other = (wire.decode(frame[7:], version) for frame in (got, wanted))
                assert isinstance(one, wire.TransactionDataResponse)
                assert isinstance(one.outcome, wire.TransactionRefused)
                assert (one.request_id, one.transaction_id) == (other.request_id, other.transaction_id)  # type: ignore[union-attr]
            else:
                assert got == wanted, f"line {number + 1}: {step['step']}"
            said += 1
        if step["serverClosedConnection"]:
            assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()
    assert said > 900


def _hello_of(version: int) -> bytes:
    from waltzctl.formats.wire.hello import WALTZ_CLIENT, Hello

    return Hello((version,), WALTZ_CLIENT).encode()
