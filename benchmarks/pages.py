"""Page stores measured: durable writes and reads by size and threads, amplification over overwrites, opening, memory.

    python benchmarks/pages.py [--quick] [--json] [--directory DIR]

Beside ours the same is done with SQLite (WAL, synchronous=FULL) and, where they are installed, LMDB (`lmdb`) and RocksDB
(`rocksdict`, WAL with sync), each in the manner in which it promises the same: a write is durable when it returns.  One write
is one page.

*amplification* overwrites a tenth of the pages again and again, collecting garbage as a service would, and compares what is on
the disk with what is in use.  *opening* restores a store from a checkpoint and from plain replay; wanted: a tenth of the
replay.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from generated import workplace

from waltzctl.engine.pages.page_batch import WriteBatch
from waltzctl.engine.pages.page_gc import collect_garbage
from waltzctl.engine.pages.page_storage import PageStorage

SIZES = (4 << 10, 64 << 10, 1 << 20)
THREADS = (1, 4, 16)


class Store(Protocol):
    """Of whoever is measured; one for all threads."""

    def write(self, page: int, data: bytes) -> None: ...
    def read(self, page: int) -> int: ...
    def close(self) -> None: ...


class Ours:
    """A page store."""

    def __init__(self, path: Path) -> None:
        self.store = PageStorage.create(path)

    def write(self, page: int, data: bytes) -> None:
        self.store.write(WriteBatch().put_page(page, data))

    def read(self, page: int) -> int:
        return len(self.store.read(page).data)

    def close(self) -> None:
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
    """Rates in pages a second, times in milliseconds."""

    store: str
    size: int
    threads: int
    writes: float
    write_p99_ms: float
    reads: float
    read_p99_ms: float


def _timed(act: Callable[[int], object], pages: list[int], threads: int) -> tuple[float, float]:
    """Rate and 99th percentile, in milliseconds, of an act on each page."""
    times: list[float] = []

    def work(mine: list[int]) -> None:
        for page in mine:
            begin = time.perf_counter()
            act(page)
            times.append(time.perf_counter() - begin)

    workers = [threading.Thread(target=work, args=(pages[number::threads],)) for number in range(threads)]
    begin = time.perf_counter()
    for one in workers:
        one.start()
    for one in workers:
        one.join()
    elapsed = time.perf_counter() - begin
    return len(pages) / elapsed, sorted(times)[int(len(times) * 0.99)] * 1e3


def rates(place: Path, quick: bool) -> Iterator[Row]:
    """Writes in order, reads at random, for each store, size and number of threads."""
    for size in SIZES:
        data, count = os.urandom(size), max(96, (8 << 20 if quick else 64 << 20) // size)
        count = min(count, 400 if quick else 2000)
        for threads in THREADS:
            for name, make in STORES.items():
                path = place / f"{name}-{size}-{threads}"
                try:
                    store = make(path)
                except ImportError:
                    continue
                pages = list(range(count))
                written = _timed(lambda page, store=store, data=data: store.write(page, data), pages, threads)
                random.Random(1).shuffle(pages)
                read = _timed(store.read, pages, threads)
                store.close()
                shutil.rmtree(path)
                yield Row(name, size, threads, *written, *read)


def amplification(place: Path, quick: bool) -> dict[str, float]:
    """Overwrites of a tenth of the pages, with a round of collection for every hundred."""
    rng, pages, size = random.Random(2), 400 if quick else 2000, 16 << 10
    with _ours(place / "amplification") as store:
        for page in range(pages):
            store.write(WriteBatch().put_page(page, rng.randbytes(size)))
        for turn in range(pages * 3):
            page = rng.randrange(pages // 10) if rng.random() < 0.9 else rng.randrange(pages)
            store.write(WriteBatch().put_page(page, rng.randbytes(rng.randrange(size * 2))))
            if turn % 100 == 0:
                collect_garbage(store)
        status = store.status()
        return {"write": status.write_amplification or 0, "space": status.space_amplification or 0}


def opening(place: Path, count: int) -> dict[str, float]:
    """Seconds for opening a store of so many pages, and bytes of memory a page."""
    path = place / "opening"
    with _ours(path) as store:
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


@contextmanager
def _ours(path: Path) -> Iterator[PageStorage]:
    with PageStorage.create(path) as store:
        yield store


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--directory", type=Path, help="where to write; a temporary directory unless given")
    options = parser.parse_args()
    with workplace(options.directory, 2 << 30) as place:
        rows = []
        for row in rates(place, options.quick):
            rows.append(row)
            if not options.json:
                print(
                    f"{row.store:8} {row.size >> 10:5} KiB {row.threads:3} threads  write {row.writes:7.0f}/s"
                    f" p99 {row.write_p99_ms:6.2f} ms  read {row.reads:7.0f}/s p99 {row.read_p99_ms:6.2f} ms",
                    flush=True,
                )
        amplified = amplification(place, options.quick)
        opened = [
            opening(place, count) for count in ((10_000, 100_000) if options.quick else (10_000, 100_000, 1_000_000))
        ]
        if options.json:
            json.dump(
                {"rates": [asdict(row) for row in rows], "amplification": amplified, "opening": opened}, sys.stdout
            )
            return
        print(f"amplification: write {amplified['write']:.2f}, space {amplified['space']:.2f}")
        for one in opened:
            ratio = one["replay_s"] / one["checkpoint_s"]
            print(
                f"opening {one['pages']:,.0f} pages: {one['checkpoint_s']:.2f} s, plain replay {one['replay_s']:.2f} s"
                f" ({ratio:.0f} times), {one['bytes_a_page']:.0f} bytes a page"
            )


if __name__ == "__main__":
    main()
