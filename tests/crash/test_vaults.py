"""A vault and a restored directory in a crash: a backup is there whole or not at all, and so is what is made of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.backup.vaults import backup
from tests.builders import build_directory, digest, make_records, write_segment
from tests.crash.conftest import CrashTest
from tests.crash.recorder import Recorder, Recording
from tests.crash.simdisk import Tree
from waltzctl.engine.backup.backup_creation import create_vault
from waltzctl.engine.backup.backup_removal import forget, plan_forgetting, prune_vault
from waltzctl.engine.backup.backup_restore import restore_backup
from waltzctl.engine.errors import NotWaltzError, WaltzError
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.vault.backup_files import BackedSource, BackupFiles
from waltzctl.engine.vault.vault_reader import VaultReader

pytestmark = pytest.mark.turns(10)

Held = frozenset[tuple[int, str]]
"""The backups of a vault: of each its number of files and a digest of them all."""
Seen = Held | str | None
"""What a vault holds; None where there is none; what is wrong with it."""
Truth = tuple[Seen, ...]


def content_of(files: dict[str, str]) -> tuple[int, str]:
    return len(files), hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()


def held_by(vault: Path) -> Held:
    """Every file of every backup, read where it is."""
    reader = VaultReader.open(vault)
    found = set()
    for head in reader.heads():
        files = BackupFiles(reader, head)  # type: ignore[arg-type]
        digests = {}
        for _, section in files.sections():
            for file in section.files:
                data = bytearray(file.size)
                BackedSource(files, file.name, file.name).read_into(0, memoryview(data))
                digests[file.name] = hashlib.sha256(data).hexdigest()
        found.add(content_of(digests))
    return frozenset(found)


class VaultChecker:
    """Opens the vault as the next backup would, and reads every backup."""

    def recover(self, root: Path) -> Seen:
        try:
            PageStorage.open(root / "vault").close()
            return held_by(root / "vault")
        except NotWaltzError:
            return None
        except WaltzError as error:
            return f"{type(error).__name__}: {error.message.rpartition('/')[2]}"

    def examine(self, root: Path, seen: Seen) -> Seen:
        if isinstance(seen, frozenset):
            prune_vault(root / "vault")
            assert held_by(root / "vault") == seen
        return seen

    def judge(self, truth: Truth, seen: Seen, state: Tree) -> list[str]:
        return [] if seen in truth else [f"{seen} is none of {len(truth)} that were promised"]

    def narrowed(self, truth: Truth, seen: Seen) -> Truth:
        return (seen,)


def recorded_vault(path: Path) -> Recording[Truth]:
    """A vault is made, takes three backups of a directory that changes, forgets one and gives room back."""
    root = path / "root"
    root.mkdir()
    source = build_directory(path / "source", {0: 60}, size=60)
    recorder: Recorder[Truth] = Recorder(root)
    recorder.promise((None,), settled=True)
    held: Seen = None
    with recorder.listening():
        empty: Held = frozenset()
        recorder.promise((None, empty), settled=False)
        create_vault(root / "vault")
        recorder.promise((empty,), settled=True)
        held = empty
        names = []
        for number in range(3):
            write_segment(source / "0", make_records(5, first=60 + number * 5, size=60), first=60 + number * 5)
            after = held | {content_of(digest(source))}
            recorder.promise((held, after), settled=False)
            names.append((backup(root / "vault", source).name, content_of(digest(source))))
            recorder.promise((after,), settled=True)
            held = after
        name, content = names[1]
        after = held - {content}
        recorder.promise((held, after), settled=False)
        forget(plan_forgetting(root / "vault", [name], None))
        recorder.promise((after,), settled=True)
        prune_vault(root / "vault")
    return recorder.recording


class RestoreChecker:
    """Looks whether the directory has its name, and what it holds."""

    def recover(self, root: Path) -> Seen:
        return frozenset({content_of(digest(root / "back"))}) if (root / "back").exists() else None

    def examine(self, root: Path, seen: Seen) -> Seen:
        return seen

    def judge(self, truth: Truth, seen: Seen, state: Tree) -> list[str]:
        return [] if seen in truth else [f"{seen} is none of {len(truth)} that were promised"]

    def narrowed(self, truth: Truth, _: Seen) -> Truth:
        """A restore promises at its end; what somebody saw of one that died may go with the power."""
        return truth


def recorded_restore(path: Path) -> Recording[Truth]:
    """A backup is restored into a directory that is not there."""
    root = path / "root"
    root.mkdir()
    source = build_directory(path / "source", {0: 60, 1: 10}, size=60)
    create_vault(path / "vault")
    head = backup(path / "vault", source)
    whole: Seen = frozenset({content_of(digest(source))})
    recorder: Recorder[Truth] = Recorder(root)
    recorder.promise((None,), settled=True)
    with recorder.listening():
        recorder.promise((None, whole), settled=False)
        restore_backup(path / "vault", head.name, root / "back")
        recorder.promise((whole,), settled=True)
    return recorder.recording


def test_a_vault(tmp_path: Path, survive: CrashTest) -> None:
    report = survive("vault", recorded_vault(tmp_path), VaultChecker())
    assert report.moments > 20


def test_a_restored_directory(tmp_path: Path, survive: CrashTest) -> None:
    report = survive("restore of a backup", recorded_restore(tmp_path), RestoreChecker())
    assert report.moments > 10
