"""Every code of the catalogue: a directory that shows it, the severity that it has there, and nothing else beside it."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.builders import build_directory, make_records, segment_header, write_segment
from tests.inspect.helpers import age, codes, cut, flip, idx, patch, run, seg
from waltzctl.engine.catalogue import OF_CLUSTERS, OF_PAGE_STORES
from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DiskReadError, NotWaltzError
from waltzctl.engine.findings import CATALOGUE, Code, Finding
from waltzctl.engine.scan.byte_source import FileSource
from waltzctl.engine.storage.loss_ledger import LEDGER_NAME
from waltzctl.formats.accepted_losses import AcceptedLoss, encode_ledger
from waltzctl.formats.control import FLAG_ASSIGNED, FLAG_AVAILABLE, Layout, PartitionStruct, decode_control
from waltzctl.formats.fence import encode_fence_header, encode_slot, fence_file_size, pair_offset
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, RECORD_HEADER, Record

DAMAGE, REPAIRABLE, NOTE = "damage", "repairable", "note"
CTL = "waltz-storage.ctl"
PER_SEGMENT = 10
SIZE = 20
RECORD = SIZE + 40
"""Bytes of each record: record t of a segment stands at 128 + 60 * (t - first)."""


def at(place: int) -> int:
    """Offset of the record number `place` of a segment."""
    return HEADER_SIZE + RECORD * place


def build(path: Path, layout: Layout = Layout.RELEASED) -> Path:
    """Partitions 0 and 1, each with segments 0, 10 and 20 of ten records; local low-water mark 14."""
    return build_directory(path, {0: 30, 1: 30}, layout=layout, per_segment=PER_SEGMENT, size=SIZE, num_partitions=3)


def rewrite_info(storage: Path, partition: int, first: PartitionStruct | None, second: PartitionStruct | None) -> None:
    """Put structs into a partition's pair."""
    path = storage / CTL
    control = decode_control(path.read_bytes())
    for number, struct in ((1, first), (2, second)):
        if struct is not None:
            patch(path, control.layout.struct_offset(partition, number), struct.encode())


def break_struct(storage: Path, partition: int, *numbers: int) -> None:
    control = decode_control((storage / CTL).read_bytes())
    for number in numbers:
        flip(storage / CTL, control.layout.struct_offset(partition, number))


def tie(storage: Path) -> None:
    struct = PartitionStruct(5, 1, 1, FLAG_ASSIGNED | FLAG_AVAILABLE, 7)
    rewrite_info(storage, 0, struct, replace(struct, low_water_mark=2))


def documented_tie(storage: Path) -> None:
    rewrite_info(storage, 0, PartitionStruct(5, 1, 2), PartitionStruct(5, 2, 1))


def set_marks(storage: Path, **changes: int) -> None:
    path = storage / CTL
    control = decode_control(path.read_bytes())
    number, struct = control.partitions[0].updated(**changes)
    rewrite_info(storage, 0, *((struct, None) if number == 1 else (None, struct)))


def other_partition_assigned(storage: Path) -> None:
    path = storage / CTL
    info = decode_control(path.read_bytes()).partitions[2]
    number, struct = info.updated(flags=FLAG_ASSIGNED | FLAG_AVAILABLE)
    rewrite_info(storage, 2, *((struct, None) if number == 1 else (None, struct)))


def extend(path: Path) -> None:
    """What release 0.13.2 does with a control file of the documented layout: zeros up to the length of its own."""
    count = decode_control(path.read_bytes()).header.num_partitions
    append_bytes(path, bytes(Layout.RELEASED.file_size(count) - path.stat().st_size))


def append_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


def sessions(partitions: int, pair: bytes = b"", size: int | None = None) -> bytes:
    """A session file in which nothing stands but this pair of partition 0."""
    data = bytearray(encode_fence_header(partitions).ljust(fence_file_size(partitions), b"\0"))
    data[pair_offset(0) : pair_offset(0) + len(pair)] = pair
    return bytes(data[:size])


def own(storage: Path, name: str, data: bytes) -> None:
    """A file of our own state."""
    path = storage / ".waltzctl" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)


def accept(storage: Path, first: int, last: int, mark: int = 14) -> None:
    """Losses that somebody accepted: one of partition 0, and one of a partition that is not here."""
    path = storage / LEDGER_NAME
    path.parent.mkdir(exist_ok=True)
    loss = AcceptedLoss(0, first, last, mark, "2026-11-22T08:51:18.000Z", "the end was lost")
    path.write_bytes(encode_ledger([loss, replace(loss, partition=2)]))


def unassigned(storage: Path) -> None:
    initial = PartitionStruct(flags=FLAG_AVAILABLE, sequence=-1)
    rewrite_info(storage, 1, initial, replace(initial, sequence=0))


def bad_data_checksum(storage: Path) -> None:
    """The client's checksum was wrong when the record came; the record itself is intact."""
    path = seg(storage, 0, 10)
    record = Record.decode(path.read_bytes()[at(3) : at(4)])
    wrong = replace(record, data_checksum=record.data_checksum ^ 1)
    sealed = replace(wrong, record_checksum=0)
    from waltzctl.formats.checksums import crc32

    patch(path, at(3), replace(sealed, record_checksum=crc32(sealed.encode()[:-4])).encode())


def skipped_id(storage: Path) -> None:
    """Records 10..13, then 15..19: an id is left out, and what stands there is intact."""
    records = [one for one in make_records(20, size=SIZE) if one.transaction_id >= 10 and one.transaction_id != 14]
    for path in (seg(storage, 0, 10), idx(storage, 0, 10)):
        path.unlink()
    write_segment(storage / "0", records)
    entries = [at(place) for place in range(4)] + [at(4)] + [at(place) for place in range(4, 9)]
    patch(idx(storage, 0, 10), HEADER_SIZE, b"".join(one.to_bytes(8) for one in entries))


def overlap(storage: Path) -> None:
    """Segment 20 begins at 18: what a truncation leaves whose deletions did not reach the disk."""
    for path in (seg(storage, 0, 20), idx(storage, 0, 20)):
        path.unlink()
    write_segment(storage / "0", make_records(12, first=18, size=SIZE))


def interrupted_repair(storage: Path) -> None:
    """A repair that was killed between keeping and applying."""
    from waltzctl.engine.durable.directory_lock import DirectoryLock
    from waltzctl.engine.durable.edits import Overwrite
    from waltzctl.engine.storage.store import apply_edits

    class Killed(BaseException):
        pass

    def kill(change: disk.Change) -> None:
        if change.path.suffix == ".idx" and change.kind == "write":
            raise Killed

    edit = Overwrite(idx(storage, 0, 0), HEADER_SIZE, b"\0" * 8)
    with DirectoryLock.acquire(storage, storage / CTL):
        disk.observer = kill
        try:
            with pytest.raises(Killed):
                apply_edits(storage, [edit], command="rebuild-index", arguments=[], plan_hash="0")
        finally:
            disk.observer = None
    patch(idx(storage, 0, 0), HEADER_SIZE, HEADER_SIZE.to_bytes(8))


@dataclass(frozen=True)
class Case:
    """What is done to a directory and the findings that it leaves: code and severity."""

    name: str
    damage: Callable[[Path], object]
    findings: tuple[tuple[str, str], ...]
    layout: Layout = Layout.RELEASED
    place: tuple[int | None, int | None, int | None] | None = None
    """Partition, transaction id and offset of the first finding."""


def one(name: str, code: str, severity: str, damage: Callable[[Path], object], **more: object) -> Case:
    return Case(name, damage, ((code, severity),), **more)  # type: ignore[arg-type]


CASES = [
    one("no control file", "control-file-missing", DAMAGE, lambda s: (s / CTL).unlink()),
    one("control file cut", "control-file-size", DAMAGE, lambda s: cut(s / CTL, 128 + 2 * 76)),
    one("control file shorter than its header", "control-file-size", DAMAGE, lambda s: cut(s / CTL, 100)),
    one("empty control file", "control-file-size", DAMAGE, lambda s: cut(s / CTL, 0)),
    one("wrong number of partitions", "control-file-size", DAMAGE, lambda s: patch(s / CTL, 28, b"\0\0\0\x05")),
    one("control file extended by a release", "control-file-extended", REPAIRABLE,
        lambda s: extend(s / CTL), layout=Layout.DOCUMENTED, place=(None, None, 128 + 3 * 60)),
    Case("control file extended, and a struct torn", lambda s: (extend(s / CTL), break_struct(s, 0, 1)),
        (("control-file-extended", REPAIRABLE), ("control-struct-checksum", REPAIRABLE)), Layout.DOCUMENTED),
    Case("control file extended, and a pair lost", lambda s: (extend(s / CTL), break_struct(s, 0, 1, 2)),
        (("control-file-extended", REPAIRABLE), ("control-pair-checksum", DAMAGE)), Layout.DOCUMENTED),
    one("one zero too many", "control-file-size", DAMAGE, lambda s: (extend(s / CTL), append_bytes(s / CTL, b"\0")),
        layout=Layout.DOCUMENTED),
    one("one zero too few", "control-file-size", DAMAGE,
        lambda s: (extend(s / CTL), cut(s / CTL, 128 + 3 * 76 - 1)), layout=Layout.DOCUMENTED),
    one("bytes behind the infos", "control-file-size", DAMAGE, lambda s: append_bytes(s / CTL, bytes(2 * 76))),
    one("newer struct torn", "control-struct-checksum", REPAIRABLE, lambda s: break_struct(s, 0, 1)),
    one("older struct torn", "control-struct-checksum", REPAIRABLE, lambda s: break_struct(s, 0, 2)),
    one("both structs torn", "control-pair-checksum", DAMAGE, lambda s: break_struct(s, 0, 1, 2)),
    one("body of zeros", "control-pair-checksum", DAMAGE, lambda s: patch(s / CTL, 128 + 76 + 4, bytes(72))),
    one("equal sequences", "control-pair-tie", DAMAGE, tie),
    one("crossing marks", "control-pair-tie", DAMAGE, documented_tie, layout=Layout.DOCUMENTED),
    one("stored partition id", "control-partition-id", DAMAGE, lambda s: patch(s / CTL, 128, b"\0\0\0\x02")),
    one("control version", "unknown-version", DAMAGE, lambda s: flip(s / CTL, 3)),
    one("data file version", "unknown-version", DAMAGE, lambda s: flip(seg(s, 0, 10), 3)),
    one("index version", "unknown-version", DAMAGE, lambda s: flip(idx(s, 0, 10), 3)),
    one("control key", "segment-key", DAMAGE, lambda s: flip(s / CTL, 15)),
    one("directory missing", "partition-directory-missing", DAMAGE, other_partition_assigned),
    one("directory removed", "partition-directory-missing", DAMAGE, lambda s: shutil.rmtree(s / "1")),
    one("unassigned", "partition-not-assigned", NOTE, unassigned),
    one("beyond the partitions", "partition-not-assigned", NOTE, lambda s: shutil.copytree(s / "0", s / "7")
        and [patch(path, 28, b"\0\0\0\x07") for path in (s / "7").iterdir()]),
    one("empty data file at the end", "segment-header-short", REPAIRABLE,
        lambda s: (seg(s, 0, 30).write_bytes(b""), idx(s, 0, 30).write_bytes(segment_header(0, 30).encode()))),
    one("half a header at the end", "segment-header-short", REPAIRABLE,
        lambda s: (seg(s, 0, 30).write_bytes(bytes(60)), idx(s, 0, 30).write_bytes(b""))),
    one("emptied data file in the middle", "segment-header-short", DAMAGE, lambda s: cut(seg(s, 0, 10), 0)),
    one("emptied last data file with entries", "segment-header-short", DAMAGE, lambda s: cut(seg(s, 0, 20), 50)),
    one("segment key", "segment-key", DAMAGE, lambda s: flip(seg(s, 0, 10), 12), place=(0, None, 12)),
    one("segment partition", "segment-partition", DAMAGE, lambda s: flip(seg(s, 0, 10), 31)),
    one("segment name", "segment-name", DAMAGE, lambda s: flip(seg(s, 0, 10), 39)),
    one("segment in the middle gone", "segment-gap", DAMAGE, lambda s: (seg(s, 0, 10).unlink(), idx(s, 0, 10).unlink()),
        place=(0, 10, None)),
    one("first segment gone", "segment-gap", DAMAGE, lambda s: (seg(s, 0, 0).unlink(), idx(s, 0, 0).unlink()),
        place=(0, 0, None)),
    one("end of a sealed segment gone", "segment-gap", DAMAGE, lambda s: cut(seg(s, 0, 10), at(7)), place=(0, 17, None)),
    one("segments overlap", "segment-overlap", DAMAGE, overlap, place=(0, 18, None)),
    one("bit in the middle", "record-checksum", DAMAGE, lambda s: flip(seg(s, 0, 10), at(3) + 40),
        place=(0, 13, at(3))),
    one("bit in the last segment", "record-checksum", DAMAGE, lambda s: flip(seg(s, 0, 20), at(3) + 40),
        place=(0, 23, at(3))),
    one("data checksum", "data-checksum", DAMAGE, bad_data_checksum, place=(0, 13, at(3))),
    one("an id left out", "record-order", DAMAGE, skipped_id, place=(0, 14, at(4))),
    one("negative length", "record-length", DAMAGE,
        lambda s: patch(seg(s, 0, 10), at(3) + RECORD_HEADER.offset_of("data_length"), b"\xff\xff\xff\xff")),
    one("huge length", "record-length", DAMAGE,
        lambda s: patch(seg(s, 0, 10), at(3) + RECORD_HEADER.offset_of("data_length"), b"\x7f\xff\xff\xff")),
    one("torn at the end", "torn-tail", REPAIRABLE, lambda s: cut(seg(s, 0, 20), at(10) - 7), place=(0, 29, at(9))),
    one("bit in the last record", "torn-tail", REPAIRABLE, lambda s: flip(seg(s, 0, 20), at(9) + 40)),
    one("torn at the low-water mark", "torn-tail", DAMAGE,
        lambda s: (cut(seg(s, 0, 20), at(10) - 7), set_marks(s, low_water_mark=29, local_low_water_mark=29))),
    one("torn in a sealed segment", "torn-tail", DAMAGE, lambda s: cut(seg(s, 0, 10), at(8) - 7)),
    one("bit in the last record of a sealed segment", "torn-tail", DAMAGE, lambda s: flip(seg(s, 0, 10), at(9) + 40)),
    one("everything after the mark gone", "acknowledged-missing", DAMAGE,
        lambda s: set_marks(s, low_water_mark=40, local_low_water_mark=40), place=(0, 30, None)),
    one("no segment though there is a mark", "acknowledged-missing", DAMAGE,
        lambda s: [path.unlink() for path in (s / "0").iterdir()]),
    one("no index", "index-missing", REPAIRABLE, lambda s: idx(s, 0, 10).unlink()),
    one("index shorter", "index-short", REPAIRABLE, lambda s: cut(idx(s, 0, 10), HEADER_SIZE + 8 * 6), place=(0, 16, 176)),
    one("index header only", "index-short", REPAIRABLE, lambda s: cut(idx(s, 0, 10), HEADER_SIZE)),
    one("index longer", "index-long", REPAIRABLE,
        lambda s: patch(idx(s, 0, 20), HEADER_SIZE + 80, at(10).to_bytes(8)), place=(0, 30, HEADER_SIZE + 80)),
    one("part of an entry", "index-long", REPAIRABLE, lambda s: patch(idx(s, 0, 20), HEADER_SIZE + 80, b"\0\0\0")),
    one("wrong entry", "index-entry", REPAIRABLE, lambda s: flip(idx(s, 0, 10), HEADER_SIZE + 8 * 4 + 7, 1),
        place=(0, 14, HEADER_SIZE + 32)),
    one("every entry wrong", "index-entry", REPAIRABLE, lambda s: patch(idx(s, 0, 10), HEADER_SIZE, bytes(80))),
    one("short index header", "index-header", REPAIRABLE, lambda s: cut(idx(s, 0, 10), 100)),
    one("empty index", "index-header", REPAIRABLE, lambda s: cut(idx(s, 0, 10), 0)),
    one("index of another partition", "index-header", REPAIRABLE, lambda s: flip(idx(s, 0, 10), 31)),
    one("orphan", "index-orphan", REPAIRABLE, lambda s: idx(s, 0, 30).write_bytes(segment_header(0, 30).encode())),
    one("orphan whose transactions are in other segments", "index-orphan", REPAIRABLE,
        lambda s: shutil.copy(idx(s, 0, 20), idx(s, 0, 15)) and cut(idx(s, 0, 15), HEADER_SIZE + 80)),
    one("orphan with one transaction more", "index-orphan", DAMAGE,
        lambda s: shutil.copy(idx(s, 0, 20), idx(s, 0, 21)), place=(0, 30, None)),
    Case("orphan begun behind the end", lambda s: idx(s, 0, 31).write_bytes(segment_header(0, 31).encode()),
         (("index-orphan", REPAIRABLE), ("durable-missing", DAMAGE))),
    one("a loss that was accepted", "loss-accepted", DAMAGE, lambda s: accept(s, 30, 31), place=(0, 30, None)),
    one("a loss that was accepted, in part here again", "loss-accepted", DAMAGE, lambda s: accept(s, 29, 30),
        place=(0, 30, None)),
    Case("a loss that was accepted, here again", lambda s: accept(s, 28, 29), ()),
    one("a loss that was accepted, and the mark risen in front of its last", "loss-accepted", DAMAGE,
        lambda s: accept(s, 30, 31, mark=13) or set_marks(s, low_water_mark=30, local_low_water_mark=29)),
    one("damaged ledger", "accepted-losses-damaged", DAMAGE, lambda s: accept(s, 28, 29) or flip(s / LEDGER_NAME, 150)),
    one("torn availability marks", "state-file-damaged", DAMAGE, lambda s: own(s, "availability.json", b'{"version": 1')),
    one("sessions that are junk", "state-file-damaged", DAMAGE, lambda s: own(s, "sessions", b"{")),
    one("sessions of another directory", "state-file-damaged", DAMAGE, lambda s: own(s, "sessions", sessions(4))),
    one("sessions cut off", "state-file-damaged", DAMAGE, lambda s: own(s, "sessions", sessions(3, size=-1))),
    one("sessions of a partition", "state-file-damaged", DAMAGE, lambda s: own(s, "sessions", sessions(3, b"\1" * 32)),
        place=(0, None, None)),
    Case("sessions of which one is torn", lambda s: own(s, "sessions", sessions(3, encode_slot(0, 7) + b"\1" * 16)), ()),
    one("ledger cut off", "accepted-losses-damaged", DAMAGE, lambda s: accept(s, 28, 29) or cut(s / LEDGER_NAME, 1)),
    Case("empty directory", lambda s: other_partition_assigned(s) or (s / "2").mkdir(), (("partition-empty", NOTE),)),
    Case("empty directory, and a session began in it",
         lambda s: ([path.unlink() for path in (s / "0").iterdir()],
                    set_marks(s, low_water_mark=-1, local_low_water_mark=-1)),
         (("partition-empty", DAMAGE),)),
    one("reserved in control", "reserved-not-zero", NOTE, lambda s: patch(s / CTL, 100, b"\1")),
    one("reserved in data file", "reserved-not-zero", NOTE, lambda s: patch(seg(s, 0, 10), 127, b"\1")),
    one("a number of partitions that is turned round", "journal-pending", DAMAGE,
        lambda s: patch(s / CTL, 28, (~3).to_bytes(4, "big", signed=True))),
    one("unknown file", "unknown-file", NOTE, lambda s: (s / "notes.txt").write_text("x")),
    one("unknown file in a partition", "unknown-file", NOTE, lambda s: (s / "0" / "0.seg.bak").write_text("x")),
    one("junk called like a data file", "segment-stray", DAMAGE, lambda s: (s / "0" / "0.seg").write_text("x")),
    one("directory called like a data file", "special-file", DAMAGE, lambda s: seg(s, 0, 77).mkdir()),
    one("directory called like an index", "special-file", DAMAGE, lambda s: idx(s, 0, 77).mkdir()),
    one("half-built file", "temporary-file", NOTE,
        lambda s: (s / "0" / ("x" + disk.TEMPORARY_SUFFIX)).write_text("x")),
    one("interrupted repair", "repair-interrupted", REPAIRABLE, interrupted_repair),
    Case("half a header at the end, and no file in its index's place",
         lambda s: (seg(s, 0, 30).write_bytes(bytes(60)), idx(s, 0, 30).symlink_to("nowhere")),
         (("segment-header-short", REPAIRABLE), ("special-file", REPAIRABLE))),
    Case("every data file removed", lambda s: [seg(s, 0, first).unlink() for first in (0, 10, 20)],
         (("index-orphan", DAMAGE),) * 3 + (("acknowledged-missing", DAMAGE), ("durable-missing", DAMAGE))),
    Case("data file removed", lambda s: seg(s, 0, 20).unlink(), (("index-orphan", DAMAGE),)),
    Case("data file in the middle removed", lambda s: seg(s, 0, 10).unlink(),
         (("index-orphan", DAMAGE), ("segment-gap", DAMAGE))),
    Case("torn, and everything up to the mark gone",
         lambda s: (cut(seg(s, 0, 20), at(3) - 7), cut(idx(s, 0, 20), HEADER_SIZE + 24),
                    set_marks(s, low_water_mark=29, local_low_water_mark=29)),
         (("torn-tail", DAMAGE), ("acknowledged-missing", DAMAGE))),
]  # fmt: skip


@pytest.mark.parametrize("layout", list(Layout))
def test_what_the_cases_begin_with_is_sound(tmp_path: Path, layout: Layout) -> None:
    assert run(age(build(tmp_path / "s", layout)))[0] == []


@pytest.mark.turns(10)
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_each_kind_of_damage_has_its_code_its_severity_and_nothing_beside_it(tmp_path: Path, case: Case) -> None:
    """One cause, one finding: the index of a damaged record, the gap behind it and so on are not named again."""
    storage = build(tmp_path / "s", case.layout)
    case.damage(storage)
    findings, summary = run(age(storage))
    assert [(one.code.value, one.severity.value) for one in findings] == list(case.findings)
    worst = {severity for _, severity in case.findings}
    status = "damaged" if DAMAGE in worst else "repairable" if REPAIRABLE in worst else "clean"
    assert summary.status == summary.exit_status_name == status
    assert (summary.damage, summary.repairable, summary.notes) == tuple(
        sum(severity == wanted for _, severity in case.findings) for wanted in (DAMAGE, REPAIRABLE, NOTE)
    )
    if case.place is not None:
        first = findings[0]
        assert (first.partition, first.transaction_id, first.offset) == case.place
    for finding in findings:
        assert_complete(finding, storage)


def assert_complete(finding: Finding, storage: Path) -> None:
    assert finding.message
    assert not finding.message.endswith(".")
    assert storage in [finding.path, *finding.path.parents]
    first = finding.waits_for  # what has to be mended first says how
    steps = CATALOGUE[first or finding.code].remedies(CATALOGUE[first].severity if first else finding.severity)
    if finding.code is not Code.SEGMENT_STRAY:  # where nothing could prove whose it is, nothing mends it
        assert (finding.remedy is None) == (steps == ())
    if finding.remedy is not None:
        command, *options = steps[0].split()
        assert finding.remedy.startswith(f"waltzctl {command} {storage}")
        assert finding.remedy.endswith(" ".join(options))


def test_a_place_that_cannot_be_read_is_named_and_the_rest_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bad sector: the index leads to the first record behind it."""
    storage = build_directory(tmp_path / "s", {0: 2000}, per_segment=1000, size=SIZE)
    target, bad = str(seg(storage, 0, 0)), at(300)
    original = FileSource.read_into

    def failing(self: FileSource, offset: int, buffer: memoryview) -> int:
        if self.name == target and offset < bad + 512 and offset + len(buffer) > bad:
            raise DiskReadError(self.name, bad, OSError(5, "Input/output error"))
        return original(self, offset, buffer)

    monkeypatch.setattr(FileSource, "read_into", failing)
    findings, summary = run(age(storage))
    assert codes(findings) == ["read-error"]
    assert summary.exit_status_name == "io-error"
    assert findings[0].offset == bad
    assert summary.records > 1900 - (bad - HEADER_SIZE) // RECORD - 4096 // RECORD


@pytest.mark.parametrize("kind", [idx, seg])
def test_a_file_that_cannot_be_opened_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[[Path, int, int], Path]
) -> None:
    """Without its index a data file is checked all the same."""
    storage = age(build(tmp_path / "s"))
    flip(seg(storage, 0, 10), at(3) + 40)
    flip(seg(storage, 0, 20), at(3) + 40)
    original = os.open

    def failing(path: str | Path, flags: int, *more: int) -> int:
        if Path(path) == kind(storage, 0, 10):
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, flags, *more)

    monkeypatch.setattr(os, "open", failing)
    findings, summary = run(storage)
    found = [(one.code.value, one.segment, one.path.suffix) for one in findings]
    if kind is idx:
        expected = [("record-checksum", 10, ".seg"), ("read-error", 10, ".idx"), ("record-checksum", 20, ".seg")]
    else:
        expected = [("read-error", 10, ".seg"), ("record-checksum", 20, ".seg")]
    assert found == expected
    assert summary.exit_status_name == "damaged"


def test_a_directory_that_cannot_be_listed_is_a_finding_and_the_others_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition that cannot be read never hides the others."""
    storage = age(build(tmp_path / "s"))
    original = os.listdir

    def failing(path: str | Path = ".") -> list[str]:
        if Path(path) == storage / "0":
            raise PermissionError(13, "Permission denied", str(path))
        return original(path)

    monkeypatch.setattr(os, "listdir", failing)
    flip(seg(storage, 1, 10), at(3) + 40)
    findings, summary = run(storage)
    assert codes(findings) == ["read-error", "record-checksum"]
    assert summary.exit_status_name == "damaged"


def test_every_code_of_the_catalogue_is_shown_by_a_case() -> None:
    """A code that is added needs a directory that shows it; those about nodes are shown in tests/client, others as named."""
    of_nodes = {"seen-from-outside", "replica-differs"}
    of_manifests = {code.value for code in Code if code.value.startswith("manifest-")}  # in test_vouching.py
    asked_for = {"released-refuses", "released-loses", "released-blocks"}  # in test_released_start.py
    asked_for |= (
        of_nodes | of_manifests | {code.value for code in OF_PAGE_STORES | OF_CLUSTERS}
    )  # in tests/pages, tests/cluster
    shown = {code for case in CASES for code, _ in case.findings} | {"read-error"} | asked_for
    assert shown == {code.value for code in Code}


def test_a_renamed_pair_is_one_name_finding_for_each_file_and_no_gap(tmp_path: Path) -> None:
    """The first record tells where the segment really begins."""
    storage = build(tmp_path / "s")
    seg(storage, 0, 10).rename(seg(storage, 0, 12))
    idx(storage, 0, 10).rename(idx(storage, 0, 12))
    findings, _ = run(age(storage))
    assert codes(findings) == ["segment-name"]
    assert "first record agrees with the header" in findings[0].message


def test_a_pair_from_another_cluster_is_one_finding(tmp_path: Path) -> None:
    """Data file and index agree with each other; only one of them is named."""
    storage = build(tmp_path / "s")
    other = uuid.uuid4().bytes
    patch(seg(storage, 0, 10), 12, other)
    patch(idx(storage, 0, 10), 12, other)
    findings, _ = run(age(storage))
    assert codes(findings) == ["segment-key"]
    assert "index file's header says the same" in findings[0].message


def test_a_message_shows_both_checksums_and_the_next_valid_record(tmp_path: Path) -> None:
    """What is stored, what was computed, and where reading goes on."""
    storage = build(tmp_path / "s")
    path = seg(storage, 0, 10)
    record = Record.decode(path.read_bytes()[at(3) : at(4)])
    flip(path, at(3) + 40)
    (finding,), _ = run(age(storage))
    assert f"stored {record.record_checksum:08x}, computed " in finding.message
    assert f"next valid record at offset {at(4)} (transaction 14)" in finding.message
    assert finding.length == RECORD


def test_two_records_beside_each_other_are_one_place(tmp_path: Path) -> None:
    """Damage that runs over several records is one span."""
    storage = build(tmp_path / "s")
    patch(seg(storage, 0, 10), at(3) + 40, b"x" * RECORD)
    (finding,), summary = run(age(storage))
    assert (finding.code, finding.transaction_id, finding.length) == (Code.RECORD_CHECKSUM, 13, 2 * RECORD)
    assert summary.records == 58


def test_records_that_hold_records_are_not_taken_for_records(tmp_path: Path) -> None:
    """Data that looks like a segment, in a record whose length field is damaged."""
    inner = b"".join(one.encode() for one in make_records(5, first=3, size=SIZE))
    records = make_records(10, size=SIZE)
    records[2] = Record.make(2, RequestId(1, 2, 0, 2), 7, inner)
    storage = build_directory(tmp_path / "s", {0: [records]})
    flip(seg(storage, 0, 0), at(2) + RECORD_HEADER.offset_of("data_length") + 3, 2)
    (finding,), summary = run(age(storage))
    assert (finding.transaction_id, finding.length) == (2, 40 + len(inner))
    assert summary.records == 9


def test_single_files_and_directories_are_checked_against_the_control_file(tmp_path: Path) -> None:
    """A partition directory or a file inside a storage directory knows its key, its number and its marks."""
    storage = build(tmp_path / "s")
    flip(seg(storage, 0, 10), 12)
    cut(seg(storage, 1, 20), at(10) - 7)
    age(storage)
    for path in (storage / "0", seg(storage, 0, 10), idx(storage, 0, 10)):
        assert codes(run(path)[0]) == ["segment-key"], path
    for path in (storage / "1", seg(storage, 1, 20)):
        (finding,), _ = run(path)
        assert (finding.code, finding.severity) == (Code.TORN_TAIL, "repairable")
    assert codes(run(storage / CTL)[0]) == []
    assert codes(run(seg(storage, 0, 0))[0]) == []


def test_what_is_named_twice_is_inspected_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory, its partition, its files, and the same by another name."""
    storage = build(tmp_path / "s")
    flip(seg(storage, 0, 10), at(3) + 40)
    age(storage)
    monkeypatch.chdir(tmp_path)
    paths = [storage, storage / "0", seg(storage, 0, 10), idx(storage, 0, 10), Path("s"), storage / CTL]
    findings, summary = run(*paths)
    assert codes(findings) == ["record-checksum"]
    assert (summary.partitions, summary.segments, summary.records) == (2, 6, 59)
    findings, summary = run(seg(storage, 0, 10), idx(storage, 0, 10), idx(storage, 0, 20))
    assert codes(findings) == ["record-checksum"]
    assert summary.segments == 2


def test_several_directories_come_in_the_order_of_the_command_line(tmp_path: Path) -> None:
    """Each with its own control file."""
    first, second = build(tmp_path / "b"), build(tmp_path / "a")
    for storage in (first, second):
        flip(seg(storage, 0, 10), at(3) + 40)
        age(storage)
    findings, summary = run(first, second)
    assert [one.path for one in findings] == [seg(first, 0, 10), seg(second, 0, 10)]
    assert summary.partitions == 4


def test_a_file_on_its_own_is_checked_as_far_as_it_tells(tmp_path: Path) -> None:
    """No control file: no key to compare with, and a torn tail may have been acknowledged."""
    storage = build(tmp_path / "s")
    loose = tmp_path / "loose"
    loose.mkdir()
    for path in (seg(storage, 0, 10), idx(storage, 0, 10)):
        shutil.copy(path, loose)
    path = loose / seg(storage, 0, 10).name
    assert run(path)[0] == []
    cut(path, at(10) - 7)
    age(loose)
    (finding,), _ = run(path)
    assert (finding.code, finding.severity) == (Code.TORN_TAIL, "damage")
    odd = loose / "copy.seg"
    shutil.copy(seg(storage, 0, 20), odd)
    findings, summary = run(odd)
    assert codes(findings) == ["index-missing"]
    assert summary.records == 10


@pytest.mark.parametrize("name", ["nothing-here", "file.txt", "empty"])
def test_what_is_nothing_of_waltz_is_refused_before_the_first_finding(tmp_path: Path, name: str) -> None:
    """At the call, so that a command can tell it from damage."""
    (tmp_path / "file.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotWaltzError):
        run(tmp_path / name)


def test_only_the_partitions_that_were_asked_for_are_checked(tmp_path: Path) -> None:
    """Neither their files nor their structs in the control file."""
    storage = build(tmp_path / "s")
    flip(seg(storage, 0, 10), at(3) + 40)
    break_struct(storage, 0, 1)
    age(storage)
    assert run(storage, partitions=[1])[0] == []
    assert codes(run(storage, partitions=[0])[0]) == ["control-struct-checksum", "record-checksum"]


def test_a_damaged_marks_file_does_not_stop_verify(tmp_path: Path) -> None:
    """No node opens the directory; what else is wrong in it is found all the same."""
    storage = build(tmp_path / "s")
    own(storage, "availability.json", json.dumps([1, 2]).encode())
    flip(seg(storage, 0, 0), HEADER_SIZE + RECORD_HEADER.size)
    assert sorted(codes(run(age(storage))[0])) == ["record-checksum", "state-file-damaged"]
    assert codes(run(storage, partitions=[1])[0]) == ["state-file-damaged"]
    (storage / ".waltzctl" / "availability.json").unlink()
    own(storage, "sessions", sessions(3, b"\1" * 32))
    assert sorted(codes(run(storage, partitions=[0])[0])) == ["record-checksum", "state-file-damaged"]
    assert codes(run(storage, partitions=[1])[0]) == [], "it is about partition 0"
