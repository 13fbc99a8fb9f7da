"""What a repair may do to a file: cut it, overwrite a range, replace or create it, remove it; and move a partition's directory.

An edit is a value; `engine.durable.quarantine.apply_edits` is the only one who carries it out, after what it takes away is
kept.  Edits of one file may be combined as long as they are edits in place (one `Cut`, any number of `Overwrite`, in ranges
that do not overlap); a `Replace` or `Remove` stands alone for its file.
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

    `known_from`: the manifest's checksums of the file cover the bytes from here on.  Where a large log loses its torn end, what
    stands in front of the cut tells well enough that it is still the same log, and is read at once.
    """

    path: PurePath
    size: int
    known_from: int = 0


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Write `data` at byte `offset`, which must not lie beyond the file's end; the end may move out, never in."""

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

    `parts` delivers the bytes; it is called once, while every file is still as it was.  `size` is how many bytes there will
    be, for the check of free space; None stands for as many as the old file has.
    """

    path: PurePath
    parts: Callable[[], Iterable[bytes]]
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Remove:
    """Take a file away (it moves to the quarantine)."""

    path: PurePath


@dataclass(frozen=True, slots=True)
class MoveDirectory:
    """Move a partition's directory, with everything in it, to where it is put aside, or back; nothing is there yet.

    A rename is the whole of it, so nothing has to be kept: the way back is the other rename.
    """

    path: Path
    target: Path


FileEdit = Cut | Overwrite | Replace | Remove
Edit = FileEdit | MoveDirectory


@dataclass(frozen=True, slots=True)
class FileEdits:
    """All edits of one file.  `path` as the caller wrote it, `name` relative to the storage directory."""

    path: Path
    name: str
    edits: tuple[FileEdit, ...]

    @property
    def in_place(self) -> bool:
        """Whether the file stays and only ranges of it change."""
        return isinstance(self.edits[0], Cut | Overwrite)

    @property
    def known_from(self) -> int:
        """Where the checksums of the file begin."""
        only = self.edits[0]
        return only.known_from if isinstance(only, Cut) and len(self.edits) == 1 else 0

    def ranges(self, size: int) -> list[tuple[int, int, bytes]]:
        """Per edit in place, in order: offset, length of what it takes away, the bytes it writes.

        `size` is the file's length before.  Raises ValueError for edits that do not fit it or one another.
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
    """Edits by file, files in the order of their first edit; moves of directories are not among them.

    Raises ValueError for a path outside the storage directory or in our own state directory, but for `state_files`, and for a
    combination that `edits` of one file do not allow.
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
