"""Slips in backups: what would be missing, mixed or lost in one, and nobody would know before the restore."""

from __future__ import annotations

from tests.mutation.trial import Slip

_BACKUPS = ("tests/backup/test_backups.py",)
_LIVE = ("tests/backup/test_live.py",)
_DAMAGE = ("tests/backup/test_damage.py",)
_MEANWHILE = ("tests/backup/test_meanwhile.py",)
_PLAN = "engine/backup/section_planner.py"
_CREATION = "engine/backup/backup_creation.py"
_WRITER = "engine/backup/backup_writer.py"
_RESTORE = "engine/backup/backup_restore.py"

_JOURNALED = ("tests/backup/test_journaled.py",)

BACKUPS: tuple[Slip, ...] = (
    Slip(
        "engine/backup/backup_verification.py",
        "secrets.randbits(63) if options.seed is None else options.seed",
        "options.seed or 0",
        ("tests/cli/test_backup.py",),
        "a sample of every night reads the same pages of a vault, and the others are never read",
    ),
    Slip(
        "engine/vault/backup_files.py",
        "if self.head.partial and file.name == CONTROL_FILE_NAME:",
        "if False:",
        _BACKUPS,
        "partitions that a backup was not asked for are told to be lost",
    ),
    Slip(
        "engine/backup/source_files.py",
        "unmarked(_read_stable(view.control_path))",
        "_read_stable(view.control_path)",
        _JOURNALED,
        "what is restored asks for a commit journal that nobody has",
    ),
    Slip(
        _CREATION,
        "    check_written_back(looked)\n",
        "",
        _JOURNALED,
        "a backup of what a crash left lacks records that were acknowledged",
    ),
    Slip(
        _PLAN,
        "return old if same and numbers.modified_ns < self._previous.created_ms * 1_000_000 - _SETTLED_NS else None",
        "return old if same else None",
        _BACKUPS,
        "a change within the tick of the file system's clock is not in the next backup",
    ),
    Slip(
        _PLAN,
        "if high > low and not (closed and high - low < len(ends) - 1):",
        "if False:",
        _BACKUPS,
        "a log that grew keeps its old last piece, and no replica has the same",
    ),
    Slip(
        _PLAN,
        "if self._live and last and size < numbers.size and not torn and self._damaged == damaged:",
        "if False:",
        _LIVE,
        "bytes of other records stand behind the end of a log that was cut while it was read",
    ),
    Slip(
        _PLAN,
        "size = end if len(sizes) else len(header)",
        "size = max(end, len(header))",
        _BACKUPS,
        "a data file that is shorter than its header makes the whole backup unreadable",
    ),
    Slip(
        _CREATION,
        "if again and self._writer.sealer.digest(self._content(planned)) != piece.digest:",
        "if False:",
        _LIVE,
        "a backup mixes records from before and behind a truncation",
    ),
    Slip(
        _CREATION,
        "if end < mark and not plan.damaged:",
        "if False:",
        _LIVE,
        "a backup whose mark is above its end opens only after a repair",
    ),
    Slip(
        _PLAN,
        "self._add_raw(path, 0, draft.numbers.size, content)",
        "self._add_raw(path, 0, draft.numbers.size)",
        _LIVE,
        "from 12 partitions on marks are above what a backup of a running node holds",
    ),
    Slip(
        _PLAN,
        "if self._live and places.file_numbers(path) != numbers:",
        "if False:",
        _LIVE,
        "a small file that a node replaced is cut at the size of the one before",
    ),
    Slip(
        "engine/backup/source_files.py",
        "appended = now is not None and now.inode == planned.inode and now.size > planned.size",
        "appended = now is not None and now.size > planned.size",
        _LIVE,
        "a file that a node replaced is half the old one and half the new one",
    ),
    Slip(
        "engine/vault/vault_pages.py",
        "return None if view.directory.locate(page) == before.locate(page) else view.directory",
        "return None",
        _MEANWHILE,
        "a vault is told to be damaged as its pages were moved while it was read",
    ),
    Slip(
        "engine/vault/vault_pages.py",
        "if _is_damaged(view) or view.directory.sequence < before.sequence:",
        "if _is_damaged(view):",
        _MEANWHILE,
        "a backup that was lost with the end of the log is told to have been forgotten",
    ),
    Slip(
        "engine/vault/vault_pages.py",
        "return log[0] != log[1] or bool(before.keys() - after.keys())",
        "return bool(before.keys() - after.keys())",
        _MEANWHILE,
        "what was moved within the files that there are is told to be damaged",
    ),
    Slip(
        "engine/backup/backup_verification.py",
        "        if finding is None or not reader.forgotten(one.head.id):\n",
        "        if True:\n",
        _MEANWHILE,
        "a backup is reported to be damaged as another one was forgotten that refers to the same",
    ),
    Slip(
        "engine/backup/backup_verification.py",
        "        reader.check_remembered(named.id)\n",
        "        pass\n",
        _MEANWHILE,
        "a backup that is gone is reported to be whole",
    ),
    Slip(
        "engine/vault/vault_reader.py",
        "        if self.forgotten(backup):\n",
        "        if False:\n",
        _MEANWHILE,
        "a backup that was forgotten while it was read is told to be damaged",
    ),
    Slip(
        "engine/vault/vault_reader.py",
        "return all(self.entry(name, backup) is None for name in (Namespace.BACKUPS, Namespace.BACKUP_COPIES))",
        "return True",
        (*_MEANWHILE, *_DAMAGE),
        "a backup that is damaged is told to have been forgotten, and nobody mends it",
    ),
    Slip(
        _WRITER,
        "if piece.digest not in known and self._page_exists(first + number):",
        "if piece.digest not in known:",
        _DAMAGE,
        "what a recovery gave up can never be backed up again",
    ),
    Slip(
        _WRITER,
        "if all(self._page_exists(first + number) for number in range(len(section.pieces))):",
        "if True:",
        _DAMAGE,
        "a directory of which a recovery gave pages up can never be backed up again",
    ),
    Slip(
        "engine/backup/source_files.py",
        " and not (self.live and name.endswith(TEMPORARY_SUFFIX))",
        "",
        _LIVE,
        "a backup holds half of what a node was just writing",
    ),
    Slip(
        _WRITER,
        "self._store.commit([*puts, *self._refs])",
        "self._store.commit([*self._refs, *puts])",
        _BACKUPS,
        "a directory that holds the same bytes twice cannot be backed up",
    ),
    Slip(
        "engine/backup/source_files.py",
        "if there.get(name) != FileNumbers(one.size, one.modified_ns, one.inode):",
        "if False:",
        _LIVE,
        "a sealed segment that was rewritten while it was read is mixed with what came",
    ),
    Slip(
        _RESTORE,
        'changed["local_low_water_mark"] = min(current.local_low_water_mark, end)',
        'changed["local_low_water_mark"] = current.local_low_water_mark',
        _BACKUPS,
        "a directory that was restored up to a transaction is quarantined at its first opening",
    ),
    Slip(
        _RESTORE,
        'changed["session_id"] = current.session_id - 1',
        'changed["session_id"] = current.session_id',
        _BACKUPS,
        "a restored replica passes for one that never held more, and a vote cuts what another has",
    ),
    Slip(
        _RESTORE,
        "        _write(place, files, work, restoring.directories(), progress)\n",
        "        place = target\n        _write(place, files, work, restoring.directories(), progress)\n",
        (*_BACKUPS, *_DAMAGE),
        "half a directory has the name of a whole one",
    ),
    Slip(
        "engine/vault/sealing.py",
        "if check and not hmac.compare_digest(self.digest(content), digest):",
        "if False:",
        _DAMAGE,
        "a page with other content than its digest says is restored",
    ),
    Slip(
        "engine/vault/sealing.py",
        "return self._id + header + digest",
        "return self._id + header",
        _DAMAGE,
        "an encrypted page opens in another one's place",
    ),
    Slip(
        "engine/backup/retention.py",
        "if place < retention.last:",
        "if place <= retention.last:",
        ("tests/backup/test_retention.py",),
        "one backup more is kept than was asked for",
    ),
    Slip(
        "engine/backup/backup_removal.py",
        "if any(isinstance(one, UnreadableBackup) for one in heads):",
        "if False:",
        _DAMAGE,
        "pages of a backup whose head cannot be read are given up by a prune",
    ),
    Slip(
        "engine/backup/writable_vault.py",
        "    if disk.free_bytes(store.path) < FORGETTING:\n",
        "    if False:\n",
        _BACKUPS,
        "on a disk that a killed backup filled no backup can be forgotten",
    ),
    Slip(
        "engine/vault/vault_reader.py",
        "VAULT_OPTIONS = PageOptions(records_twice=True)",
        "VAULT_OPTIONS = PageOptions()",
        ("tests/backup/test_every_byte.py",),
        "a byte of the log costs a backup",
    ),
    Slip(
        "engine/vault/vault_reader.py",
        "        if any(True for kept in Namespace for _ in self.pages(kept)):\n",
        "        if False:\n",
        ("tests/backup/test_damage.py",),
        "who lost a vault's configuration is told to make a new vault there",
    ),
    Slip(
        "engine/backup/backup_restore.py",
        "one.next_transaction_id > end + 1:",
        "one.next_transaction_id > end:",
        ("tests/backup/test_backups.py",),
        "what is damaged in front of the end of a restore is cut off",
    ),
    Slip(
        "engine/backup/retention.py",
        "key=lambda one: one.first_page, reverse=True",
        "key=lambda one: one.created_ms, reverse=True",
        ("tests/backup/test_retention.py",),
        "forget takes the backup that was made last away after the clock was put back",
    ),
)
"""Of the vault's rooms."""
