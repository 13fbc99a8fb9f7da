"""Opening a partition again after a failure: what was acknowledged stays, and what was not does not come to count.

Whoever asked for an append was told that it failed.  So whatever its files hold of it, and however often and in whichever order
partition and journal fail and are put right, no reader is shown it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.storage.power_loss import BEFORE, Journaled, failing, segment
from waltzctl.engine.errors import DiskError, DiskReadError, DiskWriteError, SyncFailedError
from waltzctl.engine.storage.partition_log import PartitionLog


def fail_to_append(made: Journaled, partition: int) -> None:
    """Records that stand in the files and were not acknowledged: they could not be synced."""
    with pytest.MonkeyPatch.context() as patch:
        failing(patch, "fdatasync", segment(made.path, partition), times=1)
        with pytest.raises(SyncFailedError):
            made.storage.partition(partition).append(made.records(partition, 2, 30))


def fail_journal(made: Journaled) -> None:
    with pytest.MonkeyPatch.context() as patch:
        failing(patch, "fdatasync", made.file, times=1)
        assert not made.commit({2: 1})
    assert made.journal.fault is not None


@pytest.mark.parametrize("order", ["partition, journal", "journal, partition"])
def test_a_cut_that_is_refused_is_made_up_for(journaled: Journaled, tmp_path: Path, order: str) -> None:
    """The journal failed as well and is not retired yet, so that it cannot forget the partition."""
    journaled.commit({0: 2, 1: 1})
    steps = [lambda: fail_to_append(journaled, 0), lambda: fail_journal(journaled)]
    for step in steps if order.startswith("partition") else reversed(steps):
        step()
    for _ in range(3):
        with pytest.raises(DiskWriteError, match="forget a partition"):
            journaled.storage.reopen(0)
        assert journaled.held() == journaled.acknowledged
        assert journaled.storage.partition(0).max_transaction_id == len(journaled.acknowledged[0]) - 1
        with pytest.raises(DiskWriteError):
            journaled.storage.partition(0).append(journaled.records(0, 1))
    assert not journaled.journal.work()
    assert journaled.storage.reopen(0).failed is None
    assert journaled.held() == journaled.acknowledged
    journaled.append(0, 1)
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


def test_a_quarantined_partition_knows_what_was_acknowledged(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the journal holds of it cannot be written back for a while, so that it is opened quarantined, and later again."""
    journaled.commit({0: 2})
    fail_to_append(journaled, 0)
    with monkeypatch.context() as patch:
        failing(patch, "pwrite", segment(journaled.path, 0))
        assert journaled.storage.reopen(0).quarantined
        assert journaled.storage.reopen(0).quarantined
    assert not journaled.storage.reopen(0).quarantined
    assert journaled.held() == journaled.acknowledged


def test_a_partition_that_reads_is_not_shown_what_failed_while_it_is_quarantined(journaled: Journaled) -> None:
    """A record is damaged meanwhile: what can be read is served, up to the last one that was acknowledged."""
    fail_to_append(journaled, 0)
    with segment(journaled.path, 0).open("r+b") as file:
        file.seek(140)
        file.write(b"\xff\xff\xff")
    for _ in range(2):
        opened = journaled.storage.reopen(0)
        assert opened.quarantined
        last = journaled.acknowledged[0][-1:]
        assert opened.read_range(BEFORE - 1, 10) == last
        assert opened.read_wire(BEFORE - 1, 10).count == 1
        assert opened.read(BEFORE) is None
        assert opened.read_wire_headers(BEFORE, 1).count == 0


def test_what_cannot_be_read_where_the_cut_is_ends_the_partition(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_append(journaled, 0)
    with monkeypatch.context() as patch:

        def unreadable(log: PartitionLog, after: int) -> None:
            raise DiskReadError(journaled.path, None, OSError("as if"))

        patch.setattr(PartitionLog, "end_after", unreadable)
        with pytest.raises(DiskReadError):
            journaled.storage.reopen(0)
    assert journaled.storage.partition(0).failed is not None
    assert journaled.held() == journaled.acknowledged
    journaled.storage.reopen(0)
    assert journaled.held() == journaled.acknowledged
    journaled.append(0, 1)


@pytest.mark.parametrize("delete", [False, True])
def test_a_failed_partition_that_comes_back(journaled: Journaled, tmp_path: Path, delete: bool) -> None:
    fail_to_append(journaled, 0)
    journaled.storage.unassign(0, delete_files=delete)
    journaled.storage.assign(0)
    if delete:
        journaled.acknowledged[0] = []
    assert journaled.held() == journaled.acknowledged
    journaled.append(0, 1)
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


def test_a_failed_partition_that_comes_back_and_cannot_be_cut(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_to_append(journaled, 0)
    journaled.storage.unassign(0, delete_files=False)
    with monkeypatch.context() as patch:
        failing(patch, "ftruncate", segment(journaled.path, 0))
        journaled.storage.assign(0)  # it is this node's, and says itself what is the matter
    assert journaled.storage.partition(0).failed is not None
    assert journaled.held() == journaled.acknowledged
    journaled.storage.reopen(0)
    assert journaled.held() == journaled.acknowledged
    journaled.append(0, 1)


@pytest.mark.parametrize("delete", [False, True])
def test_a_partition_that_could_not_be_closed_comes_back(
    journaled: Journaled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, delete: bool
) -> None:
    """With what only the journal has; or with nothing, when it was removed since."""
    journaled.commit({0: 3, 1: 1})
    path = segment(journaled.path, 0)
    with monkeypatch.context() as patch:
        failing(patch, "fdatasync", path, times=1)
        with pytest.raises(SyncFailedError):
            journaled.storage.unassign(0, delete_files=False)
    path.write_bytes(journaled.durable[path])  # the system lets go of what it could not write
    if delete:
        journaled.storage.unassign(0, delete_files=True)
        journaled.acknowledged[0] = []
    journaled.storage.assign(0)
    assert journaled.held() == journaled.acknowledged
    journaled.append(0, 1)
    assert journaled.held(journaled.after_power_loss(tmp_path)) == journaled.acknowledged


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.sets(st.integers(0, 1), min_size=1)),
        st.tuples(st.sampled_from(["append", "fail", "fail", "reopen", "again", "truncate"]), st.integers(0, 1)),
        st.tuples(st.sampled_from(["fail the journal", "work", "cannot cut"]), st.just(0)),
    ),
    max_size=25,
)


@pytest.mark.turns(8)
@given(OPERATIONS)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_in_whatever_order(tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, object]]) -> None:
    place = tmp_path_factory.mktemp("life")
    with pytest.MonkeyPatch.context() as monkeypatch:
        made = Journaled(place, monkeypatch)
        for operation, value in operations:
            fail_and_mend(made, operation, value)
            assert made.held() == made.acknowledged
        copy = made.after_power_loss(place)
        for number, records in made.held(copy).items():
            assert records[: len(made.acknowledged[number])] == made.acknowledged[number]
        shutil.rmtree(copy)
        for number in (0, 1, 2):
            if made.storage.partition(number).failed is not None:
                made.journal.work()
                made.storage.reopen(number)
        assert made.held() == made.acknowledged
        assert made.held(made.after_power_loss(place)) == made.acknowledged
        made.close()
    assert made.held(made.path) == made.acknowledged


def fail_and_mend(made: Journaled, operation: str, value: object) -> None:
    """One step of a drawn life."""
    well = [number for number in (0, 1, 2) if made.storage.partition(number).failed is None]
    match operation, value:
        case "commit", set(numbers):
            if chosen := dict.fromkeys(numbers.intersection(well), 1):
                made.commit(chosen)
        case "append", int(number) if number in well:
            made.append(number, 1)
        case "fail", int(number) if number in well:
            fail_to_append(made, number)
        case "reopen" | "again" as how, int(number):
            try:
                if how == "again":
                    made.storage.unassign(number, delete_files=False)
                else:
                    made.storage.reopen(number)
            except DiskError:  # the journal cannot forget it at present
                assert made.journal.fault is not None
            made.storage.assign(number)
        case "truncate", int(number) if number in well and made.journal.fault is None:
            made.truncate(number, max(BEFORE, len(made.acknowledged[number]) - 3))
        case "fail the journal", _ if 2 in well and made.journal.fault is None:
            fail_journal(made)
        case "work", _:
            made.journal.work()
        case "cannot cut", _:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(os, "ftruncate", refused)
                for number in set(range(3)).difference(well):
                    with pytest.raises(DiskError):
                        made.storage.reopen(number)


def refused(descriptor: int, size: int) -> None:
    raise OSError(5, "Input/output error")
