"""Findings about the headers of a data file and of its index.  The faults are detected by `engine.log.header_judgement`."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from waltzctl.engine.findings import Code, Finding, SegmentFiles
from waltzctl.formats.segment import FORMAT_VERSION, HEADER_SIZE, SEGMENT_HEADER


@dataclass(frozen=True, slots=True)
class ReservedByte:
    """The first non-zero byte of a header's reserved bytes: its position among them, and its value."""

    place: int
    value: int

    @classmethod
    def of(cls, reserved: bytes) -> ReservedByte | None:
        """None where all are zero."""
        rest = reserved.lstrip(b"\0")
        return cls(len(reserved) - len(rest), rest[0]) if rest else None

    @property
    def message(self) -> str:
        """The message, the same for every kind of file."""
        return f"a reserved byte of the header is {self.value:#04x} instead of 0"


@dataclass(frozen=True, slots=True)
class OtherVersion:
    """The header's format version is not a known one."""

    version: int


class FieldSource(enum.StrEnum):
    """The source of the value that a header field should have."""

    CONTROL_FILE = "the control file"
    DIRECTORY = "the directory"
    NAME = "the file name"
    NAME_ALONE = "the file name (but the first record agrees with the header)"
    DATA_FILE = "the data file's header"


@dataclass(frozen=True, slots=True)
class WrongField:
    """The header field `name` (as in the layout) holds `stored`; by `source` it should hold `wanted`.

    `twin`: the same field in the header of the segment's other file (index or data); None without that header.
    """

    name: str
    stored: object
    wanted: object
    source: FieldSource
    twin: object = None


HeaderFault = OtherVersion | ReservedByte | WrongField

_FIELDS = {
    "cluster_key": ("cluster key", Code.SEGMENT_KEY),
    "partition": ("partition", Code.SEGMENT_PARTITION),
    "first_transaction_id": ("first transaction id", Code.SEGMENT_NAME),
}


def code_of(fault: HeaderFault) -> Code:
    """The code of the finding for a fault of a data file's header."""
    if isinstance(fault, OtherVersion):
        return Code.UNKNOWN_VERSION
    return Code.RESERVED_NOT_ZERO if isinstance(fault, ReservedByte) else _FIELDS[fault.name][1]


def header_finding(fault: HeaderFault, files: SegmentFiles, *, index: bool) -> Finding:
    """The finding for a fault of a data file's header, or with `index` of its index file's header."""
    if isinstance(fault, OtherVersion):
        name, code = "version", code_of(fault)
        message = f"the header's format version is {fault.version}; only {FORMAT_VERSION} is known"
    elif isinstance(fault, ReservedByte):
        return files.finding(
            code_of(fault),
            fault.message,
            index=index,
            offset=SEGMENT_HEADER.offset_of("reserved") + fault.place,
            length=1,
        )
    else:
        name, (what, code) = fault.name, _FIELDS[fault.name]
        message = f"the header's {what} is {fault.stored}, {fault.source} says {fault.wanted}"
        if index:
            code = Code.INDEX_HEADER
            message = f"the index header's {what} is {fault.stored}, {fault.source} says {fault.wanted}"
        elif fault.twin == fault.wanted:
            message += f"; the index file's header agrees with {fault.source}"
        elif fault.twin == fault.stored:
            message += "; the index file's header says the same"
    offset, length = SEGMENT_HEADER.offset_of(name), SEGMENT_HEADER.size_of(name)
    return files.finding(code, message, index=index, offset=offset, length=length)


def strange_finding(why: str, files: SegmentFiles) -> Finding:
    """The header is right, but the records are another partition's; `why` is the reason that `engine.storage.belonging` gives."""
    return files.finding(Code.SEGMENT_PARTITION, f"the header is right, but {why}", offset=HEADER_SIZE)


def not_surely_own(why: str, code: Code, files: SegmentFiles) -> Finding:
    """A data file may be another partition's.

    `code`: that of the evidence against its place; `why`: the reason that `engine.repair.provenance` gives.
    """
    return files.finding(code, f"not surely the partition's own: {why}")


def index_missing(files: SegmentFiles) -> Finding:
    """There is no index file."""
    return files.finding(Code.INDEX_MISSING, "the segment has no index file", index=True)


def index_header_short(size: int, files: SegmentFiles) -> Finding:
    """The index file has `size` bytes, fewer than its header has."""
    message = f"the index file has {size} bytes, its header alone has {HEADER_SIZE}"
    return files.finding(Code.INDEX_HEADER, message, index=True, offset=0, length=size)
