"""Whether everything that backups need is in the vault, and is what was put there.

Read are the page store's log, every page that a backup needs, once however many need it, and what is in it: decrypted,
decompressed, compared with its digest. A damaged page is one finding, and one more says of each partition of each backup
what it costs there.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from waltzctl.engine.backup.backup_creation import WORKERS
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
    Piece,
    Section,
)


@dataclass(frozen=True, slots=True)
class VaultVerifyOptions:
    """`backup`: only this one.  `quick`: are pages there, without reading them.  `sample`: the share of pages that is read.

    `seed` chooses which pages those are; None: others each time.
    """

    backup: str | None = None
    quick: bool = False
    sample: float | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class NeededPiece:
    """A piece that a backup needs, and where its bytes lie: file, offset and size in the page store, None for nowhere."""

    head: BackupHead
    section: BackedPartition
    number: int
    piece: Piece
    place: tuple[int, int, int] | None

    @property
    def page(self) -> int:
        """Its page in `Namespace.DATA`."""
        return self.head.first_page + self.section.first_piece + self.number

    @property
    def key(self) -> PieceKey:
        """The same for all that are one."""
        return self.place, self.piece.digest


@dataclass(frozen=True, slots=True)
class VaultContents:
    """What can be read of a vault's backups: sections, and what of heads and sections is damaged in either copy."""

    sections: tuple[tuple[BackupHead, BackedPartition, Section], ...]
    findings: tuple[Finding, ...]


PieceKey = tuple[tuple[int, int, int] | None, bytes]
"""Where a piece lies, and its digest: what several backups need in one place is one."""
Checked = dict[PieceKey, Finding | None]
"""What is wrong with each place and what should stand there, None for nothing."""


def contents_of(reader: VaultReader, heads: Iterable[BackupHead | UnreadableBackup]) -> VaultContents:
    """Heads and sections, both copies of each.  What is forgotten meanwhile is left out."""
    sections: list[tuple[BackupHead, BackedPartition, Section]] = []
    findings: list[Finding] = []
    for head in heads:
        with contextlib.suppress(ForgottenBackupError):
            read, damaged = _contents_of_one(reader, head)
            if damaged:
                reader.check_remembered(head.id)
            sections += read
            findings += damaged
    return VaultContents(tuple(sections), tuple(findings))


def _contents_of_one(
    reader: VaultReader, head: BackupHead | UnreadableBackup
) -> tuple[list[tuple[BackupHead, BackedPartition, Section]], list[Finding]]:
    if isinstance(head, UnreadableBackup):
        return [], [head.finding, _incomplete(reader, f"{head.id:016x}", None, "its head", head.finding)]
    sections: list[tuple[BackupHead, BackedPartition, Section]] = []
    findings: list[Finding] = []
    for namespace in (Namespace.BACKUPS, Namespace.BACKUP_COPIES):
        findings += _damage_of(reader, namespace, head.id)
    for one in head.sections:
        for copy in range(SECTION_COPIES):
            findings += _damage_of(reader, Namespace.DATA, head.first_page + one.section + copy)
        try:
            sections.append((head, one, reader.section(head, one)))
        except DamageError as error:
            findings.append(_incomplete(reader, head.name, one, "all of it", error.findings[0]))
    return sections, findings


def needed_pieces(reader: VaultReader, contents: VaultContents) -> Iterator[NeededPiece]:
    """Every piece of every section."""
    for head, one, section in contents.sections:
        for number, piece in enumerate(section.pieces):
            entry = reader.entry(Namespace.DATA, head.first_page + one.first_piece + number)
            place = None if entry is None else (entry.file_id, entry.offset, entry.size)
            yield NeededPiece(head, one, number, piece, place)


def _check(
    reader: VaultReader, needing: Sequence[NeededPiece], look: Callable[[NeededPiece], Finding | None]
) -> Finding | None:
    """What is wrong with a piece, under the name of the first backup that needs it and was not forgotten meanwhile."""
    for one in needing:
        finding = look(one)
        if finding is None or not reader.forgotten(one.head.id):
            return finding
    return None


def _read_piece(reader: VaultReader, one: NeededPiece) -> Finding | None:
    """Read a piece; what is wrong with it.  Raises DiskReadError."""
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
    """Findings, and a summary as the last item.  What is forgotten meanwhile is left out.

    Raises what `VaultReader.open` and `VaultReader.find` raise, ForgottenBackupError for the backup that is named, DiskReadError.
    """
    began = time.monotonic()
    reader = VaultReader.open(vault, password)
    whole = options.backup is None
    named = None if options.backup is None else reader.find(options.backup)
    told: set[tuple[str, str, int | None]] = set()
    tally = Tally()

    def new(findings: tuple[Finding, ...]) -> Iterator[Finding]:
        for one in findings:
            key = str(one.code), str(one.path), one.offset
            if one.code is Code.BACKUP_INCOMPLETE or key not in told:
                told.add(key)
                tally.add(one)
                yield one

    thorough = not options.quick and options.sample is None
    yield from new(verify_store(vault).findings if whole and thorough else reader.findings)
    heads = [*reader.heads()] if named is None else [named]
    contents = contents_of(reader, heads)
    yield from new(contents.findings)
    pieces = list(needed_pieces(reader, contents))
    checked = check_pieces(reader, pieces, options, progress)
    if named is not None:
        reader.check_remembered(named.id)
    gone = {one.id for one in heads if reader.forgotten(one.id)}
    pieces = [one for one in pieces if one.head.id not in gone]
    sections = [one for one in contents.sections if one[0].id not in gone]
    yield from new(tuple(dict.fromkeys(one for one in checked.values() if one is not None)))
    costs: dict[tuple[int, int], list[tuple[NeededPiece, Finding]]] = defaultdict(list)
    for one in pieces:
        finding = checked.get(one.key)
        if finding is not None:
            costs[one.head.id, one.section.partition].append((one, finding))
    yield from new(tuple(_costs(reader, lost) for lost in costs.values()))
    files = [file.name for _, _, section in sections for file in section.files]
    yield VerifySummary(
        tally.status, tally.exit_status_name, len(sections), sum(name.endswith(SEGMENT_SUFFIX) for name in files),
        sum(one.piece.records for one in pieces), sum(size for _, size in {(one.place, one.piece.size) for one in pieces}),
        tally.damage, tally.repairable, tally.notes, round(time.monotonic() - began, 6), thorough,
    )  # fmt: skip


def check_pieces(
    reader: VaultReader,
    pieces: list[NeededPiece],
    options: VaultVerifyOptions = VaultVerifyOptions(),  # frozen
    progress: Progress = SILENT,
) -> Checked:
    """What is wrong with each place and what should stand there, looked at once."""
    unique: dict[PieceKey, list[NeededPiece]] = defaultdict(list)
    for one in pieces:
        unique[one.key].append(one)  # a page goes by the name that it was written under
    chosen = dict(unique)
    if options.quick:
        chosen = {}
    elif options.sample is not None:
        draw = random.Random(secrets.randbits(63) if options.seed is None else options.seed)
        chosen = {key: needing for key, needing in unique.items() if draw.random() < options.sample}
    found: Checked = {
        key: _check(reader, needing, lambda one: reader.missing(one.page)) for key, needing in unique.items()
    }
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="verify") as workers:
        wanted = [(key, needing) for key, needing in chosen.items() if found[key] is None]
        wanted.sort(key=lambda one: one[0][0] or (0, 0, 0))
        progress.start("verifying", sum(needing[0].piece.size for _, needing in wanted))

        def check(needing: Sequence[NeededPiece]) -> Finding | None:
            return _check(reader, needing, lambda one: _read_piece(reader, one))

        for (key, needing), finding in zip(wanted, workers.map(check, [one for _, one in wanted]), strict=True):
            found[key] = finding
            progress.advance(needing[0].piece.size)
    return found


def _damage_of(reader: VaultReader, namespace: Namespace, page: int) -> list[Finding]:
    try:
        reader.page(namespace, page)
    except DamageError as error:
        return list(error.findings)
    return []


def _costs(reader: VaultReader, lost: list[tuple[NeededPiece, Finding]]) -> Finding:
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
