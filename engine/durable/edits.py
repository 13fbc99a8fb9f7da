"""The changes that a repair may make: cut, overwrite, replace, create or remove a file; and move a partition's directory.

An edit is a value.  Only `engine.durable.quarantine.apply_edits` carries edits out, after the bytes that they remove are kept.
*Edits in place* of one file may be combined: at most one `Cut` and any number of `Overwrite`, in ranges that do not overlap.
A `Replace` or `Remove` is the only edit of its file.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from waltzctl.engine.durable.manifest import check_name


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut a file to `size` bytes, which is its final size; it must not be shorter before.

    `known_from`: byte offset from which the manifest's checksums cover the file.  For a torn tail of a large data file, a short
    range in front of the cut identifies the file well enough, and does not take long to read.
    """

    path: PurePath
    size: int
    known_from: int = 0


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Write `data` at byte `offset`, which must not lie beyond the file's end; the file may become longer."""

    path: PurePath
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        """Offset after the last byte written."""
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class Replace:
    """Put a new file in a file's place, or create it, with its directory where that is missing.

    `parts` returns the bytes in pieces; it is called once, before any file is changed.  `size`: number of bytes, for the check of
    free space; None for as many as the old file has.
    """

    path: PurePath
    parts: Callable[[], Iterable[bytes]]
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a file, by moving it into the quarantine."""

    path: PurePath


@dataclass(frozen=True, slots=True)
class MoveDirectory:
    """Put a partition's directory aside, or move it back, by one rename; nothing may exist at `target`.

    No copies are kept, because the opposite rename undoes the move.
    """

    path: Path
    target: Path


FileEdit = Cut | Overwrite | Replace | Remove
Edit = FileEdit | MoveDirectory


@dataclass(frozen=True, slots=True)
class FileEdits:
    """All edits of one file.  `path`: as the caller gave it.  `name`: relative to the storage directory, with slashes."""

    path: Path
    name: str
    edits: tuple[FileEdit, ...]

    @property
    def in_place(self) -> bool:
        """Whether the file stays and only ranges of it change."""
        return isinstance(self.edits[0], Cut | Overwrite)

    @property
    def known_from(self) -> int:
        """Byte offset from which the manifest's checksums cover the file."""
        only = self.edits[0]
        return only.known_from if isinstance(only, Cut) and len(self.edits) == 1 else 0

    def ranges(self, size: int) -> list[tuple[int, int, bytes]]:
        """For each edit in place, in order: byte offset, number of bytes that it removes, the bytes that it writes.

        `size`: length of the file before.  Raises ValueError for edits outside the file, or that overlap.
        """
        cut = next((edit.size for edit in self.edits if isinstance(edit, Cut)), None)
        if cut is not None and not 0 <= cut <= size:
            raise ValueError(f"{self.path}: cannot cut {size} bytes to {cut}")
        ranges: list[tuple[int, int, bytes]] = []
        for edit in self.edits:
            if isinstance(edit, Cut):
                ranges.append((edit.size, size - edit.size, b""))
            elif isinstance(edit, Overwrite):
                if not 0 <= edit.offset <= size or (cut is not None and edit.end > cut):
                    raise ValueError(f"{self.path}: {len(edit.data)} bytes at {edit.offset} lie outside the file")
                ranges.append((edit.offset, max(0, min(edit.end, size) - edit.offset), edit.data))
        taken = sorted((offset, offset + max(length, len(data))) for offset, length, data in ranges)
        if any(end > start for (_, end), (start, _) in itertools.pairwise(taken)):
            raise ValueError(f"{self.path}: edits overlap")
        return ranges


def group_edits(storage: PurePath, edits: Sequence[Edit], state_files: Collection[str]) -> tuple[FileEdits, ...]:
    """The edits grouped by file, files in the order of their first edit; moves of directories are left out.

    Raises ValueError for a path outside the storage directory, for one in ``.waltzctl`` that is not among `state_files`, and for
    edits of one file that cannot be combined.
    """
    grouped: dict[str, list[FileEdit]] = {}
    moved = [edit.path for edit in edits if isinstance(edit, MoveDirectory)]
    for edit in edits:
        if isinstance(edit, MoveDirectory):
            continue
        if any(edit.path.is_relative_to(path) for path in moved):
            raise ValueError(f"{edit.path}: lies in a directory that is moved")
        name = edit.path.relative_to(storage).as_posix()
        check_name(name, state_files)
        grouped.setdefault(name, []).append(edit)
    for name, found in grouped.items():
        whole = [edit for edit in found if isinstance(edit, Replace | Remove)]
        cuts = [edit for edit in found if isinstance(edit, Cut)]
        if (whole and len(found) > 1) or len(cuts) > 1:
            raise ValueError(f"{name}: these edits cannot be combined")
    return tuple(FileEdits(Path(found[0].path), name, tuple(found)) for name, found in grouped.items())
