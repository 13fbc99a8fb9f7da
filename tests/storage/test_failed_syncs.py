"""Files that are written again because a sync failed."""

import errno
import os
from pathlib import Path

import pytest

from tests.repair.trees import recording
from waltzctl.engine.durable import disk
from waltzctl.engine.storage.failed_syncs import (
    CONTROL,
    PIECE,
    forget_failed_sync,
    note_failed_sync,
    sync_failed,
    write_again,
)

PAGE = 4096


def test_a_note_is_of_one_file(tmp_path: Path) -> None:
    (tmp_path / disk.STATE_DIRECTORY).mkdir()
    for what in (0, 1, CONTROL):
        assert not sync_failed(tmp_path, what)
        note_failed_sync(tmp_path, what)
        note_failed_sync(tmp_path, what)
        assert sync_failed(tmp_path, what)
        forget_failed_sync(tmp_path, what)
        assert not sync_failed(tmp_path, what)
        forget_failed_sync(tmp_path, what)


def test_a_note_of_which_the_disk_does_not_tell_whether_it_is_there_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: object, *_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for call in ("stat", "lstat"):
        monkeypatch.setattr(os, call, failing)
    found = sync_failed(tmp_path, CONTROL)
    monkeypatch.undo()
    assert found


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + PAGE + 7])
@pytest.mark.parametrize("broken", [None, 0, PIECE - PAGE, PIECE, 2 * PIECE + PAGE])
def test_a_page_that_cannot_be_read_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, broken: int | None
) -> None:
    path, real = tmp_path / "file", os.pread
    data = os.urandom(size)
    path.write_bytes(data)

    def pread(descriptor: int, length: int, offset: int) -> bytes:
        if broken is not None and offset < broken + PAGE and broken < min(offset + length, size):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, length, offset)

    monkeypatch.setattr(os, "pread", pread)
    with recording() as changes, disk.WritableFile.open(path) as file:
        write_again(file)
    monkeypatch.undo()
    assert path.read_bytes() == data
    written, wanted = bytearray(size), bytearray(b"w" * size)
    for one in changes:
        if one.kind == "write":
            written[one.offset : one.offset + len(one.data or b"")] = b"w" * len(one.data or b"")
    if broken is not None:
        wanted[broken : broken + PAGE] = bytes(len(wanted[broken : broken + PAGE]))
    assert written == wanted
    assert changes[-1].kind == "sync"
