"""A partition of twelve records of 60 bytes in three segments, ways to damage it, and what a plan says, a line for each thing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path, PurePath

from tests.builders import build_directory, make_records, segment_header
from tests.memory import in_memory
from tests.repair.scenes import rewrite_mark
from waltzctl.engine.durable.edits import Cut, Edit, MoveDirectory, Overwrite, Replace
from waltzctl.engine.findings import Finding
from waltzctl.engine.repair.arguments import Agreed
from waltzctl.engine.repair.plan import Repair, Step
from waltzctl.engine.repair.recover import plan_recover
from waltzctl.formats.accepted_losses import AcceptedLoss, encode_ledger
from waltzctl.formats.checksums import crc32
from waltzctl.formats.control import Layout
from waltzctl.formats.segment import HEADER_SIZE, Record, encode_entries, encode_records, index_name, segment_name

FIRSTS = (0, 4, 8)
MARK = 9
SIZE = 60
RECORDS = tuple(make_records(12, size=20))
Damage = Callable[["Twelve"], object]


def at(number: int) -> int:
    """Where a transaction begins in its segment."""
    return HEADER_SIZE + SIZE * (number - home(number))


def home(number: int) -> int:
    """The first transaction of its segment."""
    return max((first for first in FIRSTS if first <= number), default=0)


@cache
def _files(layout: Layout, firsts: Sequence[int]) -> dict[str, bytes]:
    ends = (*firsts[1:], len(RECORDS))
    with in_memory(Path()) as place:
        path = build_directory(
            place / "d",
            {0: [RECORDS[first:end] for first, end in zip(firsts, ends, strict=True)]},
            layout=layout,
            local_low_water_mark=MARK,
        )
        return {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("*") if one.is_file()}


class Twelve:
    """Transactions 0 to 11; session 3, both marks 9."""

    def __init__(self, root: Path, *, layout: Layout = Layout.RELEASED, firsts: Sequence[int] = FIRSTS) -> None:
        self.root = root
        self.control = root / "waltz-storage.ctl"
        self.directory = root / "0"
        self.directory.mkdir(parents=True)
        for name, data in _files(layout, tuple(firsts)).items():
            (root / name).write_bytes(data)

    def seg(self, first: int) -> Path:
        return self.directory / segment_name(first)

    def idx(self, first: int) -> Path:
        return self.directory / index_name(first)

    def mark(self, number: int) -> None:
        """Both marks."""
        rewrite_mark(self.root, 0, number)

    def forget_marks(self) -> None:
        """Damage both structs."""
        data = self.control.read_bytes()
        self.control.write_bytes(data[:132] + bytes(one ^ 1 for one in data[132:]))

    def flip(self, path: Path, *offsets: int) -> None:
        data = bytearray(path.read_bytes())
        for offset in offsets:
            data[offset] ^= 1
        path.write_bytes(data)

    def spoil(self, *numbers: int) -> None:
        """Damage records."""
        for number in numbers:
            self.flip(self.seg(home(number)), at(number) + 9)

    def cut(self, first: int, size: int) -> None:
        """Cut a data file."""
        os.truncate(self.seg(first), size)

    def list(self, first: int, entries: int) -> None:
        """Let an index have so many entries."""
        os.truncate(self.idx(first), HEADER_SIZE + 8 * entries)

    def point(self, first: int, number: int, offset: int) -> None:
        """Let an index have a transaction at an offset."""
        data = bytearray(self.idx(first).read_bytes())
        place = HEADER_SIZE + 8 * (number - first)
        data[place : place + 8] = offset.to_bytes(8)
        self.idx(first).write_bytes(data)

    def garble(self, number: int) -> None:
        """Change a record's data and the checksum of the whole, so that only the checksum of the data tells."""
        first, one = home(number), RECORDS[number]
        data, raw = bytearray(self.seg(first).read_bytes()), bytearray(one.encode())
        raw[36] ^= 1
        raw[-4:] = crc32(bytes(raw[:-4])).to_bytes(4)
        data[at(number) : at(number) + SIZE] = raw
        self.seg(first).write_bytes(data)

    def insert(self, first: int, offset: int, data: bytes) -> None:
        """Let bytes stand in a data file that are none of its."""
        whole = self.seg(first).read_bytes()
        self.seg(first).write_bytes(whole[:offset] + data + whole[offset:])

    def strange(self, first: int) -> None:
        """Let a data file and its index be those of another cluster."""
        for path in (self.seg(first), self.idx(first)):
            self.flip(path, *range(12, 28))

    def drop(self, first: int, *, data: bool = True, index: bool = True) -> None:
        """Remove the files of a segment."""
        for path, gone in ((self.seg(first), data), (self.idx(first), index)):
            if gone:
                path.unlink()

    def put(
        self, first: int, ids: Sequence[int], *, of: Sequence[int] = (), index: bool = True, other: Sequence[int] = ()
    ) -> None:
        """Write a segment with records under these ids, their contents those of transactions `of`, or for `other` new ones."""
        records = []
        for number, origin in zip(ids, of or range(first, first + len(ids)), strict=True):
            like = RECORDS[origin]
            data = b"another".ljust(20) if number in other else like.data
            records.append(Record.make(number, like.request_id, like.header, data))
        self.write(first, records)
        if not index:
            self.idx(first).unlink()

    def write(self, first: int, records: Sequence[Record]) -> None:
        """Write a segment."""
        head = segment_header(0, first).encode()
        body, offsets = encode_records(records)
        self.seg(first).write_bytes(head + body)
        self.idx(first).write_bytes(head + encode_entries([HEADER_SIZE + one for one in offsets]))

    def accepted(self, *losses: tuple[int, int] | tuple[int, int, int], disputed: bool = False) -> None:
        """Let the ledger have losses: first, last and the mark as it was then (8)."""
        path = self.root / ".waltzctl" / "accepted-losses"
        path.parent.mkdir(exist_ok=True)
        entries = [AcceptedLoss(0, one[0], one[1], (*one, 8)[2], "then", "why", disputed) for one in losses]
        path.write_bytes(encode_ledger(entries))


def planned(
    place: Path,
    damage: Damage,
    way: str = "",
    *,
    replica: Damage = lambda _: None,
    layout: Layout = Layout.RELEASED,
    agreed: Sequence[Agreed] = (),
) -> list[str]:
    """What the recovery of the damaged partition says; `way`: with ``loss`` allowed, or from a ``replica``, damaged as well."""
    damaged = Twelve(place / "d", layout=layout)
    damage(damaged)
    others = [Twelve(place / "r", layout=layout)] if "replica" in way else []
    for one in others:
        replica(one)
    replicas = [one.root for one in others]
    return told(plan_recover(damaged.root, replicas=replicas, allow_data_loss="loss" in way, agreed=agreed))


def ways(text: str) -> dict[str, list[str]]:
    """The expected plans of a table: ``way, way: line; line``, where further lines of the text go on."""
    found: dict[str, list[str]] = {}
    for paragraph in re.split(
        r"\n\s*(?=(?:unasked|loss|longer|replica|doc (?=[-0-9])|[rd]\b|-?[0-9])[a-z0-9!, -]*:)", text
    ):
        names, _, lines = " ".join(paragraph.split()).partition(":")
        for name in filter(None, names.split(", ")):
            found[name] = [line.strip() for line in lines.split(";") if line.strip()]
    return found


def told(repair: Repair) -> list[str]:
    """What a plan says: a line for each step, each edit (``=``) and each thing that is left (``?``)."""
    return [
        *map(_step, repair.plan.steps),
        *(f"= {_edit(one)}" for one in repair.edits),
        *(f"? {_left(one)}" for one in repair.plan.undecided),
    ]


def _step(one: Step) -> str:
    ids = "" if one.from_transaction_id is None else f" {one.from_transaction_id}..{one.to_transaction_id}"
    place = "" if one.offset is None else f" [{one.offset}+{one.length}]"
    return f"{one.action} {_name(one.path)}{ids}{place}{' loses' if one.loses_data else ''}"


def _edit(one: Edit) -> str:
    if isinstance(one, Cut):
        return f"cut {_name(one.path)} to {one.size}"
    if isinstance(one, Overwrite):
        return f"write {_name(one.path)} [{one.offset}+{len(one.data)}]"
    if isinstance(one, Replace):
        made = sum(map(len, one.parts()))
        return "make ledger" if one.path.name == "accepted-losses" else f"make {_name(one.path)} of {made}"
    return f"{'move' if isinstance(one, MoveDirectory) else 'remove'} {_name(one.path)}"


def _left(one: Finding) -> str:
    place = "" if one.offset is None else f" [{one.offset}+{one.length}]"
    ids = "" if one.transaction_id is None else f" {one.transaction_id}"
    many = "" if one.missing is None else f" x{one.missing}"
    return f"{one.code}{ids}{many} in {one.segment}{place}"


def _name(path: PurePath) -> str:
    known = {"waltz-storage.ctl": "control", "accepted-losses": "ledger"}
    return known.get(path.name) or path.name.lstrip("0").rjust(5, "0")
