"""A vault in which one byte is another: it is found where it is, no backup comes back wrong, a directory mends what it can."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.backup.vaults import backup, codes, findings, restored, settle, vault
from tests.builders import build_directory, digest, make_records, write_segment
from tests.crash.simdisk import Tree
from waltzctl.engine.backup.backup_removal import forget, plan_forgetting, prune_vault
from waltzctl.engine.backup.backup_repair import repair_vault
from waltzctl.engine.errors import DamageError, WaltzError
from waltzctl.engine.findings import Finding
from waltzctl.engine.pages.inspection import dump_free, view_store
from waltzctl.engine.pages.page_gc import collect_garbage
from waltzctl.engine.pages.page_options import PageOptions
from waltzctl.engine.pages.page_recovery import apply_recovery, plan_recovery
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.pages.recovery_mode import RecoveryMode
from waltzctl.engine.vault.vault_reader import VaultReader
from waltzctl.formats.pages.names import parse_log_name
from waltzctl.formats.vault import BackupHead

pytestmark = pytest.mark.turns(16)

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
            free = [one for one in dump_free(view_store(self.path)) if str(path).endswith(f"blobfile_{one.file_id}")]
            for offset in range(STEP * part, len(raw), STEP * PARTS):
                if any(one.offset <= offset < one.offset + one.size for one in free):
                    continue  # what lies between copies
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
            torn = codes(self.findings()) == {"log-torn-tail"}  # the last bytes there are, which close the log
            for act in () if torn else (self.repair, self.backup):
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
def test_every_97th_byte_of_the_log_costs_nothing(tmp_path: Path, part: int, password: bytes | None) -> None:
    """Each record of it is there twice."""
    place = Damaged.make(tmp_path, password)
    assert set(place.recovered(part)) == {len(place.backups)}


@parts
def test_every_97th_byte_of_the_log_of_what_was_forgotten_and_moved_costs_nothing(tmp_path: Path, part: int) -> None:
    """What is left is where it was moved to, and what was forgotten stays away."""
    place = Damaged.make(tmp_path, None)
    other = backup(place.path, settle(build_directory(tmp_path / "other", {2: 300}, size=60)))
    last = backup(place.path, place.source)
    place.backups[last.name] = digest(place.source)
    forget(plan_forgetting(place.path, [other.name], None))
    with PageStorage.open(place.path, PageOptions(max_log_files=100)) as store:
        assert collect_garbage(store).pages_moved > 0
        assert collect_garbage(store).freed > 0
    assert all(level == 0 for _, level in filter(None, map(parse_log_name, os.listdir(place.path / "wal"))))
    assert set(place.recovered(part)) == {len(place.backups)}


@parts
@passwords
def test_every_97th_byte_of_a_checkpoint_costs_no_backup(tmp_path: Path, part: int, password: bytes | None) -> None:
    """Each record of it is there twice."""
    place = Damaged.make(tmp_path, password)
    with PageStorage.open(place.path) as store:
        collect_garbage(store, checkpoint=True)
    assert set(place.recovered(part)) == {len(place.backups)}
