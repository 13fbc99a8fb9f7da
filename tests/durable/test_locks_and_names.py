"""Who holds a directory, what is opened under a name, and what a change leaves behind when it fails halfway."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from waltzctl.engine.durable import directory_lock, disk
from waltzctl.engine.durable.directory_lock import DirectoryLock, lock_holder
from waltzctl.engine.durable.disk import WritableFile, replacing
from waltzctl.engine.durable.file_status import kind_of, special_kind
from waltzctl.engine.durable.regular import NotRegularError, open_regular
from waltzctl.engine.errors import (
    DirectoryLockedError,
    DiskReadError,
    DiskWriteError,
    SpecialFileError,
    SyncFailedError,
)

OPEN_FILES = Path("/proc/self/fd")


@pytest.fixture(autouse=True)
def closes_what_it_opens() -> Iterator[None]:
    before = len(os.listdir(OPEN_FILES)) if OPEN_FILES.exists() else 0
    yield
    assert before in (0, len(os.listdir(OPEN_FILES)))


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    (tmp_path / "control").write_bytes(bytes(300))
    return tmp_path


def record(storage: Path, text: str) -> None:
    (storage / ".waltzctl").mkdir(exist_ok=True)
    (storage / ".waltzctl" / "lock").write_text(text)


def hold(storage: Path, start: int = 0, length: int = 128, kind: int = fcntl.F_WRLCK) -> int:
    """Take a lock of an open file, of which the kernel tells no process."""
    descriptor = os.open(storage / "control", os.O_RDWR)
    flock = directory_lock._FLOCK.pack(kind, os.SEEK_SET, start, length, 0)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, flock)
    return descriptor


# --- who holds a directory ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "length", "kind", "held"),
    [
        (0, 128, fcntl.F_WRLCK, True),
        (0, 1, fcntl.F_WRLCK, True),
        (127, 1, fcntl.F_WRLCK, True),
        (128, 1, fcntl.F_WRLCK, False),
        (127, 1, fcntl.F_RDLCK, True),
        (0, 0, fcntl.F_WRLCK, True),
    ],
)
def test_the_locked_range_tells_whether_a_directory_is_held(
    storage: Path, start: int, length: int, kind: int, *, held: bool
) -> None:
    assert lock_holder(storage, storage / "control") is None
    descriptor = hold(storage, start, length, kind)
    try:
        assert lock_holder(storage, storage / "control") == (0 if held else None)
    finally:
        os.close(descriptor)
    assert lock_holder(storage, storage / "control") is None


@pytest.mark.parametrize(
    ("text", "pid"),
    [
        ("", 0),
        ("\n", 0),
        ("0\n", 0),
        ("1\n", 1),
        ("{own}\n", -1),
        ("{own}", -1),
        ("  {own} \n", -1),
        ("nonsense\n", 0),
        ("-1\n", 0),
        ("{gone}\n", 0),
        ("99999999999999999999\n", 0),
    ],
)
def test_a_held_directory_names_the_process_that_is_recorded_and_lives(storage: Path, text: str, pid: int) -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    record(storage, text.format(own=os.getpid(), gone=child))
    assert lock_holder(storage, storage / "control") is None, "a recorded process holds nothing by that"
    descriptor = hold(storage)
    try:
        assert lock_holder(storage, storage / "control") == (os.getpid() if pid < 0 else pid)
    finally:
        os.close(descriptor)


def test_a_process_of_somebody_else_lives(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(storage, "4711\n")
    descriptor = hold(storage)
    asked: list[tuple[int, int]] = []

    def kill(pid: int, signal: int) -> None:
        asked.append((pid, signal))
        raise PermissionError(errno.EPERM, "made up")

    monkeypatch.setattr(os, "kill", kill)
    assert lock_holder(storage, storage / "control") == 4711
    assert asked == [(4711, 0)]
    os.close(descriptor)


def test_a_lock_of_a_process_tells_its_process(storage: Path) -> None:
    """As a released node takes it; what is recorded is of no interest then."""
    record(storage, f"{os.getpid()}\n")
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        with open(storage / "control", "r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX, 128, 0)
            os.write(ready[1], b".")
            os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    try:
        assert lock_holder(storage, storage / "control") == child
        with pytest.raises(DirectoryLockedError) as raised:
            DirectoryLock.acquire(storage, storage / "control")
        assert raised.value.pid == child
    finally:
        os.write(go[1], b".")
        os.waitpid(child, 0)
        for descriptor in (*ready, *go):
            os.close(descriptor)


@pytest.mark.parametrize("what", ["missing", "directory", "fifo"])
def test_nobody_holds_what_cannot_be_asked(storage: Path, what: str) -> None:
    (storage / "control").unlink()
    if what == "directory":
        (storage / "control").mkdir()
    elif what == "fifo":
        os.mkfifo(storage / "control")
    assert lock_holder(storage, storage / "control") is None
    if what == "missing":
        with pytest.raises(DiskWriteError):
            DirectoryLock.acquire(storage, storage / "control")
    else:
        with pytest.raises(DiskWriteError, match="lock"):
            DirectoryLock.acquire(storage, storage / "control")


@pytest.mark.parametrize(("told", "answer"), [(-1, "recorded"), (0, "recorded"), (1, 1), (4711, 4711)])
def test_a_process_that_the_kernel_cannot_name_is_the_recorded_one(
    storage: Path, monkeypatch: pytest.MonkeyPatch, told: int, answer: int | str
) -> None:
    """It says -1 for a lock of an open file, and 0 for a process of another container."""
    record(storage, f"{os.getpid()}\n")
    flock = directory_lock._FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 128, told)
    monkeypatch.setattr(fcntl, "fcntl", lambda *_: flock)
    assert lock_holder(storage, storage / "control") == (os.getpid() if answer == "recorded" else answer)


def test_where_the_system_knows_no_such_question_nobody_holds(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> bytes:
        raise OSError(errno.EINVAL, "made up")

    monkeypatch.setattr(fcntl, "fcntl", fail)
    assert lock_holder(storage, storage / "control") is None


def test_a_directory_is_held_once_and_by_whom_is_written_down(storage: Path) -> None:
    record(storage, "123456789012345678901234567890\n")
    lock = DirectoryLock.acquire(storage, storage / "control")
    assert (storage / ".waltzctl" / "lock").read_text() == f"{os.getpid()}\n"
    with pytest.raises(DirectoryLockedError) as raised:
        DirectoryLock.acquire(storage, storage / "control")
    assert raised.value.pid == os.getpid()
    assert lock_holder(storage, storage / "control") == os.getpid()
    lock.release()
    lock.release()
    with DirectoryLock.acquire(storage, storage / "control"):
        assert lock_holder(storage, storage / "control") == os.getpid()
    assert lock_holder(storage, storage / "control") is None
    assert (storage / "control").read_bytes() == bytes(300)


def test_of_two_that_open_a_new_directory_at_once_the_second_is_told_that_it_is_held(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, locks = directory_lock.make_directory, list[DirectoryLock]()

    def faster(path: Path) -> None:
        monkeypatch.setattr(directory_lock, "make_directory", make)
        locks.append(DirectoryLock.acquire(storage, storage / "control"))
        make(path)

    monkeypatch.setattr(directory_lock, "make_directory", faster)
    with pytest.raises(DirectoryLockedError):
        DirectoryLock.acquire(storage, storage / "control")
    locks[0].release()


@pytest.mark.parametrize("control", ["control", None])
def test_who_removes_the_lock_file_gets_no_second_holder(storage: Path, control: str | None) -> None:
    """As people do with the lock files of other programs; a page store has no control file whose lock would stay."""
    file = None if control is None else storage / control
    with DirectoryLock.acquire(storage, file):
        (storage / ".waltzctl" / "lock").unlink()
        with pytest.raises(DirectoryLockedError):
            DirectoryLock.acquire(storage, file)
    with DirectoryLock.acquire(storage, file):
        pass


def test_a_file_system_without_locks_of_directories_is_none_the_worse(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EBADF, "made up")

    monkeypatch.setattr(fcntl, "flock", fail)
    with (
        DirectoryLock.acquire(storage, storage / "control"),
        pytest.raises(DirectoryLockedError),
    ):
        DirectoryLock.acquire(storage, storage / "control")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_who_wants_to_make_room_on_a_full_disk_is_let_in(
    storage: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The node, whose partitions can be deleted, and `undo --prune`; only who holds it is not known then."""
    record(storage, "123456789\n")

    def full(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        if code == errno.EIO:
            with pytest.raises(DiskWriteError, match=r"\.waltzctl/lock: cannot lock"):
                DirectoryLock.acquire(storage, storage / "control")
            return
        lock = DirectoryLock.acquire(storage, storage / "control")
    with lock:
        assert lock_holder(storage, storage / "control") == 0
        with pytest.raises(DirectoryLockedError):
            DirectoryLock.acquire(storage, storage / "control")


def test_what_was_recorded_is_written_over_and_never_missing(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full may not give its room back."""
    record(storage, "1234567890123\n")
    sizes: list[int] = []
    ftruncate = os.ftruncate
    monkeypatch.setattr(os, "ftruncate", lambda descriptor, size: sizes.append(size) or ftruncate(descriptor, size))
    with DirectoryLock.acquire(storage, storage / "control"):
        assert (storage / ".waltzctl" / "lock").read_text() == f"{os.getpid()}\n"
    assert 0 not in sizes


@pytest.mark.parametrize(("recorded", "pid"), [("{own}\n", True), ("\n", False)])
def test_who_holds_our_own_lock_alone_is_told_as_well(storage: Path, recorded: str, pid: bool) -> None:
    """Another one is between its two locks."""
    record(storage, recorded.format(own=os.getpid()))
    descriptor = os.open(storage / ".waltzctl" / "lock", os.O_RDWR)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, directory_lock._flock(fcntl.F_WRLCK))
    with pytest.raises(DirectoryLockedError) as raised:
        DirectoryLock.acquire(storage, storage / "control")
    assert raised.value.pid == (os.getpid() if pid else None)
    os.close(descriptor)


# --- what is opened -------------------------------------------------------------------------------------------------------------


def make_link(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        here = os.getcwd()
        os.chdir(path.parent)
        try:
            one.bind(path.name)
        finally:
            os.chdir(here)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, "a FIFO"),
        (os.mkdir, "a directory"),
        (make_link, "a link that leads nowhere"),
        (make_socket, "a socket"),
        (lambda path: path.symlink_to("/dev/null"), "a character device"),
    ],
)
@pytest.mark.parametrize("devices", [False, True])
def test_what_is_no_regular_file_is_not_opened(
    tmp_path: Path, make: Callable[[Path], None], kind: str, devices: bool
) -> None:
    path = tmp_path / "x"
    make(path)
    assert special_kind(path) == kind
    for flags in (os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT):
        with pytest.raises(NotRegularError, match=f"it is {kind}, not a regular file"):
            open_regular(path, flags, devices=devices)
    with pytest.raises(SpecialFileError):
        disk.open_for_reading(path, devices=devices)
    with pytest.raises(DiskWriteError, match="open for writing"):
        WritableFile.open(path)
    with pytest.raises(DiskWriteError, match=f"it is {kind}"), replacing(path):
        pass
    assert special_kind(path) == kind


def test_names_that_are_free_or_regular(tmp_path: Path) -> None:
    path = tmp_path / "x"
    assert special_kind(path) is None
    assert special_kind(path / "below") is None
    with pytest.raises(FileNotFoundError):
        open_regular(path, os.O_RDWR)
    with pytest.raises(FileNotFoundError):
        disk.open_for_reading(path)
    with pytest.raises(FileNotFoundError):
        WritableFile.open(path)
    before = os.umask(0)
    try:
        os.close(open_regular(path, os.O_RDWR | os.O_CREAT))
        os.close(open_regular(tmp_path / "y", os.O_RDWR | os.O_CREAT, 0o600))
        WritableFile.create(tmp_path / "z").close()
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "xyz"] == [0o644, 0o600, 0o644]
    assert special_kind(path) is None
    (tmp_path / "link").symlink_to(path)
    assert special_kind(tmp_path / "link") is None
    os.close(open_regular(tmp_path / "link", os.O_RDONLY))
    descriptor = open_regular(path, os.O_RDONLY)
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


@pytest.mark.parametrize(
    ("mode", "devices", "opened"),
    [
        (stat.S_IFBLK, True, True),
        (stat.S_IFBLK, False, False),
        (stat.S_IFCHR, True, False),
        (stat.S_IFREG, False, True),
    ],
)
@pytest.mark.parametrize("look", ["stat", "fstat"])
def test_both_looks_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, devices: bool, opened: bool, look: str
) -> None:
    """The name may change hands between them."""
    path = tmp_path / "x"
    path.write_bytes(b"")
    monkeypatch.setattr(os, look, lambda _: os.stat_result((mode, *[0] * 9)))
    if opened:
        os.close(open_regular(path, os.O_RDONLY, devices=devices))
    else:
        with pytest.raises(NotRegularError, match="device"):
            open_regular(path, os.O_RDONLY, devices=devices)


def test_kinds_by_mode() -> None:
    assert kind_of(stat.S_IFBLK) == "a block device"
    assert kind_of(stat.S_IFLNK) == "a link that leads nowhere"
    assert kind_of(0) == "no file"


def test_a_file_of_somebody_else_is_read_with_its_access_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"abc")
    flags: list[int] = []
    real = disk.open_regular

    def refusing(path: Path, wanted: int, **options: bool) -> int:
        flags.append(wanted)
        if wanted & os.O_NOATIME:
            raise PermissionError(errno.EPERM, "made up")
        return real(path, wanted, **options)

    monkeypatch.setattr(disk, "open_regular", refusing)
    os.close(disk.open_for_reading(path))
    assert flags == [os.O_RDONLY | os.O_NOATIME, os.O_RDONLY]


def test_what_is_opened_is_neither_waited_for_nor_kept_for_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"")
    flags: list[int] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda name, wanted, mode: flags.append(wanted) or real(name, wanted, mode))
    os.close(open_regular(path, os.O_RDONLY))
    assert flags == [os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY]


# --- reading and writing ------------------------------------------------------------------------------------------


def test_reads_are_as_long_as_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(200)))
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, length, offset: real(descriptor, min(length, 7), offset))
    for offset, length in ((0, 200), (0, 201), (3, 20), (199, 5), (200, 5), (10, 0), (10, -1)):
        assert disk.read_range(path, offset, length) == bytes(range(200))[offset : offset + max(length, 0)]
    with pytest.raises(FileNotFoundError):
        disk.read_range(tmp_path / "none", 0, 1)


def test_writes_go_on_behind_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, bytes]] = []
    monkeypatch.setattr(disk, "observer", lambda change: seen.append((change.kind, change.offset, change.data)))
    real, many = os.pwrite, os.pwritev
    monkeypatch.setattr(os, "pwrite", lambda descriptor, view, offset: real(descriptor, view[:3], offset))
    monkeypatch.setattr(
        os, "pwritev", lambda descriptor, views, offset: many(descriptor, [b"".join(views)[:5]], offset)
    )
    for most in (1, 2, 1024):
        monkeypatch.setattr(disk, "_MOST_PIECES", most)
        seen.clear()
        with WritableFile.create(tmp_path / f"x{most}") as file:
            file.write_at(2, b"abcdefgh")
            file.write_pieces_at(20, [b"12", b"", memoryview(b"345678"), b"9", b"0abcdefghij"])
            file.write_pieces_at(50, [b"alone"])
            assert file.size() == 55
            assert file.read_at(2, 8) == b"abcdefgh"
            assert file.read_at(20, 20) == b"1234567890abcdefghij"
            assert file.read_at(50, 9) == b"alone"
        image = bytearray(55)
        for kind, offset, data in seen[1:]:
            assert kind == "write"
            image[offset : offset + len(data)] = data
        assert bytes(image) == (tmp_path / f"x{most}").read_bytes()


@pytest.mark.parametrize("count", [1023, 1024, 1025, 2100])
def test_more_pieces_than_the_system_takes_at_once(tmp_path: Path, count: int) -> None:
    pieces = [bytes([number % 251]) * (number % 3) for number in range(count)]
    with WritableFile.create(tmp_path / "x") as file:
        file.write_pieces_at(0, pieces)
    assert (tmp_path / "x").read_bytes() == b"".join(pieces)


@pytest.mark.parametrize("sizes", [[4], [5], [9, 1], [2, 2], [2, 3, 7], [0, 4, 0, 4], [1] * 9])
def test_the_system_is_given_so_much_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> None:
    given: list[int] = []
    one, many = os.pwrite, os.pwritev
    monkeypatch.setattr(disk, "MOST_AT_ONCE", 4)
    monkeypatch.setattr(os, "pwrite", lambda *call: (given.append(len(call[1])), one(*call))[1])
    monkeypatch.setattr(os, "pwritev", lambda *call: (given.append(sum(map(len, call[1]))), many(*call))[1])
    content = bytes(range(sum(sizes)))
    ends = [sum(sizes[: place + 1]) for place in range(len(sizes))]
    with WritableFile.create(tmp_path / "x") as file:
        file.write_at(0, content)
        file.write_pieces_at(0, [content[end - size : end] for size, end in zip(sizes, ends, strict=True)])
    full, rest = divmod(len(content), 4)
    assert given == ([4] * full + [rest] * bool(rest)) * 2
    assert (tmp_path / "x").read_bytes() == content


def test_a_cut_never_extends(tmp_path: Path) -> None:
    with WritableFile.create(tmp_path / "x") as file:
        file.write_at(0, bytes(10))
        for size in (10, 4, 4):
            file.truncate(size)
            assert file.size() == size
        with pytest.raises(ValueError, match="would extend"):
            file.truncate(5)
        assert not file.closed
    assert file.closed
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.fileno()


@pytest.mark.parametrize("how", ["body", "sync", "rename"])
def test_a_file_that_could_not_be_replaced_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"old")
    beside = tmp_path / "x.waltzctl-tmp"
    beside.write_bytes(b"left behind")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "made up")

    if how != "body":
        monkeypatch.setattr(os, {"sync": "fdatasync", "rename": "rename"}[how], fail)

    def parts() -> Iterator[bytes]:
        yield b"new"
        if how == "body":
            raise ValueError

    with pytest.raises((ValueError, DiskWriteError, SyncFailedError)):
        disk.write_whole(path, parts())
    assert path.read_bytes() == b"old"
    assert not beside.exists()
    monkeypatch.undo()
    disk.write_whole(path, [b"ne", b"", b"w"])
    assert path.read_bytes() == b"new"
    disk.write_whole(path, b"newer")
    assert path.read_bytes() == b"newer"


def test_steps_of_a_durable_move_and_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x" * 5)
    seen: list[tuple[str, str]] = []
    monkeypatch.setattr(
        disk, "observer", lambda change: seen.append((change.kind, str(change.path.relative_to(tmp_path))))
    )
    disk.move_directory(tmp_path / "a", tmp_path / "q" / "r" / "a")
    assert seen == [
        ("mkdir", "q"), ("sync-directory", "."), ("mkdir", "q/r"), ("sync-directory", "q"),
        ("rename", "a"), ("sync-directory", "q/r"), ("sync-directory", "."),
    ]  # fmt: skip
    seen.clear()
    (tmp_path / "copy").write_bytes(b"x" * 5)
    disk.sync_file(tmp_path / "copy")
    disk.set_times(tmp_path / "copy", 5)
    assert (tmp_path / "copy").stat().st_mtime_ns == 5
    disk.unlink(tmp_path / "copy")
    disk.make_directory(tmp_path / "d")
    disk.remove_directory(tmp_path / "d")
    assert [kind for kind, _ in seen] == ["sync", "times", "unlink", "mkdir", "rmdir"]
    status = os.statvfs(tmp_path)
    assert 0 < disk.free_bytes(tmp_path) <= status.f_bfree * status.f_frsize


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: disk.rename(path, path.with_name("y")), "rename"),
        (disk.unlink, "remove"),
        (lambda path: disk.make_directory(path / "below"), "make directory"),
        (disk.remove_directory, "remove directory"),
        (disk.sync_directory, "sync directory"),
        (disk.sync_file, "sync"),
        (lambda path: disk.set_times(path, 1), "set the time of"),
    ],
)
def test_a_change_that_fails_is_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], said: str
) -> None:
    monkeypatch.setattr(disk, "observer", lambda change: pytest.fail(str(change)))
    with pytest.raises((DiskWriteError, SyncFailedError, DiskReadError), match=said):
        change(tmp_path / "none")


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EAGAIN])
def test_a_control_file_that_may_not_be_opened_is_not_held_by_anybody(
    storage: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Only what the system says of the lock itself means that somebody has it."""
    real = directory_lock.open_regular

    def refused(path: Path, flags: int) -> int:
        if path.name == "control":
            raise OSError(number, "made up")
        return real(path, flags)

    with monkeypatch.context() as patched:
        patched.setattr(directory_lock, "open_regular", refused)
        with pytest.raises(DiskWriteError, match=r"/control: cannot lock.*made up"):
            DirectoryLock.acquire(storage, storage / "control")
    with DirectoryLock.acquire(storage, storage / "control"):
        pass


@pytest.mark.parametrize(("number", "held"), [(errno.EAGAIN, True), (errno.EACCES, True), (errno.ENOLCK, False)])
@pytest.mark.parametrize("at", [1, 2])
def test_a_lock_that_the_system_refuses_is_held_where_it_says_so(
    storage: Path, monkeypatch: pytest.MonkeyPatch, number: int, held: bool, at: int
) -> None:
    asked = 0

    def refused(descriptor: int, command: int, argument: bytes) -> bytes:
        nonlocal asked
        asked += command == fcntl.F_OFD_SETLK
        if command == fcntl.F_OFD_SETLK and asked == at:
            raise OSError(number, "made up")
        return argument

    monkeypatch.setattr(directory_lock.fcntl, "fcntl", refused)
    with pytest.raises(DirectoryLockedError if held else DiskWriteError):
        DirectoryLock.acquire(storage, storage / "control")


def test_a_control_file_that_is_not_there_is_not_made_by_locking_it(storage: Path) -> None:
    """An empty one would be taken for damage, or for a new directory."""
    with pytest.raises(DiskWriteError):
        DirectoryLock.acquire(storage, storage / "another")
    assert not (storage / "another").exists()
    with DirectoryLock.acquire(storage, storage / "control"):
        pass


@pytest.mark.parametrize("moment", ["before the comparison", "while it is closed"])
def test_a_directory_whose_lock_is_released_meanwhile_was_not_moved(
    storage: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """As when a page store is closed by one thread while another one commits."""
    lock, stat, close = DirectoryLock.acquire(storage, None), os.stat, os.close

    def release(path: Path) -> os.stat_result:
        lock.release()
        return stat(path)

    def check(descriptor: int) -> None:
        close(descriptor)
        lock.check_in_place()

    with monkeypatch.context() as patch:
        if moment == "while it is closed":
            patch.setattr(os, "close", check)
            lock.release()
        else:
            patch.setattr(os, "stat", release)
            lock.check_in_place()


def test_a_disk_that_does_not_answer_is_no_directory_that_was_moved(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is nothing to be put back: a page store that met one such moment told its owner to do that."""
    lock = DirectoryLock.acquire(storage, None)

    def failing(path: Path) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with lock, monkeypatch.context() as patch:
        patch.setattr(os, "stat", failing)
        with pytest.raises(DiskWriteError, match=os.strerror(errno.EIO)):
            lock.check_in_place()


@pytest.mark.parametrize("first_fails", [True, False])
def test_a_file_that_two_replace_at_once_is_never_half_of_one(tmp_path: Path, *, first_fails: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    first, second = replacing(path), replacing(path)
    first.__enter__().write_at(0, b"first")
    file = second.__enter__()
    file.write_at(0, b"half")
    if first_fails:
        error = RuntimeError("made up")
        assert not first.__exit__(RuntimeError, error, None), "it is raised"
    else:
        with pytest.raises(DiskWriteError, match="another process writes it as well"):
            first.__exit__(None, None, None)
    assert path.read_bytes() == b"old"
    file.write_at(4, b" and whole")
    second.__exit__(None, None, None)
    assert path.read_bytes() == b"half and whole"
    assert os.listdir(tmp_path) == ["file"]
