"""Control file ``waltz-storage.ctl``: a header of 128 bytes, then one partition info for each partition.

A partition info is the partition's id and a pair of structs which are written in turn, so that a torn write can only harm
the older one.  Two layouts exist and the file's length tells them apart:

=============  ==========  =======================================================================================
layout         info bytes  struct
=============  ==========  =======================================================================================
*documented*   60          session id 8, low-water mark 8, local low-water mark 8, checksum 4
*released*     76          session id 8, low-water mark 8, local low-water mark 8, flags 4, sequence 4, checksum 4
=============  ==========  =======================================================================================

A struct's checksum is the CRC-32 of the bytes of the struct before it (release 0.13.2; the design documents leave the
algorithm open, and the documented layout uses the same).  Which of two valid structs is current: the released layout
compares sequence numbers; the documented layout has none, so the larger session wins and, within a session, the marks,
which only rise.

Release 0.13.2 reads every control file in the released layout.  When it opens a file of the documented layout, it maps 128 bytes
and 76 for each partition, which extends the file with zeros; then it finds no valid struct and stops.  The only change is the
zeros at the end, so such a file (`ControlFile.extended`) is still read in the documented layout.

Sources: design document *On-Disk Data Structures* (documented layout), release 0.13.2 (released layout).
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from construct import Array, Bytes, Int32sb, Int32ub, Int64sb, Struct

from waltzctl.formats.adapters import Uuid
from waltzctl.formats.checksums import Buffer, crc32
from waltzctl.formats.schema import CompiledSchema, compile_schema

CONTROL_FILE_NAME = "waltz-storage.ctl"
CONTROL_VERSION = 0

CONTROL_HEADER_SCHEMA = Struct(
    "version" / Int32sb,
    "created" / Int64sb,
    "cluster_key" / Uuid,
    "num_partitions" / Int32sb,
    "reserved" / Bytes(96),
)
DOCUMENTED_STRUCT_SCHEMA = Struct(
    "session_id" / Int64sb,
    "low_water_mark" / Int64sb,
    "local_low_water_mark" / Int64sb,
    "checksum" / Int32ub,
)
RELEASED_STRUCT_SCHEMA = Struct(
    "session_id" / Int64sb,
    "low_water_mark" / Int64sb,
    "local_low_water_mark" / Int64sb,
    "flags" / Int32sb,
    "sequence" / Int32sb,
    "checksum" / Int32ub,
)
DOCUMENTED_INFO_SCHEMA = Struct("partition" / Int32sb, "structs" / Array(2, DOCUMENTED_STRUCT_SCHEMA))
RELEASED_INFO_SCHEMA = Struct("partition" / Int32sb, "structs" / Array(2, RELEASED_STRUCT_SCHEMA))

CONTROL_HEADER = compile_schema(CONTROL_HEADER_SCHEMA)
DOCUMENTED_STRUCT = compile_schema(DOCUMENTED_STRUCT_SCHEMA)
RELEASED_STRUCT = compile_schema(RELEASED_STRUCT_SCHEMA)
DOCUMENTED_INFO = compile_schema(DOCUMENTED_INFO_SCHEMA)
RELEASED_INFO = compile_schema(RELEASED_INFO_SCHEMA)

FLAG_AVAILABLE = 1
FLAG_ASSIGNED = 4
MAX_PARTITIONS = 1_000_000
"""A header with a larger number counts as damaged.  This bounds the memory that a reader allocates."""
_SCORED = 4096
"""Partition infos whose checksums are compared to find the layout of a file whose length fits neither."""
OURS, RELEASE = "waltzctl", "waltz 0.13.2"
"""Names of the programs that open storage directories."""


class Layout(enum.StrEnum):
    """The two layouts of the control file's body."""

    DOCUMENTED = "documented"
    RELEASED = "released"

    @property
    def opened_by(self) -> tuple[str, ...]:
        """The programs that can open a storage directory of this layout."""
        return (OURS, RELEASE) if self is Layout.RELEASED else (OURS,)

    @property
    def has_flags(self) -> bool:
        """Whether a struct holds flags and a sequence number (released layout).

        =================  ===========================  ================================
        property           with flags                   without
        =================  ===========================  ================================
        assigned means     the flag is set              the partition has a directory
        current struct     the higher sequence number   the higher session and marks
        =================  ===========================  ================================
        """
        return self.struct_schema is RELEASED_STRUCT

    @property
    def struct_schema(self) -> CompiledSchema:
        """One struct of a pair."""
        return RELEASED_STRUCT if self is Layout.RELEASED else DOCUMENTED_STRUCT

    @property
    def info_schema(self) -> CompiledSchema:
        """One partition info: id and pair."""
        return RELEASED_INFO if self is Layout.RELEASED else DOCUMENTED_INFO

    def file_size(self, num_partitions: int) -> int:
        """Bytes of a control file of this layout."""
        return CONTROL_HEADER.size + self.info_schema.size * num_partitions

    def info_offset(self, partition: int) -> int:
        """Byte offset of a partition's info in the file."""
        return CONTROL_HEADER.size + self.info_schema.size * partition

    def struct_offset(self, partition: int, number: int) -> int:
        """Byte offset of struct 1 or 2 of a partition in the file."""
        return self.info_offset(partition) + self.info_schema.offset_of(f"structs.{number - 1}")


@dataclass(frozen=True, slots=True)
class ControlHeader:
    """The first 128 bytes.  `created` is in milliseconds since 1970-01-01 UTC.

    `journaled`: acknowledged records may be in a commit journal and not in their segments yet (`engine.storage.journal_state`).
    The number of partitions is then stored with every bit inverted, a negative number, so that release 0.13.2, which knows no
    journal, finds that it is not the cluster's number, and does not start.
    """

    version: int
    created: int
    cluster_key: uuid.UUID
    num_partitions: int
    reserved: bytes = bytes(96)
    journaled: bool = False

    @classmethod
    def decode(cls, data: Buffer) -> ControlHeader:
        """From the first 128 bytes.  Raises struct.error when there are fewer."""
        version, created, key, partitions, reserved = CONTROL_HEADER.struct.unpack_from(data)
        journaled = 0 < ~partitions <= MAX_PARTITIONS
        return cls(
            version, created, uuid.UUID(bytes=key), ~partitions if journaled else partitions, reserved, journaled
        )

    def encode(self) -> bytes:
        """128 bytes."""
        stored = ~self.num_partitions if self.journaled else self.num_partitions
        return CONTROL_HEADER.struct.pack(self.version, self.created, self.cluster_key.bytes, stored, self.reserved)


NEVER = (-1, -1, -1)
"""Session and marks (`PartitionStruct.marks`) of a partition that has seen no session, or was deleted."""


@dataclass(frozen=True, slots=True)
class PartitionStruct:
    """One of the two structs of a partition info.  `flags` and `sequence` are None in the documented layout."""

    session_id: int = -1
    low_water_mark: int = -1
    local_low_water_mark: int = -1
    flags: int | None = None
    sequence: int | None = None
    checksum: int = 0
    valid: bool = True

    @property
    def layout(self) -> Layout:
        """The layout that this struct belongs to."""
        return Layout.DOCUMENTED if self.sequence is None else Layout.RELEASED

    @property
    def available(self) -> bool | None:
        """The released flag; None in the documented layout."""
        return None if self.flags is None else bool(self.flags & FLAG_AVAILABLE)

    @property
    def assigned(self) -> bool | None:
        """The released flag; None in the documented layout."""
        return None if self.flags is None else bool(self.flags & FLAG_ASSIGNED)

    @property
    def marks(self) -> tuple[int, int, int]:
        """Session id, low-water mark, local low-water mark."""
        return self.session_id, self.low_water_mark, self.local_low_water_mark

    @classmethod
    def decode(cls, layout: Layout, data: Buffer, offset: int = 0) -> PartitionStruct:
        """From the struct's bytes at `offset`; `valid`: whether its checksum is right."""
        schema = layout.struct_schema
        values = schema.struct.unpack_from(data, offset)
        body = bytes(data[offset : offset + schema.offset_of("checksum")])
        valid = crc32(body) == values[-1]
        session, low, local, *extra, checksum = values
        flags, sequence = extra or (None, None)
        return cls(session, low, local, flags, sequence, checksum, valid)

    def encode(self) -> bytes:
        """The struct's bytes with a checksum computed anew."""
        schema = self.layout.struct_schema
        values = self.marks if self.sequence is None else (*self.marks, self.flags, self.sequence)
        covered = schema.struct.pack(*values, 0)[: schema.offset_of("checksum")]
        return schema.struct.pack(*values, crc32(covered))

    def sealed(self) -> PartitionStruct:
        """The same values with the checksum that `encode` writes."""
        return PartitionStruct.decode(self.layout, self.encode())

    def preceding(self) -> PartitionStruct:
        """The same values with the sequence number before this one's, which wraps at 2^31; sealed."""
        if self.sequence is None:
            return self.sealed()
        return replace(self, sequence=_wrapped(self.sequence - 1)).sealed()


class Choice(enum.StrEnum):
    """Why a struct is current, or why none is."""

    ONLY_VALID = "only valid"
    NEWER = "newer"
    SAME = "same"
    TIE = "tie"
    NONE_VALID = "none valid"


def _wrapped(sequence: int) -> int:
    """A sequence number that is at most one step outside of signed 32 bits, wrapped into them."""
    return (sequence + 2**31) % 2**32 - 2**31


def _serial_newer(first: int, second: int) -> bool:
    """Whether a 32-bit sequence number is newer than another, by serial-number arithmetic (RFC 1982), so that it may wrap.

    Two numbers that are exactly 2^31 apart have no order there; as in the release, the larger one counts as newer, so that the
    order of the arguments does not matter.
    """
    distance = (first - second) & 0xFFFFFFFF
    return first > second if distance == 0x80000000 else 0 < distance < 0x80000000


def choose_current(first: PartitionStruct, second: PartitionStruct) -> tuple[int | None, Choice]:
    """Which struct of a pair is current: 1, 2 or None.

    Released layout: the newer sequence number; equal ones are a tie, as in release 0.13.2, which refuses to start then.
    Documented layout: the larger session id, then the marks; the documents name no rule.  Two structs with the same
    values are no tie there: the first counts as current.
    """
    if not (first.valid and second.valid):
        number = 1 if first.valid else 2 if second.valid else None
        return number, Choice.ONLY_VALID if number else Choice.NONE_VALID
    if first.sequence is not None and second.sequence is not None:
        if first.sequence == second.sequence:
            return None, Choice.TIE
        return (1 if _serial_newer(first.sequence, second.sequence) else 2), Choice.NEWER
    if first.marks == second.marks:
        return 1, Choice.SAME
    if first.session_id != second.session_id:
        return (1 if first.session_id > second.session_id else 2), Choice.NEWER
    rises = [a - b for a, b in zip(first.marks, second.marks, strict=True)]
    if min(rises) >= 0:
        return 1, Choice.NEWER
    if max(rises) <= 0:
        return 2, Choice.NEWER
    return None, Choice.TIE


@dataclass(frozen=True, slots=True)
class PartitionInfo:
    """A partition info of the control file.

    `partition`: its index in the file.  `stored_partition`: the id that it holds, which is the same unless it is damaged.
    `current`: the number of the current struct, 1 or 2; None when neither can be trusted.  `choice`: why.
    """

    partition: int
    stored_partition: int
    structs: tuple[PartitionStruct, PartitionStruct]
    current: int | None
    choice: Choice

    @classmethod
    def decode(cls, layout: Layout, partition: int, data: Buffer, offset: int = 0) -> PartitionInfo:
        """From the info's bytes at `offset`.  Raises struct.error when there are too few."""
        schema = layout.info_schema
        stored = schema.struct.unpack_from(data, offset)[0]
        first, second = (
            PartitionStruct.decode(layout, data, offset + schema.offset_of(f"structs.{n}")) for n in (0, 1)
        )
        current, choice = choose_current(first, second)
        return cls(partition, stored, (first, second), current, choice)

    def encode(self) -> bytes:
        """The info's bytes, checksums computed anew."""
        schema = self.structs[0].layout.info_schema
        values = [v for one in self.structs for v in one.layout.struct_schema.struct.unpack(one.encode())]
        return schema.struct.pack(self.stored_partition, *values)

    @property
    def current_struct(self) -> PartitionStruct | None:
        """The current struct, or None."""
        return None if self.current is None else self.structs[self.current - 1]

    def updated(self, **changes: int) -> tuple[int, PartitionStruct]:
        """The next struct to write and its number (1 or 2): the current values with `changes`, the sequence advanced.

        Raises ValueError when no struct is current.
        """
        if self.current is None:
            raise self._none_in_force()
        current = self.structs[self.current - 1]
        if current.sequence is not None:
            current = replace(current, sequence=_wrapped(current.sequence + 1))
        written = replace(current, **changes)  # type: ignore[arg-type]  # mypy cannot see which fields are meant
        return 3 - self.current, written.sealed()

    def rewritten(self, **changes: int) -> PartitionInfo:
        """This info with `changes` in its current struct.  Raises as `updated`.

        In the documented layout both structs get the new values, because the struct with the higher marks is current there and
        `changes` may lower them.
        """
        number, written = self.updated(**changes)
        info = self.with_struct(number, written)
        return info if written.layout.has_flags else info.with_struct(3 - number, written)

    def renewed(self) -> PartitionInfo:
        """This info with two valid structs: an invalid one becomes a copy of the current one, with the preceding sequence number.

        Raises ValueError when no struct is current.
        """
        if self.current is None:
            raise self._none_in_force()
        if self.structs[2 - self.current].valid:
            return self
        return self.with_struct(3 - self.current, self.structs[self.current - 1].preceding())

    def _none_in_force(self) -> ValueError:
        return ValueError(f"partition {self.partition}: no struct of its pair is in force ({self.choice})")

    def with_struct(self, number: int, written: PartitionStruct) -> PartitionInfo:
        """This info after struct `number` has been overwritten."""
        structs = (written, self.structs[1]) if number == 1 else (self.structs[0], written)
        current, choice = choose_current(*structs)
        return replace(self, structs=structs, current=current, choice=choice)


def initial_info(layout: Layout, partition: int) -> PartitionInfo:
    """A partition that was never assigned.  Released: flags 1 (available), sequences -1 and 0, struct 2 current."""
    if layout.has_flags:
        pair = (PartitionStruct(flags=FLAG_AVAILABLE, sequence=-1), PartitionStruct(flags=FLAG_AVAILABLE, sequence=0))
    else:
        pair = (PartitionStruct(), PartitionStruct())
    structs = (pair[0].sealed(), pair[1].sealed())
    current, choice = choose_current(*structs)
    return PartitionInfo(partition, partition, structs, current, choice)


def convert_info(info: PartitionInfo, layout: Layout, *, available: bool, assigned: bool) -> PartitionInfo:
    """A partition's info converted to `layout`.  The current struct stays current, and the pair keeps its other struct.

    `available`, `assigned`: the flags for the released layout; the documented layout has none.  Where only one struct is valid,
    both get its values.

    ============================  ========================================================================================
    conversion                    sequence numbers and values
    ============================  ========================================================================================
    documented to released        the current struct gets sequence 0 and the other -1, as in a pair that was never written
    released to documented        an older struct with a higher session or marks, which would be current there, gets the
                                  current values: a mark that was lowered stays low
    same layout                   only the flags change
    ============================  ========================================================================================

    Raises ValueError when no struct is current.
    """
    info = info.renewed()
    current, number = info.current_struct, info.current
    assert current is not None  # a renewed info has one
    assert number is not None
    beside = info.structs[2 - number]
    if layout.has_flags and current.sequence is not None:  # released to released: only the flags change
        flags = _flags(available=available, assigned=assigned)
        pair = replace(current, flags=flags).sealed(), replace(beside, flags=flags).sealed()
    elif layout.has_flags:
        flags = _flags(available=available, assigned=assigned)
        pair = (
            PartitionStruct(*current.marks, flags, 0).sealed(),
            PartitionStruct(*beside.marks, flags, -1).sealed(),
        )
    else:
        pair = PartitionStruct(*current.marks).sealed(), PartitionStruct(*beside.marks).sealed()
        if choose_current(*pair)[0] != 1:
            pair = pair[0], pair[0]
    # of two equal structs either would do; take the second, which is current in a pair that was never written
    structs = pair if number == 1 and info.choice is not Choice.SAME else (pair[1], pair[0])
    return PartitionInfo(info.partition, info.stored_partition, structs, *choose_current(*structs))


def _flags(*, available: bool, assigned: bool) -> int:
    return FLAG_AVAILABLE * available | FLAG_ASSIGNED * assigned


@dataclass(frozen=True, slots=True)
class ControlFile:
    """A control file as read.  `partitions` holds as many infos as the bytes cover, in file order.

    `size`: bytes of the file.  `size_fits`: the size is that of a layout.  `extended`: the file is of the documented layout, with
    zeros after its infos up to the size of the released layout; `size` includes them, and `size_fits` is true.
    """

    layout: Layout
    header: ControlHeader
    partitions: tuple[PartitionInfo, ...]
    size: int
    size_fits: bool
    extended: bool = False

    @property
    def infos(self) -> tuple[PartitionInfo, ...]:
        """`partitions` without trailing bytes that were decoded as infos.

        Infos beyond the header's number of partitions count as such bytes unless one of their structs is valid.
        """
        stated = self.header.num_partitions
        if stated <= 0 or any(struct.valid for info in self.partitions[stated:] for struct in info.structs):
            return self.partitions
        return self.partitions[:stated]

    def encode(self) -> bytes:
        """The whole file, without the zeros of an extended one."""
        return self.header.encode() + b"".join(info.encode() for info in self.partitions)


def struct_in_force(control: ControlFile | None, partition: int | None) -> PartitionStruct | None:
    """The current struct of a partition; None without one, where the file does not have the partition, and without a file."""
    if control is None or partition is None or not 0 <= partition < len(control.partitions):
        return None
    return control.partitions[partition].current_struct


def layout_of(size: int, num_partitions: int) -> Layout | None:
    """The layout whose file of `num_partitions` has exactly `size` bytes; None when neither has."""
    if 0 < num_partitions <= MAX_PARTITIONS:
        for layout in Layout:
            if layout.file_size(num_partitions) == size:
                return layout
    return None


def _structs(layout: Layout, data: Buffer, count: int) -> Iterator[PartitionStruct]:
    """Both structs of the first `count` infos under a layout; the bytes must cover them."""
    for partition in range(count):
        for number in (1, 2):
            yield PartitionStruct.decode(layout, data, layout.struct_offset(partition, number))


def _is_extended(data: Buffer, num_partitions: int) -> bool:
    """Whether a file with the size of the released layout is one of the documented layout, followed by zeros.

    It is when every byte after the documented infos is zero, at least one struct is valid at its documented offset, and none is
    valid at its released offset.  So a file of the released layout with at least one intact struct is never taken for one: zero
    bytes are not a valid struct in either layout.
    """
    end = Layout.DOCUMENTED.file_size(num_partitions)
    if bytes(data[end:]).strip(b"\0"):
        return False
    released, documented = (
        any(struct.valid for struct in _structs(layout, data, num_partitions))
        for layout in (Layout.RELEASED, Layout.DOCUMENTED)
    )
    return documented and not released


def _likely_layout(data: Buffer) -> Layout:
    """The layout in which more structs are valid; for a file whose length fits neither layout."""
    scores: dict[Layout, int] = {}
    for layout in Layout:
        count = min((len(data) - CONTROL_HEADER.size) // layout.info_schema.size, _SCORED)
        scores[layout] = sum(struct.valid for struct in _structs(layout, data, count))
    return Layout.DOCUMENTED if scores[Layout.DOCUMENTED] > scores[Layout.RELEASED] else Layout.RELEASED


def decode_control(data: Buffer) -> ControlFile:
    """Decode a whole control file, which may be damaged.

    Where the length fits neither layout (`size_fits` false), the layout is the one in which more structs are valid, and every
    complete info in the bytes is decoded.  Raises ValueError for fewer than 128 bytes.
    """
    header, layout, count, fits, extended = _framed(data)
    infos = tuple(PartitionInfo.decode(layout, p, data, layout.info_offset(p)) for p in range(count))
    return ControlFile(layout, header, infos, len(data), fits, extended)


def decode_infos(data: Buffer, wanted: Iterable[int]) -> dict[int, PartitionInfo]:
    """The infos of some partitions, as `decode_control` decodes them; without those that are not in the file.

    Takes a time that grows with how many are wanted.  Raises ValueError for fewer than 128 bytes.
    """
    _, layout, count, _, _ = _framed(data)
    return {
        number: PartitionInfo.decode(layout, number, data, layout.info_offset(number))
        for number in wanted
        if 0 <= number < count
    }


def _framed(data: Buffer) -> tuple[ControlHeader, Layout, int, bool, bool]:
    """Header and layout, how many infos there are, whether the length fits a layout, and whether the file is an extended one.

    Raises ValueError for fewer than 128 bytes.
    """
    if len(data) < CONTROL_HEADER.size:
        raise ValueError(f"a control file has at least {CONTROL_HEADER.size} bytes, here are {len(data)}")
    header = ControlHeader.decode(data)
    fitting = layout_of(len(data), header.num_partitions)
    extended = fitting is Layout.RELEASED and _is_extended(data, header.num_partitions)
    layout = Layout.DOCUMENTED if extended else fitting or _likely_layout(data)
    held = min((len(data) - CONTROL_HEADER.size) // layout.info_schema.size, MAX_PARTITIONS)
    return header, layout, header.num_partitions if extended else held, fitting is not None, extended


def initial_control(layout: Layout, cluster_key: uuid.UUID, num_partitions: int, created: int) -> ControlFile:
    """A new control file.  `created`: milliseconds since 1970-01-01 UTC.  Raises ValueError for a bad partition count."""
    if not 0 < num_partitions <= MAX_PARTITIONS:
        raise ValueError(f"the number of partitions must be 1 to {MAX_PARTITIONS}, not {num_partitions}")
    header = ControlHeader(CONTROL_VERSION, created, cluster_key, num_partitions)
    infos = tuple(initial_info(layout, partition) for partition in range(num_partitions))
    return ControlFile(layout, header, infos, layout.file_size(num_partitions), True)
