"""A page store against its model, by Hypothesis, which cuts what fails down to the few steps that it takes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.pages.model import TIGHT, Model, State, as_batch, check
from tests.pages.stores import crash
from waltzctl.engine.errors import PageConflictError
from waltzctl.engine.pages.inspection import verify_store
from waltzctl.engine.pages.page_gc import GcLimits, collect_garbage
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.pages.snapshots import Snapshot
from waltzctl.formats.pages.names import parse_log_name

pytestmark = pytest.mark.turns(10)

PAGES = st.integers(1, 4)
SIZES = st.sampled_from([0, 1, 30, 700, 1500, 5000])
CHANGES = st.one_of(
    st.tuples(st.just("put"), PAGES, SIZES, st.integers(0, 3)),
    st.tuples(st.just("external"), PAGES),
    st.tuples(st.just("ref"), PAGES, PAGES),
    st.tuples(st.just("delete"), PAGES),
)


class PageMachine(RuleBasedStateMachine):
    """Writes that can be made and that cannot, snapshots, references, external pages, collection, restarts and deaths."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="waltzctl-test-"))
        self.model = Model()
        self.snapshots: dict[Snapshot, State] = {}
        self.written = 0

    @initialize()
    def create(self) -> None:
        self.store = PageStorage.create(self.root / "store", TIGHT)

    def _edit(self, change: tuple[object, ...]) -> tuple[object, ...]:
        """Of a put its bytes, which are no other's, in fields."""
        if change[0] != "put":
            return change
        _, page, size, fields = change
        assert isinstance(size, int)
        assert isinstance(fields, int)
        self.written += 1
        data = (self.written.to_bytes(4, "big") * (size // 4 + 1))[:size]
        cut = size // max(fields, 1)
        sizes = (*([cut] * (fields - 1)), size - cut * (fields - 1)) if fields else ()
        return ("put", page, data, self.written, sizes)

    @rule(page=PAGES, size=SIZES)
    def put(self, page: int, size: int) -> None:
        self.write([("put", page, size, 0)], 0)

    @rule(page=PAGES, origin=PAGES)
    def refer(self, page: int, origin: int) -> None:
        self.write([("ref", page, origin)], 0)

    @rule(page=PAGES)
    def delete(self, page: int) -> None:
        self.write([("delete", page)], 0)

    @rule(page=PAGES, other=PAGES, size=SIZES, becomes=PAGES)
    def hand_on(self, page: int, other: int, size: int, becomes: int) -> None:
        """A page is written, referred to and deleted at once, and then may be a reference itself."""
        gone = [("delete", page), ("delete", other)]
        self.write([*gone, ("put", page, size, 0), ("ref", other, page), ("delete", page), ("ref", page, becomes)], 0)

    @rule(changes=st.lists(CHANGES, min_size=1, max_size=5), namespace=st.sampled_from([0, 0, 0, 7]))
    def write(self, changes: list[tuple[object, ...]], namespace: int) -> None:
        edits, before = [self._edit(one) for one in changes], self.store.directory.sequence
        try:
            changed = self.model.apply(edits, namespace)
        except PageConflictError:
            size = self.store.wal.written
            try:
                self.store.write(as_batch(edits, namespace))
            except PageConflictError:
                assert self.store.wal.written == size
                return
            raise AssertionError("the model refuses it") from None
        assert self.store.write(as_batch(edits, namespace)) == before + changed

    @precondition(lambda self: len(self.snapshots) < 4)
    @rule()
    def take_snapshot(self) -> None:
        self.snapshots[self.store.snapshot()] = dict(self.model.pages)

    @precondition(lambda self: self.snapshots)
    @rule(which=st.integers(0, 3))
    def close_snapshot(self, which: int) -> None:
        gone = list(self.snapshots)[which % len(self.snapshots)]
        gone.close()
        del self.snapshots[gone]

    @rule(checkpoint=st.booleans(), most=st.sampled_from([None, 1000]))
    def collect(self, checkpoint: bool, most: int | None) -> None:
        assert collect_garbage(self.store, GcLimits(max_moved=most), checkpoint=checkpoint).findings == []

    @rule(dies=st.booleans(), torn=st.integers(0, 40))
    def restart(self, dies: bool, torn: int) -> None:
        """A process that dies may have begun a record that nobody was told of."""
        self.snapshots.clear()
        if dies:
            crash(self.store)
            names = [name for path in (self.store.path / "wal").iterdir() if (name := parse_log_name(path.name))]
            with (self.store.path / "wal" / str(max(names))).open("ab") as log:
                log.write(bytes(range(1, torn + 1)))
        else:
            self.store.close()
        assert verify_store(self.store.path).status != "damaged"
        self.store = PageStorage.open(self.store.path, TIGHT)

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "store"):
            check(self.store, self.model, self.snapshots)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            for snapshot in self.snapshots:
                snapshot.close()
            for _ in range(3):
                collect_garbage(self.store, checkpoint=True)
            used = {one.content for one in self.model.pages.values()}
            assert sum(blob.valid for blob in self.store.status().blobs) == sum(len(one.data or b"") for one in used)
            self.store.close()
            assert verify_store(self.store.path).findings == ()
        shutil.rmtree(self.root)


PageMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=40)
TestPageMachine = PageMachine.TestCase
