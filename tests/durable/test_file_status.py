"""What is at a path: only some errors say that nothing is."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from waltzctl.engine.durable import file_status
from waltzctl.engine.durable.file_status import NOTHING_THERE, FileNumbers, names_in
from waltzctl.engine.errors import DiskReadError, DiskWriteError


def test_the_names_in_a_directory_come_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names_in(tmp_path) == []
    monkeypatch.setattr(os, "listdir", lambda _: ["b", "c", "a"])
    assert names_in(tmp_path) == ["a", "b", "c"]


def test_no_directory_has_no_names(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "missing")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    places = ("missing", "file", "dangling", "circle", "x" * 300)
    assert [names_in(tmp_path / one) for one in places] == [None] * len(places)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EPERM, errno.ESTALE, errno.ENFILE])
def test_a_directory_that_cannot_be_listed_is_not_taken_for_a_missing_one(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: Path) -> list[str]:
        raise OSError(number, os.strerror(number))

    assert number not in NOTHING_THERE
    monkeypatch.setattr(os, "listdir", fails)
    with pytest.raises(DiskReadError, match="list") as raised:
        names_in(tmp_path)
    assert raised.value.path == tmp_path


def failing(number: int) -> Callable[..., Any]:
    def fails(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fails


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.chdir(tmp_path)  # a socket has no room for a long name
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    for name, target in (("link", "file"), ("dangling", "missing"), ("circle", "circle"), ("to-fifo", "fifo")):
        (tmp_path / name).symlink_to(tmp_path / target)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "named", "followed", "directory", "special"),
    [
        ("file", True, True, False, None),
        ("link", True, True, False, None),
        ("directory", True, True, True, "a directory"),
        ("fifo", True, True, False, "a FIFO"),
        ("to-fifo", True, True, False, "a FIFO"),
        ("socket", True, True, False, "a socket"),
        ("dangling", True, False, False, "a link that leads nowhere"),
        ("circle", True, False, False, "a link that leads nowhere"),
        ("missing", False, False, False, None),
        ("file/below", False, False, False, None),
        ("x" * 300, False, False, False, None),
    ],
)
def test_what_is_at_a_place(
    place: Path, *, name: str, named: bool, followed: bool, directory: bool, special: str | None
) -> None:
    path = place / name
    assert file_status.is_named(path) is named
    assert file_status.is_examinable(path)
    assert file_status.special_kind(path) == special
    numbers = os.stat(place / "file")
    regular = FileNumbers(3, numbers.st_mtime_ns, numbers.st_ino) if name in ("file", "link") else None
    assert file_status.file_numbers(path) == regular
    if len(name) < 256 and name != "circle":
        assert (file_status.exists(path), file_status.is_directory(path)) == (followed, directory)


def test_kinds_in_words() -> None:
    kinds = {stat.S_IFCHR: "a character device", stat.S_IFBLK: "a block device", stat.S_IFREG: "no file"}
    assert {mode: file_status.kind_of(mode) for mode in kinds} == kinds


def test_whether_a_file_is_the_one_that_was_made_or_opened(place: Path) -> None:
    made = os.lstat(place / "file")
    assert [file_status.is_at(place / name, made) for name in ("file", "link", "fifo", "missing")] == [
        True,
        *3 * [False],
    ]
    with open(place / "file") as file:
        asked = ("file", "link", "fifo", "missing", "file/below")
        told = [file_status.is_still_at(place / name, file.fileno()) for name in asked]
        assert told == [True, True, False, False, False]


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
def test_what_cannot_be_examined_is_there_and_of_no_known_kind(
    number: int, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", failing(number))
        with open(place / "file") as file, pytest.raises(OSError, match=os.strerror(number)):
            file_status.is_still_at(place / "file", file.fileno())
        assert file_status.special_kind(place / "file") is None, "its own entry tells"
        of_link = file_status.special_kind(place / "link")
        patch.setattr(os, "lstat", failing(number))
        found = file_status.special_kind(place / "file")
        named, examinable = file_status.is_named(place / "file"), file_status.is_examinable(place / "file")
    assert found == f"an entry that cannot be examined ({os.strerror(number)})"
    assert of_link == f"a link to what cannot be examined ({os.strerror(number)})", "it does not lead nowhere"
    assert (named, examinable) == (True, False)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_dir", failing(number))
        patch.setattr(Path, "exists", failing(number))
        with pytest.raises(DiskReadError, match="cannot look at"):
            file_status.is_directory(place / "file")
        with pytest.raises(DiskWriteError, match="cannot look at"):
            file_status.exists(place / "file")
