"""Whose a data file is: what each witness says, alone and with others, word for word.

Segment 4 of the twelve, with transactions 4 to 7, is judged.
"""

from __future__ import annotations

import dataclasses
import struct
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.repair.twelve import SIZE, Damage, Twelve
from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.log.view import read_control, view_partition
from waltzctl.engine.repair import provenance
from waltzctl.engine.repair.content import Content, LiteralBytes
from waltzctl.engine.repair.provenance import ProvenanceVerdict, SegmentSurroundings, foreign, judge
from waltzctl.engine.repair.replicas import ReplicaSegments
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, Record, SegmentHeader, encode_entries

OTHER = uuid.UUID(int=5)


def header(d: Twelve, first: int = 4, *, index: bool = False, **changes: object) -> None:
    """Change fields of a header."""
    path = d.idx(first) if index else d.seg(first)
    data = path.read_bytes()
    old = SegmentHeader.decode(data)
    path.write_bytes(dataclasses.replace(old, **changes).encode() + data[HEADER_SIZE:])  # type: ignore[arg-type]


def name(d: Twelve, first: int, partition: int) -> None:
    """Let the request ids of a segment's records name a partition."""
    raw = d.seg(first).read_bytes()[HEADER_SIZE:]
    records = [Record.decode(raw[at : at + SIZE]) for at in range(0, len(raw), SIZE)]
    head, index = d.seg(first).read_bytes()[:HEADER_SIZE], d.idx(first).read_bytes()
    d.write(
        first,
        [
            Record.make(
                one.transaction_id, dataclasses.replace(one.request_id, partition=partition), one.header, one.data
            )
            for one in records
        ],
    )
    d.seg(first).write_bytes(head + d.seg(first).read_bytes()[HEADER_SIZE:])
    d.idx(first).write_bytes(index)


def entries(d: Twelve, *wrong: int) -> None:
    """Let entries of the index lead elsewhere."""
    data = bytearray(d.idx(4).read_bytes())
    for place in wrong:
        struct.pack_into(">q", data, HEADER_SIZE + 8 * place, 7)
    d.idx(4).write_bytes(data)


def around(d: Twelve, *replicas: Twelve) -> SegmentSurroundings:
    control = read_control(d.control)
    assert control is not None
    others = [ReplicaSegments(one.root, control.header.cluster_key) for one in replicas]
    return SegmentSurroundings(control, 0, view_partition(d.directory, 0).segments, others)


def judged(d: Twelve, surroundings: SegmentSurroundings, first: int = 4) -> ProvenanceVerdict:
    view = next(one for one in surroundings.segments if one.first_transaction_id == first)
    assert view.data is not None
    return judge(view, Content.of_file(view.data.path, view.data.size), surroundings)


SENTENCES = {
    "N": "file name and first record agree on the first transaction id",
    "n": "file name and index header agree on the first transaction id",
    "K": "control file and index header agree on the cluster key",
    "P": "directory and index header agree on the partition",
    "V": "everything else reads as the only version there is",
    "C": "the creation time is the index header's",
    "E": "the entries of the index are where its records begin",
    "R": "/r holds the same records",
    "e": "2 of 4 entries of the index are not where its records begin",
    "t": "it was not created when its index was",
    "r": "/r holds other records under these ids",
    "q": "its request ids do not name partition 0",
    "s": "it goes on to transaction 7, and the next segment begins with 6",
    "b": "the request ids of its records name partition 3, and those of the segments beside it name this one",
    "m": "the request ids of its records name partition 3, and /r holds other records under these ids",
}
CODES = {"unknown-version": "v", "segment-key": "k", "segment-partition": "p", "segment-name": "n"}


def said(found: ProvenanceVerdict, place: Path) -> str:
    """Whether it is the partition's own, then the codes and the sentences by their letters."""
    codes = "".join(CODES[one.value] for one in found.codes)
    why = found.why.replace(str(place), "")
    letters = ""
    while why:
        letter = next(key for key, sentence in SENTENCES.items() if why.startswith(sentence))
        letters, why = letters + letter, why[len(SENTENCES[letter]) :].lstrip(",; ")
    return f"{'own' if found.own else 'behind' if found.behind else 'not'} {codes or '-'} {letters}".rstrip()


WRONG: dict[str, Damage] = {
    "nothing": lambda d: None,
    "version": lambda d: header(d, version=1),
    "key": lambda d: header(d, cluster_key=OTHER),
    "partition": lambda d: header(d, partition=3),
    "first": lambda d: header(d, first_transaction_id=9),
    "key and creation": lambda d: header(d, cluster_key=OTHER, created=1),
    "key, partition and creation": lambda d: header(d, cluster_key=OTHER, partition=3, created=1),
    "all but the creation": lambda d: header(d, version=1, cluster_key=OTHER, partition=3, first_transaction_id=9),
}
BESIDE: dict[str, Damage] = {
    "-": lambda d: None,
    "no index": lambda d: d.idx(4).unlink(),
    "its index of another key": lambda d: header(d, index=True, cluster_key=OTHER),
    "its index of another partition": lambda d: header(d, index=True, partition=3),
    "its index of another version": lambda d: header(d, index=True, version=1),
    "its index of another first id": lambda d: header(d, index=True, first_transaction_id=9),
    "its index with wrong entries": lambda d: entries(d, 1, 2),
    "one record": lambda d: d.cut(4, HEADER_SIZE + SIZE),
    "one record, of another partition": lambda d: (name(d, 4, 3), d.cut(4, HEADER_SIZE + SIZE)),
    "no record": lambda d: d.cut(4, HEADER_SIZE),
    "no record, and no index": lambda d: (d.cut(4, HEADER_SIZE), d.idx(4).unlink()),
    "its first record damaged": lambda d: d.spoil(4),
    "its first record damaged, and no index": lambda d: (d.spoil(4), d.idx(4).unlink()),
    "all records damaged": lambda d: d.spoil(4, 5, 6, 7),
    "request ids of another partition": lambda d: name(d, 4, 3),
    "request ids of another partition, and beside it": lambda d: [name(d, first, 3) for first in (0, 4, 8)],
    "records into the next segment": lambda d: (d.drop(8), d.write(6, [])),
}
VERDICTS = {
    "-": {
        "nothing": "own -",
        "version": "own v V",
        "key": "own k KE / own k KER",
        "partition": "own p PE / own p PER",
        "first": "own n N",
        "key and creation": "not k t",
        "key, partition and creation": "own kp KPCE / own kp KPCER",
        "all but the creation": "own nkpv NKPVE / own nkpv NKPVER",
    },
    "no index": {
        "nothing": "own -",
        "version": "own v V",
        "key": "not k / own k R",
        "partition": "not p / own p R",
        "first": "own n N",
        "key and creation": "not k / own k R",
        "key, partition and creation": "not kp / own kp R",
        "all but the creation": "not kp / own nkpv NVR",
    },
    "its index of another key": {
        "nothing": "own -",
        "version": "own v V",
        "key": "not k / own k ER",
        "partition": "own p PE / own p PER",
        "first": "own n N",
        "key and creation": "not k t",
        "key, partition and creation": "not kp / own kp PER",
        "all but the creation": "not kp / own nkpv NPVER",
    },
    "its index of another partition": {
        "nothing": "own -",
        "version": "own v V",
        "key": "own k KE / own k KER",
        "partition": "not p / own p ER",
        "first": "own n N",
        "key and creation": "not k t",
        "key, partition and creation": "not kp / own kp KER",
        "all but the creation": "not kp / own nkpv NKVER",
    },
    "its index of another version": {
        "nothing": "own -",
        "version": "own v V",
        "key": "own k KE / own k KER",
        "partition": "own p PE / own p PER",
        "first": "own n N",
        "key and creation": "not k t",
        "key, partition and creation": "own kp KPE / own kp KPER",
        "all but the creation": "own nkpv NKPVE / own nkpv NKPVER",
    },
    "its index of another first id": {
        "nothing": "own -",
        "version": "own v V",
        "key": "own k KE / own k KER",
        "partition": "own p PE / own p PER",
        "first": "own n N",
        "key and creation": "not k t",
        "key, partition and creation": "own kp KPE / own kp KPER",
        "all but the creation": "own nkpv NKPVE / own nkpv NKPVER",
    },
    "its index with wrong entries": {
        "nothing": "own -",
        "version": "not v e / own v V",
        "key": "not k e / own k KR",
        "partition": "not p e / own p PR",
        "first": "not n e / own n N",
        "key and creation": "not k et / not k t",
        "key, partition and creation": "not kp e / own kp KPCR",
        "all but the creation": "not kp e / own nkpv NKPVR",
    },
    "one record": {
        "nothing": "own -",
        "version": "own v V",
        "key": "not k / own k KR",
        "partition": "own p P / own p PR",
        "first": "own n N",
        "key and creation": "not k t",
        "key, partition and creation": "not kp / own kp KPCR",
        "all but the creation": "not kp / own nkpv NKPVR",
    },
    "one record, of another partition": {
        "nothing": "behind p b",
        "version": "not v q / not v rq",
        "key": "not k q / not k rq",
        "partition": "not p q / not p rq",
        "first": "not n q / not n rq",
        "key and creation": "not k qt / not k rqt",
        "key, partition and creation": "not kp q / not kp rq",
        "all but the creation": "not kp q / not kp rq",
    },
    "no record": {
        "nothing": "own -",
        "version": "own v V",
        "key": "own k K",
        "partition": "own p P",
        "first": "own n n",
        "key and creation": "not k t",
        "key, partition and creation": "own kp KPC",
        "all but the creation": "own nkpv nKPV",
    },
    "no record, and no index": {
        "nothing": "own -",
        "version": "not v",
        "key": "not k",
        "partition": "not p",
        "first": "not n",
        "key and creation": "not k",
        "key, partition and creation": "not kp",
        "all but the creation": "not nkpv",
    },
    "its first record damaged": {
        "nothing": "own -",
        "version": "own v V",
        "key": "own k KE / own k KER",
        "partition": "own p PE / own p PER",
        "first": "own n n",
        "key and creation": "not k t",
        "key, partition and creation": "own kp KPCE / own kp KPCER",
        "all but the creation": "own nkpv nKPVE / own nkpv nKPVER",
    },
    "its first record damaged, and no index": {
        "nothing": "own -",
        "version": "own v V",
        "key": "not k / own k R",
        "partition": "not p / own p R",
        "first": "not n",
        "key and creation": "not k / own k R",
        "key, partition and creation": "not kp / own kp R",
        "all but the creation": "not nkp / not n",
    },
    "all records damaged": {
        "nothing": "own -",
        "version": "own v V",
        "key": "own k K",
        "partition": "own p P",
        "first": "own n n",
        "key and creation": "not k t",
        "key, partition and creation": "own kp KPC",
        "all but the creation": "own nkpv nKPV",
    },
    "request ids of another partition": {
        "nothing": "behind p b",
        "version": "not v q / not v rq",
        "key": "not k q / not k rq",
        "partition": "not p q / not p rq",
        "first": "not n q / not n rq",
        "key and creation": "not k qt / not k rqt",
        "key, partition and creation": "not kp q / not kp rq",
        "all but the creation": "not nkpv q / not nkpv rq",
    },
    "request ids of another partition, and beside it": {
        "nothing": "own - / behind p m",
        "version": "own v V / not v r",
        "key": "own k KE / not k r",
        "partition": "own p PE / not p r",
        "first": "own n N / not n r",
        "key and creation": "not k t / not k rt",
        "key, partition and creation": "own kp KPCE / not kp r",
        "all but the creation": "own nkpv NKPVE / not nkpv r",
    },
    "records into the next segment": {
        "nothing": "own -",
        "version": "own v V",
        "key": "not k s / own k KER",
        "partition": "not p s / own p PER",
        "first": "not n s / own n N",
        "key and creation": "not k st / not k t",
        "key, partition and creation": "not kp s / own kp KPCER",
        "all but the creation": "not nkpv s / own nkpv NKPVER",
    },
}
"""By what is beside a wrong header, and what is wrong with it: without a replica / with one that is sound, if that is another."""


@pytest.mark.parametrize("beside", VERDICTS)
def test_whose_a_file_with_a_wrong_header_is(tmp_path: Path, beside: str) -> None:
    """`foreign` says the same of it."""
    sound, found = Twelve(tmp_path / "r"), {}
    for wrong in VERDICTS[beside]:
        d = Twelve(tmp_path / wrong)
        WRONG[wrong](d)
        BESIDE[beside](d)
        alone = around(d)
        answers = [said(judged(d, one), tmp_path) for one in (alone, around(d, sound))]
        found[wrong] = " / ".join(dict.fromkeys(answers))
        view = next(one for one in alone.segments if one.first_transaction_id == 4)
        assert (foreign(view, alone) is None) == answers[0].startswith("own")
    assert found == VERDICTS[beside]


@pytest.mark.parametrize(("created", "expected"), [(0, "own k KCE"), (1, "not k t")])
def test_a_header_of_zeros_tells_no_time(tmp_path: Path, created: int, expected: str) -> None:
    """A sector that is gone: of partition 0 and its first segment zeros are right by chance but for the key."""
    d = Twelve(tmp_path / "d")
    header(d, 0, cluster_key=uuid.UUID(int=0), created=created)
    d.spoil(0)
    found = judged(d, around(d), first=0)
    assert said(found, tmp_path) == expected
    if found.header is not None:
        assert found.header.encode() == d.idx(0).read_bytes()[:HEADER_SIZE]


@pytest.mark.parametrize(
    ("named", "header_first", "following", "other"),
    [
        (4, 4, None, False),
        (5, 5, None, False),
        (6, 4, None, True),
        (5, 4, None, False),
        (7, 4, None, True),
        (4, 7, None, False),
        (2, 4, None, False),
        (4, 4, 8, False),
        (4, 4, 7, True),
        (4, 4, 9, False),
        (2, 9, 8, False),
    ],
)
def test_records_behind_a_damaged_first_one_lie_between_two_names(
    tmp_path: Path, named: int, header_first: int, following: int | None, *, other: bool
) -> None:
    """Transactions 5 to 7 are read."""
    d = Twelve(tmp_path / "d")
    d.spoil(4)
    content = Content.of_file(d.seg(4), d.seg(4).stat().st_size)
    place = SimpleNamespace(following=lambda _: following)
    assert provenance._ids_outside_name(content, header_first, place, named) is other  # type: ignore[arg-type]


def moved(d: Twelve, first: int, *, index: bool = True) -> None:
    """Give segment 4 another name, with its index or without."""
    d.seg(4).rename(d.seg(first))
    if index:
        d.idx(4).rename(d.idx(first))
    else:
        d.idx(4).unlink()


@pytest.mark.parametrize(
    ("damage", "first", "codes", "renamed"),
    [
        (lambda d: moved(d, 5, index=False), 5, "n", True),
        (lambda d: (moved(d, 3, index=False), d.drop(0)), 3, "n", True),
        (lambda d: moved(d, 5), 5, "n", False),  # the index would be another one's
        (lambda d: (moved(d, 5, index=False), header(d, 5, cluster_key=OTHER)), 5, "nk", False),
        (lambda d: (moved(d, 5, index=False), header(d, 5, first_transaction_id=9)), 5, "n", False),
        (lambda d: (moved(d, 5, index=False), d.flip(d.seg(5), 140)), 5, "n", False),
    ],
)
def test_a_renamed_file_is_the_partitions_own(
    tmp_path: Path, damage: Damage, first: int, codes: str, *, renamed: bool
) -> None:
    """Where header and first record agree on another name, and nothing speaks against it."""
    d = Twelve(tmp_path / "d")
    damage(d)
    alone = around(d)
    found = judged(d, alone, first)
    assert (found.own, "".join(CODES[one.value] for one in found.codes)) == (False, codes)
    view = next(one for one in alone.segments if one.first_transaction_id == first)
    assert (foreign(view, alone) is None) == renamed


def compared(
    many: int, *, entries: list[int] | None, broken: tuple[int, ...] = (), partition: int = 3
) -> tuple[int, int, int, bool, list[str]]:
    """Of records from transaction 4 on, all but the first of partition 3, with an index: what `_compare` tells and says."""
    data = bytearray(SegmentHeader(0, 0, OTHER, 3, 4).encode())
    for number in range(4, 4 + many):
        data += Record.make(number, RequestId(1, 1, 3 if number > 4 else 2, -1), 0, bytes(20)).encode()
    for place in broken:
        data[HEADER_SIZE + SIZE * place + 9] ^= 1
    hint = None
    if entries is not None:
        offsets = [HEADER_SIZE + SIZE * one if one >= 0 else 7 for one in entries]
        hint = Content("", (LiteralBytes(bytes(HEADER_SIZE) + encode_entries(offsets)),))
    said = provenance._WitnessReport([], [])
    named_here, last = provenance._compare(Content("", (LiteralBytes(bytes(data)),)), 4, hint, partition, said)
    return named_here, last, said.records, said.indexed, [*said.against, *said.proofs]


@pytest.mark.parametrize(
    ("many", "entries", "broken", "found"),
    [
        (6, None, (), (5, 10, 6, False, [])),
        (6, [], (), (5, 10, 6, False, [])),
        (6, [0], (), (5, 10, 6, False, [])),
        (6, [0, 1], (), (5, 10, 6, True, ["E"])),
        (6, [0, 1, 2, 3, 4, 5], (), (5, 10, 6, True, ["E"])),
        (6, [0, 1, 2, 3, 4, 5, 6, 9], (), (5, 10, 6, True, ["E"])),
        (6, [-1, 1, 2, 3, 4, 5], (), (5, 10, 6, False, ["1 of 6"])),
        (6, [0, 1, 2, -1, 4, -1], (), (5, 10, 6, False, ["2 of 6"])),
        (6, [-1], (), (5, 10, 6, False, ["1 of 1"])),
        (9, [0, 1, 2, 3, -1, 5, 6, 7, 8], (), (8, 13, 9, False, ["1 of 9"])),
        (9, [-1, 1, 2, 3, 4, 5, 6, 7, 8], (), (8, 13, 9, True, ["E"])),
        (9, [0, 1, 2, 3, 4, 5, 6, 7, -1], (), (8, 13, 9, False, ["1 of 9"])),
        (10, [0, 1, 2, 3, -1, 5, 6, 7, 8, 9], (), (9, 14, 10, True, ["E"])),
        (6, [0, 1, 2, 3, 4, 5], (0,), (5, 10, 5, True, ["E"])),
        (6, [0, 1], (0,), (5, 10, 5, True, ["E"])),
        (6, [-1, 1], (0,), (5, 10, 5, True, ["E"])),
        (6, [0, -1], (0,), (5, 10, 5, False, ["1 of 1"])),
        (6, [0, 1, -1, 3, 4, 5], (2,), (4, 10, 5, True, ["E"])),
        (6, [0, 1, 2, 3, 4, 5], (5,), (4, 9, 5, True, ["E"])),
        (2, [0, 1], (0, 1), (0, 4, 0, False, [])),
        (1, [0], (), (0, 5, 1, False, [])),
    ],
)
def test_records_are_compared_with_the_entries_of_an_index(
    many: int, entries: list[int] | None, broken: tuple[int, ...], found: tuple[int, int, int, bool, list[str]]
) -> None:
    """The first entry is the same in every index, so that it says nothing where it is right."""
    *numbers, words = compared(many, entries=entries, broken=broken)
    said = [SENTENCES.get(one, f"{one} entries of the index are not where its records begin") for one in found[4]]
    assert (numbers, words) == ([*found[:4]], said)
    assert compared(many, entries=entries, broken=broken, partition=2)[0] == (0 not in broken)
    for partition in (1, 6, 7):
        assert compared(many, entries=entries, broken=broken, partition=partition)[0] == 0


def test_every_replica_that_was_asked_is_named(tmp_path: Path) -> None:
    """Also where the header is right, and where one of them contradicts."""
    d, sound, other = (Twelve(tmp_path / name) for name in ("d", "r", "o"))
    for first in (0, 4, 8):
        name(d, first, 3)
    found = judged(d, around(d, other, sound))
    assert found.sources == {one.seg(first) for one in (sound, other) for first in (0, 4, 8)}
    assert (found.own, found.behind) == (False, True)
    for first in (0, 4, 8):
        name(other, first, 3)
    assert not judged(d, around(d, other, sound)).own
    assert judged(d, around(d, other)) == dataclasses.replace(
        judged(d, around(d)), sources=frozenset(other.seg(first) for first in (0, 4, 8))
    )
    assert judged(d, around(d)).sources == frozenset()
    header(d, partition=3)
    assert judged(d, around(d, other)).sources == {other.seg(first) for first in (0, 4, 8)}
    assert judged(d, around(d, other)).own
    assert not judged(d, around(d, other, sound)).own, "the one that contradicts counts"


def test_a_file_that_is_not_there_or_holds_no_header_is_nobodys(tmp_path: Path) -> None:
    d = Twelve(tmp_path / "d")
    d.cut(4, HEADER_SIZE - 1)
    d.drop(8, index=False)
    alone = around(d)
    assert [foreign(one, alone) for one in alone.segments] == [None, None, None]
    header(d, 0, cluster_key=OTHER, partition=3)
    d.idx(0).unlink()
    assert foreign(alone.segments[0], around(d)) == "segment-key, segment-partition"
    d.idx(0).write_bytes(b"")
    name(d, 0, 9)
    assert foreign(alone.segments[0], around(d)) == (
        "segment-key, segment-partition: its request ids do not name partition 0"
    )


def test_of_a_file_that_cannot_be_read_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    d = Twelve(tmp_path / "d")
    alone = around(d)

    def fail(*_: object) -> ProvenanceVerdict:
        raise DiskReadError(d.seg(4), 200, OSError(5, "Input/output error"))

    monkeypatch.setattr(provenance, "judge", fail)
    with pytest.raises(DiskReadError, match="Input/output error"):
        foreign(alone.segments[1], alone)
