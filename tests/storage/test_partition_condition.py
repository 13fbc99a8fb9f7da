"""What follows from each condition of a partition."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.blocks import encoded_block
from tests.builders import build_directory, make_records
from tests.storage.support import opened
from waltzctl.engine.errors import DiskWriteError, RefusedError, SyncFailedError
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


@pytest.mark.parametrize("write", ["append", "mark", "two halves"])
def test_a_moment_without_memory_hides_no_failed_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    """What the disk did not take is not taken for durable because the condition that says so cannot be made."""
    build_directory(tmp_path, {0: 5})

    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    def unsynced(_: int) -> None:
        raise OSError(errno.EIO, "no")

    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        partition.append(make_records(1, first=5))
        with monkeypatch.context() as patch:
            patch.setattr(PartitionCondition, "__init__", no_memory)
            if write == "two halves":
                written = partition.write_blocks([encoded_block(make_records(3, first=6), 1)])
                assert written is not None
                with pytest.raises((SyncFailedError, MemoryError)):
                    partition.finish_append(written, UNSYNCED)
            else:
                patch.setattr(os, "fdatasync", unsynced)
                ways = {
                    "append": lambda: partition.append(make_records(3, first=6)),
                    "mark": lambda: partition.set_low_water_mark(9, 99),
                }
                with pytest.raises((SyncFailedError, MemoryError)):
                    ways[write]()
        with pytest.raises(SyncFailedError):
            partition.append(make_records(3, first=6))
        assert partition.condition.kind is ConditionKind.WRITE_FAILED


def test_a_partition_is_closed_also_without_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object, **__: object) -> None:
        raise MemoryError

    build_directory(tmp_path, {0: 5})
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        with monkeypatch.context() as patch:
            patch.setattr(PartitionCondition, "__init__", no_memory)
            partition.close()
        assert partition.condition.closed
        with pytest.raises(RefusedError):
            partition.append(make_records(3, first=6))
        partition.close()
