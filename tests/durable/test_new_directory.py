"""Where a directory may be made: the one judgement that every command asks which makes one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from waltzctl.engine.durable.new_directory import check_new
from waltzctl.engine.errors import InvalidRequestError, RefusedError, WaltzError

FREE = ""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full" / "x").mkdir(parents=True)
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "link").symlink_to("empty")
    (tmp_path / "link-to-full").symlink_to("full")
    (tmp_path / "dead").symlink_to("nowhere")
    (tmp_path / "mounted").mkdir()
    return tmp_path


@pytest.mark.parametrize("taken", [RefusedError, InvalidRequestError])
@pytest.mark.parametrize(
    ("name", "made_there", "renamed"),
    [
        ("absent", FREE, FREE),
        ("empty", FREE, FREE),
        ("full", "not empty, x is there", "not empty, x is there"),
        ("file", "not a directory", "not a directory"),
        ("link", FREE, "not a directory"),
        ("link-to-full", "not empty, x is there", "not a directory"),
        ("dead", "not a directory", "not a directory"),
        ("mounted", FREE, "a disk is mounted there"),
    ],
)
def test_a_name_is_free_or_taken(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    taken: type[RefusedError | InvalidRequestError],
    name: str,
    made_there: str,
    renamed: str,
) -> None:
    real = os.path.ismount
    monkeypatch.setattr(os.path, "ismount", lambda path: path == place / "mounted" or real(path))
    before = sorted(place.rglob("*"))
    for is_renamed, said in ((False, made_there), (True, renamed)):
        if said == FREE:
            check_new(place / name, renamed=is_renamed, taken=taken)
        else:
            with pytest.raises(taken, match=f"{name}: .*{said}") as raised:
                check_new(place / name, renamed=is_renamed, taken=taken)
            assert "new directory" in (raised.value.advice or "")
    assert sorted(place.rglob("*")) == before


def test_the_directory_above_is_there_or_is_made_as_well(place: Path) -> None:
    for renamed in (False, True):
        with pytest.raises(InvalidRequestError, match="the directory above it does not exist"):
            check_new(place / "absent" / "new", renamed=renamed)
        check_new(place / "absent" / "new", renamed=renamed, parents=True)
        with pytest.raises(WaltzError, match="not a directory"):
            check_new(place / "file" / "new", renamed=renamed, parents=True)


def test_a_relative_name_is_judged_from_the_working_directory(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    check_new(Path("new"), renamed=True)
    with pytest.raises(RefusedError, match="full: not empty"):
        check_new(Path("full"), renamed=True)
