"""What an undo says where something came since a repair: one answer without leave, and one with it, word for word."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.builders import make_records, segment_header
from tests.counted import Counted, CountedName
from tests.repair.trees import Crash, crashing_when, snapshot
from tests.repair.twelve import RECORDS, Damage, Twelve
from waltzctl.engine.durable.edits import MoveDirectory, Overwrite, Replace
from waltzctl.engine.durable.manifest import KeptFile, KeptRange, PartitionLeft, QuarantineEntry, RepairState, Stamp
from waltzctl.engine.durable.restore import stamp
from waltzctl.engine.errors import DamageError, InvalidRequestError, RefusedError, StalePlanError, WaltzError
from waltzctl.engine.log.view import read_control
from waltzctl.engine.repair import undo_conditions
from waltzctl.engine.repair.apply import apply
from waltzctl.engine.repair.content import Content, LiteralBytes
from waltzctl.engine.repair.plan import Repair
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.engine.repair.truncate import plan_truncate
from waltzctl.engine.repair.undo_conditions import ADVICE, content_before, falling_marks, obstacles, set_aside
from waltzctl.engine.repair.undoing import UndoResult, check_undo, check_ways_back, undo
from waltzctl.engine.storage.assignment import put_aside_path
from waltzctl.engine.storage.store import apply_edits, list_entries, marks_of
from waltzctl.formats.control import Layout
from waltzctl.formats.segment import segment_name


def cut(after: int) -> Callable[[Twelve], Repair]:
    return lambda d: plan_truncate(d.root, partition=0, after=after, allow_data_loss=True)


def lossy(d: Twelve) -> Repair:
    return plan_recover(d.root, allow_data_loss=True)


def begin(d: Twelve, first: int, *, records: int = 2) -> None:
    """Begin a segment of new records."""
    d.write(first, make_records(records, first=first, size=20, seed=9))


def grow(path: Path, more: bytes = b"x") -> None:
    path.write_bytes(path.read_bytes() + more)


REPAIRS: dict[str, tuple[Damage, Callable[[Twelve], Repair]]] = {
    "cut behind 9": (lambda d: None, cut(9)),
    "cut behind 7": (lambda d: None, cut(7)),
    "cut behind 5": (lambda d: None, cut(5)),
    "a torn end cut": (lambda d: d.cut(8, 363), lambda d: plan_recover(d.root)),
    "5 given up": (lambda d: d.spoil(5), lossy),
    "the last segment given up": (lambda d: d.drop(8), lossy),
    "all given up": (lambda d: [d.drop(first) for first in (0, 4, 8)], lossy),
}
SINCE: dict[str, Damage] = {
    "nothing": lambda d: None,
    "a segment at 6": lambda d: begin(d, 6),
    "a segment at 8": lambda d: begin(d, 8),
    "a segment at 10": lambda d: begin(d, 10),
    "a segment at 11": lambda d: begin(d, 11),
    "a segment at 12": lambda d: begin(d, 12),
    "an empty segment at 10": lambda d: begin(d, 10, records=0),
    "records in 4": lambda d: grow(d.seg(4)),
    "records in 8": lambda d: grow(d.seg(8)),
    "entries in 4": lambda d: grow(d.idx(4), bytes(8)),
    "entries in 4, and a flipped bit": lambda d: (grow(d.idx(4), bytes(8)), d.flip(d.seg(4), 140)),
    "a flipped bit in 4": lambda d: d.flip(d.seg(4), 140),
    "a byte and a flipped bit in 8": lambda d: (d.flip(d.seg(8), 140), grow(d.seg(8))),
    "0 shorter": lambda d: d.cut(0, 200),
    "8 shorter": lambda d: d.cut(8, 200),
    "0 gone": lambda d: d.seg(0).unlink(),
    "other marks": lambda d: d.mark(5),
    "no control file to read": lambda d: d.control.write_bytes(b""),
}


def repaired(place: Path, name: str) -> Twelve:
    """The partition behind a repair."""
    damage, planner = REPAIRS[name]
    found = Twelve(place)
    damage(found)
    apply(planner(found), arguments=["repair"])
    return found


def answers(place: Path, repair: str, since: str) -> list[str]:
    """Without leave to set aside, and with it; nothing is changed by asking."""
    d = repaired(place, repair)
    SINCE[since](d)
    before, found = snapshot(d.root), []
    for allowed in (False, True):
        entries = list_entries(d.root)
        try:
            aside = check_undo(entries[-1], entries, allow_data_loss=allowed)
            found.append(" ".join(["back", *(one.name.lstrip("0") for one in aside)]))
        except StalePlanError as error:
            said = str(error).replace(f"{d.root}/", "").replace(entries[-1].id, "ID").replace(ADVICE, "ADVICE")
            found.append(said.replace("0" * 17, "").replace(";", ","))
    assert snapshot(d.root) == before
    assert isinstance(falling_marks(list_entries(d.root)[-1]), tuple)
    return found


ANSWERS: dict[tuple[str, str], str] = {
    ("cut behind 9", "nothing"): """
        back
        ; the same
        """,
    ("cut behind 9", "a segment at 6"): """
        back
        ; the same
        """,
    ("cut behind 9", "a segment at 8"): """
        0/08.seg: the file is not as the repair ID left it, what was written since would be lost, the kept bytes are
        in .waltzctl/quarantine/ID
        ; the same
        """,
    ("cut behind 9", "a segment at 10"): """
        the repair ID cannot be taken back: partition 0: 0/08.seg would end with transaction 11 and 10.seg begins
        with 10: they would overlap, since the repair came 0/10.seg, nothing was modified, ADVICE
        ; back 10.seg 10.idx
        """,
    ("cut behind 9", "a segment at 11"): """
        the repair ID cannot be taken back: partition 0: 0/08.seg would end with transaction 11 and 11.seg begins
        with 11: they would overlap, since the repair came 0/11.seg, nothing was modified, ADVICE
        ; back 11.seg 11.idx
        """,
    ("cut behind 9", "a segment at 12"): """
        back
        ; the same
        """,
    ("cut behind 9", "an empty segment at 10"): """
        the repair ID cannot be taken back: partition 0: 0/08.seg would end with transaction 11 and 10.seg begins
        with 10: they would overlap, since the repair came 0/10.seg, nothing was modified, ADVICE
        ; back 10.seg 10.idx
        """,
    ("cut behind 9", "records in 4"): """
        the repair ID cannot be taken back: partition 0: 0/04.seg would end with transaction 7, torn, and 08.seg
        begins with 8: they would not join, since the repair came 0/04.seg, nothing was modified, ADVICE
        ; back 4.seg
        """,
    ("cut behind 9", "records in 8"): """
        0/08.seg: the file is not as the repair ID left it, what was written since would be lost, the kept bytes are
        in .waltzctl/quarantine/ID, ADVICE
        ; back 8.seg
        """,
    ("cut behind 9", "entries in 4"): """
        back
        ; the same
        """,
    ("cut behind 9", "a flipped bit in 4"): """
        back
        ; the same
        """,
    ("cut behind 9", "a byte and a flipped bit in 8"): """
        0/08.seg: the file is not as the repair ID left it, what was written since would be lost, the kept bytes are
        in .waltzctl/quarantine/ID
        ; 0/08.seg: was changed since the repair ID, not only made longer, the kept bytes are in
        .waltzctl/quarantine/ID
        """,
    ("cut behind 9", "0 shorter"): """
        back
        ; the same
        """,
    ("cut behind 9", "8 shorter"): """
        0/08.seg: the file is not as the repair ID left it, what was written since would be lost, the kept bytes are
        in .waltzctl/quarantine/ID
        ; 0/08.seg: has lost bytes since the repair ID, nothing was modified, the kept bytes are in
        .waltzctl/quarantine/ID
        """,
    ("cut behind 9", "0 gone"): """
        back
        ; the same
        """,
    ("cut behind 9", "other marks"): """
        the repair ID cannot be taken back: partition 0: the control file says session 3 with marks 5 and 5 now, and
        said session 3 with marks 9 and 9 after the repair: a session began where the repair left the log's end, at
        transaction 9, and would find it at 11, nothing was modified, ADVICE
        ; back waltz-storage.ctl
        """,
    ("cut behind 9", "no control file to read"): """
        the repair ID cannot be taken back: partition 0: the control file says that nothing is in force now, and
        said session 3 with marks 9 and 9 after the repair: a session began where the repair left the log's end, at
        transaction 9, and would find it at 11, nothing was modified, ADVICE
        ; the same
        """,
    ("cut behind 7", "a segment at 8"): """
        0/08.seg: the file is not as the repair ID left it, what was written since would be lost, the kept bytes are
        in .waltzctl/quarantine/ID, ADVICE
        ; back 8.seg 8.idx
        """,
    ("cut behind 7", "8 shorter"): """
        0/08.seg: the file is not as the repair ID left it, what was written since would be lost, the kept bytes are
        in .waltzctl/quarantine/ID, ADVICE
        ; back 8.seg
        """,
    ("cut behind 7", "other marks"): """
        waltz-storage.ctl: the file is not as the repair ID left it, what was written since would be lost, the kept
        bytes are in .waltzctl/quarantine/ID
        ; waltz-storage.ctl: the repair ID changed it, and it was changed since, the kept bytes are in
        .waltzctl/quarantine/ID
        """,
    ("cut behind 5", "a segment at 6"): """
        the repair ID cannot be taken back: partition 0: 0/04.seg would end with transaction 7 and 06.seg begins
        with 6: they would overlap, since the repair came 0/06.seg, nothing was modified, ADVICE
        ; back 6.seg 6.idx
        """,
    ("cut behind 5", "entries in 4"): """
        0/04.idx: the file is not as the repair ID left it, what was written since would be lost, the kept bytes are
        in .waltzctl/quarantine/ID, ADVICE
        ; back 4.idx
        """,
    ("cut behind 5", "a flipped bit in 4"): """
        0/04.seg: the file is not as the repair ID left it, what was written since would be lost, the kept bytes are
        in .waltzctl/quarantine/ID
        ; the same
        """,
    ("cut behind 5", "0 shorter"): """
        the repair ID cannot be taken back: partition 0: 0/00.seg would end with transaction 0, torn, and 04.seg
        begins with 4: they would not join, since the repair came 0/00.seg, nothing was modified, ADVICE
        ; 0/00.seg: has lost bytes since the repair ID, nothing was modified, the kept bytes are in
        .waltzctl/quarantine/ID
        """,
    ("a torn end cut", "nothing"): """
        back
        ; the same
        """,
    ("a torn end cut", "a segment at 8"): """
        0/08.seg: the file is not as the repair ID left it, what was written since would be lost, the kept bytes are
        in .waltzctl/quarantine/ID
        ; 0/08.seg: has lost bytes since the repair ID, nothing was modified, the kept bytes are in
        .waltzctl/quarantine/ID
        """,
    ("a torn end cut", "a segment at 10"): """
        the repair ID cannot be taken back: partition 0: 0/08.seg would end with transaction 10, torn, and 10.seg
        begins with 10: they would overlap, since the repair came 0/10.seg, nothing was modified, ADVICE
        ; back 10.seg 10.idx
        """,
    ("a torn end cut", "a segment at 11"): """
        the repair ID cannot be taken back: partition 0: 0/08.seg would end with transaction 10, torn, and 11.seg
        begins with 11: they would not join, since the repair came 0/11.seg, nothing was modified, ADVICE
        ; back 11.seg 11.idx
        """,
    ("a torn end cut", "a segment at 12"): """
        the repair ID cannot be taken back: partition 0: 0/08.seg would end with transaction 10, torn, and 12.seg
        begins with 12: they would not join, since the repair came 0/12.seg, nothing was modified, ADVICE
        ; back 12.seg 12.idx
        """,
    ("a torn end cut", "records in 8"): """
        0/08.seg: the file is not as the repair ID left it, what was written since would be lost, the kept bytes are
        in .waltzctl/quarantine/ID, ADVICE
        ; back 8.seg
        """,
    ("5 given up", "nothing"): """
        back
        ; the same
        """,
    ("5 given up", "a segment at 6"): """
        0/06.seg: the file is not as the repair ID left it, what was written since would be lost, the kept bytes are
        in .waltzctl/quarantine/ID
        ; the same
        """,
    ("5 given up", "0 shorter"): """
        the repair ID cannot be taken back: partition 0: 0/00.seg would end with transaction 0, torn, and 04.seg
        begins with 4: they would not join, since the repair came 0/00.seg, nothing was modified, ADVICE
        ; 0/00.seg: has lost bytes since the repair ID, nothing was modified, the kept bytes are in
        .waltzctl/quarantine/ID
        """,
    ("the last segment given up", "nothing"): """
        back
        ; the same
        """,
    ("the last segment given up", "a segment at 8"): """
        back
        ; the same
        """,
    ("the last segment given up", "other marks"): """
        waltz-storage.ctl: the file is not as the repair ID left it, what was written since would be lost, the kept
        bytes are in .waltzctl/quarantine/ID
        ; waltz-storage.ctl: the repair ID changed it, and it was changed since, the kept bytes are in
        .waltzctl/quarantine/ID
        """,
    ("all given up", "nothing"): """
        back
        ; the same
        """,
    ("all given up", "a segment at 10"): """
        the repair ID cannot be taken back: partition 0: nothing would be left in front of 0/10.seg, which came since,
        since the repair came 0/10.seg, nothing was modified, ADVICE
        ; back 10.seg 10.idx
        """,
    ("cut behind 5", "entries in 4, and a flipped bit"): """
        0/04.seg: the file is not as the repair ID left it, what was written since would be lost, the kept bytes are in
        .waltzctl/quarantine/ID, ADVICE
        ; 0/04.seg: the file is not as the repair ID left it, what was written since would be lost, the kept bytes are in
        .waltzctl/quarantine/ID, ADVICE
        """,
}


@pytest.mark.turns(8)
@pytest.mark.parametrize(("repair", "since"), ANSWERS, ids="; ".join)
def test_whether_a_repair_can_be_taken_back(tmp_path: Path, repair: str, since: str) -> None:
    wanted = [" ".join(one.split()) for one in ANSWERS[repair, since].split(";")]
    if wanted[1] == "the same":
        wanted[1] = wanted[0]
    assert answers(tmp_path / "d", repair, since) == wanted


@pytest.mark.parametrize("name", REPAIRS)
def test_what_a_file_will_hold_once_it_was_put_back(tmp_path: Path, name: str) -> None:
    """Every file that a repair touched, by the bytes that it had; those that it made, none."""
    damage, planner = REPAIRS[name]
    d = Twelve(tmp_path / "d")
    damage(d)
    before = {path: path.read_bytes() for path in d.root.rglob("*") if path.is_file()}
    apply(planner(d), arguments=[])
    (entry,) = list_entries(d.root)
    assert entry.files
    for file in entry.files:
        made = content_before(entry, file)
        assert made.size() == len(before.get(entry.storage / file.path, b""))
        assert made.read(0, made.size()) == before.get(entry.storage / file.path, b"")


def test_more_than_eight_files_that_came_since_are_told_as_a_few(tmp_path: Path) -> None:
    d = repaired(tmp_path / "d", "cut behind 9")
    for first in range(10, 18):
        begin(d, first, records=1)
    (found,) = obstacles(list_entries(d.root)[-1])
    assert [one.name for one in found.paths] == [d.seg(first).name for first in range(10, 18)]
    assert refusal(d).count(".seg") == 2 + 8
    assert ", ..." not in refusal(d)
    begin(d, 18, records=1)
    assert refusal(d).count(".seg") == 2 + 8
    assert ", ...;" in refusal(d)


def refusal(d: Twelve, entry: QuarantineEntry | None = None) -> str:
    entries = list_entries(d.root)
    with pytest.raises(StalePlanError) as error:
        check_ways_back(entry or entries[-1], entries)
    return str(error.value).replace(f"{d.root}/", "")


def test_without_what_was_kept_nothing_comes_back(tmp_path: Path) -> None:
    d = repaired(tmp_path / "d", "cut behind 9")
    (entry,) = list_entries(d.root)
    for path in entry.path.iterdir():
        if not path.name.startswith("manifest"):
            path.write_bytes(bytes(path.stat().st_size))
    assert "nothing was modified" in refusal(d) or entry.id in refusal(d)
    assert d.seg(8).stat().st_size == 248


def test_what_an_undo_did(tmp_path: Path) -> None:
    """The entry, its files and directories, what was set aside before, and that nothing was left interrupted."""
    d = repaired(tmp_path / "d", "cut behind 9")
    done = undo(d.root)
    (entry,) = list_entries(d.root)
    assert (done.entries, done.entry, done.taken_back, done.set_aside) == ((entry,), entry, (), None)
    assert [one.name for one in done.files] == [d.seg(8).name, d.idx(8).name]
    for wanted, error, said in (
        (None, RefusedError, "every repair was taken back already, there is nothing to undo"),
        (entry.id, RefusedError, entry.state.why_final),
        ("20200101T000000.000Z-0", InvalidRequestError, "there is no repair '20200101T000000.000Z-0'"),
    ):
        with pytest.raises(error) as refused:
            undo(d.root, wanted)
        assert said in str(refused.value)
    with pytest.raises(RefusedError, match="no repair was made here"):
        undo(Twelve(tmp_path / "other").root)


def test_the_latest_repair_of_a_file_is_taken_back_first(tmp_path: Path) -> None:
    d = repaired(tmp_path / "d", "cut behind 9")
    apply(cut(8)(d), arguments=[])
    first, second = list_entries(d.root)
    assert refusal(d, first).startswith(f"0/{d.seg(8).name}: a later repair changed it too; undo {second.id} first")
    assert UndoResult((first, second), ()).entry is second
    assert undo(d.root).entry.id == second.id
    assert undo(d.root, first.id).entry.id == first.id
    assert d.seg(8).stat().st_size == 368


def test_a_later_repair_that_was_taken_back_is_in_nobodys_way(tmp_path: Path) -> None:
    d = repaired(tmp_path / "d", "cut behind 9")
    apply(cut(8)(d), arguments=[])
    first, second = list_entries(d.root)
    undo(d.root, second.id)
    d.flip(d.seg(8), 130)
    assert refusal(d, first).startswith(f"0/{d.seg(8).name}: the file is not as the repair {first.id} left it")
    d.flip(d.seg(8), 130)
    assert undo(d.root, first.id).entry.id == first.id


def test_a_directory_that_a_repair_made_is_not_removed_with_what_came_into_it(tmp_path: Path) -> None:
    d = Twelve(tmp_path / "d")
    shutil.rmtree(d.directory)
    apply(plan_recover(d.root, replicas=[Twelve(tmp_path / "r").root]), arguments=[])
    (d.directory / "note").write_bytes(b"x")
    (entry,) = list_entries(d.root)
    assert refusal(d) == f"0/note: came into a directory that the repair {entry.id} made"
    for name in "zyxwvutsrqp":
        (d.directory / name).write_bytes(b"x")
    assert refusal(d).startswith("0/note: ")
    (d.directory / "a").write_bytes(b"x")
    assert refusal(d).startswith("0/a: ")
    for name in ("a", "note", *"zyxwvutsrqp"):
        (d.directory / name).unlink()
    undo(d.root)
    assert not d.directory.exists()


@pytest.mark.parametrize("later", ["moved again", "gone", "another in its place", "a later repair"])
def test_a_directory_that_was_moved_comes_back_from_where_it_was_left(tmp_path: Path, later: str) -> None:
    d = Twelve(tmp_path / "d")
    aside = put_aside_path(d.root, 0)
    name = aside.relative_to(d.root).as_posix()
    first = apply_edits(d.root, [MoveDirectory(d.directory, aside)], command="x", arguments=[], plan_hash="")
    assert check_undo(first, list_entries(d.root)) == ()
    moved = f"0: was moved again since the repair {first.id} moved it to {name}; bring partition 0 to where that left it first"
    if later == "moved again":
        aside.rename(tmp_path / "elsewhere")
        assert refusal(d, first) == moved
        (tmp_path / "elsewhere").rename(aside)
    elif later == "gone":
        shutil.rmtree(aside)
        assert refusal(d, first) == moved
        shutil.copytree(Twelve(tmp_path / "again").directory, aside)
    elif later == "another in its place":
        d.directory.mkdir()
        assert refusal(d, first) == moved
        d.directory.rmdir()
    else:
        second = apply_edits(d.root, [MoveDirectory(aside, d.directory)], command="y", arguments=[], plan_hash="")
        assert refusal(d, first) == f"{name}: a later repair changed it too; undo {second.id} first"
        third = apply_edits(
            d.root, [Replace(d.directory / "n", lambda: [b"x"], 1)], command="z", arguments=[], plan_hash=""
        )
        assert refusal(d, second) == f"0/n: a later repair changed it too; undo {third.id} first"
        undo(d.root, third.id)
        undo(d.root, second.id)
    assert undo(d.root, first.id).files == (d.directory,)
    assert (d.directory.is_dir(), aside.exists()) == (True, False)


def test_an_interrupted_repair_is_taken_back_first(tmp_path: Path) -> None:
    """It alone where it was meant, or no other; in front of another one otherwise, of which a failure tells as well."""
    d = repaired(tmp_path / "d", "cut behind 9")
    before = snapshot(d.root)
    repair = cut(8)(d)
    with pytest.raises(Crash), crashing_when(lambda one: one.path == d.seg(8) and one.kind != "sync"):
        apply(repair, arguments=[])
    assert snapshot(d.root) != before
    first, second = list_entries(d.root)
    kept = tmp_path / "kept"
    shutil.copytree(d.root, kept)
    done = undo(d.root)
    assert ([one.id for one in done.entries], done.taken_back, snapshot(d.root)) == ([second.id], (), before)
    shutil.rmtree(d.root)
    shutil.copytree(kept, d.root)
    done = undo(d.root, first.id)
    assert ([one.id for one in done.entries], [one.id for one in done.taken_back]) == ([first.id], [second.id])
    assert d.seg(8).stat().st_size == 368
    shutil.rmtree(d.root)
    shutil.copytree(kept, d.root)
    with pytest.raises(WaltzError, match="there is no repair") as refused:
        undo(d.root, "nothing")
    assert refused.value.taken_back == (second.id,)


# --- on values ------------------------------------------------------------------------------------------------------------


class File:
    """A data file from transaction `first` to `stop` - 1; `torn`: something stands behind that."""

    def __init__(self, first: int, stop: int, *, since: bool = False, torn: bool = False) -> None:
        self.made = undo_conditions._DataFile(first, Path(f"{first}.seg"), Content("", ()), back=False, since=since)
        self.end = stop, not torn


def files(*made: File) -> list[File]:
    return list(made)


A, B, C = File(0, 4), File(4, 8), File(8, 12)
NEW = File(8, 10, since=True)
GROWN, TORN = File(4, 9, since=True), File(4, 8, torn=True)
FIRST = File(0, 4, since=True)


@pytest.mark.parametrize(
    ("now", "then", "marks", "said"),
    [
        (files(), files(), None, None),
        (files(A, B), files(A, B, C), (3, 9, 9), None),
        (files(A), files(A, B), (4, 9, 9), "at transaction 3, and would find it at 7"),
        (files(), files(A), (4, 9, 9), "at transaction -1, and would find it at 3"),
        (files(A), files(), (4, 9, 9), "at transaction 3, and would find it at -1"),
        (files(A, B), files(A, B), (4, 9, 9), None),
        (files(A, TORN), files(A, B), (4, 9, 9), None),
        (files(A, B, NEW), files(A, B, NEW), (4, 9, 9), None),
        (files(A, NEW), files(A, B, NEW), (3, 9, 9), None),
        (files(A, NEW), files(A, TORN, NEW), (3, 9, 9), "4.seg would end with transaction 7, torn, and 8.seg begins with 8"),
        (files(A, NEW), files(A, File(4, 9), NEW), (3, 9, 9), "transaction 8 and 8.seg begins with 8: they would overlap"),
        (files(A, NEW), files(A, File(4, 7), NEW), (3, 9, 9), "transaction 6 and 8.seg begins with 8: they would not join"),
        (files(A, GROWN), files(A, GROWN, C), (3, 9, 9), "transaction 8 and 8.seg begins with 8: they would overlap"),
        (files(A, GROWN), files(A, GROWN, File(9, 12)), (3, 9, 9), None),
        (files(A, GROWN), files(A, GROWN, File(10, 12)), (3, 9, 9), "transaction 8 and 10.seg begins with 10: they would not"),
        (files(A, TORN, NEW), files(A, TORN, NEW), (3, 9, 9), None),
        (files(FIRST), files(FIRST, B), (3, 9, 9), None),
        (files(A, NEW), files(NEW), (3, 9, 9), "nothing would be left in front of 8.seg, which came since"),
        (files(NEW, File(10, 11)), files(NEW), (3, 9, 9), None),
        (files(A, B, NEW), files(A, NEW), (3, 9, 9), "transaction 3 and 8.seg begins with 8: they would not join"),
        (files(A, TORN), files(A, TORN, C), (3, 9, 9), None),
        (files(A, B), files(File(0, 5), B, NEW), (3, 9, 9), None),
        (files(A, B, NEW), files(A, TORN, C, File(12, 13, since=True), File(20, 21)), (3, 9, 9), "12 and 20.seg begins"),
    ],
)  # fmt: skip
def test_what_stands_in_the_way_of_files_that_come_back(
    now: list[File], then: list[File], marks: tuple[int, int, int] | None, said: str | None
) -> None:
    """What the repair left had session 3 and both marks 9; where nothing is known of that no session is asked for."""
    judgement = object.__new__(undo_conditions._Judgement)
    judgement._number = 7
    judgement._now, judgement._then = [one.made for one in now], [one.made for one in then]
    judgement._ends = {id(one.made): one.end for one in (*now, *then)}
    judgement._left = SimpleNamespace(marks=None if marks is None else (3, 9, 9))  # type: ignore[assignment]
    found = judgement.obstacle(marks)
    if said is None:
        assert found is None
        return
    assert found is not None
    assert said in found.why
    assert found.paths == tuple(one.made.path for one in now if one.made.since)
    if "a session began" in found.why:
        judgement._left = None
        assert judgement.obstacle(marks) is None
        judgement._left = SimpleNamespace(marks=None)  # type: ignore[assignment]
        found = judgement.obstacle(marks)
        assert found is not None
        assert "and said that nothing is after the repair" in found.why


@pytest.mark.parametrize(
    ("data", "end"),
    [
        (segment_header(0, 4).encode()[:-1], (4, False)),
        (segment_header(0, 4).encode(), (4, True)),
        (segment_header(0, 4).encode() + RECORDS[4].encode(), (5, True)),
        (segment_header(0, 4).encode() + RECORDS[4].encode() + b"torn", (5, False)),
        (segment_header(0, 5).encode() + RECORDS[5].encode(), (6, True)),
    ],
)
def test_where_a_file_ends_is_told_by_its_records(
    monkeypatch: pytest.MonkeyPatch, data: bytes, end: tuple[int, bool]
) -> None:
    """And by the index that lies beside it, but not where it comes back: that is the index of another state of it."""
    asked: list[object] = []

    def hint_of(path: object) -> AbstractContextManager[None]:
        asked.append(path)
        return nullcontext()

    monkeypatch.setattr(undo_conditions, "hint_of", hint_of)
    content = Content("", (LiteralBytes(data),))
    for back in (False, True):
        assert undo_conditions._end_of(undo_conditions._DataFile(4, Path("4.seg"), content, back=back)) == end
    assert asked == ([] if len(data) < 128 else [Path("4.idx"), None])


def test_a_file_that_comes_back_is_told_from_those_that_stay(tmp_path: Path) -> None:
    d = repaired(tmp_path / "d", "cut behind 5")
    begin(d, 6)
    (entry,) = list_entries(d.root)
    assert entry.partitions is not None
    touched = {file.path.partition("/")[2]: file for file in entry.files if "/" in file.path}
    found = undo_conditions._Judgement(entry, 0, entry.partitions[0], touched)
    assert [(one.first, one.back, one.since) for one in found._now] == [
        (0, False, False), (4, False, False), (6, False, True)
    ]  # fmt: skip
    assert [(one.first, one.back, one.since) for one in found._then] == [
        (0, False, False), (4, True, False), (6, False, True), (8, True, False)
    ]  # fmt: skip
    unknown = undo_conditions._Judgement(entry, 0, None, touched)
    assert [one.since for one in unknown._now] == [True, False, True], "all but what it touched may have come since"


def test_a_repair_of_many_partitions_is_judged_by_looking_through_its_files_once(tmp_path: Path) -> None:
    d = repaired(tmp_path / "d", "cut behind 5")
    (entry,) = list_entries(d.root)
    assert entry.partitions is not None
    CountedName.compared = 0
    names = [CountedName(f"{number}/{segment_name(0)}") for number in range(1, 301)]
    more = [KeptFile(name, None, None) for name in names]
    lefts = Counted([*entry.partitions, *(PartitionLeft(number, None, ()) for number in range(1, 301))])
    assert [*obstacles(replace(entry, files=(*entry.files, *more), partitions=lefts))] == []
    assert lefts.handed <= 3 * len(lefts)
    assert CountedName.compared <= 3 * len(names)
    begin(d, 6)
    (found,) = obstacles(replace(entry, files=(*entry.files, *more), partitions=lefts))
    assert found == next(obstacles(entry))


@pytest.mark.parametrize("control", [True, False])
@pytest.mark.parametrize("before", [None, 0, 127])
def test_no_mark_falls_where_there_is_none_to_compare(tmp_path: Path, before: int | None, *, control: bool) -> None:
    """Of a control file that was not there, or held no header, or is gone."""
    d = Twelve(tmp_path / "d")
    if not control:
        d.control.unlink()
    state = None if before is None else SimpleNamespace(size=before)
    file = SimpleNamespace(path=d.control.name, in_place=True, before=state, kept=None, ranges=())
    entry = SimpleNamespace(state=RepairState.APPLIED, storage=d.root, path=tmp_path, files=[file])
    assert falling_marks(entry) == ()  # type: ignore[arg-type]
    if not control:
        file.before = SimpleNamespace(size=204)
        assert falling_marks(entry) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("now", "then", "falls"),
    [
        (lambda d: None, lambda d: d.mark(8), ["low-water mark", "local low-water mark"]),
        (lambda d: d.forget_marks(), lambda d: d.mark(8), []),
        (lambda d: None, lambda d: d.forget_marks(), []),
    ],
)
def test_marks_fall_where_some_are_in_force_before_and_after(
    tmp_path: Path, now: Damage, then: Damage, falls: list[str]
) -> None:
    d = Twelve(tmp_path / "d")
    sound = d.control.read_bytes()
    then(d)
    (tmp_path / "kept").write_bytes(d.control.read_bytes())
    before = stamp(d.control)
    d.control.write_bytes(sound)
    now(d)
    file = SimpleNamespace(path=d.control.name, before=before, kept="kept", ranges=())
    for state in (RepairState.APPLIED, RepairState.UNDOING, RepairState.UNDONE, RepairState.PRUNED):
        wanted = falls if state in (RepairState.APPLIED, RepairState.UNDOING) else []
        entry = SimpleNamespace(state=state, storage=d.root, path=tmp_path, files=[file])
        found = falling_marks(entry)  # type: ignore[arg-type]
        assert [(one.name, one.now, one.then) for one in found] == [(name, 9, 8) for name in wanted]


@pytest.mark.parametrize("layout", list(Layout))
def test_marks_that_were_raised_since_are_what_they_were(tmp_path: Path, layout: Layout) -> None:
    """In the layout in which the higher ones win as well."""
    d = Twelve(tmp_path / "d", layout=layout)
    state = SimpleNamespace(partition=0, marks=(3, 8, 8))
    entry = SimpleNamespace(files=[], storage=d.root, partitions=[state], id="e", path=tmp_path)
    (edit,) = undo_conditions._marks_as_left(entry)  # type: ignore[arg-type]
    assert isinstance(edit, Overwrite)
    data = bytearray(d.control.read_bytes())
    assert edit.offset + len(edit.data) <= len(data)
    data[edit.offset : edit.offset + len(edit.data)] = edit.data
    d.control.write_bytes(data)
    control = read_control(d.control)
    assert control is not None
    assert marks_of(control, 0) == (3, 8, 8)


@pytest.mark.parametrize("since", [False, True])
def test_marks_are_set_back_in_a_control_file_that_the_repair_changed_unless_it_was_changed_since(
    tmp_path: Path, since: bool
) -> None:
    d = Twelve(tmp_path / "d")
    data = d.control.read_bytes()
    file = SimpleNamespace(path=d.control.name, after=Stamp(len(data), hashlib.sha256(data).hexdigest(), None))
    state = SimpleNamespace(partition=0, marks=(3, 8, 8))
    entry = SimpleNamespace(files=[file], storage=d.root, partitions=[state], id="e", path=tmp_path)
    if not since:
        assert len(list(undo_conditions._marks_as_left(entry))) == 1  # type: ignore[arg-type]
        return
    d.flip(d.control, 100)
    with pytest.raises(StalePlanError, match="it was changed since"):
        list(undo_conditions._marks_as_left(entry))  # type: ignore[arg-type]


def test_edits_in_place_are_taken_back_wherever_they_stand_in_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abXdefYhij")
    for name, data in (("first", b"c"), ("second", b"g")):
        (tmp_path / name).write_bytes(data)
    ranges = [KeptRange(6, 1, 1, "second", None, None, None), KeptRange(2, 1, 1, "first", None, None, None)]
    entry = SimpleNamespace(storage=tmp_path, path=tmp_path)
    made = content_before(entry, KeptFile("file", Stamp(10, "", None), None, tuple(ranges)))  # type: ignore[arg-type]
    assert made.read(0, 20) == b"abcdefghij"


def test_what_came_since_goes_from_the_end_on_and_the_data_before_the_index(tmp_path: Path) -> None:
    d = repaired(tmp_path / "d", "cut behind 9")
    begin(d, 10)
    begin(d, 12)
    (entry,) = list_entries(d.root)
    assert [one.path for one in set_aside(entry)] == [d.seg(12), d.idx(12), d.seg(10), d.idx(10)]
    d.cut(0, d.seg(0).stat().st_size - 1)
    with pytest.raises(StalePlanError, match="has lost bytes"):
        set_aside(entry)
    empty = replace(entry, partitions=(PartitionLeft(0, None, ((segment_name(20), 0),)),))
    with pytest.raises(StalePlanError, match=segment_name(20)):
        set_aside(empty)  # which was there, though without a byte


def test_a_file_in_which_too_much_is_missing_ends_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def survey(*_: object) -> None:
        raise DamageError("too much", (), advice="")

    monkeypatch.setattr(undo_conditions, "survey", survey)
    content = Content("", (LiteralBytes(segment_header(0, 4).encode()),))
    assert undo_conditions._end_of(undo_conditions._DataFile(4, Path("4.seg"), content, back=True)) == (4, False)


def test_obstacles_are_told_partition_by_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    d = Twelve(tmp_path / "d")

    def judgement(_: object, number: int, *__: object) -> object:
        made = None if number == 5 else undo_conditions.Obstacle(number, (), "why")
        return SimpleNamespace(obstacle=lambda _: made)

    monkeypatch.setattr(undo_conditions, "partitions_of", lambda _: {9, 5, 1})
    monkeypatch.setattr(undo_conditions, "_Judgement", judgement)
    entry = SimpleNamespace(files=[], storage=d.root, partitions=None)
    assert [one.partition for one in obstacles(entry)] == [1, 9]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("marks", "control", "written"),
    [((3, 9, 9), True, 0), (None, True, 0), ((3, 8, 8), True, 1), ((3, 8, 8), False, 0), (None, False, 0)],
)
def test_marks_are_set_back_where_both_states_have_some(
    tmp_path: Path, marks: tuple[int, int, int] | None, written: int, *, control: bool
) -> None:
    d = Twelve(tmp_path / "d")
    if not control:
        d.control.unlink()
    state = SimpleNamespace(partition=0, marks=marks)
    states = [SimpleNamespace(partition=0, marks=None), state]
    entry = SimpleNamespace(files=[], storage=d.root, partitions=states, id="e", path=tmp_path)
    assert len(list(undo_conditions._marks_as_left(entry))) == written  # type: ignore[arg-type]


def test_what_a_long_file_began_with_is_told_by_the_end_that_was_hashed(tmp_path: Path) -> None:
    """Of a file that was made longer since; the manifest names only where the hash begins."""
    path = tmp_path / "file"
    known = Stamp(10, hashlib.sha256(b"tail").hexdigest(), None, start=6)
    for data, same in ((b"begin tail", True), (b"other tail and more", True), (b"begin tall", False), (b"tail", False)):
        path.write_bytes(data)
        assert undo_conditions._begins_with(path, known) is same
