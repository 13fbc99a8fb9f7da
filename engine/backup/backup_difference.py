"""Differences between two backups, partition by partition.  Pieces are compared by digest; their pages are not read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from waltzctl.engine.vault.vault_reader import VaultReader
from waltzctl.formats.vault import BESIDE, BackedPartition, BackupHead, Section


class SectionDifference(StrEnum):
    """How a partition, or the storage directory's own section, differs."""

    SAME = "same"
    CHANGED = "changed"
    ADDED = "added"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class PartitionDifference:
    """The difference of a partition.

    - `partition`: None for the files outside of the partitions.
    - `first`, `second`: first and last transaction id in the first and the second backup; None without records.
    - `bytes_added`, `bytes_removed`: of pieces that only the second, or only the first, backup has.
    - `files`: names of files that only one backup has, or that differ in size or content.
    """

    partition: int | None
    difference: SectionDifference
    first: tuple[int, int] | None
    second: tuple[int, int] | None
    bytes_added: int
    bytes_removed: int
    files: tuple[str, ...]


def differences(reader: VaultReader, first: BackupHead, second: BackupHead) -> Iterator[PartitionDifference]:
    """Every partition of either backup.  Raises DamageError, DiskReadError."""
    ours, theirs = ({one.partition: one for one in head.sections} for head in (first, second))
    for number in sorted({*ours, *theirs}):
        one, other = ours.get(number), theirs.get(number)
        old = Section((), (), ()) if one is None else reader.section(first, one)
        new = Section((), (), ()) if other is None else reader.section(second, other)
        before, after = ({piece.digest: piece.size for piece in section.pieces} for section in (old, new))
        added = sum(size for digest, size in after.items() if digest not in before)
        removed = sum(size for digest, size in before.items() if digest not in after)
        files = tuple(sorted(_changed_files(old, new)))
        same = SectionDifference.CHANGED if added or removed or files else SectionDifference.SAME
        kind = SectionDifference.ADDED if one is None else SectionDifference.REMOVED if other is None else same
        yield PartitionDifference(
            None if number == BESIDE else number, kind, _ids(one), _ids(other), added, removed, files
        )  # fmt: skip


def _ids(one: BackedPartition | None) -> tuple[int, int] | None:
    if one is None or one.first_transaction_id is None or one.last_transaction_id is None:
        return None
    return one.first_transaction_id, one.last_transaction_id


def _changed_files(old: Section, new: Section) -> Iterator[str]:
    before, after = _contents(old), _contents(new)
    seen, numbers = (
        {one.name: (one.size, one.modified_ns, one.inode) for one in section.files} for section in (old, new)
    )
    for name in {*before, *after}:
        if before.get(name) != after.get(name) and not (name in seen and seen[name] == numbers.get(name)):
            yield name


def _contents(section: Section) -> dict[str, object]:
    """A comparable value for the content of each file.

    It depends on how the bytes are cut into pieces: equal bytes cut differently compare as different.  The caller therefore also
    compares size, modification time and inode.
    """
    ends = section.pieces
    found: dict[str, object] = {}
    for file in section.files:
        parts: list[object] = []
        for one in file.extents:
            piece = getattr(one, "piece", None)
            if piece is None:
                parts.append(one)
                continue
            left, number, digests = one.size + getattr(one, "offset", 0), piece, []
            while left > 0:
                digests.append(ends[number].digest)
                left -= ends[number].size
                number += 1
            parts.append((tuple(digests), getattr(one, "offset", 0), one.size))
        found[file.name] = (file.size, tuple(parts))
    return found
