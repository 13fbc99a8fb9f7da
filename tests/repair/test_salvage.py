"""Salvage of whole inputs: everything intact is found once, nothing is invented, sources stay as they are."""

from __future__ import annotations

import os
import random
import uuid
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import CREATED, KEY, build_directory, digest, make_records, segment_header
from tests.golden import GOLDEN, needs_golden
from tests.repair.salvage_cases import OTHER, assert_adds_up, assert_clean, data_file, records_in, without
from tests.storage.support import put_aside_behind_a_link
from waltzctl.engine.errors import DiskReadError, DiskWriteError, InvalidRequestError, NotWaltzError
from waltzctl.engine.findings import Code
from waltzctl.engine.inspect.verify import verify
from waltzctl.engine.repair.salvage import IdRange, salvage
from waltzctl.engine.repair.salvage_attribution import request_ids_agree
from waltzctl.engine.repair.salvage_headers import FoundHeader, HeaderKind
from waltzctl.engine.repair.salvage_runs import SalvageRun
from waltzctl.engine.storage.directory import StorageDirectory
from waltzctl.formats.checksums import crc32
from waltzctl.formats.control import CONTROL_FILE_NAME, Layout, decode_control, initial_control
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import Record, encode_records, index_name, pack_record_header, segment_name


def state(path: Path) -> dict[str, tuple[str, int]]:
    return {name: (sha, (path / name).stat().st_mtime_ns) for name, sha in digest(path).items()}


@pytest.mark.parametrize("layout", Layout)
def test_a_clean_directory_comes_back_whole(tmp_path: Path, layout: Layout) -> None:
    source = build_directory(tmp_path / "source", {0: 120, 2: 30}, num_partitions=4, layout=layout)
    before = state(source)
    report = salvage([source], to=tmp_path / "to", layout=layout)
    assert records_in(report.path) == records_in(source)
    assert (report.found, report.written, report.missing, report.exit_status_name) == (150, 150, 0, "clean")
    assert (report.cluster_key, report.num_partitions, report.layout) == (KEY, 4, layout)
    assert report.sources == len(before)
    assert report.headers == len(before)
    assert_clean(report)
    assert state(source) == before
    control = decode_control((report.path / "waltz-storage.ctl").read_bytes())
    assert (control.layout, control.size_fits, len(control.partitions)) == (layout, True, 4)
    original = decode_control((source / "waltz-storage.ctl").read_bytes())
    for info, known in zip(control.partitions, original.partitions, strict=True):
        assert info.current_struct is not None
        assert known.current_struct is not None
        assert info.current_struct.marks == known.current_struct.marks
        if layout is Layout.RELEASED:
            assert info.current_struct.assigned == (info.partition in (0, 2))


@pytest.mark.turns(8)
@needs_golden
@pytest.mark.parametrize("node", [1, 2, 3])
def test_directories_of_the_release_come_back_whole(tmp_path: Path, node: int) -> None:
    assert GOLDEN is not None
    source = GOLDEN / "cluster-a" / f"storage-{node}"
    report = salvage([source], to=tmp_path / "to")
    assert records_in(report.path) == records_in(source)
    assert report.exit_status_name == "clean"
    assert_clean(report)


@needs_golden
def test_three_replicas_of_the_release_are_one_copy_and_duplicates(tmp_path: Path) -> None:
    assert GOLDEN is not None
    sources = sorted((GOLDEN / "cluster-a").glob("storage-*"))
    report = salvage(sources, to=tmp_path / "to")
    assert records_in(report.path) == records_in(sources[0])
    assert report.duplicates == 2 * report.written
    assert report.conflicts == ()


@settings(max_examples=40)
@given(st.data())
def test_any_flipped_bit_of_data_files_costs_at_most_its_record(tmp_path_factory, data: st.DataObject) -> None:  # type: ignore[no-untyped-def]
    """Also in a header: the other files and the records' request ids still tell whose they are."""
    directory = tmp_path_factory.mktemp("flip")
    records = {p: make_records(6, partition=p, size=20) for p in (3, 4, 9)}
    parts = [data_file(records[p][at : at + 2], partition=p) for p in records for at in (0, 2, 4)]
    parts.append(data_file(make_records(60, size=0), partition=0))
    raw, size = bytearray(b"".join(parts)), len(parts[0])
    place, bit = data.draw(st.integers(0, 9 * size - 1)), data.draw(st.integers(0, 7))
    raw[place] ^= 1 << bit
    (directory / "source").write_bytes(raw)
    report = salvage([directory / "source"], to=directory / "to")
    expected = dict(records) | {0: make_records(60, size=0)}
    file, inside = divmod(place, size)
    if inside >= 128:
        partition = list(records)[file // 3]
        expected[partition] = without(records[partition], file % 3 * 2 + (inside - 128) // 60)
    assert records_in(report.path) == expected
    assert report.cluster_key == KEY
    assert [one.contradicted for one in report.partitions] == [0, 0, 0, 0]
    assert_adds_up(report)


def test_of_two_keys_that_are_nearly_equal_the_one_asked_for_counts(tmp_path: Path) -> None:
    """A random key is never within four bits of another, so the other one is a damaged copy of it."""
    near = uuid.UUID(int=KEY.int ^ (0b101 << 70))
    (tmp_path / "source").write_bytes(data_file(make_records(5)) + data_file(make_records(5, first=5), key=near))
    for key in (KEY, near):
        report = salvage([tmp_path / "source"], to=tmp_path / str(key), cluster_key=key)
        assert (report.cluster_key, report.written, report.elsewhere) == (key, 10, 0)


def test_a_single_header_is_believed_against_the_request_ids_but_the_report_says_so(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(data_file(make_records(5, partition=1), partition=2))
    (partition,) = salvage([tmp_path / "source"], to=tmp_path / "to").partitions
    assert (partition.partition, partition.contradicted) == (2, 5)


def test_a_copy_of_another_partitions_records_behind_a_header_is_told(tmp_path: Path) -> None:
    """They stand in both partitions then, and verify says whose they are; the report says so too, and does not end well."""
    records = make_records(5, partition=1)
    source = data_file(records, partition=1) + data_file(records, partition=2)
    (tmp_path / "source").write_bytes(source)
    report = salvage([tmp_path / "source"], to=tmp_path / "to")
    *found, _ = verify([report.path])
    assert [one.code for one in report.findings] == [Code.SEGMENT_PARTITION]
    assert found == [*report.findings]
    assert report.exit_status_name == "damage-remains"


def test_request_ids_that_name_several_partitions_contradict_none(tmp_path: Path) -> None:
    """They say nothing, together, of the run that they stand in."""
    records = [replace_partition(one, number % 3) for number, one in enumerate(make_records(6, partition=2))]
    (tmp_path / "source").write_bytes(data_file(records, partition=2))
    (partition,) = salvage([tmp_path / "source"], to=tmp_path / "to").partitions
    assert (partition.partition, partition.records, partition.contradicted) == (2, 6, 0)


def test_records_right_behind_a_control_file_are_not_those_of_a_partition_of_its_number(tmp_path: Path) -> None:
    """In an image one file lies behind the other: the number in a control file's header is how many partitions there are."""
    control = initial_control(Layout.RELEASED, KEY, 3, CREATED)
    info = control.partitions[0]
    control = replace(control, partitions=(info.with_struct(*info.updated(session_id=1)), *control.partitions[1:]))
    records = [replace_partition(one, number % 3) for number, one in enumerate(make_records(5))]
    body = b"".join(one.encode() for one in records)
    (tmp_path / "source").write_bytes(control.encode() + body + data_file(make_records(5, partition=2), partition=2))
    report = salvage([tmp_path / "source"], to=tmp_path / "to")
    assert [one.partition for one in report.partitions if one.records] == [2]
    assert report.doubtful_records == 5


def test_records_of_another_file_do_not_stand_behind_the_header_of_the_one_before(tmp_path: Path) -> None:
    first = data_file(make_records(5, partition=2), partition=2)
    records = [replace_partition(one, number % 3) for number, one in enumerate(make_records(5, first=5))]
    (tmp_path / "a").write_bytes(first)
    (tmp_path / "b").write_bytes(bytes(len(first)) + b"".join(one.encode() for one in records))
    (partition,) = salvage([tmp_path / "a", tmp_path / "b"], to=tmp_path / "to").partitions
    assert partition.by_witness == {"header": 5, "continuation": 5}


@pytest.mark.parametrize(("agreeing", "others", "heard"), [(95, 5, False), (99, 1, True), (98, 2, False)])
def test_request_ids_that_agree_about_one_partition_alone_have_to_do_so_nearly_always(
    agreeing: int, others: int, heard: bool
) -> None:
    """However many others there are headers of."""
    headers = [FoundHeader(0, 1000 * n, HeaderKind.SEGMENT, KEY, n, 0) for n in range(2)]
    runs = [
        SalvageRun(0, headers[n].end, headers[n].end + 1, 0, np.full(count, 60, np.uint32), 0)
        for n, count in enumerate((agreeing, others))
    ]
    assert request_ids_agree(headers, runs) is heard


def replace_partition(record: Record, partition: int) -> Record:
    request_id = replace(record.request_id, partition=partition)
    return Record.make(record.transaction_id, request_id, record.header, record.data)


@st.composite
def images(draw: st.DrawFn) -> tuple[bytes, dict[int, list[Record]]]:
    """Segments of three partitions in any order, whole, cut or copied, with other bytes in between."""
    seed = draw(st.integers(0, 2**32))
    noise = random.Random(seed)
    parts: list[bytes] = []
    for partition in range(3):
        records = make_records(draw(st.integers(1, 25)), partition=partition, seed=seed)
        cuts = sorted(draw(st.sets(st.integers(1, 24), max_size=3)))
        for first, end in zip([0, *cuts], [*cuts, 25], strict=True):
            if records[first:end]:
                parts.append(data_file(records[first:end], partition=partition))
    parts = draw(st.permutations(parts))
    parts += draw(st.lists(st.sampled_from(parts), max_size=2))
    image = b""
    whole: dict[int, dict[int, Record]] = {}
    for part in parts:
        image += draw(st.sampled_from([b"", bytes(700), noise.randbytes(50), b"text " * 60]))
        keep = draw(st.sampled_from([len(part), len(part), draw(st.integers(0, len(part)))]))
        image += part[:keep]
        partition, offset = int.from_bytes(part[28:32]), 128
        while offset < keep:
            record = Record.decode(part[offset : offset + 40 + int.from_bytes(part[offset + 28 : offset + 32])])
            offset += record.size
            if offset <= keep:
                whole.setdefault(partition, {})[record.transaction_id] = record
    return image, {p: [found[number] for number in sorted(found)] for p, found in whole.items()}


@settings(max_examples=30)
@given(images())
def test_everything_intact_in_an_image_is_written_once_and_nothing_else(tmp_path_factory, case) -> None:  # type: ignore[no-untyped-def]
    image, expected = case
    directory = tmp_path_factory.mktemp("image")
    (directory / "image").write_bytes(image)
    if not expected:
        with pytest.raises(NotWaltzError):
            salvage([directory / "image"], to=directory / "to")
        return
    report = salvage([directory / "image"], to=directory / "to", cluster_key=KEY)
    assert records_in(report.path) == expected
    assert_adds_up(report)
    assert (report.doubtful, report.conflicts) == ((), ())


def test_a_disk_image_with_files_in_fragments(tmp_path: Path) -> None:
    """Blocks of files in any order, other data between them: the records that a seam splits are put together again."""
    noise = random.Random(7)
    fragments: list[bytes] = []
    for partition in range(3):
        raw = data_file(make_records(300, partition=partition, size=100), partition=partition)
        blocks = [raw[at : at + 4096].ljust(4096, b"\0") for at in range(0, len(raw), 4096)]
        fragments += [b"".join(blocks[at : at + 3]) for at in range(0, len(blocks), 3)]
    noise.shuffle(fragments)
    image = b"".join(part + noise.choice([b"", bytes(8192), noise.randbytes(4096)]) for part in fragments)
    (tmp_path / "disk").write_bytes(image)
    report = salvage([tmp_path / "disk"], to=tmp_path / "to")
    assert records_in(report.path) == {p: make_records(300, partition=p, size=100) for p in range(3)}
    assert (report.found, report.joined, report.doubtful) == (900, 9, ())
    assert_clean(report)


@settings(max_examples=30)
@given(
    st.integers(0, 3000),
    st.integers(1, 8),
    st.integers(0, 600),
    st.booleans(),
    st.sampled_from([b"", b"z" * 512, b"n" * 1536]),
)
def test_a_record_split_at_any_place_is_put_together(tmp_path_factory, size, seam, shift, swapped, between) -> None:  # type: ignore[no-untyped-def]
    """Wherever the seam falls, in the header too, and whichever fragment lies first."""
    directory = tmp_path_factory.mktemp("split")
    records = [*make_records(3, size=shift), *make_records(1, first=3, size=size), *make_records(4, first=4, size=33)]
    raw = data_file(records)
    raw = raw.ljust(-(-len(raw) // 512) * 512, b"\0")
    cut = min(seam * 512, len(raw) // 512 * 512)
    parts = [raw[:cut], between, raw[cut:]]
    (directory / "disk").write_bytes(b"o" * 512 + b"".join(parts[::-1] if swapped else parts))
    report = salvage([directory / "disk"], to=directory / "to")
    ends, alone = 128, set()
    for place, record in enumerate(records if swapped or between else ()):
        if ends < cut < ends + record.size and place in (0, len(records) - 1):
            alone.add(place)  # it takes a whole record on either side to show that one is missing
        ends += record.size
    assert records_in(report.path) == {0: without(records, *alone)}
    assert_adds_up(report)


def test_a_split_record_that_is_damaged_stays_missing(tmp_path: Path) -> None:
    raw = data_file(make_records(20, size=300))
    raw = damaged(raw.ljust(-(-len(raw) // 512) * 512, b"\0"), 2048 - 5)
    (tmp_path / "disk").write_bytes(raw[2048:] + raw[:2048])
    report = salvage([tmp_path / "disk"], to=tmp_path / "to")
    assert (report.joined, report.missing) == (0, 1)
    assert records_in(report.path) == {0: without(make_records(20, size=300), (2048 - 5 - 128) // 340)}


def test_a_torn_file_a_gap_and_what_is_missing(tmp_path: Path) -> None:
    records = make_records(40, size=30)
    (tmp_path / "a").write_bytes(data_file(records[5:10])[:-1])
    (tmp_path / "b").write_bytes(data_file(records[20:]))
    report = salvage([tmp_path / "a", tmp_path / "b"], to=tmp_path / "to")
    (partition,) = report.partitions
    assert partition.missing == (IdRange(0, 4), IdRange(9, 19))
    assert (partition.first_transaction_id, partition.last_transaction_id, partition.segments) == (5, 39, 2)
    assert records_in(report.path) == {0: records[5:9] + records[20:]}
    assert report.exit_status_name == "damage-remains"
    assert_clean(report, gaps=2)


def test_only_the_partition_that_was_asked_for(tmp_path: Path) -> None:
    source = build_directory(tmp_path / "source", {0: 10, 1: 20, 2: 5})
    report = salvage([source], to=tmp_path / "to", partition=1, num_partitions=8)
    assert records_in(report.path) == {1: records_in(source)[1]}
    assert (report.written, report.elsewhere, report.num_partitions) == (20, 15, 8)
    assert_clean(report)


def test_segments_are_cut_where_the_release_would_cut_them(tmp_path: Path) -> None:
    """A segment is closed by the record behind the one that crossed the threshold: two of 50 bytes with 178."""
    records = make_records(7, size=10)
    (tmp_path / "source").write_bytes(data_file(records))
    report = salvage([tmp_path / "source"], to=tmp_path / "to", segment_size_threshold=178)
    sizes = [path.stat().st_size for path in sorted(report.path.glob("0/*.seg"))]
    assert sizes == [228, 228, 228, 178]
    assert records_in(report.path) == {0: records}
    assert_clean(report)


def test_several_clusters_must_be_told_apart(tmp_path: Path) -> None:
    records, others = make_records(10), make_records(4, seed=1)
    (tmp_path / "source").write_bytes(data_file(records) + data_file(others, key=OTHER))
    with pytest.raises(InvalidRequestError) as refused:
        salvage([tmp_path / "source"], to=tmp_path / "to")
    assert f"{KEY} (10 records), {OTHER} (4 records)" in str(refused.value)
    assert not (tmp_path / "to").exists()
    report = salvage([tmp_path / "source"], to=tmp_path / "to", cluster_key=OTHER)
    assert records_in(report.path) == {0: others}
    assert report.elsewhere == 10
    assert_clean(report)


def test_what_only_its_ids_give_to_another_cluster_is_doubtful(tmp_path: Path) -> None:
    """It is of the cluster that is asked for, whose records in front of it are lost: it was counted as the other one's."""
    mine, others = make_records(9, partition=1), make_records(5, partition=2, seed=1)
    lost = encode_records(make_records(20))[0][5:]
    parts = [data_file(mine, partition=1), data_file(others, partition=0, key=OTHER)]
    behind = [encode_records(make_records(3, first=first))[0] for first in (5, 8)]
    for name, data in (
        ("1", b"".join(parts)),
        ("2", b"?" * 99 + behind[0]),
        ("3", b"?" * 99 + behind[1]),
        ("4", lost[:50]),
    ):
        (tmp_path / name).write_bytes(data)
    sources = [tmp_path / name for name in ("1", "2", "3", "4")]
    report = salvage(sources, to=tmp_path / "to", cluster_key=KEY)
    assert records_in(report.path) == {1: mine}
    assert (report.doubtful_records, report.elsewhere) == (6, 5)
    assert {one.reason for one in report.doubtful} == {
        f"its ids alone continue partition 0 of {OTHER}, and no header tells its cluster"
    }
    assert report.exit_status_name == "damage-remains"
    assert_adds_up(report)
    told = salvage(sources, to=tmp_path / "other", cluster_key=OTHER)
    assert (told.written, told.doubtful_records, told.elsewhere) == (11, 0, 9)
    assert told.partitions[0].by_witness == {"header": 5, "continuation": 6}


def test_a_cluster_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(data_file(make_records(10)))
    with pytest.raises(NotWaltzError, match=f"10 of cluster {KEY}"):
        salvage([tmp_path / "source"], to=tmp_path / "to", cluster_key=OTHER)
    with pytest.raises(NotWaltzError, match="10 of partition 0"):
        salvage([tmp_path / "source"], to=tmp_path / "to", partition=3)


def test_records_without_any_header_need_a_key_and_tell_their_partition_by_their_request_ids(tmp_path: Path) -> None:
    records = make_records(20, partition=5)
    (tmp_path / "source").write_bytes(b"some other bytes" + encode_records(records)[0])
    with pytest.raises(InvalidRequestError, match="--key"):
        salvage([tmp_path / "source"], to=tmp_path / "to")
    report = salvage([tmp_path / "source"], to=tmp_path / "to", cluster_key=KEY)
    assert records_in(report.path) == {5: records}
    assert report.partitions[0].by_witness == {"request-id": 20}
    assert (report.cluster_key, report.num_partitions) == (KEY, 6)


def mixed_request_ids(count: int, first: int = 0) -> list[Record]:
    """Records of clients that put anything into their request ids."""
    return [Record.make(t, RequestId(1, 2, t % 7 - 3, 4), 0, b"data %d" % t) for t in range(first, first + count)]


def test_records_that_nothing_speaks_for_are_doubtful_unless_the_partition_is_named(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(encode_records(mixed_request_ids(20))[0])
    with pytest.raises(NotWaltzError, match="20 of which nothing tells"):
        salvage([tmp_path / "source"], to=tmp_path / "to", cluster_key=KEY)
    report = salvage([tmp_path / "source"], to=tmp_path / "to", cluster_key=KEY, partition=2)
    assert records_in(report.path) == {2: mixed_request_ids(20)}
    assert report.partitions[0].by_witness == {"caller": 20}


def test_request_ids_that_contradict_the_headers_are_not_heard(tmp_path: Path) -> None:
    """All request ids say partition 0, the header says 3: a run without header is then nobody's, but for its first id."""
    records = make_records(30, partition=0)
    (tmp_path / "source").write_bytes(data_file(records[:10], partition=3))
    (tmp_path / "next").write_bytes(encode_records(records[10:20])[0])
    (tmp_path / "stray").write_bytes(encode_records(records[25:])[0])
    report = salvage(sorted(tmp_path.iterdir()), to=tmp_path / "to")
    assert records_in(report.path) == {3: records[:20]}
    assert report.partitions[0].by_witness == {"header": 10, "continuation": 10}
    (doubt,) = report.doubtful
    assert (doubt.path.name, doubt.offset, doubt.records) == ("stray", 0, 5)
    assert (doubt.first_transaction_id, doubt.last_transaction_id) == (25, 29)
    assert doubt.length == (tmp_path / "stray").stat().st_size
    assert_adds_up(report)


def outer_with(inner: bytes, number: int) -> Record:
    return Record.make(number, RequestId(1, 2, 0, number), 0, b"before" + inner + b"behind")


def damaged(raw: bytes, place: int) -> bytes:
    return raw[:place] + bytes([raw[place] ^ 4]) + raw[place + 1 :]


@pytest.mark.parametrize("first", [3, 4, 5, 6, 900])
@pytest.mark.parametrize("field", [30, 33, 40, -1])
def test_records_in_the_data_of_a_damaged_record_are_not_believed(tmp_path: Path, first: int, field: int) -> None:
    """Whatever their ids, and whether length, checksum or data of the record around them is damaged."""
    records = make_records(10, size=50)
    inner = encode_records(make_records(4, first=first, size=20, seed=9))[0]
    outer = outer_with(inner, 4)
    raw = data_file([*records[:4], outer, *records[5:]])
    start = 128 + 4 * 90
    place = start + field if field >= 0 else start + outer.size - 1
    (tmp_path / "source").write_bytes(damaged(raw, place))
    report = salvage([tmp_path / "source"], to=tmp_path / "to")
    assert records_in(report.path) == {0: without(records, 4)}
    (doubt,) = report.doubtful
    assert (doubt.records, doubt.offset) == (4, start + 36 + 6)
    assert "damaged record" in doubt.reason
    assert_adds_up(report)


def test_records_in_the_data_of_a_torn_record_are_not_believed(tmp_path: Path) -> None:
    records = make_records(4, size=50)
    inner = encode_records(make_records(4, first=5, size=20, seed=9))[0]
    raw = data_file([*records, outer_with(inner + bytes(500), 4)])
    (tmp_path / "source").write_bytes(raw[:-300])
    report = salvage([tmp_path / "source"], to=tmp_path / "to")
    assert records_in(report.path) == {0: records}
    assert report.doubtful_records == 4


def test_a_length_that_leads_out_of_a_torn_file_does_not_cost_what_follows(tmp_path: Path) -> None:
    """A record with a damaged length and damaged data, and a torn record at the end: nothing proves where the first ends."""
    records = make_records(40, size=50)
    raw = bytearray(data_file(records)[:-5])
    place = 128 + 10 * 90
    raw[place + 28 : place + 50] = b"\0\0\x40\0" + b"garbage" + bytes(11)
    (tmp_path / "source").write_bytes(raw)
    report = salvage([tmp_path / "source"], to=tmp_path / "to")
    assert records_in(report.path) == {0: without(records, 10, 39)}
    assert report.doubtful == ()


def test_a_whole_segment_in_the_data_of_an_intact_record_is_data(tmp_path: Path) -> None:
    inner = data_file(make_records(5, first=100, partition=1), partition=1)
    records = [*make_records(3), outer_with(inner, 3), *make_records(2, first=4)]
    (tmp_path / "source").write_bytes(data_file(records))
    report = salvage([tmp_path / "source"], to=tmp_path / "to")
    assert records_in(report.path) == {0: records}
    assert report.found == 6


def test_damage_to_the_first_record_leaves_the_header_a_witness(tmp_path: Path) -> None:
    records = mixed_request_ids(10)
    raw = data_file(records, partition=2)
    (tmp_path / "source").write_bytes(raw[:128] + bytes(20) + raw[148:])
    report = salvage([tmp_path / "source"], to=tmp_path / "to")
    assert records_in(report.path) == {2: records[1:]}
    assert report.partitions[0].by_witness == {"header": 9}


def test_records_whose_data_disagrees_with_its_checksum_are_kept_and_named(tmp_path: Path) -> None:
    records = make_records(10, size=25)
    head = pack_record_header(6, records[6].request_id, 0, 25, 12345)
    bad = replace(records[6], header=0, data_checksum=12345, record_checksum=crc32(records[6].data, crc32(head)))
    (tmp_path / "source").write_bytes(data_file([*without(records, 6, 7, 8, 9), bad, *records[7:]]))
    report = salvage([tmp_path / "source"], to=tmp_path / "to")
    (found,) = report.findings
    assert (found.code, found.partition, found.transaction_id) == ("data-checksum", 0, 6)
    assert found.path == report.path / "0" / "0000000000000000000.seg"
    assert (found.offset, found.length) == (128 + 6 * 65, 65)
    assert report.exit_status_name == "damage-remains"
    (told,) = [one for one in verify([report.path]) if hasattr(one, "code")]
    assert (told.code, told.transaction_id, told.offset) == ("data-checksum", 6, found.offset)


def test_a_directory_stands_for_everything_below_it_and_links_are_not_followed(tmp_path: Path) -> None:
    deep = tmp_path / "source" / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "anything.bin").write_bytes(data_file(make_records(5)))
    (deep / "empty").write_bytes(b"")
    os.symlink(tmp_path / "source", deep / "round-and-round")
    (tmp_path / "elsewhere").write_bytes(data_file(make_records(5, first=5)))
    os.symlink(tmp_path / "elsewhere", deep / "link")
    report = salvage([tmp_path / "source"], to=tmp_path / "to")
    assert (report.sources, report.written) == (2, 5)
    assert salvage([deep / "link"], to=tmp_path / "linked").written == 5  # named by the caller, it is meant


@pytest.mark.parametrize("aside", [False, True])
def test_what_a_storage_directory_has_on_another_disk_is_read(tmp_path: Path, aside: bool) -> None:
    """A node, verify and repairs follow these links; the records were left out, and "nothing missing" was the answer."""
    source = build_directory(tmp_path / "source", {0: 5, 1: 50}, local_low_water_mark=-1, layout=Layout.DOCUMENTED)
    other = tmp_path / "disk"
    put_aside_behind_a_link(source, other, 1)
    if not aside:
        with StorageDirectory.open(source) as opened:
            opened.assign(1)
    data = source / "0" / segment_name(0)
    data.rename(other / "x.seg")
    data.symlink_to(other / "x.seg")
    (source / "0" / "again.seg").symlink_to(data)  # the same file is read once
    report = salvage([source], to=tmp_path / "to")
    assert (report.written, report.duplicates, report.exit_status_name) == (55, 0, "clean")
    with pytest.raises(InvalidRequestError, match="lies inside the source"):
        salvage([source], to=other / "1" / "to")
    other.rename(tmp_path / "away")
    for link in (data, source / "0" / "again.seg"):
        link.unlink()
    with pytest.raises(DiskReadError, match="cannot list: No such file") as refused:  # nothing else is there
        salvage([source], to=tmp_path / "again")
    assert "mount what the link leads to" in (refused.value.advice or "")


def linked_segment(tmp_path: Path) -> tuple[Path, Path]:
    """A storage directory whose last segment is on another disk, and that segment's data file."""
    source = build_directory(tmp_path / "source", {0: 20}, per_segment=10, local_low_water_mark=-1)
    data = source / "0" / segment_name(10)
    away = tmp_path / "disk" / data.name
    away.parent.mkdir()
    data.rename(away)
    data.symlink_to(away)
    return source, away


def test_a_segment_whose_disk_is_not_mounted_is_not_left_out(tmp_path: Path) -> None:
    source, away = linked_segment(tmp_path)
    assert salvage([source], to=tmp_path / "to").written == 20
    away.parent.rename(tmp_path / "away")
    for named in (source, source / "0"):
        report = salvage([named], to=tmp_path / f"again-{named.name}")
        assert (report.written, report.exit_status_name) == (10, "damage-remains")
        (told,) = report.unread
        assert told.path == source / "0" / segment_name(10)
        assert "cannot examine: No such file" in told.message
        assert "mount what the link leads to" in told.message


def test_a_control_file_whose_disk_is_not_mounted_is_not_left_out(tmp_path: Path) -> None:
    """Without it all marks would be lost."""
    source = build_directory(tmp_path / "source", {0: 20}, local_low_water_mark=-1)
    (source / CONTROL_FILE_NAME).rename(tmp_path / "disk")
    (source / CONTROL_FILE_NAME).symlink_to(tmp_path / "not-mounted")
    with pytest.raises(DiskReadError, match="cannot examine: No such file") as refused:
        salvage([source], to=tmp_path / "again")
    assert "or name the files and directories to read" in (refused.value.advice or "")
    assert not (tmp_path / "again").exists()
    assert salvage([source / "0"], to=tmp_path / "again").written == 20


def test_an_index_whose_disk_is_gone_keeps_no_record_from_being_read(tmp_path: Path) -> None:
    """No index is needed; whoever had all of them on a disk that failed would have had to name every data file."""
    source = build_directory(tmp_path / "source", {0: 20}, per_segment=10, local_low_water_mark=-1)
    index = source / "0" / index_name(10)
    index.unlink()
    index.symlink_to(tmp_path / "gone" / index.name)
    assert salvage([source], to=tmp_path / "to").written == 20


def test_a_link_to_a_file_is_no_partition_s_directory(tmp_path: Path) -> None:
    source = build_directory(tmp_path / "source", {0: 5})
    (tmp_path / "image").touch()
    (source / "1").symlink_to(tmp_path / "image")
    assert salvage([source], to=tmp_path / "to").written == 5


def test_a_partition_s_directory_that_is_named_has_the_segments_behind_its_links(tmp_path: Path) -> None:
    source, _ = linked_segment(tmp_path)
    assert salvage([source / "0"], to=tmp_path / "to").written == 20


def test_a_source_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    source = build_directory(tmp_path / "source", {0: 10})
    report = salvage([source, source / "0", source], to=tmp_path / "to")
    assert (report.found, report.duplicates) == (10, 0)


def test_the_number_of_partitions_is_found_given_or_enough(tmp_path: Path) -> None:
    source = build_directory(tmp_path / "source", {1: 10}, num_partitions=6)
    for name, wreck, asked, count, gone_by in (
        ("a", source, None, 6, "control-file"),
        ("b", source / "1", None, 2, "records"),
        ("c", source, 3, 3, "given"),
        ("e", source / "1", 2, 2, "given"),
    ):
        report = salvage([wreck], to=tmp_path / name, num_partitions=asked)
        assert (report.num_partitions, report.num_partitions_from) == (count, gone_by)
    for wrong, why in ((1, "at least 2 partitions"), (0, "1 to 1000000"), (-1, "1 to 1000000")):
        with pytest.raises(InvalidRequestError, match=why):
            salvage([source], to=tmp_path / "d", num_partitions=wrong)
    for partition in (-1, 6, 10**9):
        with pytest.raises(InvalidRequestError, match="there are partitions 0 to"):
            salvage([source], to=tmp_path / "d", partition=partition, num_partitions=6)
    assert not (tmp_path / "d").exists()


def test_nothing_to_find_makes_nothing(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(random.Random(1).randbytes(100_000))
    with pytest.raises(NotWaltzError, match="no record found in 1 files, 100000 bytes"):
        salvage([tmp_path / "source"], to=tmp_path / "to")
    with pytest.raises(NotWaltzError, match="no such file"):
        salvage([tmp_path / "absent"], to=tmp_path / "to")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source"]


def test_a_link_where_the_unfinished_directory_would_be_costs_nothing_that_it_leads_to(tmp_path: Path) -> None:
    source = build_directory(tmp_path / "source", {0: 10})
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_bytes(b"x")
    (tmp_path / "to.waltzctl-tmp").symlink_to(tmp_path / "kept")
    with pytest.raises(DiskWriteError, match=r"to\.waltzctl-tmp: cannot remove directory"):
        salvage([source], to=tmp_path / "to")
    assert (tmp_path / "kept" / "file").read_bytes() == b"x"


def test_an_empty_segment_beside_others_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(
        segment_header(1, 0).encode() + data_file(make_records(5)) + segment_header(0, 5).encode()
    )
    report = salvage([tmp_path / "source"], to=tmp_path / "to")
    assert (report.written, report.headers) == (5, 3)
    assert records_in(report.path) == {0: make_records(5)}
