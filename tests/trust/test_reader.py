"""The independent reader: that it is independent, and that it sees what it says it sees."""

from __future__ import annotations

import ast
import struct
import sys
from pathlib import Path

import pytest

from tests.golden import golden_directories, needs_golden
from tests.trust import layout, reader
from tests.trust.damage import draw
from tests.trust.judging import behind_twins, crowded
from tests.trust.layout import DOCUMENTED, RELEASED, Pair, Transaction
from tests.trust.reader import Intact, Member, entries_in, ranges, read_directory, record_at, records_in
from tests.trust.scene import Tree, plant

KEY = bytes(range(16))


def records(count: int, partition: int = 0) -> list[bytes]:
    return [Transaction(n, (1, 1, partition, n), 0, b"data of %d" % n).encode() for n in range(count)]


def tree(style: str = RELEASED, *, mark: int = 14, cuts: tuple[int, ...] = (0, 10, 20), count: int = 30) -> Tree:
    """One partition of thirty transactions in three segments."""
    pair = Pair().updated(flags=5).updated(session=3, low=mark, local=mark)
    files: Tree = {layout.CONTROL: layout.control(style, KEY, [pair])}
    every = records(count)
    for first, stop in zip(cuts, (*cuts[1:], count), strict=True):
        data, index = layout.segment(KEY, 0, first, every[first:stop])
        files[layout.name(0, first)], files[layout.name(0, first, ".idx")] = data, index
    return files


def content(files: Tree, name: str) -> bytes:
    node = files[name]
    assert isinstance(node, bytes)
    return node


def test_it_imports_nothing_of_the_programs_under_test() -> None:
    """`struct`, `zlib`, `os` and what describes values; no module of this project, the tests' own included."""
    source = Path(reader.__file__).read_text()
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            imported.add(node.module or "")
    assert imported == {"__future__", "bisect", "collections.abc", "dataclasses", "os", "stat", "struct", "zlib"}
    assert imported - {"__future__"} <= {f"{name}" for name in sys.stdlib_module_names} | {"collections.abc"}
    assert "importlib" not in source
    assert "__import__" not in source


def test_golden_vector_of_a_record() -> None:
    """Two records as the released Waltz wrote them."""
    first = bytes.fromhex(
        "0000000000000000 00000001000000020000000300000004 00000005 00000003 352441c2 616263 201cb6fd"
    )
    second = bytes.fromhex("0000000000000001 00000001000000020000000300000005 00000006 00000000 00000000 75516b9f")
    assert record_at(first, 0) == (0, 3, 43)
    assert [one.transaction_id for one in records_in(bytes(128) + first + second)] == [0, 1]
    assert Transaction(0, (1, 2, 3, 4), 5, b"abc").encode() == first


@pytest.mark.turns(10)
@needs_golden
def test_golden_directories_of_the_released_waltz() -> None:
    """It reads every record of sound directories and has nothing against them."""
    sound = [path for path in golden_directories() if path.parent.name == "cluster-a"]
    for path in sound:
        reading = read_directory(path)
        assert reading.complaints() == []
        assert sum(len(one.in_place) for one in reading.partitions.values()) > 100


@pytest.mark.parametrize("style", [DOCUMENTED, RELEASED])
def test_a_sound_directory(style: str, tmp_path: Path) -> None:
    reading = read_directory(plant(tree(style), tmp_path / "d"))
    assert reading.complaints() == []
    assert sorted(reading.partitions[0].in_place) == list(range(30))
    assert reading.partitions[0].proven == 30


def test_records_behind_damage_and_under_stray_names_are_found(tmp_path: Path) -> None:
    files = tree()
    data = bytearray(content(files, layout.name(0, 10)))
    data[128 + 60] ^= 1  # record 11
    files["0/x.seg"] = files.pop(layout.name(0, 20))
    files[layout.name(0, 10)] = bytes(data)
    reading = read_directory(plant(files, tmp_path / "d"))
    assert {one.transaction_id for one in reading.intact} == {*range(30)} - {11}
    assert sorted(reading.partitions[0].in_place) == sorted({*range(20)} - {11})


def test_what_is_found_behind_damage_is_not_joined() -> None:
    every = records(4)
    whole = bytes(128) + b"".join(every)
    broken = whole.replace(b"data of 1", b"data of X")
    assert [(one.transaction_id, one.joined) for one in records_in(whole)] == [(n, True) for n in range(4)]
    assert [(one.transaction_id, one.joined) for one in records_in(broken)] == [(0, True), (2, False), (3, False)]
    apart = bytes(128) + every[0] + bytes(20_000) + every[1]
    assert [(one.transaction_id, one.joined) for one in records_in(apart)] == [(0, True), (1, False)]


def test_a_record_whose_data_is_not_its_clients_is_not_intact(tmp_path: Path) -> None:
    wrong = layout.sealed(3, (1, 1, 0, 3), 0, b"data", 12345)
    assert record_at(wrong, 0) is None


def without(files: Tree, *names: str) -> Tree:
    return {name: node for name, node in files.items() if name not in names}


@pytest.mark.parametrize(("mark", "lost"), [(-1, ""), (19, ""), (20, "20"), (29, "20-29")])
def test_a_mark_proves_what_is_at_or_below_it(mark: int, lost: str, tmp_path: Path) -> None:
    files = without(tree(mark=mark), layout.name(0, 20), layout.name(0, 20, ".idx"))
    assert ranges(read_directory(plant(files, tmp_path / "d")).partitions[0].lost) == lost


def test_a_name_proves_what_is_in_front_of_it(tmp_path: Path) -> None:
    files = without(tree(mark=-1), layout.name(0, 10), layout.name(0, 10, ".idx"))
    assert ranges(read_directory(plant(files, tmp_path / "d")).partitions[0].lost) == "10-19"


@pytest.mark.parametrize(("left", "lost"), [(None, "20-29"), (0, "20-29"), (127, "20-29"), (128, "")])
def test_an_index_proves_its_entries_where_the_data_file_has_no_header(
    left: int | None, lost: str, tmp_path: Path
) -> None:
    """One byte more is a data file, whose last transactions may never have been written."""
    files = tree(mark=-1)
    data = content(files, layout.name(0, 20))
    del files[layout.name(0, 20)]
    if left is not None:
        files[layout.name(0, 20)] = data[:left]
    assert ranges(read_directory(plant(files, tmp_path / "d")).partitions[0].lost) == lost


@pytest.mark.parametrize(("count", "proven"), [(999, 0), (1000, 0), (1001, 1000), (2000, 1000), (2001, 2000)])
def test_an_index_beside_its_data_proves_what_a_checkpoint_made_durable(
    count: int, proven: int, tmp_path: Path
) -> None:
    """A record behind the boundary is written only after index and data were synced at it."""
    files = tree(mark=-1, cuts=(0,), count=count)
    files[layout.name(0, 0)] = content(files, layout.name(0, 0))[:128]
    assert read_directory(plant(files, tmp_path / "d")).partitions[0].proven == proven


def test_a_lost_directory_is_missed_where_a_session_or_mark_proves_it(tmp_path: Path) -> None:
    for style in (DOCUMENTED, RELEASED):
        files = {name: node for name, node in tree(style).items() if name == layout.CONTROL}
        reading = read_directory(plant(files, tmp_path / style))
        assert reading.complaints() == ["partition 0: 0-14 lost", "partition 0: its directory is gone"]
    files = {layout.CONTROL: layout.control(DOCUMENTED, KEY, [Pair()])}
    assert read_directory(plant(files, tmp_path / "never")).complaints() == []


@pytest.mark.parametrize("field", [12, 31])
def test_a_segment_of_another_key_or_partition_is_foreign(field: int, tmp_path: Path) -> None:
    files = tree()
    data = bytearray(content(files, layout.name(0, 10)))
    data[field] ^= 1
    files[layout.name(0, 10)] = bytes(data)
    reading = read_directory(plant(files, tmp_path / "d"))
    assert [one.path for one in reading.partitions[0].foreign] == [layout.name(0, 10)]
    assert ranges(reading.partitions[0].lost) == "10-19"


def test_a_segment_of_another_partitions_records_is_foreign(tmp_path: Path) -> None:
    files = tree()
    head = content(files, layout.name(0, 10))[:128]
    files[layout.name(0, 10)] = head + b"".join(records(20, partition=1)[10:])
    reading = read_directory(plant(files, tmp_path / "d"))
    assert reading.partitions[0].foreign[0].foreign == ("its records are of partition 1",)
    assert ranges(reading.partitions[0].lost) == "10-19"


def test_special_files_are_not_opened(tmp_path: Path) -> None:
    from tests.trust.scene import Special

    files = tree(mark=-1)
    files[layout.name(0, 10)] = Special("fifo")
    files[layout.name(0, 20)] = Special("link", "nowhere")
    files[layout.CONTROL] = Special("fifo")
    reading = read_directory(plant(files, tmp_path / "d"))
    assert reading.key is None
    assert sorted(reading.partitions[0].in_place) == list(range(10))


def test_the_reader_finds_every_record_of_sound_directories(tmp_path: Path) -> None:
    """What the generator starts from, in both layouts."""
    for seed in range(40):
        scene = draw(seed).scene
        reading = read_directory(plant(scene.sound, tmp_path / f"{seed}"))
        assert reading.complaints() == []
        for log in scene.cluster.logs if reading.partitions else ():
            if log.kept:
                here = reading.partitions[log.number].in_place
                assert {number: set(forms) for number, forms in here.items()} == {
                    number: {record} for number, record in enumerate(log.records)
                }


def test_what_stands_in_the_data_of_a_damaged_record_is_not_looked_for() -> None:
    """Its length is damaged; its data, of which one piece is a record, goes on to the end by its checksum."""
    inner = Transaction(9, (1, 1, 0, 9), 0, b"inner").encode()
    outer = bytearray(Transaction(1, (1, 1, 0, 1), 0, inner + b"more").encode())
    outer[28] ^= 0x40
    file = bytes(128) + records(1)[0] + bytes(outer)
    assert [one.transaction_id for one in records_in(file)] == [0]
    assert [one.transaction_id for one in records_in(file + records(3)[2])] == [0, 9, 2]


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ((5, 7, None, 8), [7]),
        ((5, 7, 8, None, 9), [7, 8]),
        ((5, 7, None, 9), []),
        ((5, 6, None, 7), []),
        ((5, 7, 8), []),
        ((5, 3, None, 4), []),
    ],
)
def test_larger_ids_that_leave_none_for_what_is_damaged_behind_them(
    ids: tuple[int | None, ...], found: list[int]
) -> None:
    """None is a damaged record."""
    records = [Intact(one, 0, bytes(40), "", 40 * place, True) for place, one in enumerate(ids) if one is not None]
    assert [one.transaction_id for one in crowded(records)] == found


@pytest.mark.parametrize(
    ("ids", "proven"),
    [((0, 1, 2, 3), 4), ((0, 1, 102, 3), 4), ((0, 1, 2, 0), 3), ((0, 1, 12), 13), ((8, 9, 10), 10), ((), 0)],
)
def test_a_record_out_of_order_or_beyond_the_next_file_proves_nothing(
    tmp_path: Path, ids: tuple[int, ...], proven: int
) -> None:
    """In front of a file of the name 10 where ids below it are meant."""
    files = tree(mark=-1, cuts=(0, 10) if 10 in ids else (0,))
    body = [Transaction(n, (1, 1, 0, n), 0, b"data").encode() for n in ids]
    files[layout.name(0, 0)] = content(files, layout.name(0, 0))[:128] + b"".join(body)
    found = read_directory(plant(files, tmp_path / "d")).partitions[0].by
    assert found["records of 0/0000000000000000000.seg"] == proven


@pytest.mark.parametrize(
    ("count", "zeros", "expected"), [(0, 0, 0), (3, 0, 3), (3, 8, 3), (3, 7, 3), (3, 8000, 3), (0, 8, 0)]
)
def test_zeros_at_the_end_of_an_index_are_no_entries(count: int, zeros: int, expected: int) -> None:
    index = bytes(128) + b"".join(struct.pack(">q", 128 + 256 * place) for place in range(count)) + bytes(zeros)
    assert entries_in(index) == expected


@pytest.mark.parametrize(
    ("ids", "size", "expected"),
    [
        ((5, 6, 7), 30, ()),
        ((5, 6, 6), 30, (6,)),
        ((5, 6, 6, 7), 40, (6, 7)),
        ((5, 6, 6, 7), 41, ()),
        ((5, 5, 6, 6), 40, (6,)),
    ],
)
def test_records_behind_two_of_one_id_end_the_file(ids: tuple[int, ...], size: int, expected: tuple[int, ...]) -> None:
    records = tuple(Intact(number, 0, bytes(10), "f", 10 * place, joined=True) for place, number in enumerate(ids))
    member = Member("f", 0, ".seg", size, None, records, size)
    assert tuple(one.transaction_id for one in behind_twins(member)) == expected
