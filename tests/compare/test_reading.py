"""Reading a range of one replica: every range of a small one, with damage of each kind, by a plain account of its ids."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.builders import KEY, build_directory, make_records, write_segment
from waltzctl.engine.compare import replica_reading
from waltzctl.engine.compare.comparison import PartitionComparison, ReplicaComparison
from waltzctl.engine.compare.directories import segments_of
from waltzctl.engine.compare.plans import _not_to_be_trusted
from waltzctl.engine.compare.replica_reading import Broken, PartitionReplica, RangeReading, Records, Torn
from waltzctl.engine.log.assess import Stretch, begun
from waltzctl.engine.log.view import view_partition
from waltzctl.engine.quorum.vote import Decision, Verdict
from waltzctl.engine.scan import scanner
from waltzctl.formats.segment import HEADER_SIZE, SegmentHeader, index_name, segment_name

SIZE = 60
RECORDS = make_records(30, size=20)
FIRSTS = (0, 10, 20)
Told = tuple[str, int, int]


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    """Transactions 0 to 29 in three segments."""
    return build_directory(tmp_path / "s", {0: [RECORDS[:10], RECORDS[10:20], RECORDS[20:]]}, local_low_water_mark=-1)


def seg(storage: Path, first: int) -> Path:
    return storage / "0" / segment_name(first)


def idx(storage: Path, first: int) -> Path:
    return storage / "0" / index_name(first)


def replica(storage: Path) -> PartitionReplica:
    view = view_partition(storage / "0", 0)
    return PartitionReplica(0, storage, 0, KEY, -1, segments_of(view), False, -1)


def read(storage: Path, low: int, high: int | None) -> tuple[list[Told], RangeReading]:
    """What stands in a range: neighbours of one kind as one.  Every record is compared with what was written."""
    reading = RangeReading(replica(storage), low, high)
    found: list[Told] = []
    total = 0
    for piece in reading.pieces():
        if isinstance(piece, Records):
            for place, number in enumerate(range(piece.first, piece.stop)):
                raw = bytes(piece.batch.record_bytes(piece.row + place))
                assert raw[:8] == number.to_bytes(8)
                assert raw == RECORDS[number].encode()
                assert piece.segment == max(one for one in FIRSTS if one <= number)
                total += len(raw)
            told: Told = ("held", piece.first, piece.stop)
        elif isinstance(piece, Broken):
            told = ("broken", piece.first, piece.stop)
        else:
            assert isinstance(piece, Torn)
            assert piece.stop == piece.first + 1
            told = ("torn", piece.first, piece.length)
        if found and told[0] != "torn" and found[-1][0] == told[0] and found[-1][2] == told[1]:
            told = (told[0], found.pop()[1], told[2])
        found.append(told)
    assert reading.bytes == total
    return found, reading


def account(kinds: Sequence[str | None], low: int, high: int | None) -> list[Told]:
    """Rows of ids of one kind within a range; None: never held."""
    rows: list[Told] = []
    for number, kind in enumerate(kinds):
        if kind is None or number < low or (high is not None and number >= high):
            continue
        if rows and rows[-1][0] == kind and rows[-1][2] == number:
            rows[-1] = kind, rows[-1][1], number + 1
        else:
            rows.append((kind, number, number + 1))
    return rows


def kinds_of(broken: Sequence[int], count: int = 30) -> list[str | None]:
    return ["broken" if number in broken else "held" for number in range(count)]


RANGES = [
    (low, high) for low in (0, 5, 6, 10, 19, 29) for high in (low + 1, 10, 15, 20, None) if high is None or high > low
]


def expect(storage: Path, kinds: Sequence[str | None], tail: Told | None = None) -> None:
    for low, high in RANGES:
        found, _ = read(storage, low, high)
        rows = account(kinds, low, high)
        if tail is not None and low <= tail[1] and (high is None or tail[1] < high):
            rows.append(tail)
        assert found == rows, (low, high)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(bytes(data))


def at(number: int) -> int:
    return HEADER_SIZE + SIZE * (number % 10)


def codes(reading: RangeReading) -> list[str]:
    return [one.code.value for one in reading.findings]


@pytest.mark.parametrize("indexed", [True, False])
def test_a_whole_replica(storage: Path, indexed: bool) -> None:
    if not indexed:
        for first in FIRSTS:
            idx(storage, first).unlink()
    expect(storage, kinds_of(()))
    assert codes(read(storage, 0, None)[1]) == []
    assert not read(storage, 0, None)[1].open_end


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("broken", [[0], [5], [9], [10], [4, 5], [18, 19, 20], [3, 12, 25]])
def test_damaged_records(storage: Path, broken: list[int], indexed: bool) -> None:
    for number in broken:
        flip(seg(storage, number - number % 10), at(number) + 40)
    if not indexed:
        for first in FIRSTS:
            idx(storage, first).unlink()
    expect(storage, kinds_of(broken))
    assert len(read(storage, 0, None)[1].findings) == len(
        [one for one in broken if one - 1 not in broken or one % 10 == 0]
    )
    assert codes(read(storage, broken[-1] + 1, None)[1]) == []
    assert not read(storage, 0, None)[1].open_end


@pytest.mark.parametrize("indexed", [True, False])
def test_a_torn_end(storage: Path, indexed: bool) -> None:
    os.truncate(seg(storage, 20), at(28) + 7)
    if not indexed:
        idx(storage, 20).unlink()
    kinds = kinds_of((), 28)
    expect(storage, kinds, ("torn", 28, 7))
    for low, high, named in ((0, None, True), (28, None, True), (29, None, False), (0, 29, True)):
        _, reading = read(storage, low, high)
        assert codes(reading) == (["torn-tail"] if named else [])
        assert not reading.open_end


def test_a_torn_end_of_a_segment_that_is_not_the_last(storage: Path) -> None:
    os.truncate(seg(storage, 10), at(18) + 7)
    expect(storage, kinds_of((18, 19)))
    for low in (0, 18, 19):
        assert codes(read(storage, low, None)[1])[:1] == ["torn-tail"]
    assert codes(read(storage, 20, None)[1]) == []


def test_a_segment_that_ends_too_early(storage: Path) -> None:
    os.truncate(seg(storage, 10), at(18))
    expect(storage, kinds_of((18, 19)))
    ends = {one.segment: (one.next_id, one.known) for one in read(storage, 0, None)[1].stretches}
    assert ends == {0: (10, True), 10: (18, True), 20: (30, True)}


def test_an_end_that_was_not_read_is_for_who_reads_it(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "BATCH_ROWS", 3)
    (begun,) = read(storage, 0, 5)[1].stretches
    assert (begun.segment, begun.begins, begun.known) == (0, 0, False)
    (read_on,) = read(storage, 5, 10)[1].stretches
    assert (read_on.segment, read_on.next_id, read_on.known) == (0, 10, True)


def test_a_gap_between_segments(storage: Path) -> None:
    for path in (seg(storage, 10), idx(storage, 10)):
        path.unlink()
    expect(storage, kinds_of(range(10, 20)))
    assert [one.segment for one in read(storage, 12, None)[1].stretches] == [0, 20]


def test_a_replica_that_begins_late(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 1}, local_low_water_mark=-1)
    for one in (storage / "0").iterdir():
        one.unlink()
    write_segment(storage / "0", RECORDS[10:20])
    write_segment(storage / "0", RECORDS[20:])
    expect(storage, kinds_of(range(10)))


@pytest.mark.parametrize(("entries", "known"), [(0, 20), (4, 24), (10, 30)])
@pytest.mark.parametrize("what", ["gone", "short", "unreadable", "header"])
def test_a_last_segment_of_which_nothing_can_be_read(storage: Path, what: str, entries: int, known: int) -> None:
    """Only its index tells what was in it, and there may have been more."""
    data = seg(storage, 20)
    os.truncate(idx(storage, 20), HEADER_SIZE + 8 * entries)
    if what == "header":
        for path in (data, idx(storage, 20)):
            raw = path.read_bytes()
            path.write_bytes(dataclasses.replace(SegmentHeader.decode(raw), partition=7).encode() + raw[HEADER_SIZE:])
    held = replica(storage)
    if what == "gone":
        data.unlink()
    elif what == "short":
        os.truncate(data, HEADER_SIZE - 1)
        held = replica(storage)
    elif what == "unreadable":
        data.unlink()
        data.mkdir()
    for low, high in ((0, None), (22, None), (0, 22), (20, 21), (29, None)):
        reading = RangeReading(held, low, high)
        rows = [(one.first, one.stop) for one in reading.pieces() if isinstance(one, Broken)]
        first, stop = max(low, 20), known if high is None else min(high, known)
        assert rows == ([(first, stop)] if first < stop else [])
        assert reading.open_end == (what != "short")
        assert bool(reading.findings) == (what != "gone")
        assert reading.stretches[-1] == (Stretch(20, 20, None, 19 + entries) if what == "short" else begun(20, 20))


@pytest.mark.parametrize(
    ("change", "believed"),
    [
        ({"version": 1}, False),
        ({"partition": 7}, False),
        ({"first_transaction_id": 21}, False),
        ({"cluster_key": None}, False),
        ({"created": 5}, True),
    ],
)
@pytest.mark.parametrize("mended", [True, False])
def test_a_wrong_header_is_believed_where_that_of_the_index_is_right(
    storage: Path, change: dict[str, object], believed: bool, mended: bool
) -> None:
    for path in (seg(storage, 20), *(() if mended else (idx(storage, 20),))):
        raw = path.read_bytes()
        header = SegmentHeader.decode(raw)
        changed = {name: type(KEY)(int=7) if name == "cluster_key" else value for name, value in change.items()}
        path.write_bytes(dataclasses.replace(header, **changed).encode() + raw[HEADER_SIZE:])  # type: ignore[arg-type]
    found, reading = read(storage, 0, None)
    assert found == ([("held", 0, 30)] if believed or mended else [("held", 0, 20), ("broken", 20, 30)])
    assert bool(reading.findings) == (not believed)
    if mended:
        os.truncate(idx(storage, 20), HEADER_SIZE - 1)
        assert read(storage, 0, None)[0] == ([("held", 0, 30)] if believed else [("held", 0, 20)])


def test_an_index_that_lies_costs_nothing(storage: Path) -> None:
    raw = idx(storage, 10).read_bytes()
    for entry in (0, HEADER_SIZE, at(15), 10**6, -1):
        idx(storage, 10).write_bytes(raw[:HEADER_SIZE] + entry.to_bytes(8, signed=True) * 10)
        expect(storage, kinds_of(()))
    idx(storage, 10).write_bytes(raw[: HEADER_SIZE + 8 * 3])
    expect(storage, kinds_of(()))


def test_records_behind_a_length_that_leads_beyond_the_end(storage: Path) -> None:
    path = seg(storage, 20)
    raw = bytearray(path.read_bytes())
    raw[at(25) + 28 : at(25) + 32] = (10**6).to_bytes(4)
    path.write_bytes(bytes(raw))
    idx(storage, 20).unlink()
    expect(storage, kinds_of((25,)))
    assert codes(read(storage, 0, None)[1]) == ["record-length"]
    os.truncate(path, len(raw) - 1)
    found, reading = read(storage, 0, None)
    assert found[0] == ("held", 0, 25)
    assert reading.open_end or found[1:] == [("broken", 25, 26), ("held", 26, 29), ("torn", 29, SIZE - 1)]


def test_ids_that_were_never_lost_here_are_an_open_end(storage: Path) -> None:
    """A record that claims more ids than a file can have lost."""
    path = seg(storage, 20)
    raw = path.read_bytes()
    far = make_records(1, first=40_000_000, size=20)[0].encode()
    path.write_bytes(raw[: at(25)] + far + far)
    for low in (0, 22, 25, 27):
        found, reading = read(storage, low, None)
        assert found == [*([("held", low, 25)] if low < 25 else []), ("broken", max(low, 25), 30)]
        assert codes(reading) == ["record-order"]
        assert reading.open_end
        assert reading.stretches[-1] == Stretch(20, 20, 25, 24, listed=30, excess=True)


@pytest.mark.parametrize("entries", [0, 10])
@pytest.mark.parametrize("first", [10, 20])
def test_what_is_out_of_order_in_front_of_a_torn_end_is_lost_once(storage: Path, first: int, entries: int) -> None:
    """A record of long ago stands in front of the last one, in which a bit changed; how much more there was nobody knows."""
    path = seg(storage, first)
    raw = bytearray(path.read_bytes())
    raw[at(9) + 40] ^= 1
    path.write_bytes(raw[: at(9)] + RECORDS[5].encode() + raw[at(9) :])
    os.truncate(idx(storage, first), HEADER_SIZE + 8 * entries)
    reading = RangeReading(replica(storage), first, None)
    last = (Broken if first == 10 or entries else Torn, first + 9, first + 10)
    assert [(type(one), one.first, one.stop) for one in reading.pieces()] == [
        (Records, first, first + 9),
        last,
        *([(Records, 20, 30)] if first == 10 else []),
    ]
    assert codes(reading) == ["record-order", "torn-tail"]
    assert reading.open_end == (first == 20)


# --- whom a plan trusts -------------------------------------------------------------------------------------------------------


def comparison(own: ReplicaComparison, other: ReplicaComparison, clean_to: int) -> PartitionComparison:
    decision = dataclasses.replace(_DECISION, clean_to=clean_to)
    return PartitionComparison(
        **_fields(PartitionComparison) | {"partition": 0, "replicas": (own, other), "decision": decision}
    )  # type: ignore[arg-type]


def _fields(kind: type) -> dict[str, object]:
    """Anything for the fields that do not matter."""
    return {one.name: () for one in dataclasses.fields(kind)}


_DECISION = Decision(**_fields(Decision) | {"verdict": Verdict.EQUAL})  # type: ignore[arg-type]


def one_replica(path: str, **known: object) -> ReplicaComparison:
    nothing = _fields(ReplicaComparison) | {
        "path": Path(path),
        "damaged": (),
        "outvoted": (),
        "open_end": False,
        "cut_after": None,
        "last_transaction_id": 20,
    }
    return ReplicaComparison(**nothing | known)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("own", "outvoted", "trusted"),
    [
        ({}, (0, 99), True),
        ({"damaged": ((5, 8),)}, (7, 9), False),
        ({"damaged": ((5, 8),)}, (8, 9), True),
        ({"damaged": ((5, 8),)}, (3, 5), True),
        ({"damaged": ((5, 8),)}, (3, 6), False),
        ({"open_end": True}, (20, 21), True),
        ({"open_end": True}, (21, 22), False),
        ({"open_end": True}, (30, 31), False),
        ({"open_end": True}, (31, 32), True),
        ({"open_end": True, "last_transaction_id": None}, (0, 1), False),
        ({"cut_after": 12}, (12, 13), True),
        ({"cut_after": 12}, (13, 14), False),
        ({"cut_after": 25}, (20, 21), True),
        ({"cut_after": 25}, (21, 22), False),
    ],
)
def test_a_replica_that_was_outvoted_where_another_needs_records_is_no_source(
    own: dict[str, object], outvoted: tuple[int, int], trusted: bool
) -> None:
    mine, other = one_replica("/a", **own), one_replica("/b", outvoted=(outvoted,))
    assert _not_to_be_trusted(comparison(mine, other, 30), mine) == (set() if trusted else {Path("/b")})
    alone = one_replica("/a", outvoted=(outvoted,), **own)
    assert Path("/a") not in _not_to_be_trusted(comparison(alone, one_replica("/b"), 30), alone)


def placed_inside(storage: Path, first: int, *, foreign: bool = False, indexed: bool = True) -> None:
    """Let segment 0 go on up to 25 in place of those behind it, and an empty one, or another partition's, stand inside of it."""
    for path in (seg(storage, 10), idx(storage, 10), seg(storage, 20), idx(storage, 20)):
        path.unlink()
    write_segment(storage / "0", RECORDS[:26])
    write_segment(storage / "0", RECORDS[26:])
    write_segment(storage / "0", RECORDS[first : first + 1] if foreign else [], first=first, partition=3 * foreign)
    if not indexed:
        idx(storage, 0).unlink()


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("first", [1, 10, 25])
def test_what_a_segment_in_front_holds_is_not_lost_behind_an_empty_name(
    storage: Path, monkeypatch: pytest.MonkeyPatch, first: int, foreign: bool, indexed: bool
) -> None:
    """No finding told that it was missing, and a replica was to be restored that had lost nothing."""
    monkeypatch.setattr(sys.modules[__name__], "FIRSTS", (0, 26))
    placed_inside(storage, first, foreign=foreign, indexed=indexed)
    expect(storage, kinds_of(()))
    for number in (27, 26):  # one step further it is
        flip(seg(storage, 26), at(number - 26) + 40)
        expect(storage, kinds_of(range(number, 28)))


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("first", [10, 24, 25])
def test_an_empty_last_segment_ends_no_log_that_goes_on(
    storage: Path, monkeypatch: pytest.MonkeyPatch, first: int, indexed: bool
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "FIRSTS", (0,))
    placed_inside(storage, first, indexed=indexed)
    for path in (seg(storage, 26), idx(storage, 26)):
        path.unlink()
    expect(storage, [*kinds_of(())[:26], *[None] * 4])


def test_what_is_damaged_behind_an_empty_name_is_told_and_lost(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "FIRSTS", (0, 26))
    placed_inside(storage, 10)
    flip(seg(storage, 0), HEADER_SIZE + SIZE * 20 + 40)
    expect(storage, kinds_of([20]))
    for low, high in ((0, None), (10, 26), (20, 21)):
        assert codes(read(storage, low, high)[1]) == ["record-checksum"]
    assert [one.segment for one in read(storage, 0, None)[1].stretches] == [0, 10, 26], "each told once"


@pytest.mark.parametrize(
    ("damaged", "lost"),
    [
        ((0, 20), None),
        ((0, 22), None),
        ((0, 23), 23),
        ((10, 9), None),
        ((10, 20), 20),
        ((10, 21), 21),
        ((10, 22), None),
    ],
)
def test_of_several_that_hold_an_id_the_nearest_is_read(
    storage: Path, damaged: tuple[int, int], lost: int | None
) -> None:
    """That which goes on furthest was, and what was damaged in it was lost here, while a stream reads it where it is intact.

    22 is the last one of the nearest: a torn record is none.
    """
    placed_inside(storage, 20)
    write_segment(storage / "0", RECORDS[10:23])
    name, number = damaged
    if number >= name:
        flip(seg(storage, name), HEADER_SIZE + SIZE * (number - name) + 40)
    pieces = list(RangeReading(replica(storage), 0, None).pieces())
    whose = {
        (one.segment, number) for one in pieces if isinstance(one, Records) for number in range(one.first, one.stop)
    }
    owners = {number: 10 if number < 23 else 0 for number in range(10, 26)} | dict.fromkeys(range(26, 30), 26)
    owners |= dict.fromkeys(range(10), 0) | ({22: 0} if damaged == (10, 22) else {})
    assert whose == {(owners[one], one) for one in range(30) if one != lost}
    assert [(one.first, one.stop) for one in pieces if isinstance(one, Broken)] == (
        [] if lost is None else [(lost, lost + 1)]
    )


def test_a_renamed_one_that_goes_on_further_hides_none_that_can_be_read(
    storage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under its name nothing of it is found; the segment in front of it was taken to have lost all."""
    monkeypatch.setattr(sys.modules[__name__], "FIRSTS", (0, 26))
    placed_inside(storage, 10)
    write_segment(storage / "0", RECORDS[2:29])
    for path in (seg, idx):
        path(storage, 2).rename(path(storage, 3))
    assert [one for one in read(storage, 0, None)[0] if one[0] != "held"] == []


def test_nothing_is_asked_where_all_join(storage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the directory is listed again nor a header read."""
    monkeypatch.setattr(replica_reading, "SegmentReach", None)
    expect(storage, kinds_of(()))
    write_segment(storage / "0", [], first=30)
    expect(storage, kinds_of(()))
