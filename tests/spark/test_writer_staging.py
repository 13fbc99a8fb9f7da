"""Writes that end half-way, and the order in which a write changes the disk."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra 'spark' is not installed")


from tests.builders import make_records
from tests.spark.writing import begin, is_clean, nothing_left, rows, write
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DamageError, DiskReadError, DiskWriteError, RefusedError
from waltzctl.engine.spark import owner as owners
from waltzctl.engine.spark import run_writing, staging
from waltzctl.engine.spark.owner import OWNER, Owner, driver

# ---- jobs that end half-way -----------------------------------------------------------------------------------------------


def test_what_a_dead_process_left_is_removed_by_the_next_write(tmp_path: Path) -> None:
    path = tmp_path / "new"
    code = (
        "from pathlib import Path; from waltzctl.engine.spark.staging import make_staging;"
        f"made = make_staging(Path({str(path)!r})); (made / 'tasks' / 'x').mkdir(); (made / 'tasks' / 'x' / 'f').touch()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    (left,) = os.listdir(tmp_path)
    assert left.startswith(staging.prefix(path))
    half = tmp_path / (staging.prefix(path) + "without-an-owner")
    half.mkdir()
    write(path, [[rows(0, make_records(3))]])
    assert nothing_left(path, empty=True)
    assert is_clean(path)


def test_what_stands_beside_a_target_under_a_longer_name_is_not_touched(tmp_path: Path) -> None:
    for name in ("new-one", "new.old", "new1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("of somebody else")
    write(tmp_path / "new", [[rows(0, make_records(3))]])
    assert [(tmp_path / name / "file").read_text() for name in ("new-one", "new.old", "new1")] == [
        "of somebody else"
    ] * 3


def test_what_a_process_left_that_ended_behind_the_last_rename_is_removed_though_the_target_is_whole(
    tmp_path: Path,
) -> None:
    path = tmp_path / "new"
    write(path, [[rows(0, make_records(3))]])
    left = tmp_path / (staging.prefix(path) + str(uuid.uuid4()))
    left.mkdir()
    with pytest.raises(RefusedError, match="not empty"):
        begin(path)
    assert nothing_left(path, empty=True)
    assert is_clean(path)


def test_what_a_running_process_prepares_is_left_alone_and_named(tmp_path: Path) -> None:
    path = tmp_path / "new"
    writer = begin(path)
    (left,) = os.listdir(tmp_path)
    with pytest.raises(RefusedError, match=f"{left} by process .*, which runs;") as raised:
        begin(path)
    assert str(os.getpid()) in str(raised.value) or "process" in str(raised.value)
    writer.commit([writer.write(iter([rows(0, make_records(3))]))])
    assert nothing_left(path, empty=True)


@pytest.mark.parametrize(
    ("owner", "alive"),
    [
        (Owner(socket.gethostname(), 2**22 + 5, 1), False),
        (Owner(socket.gethostname(), os.getpid(), 1), False),
        (Owner("another-host", 1, 1), None),
    ],
    ids=["gone", "same-id", "elsewhere"],
)
def test_a_process_is_known_by_host_id_and_start(tmp_path: Path, owner: Owner, alive: bool | None) -> None:
    assert owner.alive is alive
    left = tmp_path / (staging.prefix(tmp_path / "new") + str(uuid.uuid4()))
    left.mkdir()
    (left / OWNER).write_text(json.dumps({"host": owner.host, "pid": owner.pid, "started": owner.started}))
    if alive is False:
        staging.clear_left(tmp_path / "new")
        assert nothing_left(tmp_path / "new")
    else:
        with pytest.raises(RefusedError, match="by process 1 on another-host, which cannot be looked at from here;"):
            staging.clear_left(tmp_path / "new")
        assert left.is_dir()


@pytest.mark.parametrize("error", [errno.ENOENT, errno.EACCES])
def test_a_system_that_does_not_tell_its_start_is_written_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """Some sandboxes do not: a process is known there by its id and start."""

    def boot() -> str:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(owners, "boot", boot)
    path = tmp_path / "new"
    writer = begin(path)
    with pytest.raises(RefusedError, match="which runs;"):
        begin(path)
    writer.commit([writer.write(iter([rows(0, make_records(3))]))])
    assert nothing_left(path, empty=True)
    assert replace(driver(), started=1).alive is False


@pytest.mark.parametrize("what", ["owner", "stat"])
def test_what_a_running_process_prepares_stays_where_it_cannot_be_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Its directory was removed by a process that had no descriptor left for the look at it."""
    left = staging.make_staging(tmp_path / "new")
    read = Path.read_text

    def fails(self: Path, *options: Any, **more: Any) -> str:
        if self.name == what:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(self))
        return read(self, *options, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", fails)
        with pytest.raises(
            (DiskReadError, RefusedError), match="open files" if what == "owner" else "cannot be looked"
        ):
            staging.clear_left(tmp_path / "new")
        if what == "stat":
            with pytest.raises(DiskReadError, match="open files"):
                staging.make_staging(tmp_path / "other")
    assert (left / staging.TASKS).is_dir()


def test_a_process_of_another_user_may_be_hidden_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With hidepid=2 ``/proc`` has no such name: what the other user's process had prepared was removed."""
    left = staging.make_staging(tmp_path / "new")
    read = Path.read_text

    def hidden(self: Path, *options: Any, **more: Any) -> str:
        if self.name == "stat":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        return read(self, *options, **more)

    def refused(_pid: int, _signal: int) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(Path, "read_text", hidden)
    monkeypatch.setattr(os, "kill", refused)
    with pytest.raises(RefusedError, match="cannot be looked"):
        staging.clear_left(tmp_path / "new")
    assert (left / staging.TASKS).is_dir()


def test_a_process_of_another_container_may_run_where_no_such_id_is(tmp_path: Path) -> None:
    """Containers in the machine's network have its host name, and ids of their own: what one prepared another one removed."""
    apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("this user may make no namespace")
    code = (
        "from pathlib import Path; from waltzctl.engine.spark.staging import make_staging;"
        f"print(make_staging(Path({str(tmp_path / 'new')!r})), flush=True); input()"
    )
    with subprocess.Popen(
        [*apart, sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        with pytest.raises(RefusedError, match=r"by process \d+ on .*, which cannot be looked at from here;"):
            staging.clear_left(tmp_path / "new")
        assert (left / staging.TASKS).is_dir()


def test_behind_a_start_of_the_machine_its_processes_are_gone(tmp_path: Path) -> None:
    owner = replace(driver(), started=1, boot="another", namespace="pid:[1]")
    assert owner.alive is False
    assert replace(owner, boot=driver().boot).alive is None


def test_a_process_of_another_machine_may_run_whatever_its_host_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two machines that are called ``localhost``, with one target on a file server."""
    monkeypatch.setattr(owners, "machine", lambda: "ours")
    owner = replace(driver(), started=1, boot="another", machine="theirs")
    assert owner.alive is None
    for machine in ("ours", ""):
        assert replace(owner, machine=machine).alive is False
    assert replace(owner, boot=driver().boot).alive is False, "a container's may be another"


def test_what_a_running_process_of_a_later_version_prepares_is_left_alone(tmp_path: Path) -> None:
    """Its note has a field more: it was taken for one whose making was killed."""
    target = tmp_path / "t"
    note = staging.make_staging(target) / OWNER
    note.write_text(json.dumps({**json.loads(note.read_text()), "added": 1}))
    with pytest.raises(RefusedError, match="another write to it is being prepared"):
        staging.clear_left(target)
    assert note.exists()


def test_this_process_is_alive() -> None:
    assert driver().alive is True


def test_a_process_that_nobody_asked_how_it_ended_is_gone() -> None:
    """As a driver that is killed in a container whose first process waits for no others."""
    with subprocess.Popen(["sleep", "60"]) as process:
        started = int(Path("/proc", str(process.pid), "stat").read_text().rpartition(")")[2].split()[19])
        owner = Owner(socket.gethostname(), process.pid, started)
        assert owner.alive is True
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert owner.alive is False


def test_the_driver_is_the_java_that_a_process_works_for(tmp_path: Path) -> None:
    shell = shutil.which("bash")
    assert shell is not None
    shutil.copy(shell, tmp_path / "java")
    script = tmp_path / "driver.py"
    script.write_text(
        "from waltzctl.engine.spark.staging import driver\nd = driver()\nprint(d.pid, d.started, d.alive)\n"
    )
    command = f"{sys.executable} {script}; cat /proc/$$/stat"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [tmp_path / "java", "-c", command], capture_output=True, text=True, check=True, env=environment
    )
    said, stat = done.stdout.splitlines()
    assert said == f"{stat.split()[0]} {stat.rpartition(')')[2].split()[19]} True"


@pytest.mark.parametrize("failures", [0, 1, 99, 100])
def test_a_directory_to_which_a_task_still_writes_is_removed_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    left, tries = tmp_path / "x-gone", []
    left.mkdir()

    def remove_tree(path: Path) -> None:
        tries.append(path)
        if len(tries) <= failures:
            raise FileNotFoundError(path)

    monkeypatch.setattr(disk, "remove_tree", remove_tree)
    if failures == 100:
        with pytest.raises(FileNotFoundError):
            staging.remove(left)
    else:
        staging.remove(left)
    assert tries == [left] * min(failures + 1, 100)
    staging.remove(tmp_path / "nowhere")
    assert os.listdir(tmp_path) == ["x-gone"]


def test_a_task_that_does_not_see_the_staging_directory_says_so(tmp_path: Path) -> None:
    writer = begin(tmp_path / "new")
    writer.abort([])
    assert nothing_left(tmp_path / "new")
    with pytest.raises(RefusedError, match="file system"):
        writer.write(iter([rows(0, make_records(3))]))
    writer.abort([])


def test_a_target_that_fills_up_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "new"
    writer = begin(path)
    message = writer.write(iter([rows(0, make_records(3))]))
    path.mkdir()
    (path / "somebody").touch()
    with pytest.raises(RefusedError, match="not empty"):
        writer.commit([message])
    assert nothing_left(path, empty=True)
    assert os.listdir(path) == ["somebody"]


def test_a_write_whose_name_cannot_be_made_durable_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job failed, and every repetition was refused for the target that was there."""
    path = tmp_path / "new"
    writer = begin(path)
    message = writer.write(iter([rows(0, make_records(3))]))
    sync = disk.sync_directory

    def fails(directory: Path, *more: Any) -> None:
        if directory == tmp_path:
            raise DiskWriteError(directory, None, OSError(errno.EIO, os.strerror(errno.EIO)))
        sync(directory, *more)

    with monkeypatch.context() as patched:
        patched.setattr(disk, "sync_directory", fails)
        with pytest.raises(DiskWriteError):
            writer.commit([message])
    assert os.listdir(tmp_path) == []
    write(path, [[rows(0, make_records(3))]])
    assert is_clean(path)


@pytest.mark.parametrize(
    "error", [FileNotFoundError("x"), DiskWriteError("x", None, OSError(errno.ENOTEMPTY, "not empty"))]
)
def test_a_write_that_has_its_name_is_no_failure_for_what_a_task_still_holds_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A second attempt of a task that still reads keeps names in its directory where that is of NFS."""
    path = tmp_path / "new"
    writer = begin(path)
    message = writer.write(iter([rows(0, make_records(3))]))

    def remove_tree(_place: Path) -> None:
        raise error

    with monkeypatch.context() as held:
        held.setattr(disk, "remove_tree", remove_tree)
        writer.commit([message])
    assert is_clean(path)
    (left,) = [one for one in os.listdir(tmp_path) if one != "new"]
    staging.clear_left(path)
    assert left.endswith("-gone")
    assert os.listdir(tmp_path) == ["new"]


def test_what_a_disk_changes_before_it_is_read_back_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = run_writing._check

    def spoil_and_check(path: Path, segment: Any) -> None:
        raw = bytearray(path.read_bytes())
        raw[150] ^= 1
        path.write_bytes(raw)
        check(path, segment)

    monkeypatch.setattr(run_writing, "_check", spoil_and_check)
    with pytest.raises(DamageError, match="read back"):
        write(tmp_path / "new", [[rows(0, make_records(3))]])
    assert nothing_left(tmp_path / "new")


def test_at_every_change_of_the_disk_the_target_is_whole_or_not_there_and_what_it_names_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "new"
    changes: list[disk.Change] = []
    dirty: set[Path] = set()

    def observe(change: disk.Change) -> None:
        changes.append(change)
        if change.kind in ("create", "write"):
            dirty.add(change.path)
        elif change.kind == "sync":
            dirty.discard(change.path)
        elif change.kind == "rename" and change.target == path:
            assert not [one for one in dirty if one.name != OWNER], "something is not durable yet"
            assert (path / "waltz-storage.ctl").is_file()
        elif change.kind == "rename":
            assert change.path not in dirty
        if not any(one.kind == "rename" and one.target == path for one in changes):
            assert not path.exists()

    writer = begin(path)
    monkeypatch.setattr(disk, "observer", observe)
    messages: list[Any] = [writer.write(iter([rows(0, make_records(20)), rows(1, make_records(4, partition=1))]))]
    writer.commit(messages)
    monkeypatch.setattr(disk, "observer", None)
    kinds = [(one.kind, one.path.name) for one in changes]
    renamed = {one.target: place for place, one in enumerate(changes) if one.target is not None}
    named = renamed[path]
    (control,) = [place for target, place in renamed.items() if target.suffix == ".ctl"]
    moved = [place for target, place in renamed.items() if target.suffix in (".seg", ".idx")]
    assert max(moved) < control < named
    assert ("sync-directory", "0") in kinds[max(moved) - 3 : control]
    assert kinds[named + 1] == ("sync-directory", tmp_path.name)
    assert is_clean(path)
