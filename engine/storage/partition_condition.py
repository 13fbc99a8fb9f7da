"""The condition of a partition: whether it can be written, and if not, why, and what ends that.

============  ==============================  ================================  ====================  ========================
condition     when                            reads give                        writes give           what ends it
============  ==============================  ================================  ====================  ========================
WRITABLE      it was sound when it was        every acknowledged record         what they were asked  WRITE_FAILED
              opened, and was mended                                            for
WRITE_FAILED  a sync failed, or a write that  every acknowledged record         `error`               opening it again
              could not be taken back
UNMENDED      no damage was found when it     every record; an error for each   `error`               opening it again, when
              was opened, and the disk or a   where it could not be examined,                         disk and permission
              permission kept it from being   or a sync failed                                        let it be mended
              made durable or mended
DAMAGED       it was damaged, or could not    each record that can be           `Partition-           a repair, or what could
              be read, when it was opened     verified; an error for what is    QuarantinedError`     not be read being there
                                              damaged or lost                                         again; and opening it
                                                                                                      again
============  ==============================  ================================  ====================  ========================

UNMENDED and DAMAGED begin only when a partition is opened, which is *quarantined* then: nothing changes its files.  WRITE_FAILED
begins only in a WRITABLE one.

A partition of any condition can be *closed*: its reads and writes give RefusedError, and nothing ends that.  It remembers its
condition, because whoever opens it again, or takes it from its directory, has to know what its files may show.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto

from waltzctl.engine.errors import DiskWriteError, SyncFailedError


class ConditionKind(Enum):
    """The rows of the table above."""

    WRITABLE = auto()
    WRITE_FAILED = auto()
    UNMENDED = auto()
    DAMAGED = auto()


@dataclass(frozen=True, slots=True)
class PartitionCondition:
    """The condition of a partition; made by `WRITABLE`, `DAMAGED` and `unmended`, and changed by `after` and `at_rest`.

    `error`: what a write is refused with in WRITE_FAILED and UNMENDED; None in the others.  `closed`: whether it was closed.
    """

    kind: ConditionKind
    error: DiskWriteError | None = None
    closed: bool = False

    @property
    def writable(self) -> bool:
        """Whether neither damage nor the disk has it refuse writes; a closed partition keeps the answer that it had."""
        return self.kind is ConditionKind.WRITABLE

    @property
    def damaged(self) -> bool:
        """Whether damage is why writes are refused."""
        return self.kind is ConditionKind.DAMAGED

    @property
    def quarantined(self) -> bool:
        """Whether it was opened to be read only: nothing was mended, and nothing has been written since."""
        return self.kind in (ConditionKind.UNMENDED, ConditionKind.DAMAGED)

    @property
    def shows_unacknowledged(self) -> bool:
        """Whether its files may show records that it was never able to acknowledge: a write of its own failed."""
        return self.kind is ConditionKind.WRITE_FAILED

    @property
    def unsynced_when_opened(self) -> bool:
        """Whether a sync failed as it was opened: the page cache may show what the disk does not hold, marked clean."""
        return self.kind is ConditionKind.UNMENDED and isinstance(self.error, SyncFailedError)

    def after(self, error: DiskWriteError) -> PartitionCondition:
        """The condition after a write of this one failed with `error`."""
        return replace(self, kind=ConditionKind.WRITE_FAILED, error=error)

    def at_rest(self) -> PartitionCondition:
        """This condition of a partition that was closed."""
        return replace(self, closed=True)


WRITABLE = PartitionCondition(ConditionKind.WRITABLE)
DAMAGED = PartitionCondition(ConditionKind.DAMAGED)


def unmended(error: DiskWriteError) -> PartitionCondition:
    """The condition of a sound partition that could not be mended, or not made durable to be examined, for `error`."""
    return PartitionCondition(ConditionKind.UNMENDED, error)
