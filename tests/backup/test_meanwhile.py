"""Reading a vault while others forget backups and give room back: what moved is found, and only damage is told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.backup.vaults import backup, codes, findings, restored, vault
from tests.builders import build_directory, digest
from waltzctl.engine.backup.backup_removal import forget, plan_forgetting, prune_vault
from waltzctl.engine.backup.backup_restore import restore_backup
from waltzctl.engine.backup.backup_verification import verify_vault
from waltzctl.engine.errors import DamageError, InvalidRequestError
from waltzctl.engine.findings import Finding
from waltzctl.engine.vault import vault_pages
from waltzctl.engine.vault.vault_reader import VaultReader
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

    with pytest.raises(InvalidRequestError, match=f"{head.name} was forgotten while it was restored"):
        restore_backup(place, head.name, tmp_path / "back", progress=Meanwhile(act))
    assert not (tmp_path / "back").exists()


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
    looks, view = [], vault_pages.view_store

    def looking(path: Path) -> object:
        looks.append(path)
        return view(path)

    monkeypatch.setattr(vault_pages, "view_store", looking)
    prune_vault(place)
    for page in pages:
        with pytest.raises(
            DamageError, match=f"page {PageId(Namespace.DATA, page)}: the checksum of its data is wrong"
        ):
            reader.page(Namespace.DATA, page)
    assert len(looks) == 1
    monkeypatch.undo()
    assert {"page-checksum", "backup-incomplete"} <= codes(findings(place))
