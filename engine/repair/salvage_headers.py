"""Headers that salvage found, of whichever kind of file."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from uuid import UUID

from waltzctl.formats.segment import HEADER_SIZE


class HeaderKind(enum.StrEnum):
    """What a header stands in front of."""

    SEGMENT = "segment"
    """Records: a run begins right behind it, or the id of its first record stands there."""
    INDEX = "index"
    CONTROL = "control"
    ALONE = "alone"
    """Nothing that would confirm it."""


@dataclass(frozen=True, slots=True)
class FoundHeader:
    """A header.  `number` is the partition, or the number of partitions in a control file's header.

    Both kinds of header have their number in the same place.
    """

    source: int
    offset: int
    kind: HeaderKind
    cluster_key: UUID
    number: int
    first: int

    @property
    def end(self) -> int:
        """Offset behind the header."""
        return self.offset + HEADER_SIZE
