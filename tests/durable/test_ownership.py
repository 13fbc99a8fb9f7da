"""Whose a file is that is made, and who may read and write it: whoever may use what it replaces, stands beside, or belongs to."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from waltzctl.engine.durable import disk, ownership
from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.disk import WritableFile, make_directory, write_whole
from waltzctl.engine.durable.ownership import Ownership

NODE, GROUP = 65534, 65533
superuser = pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser gives files away")


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """A storage directory of whose files nobody else may read any; its files have several modes, to be told apart."""
    root = tmp_path / "storage"
    (root / "0").mkdir(parents=True)
    for name, mode in {"control": 0o660, "0/1.seg": 0o600, "0/1.idx": 0o640, "0/2.seg": 0o604}.items():
        (root / name).write_bytes(b"x" * 200)
        (root / name).chmod(mode)
    root.chmod(0o2775)
    return root


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def owner_of(path: Path) -> tuple[int, int]:
    return path.stat().st_uid, path.stat().st_gid


def give(root: Path) -> None:
    for one in (root, *root.rglob("*")):
        mode = mode_of(one)
        os.chown(one, NODE, GROUP)
        one.chmod(mode)


def locked(storage: Path) -> Path:
    """With the state directory that everything in a store is made like."""
    DirectoryLock.acquire(storage, storage / "control").release()
    return storage


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o777])
@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_a_file_that_replaces_another_has_its_mode(tmp_path: Path, mode: int, umask: int) -> None:
    """Anywhere, and whatever the umask."""
    path = tmp_path / "x"
    path.write_bytes(b"")
    path.chmod(mode)
    os.umask(umask)
    write_whole(path, b"new")
    assert (path.read_bytes(), mode_of(path)) == (b"new", mode)


def test_outside_of_a_store_a_new_file_is_as_by_any_program(storage: Path) -> None:
    """Whatever stands beside it."""
    write_whole(storage / "0" / "2.idx", b"")
    make_directory(storage / "3")
    assert (mode_of(storage / "0" / "2.idx"), mode_of(storage / "3") & 0o777) == (0o644, 0o755)
    os.umask(0o027)
    WritableFile.create(storage / "y").close()
    make_directory(storage / "4")
    assert (mode_of(storage / "y"), mode_of(storage / "4") & 0o777) == (0o640, 0o750)


@pytest.mark.parametrize(
    ("name", "umask", "mode"),
    [
        ("0/1.idx", 0o077, 0o640),  # itself
        ("0/2.idx", 0o077, 0o604),  # the other half, whatever the umask
        ("1/1.seg", 0o022, 0o640),  # the file of the lock, as far as the umask lets it
        ("1/1.seg", 0o077, 0o600),
        ("1/1.seg", 0o000, 0o660),
        (".waltzctl/x", 0o077, 0o660),
        (".waltzctl/quarantine/y/x", 0o077, 0o660),
    ],
)
def test_in_a_store_a_new_file_is_like_its_other_half_or_the_control_file(
    storage: Path, name: str, umask: int, mode: int
) -> None:
    path = locked(storage) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    os.umask(umask)
    write_whole(path, b"")
    assert mode_of(path) == mode


@pytest.mark.parametrize(("umask", "modes"), [(0o022, {0o600, 0o604}), (0o077, {0o600})])
def test_a_new_segment_is_readable_to_whom_another_of_its_partition_is(
    storage: Path, umask: int, modes: set[int]
) -> None:
    """As far as the umask lets it."""
    os.umask(umask)
    WritableFile.create(locked(storage) / "0" / "3.seg").close()
    assert mode_of(storage / "0" / "3.seg") in modes


@pytest.mark.parametrize(
    ("name", "umask", "mode"), [("1", 0o022, 0o755), ("1", 0o027, 0o750), (".waltzctl/q", 0o077, 0o775)]
)
def test_a_directory_in_a_store_is_like_the_one_around_it(storage: Path, name: str, umask: int, mode: int) -> None:
    """In our own state whatever the umask."""
    os.umask(umask)
    make_directory(locked(storage) / name)
    assert mode_of(storage / name) & 0o777 == mode


@pytest.mark.parametrize(("directory", "lock"), [(0o755, 0o660), (0o700, 0o660), (0o2770, 0o660)])
def test_our_state_is_like_the_storage_directory_and_its_lock_like_the_control_file(
    storage: Path, directory: int, lock: int
) -> None:
    storage.chmod(directory)
    os.umask(0o077)
    locked(storage)
    assert mode_of(storage / ".waltzctl") == directory
    assert mode_of(storage / ".waltzctl" / "lock") == lock


@pytest.mark.parametrize(("directory", "lock"), [(0o755, 0o644), (0o770, 0o660), (0o711, 0o600)])
def test_of_a_store_without_a_control_file_the_directory_says_it(tmp_path: Path, directory: int, lock: int) -> None:
    store = tmp_path / "store"
    store.mkdir()
    store.chmod(directory)
    DirectoryLock.acquire(store, None).release()
    write_whole(store / ".waltzctl" / "x", b"")
    assert (mode_of(store / ".waltzctl" / "lock"), mode_of(store / ".waltzctl" / "x")) == (lock, lock)


def test_a_lock_file_that_is_there_stays_as_it_is(storage: Path) -> None:
    (storage / ".waltzctl").mkdir()
    (storage / ".waltzctl" / "lock").write_bytes(b"1")
    (storage / ".waltzctl" / "lock").chmod(0o604)
    locked(storage)
    assert mode_of(storage / ".waltzctl" / "lock") == 0o604


def test_the_lock_file_is_made_unseen(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(disk, "observer", lambda change: seen.append(change.kind))
    locked(storage)
    assert seen == ["mkdir"]


def test_a_lock_file_has_its_name_when_it_is_whose_it_is_to_be(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies before leaves none, which the next one would make everything like."""

    def dies(_self: Ownership, _descriptor: int) -> None:
        raise KeyboardInterrupt

    (storage / ".waltzctl").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(Ownership, "give", dies)
        with pytest.raises(KeyboardInterrupt):
            locked(storage)
    assert not (storage / ".waltzctl" / "lock").exists()
    locked(storage)
    assert mode_of(storage / ".waltzctl" / "lock") == 0o660


@pytest.mark.parametrize("error", [PermissionError, FileExistsError])
def test_a_lock_file_that_cannot_be_linked_is_made_under_its_name(
    storage: Path, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    """Where links are unknown; and where another process was faster, its file stays."""

    def link(_made: Path, path: Path) -> None:
        if error is FileExistsError:
            path.write_bytes(b"")
            path.chmod(0o604)
        raise error

    monkeypatch.setattr(os, "link", link)
    locked(storage)
    assert os.listdir(storage / ".waltzctl") == ["lock"]
    assert mode_of(storage / ".waltzctl" / "lock") == (0o604 if error is FileExistsError else 0o660)


@superuser
def test_what_the_superuser_makes_is_whose_the_store_is(storage: Path) -> None:
    """The node's user can go on with all of it."""
    give(storage)
    locked(storage)
    state = storage / ".waltzctl"
    made = [state / "quarantine", state / "quarantine" / "y", storage / "1"]
    for one in made:
        make_directory(one)
    files = [state / "lock", state / "x", state / "quarantine" / "y" / "x"]
    files += [storage / name for name in ("control", "0/1.idx", "0/2.idx", "0/3.seg", "1/1.seg")]
    for one in files[1:]:
        write_whole(one, b"")
    assert {owner_of(one) for one in (state, *made, *files)} == {(NODE, GROUP)}
    assert mode_of(state) == 0o2775


@superuser
def test_the_control_file_says_whose_a_store_is_and_not_its_directory(storage: Path) -> None:
    """A directory of the superuser, in which a group may make files."""
    for one in (storage / "control", *(storage / "0").iterdir()):
        os.chown(one, NODE, GROUP)
    os.chown(storage, 0, GROUP)
    storage.chmod(0o2775)
    locked(storage)
    write_whole(storage / ".waltzctl" / "x", b"")
    write_whole(storage / "0" / "3.seg", b"")
    for name in (".waltzctl/lock", ".waltzctl/x", "0/3.seg"):
        assert owner_of(storage / name) == (NODE, GROUP), name
    assert owner_of(storage / ".waltzctl") == (0, GROUP)
    assert mode_of(storage / ".waltzctl") == 0o2775


@pytest.mark.parametrize(
    ("wanted", "mode"), [(0o660, 0o600), (0o640, 0o600), (0o644, 0o644), (0o664, 0o644), (0o666, 0o666), (0o675, 0o655)]
)
def test_rights_of_a_group_go_to_no_other_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: int, mode: int
) -> None:
    """But for those that everybody has.  To give it away is not permitted, and is no failure."""

    def chown(descriptor: int, user: int, group: int) -> None:
        asked.append((user, group))
        raise PermissionError

    asked: list[tuple[int, int]] = []
    path = tmp_path / "x"
    path.write_bytes(b"")
    monkeypatch.setattr(os, "chown", chown)
    monkeypatch.setattr(ownership, "wanted_for_file", lambda path: Ownership(NODE, GROUP, wanted))
    os.close(ownership.make_file(tmp_path / "y", path))
    assert asked == [(NODE, GROUP), (-1, GROUP)]
    assert mode_of(tmp_path / "y") == mode
    assert owner_of(tmp_path / "y") == owner_of(path)


def test_until_it_is_whose_it_is_to_be_nobody_else_may_open_it(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    real = Ownership.give

    def looked(self: Ownership, descriptor: int) -> None:
        seen.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        real(self, descriptor)

    monkeypatch.setattr(Ownership, "give", looked)
    write_whole(storage / "control", b"")
    assert seen == [0o600]
    assert mode_of(storage / "control") == 0o660


def test_a_system_without_modes_is_no_failure(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "chmod", refused)
    write_whole(storage / "control", b"new")
    assert (storage / "control").read_bytes() == b"new"


def test_what_somebody_puts_into_a_new_directorys_place_stays_as_it_is(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked(storage)
    target = tmp_path / "elsewhere"
    target.mkdir(mode=0o700)
    real = os.mkdir

    def swapped(path: Path, mode: int = 0o777) -> None:
        real(path, mode)
        path.rmdir()
        path.symlink_to(target)

    monkeypatch.setattr(os, "mkdir", swapped)
    make_directory(storage / ".waltzctl" / "quarantine")
    assert mode_of(target) == 0o700


def test_only_some_files_of_a_large_directory_are_looked_at(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locked(storage)
    for number in range(10, 200):
        (storage / "0" / f"{number}.seg").write_bytes(b"")
    asked: list[object] = []
    real = os.stat

    def counted(path: object, **more: object) -> object:
        asked.append(path)
        return real(path, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "stat", counted)
    ownership.wanted_for_file(storage / "0" / "500.seg")
    assert 0 < len(asked) < 10
