"""What seldom happens while a directory is read: files that go, disks that do not answer, indexes that end in zeros."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path, PurePath

import pytest

from tests.builders import build_directory
from tests.storage.support import data_path, index_path
from waltzctl.engine.durable.file_status import NOTHING_THERE
from waltzctl.engine.errors import DiskReadError, NotWaltzError
from waltzctl.engine.log import evidence as evidence_module
from waltzctl.engine.log import local_access, places
from waltzctl.engine.log.evidence import evidence
from waltzctl.engine.log.places import PlaceKind
from waltzctl.engine.log.view import view_partition, view_storage
from waltzctl.formats.control import Layout
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, encode_entries


def failing(number: int) -> Callable[..., object]:
    """A call of the system that fails."""

    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return fails


# --- evidence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("written", "proven", "orphan"), [(19, 30, 20), (20, 30, 20), (21, 31, 10), (30, 40, 10)])
def test_of_two_indexes_without_data_the_one_that_leads_further_counts_and_not_the_longer_one(
    tmp_path: Path, written: int, proven: int, orphan: int
) -> None:
    """An index that ends in zeros was allocated and not written: by its length alone it would hide the other one."""
    build_directory(tmp_path, {0: 30}, per_segment=10)
    for first in (10, 20):
        data_path(tmp_path, first=first).unlink()
    path = index_path(tmp_path, first=10)
    entries = encode_entries(range(HEADER_SIZE, HEADER_SIZE + written)) + bytes((30 - written) * ENTRY_SIZE)
    path.write_bytes(path.read_bytes()[:HEADER_SIZE] + entries)
    found = evidence(view_partition(tmp_path / "0", 0), -1)
    assert (found.without_data, found.index_without_data, found.required) == (proven, orphan, proven)


@pytest.mark.parametrize("what", ["gone", "cut short", "unreadable", "there"])
def test_an_index_beside_a_data_file_that_cannot_be_read_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Nor does one that was cut since it was listed; the data file is read then, and its end is its end."""
    build_directory(tmp_path, {0: 1200}, per_segment=1200)
    view, path = view_partition(tmp_path / "0", 0), index_path(tmp_path)
    if what == "gone":
        path.unlink()
    elif what == "cut short":
        os.truncate(path, HEADER_SIZE - 1)
    elif what == "unreadable":
        error = DiskReadError(path, 0, OSError(errno.EIO, "bad block"))

        def unreadable(_: object) -> None:
            raise error

        monkeypatch.setattr(evidence_module, "read_segment_header", unreadable)
    assert evidence(view, -1).required == (1000 if what == "there" else 0)


# --- what is at a place ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ENOENT, errno.ELOOP])
def test_a_disk_that_does_not_answer_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    absent = number in NOTHING_THERE
    assert places.may_be_directory(tmp_path)
    assert not places.may_be_directory(tmp_path / "none")
    found = os.stat(tmp_path)
    assert places.standing(tmp_path) == (found.st_dev, found.st_ino)
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", failing(number))
        assert places.may_be_directory(tmp_path) is not absent
        assert places.standing(tmp_path) is None
    monkeypatch.setattr(os, "scandir", failing(number))
    with pytest.raises(OSError if absent else DiskReadError, match=None if absent else "cannot list"):
        places.kinds(tmp_path)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EIO, PlaceKind.DIRECTORY), (errno.EACCES, PlaceKind.DIRECTORY), (errno.ENOENT, None)]
)
def test_an_entry_that_cannot_be_examined_may_be_a_partition_s_directory(number: int, kind: PlaceKind | None) -> None:
    """Whoever lists it is told the error; as a mere file it would be passed over."""

    class Entry:
        name, path = "0", "s/0"
        is_dir = is_file = is_symlink = staticmethod(failing(number))

    assert local_access._kind_of(Entry()) is kind  # type: ignore[arg-type]


def test_an_entry_without_numbers_is_no_file_or_gone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"")
    assert places.still_special(tmp_path / "pipe") == "a FIFO"
    assert places.still_special(tmp_path / "none") is None
    assert places.still_special(tmp_path / "file") == "an entry that could not be examined", (
        "it could not, a moment ago"
    )


def test_an_entry_that_goes_while_a_partition_is_listed_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_directory(tmp_path, {0: 5})
    os.mkfifo(tmp_path / "0" / "pipe")
    real = places.listing
    monkeypatch.setattr(places, "listing", lambda path: {**real(path), "gone": None})
    view = view_partition(tmp_path / "0", 0)
    assert [one.name for one in (*view.special, *view.unknown)] == ["pipe"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("circle", "a link that leads in a circle, no directory"),
        ("x" * 300, "no directory: File name too long"),
        ("file", "not a directory"),
        ("none", "no such directory"),
    ],
)
def test_why_a_partition_s_directory_is_none(tmp_path: Path, name: str, why: str) -> None:
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(NotWaltzError, match=f"{name}: {why}$"):
        view_partition(tmp_path / name, None)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOENT])
@pytest.mark.parametrize("control", [True, False])
def test_a_partition_that_cannot_be_listed_hides_no_other_and_is_not_taken_for_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, control: bool
) -> None:
    build_directory(tmp_path, {0: 5, 1: 5})
    if not control:
        (tmp_path / "waltz-storage.ctl").unlink()
    real, hidden = places.listing, {"1"}

    def listing(path: PurePath) -> object:
        if path.name in hidden:
            cause = OSError(error, os.strerror(error))
            raise DiskReadError(path, None, cause, doing="list") if error == errno.EIO else FileNotFoundError(error, "")
        return real(path)

    monkeypatch.setattr(places, "listing", listing)
    view = view_storage(tmp_path, each_alone=True)
    assert ([*view.partitions], [*view.unlisted]) == ([0], [1] if error == errno.EIO else [])
    with pytest.raises(DiskReadError if error == errno.EIO else NotWaltzError):
        view_storage(tmp_path)
    assert [*view_storage(tmp_path, (0,)).partitions] == [0], "nobody asked for the other one"
    hidden.add("0")
    if control:
        assert not view_storage(tmp_path, each_alone=True).partitions
    else:
        expected = "0: cannot list" if error == errno.EIO else "not a Waltz storage directory"
        with pytest.raises(DiskReadError if error == errno.EIO else NotWaltzError, match=expected):
            view_storage(tmp_path, each_alone=True)


@pytest.mark.parametrize("layout", list(Layout))
def test_a_link_to_a_disk_that_is_not_mounted_is_a_partition_out_of_reach(tmp_path: Path, layout: Layout) -> None:
    """Without session and flag nothing but its directory says that it is assigned: it would pass for one that was never here."""
    build_directory(tmp_path, {0: 5}, layout=layout, num_partitions=3)
    (tmp_path / "0").rename(tmp_path / "disk")
    for number in (0, 2, 7):
        (tmp_path / str(number)).symlink_to("not mounted")
    view = view_storage(tmp_path, each_alone=True)
    assert [*view.unlisted] == ([2] if layout is Layout.DOCUMENTED else []), "a session of 0 says that it is lost"
    for error in view.unlisted.values():
        assert "its link leads nowhere" in str(error)
        assert error.advice == "mount what it leads to, or remove the link if the partition is given up"
