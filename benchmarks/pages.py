"""Page stores measured: durable writes and reads by size and threads, amplification over overwrites, opening, memory.

    python benchmarks/pages.py [--quick] [--json] [--only rates,amplification,opening] [--sizes 64,1024] [--threads 1,4,16]
                               [--rounds N] [--seconds S] [--directory DIR]

Beside ours the same is done with SQLite (WAL, synchronous=FULL) and, where they are installed, LMDB (`lmdb`) and RocksDB
(`rocksdict`, WAL with sync), each in the manner in which it promises the same: a write is durable when it returns.  One write
is one page.  Ours checks every page that it reads from a file and collects garbage meanwhile.

*rates*: each store by itself for some seconds a cell, the stores in turns, the median of the rounds.  Pages of different bytes
are written in order, written over at random, read in order and read at random; all of them fit into the system's memory.
*amplification*: a tenth of the pages is written over again and again, as by a service in a day; bytes given to the system for
each byte of a page, and bytes on the disk for each byte that is in use.  *opening* restores a store from a checkpoint and from
plain replay; wanted: a tenth of the replay.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import sqlite3
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from generated import workplace

from waltzctl.engine.pages.page_batch import WriteBatch
from waltzctl.engine.pages.page_gc import PageCollector, collect_garbage
from waltzctl.engine.pages.page_storage import PageStorage

COLLECT_EVERY = 1.0
"""Seconds."""


class Store(Protocol):
    """Of whoever is measured; one for all threads."""

    def write(self, page: int, data: bytes) -> None: ...
    def read(self, page: int) -> int: ...
    def close(self) -> None: ...


class Ours:
    """A page store, with somebody who collects garbage."""

    def __init__(self, path: Path) -> None:
        self.store = PageStorage.create(path)
        self._collector = PageCollector(self.store, COLLECT_EVERY)
        self._collector.start()

    def write(self, page: int, data: bytes) -> None:
        self.store.write(WriteBatch().put_page(page, data))

    def read(self, page: int) -> int:
        return len(self.store.read(page).data)

    def close(self) -> None:
        self._collector.stop()
        self.store.close()


class Sqlite:
    """A connection for each thread, as its documents advise."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self._path = path / "pages.db"
        self._local = threading.local()
        self._connection().execute("create table pages(id integer primary key, data blob)")

    def _connection(self) -> sqlite3.Connection:
        if not hasattr(self._local, "connection"):
            made = sqlite3.connect(self._path, isolation_level=None, timeout=60)
            made.execute("pragma journal_mode=wal")
            made.execute("pragma synchronous=full")
            self._local.connection = made
        found: sqlite3.Connection = self._local.connection
        return found

    def write(self, page: int, data: bytes) -> None:
        self._connection().execute("insert or replace into pages values(?, ?)", (page, data))

    def read(self, page: int) -> int:
        return len(self._connection().execute("select data from pages where id=?", (page,)).fetchone()[0])

    def close(self) -> None:
        self._connection().close()


class Lmdb:
    """One environment, a transaction for each write."""

    def __init__(self, path: Path) -> None:
        import lmdb

        self._environment: Any = lmdb.open(str(path), map_size=16 << 30)

    def write(self, page: int, data: bytes) -> None:
        with self._environment.begin(write=True) as transaction:
            transaction.put(page.to_bytes(8, "big"), data)

    def read(self, page: int) -> int:
        with self._environment.begin() as transaction:
            return len(transaction.get(page.to_bytes(8, "big")))

    def close(self) -> None:
        self._environment.close()


class Rocks:
    """Writes through the log with sync."""

    def __init__(self, path: Path) -> None:
        import rocksdict

        self._database: Any = rocksdict.Rdict(str(path))
        self._durable: Any = rocksdict.WriteOptions()
        self._durable.sync = True

    def write(self, page: int, data: bytes) -> None:
        self._database.put(page, data, write_opt=self._durable)

    def read(self, page: int) -> int:
        return len(self._database[page])

    def close(self) -> None:
        self._database.close()


STORES: dict[str, Callable[[Path], Store]] = {"ours": Ours, "sqlite": Sqlite, "lmdb": Lmdb, "rocksdb": Rocks}


@dataclass(frozen=True)
class Row:
    """What a store did in a cell.  Rates in pages a second, times in milliseconds; medians of the rounds."""

    store: str
    act: str
    size: int
    threads: int
    rate: float
    p99_ms: float


def _timed(
    act: Callable[[int], object], order: Callable[[int], int], threads: int, seconds: float
) -> tuple[float, float]:
    """Rate and 99th percentile, in milliseconds, of an act on the pages of an order."""
    begin, turns = threading.Barrier(threads + 1), itertools.count()
    times: list[list[float]] = [[] for _ in range(threads)]

    def work(mine: list[float]) -> None:
        begin.wait()
        now = time.perf_counter()
        until = now + seconds
        while now < until:
            act(order(next(turns)))
            then, now = now, time.perf_counter()
            mine.append(now - then)

    workers = [threading.Thread(target=work, args=(mine,)) for mine in times]
    for one in workers:
        one.start()
    begin.wait()
    began = time.perf_counter()
    for one in workers:
        one.join()
    elapsed = time.perf_counter() - began
    taken = sorted(itertools.chain.from_iterable(times))
    return len(taken) / elapsed, taken[int(len(taken) * 0.99)] * 1e3


def _round(store: Store, size: int, threads: int, seconds: float) -> dict[str, tuple[float, float]]:
    count = min(2000, max(64, (64 << 20) // size))
    rng = random.Random(size)
    contents = [rng.randbytes(size) for _ in range(16)]
    anywhere = [rng.randrange(count) for _ in range(4096)]
    for page in range(count):
        store.write(page, contents[page % 16])

    def write(page: int) -> None:
        store.write(page, contents[(page * 7 + size) % 16])

    def in_order(turn: int) -> int:
        return turn % count

    def at_random(turn: int) -> int:
        return anywhere[turn % 4096]

    return {
        "write": _timed(write, in_order, threads, seconds),
        "write at random": _timed(write, at_random, threads, seconds),
        "read": _timed(store.read, in_order, threads, seconds),
        "read at random": _timed(store.read, at_random, threads, seconds),
    }


def rates(place: Path, sizes: list[int], threads: list[int], rounds: int, seconds: float) -> Iterator[Row]:
    """Every cell; the stores take turns, in another order each round."""
    for size, workers in itertools.product(sizes, threads):
        seen: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for number in range(rounds):
            names = list(STORES)
            random.Random(number).shuffle(names)
            for name in names:
                path = place / f"{name}-{size}-{workers}-{number}"
                try:
                    store = STORES[name](path)
                except ImportError:
                    continue
                for act, found in _round(store, size, workers, seconds).items():
                    seen.setdefault((act, name), []).append(found)
                store.close()
                shutil.rmtree(path)
                os.sync()  # what one left unwritten is not the next one's
        for (act, name), found in sorted(seen.items()):
            yield Row(name, act, size, workers, *(statistics.median(one) for one in zip(*found, strict=True)))


def _written() -> int:
    """Bytes that this process has given to the system so far."""
    (line,) = (one for one in Path("/proc/self/io").read_text().splitlines() if one.startswith("wchar"))
    return int(line.split()[1])


def amplification(place: Path, pages: int, turns: int) -> Iterator[tuple[str, float, float]]:
    """Overwrites of a tenth of the pages, pages of up to 32 KiB: for each store bytes written and kept for a byte of a page."""
    for name, make in STORES.items():
        path = place / f"amplification-{name}"
        try:
            store = make(path)
        except ImportError:
            continue
        rng, sizes = random.Random(2), [16 << 10] * pages
        for page in range(pages):
            store.write(page, rng.randbytes(sizes[page]))
        before, given = _written(), 0
        for _ in range(turns):
            page = rng.randrange(pages // 10) if rng.random() < 0.9 else rng.randrange(pages)
            sizes[page] = rng.randrange(1, 32 << 10)
            store.write(page, rng.randbytes(sizes[page]))
            given += sizes[page]
        written = _written() - before
        on_disk = sum(one.stat().st_blocks * 512 for one in path.rglob("*") if one.is_file())
        store.close()
        shutil.rmtree(path)
        yield name, written / given, on_disk / sum(sizes)


def opening(place: Path, count: int) -> dict[str, float]:
    """Seconds for opening a store of so many pages, and bytes of memory a page."""
    path = place / "opening"
    with PageStorage.create(path) as store:
        for start in range(0, count, 1000):
            batch = WriteBatch()
            for page in range(start, start + 1000):
                batch.put_page(page, b"data")
            store.write(batch)
    begin = time.perf_counter()
    store = PageStorage.open(path)
    replay = time.perf_counter() - begin
    collect_garbage(store, checkpoint=True)
    store.close()
    begin = time.perf_counter()
    with PageStorage.open(path) as store:
        restored = time.perf_counter() - begin
        memory = store.status().directory.bytes / count
    shutil.rmtree(path)
    return {"pages": count, "replay_s": replay, "checkpoint_s": restored, "bytes_a_page": memory}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--only", default="rates,amplification,opening", help="what of it, with commas")
    parser.add_argument("--sizes", default="4,64,1024", help="of pages, in KiB")
    parser.add_argument("--threads", default="1,4,16")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, help="of each act in each round")
    parser.add_argument("--directory", type=Path, help="where to write; a temporary directory unless given")
    options = parser.parse_args()
    quick, only = options.quick, options.only.split(",")
    say = (lambda _: None) if options.json else lambda line: print(line, flush=True)
    found: dict[str, Any] = {}
    with workplace(options.directory, 6 << 30) as place:
        if "rates" in only:
            sizes = [int(one) << 10 for one in options.sizes.split(",")]
            threads = [int(one) for one in options.threads.split(",")]
            rounds, seconds = options.rounds or (1 if quick else 3), options.seconds or (0.3 if quick else 1.0)
            found["rates"] = []
            for row in rates(place, sizes, threads, rounds, seconds):
                found["rates"].append(asdict(row))
                say(
                    f"{row.act:16} {row.size >> 10:5} KiB {row.threads:3} threads  {row.store:8}"
                    f" {row.rate:8.0f}/s  p99 {row.p99_ms:6.2f} ms"
                )
        if "amplification" in only:
            found["amplification"] = []
            for name, written, kept in amplification(place, 400 if quick else 2000, 1200 if quick else 40_000):
                found["amplification"].append({"store": name, "write": written, "space": kept})
                say(f"amplification    {name:8} write {written:.2f}  space {kept:.2f}")
        if "opening" in only:
            found["opening"] = []
            for count in (10_000, 100_000) if quick else (10_000, 100_000, 1_000_000, 3_000_000):
                one = opening(place, count)
                found["opening"].append(one)
                say(
                    f"opening {count:,} pages: {one['checkpoint_s']:.2f} s, plain replay {one['replay_s']:.2f} s"
                    f" ({one['replay_s'] / one['checkpoint_s']:.0f} times), {one['bytes_a_page']:.0f} bytes a page"
                )
    if options.json:
        json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
