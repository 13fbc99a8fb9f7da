"""What verify --for released says, case by case and word for word: each step of the release's start, one step to each side."""

from __future__ import annotations

import os
import re
import shutil
import struct
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import KEY, build_directory, segment_header
from tests.inspect.helpers import flip, idx, patch, seg
from tests.inspect.test_codes import break_struct
from waltzctl.engine.errors import DiskReadError, SpecialFileError
from waltzctl.engine.inspect import released_start as released
from waltzctl.engine.inspect.released_start import released_start
from waltzctl.engine.log.view import read_control
from waltzctl.formats.control import FLAG_ASSIGNED, FLAG_AVAILABLE, MAX_PARTITIONS, Layout
from waltzctl.formats.segment import HEADER_SIZE, entry_position

SIZE = 20
RECORD = SIZE + 40
CONTROL = "waltz-storage.ctl"
OTHER = uuid.UUID(int=KEY.int ^ 1)
Scene = Callable[[Path], object]


def build(path: Path, mark: int = 14, count: int = 1) -> Path:
    """Segments 0, 10 and 20 of ten records each."""
    return build_directory(
        path / "s", dict.fromkeys(range(count), 30), per_segment=10, size=SIZE, local_low_water_mark=mark
    )


def at(place: int) -> int:
    return HEADER_SIZE + RECORD * place


def told(storage: Path) -> list[str]:
    """Whether it starts; then each finding as one line."""
    try:
        control = read_control(storage / CONTROL)
    except SpecialFileError:
        control = None
    found = released_start(storage, control)
    lines = ["starts" if found.starts else "does not start"]
    for one in found.findings:
        where = Path(one.path).relative_to(storage)
        message = one.message.removeprefix("release 0.13.2 does not start: ")
        remedy = "-" if one.remedy is None else one.remedy.replace(f" {storage}", "").removeprefix("waltzctl ")
        numbers = f"{one.partition}/{one.segment}/{one.transaction_id}"
        line = f"{one.code.removeprefix('released-')} {one.severity} {where} {numbers} [{remedy}] {message[:24]}"
        lines.append(re.sub("0{9,}([0-9]+)", r"\1", line))
    return lines


def with_header(path: Path, **changes: object) -> None:
    """A data or index file whose header says something else."""
    header = replace(segment_header(0, int(path.stem)), **changes)  # type: ignore[arg-type]
    patch(path, 0, header.encode())


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def only(storage: Path, *files: Path) -> None:
    """Nothing in partition 0 but these, which are made."""
    shutil.rmtree(storage / "0")
    (storage / "0").mkdir()
    for file in files:
        file.write_bytes(b"")


def sized(path: Path, size: int) -> None:
    path.write_bytes(segment_header(0, int(path.stem)).encode().ljust(size, b"\0")[:size])


def entry(storage: Path, number: int, value: int, first: int = 20) -> None:
    patch(idx(storage, 0, first), entry_position(number, first), struct.pack(">q", value))


def with_header_of(path: Path, key: uuid.UUID) -> None:
    patch(path, 0, replace(segment_header(0, 20), cluster_key=key).encode())


def structs(storage: Path, sequences: tuple[int, int], assigned: tuple[bool, bool]) -> None:
    """Both structs of partition 0 with these sequence numbers, of which each says whether it is assigned."""
    control = read_control(storage / CONTROL)
    assert control is not None
    info = control.partitions[0]
    pair = [
        replace(one, sequence=sequence, flags=FLAG_AVAILABLE | (FLAG_ASSIGNED if here else 0)).sealed()
        for one, sequence, here in zip(info.structs, sequences, assigned, strict=True)
    ]
    changed = replace(info, structs=(pair[0], pair[1]))
    (storage / CONTROL).write_bytes(replace(control, partitions=(changed, *control.partitions[1:])).encode())


def squeezed_in(path: Path, offset: int) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:offset] + b"\xa5" * 16 + data[offset:])


def each(*changes: Scene) -> Scene:
    """All of them, one after the other."""

    def made(storage: Path) -> None:
        for change in changes:
            change(storage)

    return made


SCENES: dict[str, tuple[int, Scene, list[str]]] = {
    "clean": (14, lambda s: None, ["starts"]),
    "control file: none": (
        14,
        lambda s: (s / CONTROL).unlink(),
        ["starts", "loses damage waltz-storage.ctl None/None/None [-] release 0.13.2 writes a "],
    ),
    "control file: a FIFO": (
        14,
        lambda s: fifo(s / CONTROL),
        ["does not start", "refuses damage waltz-storage.ctl None/None/None [-] the control file is a FI"],
    ),
    "control file: 127 bytes": (
        14,
        lambda s: os.truncate(s / CONTROL, 127),
        ["starts", "loses damage waltz-storage.ctl None/None/None [-] release 0.13.2 writes a "],
    ),
    "control file: 128 bytes": (
        14,
        lambda s: os.truncate(s / CONTROL, 128),
        ["does not start", "refuses damage waltz-storage.ctl 0/None/None [-] neither struct of partit"],
    ),
    "control file: documented": (
        14,
        lambda s: shutil.copy(build_directory(s / "d", {0: 3}, layout=Layout.DOCUMENTED) / CONTROL, s / CONTROL),
        [
            "does not start",
            "refuses repairable waltz-storage.ctl None/None/None [convert --layout released] the control file has the",
        ],
    ),
    "structs: none is valid": (
        14,
        lambda s: break_struct(s, 0, 1, 2),
        ["does not start", "refuses damage waltz-storage.ctl 0/None/None [-] neither struct of partit"],
    ),
    "structs: one is valid": (14, lambda s: break_struct(s, 0, 1), ["starts"]),
    "structs: the second is valid": (
        14,
        each(lambda s: structs(s, (9, 8), (True, False)), lambda s: break_struct(s, 0, 1)),
        ["starts"],
    ),
    "structs: the same sequence": (
        14,
        lambda s: structs(s, (4, 4), (True, True)),
        ["does not start", "refuses damage waltz-storage.ctl 0/None/None [-] both structs of partitio"],
    ),
    "a file where a partition should be": (
        14,
        each(lambda s: shutil.rmtree(s / "0"), lambda s: (s / "0").write_bytes(b"")),
        ["does not start", "refuses damage 0 0/None/None [-] it is no directory"],
    ),
    "no directory": (14, lambda s: shutil.rmtree(s / "0"), ["starts"]),
    "a directory for a data file": (
        14,
        lambda s: directory(s / "0" / "x.seg"),
        ["does not start", "refuses damage 0/x.seg 0/None/None [-] x.seg is a directory"],
    ),
    "a FIFO for an index": (
        14,
        lambda s: fifo(idx(s, 0, 10)),
        ["does not start", "refuses damage 0/10.idx 0/10/None [-] 10.idx "],
    ),
    "a directory for an index": (
        14,
        lambda s: directory(idx(s, 0, 10)),
        ["does not start", "refuses damage 0/10.idx 0/10/None [-] 10.idx "],
    ),
    "header short: the last, without index": (
        14,
        lambda s: sized(seg(s, 0, 30), 127),
        ["does not start", "refuses repairable 0/30.seg 0/30/None [recover --partition 0] 30.seg "],
    ),
    "header short: the last, index empty": (
        14,
        each(lambda s: sized(seg(s, 0, 30), 127), lambda s: sized(idx(s, 0, 30), 128)),
        ["does not start", "refuses repairable 0/30.seg 0/30/None [recover --partition 0] 30.seg "],
    ),
    "header short: the last, index with an entry": (
        14,
        each(lambda s: sized(seg(s, 0, 30), 127), lambda s: sized(idx(s, 0, 30), 136)),
        ["does not start", "refuses damage 0/30.seg 0/30/None [-] 30.seg "],
    ),
    "header short: the last, index with less": (
        14,
        each(lambda s: sized(seg(s, 0, 30), 127), lambda s: sized(idx(s, 0, 30), 129)),
        ["does not start", "refuses damage 0/30.seg 0/30/None [-] 30.seg "],
    ),
    "header short: not the last": (
        14,
        each(lambda s: sized(seg(s, 0, 10), 127), lambda s: sized(idx(s, 0, 10), 128)),
        ["does not start", "refuses damage 0/10.seg 0/10/None [-] 10.seg "],
    ),
    "header whole: the last": (
        14,
        each(lambda s: sized(seg(s, 0, 30), 128), lambda s: sized(idx(s, 0, 30), 128)),
        ["starts"],
    ),
    "header: another key": (
        14,
        lambda s: with_header(seg(s, 0, 10), cluster_key=OTHER),
        ["does not start", "refuses damage 0/10.seg 0/10/None [-] 10.seg "],
    ),
    "header: another partition": (
        14,
        lambda s: with_header(seg(s, 0, 10), partition=1),
        ["does not start", "refuses damage 0/10.seg 0/10/None [-] 10.seg "],
    ),
    "index header: another key": (
        14,
        lambda s: with_header(idx(s, 0, 10), cluster_key=OTHER),
        ["does not start", "refuses repairable 0/10.idx 0/10/None [rebuild-index --partition 0] 10.idx "],
    ),
    "index header: another partition": (
        14,
        lambda s: with_header(idx(s, 0, 10), partition=1),
        ["does not start", "refuses repairable 0/10.idx 0/10/None [rebuild-index --partition 0] 10.idx "],
    ),
    "index: none": (
        14,
        lambda s: idx(s, 0, 10).unlink(),
        ["does not start", "refuses repairable 0/10.seg 0/10/None [rebuild-index --partition 0] 10.seg "],
    ),
    "index: 127 bytes": (
        14,
        lambda s: os.truncate(idx(s, 0, 10), 127),
        ["does not start", "refuses repairable 0/10.idx 0/10/None [rebuild-index --partition 0] 10.idx "],
    ),
    "stray: sound": (
        14,
        each(
            lambda s: shutil.copy(seg(s, 0, 20), s / "0" / "x.seg"),
            lambda s: shutil.copy(idx(s, 0, 20), s / "0" / "x.idx"),
        ),
        ["starts"],
    ),
    "stray: another key": (
        14,
        each(
            lambda s: shutil.copy(seg(s, 0, 20), s / "0" / "x.seg"), lambda s: with_header_of(s / "0" / "x.seg", OTHER)
        ),
        ["does not start", "refuses repairable 0/x.seg 0/None/None [-] x.seg says that it belon"],
    ),
    "stray: short": (
        14,
        lambda s: (s / "0" / "x.seg").write_bytes(b""),
        ["does not start", "refuses repairable 0/x.seg 0/None/None [-] x.seg ends inside its he"],
    ),
    "stray: no index": (
        14,
        lambda s: shutil.copy(seg(s, 0, 20), s / "0" / "x.seg"),
        ["does not start", "refuses repairable 0/x.seg 0/None/None [-] x.seg has no index"],
    ),
    "begins of the index: 24, at the mark": (
        24,
        lambda s: with_header(idx(s, 0, 20), first_transaction_id=24),
        [
            "does not start",
            "refuses repairable 0/20.seg 0/20/None [rebuild-index --partition 0] the record of transactio",
        ],
    ),
    "begins of the index: 25, behind the mark": (
        24,
        lambda s: with_header(idx(s, 0, 20), first_transaction_id=25),
        ["does not start", "refuses repairable 0/20.idx 0/20/None [rebuild-index --partition 0] 20.idx "],
    ),
    "begins of the index: 36": (14, lambda s: with_header(idx(s, 0, 20), first_transaction_id=36), ["starts"]),
    "begins of the index: 37": (
        14,
        lambda s: with_header(idx(s, 0, 20), first_transaction_id=37),
        [
            "does not start",
            "refuses repairable 0/20.idx 0/20/None [rebuild-index --partition 0] the index would be writt",
        ],
    ),
    "entry: negative": (
        24,
        lambda s: entry(s, 24, -1),
        [
            "does not start",
            "refuses repairable 0/20.idx 0/20/None [rebuild-index --partition 0] the entry of transaction",
        ],
    ),
    "entry: 0": (
        24,
        lambda s: entry(s, 24, 0),
        [
            "does not start",
            "refuses repairable 0/20.seg 0/20/None [rebuild-index --partition 0] the record of transactio",
        ],
    ),
    "entry: at the end of the file": (
        24,
        lambda s: entry(s, 24, at(10)),
        [
            "does not start",
            "refuses repairable 0/20.seg 0/20/None [rebuild-index --partition 0] the record of transactio",
        ],
    ),
    "entry: one byte in front of the end": (
        24,
        lambda s: entry(s, 24, at(10) - 1),
        [
            "does not start",
            "refuses repairable 0/20.seg 0/20/None [rebuild-index --partition 0] the record of transactio",
        ],
    ),
    "entry: of the next record": (
        24,
        lambda s: entry(s, 24, at(5)),
        [
            "does not start",
            "refuses repairable 0/20.seg 0/20/None [rebuild-index --partition 0] the record of transactio",
        ],
    ),
    "record at the mark: damaged": (
        24,
        lambda s: flip(seg(s, 0, 20), at(4) + 40),
        ["does not start", "refuses damage 0/20.seg 0/20/None [-] the record of transactio"],
    ),
    "record at the mark: damaged, and the index": (
        24,
        each(lambda s: flip(seg(s, 0, 20), at(4) + 40), lambda s: entry(s, 24, at(7))),
        ["does not start", "refuses damage 0/20.seg 0/20/None [-] the record of transactio"],
    ),
    "record in front of the mark: damaged, and the index": (
        24,
        each(lambda s: flip(seg(s, 0, 20), at(3) + 40), lambda s: entry(s, 24, at(7))),
        ["does not start", "refuses damage 0/20.seg 0/20/None [-] the record of transactio"],
    ),
    "record behind the mark: damaged": (
        24,
        lambda s: flip(seg(s, 0, 20), at(5) + 40),
        ["starts", "loses damage 0/20.seg 0/20/25 [-] release 0.13.2 cuts this"],
    ),
    "record behind the mark: damaged twice": (
        24,
        each(lambda s: flip(seg(s, 0, 20), at(5) + 40), lambda s: flip(seg(s, 0, 20), at(7) + 40)),
        ["starts", "loses damage 0/20.seg 0/20/25 [-] release 0.13.2 cuts this"],
    ),
    "last record: damaged, at the mark": (
        29,
        lambda s: flip(seg(s, 0, 20), at(9) + 40),
        ["does not start", "refuses damage 0/20.seg 0/20/None [-] the record of transactio"],
    ),
    "last record: damaged, not acknowledged": (28, lambda s: flip(seg(s, 0, 20), at(9) + 40), ["starts"]),
    "last record: torn, acknowledged, entry gone": (
        29,
        each(
            lambda s: os.truncate(seg(s, 0, 20), at(10) - 1),
            lambda s: os.truncate(idx(s, 0, 20), entry_position(29, 20)),
        ),
        ["starts", "loses damage 0/20.seg 0/20/29 [-] release 0.13.2 cuts tran"],
    ),
    "last record: torn, not acknowledged": (28, lambda s: os.truncate(seg(s, 0, 20), at(10) - 1), ["starts"]),
    "length: negative": (
        24,
        lambda s: patch(seg(s, 0, 20), at(4) + 28, struct.pack(">i", -1)),
        ["does not start", "refuses damage 0/20.seg 0/20/None [-] transaction 24 in 000000"],
    ),
    "length: beyond any array": (
        14,
        lambda s: patch(seg(s, 0, 20), at(4) + 28, struct.pack(">i", 2**31 - 2)),
        ["does not start", "refuses damage 0/20.seg 0/20/None [-] transaction 24 in 000000"],
    ),
    "first segment: damaged": (14, lambda s: flip(seg(s, 0, 0), at(4) + 40), ["starts"]),
    "first segment: damaged, mark inside": (
        4,
        lambda s: flip(seg(s, 0, 0), at(6) + 40),
        ["starts", "loses damage 0/0.seg 0/0/6 [-] release 0.13.2 cuts this"],
    ),
    "no segment": (-1, lambda s: only(s), ["starts"]),
    "no segment: index of 0 bytes": (-1, lambda s: only(s, idx(s, 0, 0)), ["starts"]),
    "no segment: index of 1 byte": (
        -1,
        each(lambda s: only(s), lambda s: sized(idx(s, 0, 0), 1)),
        ["does not start", "refuses repairable 0/0.idx 0/0/None [recover --partition 0] there is no data file, a"],
    ),
    "no segment: index of 135 bytes": (
        -1,
        each(lambda s: only(s), lambda s: sized(idx(s, 0, 0), 135)),
        ["does not start", "refuses repairable 0/0.idx 0/0/None [recover --partition 0] there is no data file, a"],
    ),
    "no segment: index of 136 bytes": (
        -1,
        each(lambda s: only(s), lambda s: sized(idx(s, 0, 0), 136)),
        ["does not start", "refuses damage 0/0.idx 0/0/None [-] there is no data file, a"],
    ),
    "no segment: a FIFO for the index": (
        -1,
        each(lambda s: only(s), lambda s: fifo(idx(s, 0, 0))),
        ["does not start", "refuses damage 0/0.idx 0/0/None [-] 0.idx "],
    ),
    "no segment: another index": (-1, lambda s: only(s, idx(s, 0, 7)), ["starts"]),
    "orphan: at the last transaction": (14, lambda s: sized(idx(s, 0, 29), 128), ["starts"]),
    "orphan: behind the last transaction": (
        14,
        lambda s: sized(idx(s, 0, 30), 128),
        ["starts", "blocks repairable 0/30.idx 0/30/None [recover --partition 0] release 0.13.2 starts, b"],
    ),
    "orphan: with an entry": (
        14,
        lambda s: sized(idx(s, 0, 31), 136),
        ["starts", "blocks damage 0/31.idx 0/31/None [-] release 0.13.2 starts, b"],
    ),
    "orphan: of 0 bytes": (14, lambda s: sized(idx(s, 0, 31), 0), ["starts"]),
    "orphan: of 1 byte": (
        14,
        lambda s: sized(idx(s, 0, 31), 1),
        ["starts", "blocks repairable 0/31.idx 0/31/None [recover --partition 0] release 0.13.2 starts, b"],
    ),
    "no segment: a directory for the data file, and an index": (
        -1,
        each(lambda s: only(s), lambda s: directory(seg(s, 0, 0)), lambda s: sized(idx(s, 0, 0), 136)),
        ["does not start", "refuses damage 0/0.seg 0/0/None [-] 0.seg "],
    ),
    "orphan: of a FIFO": (
        14,
        each(lambda s: fifo(seg(s, 0, 30)), lambda s: sized(idx(s, 0, 30), 128)),
        ["does not start", "refuses damage 0/30.seg 0/30/None [-] 30.seg "],
    ),
    "header short: the last, with an orphan": (
        14,
        each(lambda s: sized(seg(s, 0, 30), 127), lambda s: sized(idx(s, 0, 40), 128)),
        [
            "does not start",
            "refuses repairable 0/30.seg 0/30/None [recover --partition 0] 30.seg ",
            "blocks repairable 0/40.idx 0/40/None [recover --partition 0] release 0.13.2 starts, b",
        ],
    ),
    "mark: the first of the segment, entry wrong": (20, lambda s: entry(s, 20, 10**6), ["starts"]),
    "mark: the second of the segment, entry wrong": (
        21,
        lambda s: entry(s, 21, 10**6),
        [
            "does not start",
            "refuses repairable 0/20.seg 0/20/None [rebuild-index --partition 0] the record of transactio",
        ],
    ),
    "mark: the last of the segment, entry wrong": (
        29,
        lambda s: entry(s, 29, 10**6),
        [
            "does not start",
            "refuses repairable 0/20.seg 0/20/None [rebuild-index --partition 0] the record of transactio",
        ],
    ),
    "length: negative, of another transaction": (
        14,
        each(
            lambda s: patch(seg(s, 0, 20), at(4), struct.pack(">q", 99)),
            lambda s: patch(seg(s, 0, 20), at(4) + 28, struct.pack(">i", -1)),
        ),
        ["starts", "loses damage 0/20.seg 0/20/24 [-] release 0.13.2 cuts this"],
    ),
    "bytes of nobody between two records": (
        14,
        lambda s: squeezed_in(seg(s, 0, 20), at(5)),
        ["starts", "loses damage 0/20.seg 0/20/25 [-] release 0.13.2 cuts this"],
    ),
    "begins of the index: 36, first record damaged": (
        14,
        each(lambda s: with_header(idx(s, 0, 20), first_transaction_id=36), lambda s: flip(seg(s, 0, 20), at(0) + 40)),
        ["starts", "loses damage 0/20.seg 0/20/20 [-] release 0.13.2 cuts this"],
    ),
    "begins of the index: 37, first record damaged": (
        14,
        each(lambda s: with_header(idx(s, 0, 20), first_transaction_id=37), lambda s: flip(seg(s, 0, 20), at(0) + 40)),
        [
            "does not start",
            "refuses repairable 0/20.idx 0/20/None [rebuild-index --partition 0] the index would be writt",
        ],
    ),
    "begins of the index: 37, second record damaged": (
        14,
        each(lambda s: with_header(idx(s, 0, 20), first_transaction_id=37), lambda s: flip(seg(s, 0, 20), at(1) + 40)),
        [
            "does not start",
            "refuses repairable 0/20.idx 0/20/None [rebuild-index --partition 0] the index would be writt",
        ],
    ),
}


@pytest.mark.parametrize("scene", SCENES)
def test_what_is_said_of(tmp_path: Path, scene: str) -> None:
    mark, change, said = SCENES[scene]
    storage = build(tmp_path, mark)
    change(storage)
    assert told(storage) == said


@pytest.mark.parametrize(
    ("sequences", "assigned", "opens"),
    [
        ((0, 1), (False, True), True),
        ((0, 1), (True, False), False),
        ((1, 0), (True, False), True),
        ((1, 0), (False, True), False),
        ((-1, 0), (False, True), True),
        ((0, -1), (False, True), False),
        ((0, -1), (True, False), True),
        ((-1, 0), (True, False), False),
    ],
)
def test_the_larger_sequence_is_in_force(
    tmp_path: Path, sequences: tuple[int, int], assigned: tuple[bool, bool], opens: bool
) -> None:
    storage = build(tmp_path)
    structs(storage, sequences, assigned)
    idx(storage, 0, 10).unlink()
    assert (told(storage)[0] == "does not start") is opens


@pytest.mark.parametrize(
    ("number", "said"), [(-1, "header says -1"), (0, ""), (MAX_PARTITIONS + 1, f"header says {MAX_PARTITIONS + 1}")]
)
@pytest.mark.parametrize("layout", list(Layout))
def test_how_many_partitions_there_can_be(tmp_path: Path, number: int, said: str, layout: Layout) -> None:
    """In the documented layout the number tells nothing but whether there are any."""
    storage = build(tmp_path)
    control = read_control(storage / CONTROL)
    assert control is not None
    changed = replace(control, layout=layout, header=replace(control.header, num_partitions=number))
    found = released_start(storage, changed)
    assert found.starts is (number == 0)
    if layout is Layout.RELEASED:
        assert [said in one.message for one in found.findings] == [True] * bool(said)
    else:
        assert ["documented" in one.message for one in found.findings] == [True] * bool(said)


@pytest.mark.parametrize(("most", "starts"), [(0, False), (1, True), (2, True)])
def test_as_many_partitions_as_there_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, starts: bool
) -> None:
    monkeypatch.setattr(released, "MAX_PARTITIONS", most)
    assert (told(build(tmp_path))[0] == "starts") is starts


def test_what_cannot_be_read_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = build(tmp_path)

    def failing(state: object) -> None:
        raise DiskReadError(seg(storage, 0, 0), 0, OSError(5, "Input/output error"))

    monkeypatch.setattr(released, "read_segment_header", failing)
    starts, found = told(storage)
    assert starts == "does not start"
    assert found.startswith("refuses damage 0/0.seg None/None/None [-] ")


@pytest.mark.parametrize(("size", "starts"), [(127, True), (128, False)])
def test_a_control_file_that_was_not_decoded(tmp_path: Path, size: int, starts: bool) -> None:
    """The release takes what is shorter than a header for none."""
    storage = build(tmp_path)
    os.truncate(storage / CONTROL, size)
    found = released_start(storage, None)
    assert (found.starts, len(found.findings)) == (starts, 1)
    assert ("cannot be read" in found.findings[0].message) is not starts


def test_every_partition_is_gone_through(tmp_path: Path) -> None:
    """And each segment of it; the first refusal ends the release's start, not the list."""
    storage = build(tmp_path, count=2)
    for number in (0, 1):
        idx(storage, number, 0).unlink()
        idx(storage, number, 20).unlink()
    with_header(seg(storage, 0, 10), partition=1)
    starts, *found = told(storage)
    assert starts == "does not start"
    assert [one.split()[3] for one in found] == ["0/0/None", "0/10/None", "0/20/None", "1/0/None", "1/20/None"]


@pytest.mark.parametrize("length", [1, 0])
def test_a_file_that_ends_where_its_scan_begins(tmp_path: Path, length: int) -> None:
    """The index leads to the last byte, or behind it."""
    storage = build(tmp_path, mark=24)
    os.truncate(seg(storage, 0, 20), at(4) + length)
    starts, found = told(storage)
    assert starts == "does not start"
    assert "[-] the record of" in found
