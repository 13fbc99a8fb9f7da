"""What is at a path: only some errors say that nothing is."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from waltzctl.engine.durable.file_status import NOTHING_THERE, names_in
from waltzctl.engine.errors import DiskReadError


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
