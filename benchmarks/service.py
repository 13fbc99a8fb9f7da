"""What a partition's service costs in front of the disk: appends within one process, no sockets.

    python benchmarks/service.py [--seconds 1] [--partitions 1] [--size 100] [--directory DIR] [--json] [--profile CELL]

One thread plays the data port: it keeps so many requests in flight, hands over as one run whatever was answered at once, and is
woken through a queue.  Printed for each batch (records a request) and number of requests in flight: requests and records a
second, median and 99th percentile of the latency in milliseconds, and requests that shared a flush; in front of it what one
write and flush of a record takes on this disk, without anything of ours.  ``--profile 1x100`` prints where the worker's time goes
in that cell.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import logging
import os
import pstats
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar

import numpy as np
from generated import workplace

from waltzctl.engine.net.executor import Executor
from waltzctl.engine.node import hosted_storage
from waltzctl.engine.node.hosted_storage import HostedStorage, ServiceOptions
from waltzctl.engine.node.node_metrics import NodeMetrics
from waltzctl.engine.node.partition_service import Admission, PartitionService
from waltzctl.engine.node.requests import AppendRun
from waltzctl.engine.scan import wire_code
from waltzctl.engine.scan.frames import FrameColumn, FrameSplitter
from waltzctl.engine.storage.directory import StorageDirectory, create_cluster
from waltzctl.formats.checksums import crc32
from waltzctl.formats.wire.frame import FRAME_HEADER, Magic
from waltzctl.formats.wire.records import WIRE_RECORD_HEAD, WIRE_RECORD_TAIL
from waltzctl.formats.wire.storage import PREFIX, AppendRequest

BATCHES = (1, 10, 100, 1000)
IN_FLIGHT = (1, 10, 100)
SESSION = 1
SWITCH_INTERVAL = 0.0005
NEEDED = 4 << 30


def frames(first: int, requests: int, batch: int, size: int, partition: int) -> bytes:
    """Append frames of consecutive records, as they stand on the wire."""
    one = np.dtype([("head", WIRE_RECORD_HEAD.dtype), ("data", f"V{size}"), ("tail", WIRE_RECORD_TAIL.dtype)])
    whole = np.dtype(
        [
            ("frame", FRAME_HEADER.dtype),
            ("prefix", PREFIX.dtype),
            ("count", ">i4"),
            ("records", one, (batch,)),
            ("offline", "u1"),
        ]
    )
    rows = np.zeros(requests, whole)
    rows["frame"]["magic"], rows["frame"]["length"] = Magic.STORAGE, whole.itemsize - FRAME_HEADER.size
    rows["prefix"]["type"], rows["prefix"]["session_id"] = AppendRequest.TYPE, SESSION
    rows["prefix"]["sequence"], rows["prefix"]["partition"] = np.arange(requests), partition
    rows["count"] = batch
    data = os.urandom(size)
    rows["records"]["head"]["transaction_id"] = first + np.arange(requests * batch).reshape(requests, batch)
    rows["records"]["head"]["data_length"] = size
    rows["records"]["data"] = np.void(data)
    rows["records"]["tail"]["data_checksum"] = crc32(data)
    return rows.tobytes()


class Driver:
    """A peer of one partition that keeps a number of requests in flight until it has none left."""

    def __init__(self, service: PartitionService, buffer: bytes, requests: int, in_flight: int) -> None:
        self.service, self.in_flight, self.count = service, in_flight, requests
        self.buffer = buffer
        splitter = FrameSplitter(magic=Magic.STORAGE, max_body=1 << 30, rows=requests + 1)
        self.table = splitter.split(buffer, 0, len(buffer), 0).table
        self.frame = len(buffer) // requests
        self.sent, self.answered, self.runs = 0, 0, 0
        self.submitted = np.zeros(requests)
        self.latency = np.zeros(requests)
        self.closed = False
        self.wake: SimpleQueue[Driver] = SimpleQueue()
        self.posted: SimpleQueue[tuple[bytes | list[bytes], int]] = SimpleQueue()

    def post(self, answer: bytes | list[bytes], requests: int, size: int) -> None:
        self.posted.put((answer, requests))
        self.wake.put(self)

    def break_off(self, reason: str, requests: int, size: int) -> None:
        raise AssertionError(reason)

    def later(self, call: Callable[..., object], *arguments: object) -> None:
        call(*arguments)

    def room_for_answer(self) -> int:
        return 1 << 30

    def answers(self) -> None:
        """Take what was answered."""
        while not self.posted.empty():
            answer, requests = self.posted.get()
            size = 28 * requests
            if not isinstance(answer, bytes) or len(answer) != size:
                raise AssertionError("an append failed")
            done = slice(self.answered, self.answered + requests)
            self.latency[done] = time.perf_counter() - self.submitted[done]
            self.answered += requests

    def send(self) -> None:
        """Hand over as one run what may be in flight."""
        stop = min(self.answered + self.in_flight, self.count)
        if stop == self.sent:
            return
        table = self.table[self.sent : stop].copy()
        first = self.sent * self.frame
        table[:, int(FrameColumn.BODY)] -= first
        buffer = self.buffer[first : stop * self.frame]
        size = (stop - self.sent) * (self.frame - FRAME_HEADER.size)
        self.submitted[self.sent : stop] = time.perf_counter()
        if self.service.submit(AppendRun(self, buffer, table, size, time.monotonic())) is not Admission.ACCEPTED:
            raise AssertionError("the queue is full")
        self.sent = stop
        self.runs += 1


def drive(drivers: list[Driver]) -> float:
    """Let all peers run to their end in this thread; seconds."""
    wake = drivers[0].wake
    for driver in drivers:
        driver.wake = wake
    begin = time.perf_counter()
    for driver in drivers:
        driver.send()
    while any(driver.answered < driver.count for driver in drivers):
        driver = wake.get()
        driver.answers()
        driver.send()
    return time.perf_counter() - begin


def measure(directory: Path, batch: int, in_flight: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One cell."""
    path = directory / f"{batch}x{in_flight}"
    create_cluster([path], num_partitions=arguments.partitions)
    metrics = NodeMetrics()
    hosted = HostedStorage(
        StorageDirectory.open(path), options=ServiceOptions(), metrics=metrics, log=logging.getLogger("benchmark")
    )
    try:
        requests, seconds, drivers, firsts = (
            max(in_flight * 2, 50),
            0.0,
            [],
            dict.fromkeys(range(arguments.partitions), 0),
        )
        while True:  # the first round warms up and tells how many requests make the wanted time
            drivers = []
            for number in range(arguments.partitions):
                service = hosted.service(number)
                assert service is not None
                buffer = frames(firsts[number], requests, batch, arguments.size, number)
                firsts[number] += requests * batch
                drivers.append(Driver(service, buffer, requests, in_flight))
            seconds = drive(drivers)
            most = max((256 << 20) // (batch * (arguments.size + 40) + 40) // arguments.partitions, 50)
            if seconds > arguments.seconds / 2 or requests >= most:
                break
            requests = min(max(int(requests * min(arguments.seconds / seconds, 20)), requests + 1), most)
        latency = np.concatenate([driver.latency for driver in drivers]) * 1000
        done = requests * arguments.partitions
        flushes = sum(metrics.partition(number).flush_latency.count for number in range(arguments.partitions))
        shared = sum(metrics.partition(number).flush_requests.sum for number in range(arguments.partitions))
        return {
            "batch": batch,
            "in_flight": in_flight,
            "requests_per_second": done / seconds,
            "records_per_second": done * batch / seconds,
            "p50_ms": float(np.percentile(latency, 50)),
            "p99_ms": float(np.percentile(latency, 99)),
            "requests_per_flush": shared / flushes,
        }
    finally:
        hosted.close()


def flush_time(directory: Path, size: int) -> float:
    """Milliseconds of one write and flush, the median; no code of ours."""
    descriptor = os.open(directory / "flush", os.O_RDWR | os.O_CREAT)
    times = []
    for number in range(2000):
        begin = time.perf_counter()
        os.pwrite(descriptor, bytes(size), number * size)
        os.fdatasync(descriptor)
        times.append(time.perf_counter() - begin)
    os.close(descriptor)
    return statistics.median(times) * 1000


class ProfiledPool(Executor):
    """Workers whose time is noted."""

    profiles: ClassVar[list[cProfile.Profile]] = []

    def _work(self) -> None:
        profile = cProfile.Profile()
        self.profiles.append(profile)
        profile.runcall(super()._work)


def profiled(work: Callable[[], object]) -> None:
    """Run `work` and print where its workers' time went."""
    hosted_storage.Executor = ProfiledPool  # type: ignore[misc]
    work()
    stats = pstats.Stats(ProfiledPool.profiles[0])
    for profile in ProfiledPool.profiles[1:]:
        stats.add(profile)
    stats.sort_stats("tottime").print_stats(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--profile", metavar="CELL")
    parser.add_argument("--cell", metavar="CELL", action="append")
    arguments = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL)
    loops = wire_code.prepare()
    cells = [(batch, in_flight) for batch in BATCHES for in_flight in IN_FLIGHT]
    chosen = arguments.cell or ([arguments.profile] if arguments.profile else None)
    if chosen:
        cells = [tuple(map(int, cell.split("x"))) for cell in chosen]  # type: ignore[misc]
    with workplace(arguments.directory, NEEDED) as directory:
        flush = flush_time(directory, arguments.size + 40)
        if not arguments.json:
            print(f"loops: {loops}; one write and flush: {flush:.3f} ms; {arguments.partitions} partitions")
            print(" records  in flight   requests/s    records/s   p50 ms   p99 ms  a flush")
        found = []
        for batch, in_flight in cells:
            if arguments.profile:
                profiled(lambda b=batch, n=in_flight: measure(directory, b, n, arguments))
                continue
            cell = measure(directory, batch, in_flight, arguments)
            found.append(cell)
            if not arguments.json:
                print(
                    f"{batch:8} {in_flight:10} {cell['requests_per_second']:12,.0f} {cell['records_per_second']:12,.0f}"
                    f" {cell['p50_ms']:8.3f} {cell['p99_ms']:8.3f} {cell['requests_per_flush']:8.1f}"
                )
        if arguments.json:
            print(json.dumps({"flush_ms": flush, "loops": loops, "partitions": arguments.partitions, "cells": found}))


if __name__ == "__main__":
    main()
