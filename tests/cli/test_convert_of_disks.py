"""convert beside a partition on a disk of its own that cannot be listed: refused as a whole, as its directory tells of it."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backup.vaults import settle
from tests.builders import build_directory, digest
from tests.cli.running import Answer, invoke
from tests.cli.test_disks_of_partitions import CALLS, PARTITIONS, UNLISTED, fail
from waltzctl.formats.control import Layout


def built(path: Path, layout: Layout, session: int) -> Path:
    mark = 9 if session > 0 else -1
    found = build_directory(
        path, dict.fromkeys(PARTITIONS, 60), layout=layout, session=session, local_low_water_mark=mark
    )
    return settle(found)


def convert(storage: Path, layout: Layout, *words: object) -> Answer:
    return invoke("convert", storage, "--layout", next(one for one in Layout if one is not layout), "--yes", *words)


@pytest.mark.parametrize(
    ("layout", "unassigned"), [(Layout.DOCUMENTED, False), (Layout.RELEASED, False), (Layout.RELEASED, True)]
)
@pytest.mark.parametrize("session", [3, -1])
def test_a_disk_that_is_not_mounted_changes_no_partition_s_assignment(
    tmp_path: Path, layout: Layout, session: int, unassigned: bool
) -> None:
    """A partition that was in no session was no longer assigned, or assigned from then on, once its disk was mounted again."""
    storage = built(tmp_path / "a", layout, session)
    if unassigned:
        assert invoke("set-partition", storage, "--partition", 1, "--unassigned", "--yes").status == 0
    (storage / "1").rename(tmp_path / "disk")
    (storage / "1").symlink_to(tmp_path / "disk")
    (tmp_path / "disk").rename(tmp_path / "away")
    before = digest(storage)
    refused = convert(storage, layout)
    assert (refused.status, f"{storage / '1'}: the link in the place of partition 1 leads nowhere" in refused.err) == (
        13,
        True,
    )
    assert "mount what it leads to first" in refused.err
    assert {name: one for name, one in digest(storage).items() if name in before} == before
    (tmp_path / "away").rename(tmp_path / "disk")
    if unassigned:  # only a node moves a link; the advice was an option that convert does not have
        refused = convert(storage, layout)
        assert (refused.status, "its directory is to be put aside, and it is a link" in refused.err) == (13, True)
        advised = shlex.split(refused.err.partition("or assign it: waltzctl ")[2])
        assert invoke(*advised, "--yes").status == 0
    assert convert(storage, layout).status == 0


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo])
def test_a_link_to_what_is_no_directory_is_no_partition(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """One step to the side: there is nothing to mount."""
    storage = build_directory(tmp_path / "a", {0: 60}, layout=Layout.DOCUMENTED, num_partitions=2)
    make(tmp_path / "file")
    (storage / "1").symlink_to(tmp_path / "file")
    assert "leads nowhere" not in convert(settle(storage), Layout.DOCUMENTED).err


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("calls", UNLISTED)
@pytest.mark.parametrize("layout", Layout)
def test_a_partition_that_cannot_be_listed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Layout, calls: str, number: int
) -> None:
    storage = built(tmp_path / "a", layout, 3)
    before = digest(storage)
    with monkeypatch.context() as patch:
        fail(patch, storage / "1", CALLS[calls], number=number)
        refused = convert(storage, layout)
        assert (refused.status, f"{storage / '1'}: cannot list" in refused.err) == (14, True)
        assert "a directory is converted as a whole: convert it when the disk answers again" in refused.err
    assert digest(storage) == before
    assert convert(storage, layout).status == 0
