"""Recovery in place: what a mode takes of a damaged log is the store from then on, and undo brings the rest back."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.simdisk import Tree
from tests.pages.model import TIGHT, Model, as_batch, random_batch, shown_by
from tests.pages.stores import crash, data, delete, put, ref
from waltzctl.engine.durable import quarantine
from waltzctl.engine.durable.quarantine import list_entries
from waltzctl.engine.errors import (
    DamageError,
    DirectoryLockedError,
    InvalidRequestError,
    NotWaltzError,
    PageConflictError,
    RefusedError,
    StalePlanError,
)
from waltzctl.engine.findings import Code, Severity
from waltzctl.engine.pages import page_storage
from waltzctl.engine.pages.inspection import verify_store, view_store
from waltzctl.engine.pages.log_replay import restore
from waltzctl.engine.pages.page_gc import collect_garbage, collect_until_done
from waltzctl.engine.pages.page_recovery import (
    NAMED,
    AppliedRecovery,
    PageRecovery,
    apply_recovery,
    plan_recovery,
    undo_repair,
)
from waltzctl.engine.pages.page_storage import PageOptions, PageStorage
from waltzctl.engine.pages.recovery_mode import RecoveryMode
from waltzctl.engine.pages.torn_tail import STORE
from waltzctl.engine.pages.wal_reader import read_wal
from waltzctl.engine.pages.wal_store import checkpoint_parts
from waltzctl.formats.checksums import crc32c
from waltzctl.formats.pages.write_batch import Edit, EditType, PageEntry, PageId, Version, encode_batch

TOLERATE, ABSOLUTE, POINT, SKIP = RecoveryMode


def test_records_of_another_version_are_left_to_the_program_that_wrote_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are intact: the ways that take what is whole of a damaged log would give them up."""
    path = tmp_path / "s"
    with PageStorage.create(path) as opened:
        put(opened, 1, b"first")
    with PageStorage.open(path) as opened, monkeypatch.context() as later:
        later.setattr(page_storage, "encode_batch", lambda edits: b"\2\0\1\0" + encode_batch(edits)[4:])
        put(opened, 2, b"second")
    for use in (PageStorage.open, lambda path: plan_recovery(path, TOLERATE)):
        with pytest.raises(DamageError, match="a write batch of version 0x10002") as refused:
            use(path)
        assert "use the program that wrote them" in str(refused.value.advice)
        assert "skip-damaged" not in str(refused.value.advice)
    assert [one.remedy for one in verify_store(path).findings] == [None]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three logs: pages 1 to 3, then 4 to 6 with a page referred to, then changes of all of them."""
    path = tmp_path / "s"
    opened = PageStorage.create(path)
    for page in (1, 2, 3):
        put(opened, page, b"first %d" % page * 40)
    opened.close()
    opened = PageStorage.open(path)
    for page in (4, 5, 6):
        put(opened, page, b"second %d" % page * 40)
    ref(opened, 10, 4)
    opened.close()
    opened = PageStorage.open(path)
    put(opened, 1, b"third 1" * 40)
    delete(opened, 2)
    put(opened, 50, b"third 50" * 40)
    crash(opened)
    return path


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def log(store: Path, number: int) -> Path:
    return store / "wal" / f"log_{number}_0"


def outside(store: Path) -> Tree:
    found = Tree.read(store)
    return Tree(
        {name: one for name, one in found.files.items() if not name.startswith(".waltzctl")},
        frozenset(name for name in found.directories if not name.startswith(".waltzctl")),
    )


def recovered(store: Path, mode: RecoveryMode) -> tuple[PageRecovery, AppliedRecovery]:
    plan = plan_recovery(store, mode)
    return plan, apply_recovery(plan, arguments=["recover"])


def remains_damaged(done: AppliedRecovery) -> bool:
    return done.verified.count(Severity.DAMAGE) > 0


def actions(plan: PageRecovery) -> list[str]:
    return [step.action for step in plan.steps]


def pages(store: Path) -> dict[int, bytes | None]:
    with PageStorage.open(store) as opened:
        return {page: data(opened, page) for page in (*range(1, 11), 50) if opened.get_entry(page) is not None}


def test_a_whole_store_needs_nothing(store: Path) -> None:
    before = outside(store)
    for mode in RecoveryMode:
        plan, done = recovered(store, mode)
        assert (plan.steps, plan.edits, done.entry, remains_damaged(done)) == ((), (), None, False)
    assert outside(store) == before


def test_a_torn_end(store: Path) -> None:
    with log(store, 3).open("ab") as file:
        file.write(b"torn")
    before = outside(store)
    with pytest.raises(DamageError, match="the last write was interrupted"):
        plan_recovery(store, ABSOLUTE)
    for mode in (TOLERATE, POINT, SKIP):
        plan, done = recovered(store, mode)
        assert actions(plan) == ["cut"]
        assert not plan.loses_data
        assert done.verified.status == "clean"
        assert done.entry is not None
        undo_repair(store, done.entry.id)
        assert outside(store) == before


@pytest.mark.parametrize("mode", [TOLERATE, ABSOLUTE])
def test_damage_is_refused_by_the_strict_modes(store: Path, mode: RecoveryMode) -> None:
    flip(log(store, 2), 30)
    before = outside(store)
    with pytest.raises(DamageError):
        plan_recovery(store, mode)
    assert outside(store) == before


def test_what_is_damaged_is_skipped(store: Path) -> None:
    flip(log(store, 2), 30)  # page 4, and with it the reference
    before = outside(store)
    plan, done = recovered(store, SKIP)
    assert plan.loses_data
    assert sorted(set(actions(plan))) == ["drop-edit", "give-up", "set-aside", "write-checkpoint"]
    assert done.entry is not None
    assert {file.path for file in done.entry.files} == {"wal/log_1_0", "wal/log_2_0", "wal/log_3_0", "wal/log_3_1"}
    assert done.verified.status == "clean"
    after = outside(store)
    assert {name for name in after.files if name.startswith("wal/")} == {"wal/log_3_1"}
    assert {name: one for name, one in after.files.items() if name.startswith("blob/")} == {
        name: one for name, one in before.files.items() if name.startswith("blob/")
    }
    undo_repair(store, done.entry.id)
    assert outside(store) == before, "byte for byte"
    _, done = recovered(store, SKIP)
    assert {page: one and one[:8] for page, one in pages(store).items()} == {
        1: b"third 1t", 3: b"first 3f", 5: b"second 5", 6: b"second 6", 50: b"third 50",
    }  # fmt: skip
    assert done.entry is not None
    with pytest.raises(StalePlanError, match="was opened for writing since"):
        undo_repair(store, done.entry.id)
    with PageStorage.open(store) as opened:
        assert opened.max_id() == 50
        assert put(opened, 4, b"again") > 10, "sequences go on"
        collect_until_done(opened)
    assert verify_store(store).status == "clean"


def test_up_to_the_first_fault(store: Path) -> None:
    raw = log(store, 2).read_bytes()
    flip(log(store, 2), raw.index(b"\0" * 8, len(raw) // 2))
    expected = restore(read_wal(store), POINT)
    plan, done = recovered(store, POINT)
    assert {"give-up", "drop-records", "drop-page", "revert-page", "bring-back-page"} <= set(actions(plan))
    assert done.verified.count(Severity.DAMAGE) == 0
    view = view_store(store)
    assert view.directory.page_ids() == expected.page_ids()
    for page in expected.page_ids():
        assert view.directory.locate(page) == expected.locate(page)
    assert view.directory.highest_ids[0] == 50, "no id is given away twice"
    assert view.directory.sequence >= 10
    assert done.entry is not None
    shown = pages(store)
    assert shown[1] == b"first 1" * 40
    assert 2 in shown
    assert 50 not in shown
    with PageStorage.open(store) as opened:
        put(opened, 60, b"after")
        collect_until_done(opened)
    assert verify_store(store).status == "clean"


@pytest.mark.parametrize("number", [1, 2])
def test_a_log_that_is_gone(store: Path, number: int) -> None:
    log(store, number).unlink()
    before = outside(store)
    for mode in (SKIP, POINT):
        plan, done = recovered(store, mode)
        assert actions(plan)[0] == "give-up"
        assert done.verified.count(Severity.DAMAGE) == 0
        assert done.entry is not None
        undo_repair(store, done.entry.id)
        assert outside(store) == before
        assert [one.state for one in list_entries(store, STORE)][-1].value == "undone"


def test_where_no_log_is_left_nobody_takes_the_room_for_free(store: Path) -> None:
    for number in (1, 2, 3):
        log(store, number).unlink()
    before = outside(store)
    assert [one.code for one in verify_store(store).findings] == [Code.LOG_MISSING]
    for mode in RecoveryMode:
        with pytest.raises(DamageError, match="no log is there, and blob files hold data"):
            plan_recovery(store, mode)
    with pytest.raises(DamageError, match="no log is there"):
        PageStorage.open(store)
    assert outside(store) == before


def test_a_damaged_checkpoint_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with PageStorage.create(path) as opened:
        for page in range(1, 600):
            put(opened, page, b"%d" % page)
        collect_until_done(opened)
    (checkpoint,) = (path / "wal").glob("*_1")
    for later in (path / "wal").glob("*_0"):
        later.unlink()
    flip(checkpoint, 100)
    before = outside(path)
    plan, done = recovered(path, SKIP)
    assert done.verified.count(Severity.DAMAGE) == 0
    assert plan.steps[-1].path == checkpoint
    assert 0 < done.verified.pages < 599
    assert done.entry is not None
    undo_repair(path, done.entry.id)
    assert outside(path) == before


def test_pages_that_overlap_are_told_apart_by_their_bytes(store: Path) -> None:
    """An older version comes back where a later record is lost, and its room was used again: the page that is there stays."""
    with PageStorage.open(store, PageOptions(blob_limit=400)) as opened:
        put(opened, 71, b"b" * 300)
        put(opened, 71, b"c" * 300)
        collect_garbage(opened)  # the room of the first one is free
        put(opened, 72, b"d" * 300)
        crash(opened)
    last = max((store / "wal").glob("log_*_0"), key=lambda one: int(one.name.split("_")[1]))
    records = read_wal(store).files[-1].records
    flip(last, records[1].offset + 30)  # what made 71 another one
    found = verify_store(store).findings
    assert {one.code for one in found} >= {Code.LOG_RECORD_CHECKSUM, Code.SPACE_OVERLAP}
    plan, done = recovered(store, SKIP)
    assert [step.action for step in plan.steps if "71" in step.reason] == ["drop-page"]
    assert done.verified.count(Severity.DAMAGE) == 0
    with PageStorage.open(store) as opened:
        assert data(opened, 72) == b"d" * 300
        assert opened.get_entry(71) is None


def test_what_is_not_a_store_and_what_is_open(store: Path, tmp_path: Path) -> None:
    with pytest.raises(NotWaltzError):
        plan_recovery(tmp_path, SKIP)
    flip(log(store, 2), 30)
    plan = plan_recovery(store, SKIP)
    flip(log(store, 1), 30)
    with pytest.raises(StalePlanError):
        apply_recovery(plan, arguments=())
    flip(log(store, 1), 30)
    assert plan_recovery(store, SKIP).hash == plan_recovery(store, SKIP).hash
    assert plan_recovery(store, POINT).hash != plan_recovery(store, SKIP).hash
    with pytest.raises(InvalidRequestError):
        undo_repair(store, "20260101T000000Z-pages-recover")
    _, done = recovered(store, SKIP)
    with PageStorage.open(store), pytest.raises(DirectoryLockedError):
        apply_recovery(plan, arguments=())
    assert done.entry is not None


def test_an_interrupted_repair_comes_first(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(log(store, 2), 30)
    before = outside(store)

    class DeathError(BaseException):
        pass

    def dying(*_: object) -> None:
        raise DeathError

    with monkeypatch.context() as patched:
        patched.setattr(quarantine, "_finish", dying)
        with pytest.raises(DeathError):
            recovered(store, SKIP)
    assert outside(store) != before
    plan, done = recovered(store, SKIP)
    assert actions(plan) == ["roll-back"]
    assert (plan.roll_back, done.entry, len(done.taken_back)) == (True, None, 1)
    assert outside(store) == before
    _, done = recovered(store, SKIP)
    assert done.entry is not None
    undo_repair(store, done.entry.id)
    with pytest.raises(RefusedError):
        undo_repair(store, done.entry.id)


def test_many_pages_are_counted(tmp_path: Path) -> None:
    with PageStorage.create(tmp_path / "s") as opened:
        put(opened, 1, b"kept")
        for page in range(2, NAMED + 60):
            put(opened, page, b"x")
    flip(log(tmp_path / "s", 1), read_wal(tmp_path / "s").files[0].records[1].offset + 20)
    plan = plan_recovery(tmp_path / "s", POINT)
    assert actions(plan).count("drop-page") == NAMED + 1
    assert [step.reason for step in plan.steps if step.action == "drop-page"][-1] == "and 57 more"


@pytest.mark.turns(8)
@pytest.mark.parametrize("seed", range(12))
def test_any_damage_of_any_log(tmp_path: Path, seed: int) -> None:
    """Whatever is hit, a store comes back that holds what the mode takes, goes on, and can be undone before."""
    dice, path, model = random.Random(seed), tmp_path / "s", Model()
    opened = PageStorage.create(path, TIGHT)
    for _ in range(40):
        namespace = dice.choice([0, 0, 7])
        batch = random_batch(dice, model, namespace)
        try:
            model.apply(batch, namespace)
        except PageConflictError:
            continue
        opened.write(as_batch(batch, namespace))
        if dice.random() < 0.1:
            collect_until_done(opened)
        if dice.random() < 0.1:
            opened.close()
            opened = PageStorage.open(path, TIGHT)
    (crash if dice.random() < 0.5 else PageStorage.close)(opened)
    names = sorted(one for one in (path / "wal").iterdir() if one.stat().st_size)
    for _ in range(dice.randrange(1, 4)):
        damaged = dice.choice(names)
        what: Callable[[], None]
        what = dice.choice(
            [
                lambda damaged=damaged: flip(damaged, dice.randrange(damaged.stat().st_size)),
                lambda damaged=damaged: damaged.write_bytes(
                    damaged.read_bytes()[: dice.randrange(1, damaged.stat().st_size)]
                ),
            ]
        )
        if damaged.stat().st_size > 1:
            what()
    before = outside(path)
    for mode in (SKIP, POINT):
        _, done = recovered(path, mode)
        codes = {one.code for one in done.verified.findings if one.severity is Severity.DAMAGE}
        assert codes <= {Code.PAGE_CHECKSUM, Code.PAGE_MISSING}, "the log is whole, and nothing overlaps"
        if done.entry is not None:
            undo_repair(path, done.entry.id)
            assert outside(path) == before
    _, done = recovered(path, dice.choice([SKIP, POINT]))
    with PageStorage.open(path, TIGHT) as opened:
        there = {} if remains_damaged(done) else shown_by(opened)
        put(opened, 10_000, b"new")
        collect_until_done(opened)
        assert data(opened, 10_000) == b"new"
        if not remains_damaged(done):
            assert shown_by(opened).items() >= there.items()


def made_by_hand(path: Path, edits: list[Edit | bytes], blob: bytes) -> Path:
    """A store with one log, each edit a record of its own (or the bytes of one), and one blob file."""
    (path / "wal").mkdir(parents=True)
    (path / "blob").mkdir()
    payloads = [edit if isinstance(edit, bytes) else encode_batch([edit]) for edit in edits]
    (path / "wal" / "log_1_0").write_bytes(b"".join(checkpoint_parts(1, payloads, twice=False)))
    (path / "blob" / "blobfile_1").write_bytes(blob)
    return path


def page_put(page: int, sequence: int, offset: int, data: bytes) -> Edit:
    return Edit(EditType.PUT, PageId(0, page), Version(sequence), PageEntry(1, offset, len(data), crc32c(data), 0))


def page_ref(page: int, sequence: int, origin: int) -> Edit:
    return Edit(EditType.REF, PageId(0, page), Version(sequence), origin=PageId(0, origin))


def test_what_refers_to_a_page_that_gives_way_goes_with_it(tmp_path: Path) -> None:
    """And never becomes the older version that another reference holds."""
    store = made_by_hand(
        tmp_path / "s",
        [
            page_put(1, 1, 0, b"a" * 10), page_ref(2, 2, 1), Edit(EditType.DELETE, PageId(0, 1), Version(3)),
            page_put(1, 4, 10, b"b" * 10), page_ref(3, 5, 1), page_put(4, 6, 15, b"c" * 10),
        ],
        b"a" * 10 + b"b" * 5 + b"c" * 10,
    )  # fmt: skip
    for mode in (TOLERATE, ABSOLUTE):
        with pytest.raises(DamageError):
            plan_recovery(store, mode)
    plan, done = recovered(store, SKIP)
    assert sorted(step.reason for step in plan.steps if step.action == "drop-page") == [
        "page 0:1 is given up",
        "page 0:3 is given up",
    ]
    assert done.verified.count(Severity.DAMAGE) == 0
    with PageStorage.open(store) as opened:
        assert (data(opened, 2), data(opened, 4)) == (b"a" * 10, b"c" * 10)
        assert (opened.get_entry(1), opened.get_entry(3)) == (None, None)
        assert put(opened, 1, b"again") == 7
    assert verify_store(store).count(Severity.DAMAGE) == 0


def test_of_pages_that_overlap_only_those_give_way_in_whose_place_another_one_stays(tmp_path: Path) -> None:
    store = made_by_hand(
        tmp_path / "s",
        [page_put(1, 1, 0, b"a" * 10), page_put(2, 2, 5, b"b" * 10), page_put(3, 3, 10, b"c" * 10)],
        b"?" * 10 + b"c" * 10,
    )
    plan, done = recovered(store, SKIP)
    assert [step.reason for step in plan.steps if step.action == "drop-page"] == ["page 0:2 is given up"]
    assert [one.code for one in done.verified.findings] == [Code.PAGE_CHECKSUM], "the first one, which nobody lies over"
    with PageStorage.open(store) as opened:
        assert data(opened, 3) == b"c" * 10


def test_a_record_that_is_no_batch_is_a_fault(tmp_path: Path) -> None:
    edits = [page_put(1, 1, 0, b"a"), b"no batch at all", page_put(2, 2, 1, b"b")]
    store = made_by_hand(tmp_path / "s", edits, b"ab")
    plan = plan_recovery(store, POINT)
    assert ("page 0:2 is given up", True) in [(step.reason, step.loses_data) for step in plan.steps]
    assert "2 whole records behind the first fault" in [step.reason for step in plan.steps]
    plan, done = recovered(store, SKIP)
    assert "drop-page" not in actions(plan)
    assert done.verified.pages == 2
    assert done.entry is not None
    undo_repair(store, done.entry.id)
    _, done = recovered(store, POINT)
    assert [one.page.id for one in view_store(store).pages()] == [1]


def test_ids_and_sequences_of_edits_that_cannot_be_made_are_not_given_away_again(tmp_path: Path) -> None:
    store = made_by_hand(tmp_path / "s", [page_put(1, 1, 0, b"a"), page_ref(100, 9, 7)], b"a")
    plan, done = recovered(store, SKIP)
    assert actions(plan).count("drop-edit") == 1
    assert done.verified.status == "clean"
    with PageStorage.open(store) as opened:
        assert opened.max_id() == 100
        assert put(opened, 2, b"b") == 10


def test_repairs_of_the_same_log_are_taken_back_latest_first(store: Path) -> None:
    before = outside(store)
    flip(log(store, 2), 30)
    _, first = recovered(store, SKIP)
    between = outside(store)
    flip(store / "wal" / "log_3_1", 60)
    _, second = recovered(store, SKIP)
    assert first.entry is not None
    assert second.entry is not None
    with pytest.raises(StalePlanError, match="a later repair changed it too"):
        undo_repair(store, first.entry.id)
    undo_repair(store, second.entry.id)
    with pytest.raises(StalePlanError, match="not as the repair"):
        undo_repair(store, first.entry.id)
    flip(store / "wal" / "log_3_1", 60)
    assert outside(store) == between
    undo_repair(store, first.entry.id)
    flip(log(store, 2), 30)
    assert outside(store) == before


def test_room_that_becomes_free_is_told(store: Path) -> None:
    """The store's own lock is no sign of a process that is writing there."""
    flip(log(store, 3), read_wal(store).files[-1].records[-1].offset + 30)  # page 50, the last one in its blob file
    _, done = recovered(store, SKIP)
    assert [one.code for one in done.verified.findings] == [one.code for one in verify_store(store).findings]
    assert done.verified.status == "repairable"


def test_what_died_since_the_plan_is_taken_back_and_told(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(log(store, 2), 30)
    plan = plan_recovery(store, SKIP)

    def dying(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(quarantine, "_finish", dying)
        patched.setattr(quarantine, "_take_back", dying)
        with pytest.raises(KeyboardInterrupt):
            recovered(store, SKIP)
    done = apply_recovery(plan, arguments=())
    assert (len(done.taken_back), done.entry is not None, done.verified.status) == (1, True, "clean")
    stale = plan_recovery(store, POINT)
    with PageStorage.open(store) as opened:
        put(opened, 90, b"new")
    with pytest.raises(StalePlanError, match="the log changed since"):
        apply_recovery(stale, arguments=())
