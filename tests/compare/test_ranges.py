"""Reading side by side: whatever the ranges, what is said of each transaction is what was done to it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compare.clusters import (
    COUNT,
    compared,
    extend,
    flip,
    keep_up_to,
    make_cluster,
    place_of,
    remove_segment,
    rewrite,
    segments,
)
from waltzctl.engine.compare import ranges, side_by_side
from waltzctl.engine.compare.comparison import PartitionComparison
from waltzctl.engine.compare.directories import open_directories
from waltzctl.engine.quorum.vote import ABSENT, DAMAGED, Verdict

SIZES = (900, 5000, 1 << 30)


def by_id(comparison: PartitionComparison) -> dict[int, tuple[int, ...]]:
    """Versions of every transaction; an end that is behind an acknowledged one counts as damage."""
    return {number: run.versions for run in comparison.runs for number in range(run.first, run.stop)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_cluster(tmp_path_factory.mktemp("cluster"), mark=-1)


Injuries = list[tuple[str, int]]
injuries = st.lists(
    st.tuples(st.sampled_from(["flip", "flip", "rewrite", "rewrite", "cut", "fork"]), st.integers(0, COUNT - 2)),
    max_size=5,
)


def injure(path: Path, wanted: Injuries, salt: int) -> dict[int, object]:
    """Do it, and give what every id then holds: a version, "damaged", or nothing where it is absent."""
    held: dict[int, object] = dict.fromkeys(range(COUNT), "right")
    cut = min((number for kind, number in wanted if kind in ("cut", "fork")), default=COUNT)
    fork = any(kind == "fork" and number == cut for kind, number in wanted)
    if cut < COUNT:
        keep_up_to(path, cut)
        held = {number: one for number, one in held.items() if number <= cut}
        if fork:
            extend(path, 10, seed=salt)
            held |= {cut + 1 + n: f"fork {salt}" for n in range(10)}
    for kind, number in wanted:
        if kind == "rewrite" and number < cut and held[number] == "right":
            rewrite(path, number, b"rewritten %d" % salt)
            held[number] = f"rewritten {salt}"
    flips = sorted({number for kind, number in wanted if kind == "flip" and number < cut})
    files = [(number, *place_of(path, number)[:2]) for number in flips]  # all found before any is damaged
    for number, file, offset in files:
        data = bytearray(file.read_bytes())
        data[offset + 9] ^= 4
        file.write_bytes(data)
        held[number] = "damaged"
    return held


def expected(held: list[dict[int, object]]) -> dict[int, tuple[int, ...]]:
    found = {}
    for number in range(max(max(one, default=-1) for one in held) + 1):
        first: dict[object, int] = {}
        found[number] = tuple(
            ABSENT
            if number not in one
            else DAMAGED
            if one[number] == "damaged"
            else first.setdefault(one[number], replica)
            for replica, one in enumerate(held)
        )
    return found


@pytest.mark.turns(8)
@settings(max_examples=25)
@given(st.tuples(injuries, injuries, injuries), st.sampled_from(SIZES), st.booleans())
def test_every_transaction_is_told_as_it_is_in_whatever_ranges(
    whole: list[Path], tmp_path_factory: pytest.TempPathFactory, case: tuple[Injuries, ...], size: int, index: bool
) -> None:
    root = tmp_path_factory.mktemp("case")
    nodes = [Path(shutil.copytree(path, root / path.name)) for path in whole]
    held = [injure(path, wanted, salt) for salt, (path, wanted) in enumerate(zip(nodes, case, strict=True))]
    if not index:
        for path in nodes:
            for file in segments(path):
                file.with_suffix(".idx").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "RANGE", size)
        answer = compared(*nodes)
    shutil.rmtree(root)
    assert by_id(answer[0]) == expected(held)


def test_large_segments_are_cut_where_their_indexes_lead(whole: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "RANGE", 1000)
    members = open_directories(whole, None).members(0)
    tasks = [task for task, _ in ranges.ranges(0, members)]
    assert len(tasks) > 10
    assert [task.high for task in tasks[:-1]] == [task.low for task in tasks[1:]]
    assert (tasks[0].low, tasks[-1].high) == (0, None)
    results = [side_by_side.compare_range(task) for task in tasks]
    assert sum(result.records for result in results) == 3 * COUNT
    data = sum(file.stat().st_size - 128 for path in whole for file in segments(path))
    assert sum(result.bytes for result in results) == data, "every byte is compared once"


def test_a_segment_without_an_index_is_not_cut(
    whole: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [Path(shutil.copytree(path, tmp_path / path.name)) for path in whole]
    segments(nodes[2])[0].with_suffix(".idx").unlink()
    monkeypatch.setattr(ranges, "RANGE", 1000)
    tasks = [task for task, _ in ranges.ranges(0, open_directories(nodes, None).members(0))]
    assert [task.low for task in tasks] == [0, 50, 100]


def test_more_places_than_are_told_apart_are_taken_together(
    whole: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [Path(shutil.copytree(path, tmp_path / path.name)) for path in whole]
    for number in range(5, 45, 4):
        rewrite(nodes[1], number)
    monkeypatch.setattr(side_by_side, "MOST_RUNS", 6)
    answer = compared(*nodes)
    assert not answer.summary.complete
    assert not answer[0].complete
    told = by_id(answer[0])
    for number in range(5, 45, 4):
        assert told[number] == (0, 1, 0), "what differs is never called equal"
    assert answer[0].verdict is Verdict.RECOVERABLE


def test_a_damaged_place_between_two_ranges_is_named_once(
    whole: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [Path(shutil.copytree(path, tmp_path / path.name)) for path in whole]
    remove_segment(nodes[0], 60)
    for number in (10, 11, 12, 13):
        file, offset, _ = place_of(whole[0], number)
        target = nodes[0] / "0" / file.name
        data = bytearray(target.read_bytes())
        data[offset + 9] ^= 4
        target.write_bytes(data)
    seen = []
    for size in SIZES:
        monkeypatch.setattr(ranges, "RANGE", size)
        answer = compared(*nodes)
        seen.append([(one.code, one.path, one.transaction_id) for one in answer.findings])
        assert by_id(answer[0]) == by_id(compared(*nodes)[0])
    assert seen[0] == seen[1] == seen[2]


def test_bytes_beyond_the_first_64_kib_are_compared_but_not_kept(tmp_path: Path) -> None:
    nodes = make_cluster(tmp_path, records=20, mark=-1)
    data = random.Random(5).randbytes(200_000)
    for path in nodes:
        rewrite(path, 7, data)
    assert compared(*nodes)[0].verdict is Verdict.EQUAL
    rewrite(nodes[2], 7, data[:-1] + bytes([data[-1] ^ 1]))
    flip(nodes[1], 3)
    one = compared(*nodes)[0]
    assert one.first_divergence == 7
    assert one.divergence is not None
    assert [side.data for side in one.divergence.sides] == [data[: 64 << 10]] * 2
    assert one.divergence.sides[0].data_checksum != one.divergence.sides[1].data_checksum
