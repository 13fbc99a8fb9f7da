"""Repairs and their undo by Hypothesis: any repairs of any damage, killed anywhere, undone in any order, copies lost or not."""

from __future__ import annotations

import os
import random
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.builders import build_directory
from tests.inspect.helpers import age
from tests.repair.scenes import read_all
from tests.repair.trees import Crash, crashing_at
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.manifest import MANIFEST, QuarantineEntry, RepairState
from waltzctl.engine.durable.relocation import UNASSIGNED
from waltzctl.engine.errors import RefusedError, StalePlanError, WaltzError
from waltzctl.engine.repair.apply import apply, undo_repair
from waltzctl.engine.repair.arguments import PartitionSetting
from waltzctl.engine.repair.convert import plan_convert
from waltzctl.engine.repair.plan import Repair
from waltzctl.engine.repair.prune import plan_prune, prune
from waltzctl.engine.repair.rebuild_index import plan_rebuild_index
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.recover_ledger import plan_forget
from waltzctl.engine.repair.set_partition import plan_set_partition
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.storage.append import PendingRecord, append_lines
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.engine.storage.store import list_entries
from waltzctl.formats.control import CONTROL_FILE_NAME, Layout
from waltzctl.formats.segment import parse_name

pytestmark = pytest.mark.turns(10)

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
PARTITIONS = st.sampled_from([0, 0, 0, 1])
MOMENTS = st.integers(0, 45)
WHICH = st.integers(0, 5)
_LEDGER = f"{disk.STATE_DIRECTORY}/accepted-losses"
_DATED = re.compile(rb'\d{4}-\d\d-\d\dT[\d:.]+Z|"crc32":"[0-9a-f]{8}"')
"""The time of an accepted loss, and the checksum that covers it."""
_RECORDS = ("lock", "journal.jsonl", disk.QUARANTINE)

Stand = tuple[bytes | None, int, int, int, int]
"""Of a file its bytes, mode, owner, group and time; of a directory None, mode, owner, group and 0."""
Whole = dict[str, Stand]
Told = tuple[object, ...]


def whole(root: Path) -> Whole:
    """Everything in a storage directory but what only records repairs."""
    found: Whole = {}
    for place, directories, names in os.walk(root):
        above = os.path.relpath(place, root)
        if above == disk.STATE_DIRECTORY:
            directories[:] = [name for name in directories if name != disk.QUARANTINE]
        for name in (*directories, *names):
            path = Path(place, name)
            told = path.relative_to(root).as_posix()
            if above == disk.STATE_DIRECTORY and name in _RECORDS:
                continue
            if told in (disk.STATE_DIRECTORY, f"{disk.STATE_DIRECTORY}/{UNASSIGNED}"):
                continue  # made when they are first needed
            one = path.stat()
            data = None if path.is_dir() else path.read_bytes()
            time = 0 if data is None else one.st_mtime_ns
            found[told] = (data, stat.S_IMODE(one.st_mode), one.st_uid, one.st_gid, time)
    return found


def timeless(tree: Whole) -> dict[str, tuple[object, ...]]:
    return {name: one[:4] for name, one in tree.items()}


def undated(tree: Whole) -> dict[str, tuple[object, ...]]:
    """Also without when a loss was accepted, which the ledger says."""
    return {
        name: (_DATED.sub(b"", one[0]), *one[1:4]) if name == _LEDGER and one[0] is not None else one[:4]
        for name, one in tree.items()
    }


def differences(one: Whole, other: Whole) -> list[str]:
    return [
        f"{name}: {_short(one.get(name))}, then {_short(other.get(name))}"
        for name in sorted({*one, *other})
        if one.get(name) != other.get(name)
    ]


def _short(one: Stand | None) -> object:
    return one and (one[0] if one[0] is None else len(one[0]), *one[1:])


def planner(what: Told, root: Path, replica: Path) -> Callable[[], Repair]:
    """What plans a repair, again and again."""
    kind, *more = what
    match kind:
        case "recover":
            return lambda: plan_recover(
                root, replicas=[replica] if "from" in more else (), allow_data_loss="loss" in more
            )
        case "truncate":
            return lambda: plan_truncate(root, partition=more[0], after=more[1], allow_data_loss=more[2])  # type: ignore[arg-type]
        case "index":
            return lambda: plan_rebuild_index(root, everything=bool(more[0]))
        case "convert":
            return lambda: plan_convert(root, layout=more[0])  # type: ignore[arg-type]
        case "forget":
            return lambda: plan_forget(root)
        case _:
            setting = PartitionSetting(**{more[1]: more[2]})  # type: ignore[misc, arg-type]
            return lambda: plan_set_partition(root, partition=more[0], setting=setting, allow_data_loss=True)  # type: ignore[arg-type]


REPAIRS = st.one_of(
    st.sampled_from(
        [("recover",), ("recover", "loss"), ("recover", "from"), ("forget",), ("index", True), ("index", False)]
    ),
    st.tuples(
        st.just("truncate"), PARTITIONS, st.sampled_from([-1, 3, 5, 6, 8, 11, 14, 17, 20, 23, 25]), st.booleans()
    ),
    st.tuples(st.just("convert"), st.sampled_from(list(Layout))),
    st.tuples(st.just("set"), PARTITIONS, st.sampled_from(["assigned", "available"]), st.booleans()),
    st.tuples(
        st.just("set"),
        PARTITIONS,
        st.sampled_from(["session_id", "low_water_mark", "local_low_water_mark"]),
        st.integers(-1, 9),
    ),
)


@dataclass
class Applied:
    """A repair that stands: the directory before it and behind it (None: not known), and what plans it again."""

    id: str
    before: Whole | None
    after: Whole | None
    again: Callable[[], Repair] | None = None
    plan_hash: str = ""


class UndoMachine(RuleBasedStateMachine):
    """One directory, its repairs, and what each of them took away."""

    def __init__(self) -> None:
        super().__init__()
        self.place = Path(tempfile.mkdtemp(prefix="waltzctl-test-", dir=MEMORY))
        self.root, self.replica = self.place / "s", self.place / "replica"
        self.applied: list[Applied] = []
        self.sound = True

    @initialize(layout=st.sampled_from(list(Layout)), mark=st.sampled_from([-1, 2, 8, 20]))
    def build(self, layout: Layout, mark: int) -> None:
        for path in (self.root, self.replica):
            build_directory(
                path, {0: 24, 1: 9}, layout=layout, per_segment=6, num_partitions=3, local_low_water_mark=min(mark, 8)
            )
        age(self.replica)

    # ---- helpers -----------------------------------------------------------------------------------------------------

    def entries(self) -> dict[str, QuarantineEntry]:
        return {one.id: one for one in list_entries(self.root)}

    def note_new(self) -> None:
        """Openings mend as well; nobody saw the directory between one of them and the next."""
        known = {one.id for one in self.applied}
        standing = {one.id for one in list_entries(self.root) if one.state is RepairState.APPLIED}
        self.applied = [one for one in self.applied if one.id in standing]
        self.applied += [
            Applied(one, None, None) for one in sorted(standing - known, key=lambda n: self.entries()[n].number)
        ]

    def expected(self, one: Applied, entry: QuarantineEntry, now: Whole) -> Whole:
        """The directory as it is, but for the files of one repair, which are as before it."""
        assert one.before is not None
        tree = dict(now)
        for move in entry.moves:
            moved = [name for name in tree if name == move.target or name.startswith(move.target + "/")]
            for name in moved:
                tree[move.path + name.removeprefix(move.target)] = tree.pop(name)
        for file in entry.files:
            tree.pop(file.path, None)
            if file.path in one.before:
                tree[file.path] = one.before[file.path]
                above = file.path.rpartition("/")[0]
                if above and above not in tree and above in one.before:
                    tree[above] = one.before[above]
        for name in entry.directories:
            if not any(other.startswith(name + "/") for other in tree):
                tree.pop(name, None)
        return tree

    def check_undone(self, one: Applied, entry: QuarantineEntry, now: Whole) -> None:
        found = whole(self.root)
        if one.before is not None:
            assert differences(self.expected(one, entry, now), found) == []
            if one.after is not None and timeless(now) == timeless(one.after):
                assert differences_timeless(one.before, found) == []
        state = self.entries()[entry.id].state
        assert state is RepairState.UNDONE, state
        self.check_sound()

    def check_sound(self) -> None:
        """Where nothing was damaged, no undo may leave a gap, an overlap, or a part of a record."""
        if not self.sound:
            return
        for number in range(3):
            directory = self.root / str(number)
            firsts = sorted(
                parsed[0] for path in directory.glob("*.seg") if (parsed := parse_name(path.name)) is not None
            )
            following = 0
            for first in firsts:
                path = directory / f"{first:019d}.seg"
                records = read_all(path)
                assert first == following, f"{path} begins with {first}, and {following} is next"
                assert [record.transaction_id for record in records] == list(range(first, first + len(records)))
                assert 128 + sum(record.size for record in records) == path.stat().st_size, f"{path} is torn"
                following += len(records)

    @contextmanager
    def nothing_changes(self) -> Iterator[None]:
        before, states = whole(self.root), {name: one.state for name, one in self.entries().items()}
        yield
        assert differences(before, whole(self.root)) == []
        assert {name: one.state for name, one in self.entries().items()} == states

    def chosen(self, which: int) -> Applied:
        return self.applied[-1 - which % len(self.applied)]

    # ---- rules -------------------------------------------------------------------------------------------------------

    def plan(self, what: Told) -> tuple[Whole, Callable[[], Repair], Repair] | None:
        age(self.root)
        before, plans = whole(self.root), planner(what, self.root, self.replica)
        try:
            made = plans()
        except WaltzError:
            made = None
        assert differences(before, whole(self.root)) == []
        return (before, plans, made) if made is not None and made.edits else None

    @rule(what=REPAIRS)
    def repair(self, what: Told) -> None:
        if (planned := self.plan(what)) is None:
            return
        before, plans, made = planned
        done = apply(made, arguments=[str(one) for one in what])
        assert done.undo_id is not None
        self.applied.append(Applied(done.undo_id, before, whole(self.root), plans, made.plan.hash))

    @rule(what=REPAIRS, moment=MOMENTS)
    def killed_repair(self, what: Told, moment: int) -> None:
        if (planned := self.plan(what)) is None:
            return
        before, plans, made = planned
        known = {*self.entries()}
        try:
            with crashing_at(moment):
                apply(made, arguments=[])
        except Crash:
            pass
        new = [one for name, one in self.entries().items() if name not in known]
        if new and new[0].state is RepairState.APPLIED:
            self.applied.append(Applied(new[0].id, before, whole(self.root), plans, made.plan.hash))
            return
        if new:
            undo_repair(self.root, new[0].id)
            assert self.entries()[new[0].id].state is RepairState.ROLLED_BACK
        assert differences(before, whole(self.root)) == []

    @precondition(lambda self: self.applied)
    @rule(which=WHICH, again=st.booleans())
    def undo(self, which: int, again: bool) -> None:
        one = self.chosen(which)
        now, entry = whole(self.root), self.entries()[one.id]
        untouched = one is self.applied[-1] and one.after is not None and timeless(now) == timeless(one.after)
        try:
            undo_repair(self.root, one.id)
        except (StalePlanError, RefusedError):
            assert differences(now, whole(self.root)) == []
            assert self.entries()[one.id] == entry
            if untouched:
                raise
            return
        self.check_undone(one, entry, now)
        self.applied.remove(one)
        if again and untouched and one.again is not None:
            age(self.root)
            made = one.again()
            assert made.plan.hash == one.plan_hash
            before = whole(self.root)
            done = apply(made, arguments=[])
            assert done.undo_id is not None
            found = whole(self.root)
            assert one.after is not None
            assert undated(found) == undated(one.after)
            self.applied.append(Applied(done.undo_id, before, found, one.again, one.plan_hash))

    @precondition(lambda self: self.applied)
    @rule(which=WHICH, moment=MOMENTS, second=MOMENTS)
    def killed_undo(self, which: int, moment: int, second: int) -> None:
        one = self.chosen(which)
        now, entry = whole(self.root), self.entries()[one.id]
        for last in (moment, second, None):
            try:
                with crashing_at(10**9 if last is None else last):
                    undo_repair(self.root, one.id)
                break
            except Crash:
                continue
            except (StalePlanError, RefusedError):
                if self.entries()[one.id].state is RepairState.UNDONE:
                    break
                assert differences(now, whole(self.root)) == []
                return
        self.check_undone(one, entry, now)
        self.applied.remove(one)

    @precondition(lambda self: self.applied)
    @rule(which=WHICH)
    def undo_over(self, which: int) -> None:
        """With what came since set aside."""
        one = self.chosen(which)
        now, entry = whole(self.root), self.entries()[one.id]
        try:
            done = undo_repair(self.root, one.id, allow_data_loss=True)
        except (StalePlanError, RefusedError):
            assert differences(now, whole(self.root)) == []
            return
        self.applied.remove(one)
        if done.done.set_aside is None:
            self.check_undone(one, entry, now)
            return
        found = whole(self.root)
        for file in entry.files if one.before is not None else ():
            assert found.get(file.path) == one.before.get(file.path), file.path  # type: ignore[union-attr]
        self.check_sound()
        self.applied.append(Applied(done.done.set_aside.id, now, None))

    @precondition(lambda self: self.applied)
    @rule(
        which=WHICH,
        copy=st.integers(0, 9),
        how=st.sampled_from(["gone", "flipped", "cut", "empty"]),
        loss=st.booleans(),
    )
    def lose_copy(self, which: int, copy: int, how: str, loss: bool) -> None:
        """Without a kept copy nothing is undone, and nothing is changed; with it again everything is as ever."""
        one = self.chosen(which)
        entry = self.entries()[one.id]
        copies = sorted(path for path in entry.path.iterdir() if path.name != MANIFEST and path.stat().st_size)
        if not copies:
            return
        path = copies[copy % len(copies)]
        aside = self.place / "copy"
        shutil.copy2(path, aside)
        data, times = path.read_bytes(), path.stat()
        if how == "gone":
            path.unlink()
        else:
            made = {"flipped": bytes([data[0] ^ 1]) + data[1:], "cut": data[:-1], "empty": b""}[how]
            path.write_bytes(made)
        now = whole(self.root)
        try:
            undo_repair(self.root, one.id, allow_data_loss=loss)
        except (StalePlanError, RefusedError):
            assert differences(now, whole(self.root)) == []
            assert self.entries()[one.id] == entry
            path.write_bytes(data)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            os.chmod(path, stat.S_IMODE(times.st_mode))
            return
        assert path.name.startswith("new-"), "something came back from a copy that is not what it was"
        self.applied.remove(one)
        self.note_new()
        self.check_sound()

    @rule(seed=st.integers(0, 2**32), how=st.sampled_from(["flip", "flip", "cut", "junk", "gone", "zeros"]))
    def damage(self, seed: int, how: str) -> None:
        rng = random.Random(seed)
        names = [name for name, one in whole(self.root).items() if one[0] and not name.startswith(disk.STATE_DIRECTORY)]
        if not names or (self.sound and rng.random() < 0.5):
            return
        self.sound = False
        path = self.root / rng.choice(names)
        data = bytearray(path.read_bytes())
        place = rng.randrange(len(data))
        if how == "flip":
            data[place] ^= 1 << rng.randrange(8)
        elif how == "cut":
            del data[place:]
        elif how == "junk":
            data += rng.randbytes(rng.choice([1, 30, 200]))
        elif how == "zeros":
            data[place : place + 40] = bytes(len(data[place : place + 40]))
        if how != "gone":
            path.write_bytes(data)
        elif path.name != CONTROL_FILE_NAME:  # without which nothing can be locked
            path.unlink()

    @rule(partition=PARTITIONS, count=st.integers(1, 4), threshold=st.sampled_from([1, 10**9]))
    def append(self, partition: int, count: int, threshold: int) -> None:
        options = StorageOptions(segment_size_threshold=threshold)
        with suppress(WaltzError):
            append_lines(self.root, partition=partition, records=[PendingRecord(b"new")] * count, options=options)
        self.note_new()

    @rule(partition=PARTITIONS)
    def begin_session(self, partition: int) -> None:
        with suppress(WaltzError), StorageDirectory.open(self.root) as storage:
            if partition in storage.partitions and not storage.partition(partition).quarantined:
                one = storage.partition(partition)
                one.set_low_water_mark(one.session_id + 1, one.max_transaction_id)
        self.note_new()

    @rule(keep=st.integers(0, 3))
    def give_up_old(self, keep: int) -> None:
        before = whole(self.root)
        if not (self.root / disk.STATE_DIRECTORY / disk.QUARANTINE).is_dir():
            return
        with suppress(WaltzError):
            prune(plan_prune(self.root, older_than=0, keep=keep))
        assert differences(before, whole(self.root)) == []
        self.note_new()

    def teardown(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)


def differences_timeless(one: Whole, other: Whole) -> list[str]:
    return differences(
        {name: (*found[:4], 0) for name, found in one.items()}, {name: (*found[:4], 0) for name, found in other.items()}
    )


UndoMachine.TestCase.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)
TestUndoMachine = UndoMachine.TestCase
