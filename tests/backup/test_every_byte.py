"""A vault in which one byte is another: it is found where it is, no backup comes back wrong, a directory mends what it can."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.backup.vaults import backup, findings, restored, settle, vault
from tests.builders import build_directory, digest, make_records, write_segment
from tests.crash.simdisk import Tree
from waltzctl.engine.backup.backup_removal import prune_vault
from waltzctl.engine.backup.backup_repair import repair_vault
from waltzctl.engine.errors import DamageError, WaltzError
from waltzctl.engine.findings import Finding
from waltzctl.engine.pages.page_gc import collect_garbage
from waltzctl.engine.pages.page_recovery import apply_recovery, plan_recovery
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.pages.recovery_mode import RecoveryMode
from waltzctl.engine.vault.vault_reader import VaultReader
from waltzctl.formats.vault import BackupHead

pytestmark = pytest.mark.turns(8)

STEP, PARTS = 97, 8
parts = pytest.mark.parametrize("part", range(PARTS))
passwords = pytest.mark.parametrize("password", [None, b"secret"], ids=["plain", "encrypted"])


@dataclass
class Damaged:
    """A vault with two backups, what is in them, and where each shall go."""

    path: Path
    source: Path
    password: bytes | None
    backups: dict[str, dict[str, str]]

    @classmethod
    def make(cls, path: Path, password: bytes | None) -> Damaged:
        source = settle(build_directory(path / "source", {0: 130, 1: 20}, size=60))
        made = cls(vault(path, password), source, password, {})
        made.backup()
        write_segment(source / "0", make_records(20, first=130, size=60), first=130)
        made.backup()
        return made

    def backup(self) -> None:
        self.backups[backup(self.path, self.source, self.password).name] = digest(self.source)

    def each(self, directory: str, part: int) -> Iterator[None]:
        """With one byte after another changed, found where it is; the vault is as it was behind each."""
        tree = Tree.read(self.path, (".waltzctl/lock",))
        for name, raw in tree.below(directory).files.items():
            path = self.path / directory / name
            for offset in range(STEP * part, len(raw), STEP * PARTS):
                changed = bytearray(raw)
                changed[offset] ^= 0xFF
                path.write_bytes(changed)
                assert _names(self.findings(), path, offset), (name, offset)
                yield
                shutil.rmtree(self.path)
                self.path.mkdir()
                tree.write(self.path)

    def findings(self) -> list[Finding]:
        try:
            return findings(self.path, password=self.password)
        except DamageError as error:  # without its configuration nothing can be said of its backups
            return list(error.findings)

    def restore(self, name: str) -> None:
        """As it was, or not at all.  Raises as `restore_backup`."""
        back = self.path.with_name("back")
        try:
            assert restored(self.path, name, back, password=self.password) == self.backups[name]
        except WaltzError:
            assert not back.exists()
            raise
        shutil.rmtree(back)

    def repair(self) -> None:
        repair_vault(self.path, self.source, password=self.password)

    def recovered(self, part: int) -> list[int]:
        """With one byte of the log after another changed, recovered in place and mended: how many backups are there, whole."""
        kept = []
        for _ in self.each("wal", part):
            for name in self.backups:
                with contextlib.suppress(DamageError):
                    self.restore(name)
            for act in (self.repair, self.backup):
                with pytest.raises(DamageError):
                    act()
            apply_recovery(plan_recovery(self.path, RecoveryMode.SKIP_DAMAGED), arguments=())
            there = self.heads()
            self.repair()
            prune_vault(self.path, password=self.password)
            assert self.findings() == []
            for name in there:
                self.restore(name)
            kept.append(len(there))
        return kept

    def heads(self) -> list[str]:
        return [one.name for one in VaultReader.open(self.path, self.password).heads() if isinstance(one, BackupHead)]


def _names(found: list[Finding], path: Path, offset: int) -> bool:
    """Whether one of them names the byte."""
    return any(
        str(one.path) == str(path)
        and one.offset is not None
        and one.length is not None
        and one.offset <= offset < one.offset + one.length
        for one in found
    )


@parts
@passwords
def test_every_97th_byte_of_the_pages_is_mended(tmp_path: Path, part: int, password: bytes | None) -> None:
    """Both backups are there and whole afterwards, whichever page it was: the configuration's too."""
    place = Damaged.make(tmp_path, password)
    lost = 0
    for _ in place.each("blob", part):
        for name in place.backups:
            try:
                place.restore(name)
            except DamageError:
                lost += 1
        place.repair()
        assert place.findings() == []
        for name in place.backups:
            place.restore(name)
    assert lost > 0


@parts
@passwords
def test_every_97th_byte_of_the_log_costs_what_its_record_said(
    tmp_path: Path, part: int, password: bytes | None
) -> None:
    """One backup at most, and what the other one took of it, which the directory has."""
    place = Damaged.make(tmp_path, password)
    assert min(place.recovered(part)) == 1


@parts
@passwords
def test_every_97th_byte_of_a_checkpoint_costs_no_backup(tmp_path: Path, part: int, password: bytes | None) -> None:
    """What is there twice does not stand in one record, and the directory has the rest."""
    place = Damaged.make(tmp_path, password)
    with PageStorage.open(place.path) as store:
        collect_garbage(store, checkpoint=True)
    assert set(place.recovered(part)) == {len(place.backups)}
