"""What a replica proves, record by record: ids, places, neighbours and checksums, with a step to each side."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from uuid import UUID

import pytest

from tests.builders import build_directory, make_records, write_segment
from waltzctl.engine.errors import NotWaltzError
from waltzctl.engine.log.local_access import LocalAccess
from waltzctl.engine.log.view import read_control
from waltzctl.engine.repair import replicas
from waltzctl.engine.repair.content import Content, LiteralBytes
from waltzctl.engine.repair.replicas import (
    Agreement,
    Neighbours,
    Proven,
    Refusal,
    ReplicaSegments,
    WitnessRecord,
    find_proven,
    open_replicas,
    same_record,
)
from waltzctl.engine.scan.byte_source import FileSource
from waltzctl.engine.scan.columns import RecordView
from waltzctl.engine.scan.scanner import read_record_at
from waltzctl.formats.checksums import crc32
from waltzctl.formats.segment import (
    HEADER_SIZE,
    RECORD_OVERHEAD,
    Record,
    SegmentHeader,
    encode_records,
    segment_name,
)

RECORDS = make_records(24, size=20)
SIZE = 60
FIRSTS = (4, 10, 16)
"""A replica holds transactions 4 to 23 in three segments."""


def build(path: Path) -> Path:
    build_directory(path, {0: 1}, local_low_water_mark=-1)
    for one in (path / "0").iterdir():
        one.unlink()
    for records in (RECORDS[4:10], RECORDS[10:16], RECORDS[16:]):
        write_segment(path / "0", records)
    return path


def opened(path: Path) -> ReplicaSegments:
    control = read_control(path / "waltz-storage.ctl")
    assert control is not None
    return ReplicaSegments(path, control.header.cluster_key)


@pytest.fixture
def replica(tmp_path: Path) -> ReplicaSegments:
    return opened(build(tmp_path / "r"))


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(bytes(data))


def seg(replica: ReplicaSegments, first: int) -> Path:
    return replica.path / "0" / segment_name(first)


def claims_other(record: Record) -> bytes:
    """The record as a client sent it with a wrong checksum of its data."""
    raw = bytearray(record.encode())
    raw[32:36] = (record.data_checksum ^ 1).to_bytes(4)
    raw[-4:] = crc32(bytes(raw[:-4])).to_bytes(4)
    return bytes(raw)


# --- one record and a row ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize(
    ("number", "held"), [(3, False), (4, True), (9, True), (10, True), (15, True), (23, True), (24, False)]
)
def test_a_record_is_found_by_the_index_or_without_it(
    replica: ReplicaSegments, number: int, indexed: bool, held: bool
) -> None:
    if not indexed:
        for first in FIRSTS:
            seg(replica, first).with_suffix(".idx").unlink()
    assert replica.record(0, number) == (RECORDS[number].encode() if held else None)
    assert replica.record(1, number) is None


@pytest.mark.parametrize("last", [False, True])
def test_a_row_is_taken_without_the_rest_of_its_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, last: bool
) -> None:
    """For each of a thousand losses, up to all that follows in a segment of long records was read."""
    path, size = build(tmp_path / "r"), 100_000
    write_segment(path / "0", make_records(120, first=24, size=size))
    replica = opened(path)
    read, real = [0], FileSource.read_into

    def counted(source: FileSource, offset: int, buffer: memoryview) -> int:
        found = real(source, offset, buffer)
        read[0] += found
        return found

    monkeypatch.setattr(FileSource, "read_into", counted)
    data = seg(replica, 24)
    if last:  # no intact record behind it tells where it ends
        flip(data, HEADER_SIZE + 6 * (size + RECORD_OVERHEAD) + 500)
        flip(data, HEADER_SIZE + 7 * (size + RECORD_OVERHEAD) - 1)
    (run,) = replica.runs(0, 29, 30) or ()
    start = HEADER_SIZE + 5 * (size + RECORD_OVERHEAD)
    assert (run.span.start, run.span.stop) == (start, start + size + RECORD_OVERHEAD)
    assert read[0] < (3_000_000 if last else 500_000)


def test_an_index_that_ends_a_row_within_a_record_costs_nothing(tmp_path: Path) -> None:
    """Data of a record may look like the record that follows it."""
    path = build(tmp_path / "r")
    inner, outer = make_records(2, first=25, size=40), make_records(1, first=24, size=40)
    around = Record.make(25, inner[0].request_id, 0, inner[1].encode() + bytes(50))
    write_segment(path / "0", [*outer, around, inner[1]])
    replica = opened(path)
    index, start = seg(replica, 24).with_suffix(".idx"), HEADER_SIZE + len(outer[0].encode())
    data = bytearray(index.read_bytes())
    data[HEADER_SIZE + 16 : HEADER_SIZE + 24] = (start + 36).to_bytes(8)
    index.write_bytes(bytes(data))
    with FileSource(seg(replica, 24)) as source:
        assert isinstance(read_record_at(source, start + 36, expected_id=26), RecordView)
    (run,) = replica.runs(0, 25, 26) or ()
    assert (run.span.start, run.span.stop) == (start, start + len(around.encode()))


def test_an_index_that_leads_elsewhere_costs_nothing(replica: ReplicaSegments) -> None:
    index = seg(replica, 10).with_suffix(".idx")
    data = index.read_bytes()
    for entry in (
        0,
        127,
        HEADER_SIZE,
        HEADER_SIZE + SIZE - 1,
        HEADER_SIZE + 2 * SIZE,
        HEADER_SIZE + 6 * SIZE,
        -1,
        2**62,
    ):
        index.write_bytes(data[:HEADER_SIZE] + b"".join(entry.to_bytes(8, signed=True) for _ in range(6)))
        for number in range(10, 16):
            assert replica.record(0, number) == RECORDS[number].encode()
    for size in (HEADER_SIZE, HEADER_SIZE + 15, HEADER_SIZE + 7):
        index.write_bytes(data[:size])
        assert replica.record(0, 11) == RECORDS[11].encode()


@pytest.mark.parametrize(
    ("first", "stop", "runs"),
    [
        (4, 5, [(4, 5, 4)]),
        (9, 10, [(9, 10, 4)]),
        (9, 11, [(9, 10, 4), (10, 11, 10)]),
        (4, 24, [(4, 10, 4), (10, 16, 10), (16, 24, 16)]),
        (5, 9, [(5, 9, 4)]),
        (3, 5, None),
        (23, 24, [(23, 24, 16)]),
        (23, 25, None),
        (24, 25, None),
    ],
)
def test_a_row_of_records_is_one_run_for_each_segment(
    replica: ReplicaSegments, first: int, stop: int, runs: list[tuple[int, int, int]] | None
) -> None:
    found = replica.runs(0, first, stop)
    if runs is None:
        assert found is None
        return
    assert found is not None
    assert [(one.first, one.stop, one.begins) for one in found] == runs
    data = b"".join(one.span.path.read_bytes()[one.span.start : one.span.stop] for one in found)
    assert data == encode_records(RECORDS[first:stop])[0]
    assert len(found[0].span) == (found[0].stop - found[0].first) * SIZE
    created = SegmentHeader.decode(seg(replica, runs[0][2]).read_bytes()).created
    assert found[0].created == created


@pytest.mark.parametrize("damaged", [11, 12, 13])
def test_a_row_with_a_damaged_record_in_it_is_none(replica: ReplicaSegments, damaged: int) -> None:
    flip(seg(replica, 10), HEADER_SIZE + SIZE * (damaged - 10) + 40)
    for first, stop in ((10, 11), (11, 13), (12, 13), (13, 14), (13, 16), (12, 15)):
        assert (replica.runs(0, first, stop) is None) == (first <= damaged < stop)
    assert replica.record(0, damaged) is None


def test_a_record_whose_data_is_wrong_is_held_but_makes_no_row(tmp_path: Path) -> None:
    path = build(tmp_path / "r")
    data = seg(replica := opened(path), 10).read_bytes()
    wrong = claims_other(RECORDS[12])
    seg(replica, 10).write_bytes(data[: HEADER_SIZE + 2 * SIZE] + wrong + data[HEADER_SIZE + 3 * SIZE :])
    assert replica.record(0, 12) == wrong
    for first, stop in ((10, 12), (11, 13), (12, 13), (13, 16)):
        assert (replica.runs(0, first, stop) is None) == (first <= 12 < stop)


@pytest.mark.parametrize(
    "change", [{"version": 1}, {"partition": 1}, {"first_transaction_id": 11}, {"cluster_key": None}]
)
def test_a_segment_with_another_header_is_not_used(replica: ReplicaSegments, change: dict[str, object]) -> None:
    path = seg(replica, 10)
    data = path.read_bytes()
    header = SegmentHeader.decode(data)
    if "cluster_key" in change:
        change = {"cluster_key": type(header.cluster_key)(int=header.cluster_key.int ^ 1)}
    path.write_bytes(dataclasses.replace(header, **change).encode() + data[HEADER_SIZE:])  # type: ignore[arg-type]
    assert [one.first for one in replica.segments(0)] == [4, 16]
    assert replica.record(0, 11) is None
    assert replica.record(0, 16) == RECORDS[16].encode()


def test_a_segment_shorter_than_its_header_is_not_used(replica: ReplicaSegments) -> None:
    os.truncate(seg(replica, 10), HEADER_SIZE - 1)
    assert [one.first for one in replica.segments(0)] == [4, 16]


# --- compared ---------------------------------------------------------------------------------------------------------------


def content(first: int, records: list[bytes]) -> Content:
    header = SegmentHeader(0, 0, UUID(int=0), 0, first).encode()
    return Content("here", (LiteralBytes(header + b"".join(records)),))


def raws(first: int, stop: int, **changed: Callable[[Record], bytes]) -> list[bytes]:
    return [changed.get(f"r{n}", Record.encode)(make) for n, make in enumerate(RECORDS[first:stop], first)]


def another(record: Record) -> bytes:
    return Record.make(record.transaction_id, record.request_id, record.header, b"x" * 20).encode()


def broken(record: Record) -> bytes:
    raw = bytearray(record.encode())
    raw[40] ^= 1
    return bytes(raw)


@pytest.mark.parametrize(
    ("first", "records", "agreement"),
    [
        (4, raws(4, 10), Agreement.EQUAL),
        (5, raws(5, 12), Agreement.EQUAL),
        (4, raws(4, 10, r9=another), Agreement.DIFFERS),
        (4, raws(4, 10, r4=another), Agreement.DIFFERS),
        (4, raws(4, 10, r6=broken), Agreement.EQUAL),
        (4, raws(4, 10, r6=broken, r7=another), Agreement.DIFFERS),
        (4, raws(4, 10, r6=broken, r5=another), Agreement.DIFFERS),
        (4, raws(4, 10, r6=claims_other), Agreement.EQUAL),  # the data of one of the two was changed
        (4, raws(4, 10, r6=claims_other, r8=another), Agreement.DIFFERS),
        (0, raws(0, 4), Agreement.SILENT),
        (0, raws(0, 5), Agreement.EQUAL),
        (0, raws(0, 5, r4=another), Agreement.DIFFERS),
        (0, raws(0, 5, r3=another), Agreement.EQUAL),
        (24, [another(dataclasses.replace(RECORDS[0], transaction_id=24))], Agreement.SILENT),
        (4, [], Agreement.SILENT),
    ],
)
def test_how_records_compare_with_those_of_a_replica(
    replica: ReplicaSegments, first: int, records: list[bytes], agreement: Agreement
) -> None:
    assert replica.compare(0, content(first, records), first) is agreement
    assert replica.compare(1, content(first, records), first) is Agreement.SILENT


@pytest.mark.parametrize(("there", "same"), [(None, False), (b"same", True)])
def test_the_same_record(there: bytes | None, *, same: bool) -> None:
    one = RECORDS[5]
    raw = one.encode()
    assert same_record(raw, raw if there else None) == same
    assert not same_record(raw, another(one))
    assert same_record(raw, claims_other(one))
    assert same_record(claims_other(one), raw)
    changed = bytearray(claims_other(one))
    changed[40] ^= 1
    assert same_record(raw, bytes(changed))
    for place in (7, 23, 27, 31):
        other = bytearray(claims_other(one))
        other[place] ^= 1
        assert not same_record(raw, bytes(other)), place
    assert not same_record(raw, raws(6, 7)[0])


# --- proven -------------------------------------------------------------------------------------------------------------------


def beside(before: Record | None, after: Record | None) -> Neighbours:
    made = [None if one is None else WitnessRecord(one.transaction_id, one.encode()) for one in (before, after)]
    return Neighbours(*made)


def other(number: int) -> Record:
    return dataclasses.replace(Record.make(number, RECORDS[0].request_id, 0, b"y" * 20))


@pytest.mark.parametrize(
    ("neighbours", "proven"),
    [
        (beside(None, None), True),
        (beside(RECORDS[9], RECORDS[12]), True),
        (beside(other(9), RECORDS[12]), False),
        (beside(RECORDS[9], other(12)), False),
        (beside(RECORDS[5], RECORDS[14]), True),
        (beside(other(5), RECORDS[14]), False),
        (beside(RECORDS[5], other(14)), False),
        (beside(other(3), RECORDS[12]), True),  # one that is not next to the loss may be missing there
        (beside(RECORDS[9], other(24)), True),
    ],
)
def test_neighbours_prove_records_of_a_replica(
    replica: ReplicaSegments, neighbours: Neighbours, *, proven: bool
) -> None:
    found = find_proven([replica], 0, 10, 12, neighbours)
    assert isinstance(found, Proven) == proven
    if isinstance(found, Proven):
        assert (found.by, len(found), [(one.first, one.stop) for one in found.runs]) == (
            str(replica.path),
            2 * SIZE,
            [(10, 12)],
        )


def test_a_neighbour_next_to_the_loss_must_be_there(replica: ReplicaSegments) -> None:
    assert isinstance(find_proven([replica], 0, 4, 5, beside(other(3), None)), Refusal)
    assert isinstance(find_proven([replica], 0, 4, 5, beside(other(2), None)), Proven)
    assert isinstance(find_proven([replica], 0, 23, 24, beside(None, other(24))), Refusal)
    assert isinstance(find_proven([replica], 0, 23, 24, beside(None, other(25))), Proven)


def find_why(replicas: Sequence[ReplicaSegments], neighbours: Neighbours) -> str:
    found = find_proven(replicas, 0, 11, 12, neighbours)
    assert isinstance(found, Refusal)
    return found.why


def test_replicas_that_disagree_prove_nothing_and_one_that_has_none_does_not_count(tmp_path: Path) -> None:
    one, same, differing, without = (opened(build(tmp_path / name)) for name in "abcd")
    path = seg(differing, 10)
    data = path.read_bytes()
    path.write_bytes(data[: HEADER_SIZE + SIZE] + another(RECORDS[11]) + data[HEADER_SIZE + 2 * SIZE :])
    seg(without, 10).unlink()
    nothing = Neighbours(None, None)
    for asked, proven in (
        ([], None),
        ([one], one),
        ([one, same], one),
        ([without, same], same),
        ([without], None),
        ([one, differing], None),
        ([differing], differing),
    ):
        found = find_proven(asked, 0, 11, 12, nothing)
        assert (found.replicas if isinstance(found, Proven) else None) == (None if proven is None else (proven.path,))
    assert isinstance(find_proven([one, differing], 0, 12, 14, nothing), Proven)
    refused = find_proven([without, differing], 0, 11, 12, beside(None, RECORDS[11]))
    assert isinstance(refused, Refusal)
    assert refused.why.count("does not hold") == 1
    assert "another record 11 behind" in refused.why
    assert "another record" not in find_why([without], beside(RECORDS[10], other(12)))
    assert "another record 10 before" in find_why([one], beside(other(10), other(12))), "what is said first is enough"


def damage(replica: ReplicaSegments, *numbers: int) -> None:
    path = seg(replica, 10)
    data = bytearray(path.read_bytes())
    for number in numbers:
        data[HEADER_SIZE + SIZE * (number - 10) + 40] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damaged", "runs"),
    [
        (((12,), (11,)), [(11, 12), (12, 13), (13, 14)]),  # of 13 both agree
        (((11, 13), (12,)), [(11, 12), (12, 13), (13, 14)]),
        (((11, 12), (13,)), [(11, 13), (13, 14)]),
        (((12,), (12,)), None),
        (((11, 12), (12, 13)), None),
    ],
)
def test_what_no_replica_holds_alone_is_joined(
    tmp_path: Path, damaged: tuple[tuple[int, ...], ...], runs: list[tuple[int, int]] | None
) -> None:
    """Records 11 to 13 are lost; each must stand on one that has the same ones on both sides."""
    held = [opened(build(tmp_path / name)) for name in "ab"]
    for one, numbers in zip(held, damaged, strict=True):
        damage(one, *numbers)
    found = find_proven(held, 0, 11, 14, beside(RECORDS[10], RECORDS[14]))
    assert (None if isinstance(found, Refusal) else [(one.first, one.stop) for one in found.runs]) == runs
    if isinstance(found, Proven):
        content = Content("", tuple(one.span for one in found.runs))
        assert content.read(0, 3 * SIZE) == b"".join(one.encode() for one in RECORDS[11:14])
        assert set(found.replicas) == {one.path for one in held}
    assert isinstance(find_proven(held, 0, 11, 14, Neighbours(None, None)), Refusal), "nothing tells whose they are"
    assert isinstance(find_proven(held, 0, 11, 14, beside(other(10), None)), Refusal)


@pytest.mark.parametrize(("most", "joined"), [(2, False), (3, True)])
def test_so_many_records_are_joined(
    tmp_path: Path, most: int, *, joined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "MOST_JOINED", most)
    held = [opened(build(tmp_path / name)) for name in "ab"]
    damage(held[0], 12)
    damage(held[1], 11)
    found = find_proven(held, 0, 11, 14, beside(RECORDS[10], RECORDS[14]))
    assert isinstance(found, Proven) == joined


def test_what_is_joined_must_agree(tmp_path: Path) -> None:
    one, two = (opened(build(tmp_path / name)) for name in "ab")
    damage(one, 11)
    damage(two, 12)
    path = seg(two, 10)
    data = path.read_bytes()
    path.write_bytes(data[: HEADER_SIZE + 3 * SIZE] + another(RECORDS[13]) + data[HEADER_SIZE + 4 * SIZE :])
    found = find_proven([one, two], 0, 11, 14, beside(RECORDS[10], RECORDS[14]))
    assert isinstance(found, Refusal)
    assert "disagree" in found.why


def test_a_replica_that_cannot_be_read_proves_nothing(replica: ReplicaSegments) -> None:
    control = read_control(replica.path / "waltz-storage.ctl")
    assert control is not None
    replica.segments(0)
    seg(replica, 10).unlink()
    seg(replica, 10).mkdir()
    found = find_proven([replica], 0, 11, 12, Neighbours(None, None))
    assert isinstance(found, Refusal)
    assert "cannot be read" in found.why


def test_the_end_of_a_segment_is_the_end_of_a_run(tmp_path: Path) -> None:
    root = build_directory(tmp_path / "r", {0: [RECORDS[4:10]]}, local_low_water_mark=-1)
    write_segment(root / "0", RECORDS[12:16])
    found = opened(root)
    assert found.runs(0, 8, 13) is None
    assert found.record(0, 10) is None
    assert open_replicas([], root, read_control(root / "waltz-storage.ctl")) == ()  # type: ignore[arg-type]


def test_the_work_grows_with_the_partitions_and_not_with_their_square(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each partition was looked for in the whole replica: 3,000 damaged ones took minutes."""
    listed: list[str] = []
    names = LocalAccess.names

    def heard(self: LocalAccess, path: PurePath) -> list[str]:
        found = names(self, path)
        listed.extend(found)
        return found

    replica = opened(build_directory(tmp_path / "r", dict.fromkeys(range(40), 2)))
    monkeypatch.setattr(LocalAccess, "names", heard)
    assert all(replica.record(number, 1) for number in range(40))
    assert len(listed) == 40 * 2


def test_a_replica_without_the_partition_holds_nothing_and_one_that_is_gone_is_told(replica: ReplicaSegments) -> None:
    assert replica.segments(1) == []
    (Path(replica.path) / "2").write_bytes(b"a file")
    assert replica.segments(2) == []
    shutil.rmtree(replica.path)
    with pytest.raises(NotWaltzError, match="no such directory"):
        replica.segments(3)


@pytest.mark.parametrize("falling", [False, True])
def test_without_an_index_a_record_is_sought_from_the_last_place_in_front_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, falling: bool
) -> None:
    """For each of thousands of losses the replica's segment was read from its header on."""
    count, step = 4000, 40
    records = make_records(count, size=1000)
    build_directory(tmp_path / "a", {0: count}, per_segment=count, size=1000, local_low_water_mark=-1)
    for one in (tmp_path / "a" / "0").glob("*.idx"):
        one.unlink()
    replica, scan, seen = opened(tmp_path / "a"), replicas.summarise_records, [0]

    def counted(*given: object, **more: object) -> object:
        for item in scan(*given, **more):  # type: ignore[arg-type]
            seen[0] += len(item)
            yield item

    monkeypatch.setattr(replicas, "summarise_records", counted)
    wanted = range(count - 1, -1, -step) if falling else range(0, count, step)
    for number in wanted:
        assert replica.record(0, number) == encode_records([records[number]])[0]
    assert seen[0] <= count + len(wanted) * 600
    assert replica.record(0, count) is None


def test_a_replica_out_of_order_gives_the_first_of_two_records(tmp_path: Path) -> None:
    """Also behind a search that came past both."""
    build_directory(tmp_path / "a", {0: 1}, local_low_water_mark=-1)
    for one in (tmp_path / "a" / "0").iterdir():
        one.unlink()
    first, second = make_records(300, size=2000), make_records(300, size=2100)
    path = tmp_path / "a" / "0" / segment_name(0)
    write_segment(tmp_path / "a" / "0", first)
    path.write_bytes(path.read_bytes() + encode_records(second[100:])[0])
    for one in (tmp_path / "a" / "0").glob("*.idx"):
        one.unlink()
    replica = opened(tmp_path / "a")
    for number in (299, 100, 250, 0, 99, 299):
        assert replica.record(0, number) == encode_records([first[number]])[0]
