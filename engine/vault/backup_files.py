"""A backup as a directory of files that can be read in ranges, without restoring them.

Names are paths relative to the storage directory, with slashes.  The section of a partition is read on first access to that
partition.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from waltzctl.engine.durable.file_status import FileNumbers
from waltzctl.engine.errors import DamageError
from waltzctl.engine.scan.byte_source import ByteSource
from waltzctl.engine.scan.columns import Damage, Int64Column
from waltzctl.engine.scan.scanner import summarise_records
from waltzctl.engine.vault.backed_control import with_only
from waltzctl.engine.vault.vault_reader import VaultReader
from waltzctl.formats.control import CONTROL_FILE_NAME
from waltzctl.formats.segment import ENTRY_SIZE, HEADER_SIZE, encode_offsets, parse_name
from waltzctl.formats.vault import (
    BackedFile,
    BackedPartition,
    BackupHead,
    DerivedIndex,
    Extent,
    Literal,
    Section,
    Slice,
)

_CACHED_INDEXES = 8


class BackedSource:
    """A file of a backup as a `ByteSource`.  Thread-safe."""

    def __init__(self, files: BackupFiles, name: str, label: str) -> None:
        """Raises FileNotFoundError."""
        self.name = label
        self._files = files
        self._partition, self._file = files.find(name)

    def size(self) -> int:
        """Size in bytes; it never changes."""
        return self._file.size

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """See `ByteSource.read_into`.  Raises DamageError as well."""
        return self._files.read_into(self._partition, self._file, offset, buffer)

    def close(self) -> None:
        """Does nothing: there is nothing to release."""

    def __enter__(self) -> BackedSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BackupFiles:
    """The files of one backup."""

    def __init__(self, reader: VaultReader, head: BackupHead) -> None:
        self.reader = reader
        self.head = head
        self._partitions = {str(one.partition): one for one in head.partitions}
        self._starts: dict[int, Int64Column] = {}
        self._indexes: OrderedDict[str, bytes] = OrderedDict()
        self._trees: dict[int, tuple[dict[str, BackedFile], dict[str, list[str]]]] = {}
        self._lock = threading.RLock()

    # ---- names -------------------------------------------------------------------------------------------------------

    def _owner(self, name: str) -> BackedPartition:
        """The partition, or the storage directory, whose section contains a name."""
        return self._partitions.get(name.partition("/")[0], self.head.storage)

    def section(self, one: BackedPartition) -> Section:
        """The section of a partition.  Raises DamageError, DiskReadError."""
        return self.reader.section(self.head, one)

    def _tree(self, one: BackedPartition) -> tuple[dict[str, BackedFile], dict[str, list[str]]]:
        """The files of a section by name, and the names in each of its directories."""
        with self._lock:
            if (known := self._trees.get(one.partition)) is not None:
                return known
            section = self.section(one)
            files = {file.name: file for file in section.files}
            directories: dict[str, list[str]] = {name: [] for name in section.directories}
            for name in (*files, *section.directories):
                above, _, own = name.rpartition("/")
                directories.setdefault(above, []).append(own)
            self._trees[one.partition] = files, directories
            return files, directories

    def find(self, name: str) -> tuple[BackedPartition, BackedFile]:
        """A file and its section.  Raises FileNotFoundError, DamageError, DiskReadError."""
        owner = self._owner(name)
        file = self._tree(owner)[0].get(name)
        if file is None:
            raise FileNotFoundError(name)
        return owner, file

    def is_directory(self, name: str) -> bool:
        """Whether a name is that of a directory; the storage directory's name is empty.  Raises DamageError, DiskReadError."""
        return not name or name in self._partitions or name in self._tree(self._owner(name))[1]

    def names(self, name: str) -> list[str]:
        """The names in a directory, sorted.  Raises FileNotFoundError, NotADirectoryError, DamageError, DiskReadError."""
        if not self.is_directory(name):
            if name in self._tree(self._owner(name))[0]:
                raise NotADirectoryError(name)
            raise FileNotFoundError(name)
        found = self._tree(self._owner(name))[1].get(name, [])
        return sorted({*found, *self._partitions} if not name else found)

    def numbers(self, name: str) -> FileNumbers | None:
        """Metadata of a file; None if it does not exist.  Raises DamageError, DiskReadError."""
        file = self._tree(self._owner(name))[0].get(name)
        return None if file is None else FileNumbers(file.size, file.modified_ns, file.inode)

    def sections(self) -> Iterator[tuple[BackedPartition, Section]]:
        """All sections.  Raises DamageError, DiskReadError."""
        for one in self.head.sections:
            yield one, self.section(one)

    # ---- content -----------------------------------------------------------------------------------------------------

    def read_into(self, partition: BackedPartition, file: BackedFile, offset: int, buffer: memoryview) -> int:
        """Fill `buffer` from `offset`; returns how many bytes, fewer only at the end of the file.

        Raises DamageError, DiskReadError.
        """
        if self.head.partial and file.name == CONTROL_FILE_NAME:
            part = self._control[offset : offset + len(buffer)]
            buffer[: len(part)] = part
            return len(part)
        return self._read_extents(partition, file, offset, buffer)

    @cached_property
    def _control(self) -> bytes:
        """The control file of a partial backup.  Raises FileNotFoundError, DamageError, DiskReadError.

        Partitions that could not be read were not left out on purpose: they stay assigned, and lack.
        """
        partition, file = self.find(CONTROL_FILE_NAME)
        content = bytearray(file.size)
        self._read_extents(partition, file, 0, memoryview(content))
        return with_only(bytes(content), {*(one.partition for one in self.head.partitions), *self.head.unread})

    def _read_extents(self, partition: BackedPartition, file: BackedFile, offset: int, buffer: memoryview) -> int:
        wanted = max(0, min(len(buffer), file.size - offset))
        done = begins = 0
        for extent in file.extents:
            inside = offset + done - begins
            if done < wanted and 0 <= inside < extent.size:
                size = min(wanted - done, extent.size - inside)
                self._read_extent(partition, extent, inside, buffer[done : done + size])
                done += size
            begins += extent.size
        return done

    def _read_extent(self, partition: BackedPartition, extent: Extent, offset: int, buffer: memoryview) -> None:
        match extent:
            case Literal(data):
                buffer[:] = data[offset : offset + len(buffer)]
            case Slice():
                self._read_slice(partition, extent, offset, buffer)
            case DerivedIndex(segment, size):
                buffer[:] = self._entries(segment, size)[offset : offset + len(buffer)]

    def _read_slice(self, partition: BackedPartition, one: Slice, offset: int, buffer: memoryview) -> None:
        pieces = self.section(partition).pieces
        starts = self._piece_starts(partition)
        place = int(starts[one.piece]) + one.offset + offset
        number = int(np.searchsorted(starts, place, side="right")) - 1
        done = 0
        while done < len(buffer):
            inside = place + done - int(starts[number])
            content = self.reader.piece(self.head, partition, number, pieces[number])
            part = memoryview(content)[inside : inside + len(buffer) - done]
            buffer[done : done + len(part)] = part
            done += len(part)
            number += 1

    def _piece_starts(self, partition: BackedPartition) -> Int64Column:
        with self._lock:
            known = self._starts.get(partition.partition)
            if known is None:
                sizes = [one.size for one in self.section(partition).pieces]
                known = self._starts[partition.partition] = np.cumsum([0, *sizes], dtype=np.int64)
            return known

    def _entries(self, segment: str, size: int) -> bytes:
        """The entries of an index: the offsets of the records of its data file."""
        with self._lock:
            if (known := self._indexes.get(segment)) is not None:
                self._indexes.move_to_end(segment)
                return known
        entries = derived_entries(BackedSource(self, segment, segment), segment, size)
        with self._lock:
            self._indexes[segment] = entries
            while len(self._indexes) > _CACHED_INDEXES:
                self._indexes.popitem(last=False)
        return entries


def derived_entries(source: ByteSource, segment: str, size: int) -> bytes:
    """The first `size` bytes of the entries of an index: the offsets of the records in its data file `source`, named `segment`.

    Raises DamageError if there are fewer records, and as `source` does.
    """
    offsets: list[Int64Column] = []
    count, named = 0, parse_name(segment.rpartition("/")[2])
    assert named is not None
    for one in summarise_records(source, first_transaction_id=named[0], start=HEADER_SIZE):
        if isinstance(one, Damage) or count * ENTRY_SIZE >= size:
            break
        offsets.append(one.offset.copy())
        count += len(one)
    entries = encode_offsets(np.concatenate(offsets) if offsets else np.zeros(0, np.int64))[:size]
    if len(entries) != size:
        raise DamageError(f"{segment}: it has {count} records, and its index was {size // ENTRY_SIZE} entries long")
    return entries
