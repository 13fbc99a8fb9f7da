"""Section plans: the files of a partition's directory, or of the storage directory itself, and the pieces they consist of.

A plan states for each piece where its bytes are in the source, or which backup of the same source already has it.
`section_planner` makes plans of directories, `node_layout` makes those of a node that is read through its port.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from waltzctl.engine.errors import UnavailableError
from waltzctl.formats.vault import BackedFile, Piece, Section


class SourceChangedError(UnavailableError):
    """The source changed while it was read: records that were planned are no longer there."""


SMALL = 1024
"""Size in bytes up to which a file that is no segment is stored in the section itself."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """A range of bytes of a file of the source."""

    path: PurePath
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class PlannedPiece:
    """A piece and where its content comes from: `ranges` of the source, or `page` of an earlier backup that has it as `kept`.

    `content`: the bytes, if they were read already.
    """

    size: int
    first_transaction_id: int = -1
    records: int = 0
    ranges: tuple[FileRange, ...] = ()
    kept: Piece | None = None
    page: int | None = None
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class PreviousSection:
    """The section of the same directory in the last backup of the same source.

    `first_page`: page of its first piece; `created_ms`: when that backup began.
    """

    section: Section
    first_page: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class SectionPlan:
    """Files and pieces of a section.

    `first` and `last`: transaction ids, None without records; `damaged`: number of places in segments that are no intact records.
    """

    directories: tuple[str, ...]
    files: tuple[BackedFile, ...]
    pieces: tuple[PlannedPiece, ...]
    first: int | None = None
    last: int | None = None
    damaged: int = 0

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(one.size for one in self.files)
