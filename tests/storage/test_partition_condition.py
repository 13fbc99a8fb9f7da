"""What follows from each condition of a partition."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from waltzctl.engine.errors import DiskWriteError, SyncFailedError
from waltzctl.engine.storage.partition_condition import DAMAGED, WRITABLE, ConditionKind, PartitionCondition, unmended

BROKEN = DiskWriteError(Path("/d/0"), None, OSError(errno.EIO, "no"), doing="write")
UNSYNCED = SyncFailedError(Path("/d/0"), None, OSError(errno.EIO, "no"), doing="sync")


@pytest.mark.parametrize(
    ("condition", "answers"),
    [
        # writable, quarantined, damaged, shows unacknowledged, unsynced when opened
        (WRITABLE, (True, False, False, False, False)),
        (WRITABLE.after(BROKEN), (False, False, False, True, False)),
        (WRITABLE.after(UNSYNCED), (False, False, False, True, False)),
        (unmended(BROKEN), (False, True, False, False, False)),
        (unmended(UNSYNCED), (False, True, False, False, True)),
        (DAMAGED, (False, True, True, False, False)),
    ],
)
def test_what_follows_from_a_condition(condition: PartitionCondition, answers: tuple[bool, ...]) -> None:
    for one in (condition, condition.at_rest()):
        found = one.writable, one.quarantined, one.damaged, one.shows_unacknowledged, one.unsynced_when_opened
        assert found == answers
        assert (one.error is None) == (one.kind in (ConditionKind.WRITABLE, ConditionKind.DAMAGED))
    assert (condition.closed, condition.at_rest().closed) == (False, True)


def test_the_latest_error_is_the_one_that_is_told() -> None:
    assert WRITABLE.after(BROKEN).after(UNSYNCED).error is UNSYNCED
    assert WRITABLE.after(BROKEN).at_rest().error is BROKEN
