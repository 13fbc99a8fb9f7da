"""What rebuild-index plans, as a whole: which indexes, why, with which entries, and which ones stay."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.repair.twelve import SIZE, Damage, Twelve, at, told
from waltzctl.engine.durable.edits import Replace
from waltzctl.engine.errors import DiskReadError, InvalidRequestError, RefusedError
from waltzctl.engine.log.view import FileState
from waltzctl.engine.repair import rebuild_index
from waltzctl.engine.repair.content import Content
from waltzctl.engine.repair.embedded import EmbeddedRecordError
from waltzctl.engine.repair.rebuild_index import IndexPlan, plan_rebuild_index
from waltzctl.formats.segment import HEADER_SIZE, SegmentHeader, decode_entries


def grown(path: Path, more: bytes) -> None:
    path.write_bytes(path.read_bytes() + more)


def entry(d: Twelve, first: int, place: int, value: int) -> None:
    """Let an entry of an index say something else."""
    data = bytearray(d.idx(first).read_bytes())
    data[HEADER_SIZE + 8 * place : HEADER_SIZE + 8 * place + 8] = value.to_bytes(8, signed=True)
    d.idx(first).write_bytes(data)


def zeros(d: Twelve, first: int, stop: int) -> None:
    """Let zeros stand where transactions were."""
    data = bytearray(d.seg(first - first % 4).read_bytes())
    data[at(first) : at(first) + SIZE * (stop - first)] = bytes(SIZE * (stop - first))
    d.seg(first - first % 4).write_bytes(data)


def parted(d: Twelve, entry: int) -> None:
    """Let twenty bytes of junk stand in front of transaction 6, and its index say where that begins."""
    data = d.seg(4).read_bytes()
    d.seg(4).write_bytes(data[: at(6)] + b"\xee" * 20 + data[at(6) :])
    d.point(4, 6, entry)


DAMAGE: dict[str, Damage] = {
    "nothing": lambda d: None,
    "an index is gone": lambda d: d.idx(4).unlink(),
    "an index is empty": lambda d: d.list(4, -16),
    "an index ends in its header": lambda d: d.list(4, -1),
    "an index has its header alone": lambda d: d.list(4, 0),
    "an index ends in an entry": lambda d: os.truncate(d.idx(4), 128 + 11),
    "the last entry is missing": lambda d: d.list(4, 3),
    "a byte is missing": lambda d: os.truncate(d.idx(4), 128 + 31),
    "an entry too many": lambda d: grown(d.idx(4), bytes(8)),
    "a byte too many": lambda d: grown(d.idx(4), b"x"),
    "the first entry is wrong": lambda d: entry(d, 4, 0, 129),
    "the last entry is wrong": lambda d: entry(d, 4, 3, 7),
    "two entries are wrong": lambda d: (entry(d, 4, 1, 7), entry(d, 4, 2, 7)),
    "an entry and the length are wrong": lambda d: (entry(d, 4, 1, 7), grown(d.idx(4), bytes(8))),
    "a header field is wrong": lambda d: d.flip(d.idx(4), 31),
    "the version is wrong": lambda d: d.flip(d.idx(4), 3),
    "the creation is another": lambda d: d.flip(d.idx(4), 11),
    "a record is damaged": lambda d: d.spoil(5),
    "a record is damaged, and no index": lambda d: (d.spoil(5), d.idx(4).unlink()),
    "two records are damaged, and no index": lambda d: (zeros(d, 5, 7), d.idx(4).unlink()),
    "two records are damaged, and an entry inside is wrong": lambda d: (zeros(d, 5, 7), entry(d, 4, 2, at(5))),
    "two records are damaged, and an entry inside is right": lambda d: (zeros(d, 5, 7), entry(d, 4, 2, at(5) + 1)),
    "two records are damaged, and the entry behind is inside": lambda d: (zeros(d, 5, 7), entry(d, 4, 3, at(6) + 1)),
    "junk between two records": lambda d: parted(d, 268),
    "junk between two records, and an entry inside": lambda d: parted(d, 249),
    "two records are missing": lambda d: d.put(4, [4, 7], of=[4, 7]),
    "two records are missing in an index of before": lambda d: (
        shutil.copy(d.idx(4), d.root / "kept"),
        d.put(4, [4, 7], of=[4, 7]),
        shutil.move(d.root / "kept", d.idx(4)),
    ),
    "two ids are missing in front": lambda d: d.put(4, [6, 7], of=[6, 7]),
    "a wrong id": lambda d: (d.put(4, [4, 55, 6, 7]), d.idx(4).unlink()),
    "wrong ids up to the end": lambda d: d.put(8, [8, 7, 8, 9]),
    "wrong ids up to the end, and no index": lambda d: d.put(8, [8, 7, 8, 9], index=False),
    "a torn end": lambda d: d.cut(8, at(11) + 5),
    "a torn end of two": lambda d: d.spoil(10, 11),
    "a torn end, and no index": lambda d: (d.cut(8, at(11) + 5), d.idx(8).unlink()),
    "a torn end in front of a segment": lambda d: d.cut(4, at(7) + 5),
    "an end that is gone": lambda d: d.cut(8, at(10)),
    "an end that is gone in front of a segment": lambda d: d.cut(4, at(6)),
    "an end that is gone in front of a segment, and an entry": lambda d: (d.cut(4, at(6)), d.list(4, 3)),
    "part of a header": lambda d: d.cut(8, 127),
    "part of an inner header": lambda d: d.cut(4, 127),
    "a foreign file": lambda d: (d.flip(d.seg(4), 13), d.idx(4).unlink()),
    "a foreign file, and its index": lambda d: (d.flip(d.seg(4), 13), d.flip(d.idx(4), 13)),
    "a file of another partition": lambda d: (d.flip(d.seg(4), 31), d.idx(4).unlink()),
    "a renamed file": lambda d: (d.seg(4).rename(d.seg(5)), d.idx(4).unlink()),
    "no control file": lambda d: (d.control.write_bytes(b""), d.idx(4).unlink()),
    "no control file, and a header against its place": lambda d: (d.control.write_bytes(b""), d.flip(d.seg(4), 31)),
    "an index that is a pipe": lambda d: (d.idx(4).unlink(), os.mkfifo(d.idx(4))),
    "the index of a directory of nobody": lambda d: (d.root / "7").mkdir(),
}


def indexes(d: Twelve) -> list[str]:
    """Each index that is made, why and with which entries, and each thing that is left and why."""
    repair = plan_rebuild_index(d.root)
    made = []
    for step, edit in zip(repair.plan.steps, repair.edits, strict=True):
        assert isinstance(edit, Replace)
        data = b"".join(edit.parts())
        name = f"{step.path.name.lstrip('0') or '0'}".replace(".idx", "")
        made.append(f"{name or 0}: {step.reason}: {decode_entries(data[HEADER_SIZE:]).tolist()}")
        assert (step.path, data[HEADER_SIZE - 88 : HEADER_SIZE]) == (edit.path, bytes(88))
    return made + [line for line in told(repair) if line.startswith("?")]


PLANS: dict[str, list[str]] = {
    "nothing": [],
    "an index is gone": ["4: the index is missing: [128, 188, 248, 308]"],
    "an index is empty": ["4: the index header is short: [128, 188, 248, 308]"],
    "an index ends in its header": ["4: the index header is short: [128, 188, 248, 308]"],
    "an index has its header alone": ["4: 4 entries are missing: [128, 188, 248, 308]"],
    "an index ends in an entry": ["4: 3 entries are missing: [128, 188, 248, 308]"],
    "the last entry is missing": ["4: 1 entries are missing: [128, 188, 248, 308]"],
    "a byte is missing": ["4: 1 entries are missing: [128, 188, 248, 308]"],
    "an entry too many": ["4: 8 bytes are there beyond the last record: [128, 188, 248, 308]"],
    "a byte too many": ["4: 1 bytes are there beyond the last record: [128, 188, 248, 308]"],
    "the first entry is wrong": ["4: 1 entries from transaction 4 on are wrong: [128, 188, 248, 308]"],
    "the last entry is wrong": ["4: 1 entries from transaction 7 on are wrong: [128, 188, 248, 308]"],
    "two entries are wrong": ["4: 2 entries from transaction 5 on are wrong: [128, 188, 248, 308]"],
    "an entry and the length are wrong": ["4: 1 entries from transaction 5 on are wrong: [128, 188, 248, 308]"],
    "a header field is wrong": ["4: the index header is wrong: [128, 188, 248, 308]"],
    "the version is wrong": ["4: the index header is wrong: [128, 188, 248, 308]"],
    "the creation is another": [],
    "a record is damaged": [],
    "a record is damaged, and no index": ["4: the index is missing: [128, 188, 248, 308]"],
    "two records are damaged, and no index": ["4: the index is missing: [128, 188, 307, 308]"],
    "two records are damaged, and an entry inside is wrong": [
        "4: 1 entries from transaction 6 on are wrong: [128, 188, 307, 308]"
    ],
    "two records are damaged, and an entry inside is right": [],
    "two records are damaged, and the entry behind is inside": ["? record-checksum in 4"],
    "junk between two records": ["4: 1 entries from transaction 7 on are wrong: [128, 188, 268, 328]"],
    "junk between two records, and an entry inside": [
        "4: 2 entries from transaction 6 on are wrong: [128, 188, 268, 328]"
    ],
    "two records are missing": ["? record-order in 4"],
    "two records are missing in an index of before": [
        "4: 2 entries from transaction 6 on are wrong: [128, 188, 188, 188]"
    ],
    "two ids are missing in front": ["4: 1 entries from transaction 5 on are wrong: [128, 128, 128, 188]"],
    "a wrong id": ["4: the index is missing: [128, 188, 248, 308]"],
    "wrong ids up to the end": ["? record-order in 8"],
    "wrong ids up to the end, and no index": ["8: the index is missing: [128, 308]"],
    "a torn end": [],
    "a torn end of two": [],
    "a torn end, and no index": ["8: the index is missing: [128, 188, 248]"],
    "a torn end in front of a segment": [],
    "an end that is gone": ["8: 16 bytes are there beyond the last record: [128, 188]"],
    "an end that is gone in front of a segment": [],
    "an end that is gone in front of a segment, and an entry": [
        "4: 8 bytes are there beyond the last record: [128, 188]"
    ],
    "part of a header": ["? segment-header-short 8 x4 in 8 [0+127]"],
    "part of an inner header": ["? segment-header-short 4 x4 in 4 [0+127]"],
    "a foreign file": ["? segment-key in 4"],
    "a foreign file, and its index": ["? segment-key in 4"],
    "a file of another partition": ["? segment-partition in 4"],
    "a renamed file": ["5: the index is missing: [128, 188, 248, 308]"],
    "no control file": ["4: the index is missing: [128, 188, 248, 308]"],
    "no control file, and a header against its place": ["? segment-partition in 4"],
    "an index that is a pipe": ["? special-file in 4"],
    "the index of a directory of nobody": [],
}


@pytest.mark.parametrize("name", PLANS)
def test_what_is_planned_for_indexes(tmp_path: Path, name: str) -> None:
    d = Twelve(tmp_path / "d")
    DAMAGE[name](d)
    assert indexes(d) == PLANS[name]


def test_every_index_or_a_single_one(tmp_path: Path) -> None:
    """With `everything` also those that are right, and why; of one segment by either of its names."""
    d = Twelve(tmp_path / "d")
    d.list(4, 3)
    d.list(8, 3)
    every = plan_rebuild_index(d.root, everything=True)
    assert [(one.path, one.reason) for one in every.plan.steps] == [
        (d.idx(0), "it is as it should be; rebuilt because all are"),
        (d.idx(4), "1 entries are missing"),
        (d.idx(8), "1 entries are missing"),
    ]
    for path in (d.seg(4), d.idx(4)):
        assert [one.path for one in plan_rebuild_index(path).plan.steps] == [d.idx(4)]
        assert [one.path for one in plan_rebuild_index(path, everything=True).plan.steps] == [d.idx(4)]
    assert [one.path for one in plan_rebuild_index(d.directory).plan.steps] == [d.idx(4), d.idx(8)]
    assert plan_rebuild_index(d.directory).partitions == plan_rebuild_index(d.root).partitions == (0,)


class Weighing:
    """An executor that does the work in this process and keeps how much each task is said to be."""

    weights: Sequence[int] = ()

    def map(
        self, work: Callable[[Any], Any], tasks: Sequence[Any], *, weights: Sequence[int], what: str
    ) -> Iterator[Any]:
        self.weights = weights
        return map(work, tasks)


def test_segments_are_read_by_the_workers_of_an_executor_by_their_sizes(tmp_path: Path) -> None:
    d = Twelve(tmp_path / "d")
    d.list(4, 3)
    d.cut(8, 200)
    executor = Weighing()
    found = plan_rebuild_index(d.root, executor=executor)  # type: ignore[arg-type]
    assert found.plan == plan_rebuild_index(d.root).plan
    assert list(executor.weights) == [368, 368, 200]


def test_indexes_are_rebuilt_inside_a_storage_directory(tmp_path: Path) -> None:
    d = Twelve(tmp_path / "d")
    d.list(4, 3)
    with pytest.raises(RefusedError, match="not in a storage directory"):
        plan_rebuild_index(d.control)
    with pytest.raises(InvalidRequestError, match="partition 1"):
        plan_rebuild_index(d.root, partitions=[1])
    d.control.unlink()
    with pytest.raises(RefusedError, match="there is no control file"):
        plan_rebuild_index(d.root, partitions=[0])
    d.directory.rename(tmp_path / "5")
    with pytest.raises(RefusedError, match="not in a storage directory"):
        plan_rebuild_index(tmp_path / "5")


@pytest.mark.parametrize(("keeps", "entries"), [(False, 3), (True, 4)])
def test_an_index_that_is_made_anew_has_what_the_data_give(tmp_path: Path, keeps: bool, entries: int) -> None:
    """Unless it is to keep what the one before it knows of a lost end, or doubts what that has inside of damage."""
    d = Twelve(tmp_path / "d")
    d.cut(8, at(11) + 5)
    content = Content.of_file(d.seg(8), at(11) + 5)
    plan = IndexPlan(d.idx(8), content, 8, d.idx(8).read_bytes()[:HEADER_SIZE], d.idx(8))
    assert plan.stop() == 8 + 3
    assert replace(plan, keeps_end=keeps).stop() == 8 + entries
    zeros(d, 5, 7)
    entry(d, 4, 3, at(6) + 1)
    other = replace(plan, content=Content.of_file(d.seg(4), 368), begins=4, hint=d.idx(4))
    assert other.stop() == 8
    with pytest.raises(EmbeddedRecordError):
        replace(other, doubts=True).stop()


def test_the_indexes_of_a_partition_of_nobody_stay_as_they_are(tmp_path: Path) -> None:
    """The control file has partition 0 alone; verify notes the other directory."""
    d = Twelve(tmp_path / "d")
    shutil.copytree(d.directory, d.root / "1")
    for directory in (d.directory, d.root / "1"):
        (directory / d.idx(4).name).unlink()
    repair = plan_rebuild_index(d.root)
    assert ([one.path for one in repair.plan.steps], repair.partitions) == ([d.idx(4)], (0,))
    assert repair.plan.undecided == ()


@pytest.mark.parametrize(
    ("firsts", "first", "entries", "severity"),
    [
        ((0, 4, 8), 8, 0, "repairable"),
        ((0, 4, 8), 8, 1, "damage"),
        ((0, 4, 8), 4, 0, "damage"),
        ((0, 4, 8), 0, 0, "damage"),
        ((0, 4, 5), 4, 0, "damage"),
    ],
)
def test_part_of_a_header_is_harmless_at_the_end_alone(
    tmp_path: Path, firsts: tuple[int, ...], first: int, entries: int, severity: str
) -> None:
    """There a crash leaves it; in the middle a segment is lost, whatever its index says."""
    d = Twelve(tmp_path / "d", firsts=firsts)
    d.cut(first, 127)
    d.list(first, entries)
    (left,) = plan_rebuild_index(d.root).plan.undecided
    assert (left.code.value, left.segment, left.severity.value) == ("segment-header-short", first, severity)


WHOLE = [128, 188, 248, 308, 368, 428, 488, 548, 608, 668, 728, 788]
"""Entries of twelve records in one segment."""


def with_entries(**entries: int) -> Damage:
    """An index that says otherwise for some transactions, ``_3`` for transaction 3."""
    return lambda d: [entry(d, 0, int(name[1:]), value) for name, value in entries.items()]


def skipping(d: Twelve) -> None:
    """Transactions 2 to 6 are not there, and the index is that of all."""
    kept = d.idx(0).read_bytes()
    d.put(0, [0, 1, *range(7, 12)], of=[0, 1, *range(7, 12)])
    d.idx(0).write_bytes(kept)


def zeroed(d: Twelve) -> None:
    """Zeros stand where transactions 2 to 6 were."""
    data = d.seg(0).read_bytes()
    d.seg(0).write_bytes(data[: WHOLE[2]] + bytes(5 * SIZE) + data[WHOLE[7] :])


def torn(d: Twelve) -> None:
    """Transactions 8 to 11, the last ones, are damaged."""
    d.flip(d.seg(0), *(WHOLE[number] + 9 for number in range(8, 12)))


@pytest.mark.parametrize(
    ("damage", "entries"),
    [
        (lambda d: (zeroed(d), d.idx(0).unlink()), [128, 188, 248, 547, 547, 547, 547, *WHOLE[7:]]),
        (lambda d: (zeroed(d), d.list(0, 2)), [128, 188, 248, 547, 547, 547, 547, *WHOLE[7:]]),
        (lambda d: (zeroed(d), d.list(0, 3)), [128, 188, 248, 547, 547, 547, 547, *WHOLE[7:]]),
        (lambda d: (zeroed(d), d.list(0, 4)), [128, 188, 248, 308, 547, 547, 547, *WHOLE[7:]]),
        (lambda d: (zeroed(d), d.list(0, 6)), [128, 188, 248, 308, 368, 428, 547, *WHOLE[7:]]),
        (lambda d: (zeroed(d), d.list(0, 11)), WHOLE),
        (lambda d: (zeroed(d), with_entries(_0=1, _2=247)(d)), WHOLE),
        (lambda d: (zeroed(d), with_entries(_3=248)(d)), [128, 188, 248, 547, 547, 547, 547, *WHOLE[7:]]),
        (lambda d: (zeroed(d), with_entries(_0=1, _3=249)(d)), [128, 188, 248, 249, *WHOLE[4:]]),
        (lambda d: (zeroed(d), with_entries(_4=308)(d)), [128, 188, 248, 308, 547, 547, 547, *WHOLE[7:]]),
        (lambda d: (zeroed(d), with_entries(_0=1, _4=309)(d)), [128, 188, 248, 308, 309, *WHOLE[5:]]),
        (lambda d: (zeroed(d), with_entries(_6=548)(d)), [128, 188, 248, 308, 368, 428, 547, *WHOLE[7:]]),
        (lambda d: (zeroed(d), with_entries(_0=1, _6=547)(d)), [128, 188, 248, 308, 368, 428, 547, *WHOLE[7:]]),
        (skipping, [128, 188, 248, 248, 248, 248, 248, 248, 308, 368, 428, 488]),
        # an end that is lost, of which the index has the entries
        (lambda d: (torn(d), with_entries(_0=1)(d)), WHOLE),
        (lambda d: (torn(d), with_entries(_0=1)(d), d.list(0, 10)), WHOLE[:10]),
        (lambda d: (d.cut(0, WHOLE[11] + 1), with_entries(_0=1)(d)), WHOLE),
        (lambda d: (d.cut(0, WHOLE[11] + 1), with_entries(_0=1)(d), grown(d.idx(0), bytes(8))), WHOLE),
    ],
)
def test_entries_of_lost_records_however_many_are_made_at_once(
    tmp_path: Path, damage: Damage, entries: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one stands where the damage begins; the others where the index has them, if they rise and lie inside."""
    d = Twelve(tmp_path / "d", firsts=(0,))
    damage(d)
    (edit,) = plan_rebuild_index(d.root).edits
    assert isinstance(edit, Replace)
    for chunk in (1, 2, 3, 4, 16384):
        monkeypatch.setattr(rebuild_index, "_CHUNK", chunk)
        header, *parts = edit.parts()
        assert (len(header), decode_entries(b"".join(parts)).tolist()) == (HEADER_SIZE, entries)


def test_an_end_that_is_lost_in_front_of_a_segment_keeps_its_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = Twelve(tmp_path / "d", firsts=(0, 8))
    d.cut(0, WHOLE[4])
    entry(d, 0, 0, 7)
    for chunk in (1, 2, 3, 16384):
        monkeypatch.setattr(rebuild_index, "_CHUNK", chunk)
        assert indexes(d) == [f"0: 1 entries from transaction 0 on are wrong: {WHOLE[:8]}"]


@pytest.mark.parametrize(("first", "others"), [(0, (4, 8)), (4, (0, 8)), (8, (0, 4))])
def test_a_segment_that_cannot_be_read_keeps_its_index_and_the_others_are_made(
    tmp_path: Path, first: int, others: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    d = Twelve(tmp_path / "d")
    for one in (0, 4, 8):
        d.list(one, 3)
    real = rebuild_index.read_segment_header

    def failing(state: FileState | None) -> SegmentHeader | None:
        if state is not None and state.path == d.seg(first):
            raise DiskReadError(state.path, 0, OSError(5, "Input/output error"))
        return real(state)

    monkeypatch.setattr(rebuild_index, "read_segment_header", failing)
    made = [f"{one}: 1 entries are missing: [128, 188, 248, 308]" for one in others]
    assert indexes(d) == [*made, f"? read-error in {first}"]
