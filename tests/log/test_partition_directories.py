"""Which partitions there are in a storage directory, and which are behind links that lead nowhere: by names and types alone."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.builders import build_directory
from waltzctl.engine.errors import NotWaltzError
from waltzctl.engine.log import partition_directories as partition_directories_module
from waltzctl.engine.log.access import PlaceKind
from waltzctl.engine.log.partition_directories import (
    entry_kinds,
    partition_directories,
    partition_places,
    unmounted,
    unmounted_errors,
)
from waltzctl.engine.log.view import view_storage
from waltzctl.formats.control import Layout


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Partition 0 is a directory, 1 a link to one; 2 and 3 are links that lead nowhere, 4 to 6 are no directories."""
    path = build_directory(tmp_path / "s", {0: 5, 1: 5}, num_partitions=8, layout=Layout.DOCUMENTED, session=-1)
    (path / "1").rename(tmp_path / "disk")
    (path / "1").symlink_to(tmp_path / "disk")
    (path / "3").symlink_to(tmp_path / "nowhere")
    (path / "2").symlink_to(path / "2")  # in a circle
    (tmp_path / "file").touch()
    (path / "4").symlink_to(tmp_path / "file")
    os.mkfifo(path / "5")
    (path / "6").symlink_to(path / "5")
    (path / "nowhere").symlink_to(tmp_path / "nowhere")
    return path


def test_a_link_that_leads_nowhere_is_neither_a_directory_nor_nothing(storage: Path, tmp_path: Path) -> None:
    assert partition_directories(storage) == [0, 1]
    assert unmounted(entry_kinds(storage)) == view_storage(storage).unmounted == view_storage(storage, ()).unmounted
    assert unmounted(entry_kinds(storage)) == (2, 3)
    assert partition_places(storage) == [0, 1, 2, 3]
    (tmp_path / "disk").rename(tmp_path / "away")
    assert view_storage(storage).unmounted == (1, 2, 3)


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("session", [3, -1])
def test_of_which_nothing_else_tells(tmp_path: Path, layout: Layout, session: int) -> None:
    path = build_directory(
        tmp_path / "s", {0: 5}, num_partitions=3, layout=layout, session=session, local_low_water_mark=min(session, 4)
    )
    control = view_storage(path).control
    told = unmounted_errors(path, control, (0, 2, 3))
    expected = {2} if session > 0 else {0, 2}
    assert {*told} == (expected if layout is Layout.DOCUMENTED else set())
    assert unmounted_errors(path, None, (0, 2)) == {}
    assert all("mount what it leads to" in str(error) for error in told.values())


def test_what_a_backup_lacks_is_out_of_reach_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build_directory(tmp_path / "s", {0: 5}, num_partitions=4, layout=Layout.DOCUMENTED, session=-1)
    monkeypatch.setattr(partition_directories_module.places, "left_unread", lambda _: (4, 1))
    told = unmounted_errors(path, view_storage(path).control, (3, 2))
    assert [*told] == [1, 2, 3]
    assert [error.path for error in told.values()] == [path / "1", path / "2", path / "3"]
    assert ["the backup lacks it" in str(error) for error in told.values()] == [True, False, False]


def test_what_is_no_directory_has_no_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for name, why in (
        ("file", "not a directory"),
        ("nowhere", "no such directory"),
        ("circle", "a link that leads in a circle, no directory"),
    ):
        with pytest.raises(NotWaltzError, match=f"{name}: {why}$"):
            entry_kinds(tmp_path / name)

    def refused(_: Path) -> dict[str, PlaceKind | None]:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(partition_directories_module.places, "kinds", refused)
    with pytest.raises(NotWaltzError, match=r"no directory: Permission denied$"):
        entry_kinds(tmp_path)
