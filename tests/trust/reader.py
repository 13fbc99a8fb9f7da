"""What a storage directory proves, read by somebody who shares no line with the programs under test.

Written from the facts of the format alone (`struct`, `zlib`, `os`); nothing of ``formats``, ``engine`` or ``waltzctl`` is
imported, which a test asserts.  Every integer is big-endian and signed::

    control file    header 128: version 4, created 8, cluster key 16, partitions 4, zeros 96; then one info for each partition:
                    id 4 and two structs of session 8, mark 8, local mark 8, [flags 4, sequence 4,] CRC-32 4
                    (with flags and sequence: released, 76 bytes an info; without: documented, 60); while a commit
                    journal is in force every bit of the number of partitions is turned
    <p>/<first, 19 digits>.seg   header 128: version 4, created 8, key 16, partition 4, first id 8, zeros 88; then records:
                    id 8, request id 16 (client, generation, partition, sequence), header 4, length 4, CRC-32 of the data 4, data,
                    CRC-32 of all before it 4
    <p>/<first, 19 digits>.idx   the same header; 8 bytes for each record: where it stands in the data file

**Intact** is a record whose two checksums are right, wherever it stands: behind damage, in a file of another name, in another
partition's directory.  **In place** it is in a data file that belongs to its partition.  **Proven** are the ids that must have
been here:

- up to the local low-water mark of a valid struct (the node's own last transaction when a session began);
- in front of the first id in the name of any data or index file, as the log begins with 0 and has no holes;
- those of an index whose data file is gone or shorter than its header: its writer had as many records;
- of an index with data: ids below the last multiple of 1000 in front of its last entry, where index and data were synced (zeros
  at its end are no entries: a crash leaves them of a file's growth);
- in front of an intact record in place, where its id rises with those of most others in its file, and lies in front of the next
  data file's: what stands in both is for that one to prove.

What is proven and not in place is **lost**.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

CONTROL = "waltz-storage.ctl"
OURS = ".waltzctl"
HEADER = struct.Struct(">iq16siq88s")
CONTROL_HEADER = struct.Struct(">iq16si96s")
RECORD = struct.Struct(">qiiiiiiI")
RELEASED = struct.Struct(">qqqiiI")
DOCUMENTED = struct.Struct(">qqqI")
CHECKPOINT = 1000
MOST_ID = 1 << 40
"""No test writes so many transactions: a larger id in front of a right checksum is not looked for."""
RECORDS = "records of "
"""How what the records of a file prove begins, in `PartitionReading.by`."""
_EMPTY = bytes(4096)


@dataclass(frozen=True)
class Intact:
    """A record with two right checksums; `data` are all its bytes on disk, `partition` is that of its request id.

    `joined`: nothing but intact records stand between the file's header and this one.  What is found behind damage is not, and
    may even be the data of a record that is damaged itself.
    """

    transaction_id: int
    partition: int
    data: bytes
    path: str
    offset: int
    joined: bool


@dataclass(frozen=True)
class Header:
    """The header of a data or index file."""

    version: int
    key: bytes
    partition: int
    first: int


@dataclass(frozen=True)
class Member:
    """A regular file in a partition directory.

    `first` and `suffix` are those of its name, None and "" for a stray one; `end` is where a data file's unbroken row of records
    ends; `foreign` says why it is not the partition's own, and is empty where nothing speaks against it.  `entries`: those of an
    index up to the last that is not zero.
    """

    path: str
    first: int | None
    suffix: str
    size: int
    header: Header | None
    records: tuple[Intact, ...]
    end: int
    foreign: tuple[str, ...] = ()
    entries: int = 0


@dataclass(frozen=True)
class PartitionReading:
    """A partition, its directory and what they prove.

    `expected`: assigned, or known to have had a session, so that a directory must be there.  `proven` is the id behind the last
    one that must have been here, and `by` says what proves each such bound.
    """

    number: int
    present: bool
    expected: bool
    members: tuple[Member, ...] = ()
    by: dict[str, int] = field(default_factory=dict)

    @property
    def proven(self) -> int:
        return max(self.by.values(), default=0)

    @property
    def foreign(self) -> tuple[Member, ...]:
        return tuple(one for one in self.members if one.foreign and one.suffix == ".seg")

    @property
    def in_place(self) -> dict[int, frozenset[bytes]]:
        """Intact records of the partition's own data files, by id; more than one form where they contradict one another."""
        found: dict[int, set[bytes]] = {}
        for member in self.members:
            if member.suffix == ".seg" and not member.foreign:
                for one in member.records:
                    if one.partition == self.number:
                        found.setdefault(one.transaction_id, set()).add(one.data)
        return {number: frozenset(forms) for number, forms in found.items()}

    @property
    def lost(self) -> list[int]:
        """Proven ids of which no intact record is in place."""
        here = self.in_place
        return [number for number in range(min(self.proven, 1 << 20)) if number not in here]


@dataclass(frozen=True)
class Reading:
    """A storage directory.  `key` and `count` are None where the control file does not tell."""

    key: bytes | None
    count: int | None
    partitions: dict[int, PartitionReading]
    intact: tuple[Intact, ...]

    def losses(self) -> dict[int, list[int]]:
        """Lost ids by partition, of those that have any."""
        return {number: one.lost for number, one in self.partitions.items() if one.lost}

    def complaints(self) -> list[str]:
        """Why this directory is not clean; empty where the reader has nothing against it."""
        found = [f"partition {number}: {ranges(lost)} lost" for number, lost in self.losses().items()]
        for number, one in sorted(self.partitions.items()):
            if one.expected and not one.present:
                found.append(f"partition {number}: its directory is gone")
            found += [f"{member.path}: {', '.join(member.foreign)}" for member in one.foreign]
            here = one.in_place
            found += [f"partition {number}: {t} has two forms" for t, forms in here.items() if len(forms) > 1]
        return found


def ranges(numbers: Iterable[int]) -> str:
    """``3-5, 9`` of 3, 4, 5, 9."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def records_in(data: bytes, path: str = "") -> Iterator[Intact]:
    """Every intact record from byte 128 on, in the order of the file; behind damage the search goes on byte by byte.

    Not into a record that is damaged in front of its data, and whose data goes on, by its checksum, to the end of the file.
    """
    place, joined, behind = HEADER.size, True, True
    while place + RECORD.size + 4 <= len(data):
        if data.startswith(_EMPTY, place):
            place += len(_EMPTY) - RECORD.size  # a record's first bytes may be zero, but not so many of them
            joined = False
            continue
        found = record_at(data, place)
        if found is None:
            if behind and ends_the_file(data, place):
                return
            place, joined, behind = place + 1, False, False
            continue
        behind = True
        number, partition, size = found
        yield Intact(number, partition, data[place : place + size], path, place, joined)
        place += size


def ends_the_file(data: bytes, place: int) -> bool:
    """Whether the checksum of a record's data is right if its data is all that follows but for the last four bytes."""
    *_, data_sum = RECORD.unpack_from(data, place)
    rest = data[place + RECORD.size : -4]
    return bool(rest) and zlib.crc32(rest) == data_sum


def end_of(data: bytes) -> int:
    """Where the unbroken row of records ends that begins at byte 128; a client's wrong checksum of its data does not break it."""
    place = HEADER.size
    while place + RECORD.size + 4 <= len(data):
        found = record_at(data, place, of_client=False)
        if found is None:
            break
        place += found[2]
    return place


def record_at(data: bytes, place: int, *, of_client: bool = True) -> tuple[int, int, int] | None:
    """Id, partition of the request id and size of the intact record at an offset; None where there is none.

    Without `of_client` the checksum of the data, which the client computed, may be wrong.
    """
    number, _, _, partition, _, _, length, data_sum = RECORD.unpack_from(data, place)
    start = place + RECORD.size
    end = start + length
    if not 0 <= number < MOST_ID or length < 0 or end + 4 > len(data):
        return None
    (own_sum,) = struct.unpack_from(">I", data, end)
    if zlib.crc32(data[place:end]) != own_sum or (of_client and zlib.crc32(data[start:end]) != data_sum):
        return None
    return number, partition, end + 4 - place


def entries_in(index: bytes) -> int:
    """Whole entries of an index, up to the last that is not zero."""
    whole = index[HEADER.size : HEADER.size + max(0, len(index) - HEADER.size) // 8 * 8]
    return -(-len(whole.rstrip(b"\0")) // 8)


def header_of(data: bytes) -> Header | None:
    """The header at the beginning of a data or index file; None where the file is shorter."""
    if len(data) < HEADER.size:
        return None
    version, _, key, partition, first, _ = HEADER.unpack_from(data)
    return Header(version, key, partition, first)


@dataclass(frozen=True)
class Mark:
    """What the valid structs of a partition's pair prove: the largest session and local mark, and whether one says assigned."""

    session: int = -1
    local: int = -1
    assigned: bool = False


def control_of(data: bytes) -> tuple[bytes, int | None, dict[int, Mark]] | None:
    """Key, number of partitions (None where the length does not bear it out) and marks; None for a file without a header.

    A documented file that a released program extended has zeros behind its end, and reads as documented here.
    """
    if len(data) < CONTROL_HEADER.size:
        return None
    _, _, key, count, _ = CONTROL_HEADER.unpack_from(data)
    count = ~count if count < 0 else count
    sizes = {76: RELEASED, 60: DOCUMENTED}
    body = len(data) - CONTROL_HEADER.size
    fitting = [size for size in sizes if 0 < count < 1 << 16 and size * count == body]
    if 0 < count < 1 << 16 and body == 76 * count and not any(data[CONTROL_HEADER.size + 60 * count :]):
        fitting = [60]
    if not fitting:
        return key, None, {}
    size = fitting[0]
    marks: dict[int, Mark] = {}
    for number in range(count):
        known = Mark()
        for which in (0, 1):
            place = CONTROL_HEADER.size + size * number + 4 + which * (size - 4) // 2
            values = sizes[size].unpack_from(data, place)
            if zlib.crc32(data[place : place + sizes[size].size - 4]) == values[-1]:
                assigned = size == 76 and bool(values[3] & 4)
                known = Mark(max(known.session, values[0]), max(known.local, values[2]), known.assigned or assigned)
        marks[number] = known
    return key, count, marks


def _regular(path: str) -> bytes | None:
    """Bytes of a regular file, which may stand behind a link; None where there is none."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return None


def _named(name: str) -> tuple[int | None, str]:
    stem, dot, end = name.rpartition(".")
    if dot and end in ("seg", "idx") and len(stem) == 19 and stem.isascii() and stem.isdigit():
        return int(stem), "." + end
    return None, ""


def read_directory(root: str | os.PathLike[str]) -> Reading:
    """Read a whole storage directory; opens regular files only."""
    top = os.fspath(root)
    control = _regular(os.path.join(top, CONTROL))
    known = None if control is None else control_of(control)
    key, count, marks = known or (None, None, {})
    names = [name for name in os.listdir(top) if name.isascii() and name.isdigit() and str(int(name)) == name]
    found = {int(name): _members(top, name, key) for name in names if os.path.isdir(os.path.join(top, name))}
    partitions: dict[int, PartitionReading] = {}
    for number in sorted({*marks, *found}):
        if count is not None and number >= count:
            continue
        mark = marks.get(number, Mark())
        members = found.get(number, ())
        expected = mark.assigned or mark.session >= 0 or mark.local >= 0
        partitions[number] = PartitionReading(
            number, number in found, expected, members, _proofs(members, mark, number)
        )
    intact = tuple(one for members in found.values() for member in members for one in member.records)
    return Reading(key, count, partitions, intact)


def _members(top: str, name: str, key: bytes | None) -> tuple[Member, ...]:
    members: list[Member] = []
    for file in sorted(os.listdir(os.path.join(top, name))):
        data = _regular(os.path.join(top, name, file))
        if data is None:
            continue
        first, suffix = _named(file)
        records = () if suffix == ".idx" else tuple(records_in(data, f"{name}/{file}"))
        entries = entries_in(data) if suffix == ".idx" else 0
        members.append(
            Member(f"{name}/{file}", first, suffix, len(data), header_of(data), records, end_of(data), (), entries)
        )
    return tuple(_judged(one, key, int(name)) if one.suffix == ".seg" else one for one in members)


def _judged(member: Member, key: bytes | None, number: int) -> Member:
    """Whose a data file is: its header says the cluster and the partition, and most of its records the partition as well."""
    reasons = []
    if member.header is not None and key is not None and member.header.key != key:
        reasons.append("of another cluster")
    if member.header is not None and member.header.partition != number:
        reasons.append(f"of partition {member.header.partition}")
    strangers = [one for one in member.records if one.partition != number]
    if len(strangers) * 2 > len(member.records):
        reasons.append(f"its records are of partition {strangers[0].partition}")
    return replace(member, foreign=tuple(reasons))


def _proofs(members: tuple[Member, ...], mark: Mark, number: int) -> dict[str, int]:
    proofs = {f"local low-water mark {mark.local}": mark.local + 1} if mark.local >= 0 else {}
    data = {one.first: one for one in members if one.suffix == ".seg"}
    for one in members:
        if one.first is None or one.first >= MOST_ID:
            continue
        if not _renamed(data.get(one.first), number):  # nobody who wrote there gave it that name
            proofs[f"name of {one.path}"] = one.first
        if one.suffix == ".idx" and one.entries:
            end = one.first + one.entries
            beside = data.get(one.first)
            lonely = beside is None or beside.size < HEADER.size
            proofs[f"entries of {one.path}"] = end if lonely else (end - 1) // CHECKPOINT * CHECKPOINT
        if one.suffix == ".seg" and not one.foreign:
            behind = min((other for other in data if other is not None and other > one.first), default=MOST_ID)
            own = [
                record.transaction_id
                for record in one.records
                if record.partition == number and record.transaction_id < behind
            ]
            proofs[f"{RECORDS}{one.path}"] = highest_in_order(own) + 1
    return proofs


def _renamed(member: Member | None, number: int) -> bool:
    """Whether a data file's header and its first record agree on another first id than its name."""
    if member is None or member.header is None or member.foreign or not member.records:
        return False
    first = member.header.first
    return first not in (member.first, -1) and member.records[0].transaction_id == first and member.records[0].joined


def highest_in_order(numbers: Iterable[int]) -> int:
    """The last of the longest rising row among ids in the order of the file, -1 of none; of several such rows the lowest.

    A record with a wrong id that is far too large proves nothing of the ids in front of it.
    """
    ends: list[int] = []  # of the rising rows of each length the lowest end
    for one in numbers:
        ends[bisect_left(ends, one) : bisect_left(ends, one) + 1] = [one]
    return ends[-1] if ends else -1
