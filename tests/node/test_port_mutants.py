"""Mutated and random frames at both ports: whatever comes, the node goes on, serves others, and keeps nothing of it."""

from __future__ import annotations

import contextlib
import gc
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.builders import KEY
from tests.node.serving import SESSION, Peer, Serving, appends, serving, success
from waltzctl.engine.net.peer_limits import PortLimits
from waltzctl.formats.wire import admin, storage
from waltzctl.formats.wire.frame import Magic, keep_alive

DEFAULT, THOROUGH = 3_000, 1_000_000
ABREAST = 10
"""Connections that mutants are sent over at the same time."""
LAST_SESSION = 2**63 - 1
GROWTH = 64 << 20
"""Bytes by which the process may grow: allocators keep what they once had."""


def data_seeds() -> list[bytes]:
    messages: list[Any] = [
        storage.OpenRequest(KEY, 3),
        storage.LastSessionInfoRequest(SESSION, 1, 0),
        storage.SetLowWaterMarkRequest(SESSION, 2, 0, 5, True),
        storage.TruncateRequest(SESSION, 2, 0, 5, True),
        storage.RecordHeaderRequest(SESSION, 3, 0, 2),
        storage.RecordRequest(SESSION, 4, 0, 2),
        storage.MaxTransactionIdRequest(SESSION, 5, 0),
        storage.RecordHeaderListRequest(SESSION, 6, 0, 0, 10),
        storage.RecordListRequest(SESSION, 7, 0, 0, 10),
        storage.SuccessResponse(SESSION, 8, 0),
    ]
    return (
        [storage.encode(message) for message in messages]
        + appends(0, 2, records=2, size=20)
        + [keep_alive(Magic.STORAGE, 0)]
    )


def admin_seeds() -> list[bytes]:
    messages: list[Any] = [
        admin.OpenRequest(KEY, 3),
        admin.PartitionAvailableRequest(1, (0, 2), True),
        admin.PartitionAssignmentRequest(2, (0,), True),
        admin.RecordListRequest(3, 0, 0, 10),
        admin.LastSessionInfoRequest(4, 0),
        admin.MetricsRequest(5),
        admin.AssignedPartitionStatusRequest(6),
    ]
    return [admin.encode(message) for message in messages] + [keep_alive(Magic.ADMIN, 0)]


def mutants(seeds: list[bytes], source: random.Random) -> Iterator[bytes]:
    """For ever: frames with flipped bits, other bytes, other lengths, cut, joined, and noise."""
    edges = (0, 1, 2, 6, 7, 8, 21, 127, 128, 255, 256, 65535, 1 << 20, (1 << 27) + 1, 2**31 - 1, -1, -2, -(2**31))
    while True:
        frame = bytearray(source.choice(seeds))
        match source.randrange(8):
            case 0:
                place = source.randrange(len(frame))
                frame[place] ^= 1 << source.randrange(8)
            case 1:
                for _ in range(source.randrange(1, 5)):
                    frame[source.randrange(len(frame))] = source.randrange(256)
            case 2:
                frame[3:7] = struct.pack(">i", source.choice(edges))
            case 3:
                place = source.randrange(7, max(8, len(frame) - 3))
                frame[place : place + 4] = struct.pack(">i", source.choice(edges))
            case 4:
                del frame[source.randrange(7, len(frame) + 1) :]
                frame[3:7] = struct.pack(">i", len(frame) - 7)
            case 5:
                frame += source.randbytes(source.randrange(1, 9))
                frame[3:7] = struct.pack(">i", len(frame) - 7)
            case 6:
                body = source.randbytes(source.randrange(40))
                frame = bytearray(bytes(frame[:3]) + struct.pack(">i", len(body)) + body)
            case _:
                frame = bytearray(source.randbytes(source.randrange(1, 60)))
        yield bytes(frame)


def storm(served: Serving, connect: Callable[[], Peer], seeds: list[bytes], count: int, seed: int) -> None:
    """Have so many mutants looked at: each of some connections is sent one at a time, and replaced when it was closed."""
    found = mutants(seeds, random.Random(seed))
    peers: list[Peer] = []
    for _ in range(0, count, ABREAST):
        while len(peers) < ABREAST:
            peers.append(connect())
            peers[-1].socket.setblocking(False)
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.socket.send(next(found))
        served.settle()
        for peer in list(peers):
            if is_closed(peer):
                peer.close()
                peers.remove(peer)
    for peer in peers:
        peer.close()


def is_closed(peer: Peer) -> bool:
    try:
        while peer.socket.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.turns(10)
@pytest.mark.parametrize("port", ["data", "admin"])
@pytest.mark.parametrize("count", [DEFAULT, pytest.param(THOROUGH, marks=pytest.mark.long)])
def test_nothing_of_mutated_frames_remains_and_others_do_not_notice(tmp_path: Path, port: str, count: int) -> None:
    limits = PortLimits(stall_seconds=0.5)
    with serving(tmp_path / "d", partitions=3, records=10, limits=limits) as served, served.connect() as other:
        seeds, connect = {
            "data": (data_seeds(), served.connect),
            "admin": (admin_seeds(), served.connect_admin),
        }[port]
        chunk = 1000
        storm(served, connect, seeds, chunk, seed=-1)  # so that everything that is made once is made
        gc.collect()
        before = psutil.Process().memory_info().rss
        following = 10
        for start in range(0, count - chunk, chunk):
            storm(served, connect, seeds, chunk, seed=start)
            if port == "admin":  # mutants of its requests do take partitions away
                assert other.ask(storage.OpenRequest(KEY, 4)) == storage.SuccessResponse(-1, -1, -1)
                continue
            other.send(*appends(following, 1, partition=1, session=LAST_SESSION))
            assert other.receive() == success(following, 1, LAST_SESSION)
            following += 1
        while served.connections_of_data() > 1 or served.call(lambda: len(served.admin.connections)):
            served.settle()
        gc.collect()
        assert psutil.Process().memory_info().rss - before < GROWTH
        assert served.call(lambda: served.data.budget.used) == 0
        assert served.call(lambda: served.admin.budget.used) == 0
        with served.connect_admin() as peer:
            assert peer.ask(admin.MetricsRequest(1)).sequence == 1
