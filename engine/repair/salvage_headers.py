"""Headers of segments, indexes and control files that salvage found."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from uuid import UUID

from waltzctl.formats.segment import HEADER_SIZE


class HeaderKind(enum.StrEnum):
    """What follows a header."""

    SEGMENT = "segment"
    """Records: a run begins directly after it, or a record header with its first id does."""
    INDEX = "index"
    CONTROL = "control"
    ALONE = "alone"
    """Nothing that confirms it."""


@dataclass(frozen=True, slots=True)
class FoundHeader:
    """A header at byte `offset` of source number `source`; `first`: its first transaction id.

    `number`: the partition; in a control file's header, which has it at the same offset, the number of partitions.
    """

    source: int
    offset: int
    kind: HeaderKind
    cluster_key: UUID
    number: int
    first: int

    @property
    def end(self) -> int:
        """Byte offset of the end of the header."""
        return self.offset + HEADER_SIZE
