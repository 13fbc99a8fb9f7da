"""An undo on a disk with room for so many bytes: it is refused before it begins, or it ends."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.repair.trees import recording, snapshot
from waltzctl.engine.durable import disk, execution, quarantine
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.edits import Cut, Edit, Overwrite, Remove, Replace
from waltzctl.engine.durable.manifest import QuarantineEntry, RepairState
from waltzctl.engine.errors import DiskFullError
from waltzctl.engine.repair.undoing import undo
from waltzctl.engine.storage.store import apply_edits, list_entries, roll_back_interrupted

BLOCK = 512
"""Small, so that many amounts of room make a difference."""


def used(root: Path) -> int:
    """Blocks of all files."""
    sizes = (os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(root) for name in names)
    return sum(-(-size // BLOCK) for size in sizes)


@contextmanager
def quota(root: Path, blocks: Callable[[], int], code: int) -> Iterator[None]:
    """Only so many blocks more than now; `statvfs` tells nothing of it, as of a user's quota."""
    allowed, real = used(root), os.pwrite

    def pwrite(descriptor: int, data: bytes, offset: int) -> int:
        before = os.fstat(descriptor).st_size
        more = -(-max(before, offset + len(data)) // BLOCK) - -(-before // BLOCK)
        if used(root) + more > allowed + blocks():
            raise OSError(code, os.strerror(code))
        return real(descriptor, data, offset)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(disk.os, "pwrite", pwrite)
        yield


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "0").mkdir()
    (tmp_path / "waltz-storage.ctl").write_bytes(b"c" * 300)
    for name in "abcdef":
        (tmp_path / "0" / f"{name}.seg").write_bytes(name.encode() * 200)
    return tmp_path


def run(tree: Path, edits: list[Edit]) -> QuarantineEntry:
    with DirectoryLock.acquire(tree, tree / "waltz-storage.ctl"):
        return apply_edits(tree, edits, command="test", arguments=[], plan_hash="0" * 64)


MOVES: list[Callable[[Path], list[Edit]]] = [
    lambda tree: [Remove(tree / "0" / f"{name}.seg") for name in "abcd"],
    lambda tree: [
        Replace(tree / "0" / "a.seg", lambda: [b"new"]),
        Replace(tree / "0" / "g.seg", lambda: [b"made"]),
        Overwrite(tree / "0" / "b.seg", 40, b"w" * 30),
    ],
]


@pytest.mark.turns(8)
@pytest.mark.parametrize(("edits", "code"), [(MOVES[0], errno.ENOSPC), (MOVES[1], errno.EDQUOT)])
def test_an_undo_that_only_moves_files_is_refused_or_ends(
    tree: Path, edits: Callable[[Path], list[Edit]], code: int
) -> None:
    """It began, and its last line or manifest had no room: no node started until somebody made some."""
    before, refused, ended = snapshot(tree), 0, 0
    for blocks in (0, 1, 2, 4, 8, 64, *range(70, 90, 2), 120):
        entry = run(tree, edits(tree))
        repaired, entries = snapshot(tree), list_entries(tree)
        with quota(tree, lambda: blocks, code):  # noqa: B023  # only called here
            try:
                undo(tree, entry.id)
            except DiskFullError:
                refused += 1
                assert (snapshot(tree), list_entries(tree)) == (repaired, entries)
                assert not (entry.path / quarantine.UNSETTLED).exists()
            else:
                ended += 1
        if list_entries(tree)[-1].state is RepairState.APPLIED:
            undo(tree, entry.id)
        assert snapshot(tree) == before
    assert refused > 3
    assert ended > 3


def test_what_others_write_meanwhile_takes_none_of_the_room(tree: Path) -> None:
    """What was there when the undo began is filled up before its last line."""
    before, room = snapshot(tree), [200]
    entry = run(tree, MOVES[0](tree))
    real = quarantine.put_back

    def filled(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        room[0] = taken()

    allowed = used(tree)

    def taken() -> int:
        return used(tree) - allowed

    with pytest.MonkeyPatch.context() as patched, quota(tree, lambda: room[0], errno.ENOSPC):
        patched.setattr(quarantine, "put_back", filled)
        undo(tree, entry.id)
    assert (snapshot(tree), list_entries(tree)[-1].state) == (before, RepairState.UNDONE)


def test_where_even_that_is_taken_the_copies_make_room(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = snapshot(tree)
    entry = run(tree, [Cut(tree / "0" / "a.seg", 10), Overwrite(tree / "0" / "b.seg", 0, b"w" * 150)])
    real, failed = quarantine.journal.record, list[str]()

    def record(*arguments: object, **more: object) -> None:
        if {path.name for path in entry.path.iterdir()} & {"range-0", "range-1"}:
            failed.append("full")
            raise DiskFullError(tree, None, OSError(errno.ENOSPC, "full"))
        real(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(quarantine.journal, "record", record)
    undo(tree, entry.id)
    assert failed
    assert (snapshot(tree), list_entries(tree)[-1].state) == (before, RepairState.UNDONE)


def test_an_undo_that_was_killed_gives_the_room_back_where_it_goes_on(tree: Path) -> None:
    before = snapshot(tree)
    entry = run(tree, MOVES[0](tree))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(quarantine, "put_back", _killed)
        with pytest.raises(KeyboardInterrupt):
            undo(tree, entry.id)
    with quota(tree, lambda: 0, errno.ENOSPC):
        (done,) = roll_back_interrupted(tree)
    assert (snapshot(tree), done.state) == (before, RepairState.UNDONE)
    assert sorted(path.name for path in entry.path.iterdir()) == ["manifest.json"]


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_nothing_is_set_aside_where_there_is_no_room_to_go_on(tree: Path) -> None:
    """The room is taken before that, not behind it."""
    entry = run(tree, MOVES[0](tree))
    with quota(tree, lambda: 200, errno.ENOSPC), recording() as changes, quarantine.room_to_end(entry):
        assert (entry.path / quarantine.UNSETTLED).stat().st_size > 2 * len((entry.path / "manifest.json").read_bytes())
    assert [one.kind for one in changes][:3] == ["create", "write", "sync"]
    assert execution.MANIFEST_ALLOWANCE > 0
