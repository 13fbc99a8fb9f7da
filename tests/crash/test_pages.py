"""A page store under crashes: what was written is there, what was under way is there whole or not at all."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.conftest import CrashTest
from tests.crash.harness import DEATHS
from tests.crash.recorder import Recorder, Recording
from tests.crash.simdisk import Tree
from tests.pages.model import TIGHT, Model, as_batch, expected, random_batch, shown_by
from waltzctl.engine.durable.disk import WritableFile
from waltzctl.engine.durable.flusher import Flusher
from waltzctl.engine.errors import NotWaltzError, PageConflictError, WaltzError
from waltzctl.engine.pages.page_gc import collect_garbage
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.formats.checksums import crc32c

pytestmark = pytest.mark.turns(10)

Seen = tuple[object, ...] | None
FAILED = "failed"
_LOG = logging.getLogger(__name__)
Truth = tuple[Seen, ...]
"""What may be there: None is a directory that is no store yet."""


def created(path: Path) -> PageStorage:
    """Its flushes come in the same order every time."""
    return PageStorage.create(path, TIGHT, flusher=Flusher(log=_LOG, threads=0))


def opened(path: Path) -> PageStorage:
    return PageStorage.open(path, TIGHT, flusher=Flusher(log=_LOG, threads=0))


def seen_of(pages: dict[tuple[int, int], tuple[object, ...]], highest: dict[int, int]) -> Seen:
    """Comparable, and small."""
    short = {page: (one[0] if one[0] is None else crc32c(one[0]), *one[1:]) for page, one in pages.items()}  # type: ignore[arg-type]
    return (tuple(sorted(short.items())), tuple(sorted(highest.items())))


def of_model(model: Model) -> Seen:
    return seen_of(expected(model.pages), model.highest)


def of_store(store: PageStorage) -> Seen:
    return seen_of(shown_by(store), dict(store.directory.highest_ids))


class PageChecker:
    """Opens the store, looks at every page, and goes on writing."""

    def recover(self, root: Path) -> Seen:
        try:
            with opened(root / "store") as store:
                return of_store(store)
        except NotWaltzError:
            return None
        except WaltzError as error:
            return (FAILED, type(error).__name__, str(error).partition("/store/")[2])

    def examine(self, root: Path, seen: Seen) -> Seen:
        try:
            return self._examine(root, seen)
        except WaltzError as error:
            return (FAILED, type(error).__name__, str(error).partition("/store/")[2])

    def _examine(self, root: Path, seen: Seen) -> Seen:
        if seen is not None and seen[0] == FAILED:
            return seen
        if seen is None:
            created(root / "store").close()
            return seen
        with opened(root / "store") as store:
            assert of_store(store) == seen
            batch = as_batch([("put", 99, b"after" * 300, 5, ())], 3)
            store.write(batch)
            for _ in range(2):
                assert collect_garbage(store, checkpoint=True).findings == []
            store.write(as_batch([("delete", 99)], 3))
            left = of_store(store)
            assert left is not None
            assert left[0] == seen[0]
        return seen

    def judge(self, truth: Truth, seen: Seen, state: Tree) -> list[str]:
        return [] if seen in truth else [f"{seen} is none of {len(truth)} that were promised"]

    def narrowed(self, truth: Truth, seen: Seen) -> Truth:
        return (seen,)


class Work:
    """Does things to a store, and promises what each comes to."""

    def __init__(self, path: Path, recorder: Recorder[Truth], rng: random.Random) -> None:
        self.path = path / "store"
        self.recorder = recorder
        self.rng = rng
        self.model = Model()

    def _promise(self, *states: Seen, settled: bool) -> None:
        self.recorder.promise(tuple(states), settled=settled)

    def create(self) -> None:
        self._promise(None, of_model(self.model), settled=False)
        self.store = created(self.path)
        self._promise(of_model(self.model), settled=True)

    def write(self, *edits: tuple[object, ...], namespace: int = 0) -> None:
        before = of_model(self.model)
        batch = list(edits) or random_batch(self.rng, self.model, namespace)
        try:
            self.model.apply(batch, namespace)
        except PageConflictError:
            return
        self._promise(before, of_model(self.model), settled=False)
        self.store.write(as_batch(batch, namespace))
        self._promise(of_model(self.model), settled=True)

    def collect(self, *, checkpoint: bool = False) -> None:
        collect_garbage(self.store, checkpoint=checkpoint)

    def die(self) -> None:
        """The process ends without a word; the system closes what it had open."""
        self.store.wal._file.close()
        self.store.blobs.close()
        self.store._lock.release()

    def reopen(self) -> None:
        self.store = opened(self.path)


def writing(work: Work) -> None:
    """Batches of several pages, one over the limit of a file, and logs that roll."""
    work.create()
    work.write(("put", 1, b"one" * 300, 1, ()), ("put", 2, b"two" * 10, 2, (10, 20)), ("external", 30))
    work.write(("ref", 3, 1), ("put", 4, b"large" * 1000, 4, ()))
    work.write(("delete", 1), ("put", 2, b"again" * 100, 2, ()))
    for _ in range(4):
        work.write()
    work.store.close()


def collecting(work: Work) -> None:
    """Room is used again, files are emptied, cut and removed, checkpoints take the place of logs."""
    work.create()
    for number in range(1, 9):
        work.write(("put", number, bytes([number]) * 900, number, ()))
    work.write(("ref", 20, 2), ("delete", 2))
    work.write(*[("delete", number) for number in (1, 3, 4, 6)])
    work.collect(checkpoint=True)
    work.write(("put", 1, b"new" * 250, 1, ()))
    work.collect()
    work.write(("delete", 5), ("put", 9, b"nine" * 300, 9, ()))
    work.collect(checkpoint=True)
    work.collect()
    work.write(("put", 7, b"seven" * 10, 7, ()))
    work.store.close()


def opening(work: Work) -> None:
    """Processes die and others begin."""
    work.create()
    work.write(("put", 1, b"one" * 300, 1, ()))
    work.die()
    work.reopen()
    work.write(("put", 2, b"two" * 300, 1, ()), ("delete", 1))
    work.store.close()
    work.reopen()
    work.collect(checkpoint=True)
    work.write()
    work.die()
    work.reopen()
    work.die()
    work.reopen()
    work.write()
    work.store.close()


def half_made(work: Work) -> None:
    """A process dies between a blob file and its name; the next one writes into it."""
    work.create()
    work.write(("put", 1, b"full" * 1000, 1, ()))
    work.die()
    WritableFile.create(work.path / "blob" / "blobfile_2").close()
    work.reopen()
    work.write(("put", 2, b"two" * 1000, 2, ()))
    work.die()
    work.reopen()
    work.store.close()


def twice(work: Work) -> None:
    """Pages that a batch writes twice: the record names data that nobody needs, and whose room is used again and cut."""
    work.create()
    for number in (1, 2, 3):
        work.write(("put", number, b"first" * 60, 1, ()), ("put", number, b"last" * 60, 1, ()))
        work.write(("put", 9, bytes([number]) * 300, 1, ()), ("delete", 9), ("put", 8, b"eight" * 30, 1, ()))
        work.collect()
    work.die()
    work.reopen()
    work.write(("put", 4, b"first" * 60, 1, ()), ("delete", 4))
    work.collect()
    work.store.close()


def anything(work: Work) -> None:
    """Whatever comes, also processes that die."""
    work.create()
    for _ in range(22):
        what = work.rng.choices(["write", "collect", "checkpoint", "die", "close"], [9, 2, 2, 2, 1])[0]
        if what == "write":
            work.write(namespace=work.rng.choice([0, 0, 7]))
        elif what in ("collect", "checkpoint"):
            work.collect(checkpoint=what == "checkpoint")
        else:
            (work.die if what == "die" else work.store.close)()
            work.reopen()
    work.store.close()


WORK: dict[str, Callable[[Work], None]] = {
    "writing": writing,
    "collecting": collecting,
    "opening": opening,
    "half-made": half_made,
    "twice": twice,
    "anything": anything,
}


def recorded(work: str, path: Path) -> Recording[Truth]:
    """What the work did to an empty directory; with a number behind its name another one of its kind."""
    root = path / "root"
    root.mkdir()
    kind = work.partition(" ")[0]
    recorder: Recorder[Truth] = Recorder(root)
    recorder.promise((None,), settled=True)
    with recorder.listening():
        WORK[kind](Work(root, recorder, random.Random(work)))
    return recorder.recording


@pytest.mark.parametrize("work", WORK)
def test_pages(work: str, tmp_path: Path, survive: CrashTest) -> None:
    report = survive(f"pages, {work}", recorded(work, tmp_path), PageChecker())
    assert report.moments > 20


@pytest.mark.parametrize("number", [*range(3), *(pytest.param(one, marks=pytest.mark.long) for one in range(3, 60))])
def test_random_work_on_pages(number: int, tmp_path: Path, survive: CrashTest) -> None:
    survive(f"pages, random {number}", recorded(f"anything {number}", tmp_path), PageChecker())


@pytest.mark.parametrize("work", ["opening", pytest.param("collecting", marks=pytest.mark.long)])
def test_a_process_dies_and_then_the_power_fails(work: str, tmp_path: Path, survive: CrashTest) -> None:
    survive(f"process deaths, pages, {work}", recorded(work, tmp_path), PageChecker(), DEATHS)
