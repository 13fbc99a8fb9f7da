"""Bringing back what a repair took away: from which states, in which order, and which states nobody touches."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.repair.trees import recording
from waltzctl.engine.durable import disk, restore
from waltzctl.engine.durable.disk import Change
from waltzctl.engine.durable.manifest import KeptFile, KeptMove, KeptRange, QuarantineEntry, RepairState, Stamp
from waltzctl.engine.durable.relocation import relocate, retired_directories, settle_relocations
from waltzctl.engine.durable.restore import (
    Way,
    move_back,
    put_back,
    read_chunks,
    remove_made_directories,
    same_contents,
    settle_interrupted,
    stamp,
    stamp_as,
    way_back,
    ways_back,
)
from waltzctl.engine.errors import DamageError, DiskWriteError
from waltzctl.engine.findings import Code

NAME = "20260101T000000Z-recover"
BEFORE, AFTER, FOREIGN = b"before", b"after it", b"foreign"


@pytest.fixture(params=[1 << 20, 3])
def chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """However much is read at once."""
    monkeypatch.setattr(restore, "CHUNK", request.param)
    return int(request.param)


@pytest.fixture
def entry(tmp_path: Path) -> QuarantineEntry:
    place = tmp_path / "s" / disk.STATE_DIRECTORY / disk.QUARANTINE / NAME
    place.mkdir(parents=True)
    (tmp_path / "s" / "0").mkdir()
    return QuarantineEntry(NAME, 1, "recover", (), "2026-01-01T00:00:00Z", "ff", RepairState.PREPARED, place)


def told(data: bytes, start: int = 0) -> Stamp:
    return Stamp(len(data), hashlib.sha256(data[start:]).hexdigest(), 17, start)


def steps(changes: list[Change], storage: Path) -> list[tuple[str, str]]:
    own = f"{disk.STATE_DIRECTORY}/{disk.QUARANTINE}/{NAME}"
    return [(one.kind, str(one.path.relative_to(storage)).replace(own, "entry")) for one in changes]


# --- reading and comparing ----------------------------------------------------------------------------------------


def test_pieces_of_a_file(tmp_path: Path, chunk: int) -> None:
    data = bytes(range(11))
    (tmp_path / "f").write_bytes(data)
    for start in range(12):
        for stop in range(14):
            pieces = list(read_chunks(tmp_path / "f", start, stop))
            assert b"".join(pieces) == data[start:stop]
            assert all(0 < len(piece) <= chunk for piece in pieces)


@pytest.mark.usefixtures("chunk")
def test_stamps(tmp_path: Path) -> None:
    path = tmp_path / "f"
    assert stamp(path) is None
    path.write_bytes(b"0123456789")
    disk.set_times(path, 17)
    for start in (0, 1, 9, 10):
        found = stamp(path, start)
        assert found == told(b"0123456789", start)
        assert stamp_as(path, found) == found
    assert stamp_as(path, None) == told(b"0123456789")
    one = told(b"0123456789")
    assert same_contents(one, replace(one, modified_ns=None))
    assert not same_contents(one, None)
    assert not same_contents(None, one)
    assert same_contents(None, None)
    for other in (replace(one, size=11), replace(one, sha256="ff"), replace(one, start=1)):
        assert not same_contents(one, other)


# --- files as a whole ---------------------------------------------------------------------------------------------

REPLACED = KeptFile("0/a", told(BEFORE), told(AFTER), (), "old-0", "new-0")
REMOVED = KeptFile("0/a", told(BEFORE), None, (), "old-0", None)
MADE = KeptFile("0/a", None, told(AFTER), (), None, "new-0")


@pytest.mark.parametrize(
    ("file", "now", "kept", "built", "answer"),
    [
        (REPLACED, BEFORE, None, AFTER, Way.NOTHING),
        (REPLACED, FOREIGN, None, AFTER, Way.NOTHING),
        (REPLACED, None, None, AFTER, "neither the file nor its kept copy is there"),
        (REPLACED, AFTER, None, None, "the kept copy is not there any more"),
        (REPLACED, AFTER, None, AFTER, Way.NOTHING),
        (REPLACED, None, BEFORE, AFTER, Way.MOVE),
        (REPLACED, AFTER, BEFORE, None, Way.MOVE),
        (REPLACED, BEFORE, BEFORE, AFTER, Way.MOVE),
        (REPLACED, FOREIGN, BEFORE, None, "somebody changed the file after the repair; "),
        (REPLACED, AFTER, FOREIGN, None, "the kept copy is not what the manifest says"),
        (REPLACED, None, FOREIGN, None, "the kept copy is not what the manifest says"),
        (REMOVED, BEFORE, None, None, Way.NOTHING),
        (REMOVED, None, None, None, "neither the file nor its kept copy is there"),
        (REMOVED, None, BEFORE, None, Way.MOVE),
        (REMOVED, BEFORE, BEFORE, None, Way.MOVE),
        (REMOVED, AFTER, BEFORE, None, "somebody changed the file after the repair; "),
        (MADE, None, None, AFTER, Way.NOTHING),
        (MADE, None, None, None, Way.NOTHING),
        (MADE, AFTER, None, None, Way.REMOVE),
        (MADE, AFTER, None, AFTER, Way.REMOVE),
        (MADE, FOREIGN, None, AFTER, Way.NOTHING),
        (MADE, FOREIGN, None, None, "somebody changed the file after the repair made it"),
    ],
)
def test_how_a_file_comes_back(
    entry: QuarantineEntry,
    file: KeptFile,
    now: bytes | None,
    kept: bytes | None,
    built: bytes | None,
    answer: Way | str,
) -> None:
    path = entry.storage / "0" / "a"
    for place, data in ((path, now), (entry.path / "old-0", kept), (entry.path / "new-0", built)):
        if data is not None:
            place.write_bytes(data)
            disk.set_times(place, 17)
    if isinstance(answer, str):
        with recording() as changes, pytest.raises(DamageError, match=answer) as caught:
            way_back(entry, file)
        assert changes == []
        (found,) = caught.value.findings
        assert found.code is Code.REPAIR_INTERRUPTED
        assert found.path == (entry.path / "old-0" if "copy is not" in answer else path)
        assert f"the repair {NAME} cannot be taken back: " in found.message
        assert str(caught.value).startswith(f"{found.message}; ")
        assert caught.value.advice == f"nothing was changed; everything that the repair took away is in {entry.path}"
        return
    assert way_back(entry, file) is answer
    with recording() as changes:
        put_back(entry, file, answer)
    assert (
        steps(changes, entry.storage)
        == {
            Way.NOTHING: [],
            Way.MOVE: [("rename", "entry/old-0"), ("sync-directory", "0")],
            Way.REMOVE: [("unlink", "0/a"), ("sync-directory", "0")],
        }[answer]
    )
    if answer is Way.MOVE:
        assert path.read_bytes() == BEFORE
        assert path.stat().st_mtime_ns == 17
    assert not (answer is Way.REMOVE and path.exists())


def test_a_link_is_no_copy(entry: QuarantineEntry) -> None:
    (entry.storage / "0" / "a").write_bytes(BEFORE)
    (entry.storage / "0" / "b").write_bytes(BEFORE)
    (entry.path / "old-0").symlink_to(entry.storage / "0" / "b")
    assert way_back(entry, REMOVED) is Way.NOTHING


def test_a_file_under_both_names_keeps_one(entry: QuarantineEntry) -> None:
    (entry.storage / "0" / "a").write_bytes(BEFORE)
    os.link(entry.storage / "0" / "a", entry.path / "old-0")
    with recording() as changes:
        put_back(entry, REMOVED, Way.MOVE)
    assert steps(changes, entry.storage)[-2:] == [("sync-directory", "0"), ("unlink", "entry/old-0")]
    assert (entry.storage / "0" / "a").read_bytes() == BEFORE


def test_a_directory_that_went_is_made_again(entry: QuarantineEntry) -> None:
    (entry.path / "old-0").write_bytes(BEFORE)
    (entry.storage / "0").rmdir()
    with recording() as changes:
        put_back(entry, REMOVED, Way.MOVE)
    assert steps(changes, entry.storage)[:2] == [("mkdir", "0"), ("sync-directory", ".")]


# --- edits in place -----------------------------------------------------------------------------------------------

OLD = bytes(range(1, 31))
NEW = OLD[:5] + b"N" * 10 + OLD[15:20]
"""Bytes 5 to 14 written over, then cut to 20."""
GROWN = OLD[:15] + b"N" * 15
"""Of the first 20 bytes: written over from 15 on, to 30."""


def at(data: bytes, place: int, new: bytes) -> bytes:
    return data[:place] + new + data[place + len(new) :]


def shrinking(entry: QuarantineEntry, start: int = 0) -> KeptFile:
    for name, data in (("range-0", OLD[5:15]), ("new-0", b"N" * 10), ("range-1", OLD[20:])):
        (entry.path / name).write_bytes(data)
    ranges = (
        KeptRange(20, 10, 0, "range-1", "", None, None),
        KeptRange(5, 10, 10, "range-0", "", "new-0", ""),
    )
    return KeptFile("0/a", told(OLD, start), told(NEW, start), ranges)


def growing(entry: QuarantineEntry) -> KeptFile:
    (entry.path / "range-0").write_bytes(OLD[15:20])
    (entry.path / "new-0").write_bytes(b"N" * 15)
    return KeptFile("0/a", told(OLD[:20]), told(GROWN), (KeptRange(15, 5, 15, "range-0", "", "new-0", ""),))


@pytest.mark.usefixtures("chunk")
@pytest.mark.parametrize(
    ("grows", "now", "answer"),
    [
        (False, OLD, Way.NOTHING),
        (False, NEW, Way.RANGES),
        (False, at(OLD, 5, b"N" * 10), Way.RANGES),
        (False, at(OLD, 5, b"N"), Way.RANGES),
        (False, at(OLD, 14, b"N"), Way.RANGES),
        (False, at(OLD, 8, b"NNN"), Way.RANGES),
        (False, at(NEW, 7, OLD[7:9]), Way.RANGES),
        (False, OLD[:20], Way.RANGES),
        (False, OLD[:29], Way.RANGES),
        (False, OLD[:20] + bytes(10), Way.RANGES),
        (False, OLD[:20] + bytes(3), Way.RANGES),
        (False, at(OLD, 22, bytes(3)), Way.RANGES),
        (False, at(OLD, 20, bytes(1)), Way.RANGES),
        (False, OLD[:19], "it has 19 bytes now, which this repair does not explain"),
        (False, OLD + b"x", "it has 31 bytes now, which this repair does not explain"),
        (False, at(OLD, 5, b"X"), "the bytes at offset 5 are neither the old nor the new ones"),
        (False, at(NEW, 14, b"X"), "the bytes at offset 5 are neither"),
        (False, at(NEW, 9, bytes(1)), "the bytes at offset 5 are neither"),
        (False, at(OLD, 20, b"X"), "the bytes at offset 20 are neither"),
        (False, at(OLD, 29, b"X"), "the bytes at offset 20 are neither"),
        (False, OLD[:20] + b"NN", "the bytes at offset 20 are neither"),
        (False, at(NEW, 4, b"X"), "somebody changed it outside of the places that the repair touched"),
        (False, at(NEW, 15, b"X"), "outside of the places"),
        (False, at(NEW, 19, b"X"), "outside of the places"),
        (False, at(NEW, 0, b"X"), "outside of the places"),
        (False, None, "the file is missing"),
        (True, OLD[:20], Way.NOTHING),
        (True, GROWN, Way.RANGES),
        (True, GROWN[:25], Way.RANGES),
        (True, at(OLD[:20], 17, b"N"), Way.RANGES),
        (True, at(GROWN, 20, bytes(10)), Way.RANGES),
        (True, at(GROWN, 20, bytes(1)), Way.RANGES),
        (True, at(GROWN, 19, bytes(1)), "the bytes at offset 15 are neither"),
        (True, at(GROWN, 20, OLD[20:21]), "the bytes at offset 15 are neither"),
        (True, at(GROWN, 14, b"X"), "outside of the places"),
        (True, OLD[:19], "it has 19 bytes now"),
        (True, GROWN + b"N", "it has 31 bytes now"),
    ],
)
def test_what_of_a_changed_file_is_explained(
    entry: QuarantineEntry, grows: bool, now: bytes | None, answer: Way | str
) -> None:
    file, path = growing(entry) if grows else shrinking(entry), entry.storage / "0" / "a"
    if now is not None:
        path.write_bytes(now)
    if isinstance(answer, str):
        with recording() as changes, pytest.raises(DamageError, match=answer):
            way_back(entry, file)
        assert changes == []
        return
    assert way_back(entry, file) is answer
    with recording() as changes:
        put_back(entry, file, answer)
    assert path.read_bytes() == (OLD[:20] if grows else OLD)
    assert path.stat().st_mtime_ns == 17
    kinds = [one.kind for one in changes]
    assert kinds[-2:] == ["sync", "times"]
    assert kinds.count("truncate") == (grows and now is not None and len(now) > 20)
    for name in os.listdir(entry.path):
        (entry.path / name).unlink()  # what was restored needs the copies no more
    with recording() as changes:
        put_back(entry, file, Way.NOTHING)
    assert path.read_bytes() == (OLD[:20] if grows else OLD)
    written = {
        place for one in changes if one.kind == "write" for place in range(one.offset, one.offset + len(one.data))
    }
    assert written == set(range(15, 20) if grows else (*range(5, 15), *range(20, 30))), "a sync may have failed before"
    kinds = [one.kind for one in changes]
    assert (kinds[-2:], {*kinds}) == (["sync", "times"], {"write", "sync", "times"})


@pytest.mark.parametrize(("place", "seen"), [(0, False), (3, False), (4, True), (16, True)])
def test_what_lies_before_the_checksum_is_nobody_s_affair(entry: QuarantineEntry, place: int, seen: bool) -> None:
    file = shrinking(entry, 4)
    (entry.storage / "0" / "a").write_bytes(at(NEW, place, b"X"))
    if seen:
        with pytest.raises(DamageError, match="outside"):
            way_back(entry, file)
    else:
        assert way_back(entry, file) is Way.RANGES


def test_ranges_that_took_nothing_have_nothing_to_put_back(entry: QuarantineEntry) -> None:
    (entry.path / "range-1").write_bytes(b"KK")
    made, kept = KeptRange(2, 0, 3, None, None, "new-0", ""), KeptRange(6, 2, 2, "range-1", "", "new-1", "")
    path = entry.storage / "0" / "a"
    path.write_bytes(b"0123456789")
    put_back(entry, KeptFile("0/a", Stamp(10, "", None), told(b""), (kept, made)), Way.RANGES)
    assert path.read_bytes() == b"012345KK89"


def test_ways_of_every_file_and_of_what_was_moved(entry: QuarantineEntry) -> None:
    (entry.storage / "0" / "a").write_bytes(AFTER)
    other = replace(MADE, path="0/b")
    assert ways_back(replace(entry, files=(MADE, other))) == [(MADE, Way.REMOVE), (other, Way.NOTHING)]
    with pytest.raises(DamageError, match="it is at neither of its places"):
        ways_back(replace(entry, files=(MADE,), moves=(KeptMove("7", ".waltzctl/unassigned/7"),)))


def test_directories_that_were_made_go_when_they_are_empty(entry: QuarantineEntry) -> None:
    made = replace(entry, directories=("7", "7/x", "8", "9"))
    (entry.storage / "7" / "x").mkdir(parents=True)
    (entry.storage / "8").mkdir()
    (entry.storage / "8" / "file").write_bytes(b"")
    with recording() as changes:
        remove_made_directories(made)
    assert steps(changes, entry.storage) == [
        ("sync-directory", "."), ("sync-directory", "."),
        ("rmdir", "7/x"), ("sync-directory", "7"), ("rmdir", "7"), ("sync-directory", "."),
    ]  # fmt: skip


# --- directories that move ----------------------------------------------------------------------------------------


@pytest.fixture
def storage(entry: QuarantineEntry) -> Path:
    return entry.storage


def test_a_directory_that_is_put_aside_and_comes_back(entry: QuarantineEntry, storage: Path) -> None:
    unassigned, deleting = retired_directories(storage)
    assert (unassigned, deleting) == (storage / ".waltzctl" / "unassigned", storage / ".waltzctl" / "deleting")
    move = KeptMove("0", ".waltzctl/unassigned/0")
    with recording() as changes:
        relocate(storage, storage / "0", unassigned / "0")
    assert steps(changes, storage) == [
        ("mkdir", ".waltzctl/unassigned"), ("sync-directory", ".waltzctl"),
        ("rename", "0"), ("sync-directory", ".waltzctl/unassigned"), ("sync-directory", "."),
    ]  # fmt: skip
    with recording() as changes:
        move_back(entry, move)
    assert steps(changes, storage) == [
        ("mkdir", ".waltzctl/returning"),
        ("rename", ".waltzctl/unassigned/0"), ("sync-directory", "."), ("sync-directory", ".waltzctl/unassigned"),
        ("rmdir", ".waltzctl/returning"),
    ]  # fmt: skip
    with recording() as changes:
        move_back(entry, move)
    assert changes == []
    (storage / ".waltzctl" / "returning").mkdir()  # left by a process that died
    relocate(storage, storage / "0", unassigned / "0")
    with recording() as changes:
        relocate(storage, unassigned / "0", deleting / "0")
    assert ("rmdir", ".waltzctl/returning") not in steps(changes, storage)
    relocate(storage, deleting / "0", unassigned / "0")
    relocate(storage, unassigned / "0", storage / "0")
    assert not (storage / ".waltzctl" / "returning").exists()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("back", [True, False])
def test_a_move_that_fails_is_marked_as_long_as_it_may_have_happened(
    storage: Path, monkeypatch: pytest.MonkeyPatch, when: str, back: bool
) -> None:
    unassigned, _ = retired_directories(storage)
    source, target = (unassigned / "0", storage / "0") if back else (storage / "0", unassigned / "0")
    if back:
        relocate(storage, target, source)
    real, returning = os.rename, storage / ".waltzctl" / "returning"

    def fails(*names: Path) -> None:
        assert returning.is_dir() == back
        if when == "after":
            real(*names)
        raise OSError("made up")

    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(DiskWriteError, match="rename"):
        relocate(storage, source, target)
    assert returning.is_dir() == (back and when == "after")


@pytest.mark.parametrize("marked", ["", "empty", "full"])
def test_the_place_that_it_went_to_is_durable_first(storage: Path, marked: str) -> None:
    returning = storage / ".waltzctl" / "returning"
    if marked:
        returning.mkdir()
    if marked == "full":
        (returning / "x").mkdir()
    own = [("sync-directory", ".waltzctl")]
    with recording() as changes:
        settle_relocations(storage)
    removed = [("rmdir", ".waltzctl/returning")] if marked == "empty" else []
    assert steps(changes, storage) == [("sync-directory", "."), *own, *removed]
    if marked == "empty":
        returning.mkdir()
    for place in retired_directories(storage):
        place.mkdir()
    with recording() as changes:
        settle_relocations(storage)
    places = [("sync-directory", name) for name in (".waltzctl/deleting", ".waltzctl/unassigned", ".")]
    if marked:
        places = [places[2], places[1], places[0]]
    assert steps(changes, storage) == [*places, *own, *removed]


def test_the_one_rename_that_was_under_way_is_durable_first(entry: QuarantineEntry, storage: Path) -> None:
    with recording() as changes:
        settle_interrupted([])
    assert changes == []
    relocations = [("sync-directory", "."), ("sync-directory", ".waltzctl")]
    with recording() as changes:
        settle_interrupted([replace(entry, files=(MADE,))])
    assert steps(changes, storage) == [("sync-directory", "entry"), *relocations]
    files = (replace(MADE, path="9/gone"), MADE, replace(MADE, path="b"), shrinking(entry), replace(MADE, path="1/c"))
    (storage / "1").mkdir()
    for state in (RepairState.ROLLING_BACK, RepairState.UNDOING):
        with recording() as changes:
            settle_interrupted([replace(entry, state=state, files=files)])
        parents = [("sync-directory", name) for name in (".", "0", "1")]
        assert steps(changes, storage) == [*relocations, *parents, ("sync-directory", "entry")]
