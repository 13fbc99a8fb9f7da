"""Comparisons of the storage engine that decide about loss, each one step to each side; and the order of its durable steps."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.builders import build_directory, make_records
from tests.memory import in_memory
from tests.repair.trees import Crash, crashing_at, recording
from tests.storage.support import LAYOUTS, built, opened
from waltzctl.engine.errors import (
    BelowLowWaterMarkError,
    ConcurrentUpdateError,
    InvalidRequestError,
    MarkWouldFallError,
    RefusedError,
    WaltzError,
)
from waltzctl.engine.losses import without
from waltzctl.engine.storage.append import AppendSession
from waltzctl.engine.storage.assignment import assigned_here, is_hosted
from waltzctl.engine.storage.batch import Batch, BatchPart, parts_of
from waltzctl.engine.storage.directory import StorageDirectory, StorageOptions
from waltzctl.engine.storage.fences import SessionFences
from waltzctl.engine.storage.loss_ledger import ledger_path, still_lost
from waltzctl.engine.storage.strays import hidden, joined
from waltzctl.formats.accepted_losses import AcceptedLoss, encode_ledger
from waltzctl.formats.control import Layout, decode_control
from waltzctl.formats.segment import CHECKPOINT_INTERVAL, HEADER_SIZE, segment_name


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    with in_memory(tmp_path) as path:
        yield path


LARGE = StorageOptions(segment_size_threshold=10**6)


def outcome(call: Callable[[], object], *errors: type[WaltzError]) -> str:
    """The name of the error that a call ends with, empty for none."""
    try:
        call()
    except errors as error:
        return type(error).__name__
    return ""


def crashed_everywhere(origin: Path, target: Path, work: Callable[[StorageDirectory], object]) -> list[Path]:
    """A copy of a storage directory for each change that `work` makes to it, as if the process had ended behind that one."""
    copies: list[Path] = []
    while True:
        path, left = target / f"work-{len(copies)}", target / f"left-{len(copies)}"
        shutil.copytree(origin, path)
        with StorageDirectory.open(path, options=LARGE) as storage:
            try:
                with crashing_at(len(copies)):
                    work(storage)
            except Crash:
                shutil.copytree(path, left)
                copies.append(left)
            else:
                return copies
        shutil.rmtree(path)


# --- truncation: the order of its steps ----------------------------------------------------------------------------


@pytest.mark.turns(8)
@LAYOUTS
@pytest.mark.parametrize(("after", "mark"), [(14, 14), (13, 14), (-1, 29)])
def test_a_truncation_that_ends_anywhere_leaves_an_unbroken_beginning(
    tmp_path: Path, layout: Layout, after: int, mark: int
) -> None:
    """With and without permission: the mark falls first, later segments go first."""
    records = built(tmp_path / "s", 40, layout=layout, mark=mark)
    copies = crashed_everywhere(
        tmp_path / "s", tmp_path, lambda storage: storage.partition(0).truncate(after, allow_data_loss=True)
    )
    assert len(copies) > 6
    for path in copies:
        with opened(path, LARGE) as storage:
            partition = storage.partition(0)
            assert not partition.quarantined, (path.name, partition.findings)
            last = partition.max_transaction_id
            assert last >= after
            assert partition.read_range(0, 100) == records[: last + 1]


@LAYOUTS
def test_a_truncation_makes_each_removal_durable_before_the_next(tmp_path: Path, layout: Layout) -> None:
    """Last segment first and of each the index first, each with a sync of the directory; then the data is cut, then the index."""
    built(tmp_path, 40, layout=layout)
    with opened(tmp_path, LARGE) as storage, recording() as changes:
        storage.partition(0).truncate(14)
    seen = [(one.kind, one.path.name) for one in changes]
    removals = [
        step
        for first in (30, 20)
        for suffix in ("idx", "seg")
        for step in (("unlink", f"{first:019d}.{suffix}"), ("sync-directory", "0"))
    ]
    assert seen[: len(removals)] == removals
    cut = [step for step in seen[len(removals) :] if step[0] in ("truncate", "sync")]
    assert cut == [(kind, f"{10:019d}.{suffix}") for suffix in ("seg", "idx") for kind in ("truncate", "sync")]


def test_the_mark_falls_durably_before_anything_is_cut(tmp_path: Path) -> None:
    built(tmp_path, 40, mark=39)
    with opened(tmp_path, LARGE) as storage, recording() as changes:
        storage.partition(0).truncate(14, allow_data_loss=True)
    assert [(one.kind, one.path.name) for one in changes[:2]] == [
        ("write", "waltz-storage.ctl"),
        ("sync", "waltz-storage.ctl"),
    ]
    assert {one.path.name for one in changes[2:]}.isdisjoint({"waltz-storage.ctl"})


def test_a_cut_never_leaves_an_index_that_proves_more_than_there_is(tmp_path: Path) -> None:
    """Entries behind a later checkpoint prove the records in front of it, so they go, durably, before the data does."""
    built(tmp_path / "s", 2005, per_segment=5000)
    copies = crashed_everywhere(tmp_path / "s", tmp_path, lambda storage: storage.partition(0).truncate(998))
    assert copies
    for path in copies:
        with opened(path, LARGE) as storage:
            assert not storage.partition(0).quarantined, path.name
            assert storage.partition(0).max_transaction_id in (998, 2004)


@pytest.mark.parametrize(
    ("after", "expected"),
    [(-2, "InvalidRequestError"), (-1, "BelowLowWaterMarkError"), (23, "BelowLowWaterMarkError"), (24, ""), (25, "")],
)
def test_truncate_stops_one_below_the_mark(tmp_path: Path, after: int, expected: str) -> None:
    built(tmp_path, 40, mark=24)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        assert outcome(lambda: partition.truncate(after), InvalidRequestError, BelowLowWaterMarkError) == expected
        assert partition.max_transaction_id == (39 if expected else after)
        assert partition.local_low_water_mark == 24


@pytest.mark.parametrize(("after", "mark"), [(23, 23), (24, 24), (25, 24), (-1, -1)])
def test_a_permitted_truncation_lowers_the_mark_to_what_is_left_and_no_further(
    tmp_path: Path, after: int, mark: int
) -> None:
    built(tmp_path, 40, mark=24)
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        partition.truncate(after, allow_data_loss=True)
        assert (partition.max_transaction_id, partition.local_low_water_mark) == (after, mark)
    with opened(tmp_path) as storage:
        assert not storage.partition(0).quarantined


@pytest.mark.parametrize(("after", "left"), [(38, 38), (39, 39), (40, 39), (10**6, 39)])
def test_truncate_removes_the_last_one_and_nothing_where_nothing_stands_behind(
    tmp_path: Path, after: int, left: int
) -> None:
    built(tmp_path, 40)
    with opened(tmp_path) as storage:
        assert storage.partition(0).truncate(after) == left
        assert storage.partition(0).max_transaction_id == left


@pytest.mark.parametrize(("after", "begins"), [(8, [0]), (9, [0, 10]), (10, [0, 10]), (19, [0, 10, 20])])
def test_a_truncation_to_the_end_of_a_segment_keeps_the_one_that_begins_behind_it(
    tmp_path: Path, after: int, begins: list[int]
) -> None:
    built(tmp_path, 40)
    with opened(tmp_path) as storage:
        storage.partition(0).truncate(after)
        assert [one.first_transaction_id for one in storage.partition(0).segments] == begins
    assert sorted(one.name for one in (tmp_path / "0").glob("*.seg")) == [segment_name(one) for one in begins]


# --- sessions ------------------------------------------------------------------------------------------------------


@LAYOUTS
@pytest.mark.parametrize(
    ("mark", "session", "low", "expected"),
    [
        (39, 6, 39, "ConcurrentUpdateError"),
        (39, 7, 39, ""),
        (39, 8, 39, ""),
        (10, 8, 38, "MarkWouldFallError"),
        (10, 8, 39, ""),
        (50, 8, 49, "MarkWouldFallError"),
        (50, 8, 50, ""),
        (50, 8, 51, ""),
    ],
)
def test_a_session_is_no_older_and_its_mark_no_lower(
    tmp_path: Path, layout: Layout, mark: int, session: int, low: int, expected: str
) -> None:
    """The last transaction is 39; session 7 has the low-water mark `mark`."""
    build_directory(tmp_path, {0: 40}, layout=layout, session=7, local_low_water_mark=min(mark, 39))
    with opened(tmp_path) as storage:
        partition = storage.partition(0)
        if mark > 39:
            partition.set_low_water_mark(7, mark)
        found = outcome(lambda: partition.set_low_water_mark(session, low), ConcurrentUpdateError, MarkWouldFallError)
        assert found == expected
        marks = (partition.session_id, partition.low_water_mark, partition.local_low_water_mark)
        assert marks == ((7, mark, min(mark, 39)) if expected else (session, low, 39))


@pytest.mark.parametrize(("last", "mark", "expected"), [(19, 20, "RefusedError"), (19, 19, ""), (19, 18, "")])
def test_nothing_is_appended_to_a_replica_that_is_behind_by_one(
    tmp_path: Path, last: int, mark: int, expected: str
) -> None:
    built(tmp_path, last + 1, mark=min(mark, last))
    with opened(tmp_path) as storage:
        if mark >= last:
            storage.partition(0).set_low_water_mark(4, mark)
    with opened(tmp_path) as storage:
        assert outcome(lambda: AppendSession(storage, 0), RefusedError) == expected


@pytest.mark.parametrize(("lost", "expected"), [((18, 19), ""), ((19, 20), "RefusedError"), ((20, 20), "RefusedError")])
def test_ids_that_were_given_up_are_not_given_away_again(tmp_path: Path, lost: tuple[int, int], expected: str) -> None:
    built(tmp_path, 20)
    path = ledger_path(tmp_path)
    path.parent.mkdir()
    path.write_bytes(encode_ledger([accepted(*lost)]))
    with opened(tmp_path) as storage:
        assert outcome(lambda: AppendSession(storage, 0), RefusedError) == expected


# --- batches -------------------------------------------------------------------------------------------------------


def split(first: int, sizes: list[int], *, size: int = HEADER_SIZE, threshold: int = 10**9) -> list[int | None]:
    """How many records each part has, None where a segment begins."""
    offsets = np.cumsum([0, *sizes]).astype(np.int64)
    parts = list(parts_of(Batch(first, (bytes(int(offsets[-1])),), offsets), size, threshold))
    whole = [part for part in parts if isinstance(part, BatchPart)]
    assert b"".join(bytes(piece) for part in whole for piece in part.pieces) == bytes(int(offsets[-1]))
    return [None if part is None else len(part.offsets) - 1 for part in parts]


@pytest.mark.parametrize(
    ("first", "count", "expected"),
    [
        (990, 9, [9]),
        (990, 10, [10]),
        (990, 11, [10, 1]),
        (999, 1, [1]),
        (999, 2, [1, 1]),
        (1000, 1000, [1000]),
        (1000, 1001, [1000, 1]),
        (1001, 999, [999]),
        (0, 2001, [1000, 1000, 1]),
        (0, 0, []),
    ],
)
def test_a_part_of_a_batch_ends_at_the_checkpoint(first: int, count: int, expected: list[int]) -> None:
    """A record behind a checkpoint proves what is in front of it, so it is never written together with that."""
    assert split(first, [50] * count) == expected
    assert all((first + sum(expected[: n + 1])) % CHECKPOINT_INTERVAL == 0 for n in range(len(expected) - 1))


@pytest.mark.parametrize(
    ("size", "threshold", "expected"),
    [
        (HEADER_SIZE, HEADER_SIZE + 99, [2, None, 1]),
        (HEADER_SIZE, HEADER_SIZE + 100, [3]),
        (HEADER_SIZE, HEADER_SIZE + 101, [3]),
        (HEADER_SIZE + 99, HEADER_SIZE + 100, [1, None, 2]),
        (HEADER_SIZE + 100, HEADER_SIZE + 100, [1, None, 2]),
        (HEADER_SIZE + 101, HEADER_SIZE + 100, [None, 3]),
        (HEADER_SIZE, HEADER_SIZE - 1, [1, None, 1, None, 1]),
    ],
)
def test_a_segment_ends_with_the_first_record_that_comes_when_it_is_larger_than_the_threshold(
    size: int, threshold: int, expected: list[int | None]
) -> None:
    assert split(0, [50] * 3, size=size, threshold=threshold) == expected


def test_data_and_index_are_durable_at_a_checkpoint_before_the_record_behind_it_is_written(tmp_path: Path) -> None:
    built(tmp_path, 995, per_segment=5000)
    with opened(tmp_path, LARGE) as storage, recording() as changes:
        storage.partition(0).append(make_records(7, first=995))
        found = [(one.kind, one.path.suffix) for one in changes]
    assert found == [
        ("write", ".seg"), ("write", ".idx"), ("sync", ".seg"), ("sync", ".idx"),
        ("write", ".seg"), ("write", ".idx"), ("sync", ".seg"),
    ]  # fmt: skip


# --- deletion ------------------------------------------------------------------------------------------------------


@LAYOUTS
def test_a_partition_whose_deletion_was_interrupted_anywhere_has_no_fence_when_it_comes_back(
    tmp_path: Path, layout: Layout
) -> None:
    """As long as something waits for its deletion the next opening finishes; so the fence goes before the last of it."""
    origin = tmp_path / "s"
    build_directory(origin, {0: 20, 1: 5}, layout=layout)
    with opened(origin), SessionFences.open(origin, 2) as fences:
        fences.raise_to(0, 9)
        fences.raise_to(1, 8)
    copies = crashed_everywhere(origin, tmp_path, lambda storage: storage.unassign(0, delete_files=True))
    assert len(copies) > 8
    for path in copies:
        with opened(path) as storage:
            if 0 in storage.partitions:
                storage.unassign(0, delete_files=True)
            elif (path / "0").is_dir():
                continue  # no longer assigned, not deleted: its sessions go on where they were
            storage.assign(0)
            with SessionFences.open(path, 2) as fences:
                assert (fences.get(0), fences.get(1)) == (-1, 8), path.name
            assert storage.partition(0).session_id == -1
            storage.partition(0).set_low_water_mark(0, -1)


# --- losses that were accepted, strays, assignment: values -----------------------------------------------------------


def accepted(first: int, last: int, mark: int = -1) -> AcceptedLoss:
    return AcceptedLoss(0, first, last, mark, "2026-11-22T08:51:18.000Z", "test")


@pytest.mark.parametrize(
    ("held", "rest"),
    [
        ([], [(10, 20)]),
        ([(0, 5)], [(10, 20)]),
        ([(0, 10)], [(10, 20)]),
        ([(0, 11)], [(11, 20)]),
        ([(0, 20)], []),
        ([(0, 19)], [(19, 20)]),
        ([(20, 30)], [(10, 20)]),
        ([(19, 30)], [(10, 19)]),
        ([(12, 13)], [(10, 12), (13, 20)]),
        ([(13, 14), (10, 13), (14, 20)], []),
        ([(0, 25), (11, 12)], []),
        ([(10, 11), (19, 20)], [(11, 19)]),
    ],
)
def test_what_no_range_covers_is_told_to_the_id(held: list[tuple[int, int]], rest: list[tuple[int, int]]) -> None:
    assert without((10, 20), held) == rest


@pytest.mark.parametrize(
    ("then", "now", "over"),
    [(9, 9, False), (9, 18, False), (9, 19, True), (9, 20, True), (19, 19, False), (19, 20, True), (9, None, False)],
)
def test_a_loss_is_over_when_the_mark_has_risen_to_its_last_transaction(then: int, now: int | None, over: bool) -> None:
    """Risen since: a mark that stood there already says nothing of what came back."""
    assert still_lost(accepted(10, 19, then), (), now) == ([] if over else [(10, 20)])


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([(0, 4), (5, 9)], ((0, 9),)),
        ([(0, 4), (6, 9)], ((0, 4), (6, 9))),
        ([(0, 4), (4, 9)], ((0, 9),)),
        ([(0, 9), (2, 3)], ((0, 9),)),
        ([(0, 9), (2, 3), (10, 10)], ((0, 10),)),
        ([], ()),
    ],
)
def test_ranges_that_touch_are_one(ranges: list[tuple[int, int]], expected: tuple[tuple[int, int], ...]) -> None:
    assert joined(ranges) == expected
    assert joined(reversed(ranges)) == expected


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ([], ((10, 19),)),
        ([(0, 9)], ((10, 19),)),
        ([(0, 10)], ((11, 19),)),
        ([(0, 18)], ((19, 19),)),
        ([(0, 19)], ()),
        ([(20, 30)], ((10, 19),)),
        ([(19, 30)], ((10, 18),)),
        ([(11, 18)], ((10, 10), (19, 19))),
        ([(10, 14), (15, 19)], ()),
        ([(10, 14), (16, 19)], ((15, 15),)),
    ],
)
def test_what_stands_only_in_a_stray_is_told_to_the_id(
    known: list[tuple[int, int]], expected: tuple[tuple[int, int], ...]
) -> None:
    assert hidden([(10, 19)], known) == expected


@LAYOUTS
def test_the_last_partition_of_a_control_file_is_known_and_the_one_behind_it_is_not(
    tmp_path: Path, layout: Layout
) -> None:
    build_directory(tmp_path, {0: 3, 1: 3}, layout=layout)
    control = decode_control((tmp_path / "waltz-storage.ctl").read_bytes())
    for number, expected in ((-1, None), (0, True), (1, True), (2, None)):
        assert assigned_here(tmp_path, control, number, directory=True) is expected
        assert is_hosted(tmp_path, control, number, directory=True), "where nothing tells, the directory does"
        assert is_hosted(tmp_path, control, number, directory=False) == bool(expected)


@pytest.mark.parametrize(("changed", "expected"), [("session_id", True), ("low_water_mark", True), (None, False)])
def test_any_mark_proves_that_a_partition_without_directory_was_here(
    tmp_path: Path, changed: str | None, expected: bool
) -> None:
    build_directory(tmp_path, {0: 3}, layout=Layout.DOCUMENTED, session=-1, local_low_water_mark=-1)
    control = decode_control((tmp_path / "waltz-storage.ctl").read_bytes())
    if changed is not None:
        number, written = control.partitions[0].updated(**{changed: 0})
        control = replace(control, partitions=(control.partitions[0].with_struct(number, written),))
    assert assigned_here(tmp_path, control, 0, directory=False) is expected
