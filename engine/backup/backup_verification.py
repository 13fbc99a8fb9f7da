"""Verifying a vault: everything that its backups need must be there and intact.

The page store's log is read, and every page that a backup needs, once even if several backups need it; its content is decrypted,
decompressed and compared with its digest.  A damaged page is one finding; one more finding per partition of each affected backup
states what cannot be restored.

Memory holds one row per distinct piece of the vault (`engine.backup.distinct_pieces`).  Sections are read one after another, and
once more if something is damaged.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from waltzctl.engine.backup.backup_creation import WORKERS
from waltzctl.engine.backup.distinct_pieces import DistinctPieces, NeededPiece, PieceKey
from waltzctl.engine.errors import DamageError
from waltzctl.engine.findings import Code, Finding, make_finding
from waltzctl.engine.inspect.verification import Tally, VerifySummary
from waltzctl.engine.pages.inspection import verify_store
from waltzctl.engine.progress import SILENT, Progress
from waltzctl.engine.vault.vault_reader import ForgottenBackupError, UnreadableBackup, VaultReader
from waltzctl.formats.segment import SEGMENT_SUFFIX
from waltzctl.formats.vault import (
    BESIDE,
    SECTION_COPIES,
    BackedPartition,
    BackupHead,
    Namespace,
    Section,
)

_READ_AHEAD = 1000
"""Pieces per batch of reads; each takes one kilobyte of memory."""


@dataclass(frozen=True, slots=True)
class VaultVerifyOptions:
    """- `backup`: verify only this one.
    - `quick`: check only that pages exist, without reading them.
    - `sample`: the share of pages that is read.
    - `seed`: selects the pages of the sample; None: others each time.
    """

    backup: str | None = None
    quick: bool = False
    sample: float | None = None
    seed: int | None = None


ReadSection = tuple[BackupHead, BackedPartition, Section]
Checked = dict[PieceKey, Finding]
"""Findings of damaged pieces."""
Looks = Callable[[NeededPiece], Finding | None]


@dataclass(frozen=True, slots=True)
class _Damaged:
    """A damaged piece: its row and order (`DistinctPiece`), the backup that the finding names, and the finding."""

    row: int
    order: tuple[int, int]
    backup: int
    finding: Finding


_Found = dict[PieceKey, _Damaged]


@dataclass(slots=True)
class _Counts:
    """What was verified of a backup."""

    partitions: int = 0
    segments: int = 0
    records: int = 0


def _contents_of_one(
    reader: VaultReader, head: BackupHead | UnreadableBackup
) -> tuple[list[ReadSection], list[Finding]]:
    """The readable sections of a backup, and findings for every damaged copy of its head and sections.

    Raises ForgottenBackupError.
    """
    if isinstance(head, UnreadableBackup):
        reader.check_remembered(head.id)
        return [], [head.finding, _incomplete(reader, f"{head.id:016x}", None, "its head", head.finding)]
    sections: list[ReadSection] = []
    findings: list[Finding] = []
    for namespace in (Namespace.BACKUPS, Namespace.BACKUP_COPIES):
        findings += _damage_of(reader, namespace, head.id)
    for one in head.sections:
        for copy in range(SECTION_COPIES):
            findings += _damage_of(reader, Namespace.DATA, head.first_page + one.section + copy)
        try:
            sections.append((head, one, reader.section(head, one, keep=False)))
        except DamageError as error:
            findings.append(_incomplete(reader, head.name, one, "all of it", error.findings[0]))
    if findings:
        reader.check_remembered(head.id)
    return sections, findings


class VaultPieces:
    """The pieces that backups need, section by section, with their places as of when this object was made."""

    def __init__(self, reader: VaultReader, heads: Iterable[BackupHead | UnreadableBackup]) -> None:
        self.reader = reader
        self.heads = [one for one in heads if isinstance(one, BackupHead)]
        self._entry = reader.entries()  # fixed: keys must stay equal if pages move between two iterations

    def of(self, section: ReadSection) -> Iterator[NeededPiece]:
        """The pieces of a section."""
        head, one, content = section
        for number, piece in enumerate(content.pieces):
            entry = self._entry(Namespace.DATA, head.first_page + one.first_piece + number)
            place = None if entry is None else (entry.file_id, entry.offset, entry.size)
            yield NeededPiece(head, one, number, piece, place)

    def sections(self) -> Iterator[ReadSection]:
        """All readable sections; those of backups forgotten meanwhile are left out."""
        for head in self.heads:
            for one in head.sections:
                try:
                    section = self.reader.section(head, one, keep=False)
                except (ForgottenBackupError, DamageError):
                    continue
                yield head, one, section

    def __iter__(self) -> Iterator[NeededPiece]:
        for section in self.sections():
            yield from self.of(section)

    def once(self) -> DistinctPieces:
        """Each distinct piece once."""
        found = DistinctPieces()
        for section in self.sections():
            found.add(*section[:2], self.of(section))
        return found


def _read_piece(reader: VaultReader, one: NeededPiece) -> Finding | None:
    """Read a piece; returns a finding if it is damaged.  Raises DiskReadError."""
    try:
        reader.read_piece(one.page, one.piece)
    except DamageError as error:
        return error.findings[0]
    return None


def verify_vault(
    vault: Path,
    options: VaultVerifyOptions = VaultVerifyOptions(),  # frozen
    *,
    password: bytes | None = None,
    progress: Progress = SILENT,
) -> Iterator[Finding | VerifySummary]:
    """Findings, and a summary as the last item.  Backups that are forgotten meanwhile are left out.

    Raises what `VaultReader.open` and `VaultReader.find` raise, ForgottenBackupError for `options.backup`, DiskReadError.
    """
    began = time.monotonic()
    reader = VaultReader.open(vault, password)
    whole = options.backup is None
    named = None if options.backup is None else reader.find(options.backup)
    reported: set[tuple[str, str, int | None]] = set()
    tally = Tally()

    def new(findings: tuple[Finding, ...]) -> Iterator[Finding]:
        for one in findings:
            key = str(one.code), str(one.path), one.offset
            if one.code is Code.BACKUP_INCOMPLETE or key not in reported:
                reported.add(key)
                tally.add(one)
                yield one

    thorough = not options.quick and options.sample is None
    yield from new(verify_store(vault).findings if whole and thorough else reader.findings)
    heads = [*reader.heads()] if named is None else [named]
    needed = VaultPieces(reader, heads)
    counts: dict[int, _Counts] = defaultdict(_Counts)
    pieces = DistinctPieces()
    for head in heads:
        with contextlib.suppress(ForgottenBackupError):
            sections, damaged = _contents_of_one(reader, head)
            for section in sections:
                _count(counts[head.id], section)
                pieces.add(*section[:2], needed.of(section))  # findings name the first backup that needs the page
            yield from new(tuple(damaged))
    checked = check_pieces(needed, pieces, options, progress)
    if named is not None:
        reader.check_remembered(named.id)
    if gone := {one.id for one in heads if reader.forgotten(one.id)}:
        needed.heads = [one for one in needed.heads if one.id not in gone]
        pieces = needed.once()
    yield from new(tuple(dict.fromkeys(checked.values())))
    for section in needed.sections() if checked else ():
        lost = [(one, finding) for one in needed.of(section) if (finding := checked.get(one.key)) is not None]
        if lost:
            yield from new((_loss_finding(reader, lost),))
    there = [one for backup, one in counts.items() if backup not in gone]
    yield VerifySummary(
        tally.status, tally.exit_status_name, sum(one.partitions for one in there), sum(one.segments for one in there),
        sum(one.records for one in there), pieces.bytes,
        tally.damage, tally.repairable, tally.notes, round(time.monotonic() - began, 6), thorough,
    )  # fmt: skip


def _count(counts: _Counts, section: ReadSection) -> None:
    content = section[2]
    counts.partitions += section[1].partition != BESIDE
    counts.segments += sum(file.name.endswith(SEGMENT_SUFFIX) for file in content.files)
    counts.records += sum(piece.records for piece in content.pieces)


def check_pieces(
    needed: VaultPieces,
    pieces: DistinctPieces,
    options: VaultVerifyOptions = VaultVerifyOptions(),  # frozen
    progress: Progress = SILENT,
) -> Checked:
    """Findings of the damaged ones among `pieces`, in their order; each is checked once."""
    reader = needed.reader
    chosen = np.full(len(pieces), not options.quick)
    draw = random.Random(secrets.randbits(63) if options.seed is None else options.seed)

    def missing(one: NeededPiece) -> Finding | None:
        return reader.missing(one.page)

    def damaged(one: NeededPiece) -> Finding | None:
        return _read_piece(reader, one)

    found: _Found = {}
    for one in pieces.in_order():
        if options.sample is not None and not options.quick:
            chosen[one.row] = draw.random() < options.sample
        if (finding := missing(one.needed)) is not None:
            found[one.needed.key] = _Damaged(one.row, one.order, one.needed.head.id, finding)
    _recheck_forgotten(needed, found, missing)
    for known in found.values():
        chosen[known.row] = False
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="verify") as workers:
        wanted = np.flatnonzero(chosen)
        progress.start("verifying", pieces.size_of(wanted))
        read: _Found = {}
        for start in range(0, len(wanted), _READ_AHEAD):
            part = [*pieces.at(wanted[start : start + _READ_AHEAD])]
            for one, finding in zip(part, workers.map(damaged, [each.needed for each in part]), strict=True):
                if finding is not None:
                    read[one.needed.key] = _Damaged(one.row, one.order, one.needed.head.id, finding)
                progress.advance(one.needed.piece.size)
    _recheck_forgotten(needed, read, damaged)
    found |= read
    return {key: one.finding for key, one in sorted(found.items(), key=lambda item: item[1].order)}


def _recheck_forgotten(needed: VaultPieces, found: _Found, look: Looks) -> None:
    """Check pieces again whose finding names a backup that has been forgotten meanwhile, as another backup needs them.

    Pieces that no remaining backup needs are removed from `found`.
    """
    reader = needed.reader
    left = {key: damaged for key, damaged in found.items() if reader.forgotten(damaged.backup)}
    for key in left:
        del found[key]
    for one in needed if left else ():
        if one.key in left:
            finding = look(one)
            if finding is None or not reader.forgotten(one.head.id):
                before = left.pop(one.key)
                if finding is not None:
                    found[one.key] = replace(before, backup=one.head.id, finding=finding)


def _damage_of(reader: VaultReader, namespace: Namespace, page: int) -> list[Finding]:
    try:
        reader.page(namespace, page)
    except DamageError as error:
        return list(error.findings)
    return []


def _loss_finding(reader: VaultReader, lost: list[tuple[NeededPiece, Finding]]) -> Finding:
    one, finding = lost[0]
    records = [each.piece for each, _ in lost if each.piece.records]
    what = f"{sum(each.piece.size for each, _ in lost)} bytes in {len(lost)} {'piece' if len(lost) == 1 else 'pieces'}"
    if records:
        first = min(piece.first_transaction_id for piece in records)
        last = max(piece.next_transaction_id for piece in records) - 1
        what += f", with {sum(piece.records for piece in records)} of the transactions {first} to {last}"
    return _incomplete(reader, one.head.name, one.section, what, finding)


def _incomplete(
    reader: VaultReader, name: str, section: BackedPartition | None, what: str, because: Finding
) -> Finding:
    number = None if section is None or section.partition == BESIDE else section.partition
    where = (
        "" if section is None else " what lies beside the partitions:" if number is None else f" partition {number}:"
    )
    said = f"backup {name}:{where} {what} cannot be read ({because.message})"
    return make_finding(
        Code.BACKUP_INCOMPLETE, reader.path, said, storage_directory=reader.path, partition=number
    )  # fmt: skip
