"""Reading a vault while others forget backups and give room back: what moved is found, and only damage is told."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backup.vaults import backup, codes, findings, restored, vault
from tests.builders import build_directory, digest
from waltzctl.engine.backup.backup_removal import forget, plan_forgetting, prune_vault
from waltzctl.engine.backup.backup_restore import restore_backup
from waltzctl.engine.backup.backup_verification import VaultVerifyOptions, verify_vault
from waltzctl.engine.errors import DamageError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.verification import VerifySummary
from waltzctl.engine.vault import vault_pages
from waltzctl.engine.vault.vault_reader import ForgottenBackupError, VaultReader
from waltzctl.formats.pages.write_batch import PageId
from waltzctl.formats.vault import BackupHead, Namespace


class Meanwhile:
    """A progress that does something once, when the reading begins."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act
        self.acted = False

    def start(self, what: str, total: int) -> None:
        if not self.acted:
            self.acted = True
            self._act()

    def advance(self, amount: int) -> None:
        """Nothing."""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "source", {0: 60}, size=300)


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return build_directory(tmp_path / "other", {0: 200, 1: 60}, size=400)


def gone(place: Path, *heads: BackupHead) -> None:
    forget(plan_forgetting(place, [head.name for head in heads], None))


@pytest.fixture
def place(tmp_path: Path, source: Path, other: Path) -> Path:
    """A vault in which what the backup of `source` needs lies in a file that is to be emptied."""
    made = vault(tmp_path)
    first = backup(made, other)
    backup(made, source)
    gone(made, first)
    return made


def moved(place: Path) -> None:
    before = {one.name for one in (place / "blob").iterdir()}
    assert prune_vault(place).pages_moved
    assert not before & {one.name for one in (place / "blob").iterdir()}, "nothing lies where it lay"


def test_verify_while_pages_move(place: Path) -> None:
    meanwhile = Meanwhile(lambda: moved(place))
    assert [one for one in verify_vault(place, progress=meanwhile) if isinstance(one, Finding)] == []
    assert meanwhile.acted


def test_restore_while_pages_move(tmp_path: Path, place: Path, source: Path) -> None:
    restore_backup(place, "latest", tmp_path / "back", progress=Meanwhile(lambda: moved(place)))
    assert digest(tmp_path / "back") == digest(source)


def test_a_page_is_found_however_often_it_moves(tmp_path: Path, place: Path) -> None:
    reader = VaultReader.open(place)
    head = reader.find("latest")
    pages = range(head.first_page, head.first_page + head.num_pages)
    whole = [reader.page(Namespace.DATA, page) for page in pages]
    for number in range(3):
        moved(place)
        assert [reader.page(Namespace.DATA, page) for page in pages] == whole
        more, behind = (
            build_directory(tmp_path / f"{number}-{count}", {0: count}, size=500 + number) for count in (300, 5)
        )
        large = backup(place, more)
        backup(place, behind)
        gone(place, large)
    later = VaultReader.open(place)
    prune_vault(place)
    assert [later.missing(page) for page in pages] == [None] * len(pages)
    assert later.missing(pages.stop) is not None, "there never was one"


def test_backups_that_are_forgotten_meanwhile_are_no_damage(tmp_path: Path, source: Path, other: Path) -> None:
    """What they have together goes by the name of the first one, which is gone."""
    place = vault(tmp_path)
    backup(place, other)
    first, last = backup(place, source), backup(place, source, tag="last")

    def act() -> None:
        gone(place, *(one for one in VaultReader.open(place).heads() if isinstance(one, BackupHead) and one != last))
        moved(place)

    assert [one for one in verify_vault(place, progress=Meanwhile(act)) if isinstance(one, Finding)] == []
    assert first.name != last.name
    assert restored(place, "latest", tmp_path / "back") == digest(source)


def test_the_backup_that_is_restored_is_forgotten_meanwhile(tmp_path: Path, place: Path, other: Path) -> None:
    head = backup(place, other)

    def act() -> None:
        gone(place, head)
        moved(place)

    with pytest.raises(ForgottenBackupError, match=f"backup {head.name} was forgotten meanwhile"):
        restore_backup(place, head.name, tmp_path / "back", progress=Meanwhile(act))
    assert not (tmp_path / "back").exists()


def test_the_backup_is_forgotten_before_its_files_are_listed(
    tmp_path: Path, place: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, find = backup(place, other), VaultReader.find

    def found(reader: VaultReader, text: str) -> BackupHead:
        monkeypatch.undo()
        looked_up = find(reader, text)
        gone(place, head)
        moved(place)
        return looked_up

    monkeypatch.setattr(VaultReader, "find", found)
    with pytest.raises(ForgottenBackupError, match=head.name):
        restore_backup(place, head.name, tmp_path / "back")
    assert not (tmp_path / "back").exists()


READS: dict[str, Callable[[VaultReader, BackupHead], object]] = {
    "find": lambda reader, head: reader.find(head.name),
    "head": lambda reader, head: reader.head(head.id),
    "section": lambda reader, head: reader.section(head, head.storage),
    "piece": lambda reader, head: reader.piece(
        head, head.partitions[0], 0, VaultReader(reader._pages, None).section(head, head.partitions[0]).pieces[0]
    ),
}
"""What is read of a backup; the list of pieces is looked up in passing."""


@pytest.mark.parametrize("what", [*READS])
def test_what_is_read_of_a_backup_that_was_forgotten_meanwhile(place: Path, other: Path, what: str) -> None:
    head = backup(place, other)
    reader = VaultReader.open(place)
    READS[what](reader, head)
    reader = VaultReader.open(place)
    gone(place, head)
    moved(place)
    with pytest.raises(ForgottenBackupError, match=f"backup {head.name} was forgotten meanwhile"):
        READS[what](reader, head)


def test_a_backup_that_was_forgotten_meanwhile_is_not_listed(place: Path, other: Path) -> None:
    head = backup(place, other)
    reader = VaultReader.open(place)
    assert head.id in reader.ids()
    gone(place, head)
    moved(place)
    assert [getattr(one, "name", one) for one in reader.heads()] == [VaultReader.open(place).find("latest").name]


def test_the_backup_that_is_verified_is_forgotten_meanwhile(place: Path, other: Path) -> None:
    head = backup(place, other)

    def act() -> None:
        gone(place, head)
        moved(place)

    with pytest.raises(ForgottenBackupError, match=head.name):
        list(verify_vault(place, VaultVerifyOptions(backup=head.name), progress=Meanwhile(act)))


def test_what_is_forgotten_meanwhile_is_not_counted(place: Path, other: Path) -> None:
    head = backup(place, other)

    def act() -> None:
        gone(place, head)
        moved(place)

    def counts(meanwhile: Meanwhile) -> tuple[int, ...]:
        (one,) = verify_vault(place, progress=meanwhile)
        assert isinstance(one, VerifySummary)
        return one.partitions, one.segments, one.records, one.bytes

    there = counts(Meanwhile(lambda: None))
    found = counts(Meanwhile(act))
    assert found == counts(Meanwhile(lambda: None))
    assert all(one < before for one, before in zip(found, there, strict=True))


@pytest.mark.parametrize("lost", ["data", "log", "end of the log"])
def test_damage_is_told_also_while_a_backup_is_forgotten(place: Path, other: Path, lost: str) -> None:
    """Of the one that stays; and of any where the log does not say what was forgotten."""
    first = VaultReader.open(place).find("latest")
    head = backup(place, other)
    reader = VaultReader.open(place)
    logs = sorted((place / "wal").iterdir())
    if lost == "end of the log":  # what nobody forgot; the log reads as if it ended before the backup
        for blob in (place / "blob").iterdir():
            blob.write_bytes(bytes(blob.stat().st_size))
    else:
        gone(place, first if lost == "data" else head)
        prune_vault(place)
    damaged = {"data": (place / "blob").iterdir(), "log": (place / "wal").iterdir(), "end of the log": logs[-1:]}[lost]
    for one in damaged:
        one.write_bytes(bytes(byte ^ 255 for byte in one.read_bytes()))
    with pytest.raises(DamageError):
        reader.head(head.id)
    with pytest.raises(DamageError):
        reader.section(head, head.storage)


def looked(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The vaults of which the log is read from here on, one for each time."""
    looks, view = [], vault_pages.view_store

    def looking(path: Path) -> object:
        looks.append(path)
        return view(path)

    monkeypatch.setattr(vault_pages, "view_store", looking)
    return looks


@pytest.mark.parametrize("written", ["blob", "log", "damaged log"])
def test_damaged_pages_while_others_write(
    place: Path, other: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    """The log is read anew where it changed, once for each change, and not for what is just written to a file of pages."""
    head = backup(place, other)
    reader = VaultReader.open(place)
    pages = range(head.first_page, head.first_page + head.num_pages)
    assert len(pages) > 20
    blobs, log = sorted((place / "blob").iterdir()), max((place / "wal").iterdir())
    for one in blobs:
        one.write_bytes(bytes(one.stat().st_size))
    if written == "damaged log":
        log.write_bytes(bytes(byte ^ 255 for byte in log.read_bytes()))
    looks = looked(monkeypatch)
    times = itertools.count(1)
    for place_in_order, page in enumerate(pages):
        if written == "blob":
            os.utime(blobs[-1], (0, next(times)))
        if written == "log" and place_in_order in (0, 10):
            os.utime(log, (0, next(times)))
        with pytest.raises(DamageError, match="the checksum of its data is wrong"):
            reader.page(Namespace.DATA, page)
    assert len(looks) == {"blob": 0, "log": 2, "damaged log": 1}[written]


def test_a_file_of_pages_that_is_gone_makes_the_log_be_read_once_more(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = VaultReader.open(place)
    head = reader.find("latest")
    looks = looked(monkeypatch)
    for one in (place / "blob").iterdir():
        one.unlink()
    for page in range(head.first_page, head.first_page + head.num_pages):
        assert reader.missing(page) is not None
    assert len(looks) == 1


def test_damage_is_told_also_while_pages_move(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is looked at anew once for what others wrote, and not for each page that is damaged."""
    reader = VaultReader.open(place)
    head = reader.find("latest")
    pages = range(head.first_page, head.first_page + head.num_pages)
    for page in pages:
        entry = reader.entry(Namespace.DATA, page)
        assert entry is not None
        with (place / "blob" / f"blobfile_{entry.file_id}").open("r+b") as file:
            file.seek(entry.offset)
            file.write(bytes(entry.size))
    looks = looked(monkeypatch)
    prune_vault(place)
    for page in pages:
        with pytest.raises(
            DamageError, match=f"page {PageId(Namespace.DATA, page)}: the checksum of its data is wrong"
        ):
            reader.page(Namespace.DATA, page)
    assert len(looks) == 1
    monkeypatch.undo()
    assert {"page-checksum", "backup-incomplete"} <= codes(findings(place))
