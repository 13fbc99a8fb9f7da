"""salvage of a storage directory with a partition on a disk of its own that cannot be read: it takes the others, and says so."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from tests.backup.vaults import settle
from tests.builders import build_directory, digest
from tests.cli.running import Answer, invoke
from tests.cli.test_disks_of_partitions import CALLS, PARTITIONS, fail, of_partition
from waltzctl.formats.control import CONTROL_FILE_NAME

RECORDS = 60


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return settle(build_directory(tmp_path / "a", dict.fromkeys(PARTITIONS, RECORDS), local_low_water_mark=9))


def salvage(source: Path, to: Path, *words: object) -> Answer:
    return invoke("salvage", source, "--to", to, "--format", "ndjson", *words)


@pytest.mark.turns(10)
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("calls", ["list", "stat", "open", "every"])
@pytest.mark.parametrize("dead", PARTITIONS)
def test_the_others_are_salvaged_and_what_was_not_read_is_told(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dead: int, calls: str, number: int
) -> None:
    before = digest(storage)
    with monkeypatch.context() as patch:
        fail(patch, storage / str(dead), CALLS[calls], number=number)
        answer = salvage(storage, tmp_path / "to")
        table = invoke("salvage", storage, "--to", tmp_path / "table", "--format", "table")
    assert (answer.status, answer.err) == (5, "")
    (report,) = answer.only("salvage-report")
    assert report["written"] == RECORDS * 2
    assert all(one["path"].startswith(str(storage / str(dead))) for one in report["unread"])
    assert len(report["unread"]) == (1 if calls in ("list", "every") else 4)
    assert f"not read: {storage / str(dead)}" in " ".join(table.out.split())
    assert f"{len(report['unread'])} files or directories not read" in " ".join(table.out.split())
    (lost,) = [one for one in report["partitions"] if one["partition"] == dead]
    assert (lost["records"], lost["acknowledged_missing"]) == (0, [{"first": 0, "last": 9}])
    assert invoke("verify", tmp_path / "to").status == 4  # what was acknowledged is missed
    assert digest(storage) == before


def test_a_disk_that_is_not_mounted_is_told(storage: Path, tmp_path: Path) -> None:
    (storage / "1").rename(tmp_path / "disk")
    (storage / "1").symlink_to(tmp_path / "disk")
    assert salvage(storage, tmp_path / "whole").status == 0
    (tmp_path / "disk").rename(tmp_path / "away")
    answer = salvage(storage, tmp_path / "to")
    (report,) = answer.only("salvage-report")
    assert (answer.status, report["written"], [one["path"] for one in report["unread"]]) == (
        5,
        RECORDS * 2,
        [str(storage / "1")],
    )
    assert "mount what the link leads to" in report["unread"][0]["message"]


@pytest.mark.parametrize("what", ["", CONTROL_FILE_NAME])
def test_without_what_was_named_or_has_the_marks_nothing_is_written(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    fail(monkeypatch, storage / what if what else storage, CALLS["every"])
    answer = salvage(storage, tmp_path / "to")
    assert (answer.status, str(storage / what) in answer.err) == (14, True)
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("words", [("--partition", 1), ()])
def test_where_nothing_else_is_found_the_disk_is_the_reason(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...]
) -> None:
    """It said that no record is there, and to look for another copy."""
    if not words:
        for one in (0, 2):
            shutil.rmtree(storage / str(one))
    fail(monkeypatch, storage / "1", CALLS["list"])
    answer = salvage(storage, tmp_path / "to", *words)
    assert (answer.status, f"{storage / '1'}: cannot list" in answer.err) == (14, True)
    assert "salvage again when it can be read" in answer.err
    assert not (tmp_path / "to").exists()


@pytest.mark.turns(10)
@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("times", [1, 1 << 30])
def test_wherever_a_disk_begins_to_fail_what_is_left_out_is_told(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: str, times: int
) -> None:
    count, first = [1], 0
    while first < count[0] and first < 60:
        target = tmp_path / f"to-{first}"
        with monkeypatch.context() as patch:
            count = fail(patch, storage / "1", CALLS[calls], first=first, times=times)
            answer = salvage(storage, target)
        assert answer.status in (0, 5, 14), answer
        assert target.exists() == (answer.status != 14)
        if answer.status == 0:
            assert answer.only("salvage-report")[0]["written"] == RECORDS * 3
        if answer.status == 5:
            (report,) = answer.only("salvage-report")
            assert report["unread"] or report["unreadable"]
            for one in (0, 2):
                assert len(of_partition(digest(target), one)) == 2
        if target.exists():
            shutil.rmtree(target)
        assert [name for name in os.listdir(tmp_path) if name.startswith(("to", ".to"))] == []
        first += 1 if first < 12 else 5


@pytest.mark.parametrize("calls", ["stat", "open"])
def test_what_goes_while_it_is_listed_is_told(
    storage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: str
) -> None:
    """It was left out, and "nothing missing" was said of the rest."""
    gone = sorted((storage / "1").glob("*.seg"))[-1]
    fail(monkeypatch, gone, CALLS[calls], number=errno.ENOENT)
    answer = salvage(storage, tmp_path / "to")
    (report,) = answer.only("salvage-report")
    assert (answer.status, [one["path"] for one in report["unread"]]) == (5, [str(gone)])
    assert report["written"] == RECORDS * 3 - 10
