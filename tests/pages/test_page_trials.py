"""A page store in trouble against its model: full disks that go on, writers that share a record, damaged copies, lost room."""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.pages.model import TIGHT, Model, State, as_batch, check, expected, shown_by
from tests.pages.stores import crash, disk_full_after
from waltzctl.engine.errors import (
    DamageError,
    DiskFullError,
    PageConflictError,
    PageStoreFailedError,
    WaltzError,
)
from waltzctl.engine.pages.inspection import verify_store
from waltzctl.engine.pages.page_gc import GcLimits, collect_garbage
from waltzctl.engine.pages.page_options import PageOptions
from waltzctl.engine.pages.page_recovery import apply_recovery, plan_recovery, undo_repair
from waltzctl.engine.pages.page_salvage import salvage_store
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.pages.recovery_mode import RecoveryMode
from waltzctl.engine.pages.snapshots import Snapshot
from waltzctl.formats.pages.names import parse_log_name

pytestmark = pytest.mark.turns(10)

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
PAGES = st.integers(1, 5)
SIZES = st.sampled_from([0, 1, 30, 700, 1500, 5000])
CHANGES = st.one_of(
    st.tuples(st.just("put"), PAGES, SIZES),
    st.tuples(st.just("put"), PAGES, SIZES),
    st.tuples(st.just("external"), PAGES),
    st.tuples(st.just("ref"), PAGES, PAGES),
    st.tuples(st.just("delete"), PAGES),
)
OPTIONS = {
    "tight": TIGHT,
    "twice": replace(TIGHT, records_twice=True),
    "apart": replace(TIGHT, flushed_with_record=0),
    "nothing kept": replace(TIGHT, superseded_kept=0, blob_limit=2000),
    "few logs": replace(TIGHT, log_size=400, max_log_files=1, full_gc_rate=0.9),
}
Edit = tuple[object, ...]


def files(path: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(path)): one.read_bytes()
        for one in sorted(path.rglob("*"))
        if one.is_file() and ".waltzctl" not in one.parts
    }


class TrialMachine(RuleBasedStateMachine):
    """What `PageMachine` does, on disks that are full at times, and with files that are damaged."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="waltzctl-test-", dir=MEMORY))
        self.model = Model()
        self.before = Model()
        """Before the last record."""
        self.snapshots: dict[Snapshot, State] = {}
        self.made: dict[int, tuple[tuple[int, int], bytes]] = {0: ((0, 0), b"")}
        """By tag, which no two pages have: the page that was written, and its bytes."""

    @initialize(options=st.sampled_from(sorted(OPTIONS)))
    def create(self, options: str) -> None:
        self.options: PageOptions = OPTIONS[options]
        self.store = PageStorage.create(self.root / "store", self.options)
        self.removed: list[tuple[frozenset[int], frozenset[int]]] = []
        self.register()

    def register(self) -> None:
        self.store.register_external_callbacks(0, lambda: [1, 2, 3, 4, 5], lambda *told: self.removed.append(told))

    def _edits(self, changes: list[Edit], namespace: int = 0) -> list[Edit]:
        made: list[Edit] = []
        for one in changes:
            if one[0] != "put":
                made.append(one)
                continue
            _, page, size = one
            assert isinstance(size, int)
            assert isinstance(page, int)
            tag = len(self.made)
            data = (tag.to_bytes(4, "big") * (size // 4 + 1))[:size]
            self.made[tag] = (namespace, page), data
            made.append(("put", page, data, tag, ()))
        return made

    # ---- writing -----------------------------------------------------------------------------------------------------

    @rule(changes=st.lists(CHANGES, min_size=1, max_size=4), namespace=st.sampled_from([0, 0, 0, 7]))
    def write(self, changes: list[Edit], namespace: int) -> None:
        edits, before = self._edits(changes, namespace), self.model.copy()
        sequence = self.store.directory.sequence
        try:
            changed = self.model.apply(edits, namespace)
        except PageConflictError:
            with pytest.raises(PageConflictError):
                self.store.write(as_batch(edits, namespace))
            return
        assert self.store.write(as_batch(edits, namespace)) == sequence + changed
        if changed:
            self.before = before

    @rule(batches=st.lists(st.lists(CHANGES, min_size=1, max_size=3), min_size=2, max_size=4))
    def write_together(self, batches: list[list[Edit]]) -> None:
        """Writers that wait for the log share a record; each is judged as if those before it had written."""
        before, answers = self.model.copy(), list[object](["none"] * len(batches))
        made = [self._edits(one) for one in batches]

        def writing(number: int) -> None:
            try:
                answers[number] = self.store.write(as_batch(made[number], 0))
            except PageConflictError:
                answers[number] = "refused"

        threads: list[threading.Thread] = []
        with self.store.commit_lock:
            waiting = 0
            for number, edits in enumerate(made):
                first = before.copy()
                early = False
                if any(one[0] == "put" for one in edits):
                    try:
                        first.apply(edits, 0)
                    except PageConflictError:
                        early = True
                thread = threading.Thread(target=writing, args=(number,))
                threads.append(thread)
                thread.start()
                while thread.is_alive() and len(self.store._queue) == waiting:
                    thread.join(0.0005)
                waiting = len(self.store._queue)
                assert early == (not thread.is_alive())
                if early:
                    answers[number] = "early"
        for thread in threads:
            thread.join()
        sequence, any_changed = before, False
        told = self.store.directory.sequence
        expected_answers: list[object] = []
        count = 0
        for number, edits in enumerate(made):
            if answers[number] == "early":
                expected_answers.append("early")
                continue
            try:
                changed = self.model.apply(edits, 0)
            except PageConflictError:
                expected_answers.append("refused")
                continue
            count += changed
            expected_answers.append(count)
            any_changed |= changed
        base = told - count
        assert answers == [base + one if isinstance(one, int) else one for one in expected_answers]
        if any_changed:
            self.before = sequence

    @rule(room=st.integers(0, 4000), changes=st.lists(CHANGES, min_size=1, max_size=3), collects=st.booleans())
    def meet_a_full_disk(self, room: int, changes: list[Edit], collects: bool) -> None:
        """What is refused changes nothing; a store whose log failed is opened again, and has the batch or not."""
        edits, before = self._edits(changes), self.model.copy()
        try:
            changed = self.model.apply(edits, 0)
        except PageConflictError:
            return
        after, self.model = self.model, before
        with pytest.MonkeyPatch.context() as patch:
            disk_full_after(patch, room)
            try:
                if collects:
                    collect_garbage(self.store, checkpoint=room % 2 == 0)
                self.store.write(as_batch(edits, 0))
                self.model = after
                if changed:
                    self.before = before
            except (DiskFullError, PageStoreFailedError):
                pass
        if self.store._failure is None:
            return
        check(self.store, self.model, self.snapshots)
        self.snapshots.clear()
        crash(self.store)
        self.store = PageStorage.open(self.store.path, self.options)
        self.register()
        found = shown_by(self.store)
        assert found in (expected(before.pages), expected(after.pages))
        if self.model is before and found == expected(after.pages):
            self.model = after
        self.model.highest = dict(self.store.directory.highest_ids)
        assert all(before.highest.get(one, 0) <= most <= after.highest[one] for one, most in self.model.highest.items())
        self.before = self.model.copy()

    # ---- snapshots, collection, restarts -----------------------------------------------------------------------------

    @precondition(lambda self: len(self.snapshots) < 3)
    @rule()
    def take_snapshot(self) -> None:
        self.snapshots[self.store.snapshot()] = dict(self.model.pages)

    @precondition(lambda self: self.snapshots)
    @rule(which=st.integers(0, 2))
    def close_snapshot(self, which: int) -> None:
        gone = list(self.snapshots)[which % len(self.snapshots)]
        gone.close()
        del self.snapshots[gone]

    @rule(checkpoint=st.booleans(), most=st.sampled_from([None, 1, 1000]))
    def collect(self, checkpoint: bool, most: int | None) -> None:
        self.removed.clear()
        assert collect_garbage(self.store, GcLimits(max_moved=most), checkpoint=checkpoint).findings == []
        ((pending, alive),) = self.removed
        assert pending == {1, 2, 3, 4, 5}
        states = [self.model.pages, *self.snapshots.values()]
        wanted = {
            one.content.origin[1]
            for state in states
            for one in state.values()
            if one.content.data is None and one.content.origin[0] == 0
        }
        assert alive == wanted

    def leave(self, dies: bool, torn: int = 0) -> None:
        """Close the store, or let its process die, which may have begun a record."""
        self.snapshots.clear()
        if not dies:
            self.store.close()
            return
        crash(self.store)
        names = [name for path in (self.store.path / "wal").iterdir() if (name := parse_log_name(path.name))]
        with (self.store.path / "wal" / str(max(names))).open("ab") as log:
            log.write(bytes(range(1, torn + 1)))

    @rule(dies=st.booleans(), torn=st.integers(0, 40), room=st.sampled_from([None, None, 0, 8, 30, 200, 1000]))
    def restart(self, dies: bool, torn: int, room: int | None) -> None:
        """Perhaps on a full disk first; what cannot be opened there is open to whoever makes room."""
        self.leave(dies, torn)
        assert verify_store(self.store.path).status != "damaged"
        if room is not None:
            with pytest.MonkeyPatch.context() as patch:
                disk_full_after(patch, room)
                with suppress(DiskFullError):
                    PageStorage.open(self.store.path, self.options).close()
        self.store = PageStorage.open(self.store.path, self.options)
        self.register()

    @rule(seed=st.integers(0, 2**32), dies=st.booleans(), bits=st.integers(1, 3))
    def damage(self, seed: int, dies: bool, bits: int) -> None:
        """Flipped bits in a copy: each page is right or named, and a recovery can be undone."""
        rng = random.Random(seed)
        self.leave(dies)
        copy = Path(shutil.copytree(self.store.path, self.root / "copy"))
        self.store = PageStorage.open(self.store.path, self.options)
        self.register()
        names = [name for name, data in files(copy).items() if data]
        if names and bits == 1:  # of several in the log nobody tells how many records are torn
            names = [rng.choice(names)]
        for _ in range(bits if any(one.startswith("blob") for one in names) else min(1, len(names))):
            name = rng.choice([one for one in names if one.startswith("blob")] or names)
            data = bytearray((copy / name).read_bytes())
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            (copy / name).write_bytes(data)
        allowed = [expected(self.model.pages)] + ([expected(self.before.pages)] if dies else [])
        self.judge(copy, allowed)
        shutil.rmtree(copy)

    def judge(self, copy: Path, allowed: list[dict[tuple[int, int], tuple[object, ...]]]) -> None:
        found = verify_store(copy)
        kept = salvage_store(copy, self.root / "salvaged")
        assert len(kept.lost) == 0 or found.status == "damaged"
        self.only_what_was(self.root / "salvaged", moved=True)
        shutil.rmtree(self.root / "salvaged")
        try:
            store = PageStorage.open(copy, self.options)
        except DamageError:
            assert found.status == "damaged", found
            self.recover(copy)
            return
        with store:
            shown, lost = self.readable(store)
        assert any(
            {*shown, *lost} == {*state} and all(shown[page] == state[page] for page in shown) for state in allowed
        ), (shown, lost, allowed)
        assert not lost or found.status == "damaged", found

    def readable(self, store: PageStorage) -> tuple[dict[tuple[int, int], tuple[object, ...]], set[tuple[int, int]]]:
        shown: dict[tuple[int, int], tuple[object, ...]] = {}
        lost: set[tuple[int, int]] = set()
        for one in store.traverse():
            namespace, number = one.page
            if one.is_external:
                shown[namespace, number] = (None, 0, (), one.is_reference, tuple(one.origin))
                continue
            try:
                page = store.read(number, namespace=namespace)
            except DamageError:
                lost.add((namespace, number))
                continue
            shown[namespace, number] = (bytes(page.data), page.tag, (), one.is_reference, tuple(one.origin))
        return shown, lost

    def only_what_was(self, path: Path, *, moved: bool = False) -> None:
        """Every page that can be read shows what it has shown once."""
        with PageStorage.open(path, self.options) as store:
            shown, _ = self.readable(store)
        for page, (data, tag, _, by_reference, origin) in shown.items():
            if data is not None:
                written, wanted = self.made[tag]  # type: ignore[index]
                assert data == wanted
                assert moved or origin == written
                assert moved or by_reference or page == written

    def recover(self, copy: Path) -> None:
        before = files(copy)
        for mode in (RecoveryMode.SKIP_DAMAGED, RecoveryMode.POINT_IN_TIME):
            try:
                plan = plan_recovery(copy, mode)
            except DamageError:
                assert files(copy) == before
                continue
            entry = apply_recovery(plan, arguments=[]).entry
            if entry is None:
                continue
            after = files(copy)
            undo_repair(copy, entry.id)
            assert files(copy) == before
            again = plan_recovery(copy, mode)
            assert again.hash == plan.hash
            entry = apply_recovery(again, arguments=[]).entry
            assert entry is not None
            assert files(copy) == after
            other = Path(shutil.copytree(copy, self.root / "other"))
            self.only_what_was(other)
            with pytest.raises(WaltzError, match="opened for writing since"):
                undo_repair(other, entry.id)
            shutil.rmtree(other)
            undo_repair(copy, entry.id)
            assert files(copy) == before

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "store"):
            check(self.store, self.model, self.snapshots)

    def teardown(self) -> None:
        try:
            if hasattr(self, "store"):
                for snapshot in self.snapshots:
                    snapshot.close()
                for _ in range(3):
                    collect_garbage(self.store, checkpoint=True)
                used = {one.content for one in self.model.pages.values()}
                assert sum(blob.valid for blob in self.store.status().blobs) == sum(
                    len(one.data or b"") for one in used
                )
                self.store.close()
                assert verify_store(self.store.path).findings == ()
        finally:
            shutil.rmtree(self.root)


TrialMachine.TestCase.settings = settings(max_examples=12, stateful_step_count=30, deadline=None)
TestTrialMachine = TrialMachine.TestCase
