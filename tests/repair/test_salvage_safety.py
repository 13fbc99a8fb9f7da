"""Salvage never changes a source, and leaves either a whole directory or none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.builders import build_directory, digest, make_records
from tests.repair.salvage_cases import assert_adds_up, assert_clean, data_file, records_in
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DamageError, DiskFullError, DiskReadError, InvalidRequestError
from waltzctl.engine.progress import SILENT
from waltzctl.engine.repair import salvage as salvage_module
from waltzctl.engine.repair import salvage_sources
from waltzctl.engine.repair.salvage import salvage
from waltzctl.engine.repair.salvage_sources import SECTOR, OpenFiles, SalvageSource
from waltzctl.engine.scan.byte_source import FileSource


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "source", {0: 60, 1: 10})


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


class TestTarget:
    def test_must_be_new_or_empty(self, tmp_path: Path, source: Path) -> None:
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "something").write_text("of value")
        (tmp_path / "file").write_text("of value")
        (tmp_path / "link").symlink_to(tmp_path / "nowhere")
        for name, why in (("full", "not empty"), ("file", "not a directory"), ("link", "not a directory")):
            with pytest.raises(InvalidRequestError, match=why):
                salvage([source], to=tmp_path / name)
        with pytest.raises(InvalidRequestError, match="directory above it does not exist"):
            salvage([source], to=tmp_path / "absent" / "to")
        assert (tmp_path / "full" / "something").read_text() == (tmp_path / "file").read_text() == "of value"
        (tmp_path / "empty").mkdir()
        assert salvage([source], to=tmp_path / "empty").written == 70

    def test_may_be_the_working_directory(self, tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It has no name of its own, beside which another one could be built."""
        (tmp_path / "empty").mkdir()
        monkeypatch.chdir(tmp_path / "empty")
        assert salvage([Path("../source")], to=Path(".")).written == 70
        assert names(tmp_path / "empty") == ["0", "1", "waltz-storage.ctl"]

    @pytest.mark.parametrize("place", ["to", "0/to", "../source/to"])
    def test_never_lies_inside_a_source(self, source: Path, place: str) -> None:
        before = digest(source)
        with pytest.raises(InvalidRequestError, match="inside the source"):
            salvage([source], to=source / place)
        assert digest(source) == before
        assert names(source / "0") == [name[2:] for name in sorted(before) if name.startswith("0/")]

    @pytest.mark.parametrize("place", ["to", "0/to"])
    def test_is_seen_inside_a_source_that_is_named_by_a_link(self, tmp_path: Path, source: Path, place: str) -> None:
        """As directory, and as the parent of both."""
        (tmp_path / "link").symlink_to(source)
        (tmp_path / "above").symlink_to(tmp_path)
        before = digest(source)
        for named in (tmp_path / "link", tmp_path / "above" / source.name):
            with pytest.raises(InvalidRequestError, match="inside the source"):
                salvage([named], to=source / place)
        assert digest(source) == before

    def test_is_seen_inside_a_source_through_a_link(self, tmp_path: Path, source: Path) -> None:
        (tmp_path / "link").symlink_to(source)
        with pytest.raises(InvalidRequestError, match="inside the source"):
            salvage([source], to=tmp_path / "link" / "to")


class _StopError(Exception):
    pass


def count_changes(monkeypatch: pytest.MonkeyPatch, stop_at: int | None = None) -> list[disk.Change]:
    """Record the changes of the disk; raise once, after change number `stop_at`."""
    changes: list[disk.Change] = []

    def observe(change: disk.Change) -> None:
        changes.append(change)
        if len(changes) == stop_at:
            raise _StopError

    monkeypatch.setattr(disk, "observer", observe)
    return changes


def test_a_failure_at_any_change_leaves_nothing_half_done(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after each single change of the disk: there is no directory, or all of it; never a half-built one."""
    monkeypatch.setattr(disk, "now_ms", lambda: 1_700_000_000_000)
    changes = count_changes(monkeypatch)
    whole = digest(salvage([source], to=tmp_path / "reference").path)
    total, complete = len(changes), 0
    assert total > 15
    for stop_at in range(1, total + 1):
        to = tmp_path / f"to-{stop_at}"
        count_changes(monkeypatch, stop_at)
        with pytest.raises(_StopError):
            salvage([source], to=to)
        assert not to.with_name(to.name + disk.TEMPORARY_SUFFIX).exists()
        if to.exists():
            assert digest(to) == whole
            complete += 1
    assert complete == 1  # after the rename; an error of the sync behind it removes the directory again


def test_files_are_durable_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = count_changes(monkeypatch)
    to = salvage([source], to=tmp_path / "to").path
    *before, rename, last = changes
    beside = to.with_name("to" + disk.TEMPORARY_SUFFIX)
    assert (rename.kind, rename.path, rename.target) == ("rename", beside, to)
    assert (last.kind, last.path) == ("sync-directory", tmp_path)
    open_files = set()
    for change in before:
        assert change.path.is_relative_to(beside)
        if change.kind in ("create", "write"):
            open_files.add(change.path)
        elif change.kind == "sync":
            open_files.discard(change.path)
    assert open_files == set()
    synced = {change.path for change in before if change.kind == "sync-directory"}
    assert synced == {beside, beside / "0", beside / "1"}


def test_what_an_interrupted_salvage_left_is_replaced(tmp_path: Path, source: Path) -> None:
    left = tmp_path / ("to" + disk.TEMPORARY_SUFFIX)
    (left / "0").mkdir(parents=True)
    (left / "0" / "0000000000000000000.seg").write_bytes(b"half of")
    report = salvage([source], to=tmp_path / "to")
    assert not left.exists()
    assert_clean(report)


def test_a_full_disk_is_noticed_before_anything_is_written(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda path: 1000)
    changes = count_changes(monkeypatch)
    with pytest.raises(DiskFullError, match="bytes are needed, 1000 are free"):
        salvage([source], to=tmp_path / "to")
    # the place is made first: what a run left there that was killed is gone then, and its room is free
    assert [(one.kind, one.path.name) for one in changes] == [
        ("mkdir", "to.waltzctl-tmp"),
        ("rmdir", "to.waltzctl-tmp"),
    ]
    assert names(tmp_path) == ["source"]


def test_sources_are_opened_for_reading_only(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, int]] = []
    real = os.open

    def record(path, flags, *rest, **named):  # type: ignore[no-untyped-def]
        opened.append((str(path), flags))
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", record)
    salvage([source], to=tmp_path / "to")
    of_source = [flags for path, flags in opened if Path(path).is_relative_to(source)]
    assert of_source
    assert not any(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND) for flags in of_source)


def fail_at(monkeypatch: pytest.MonkeyPatch, path: Path, start: int, stop: int) -> None:
    """Let the system refuse every read that touches these bytes of a file."""
    real = FileSource.read_into

    def read_into(self: FileSource, offset: int, buffer: memoryview) -> int:
        if self.name == str(path) and offset < stop and offset + len(buffer) > start:
            done = real(self, offset, buffer[: start - offset]) if offset < start else 0
            raise DiskReadError(path, offset + done, OSError(5, "Input/output error"))
        return real(self, offset, buffer)

    monkeypatch.setattr(FileSource, "read_into", read_into)


def test_places_that_cannot_be_read_are_read_around_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = make_records(400, size=60)
    (tmp_path / "source").write_bytes(data_file(records))
    fail_at(monkeypatch, tmp_path / "source", 8192, 8192 + 512)
    report = salvage([tmp_path / "source"], to=tmp_path / "to")
    assert [(one.path, one.offset, one.length) for one in report.unreadable] == [(tmp_path / "source", 8192, SECTOR)]
    first, last = (8192 - 128) // 100, (8192 + SECTOR - 1 - 128) // 100
    assert records_in(report.path) == {0: [*records[:first], *records[last + 1 :]]}
    assert report.exit_status_name == "damage-remains"
    assert_adds_up(report)


def test_places_that_cannot_be_read_are_told_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers are looked for behind the records, so that a place further in front may be met later."""
    (tmp_path / "source").write_bytes(data_file(make_records(20, size=60)))
    read = salvage_module.carve

    def failing(opened: Sequence[SalvageSource]) -> object:
        opened[0].unreadable.update({900: 3, 500: 7, 700: 5})
        return read(opened)

    monkeypatch.setattr(salvage_module, "carve", failing)
    report = salvage([tmp_path / "source"], to=tmp_path / "to")
    assert [(one.offset, one.length) for one in report.unreadable] == [(500, 7), (700, 5), (900, 3)]


def test_a_place_that_fails_only_while_copying_ends_the_salvage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros must never be written in the place of records that had been read before."""
    (tmp_path / "source").write_bytes(data_file(make_records(400, size=60)))
    make = disk.make_directory

    def then_fail(path: Path) -> None:
        make(path)
        fail_at(monkeypatch, tmp_path / "source", 8192, 8193)

    monkeypatch.setattr(disk, "make_directory", then_fail)
    with pytest.raises(DiskReadError, match="Input/output error"):
        salvage([tmp_path / "source"], to=tmp_path / "to")
    assert names(tmp_path) == ["source"]


@pytest.mark.parametrize("change", ["other bytes", "shorter"])
def test_a_source_that_changes_meanwhile_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    raw = data_file(make_records(100, size=60))
    (tmp_path / "source").write_bytes(raw)
    make = disk.make_directory

    def then_change(path: Path) -> None:
        make(path)
        (tmp_path / "source").write_bytes(raw[:5000] + bytes(9) + raw[5009:] if change == "other bytes" else raw[:5000])

    monkeypatch.setattr(disk, "make_directory", then_change)
    with pytest.raises(DamageError, match="salvage a copy"):
        salvage([tmp_path / "source"], to=tmp_path / "to")
    assert names(tmp_path) == ["source"]


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRequestError, match="copy its bytes to a file first"):
        salvage([tmp_path / "pipe"], to=tmp_path / "to")


def test_few_files_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "source"
    directory.mkdir()
    for number in range(150):
        (directory / f"{number:03}").write_bytes(data_file(make_records(2, first=2 * number)))
    counted: list[int] = []
    use = OpenFiles.use

    def count(self: OpenFiles, source: SalvageSource) -> None:
        use(self, source)
        counted.append(len(os.listdir("/proc/self/fd")))

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(salvage_sources.OpenFiles, "use", count)
    report = salvage([directory], to=tmp_path / "to")
    assert report.written == 300
    assert max(counted) <= before + 64 + 6
    assert len(os.listdir("/proc/self/fd")) == before
    assert_clean(report)


def test_a_listener_hears_of_every_byte(tmp_path: Path, source: Path) -> None:
    class Listener:
        def __init__(self) -> None:
            self.heard: list[list[int]] = []

        def start(self, what: str, total: int) -> None:
            self.heard.append([total, 0])

        def advance(self, amount: int) -> None:
            self.heard[-1][1] += amount

    listener = Listener()
    report = salvage([source], to=tmp_path / "to", progress=listener)
    (examined, read), (copied, written) = listener.heard
    assert examined == report.bytes
    assert read == examined
    assert written == copied > 0


def test_an_interrupt_leaves_nothing(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(change: disk.Change) -> None:
        if change.kind == "write" and change.path.suffix == ".idx":
            monkeypatch.setattr(disk, "observer", None)
            raise KeyboardInterrupt

    monkeypatch.setattr(disk, "observer", interrupt)
    with contextlib.suppress(KeyboardInterrupt):
        salvage([source], to=tmp_path / "to")
    assert names(tmp_path) == ["source"]


@pytest.mark.parametrize("which", ["data", "index", "record"])
def test_a_failure_leaves_no_file_open(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    original, write_at = disk.WritableFile.create, disk.WritableFile.write_at

    def create(path: Path) -> disk.WritableFile:
        if path.suffix == {"data": ".seg", "index": ".idx"}.get(which):
            raise DiskReadError(path, None, OSError(5, "made up"))
        return original(path)

    def write(self: disk.WritableFile, offset: int, data: bytes) -> None:
        if which == "record" and offset > 128:
            raise DiskReadError(self.path, None, OSError(5, "made up"))
        write_at(self, offset, data)

    monkeypatch.setattr(disk.WritableFile, "create", create)
    monkeypatch.setattr(disk.WritableFile, "write_at", write)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(DiskReadError):
        salvage([source], to=tmp_path / "to")
    assert len(os.listdir("/proc/self/fd")) == before
    assert not (tmp_path / "to").exists()


def test_the_file_that_was_not_used_for_longest_is_closed(tmp_path: Path) -> None:
    files, sources = OpenFiles(2), []
    for name in "abc":
        (tmp_path / name).write_bytes(name.encode())
        sources.append(SalvageSource(tmp_path / name, files, SILENT))
    first, second, third = sources
    for one in (first, second, first, third):
        one.fileno()
    assert [one._descriptor is None for one in sources] == [False, True, False]
    for one in sources:
        one.close()
