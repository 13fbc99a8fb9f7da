"""Transactions that are lost after a partition's last record, and that evidence proves to have been written: one row in a stream.

The offset then advances past them, to an anchor that names no record (`offsets.behind_loss`).  So no later batch reports them
again, and records that are written later follow.  Everything here is a function of the partition's listing.
"""

from __future__ import annotations

from dataclasses import dataclass

from waltzctl.engine.findings import Finding, Where, loss_finding
from waltzctl.engine.log.evidence import Evidence, evidence
from waltzctl.engine.log.view import PartitionView
from waltzctl.engine.losses import BelowMark, BelowProof, DataGone, DirectoryGone, Loss


@dataclass(frozen=True, slots=True)
class LostRange:
    """A part of a batch with nothing to read: the row of a finding."""

    finding: Finding

    @property
    def bytes(self) -> int:
        """There is nothing to read."""
        return 0


@dataclass(frozen=True, slots=True)
class Promised:
    """The evidence of a partition's transactions other than its records."""

    view: PartitionView
    there: bool
    """Whether the partition has a directory."""
    mark: int | None
    """Its local low-water mark; None: unknown."""
    session: int | None

    @property
    def proven(self) -> Evidence:
        """What the files and the mark prove to have been written."""
        return evidence(self.view, self.mark)

    def lost(self, first: int, stop: int, where: Where) -> LostRange:
        """The row for the lost ids from `first` to `stop` - 1."""
        loss = self._loss(first, stop)
        return LostRange(loss_finding(loss, where, elsewhere=[(stop, max(stop, loss.ids[-1][1]))]))

    def _loss(self, first: int, stop: int) -> Loss:
        proven, segments = self.proven, self.view.data_segments
        segment = segments[-1].first_transaction_id if segments else None
        if not self.there and first == 0:
            return DirectoryGone(stop - 1, self.session)
        if self.mark is None or self.mark < stop - 1:
            index = next(
                (one.index for one in self.view.segments if one.first_transaction_id == proven.index_without_data), None
            )
            if index is not None and proven.without_data >= stop and proven.index_without_data is not None:
                entries = proven.without_data - proven.index_without_data
                return DataGone(proven.index_without_data, entries, index.size, ((first, stop),))
            if proven.files >= stop:
                by_index = proven.with_data >= stop > proven.names and segment == proven.index_with_data
                return BelowProof(first, stop, segment, by_index)
        return BelowMark(first, stop - 1 if self.mark is None else max(self.mark, stop - 1), segment)
