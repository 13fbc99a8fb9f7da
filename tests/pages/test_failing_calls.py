"""A store whose system calls fail, each in turn: a write, a flush, a truncation, a name that is made, changed or removed.

A flush that fails loses what was written since the one before: reads still show it, and no later flush makes it durable.  At each
restart the power fails as well.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.pages.model import TIGHT, Model, State, as_batch, expected, random_batch, shown_by
from tests.pages.stores import crash
from waltzctl.engine.durable.flusher import Flusher
from waltzctl.engine.errors import PageConflictError, WaltzError
from waltzctl.engine.pages.inspection import verify_store
from waltzctl.engine.pages.page_gc import collect_garbage
from waltzctl.engine.pages.page_options import PageOptions
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.pages.snapshots import Snapshot

CHANGING = ("pwrite", "pwritev", "ftruncate", "fdatasync", "fsync", "rename", "unlink", "open")
CODES = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT)
STEPS = 24
_LOG = logging.getLogger(__name__)


@dataclass
class FailingDisk:
    """Counts calls that change something, and lets the one of number `at` fail; with `stays` all behind it, too."""

    at: int = 0
    code: int = errno.EIO
    stays: bool = False
    on: bool = True
    calls: int = 0
    failed: str = ""
    durable: dict[int, bytearray] = field(default_factory=dict)
    """Content of files that survives, by inode."""
    written: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Offset and size of what was written since the last flush, by inode."""

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name in CHANGING:
            patch.setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *rest: Any, **named: Any) -> Any:
            if name == "open" and not rest[0] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR):
                return real(first, *rest, **named)
            failing = False
            if self.on:
                self.calls += 1
                failing = self.calls == self.at or (self.stays and 0 < self.at < self.calls)
            if failing:
                self.failed = self.failed or name
                if name == "fdatasync":
                    self.written.pop(os.fstat(first).st_ino, None)
                raise OSError(self.code, os.strerror(self.code))
            done = real(first, *rest, **named)
            if isinstance(first, int):
                self._note(name, first, rest, done)
            return done

        return call

    def _note(self, name: str, file: int, rest: tuple[Any, ...], done: Any) -> None:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            return
        written = self.written.setdefault(status.st_ino, [])
        kept = self.durable.setdefault(status.st_ino, bytearray())
        if name in ("pwrite", "pwritev"):
            written.append((rest[-1], done))
        elif name == "ftruncate":
            del kept[rest[0] :]
        else:
            with Path(f"/proc/self/fd/{file}").open("rb") as same:
                for offset, size in written:
                    same.seek(offset)
                    data = same.read(size)
                    kept.extend(bytes(max(0, offset + len(data) - len(kept))))
                    kept[offset : offset + len(data)] = data
            written.clear()

    def lose_power(self, store: Path) -> None:
        """Sizes of files are kept, and what was not flushed is zeros, or what was there before."""
        self.written.clear()
        for path in (*(store / "wal").iterdir(), *(store / "blob").iterdir()):
            status = path.stat()
            kept = self.durable.get(status.st_ino, bytearray())[: status.st_size]
            path.write_bytes(kept + bytes(status.st_size - len(kept)))

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """No call fails."""
        before, self.on = self.on, False
        yield
        self.on = before


class Work:
    """Random work that goes on behind every error, by opening the store again where it takes no more writes."""

    def __init__(self, path: Path, disk: FailingDisk, options: PageOptions, rng: random.Random) -> None:
        self.path, self.disk, self.options, self.rng = path, disk, options, rng
        self.model = Model()
        self.allowed = [self.model]
        """What may be there: what was acknowledged, then the same with the batch that failed."""
        self.snapshots: dict[Snapshot, State] = {}
        with disk.working():
            self.store = PageStorage.create(path, options, flusher=Flusher(log=_LOG, threads=0))

    def run(self) -> None:
        for _ in range(STEPS):
            what = self.rng.choices(["write", "collect", "restart", "snapshot", "close"], [10, 5, 2, 1, 1])[0]
            with contextlib.suppress(WaltzError):
                self._do(what)
            with self.disk.working():
                assert shown_by(self.store) == expected(self.allowed[0].pages)
                for snapshot, state in self.snapshots.items():
                    assert shown_by(self.store, snapshot) == expected(state)
            if self.store._failure is not None:
                self._restart()
            self.allowed = [self.model]  # what the store refused and goes on from is not there

    def _do(self, what: str) -> None:
        if what == "write":
            self._write(self.rng.choice([0, 0, 7]))
        elif what == "collect":
            assert collect_garbage(self.store, checkpoint=self.rng.random() < 0.4).findings == []
        elif what == "restart":
            self._restart()
        elif what == "snapshot":
            self.snapshots[self.store.snapshot()] = dict(self.model.pages)
        else:
            for snapshot in self.snapshots:
                snapshot.close()
            self.snapshots.clear()

    def _write(self, namespace: int) -> None:
        edits, after = random_batch(self.rng, self.model, namespace), self.model.copy()
        with contextlib.suppress(PageConflictError):
            after.apply(edits, namespace)
            self.allowed = [self.model, after]
            self.store.write(as_batch(edits, namespace))
            self.model, self.allowed = after, [after]

    def _restart(self) -> None:
        self.snapshots.clear()
        if self.rng.random() < 0.5:
            with contextlib.suppress(WaltzError):
                self.store.close()
        else:
            crash(self.store)
        self.disk.lose_power(self.path)
        try:
            self.store = self._opened()
        except WaltzError:
            with self.disk.working():
                self.store = self._opened()
        with self.disk.working():
            shown = shown_by(self.store)
        (self.model,) = [one for one in self.allowed if expected(one.pages) == shown][:1]
        self.allowed = [self.model]

    def _opened(self) -> PageStorage:
        return PageStorage.open(self.path, self.options, flusher=Flusher(log=_LOG, threads=0))

    def finish(self) -> None:
        """On a disk that works again: nothing is lost, damaged or leaked."""
        self._restart()
        for _ in range(3):
            assert collect_garbage(self.store, checkpoint=True).findings == []
        used = {one.content for one in self.model.pages.values()}
        assert sum(blob.valid for blob in self.store.status().blobs) == sum(len(one.data or b"") for one in used)
        self.store.close()
        assert verify_store(self.path).findings == ()


def run(path: Path, seed: int, disk: FailingDisk) -> None:
    options = replace(TIGHT, records_twice=seed % 3 == 2)
    with pytest.MonkeyPatch.context() as patch:
        disk.install(patch)
        work = Work(path, disk, options, random.Random(seed))
        work.run()
        disk.on = False
        work.finish()
    shutil.rmtree(path)


def fail_each(path: Path, seed: int, share: int) -> set[str]:
    """Every `share`-th call fails, each in work of its own; returns the names of those that did."""
    whole = FailingDisk()
    run(path, seed, whole)
    rng, failed = random.Random(seed), set()
    for at in range(1 + rng.randrange(share), whole.calls + 1, share):
        disk = FailingDisk(at, rng.choice(CODES), stays=rng.random() < 0.3)
        run(path, seed, disk)
        failed.add(disk.failed)
    return failed


@pytest.mark.turns(12)
@pytest.mark.parametrize("seed", range(3))
def test_any_call_may_fail(tmp_path: Path, seed: int) -> None:
    assert len(fail_each(tmp_path / "store", seed, 5)) >= 4


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 130))
def test_every_call_may_fail(tmp_path: Path, seed: int) -> None:
    fail_each(tmp_path / "store", seed, 1)
