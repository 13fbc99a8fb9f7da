"""Constants of the wire loops: offsets in frames and records, from the compiled schemas, and the layout of states and tables.

Names that end in ``_AT`` are offsets in bytes, those in ``_COLUMN`` columns of a table.  The members of the enumerations are
repeated as plain integers, which the compiled loops take as constants.
"""

from __future__ import annotations

import enum

from construct import Struct

from waltzctl.engine.scan import kernel
from waltzctl.formats.schema import compile_schema
from waltzctl.formats.segment import CHECKSUM, ENTRY_SIZE, HEADER_SIZE, RECORD_HEADER, RECORD_OVERHEAD
from waltzctl.formats.wire.client import APPEND_FRONT
from waltzctl.formats.wire.client import AppendRequest as ClientAppend
from waltzctl.formats.wire.feed_frames import FEED_FRAME as FEED_SIZE
from waltzctl.formats.wire.feed_frames import FEED_FRAME_SCHEMA
from waltzctl.formats.wire.frame import FRAME_HEADER
from waltzctl.formats.wire.primitives import COUNT as COUNT_FIELD
from waltzctl.formats.wire.records import WIRE_RECORD_HEAD, WIRE_RECORD_HEADER
from waltzctl.formats.wire.storage import (
    LIST_RANGE,
    PREFIX,
    AppendRequest,
    RecordHeaderListRequest,
    RecordListRequest,
)

COUNT = compile_schema(Struct("count" / COUNT_FIELD))
APPEND_TYPE = AppendRequest.TYPE

# Plain integers: the compiled loops take them as constants.
FRAME_SIZE = FRAME_HEADER.size
MAGIC_AT = FRAME_HEADER.offset_of("magic")
VERSION_AT = FRAME_HEADER.offset_of("version")
BODY_LENGTH_AT = FRAME_HEADER.offset_of("length")
PREFIX_SIZE = PREFIX.size
TYPE_AT = PREFIX.offset_of("type")
SESSION_AT = PREFIX.offset_of("session_id")
SEQUENCE_AT = PREFIX.offset_of("sequence")
PARTITION_AT = PREFIX.offset_of("partition")
APPEND_HEAD = PREFIX.size + COUNT.size
"""Bytes of an append request before its records."""
APPEND_LEAST = APPEND_HEAD + 1
"""Bytes of an append request without records: the flag *offline* follows the records."""
HEAD = WIRE_RECORD_HEAD.size
"""Bytes of a record before its data on the wire; the record on disk begins with the same bytes."""
DATA_LENGTH_AT = WIRE_RECORD_HEAD.offset_of("data_length")
WORD = CHECKSUM.size
WIRE_OVERHEAD = HEAD + WORD
DISK_HEAD = RECORD_HEADER.size
DISK_OVERHEAD = RECORD_OVERHEAD
BRIEF = WIRE_RECORD_HEADER.size
"""Bytes of a record header in a list: the fields before the data length."""

RECORDS_TYPE, HEADERS_TYPE = RecordListRequest.TYPE, RecordHeaderListRequest.TYPE
LIST_BODY = PREFIX.size + LIST_RANGE.size
"""Bytes of a request for a list."""
LIST_FIRST_AT = PREFIX.size + LIST_RANGE.offset_of("first_transaction_id")
LIST_COUNT_AT = PREFIX.size + LIST_RANGE.offset_of("max_count")
LIST_HEAD = FRAME_HEADER.size + PREFIX.size + COUNT.size
"""Bytes of an answer with a list before its records: frame header, the prefix of every body, the number of records."""
ANSWERED_AT = PREFIX.offset_of("session_id")
"""Offset in a body from which the prefix of an answer is copied from the request."""
ENTRY, INDEX_HEADER = ENTRY_SIZE, HEADER_SIZE
"""Bytes of an index entry, and of the header of an index file."""

CLIENT_APPEND = ClientAppend.TYPE
CLIENT_TYPE_AT = APPEND_FRONT.offset_of("type")
CLIENT_REQUEST_AT = APPEND_FRONT.offset_of("request_id")
CLIENT_AT = APPEND_FRONT.offset_of("request_id.client")
CLIENT_PARTITION_AT = APPEND_FRONT.offset_of("request_id.partition")
CLIENT_MARK_AT = APPEND_FRONT.offset_of("client_high_water_mark")
CLIENT_LOCKS_AT = APPEND_FRONT.size
"""Offset of the lists of locks in a client's append."""
REQUEST_AT = WIRE_RECORD_HEAD.offset_of("request_id")
REQUEST_SIZE = WIRE_RECORD_HEAD.size_of("request_id")
REST_AT = WIRE_RECORD_HEAD.offset_of("header")
"""Offset in a record of the fields that end a client's append, too, in the same form: header, data length, data, checksum."""
REST_LENGTH_AT = DATA_LENGTH_AT - REST_AT
REST_HEAD = HEAD - REST_AT
FEED_FRAME = FEED_SIZE
FEED_REQUEST_AT = FEED_FRAME_SCHEMA.offset_of("request_id")
FEED_ID_AT = FEED_FRAME_SCHEMA.offset_of("transaction_id")
FEED_HEADER_AT = FEED_FRAME_SCHEMA.offset_of("header")
ID_SIZE = WIRE_RECORD_HEAD.size_of("transaction_id")


def _check_layouts() -> None:
    """Assert the layouts that let the loops copy ranges of bytes: fields of the same order on disk and on the wire."""
    shared = RECORD_HEADER.fields[: len(WIRE_RECORD_HEAD.fields)]
    assert shared == WIRE_RECORD_HEAD.fields, "the record on disk does not begin like the one on the wire"
    assert BRIEF == DATA_LENGTH_AT, "a record header is not what stands in front of the data length"
    assert RECORD_HEADER.offset_of("data_checksum") == HEAD, "the data's checksum does not follow on disk"
    assert DISK_HEAD == HEAD + WORD, "something else stands in front of the data on disk"
    behind = [field.name for field in ClientAppend.FIELDS.subcons[-3:]]
    assert behind == ["header", "data", "checksum"], "an append of a client does not end like a record"
    lists = [field.name for field in ClientAppend.FIELDS.subcons[-6:-3]]
    assert lists == ["write_locks", "read_locks", "append_locks"], "an append's lists of locks are others"
    assert REST_AT == REQUEST_AT + REQUEST_SIZE == ID_SIZE + REQUEST_SIZE, (
        "a record does not begin with id and request id"
    )
    assert FEED_REQUEST_AT + REQUEST_SIZE == FEED_ID_AT, (
        "a frame of a feed has the id elsewhere than behind the request id"
    )
    assert FEED_ID_AT + ID_SIZE == FEED_HEADER_AT, "a frame of a feed has the header elsewhere than behind the id"
    assert FEED_HEADER_AT + WORD == FEED_FRAME, "a frame of a feed does not end with the header"


_check_layouts()


class Word(enum.IntEnum):
    """The 64-bit words of a loop's state.  *In*: set by the caller; *out*: set by the loop."""

    POSITION = 0
    """In and out: offset of the next frame or record in the buffer."""
    FILLED = 1
    """In: bytes of the buffer that may be read; for the loops over locks, the number of appends."""
    ROWS = 2
    """In: number of rows of the table; for `to_list`, of records to convert; for `admit_appends`, of appends to admit."""
    TAKEN = 3
    """Out: number of rows that were filled, or of rows, records or appends that were processed."""
    MAGIC = 4
    """In: the magic byte that every frame must have."""
    VERSION = 5
    """In: the protocol version that every frame must have."""
    LONGEST = 6
    """In: bound for the bytes of a frame's body, or of a record's data."""
    NEEDED = 7
    """Out: total size of the incomplete frame; 0 when its header is incomplete."""
    EXPECTED = 8
    """In: the id that the next record must have."""
    RECORDS = 9
    """Out: number of records in the output, or of admitted appends.  In, for `encode`: records that the output has already."""
    TABLES = kernel.TABLES
    """In: address of the checksum constants (compiled loops only)."""
    FUNCTION = kernel.FUNCTION
    """In: address of a checksum function (compiled loops only)."""
    RESULT = kernel.RESULT
    """Out: the status (compiled loops only)."""
    BYTES = 13
    """As RECORDS, in bytes."""
    FOUND = 14
    """Out of `encode`: the id of the invalid record that ended it, else -1."""
    ROW = 15
    """In, for `encode` and `answer_lists`: the row to begin with.  Out of `answer_lists`: the row that ended it."""
    GROUPS = 16
    """In, for `encode_groups`: number of groups."""
    LISTS = 17
    """In, for `take_appends`: number of lists of locks that an append has in this version of the protocol."""
    MOST_LOCKS = 18
    """In, for `take_appends`: bound for the locks of each list."""
    RUNS = 19
    """Out of `take_appends`: rows of the table of runs that were filled."""
    LOCKS = 20
    """Out of `take_appends`: number of locks.  In, for the loops over locks: number of locks."""
    SLOTS = 21
    """In, for the loops over locks: number of slots of the lock table."""
    READ = 22
    """In: address of the system's ``preadv2`` (compiled loops only)."""


WORDS = 23
TABLES, FUNCTION, RESULT = int(Word.TABLES), int(Word.FUNCTION), int(Word.RESULT)
POSITION, FILLED, ROWS, TAKEN = int(Word.POSITION), int(Word.FILLED), int(Word.ROWS), int(Word.TAKEN)
MAGIC, VERSION, LONGEST, NEEDED = int(Word.MAGIC), int(Word.VERSION), int(Word.LONGEST), int(Word.NEEDED)
EXPECTED, RECORDS, BYTES, FOUND = int(Word.EXPECTED), int(Word.RECORDS), int(Word.BYTES), int(Word.FOUND)
ROW, GROUPS = int(Word.ROW), int(Word.GROUPS)
LISTS, MOST_LOCKS, RUNS = int(Word.LISTS), int(Word.MOST_LOCKS), int(Word.RUNS)
LOCKS, SLOTS, READ = int(Word.LOCKS), int(Word.SLOTS), int(Word.READ)


class FrameColumn(enum.IntEnum):
    """Columns of a table of frames."""

    BODY = 0
    """Offset of the body in the buffer."""
    LENGTH = 1
    """Bytes of the body."""
    TYPE = 2
    SESSION = 3
    SEQUENCE = 4
    PARTITION = 5
    RECORDS = 6
    """For an append request the number of records by its count field, -1 if its body is too short for one; else 0."""
    OFFLINE = 7
    """1 when the last byte of an append request is 1, else 0."""


COLUMNS = len(FrameColumn)
BODY_COLUMN, LENGTH_COLUMN, TYPE_COLUMN = int(FrameColumn.BODY), int(FrameColumn.LENGTH), int(FrameColumn.TYPE)
SESSION_COLUMN, SEQUENCE_COLUMN = int(FrameColumn.SESSION), int(FrameColumn.SEQUENCE)
PARTITION_COLUMN, RECORDS_COLUMN = int(FrameColumn.PARTITION), int(FrameColumn.RECORDS)
OFFLINE_COLUMN = int(FrameColumn.OFFLINE)


class GroupColumn(enum.IntEnum):
    """Columns of a table of groups; a group is a range of rows of a table of frames, append requests for one partition."""

    STOP = 0
    """In: the number of the row after the group's last one."""
    EXPECTED = 1
    """In: the id that its first record must have."""
    VERDICT = 2
    """Out: a FrameVerdict; a group with another verdict than DONE has no records in the output."""
    RECORDS = 3
    """Out: records in the output up to the end of this group, those of earlier groups included."""
    BYTES = 4
    """As RECORDS, in bytes."""


GROUP_COLUMNS = len(GroupColumn)
STOP_COLUMN, EXPECTED_COLUMN = int(GroupColumn.STOP), int(GroupColumn.EXPECTED)
VERDICT_COLUMN, RECORDS_END_COLUMN = int(GroupColumn.VERDICT), int(GroupColumn.RECORDS)
BYTES_END_COLUMN = int(GroupColumn.BYTES)


class OpenWord(enum.IntEnum):
    """The words that describe to `answer_lists` the open segment and the limits of the answers."""

    DATA = 0
    """Descriptor of the data file."""
    INDEX = 1
    """Descriptor of the index."""
    FLAGS = 2
    """The flags of ``preadv2``."""
    SEGMENT = 3
    """The id of the index's first entry."""
    FIRST = 4
    """Id of the first record that may be read."""
    NEXT = 5
    """The id after the last record that may be read."""
    SHOWN = 6
    """The id after the last record of the whole log that readers may see."""
    START = 7
    """Offset of the first record that may be read."""
    END = 8
    """Offset after the last record that may be read."""
    SESSION = 9
    """The session whose requests are answered."""
    FEW = 10
    """Records of one list, at most."""
    MOST = 11
    """Bytes on disk of the records of one list, at most."""
    ROOM = 12
    """Bytes of all answers, at most."""


OPEN_WORDS = len(OpenWord)
OPEN_DATA, OPEN_INDEX, OPEN_FLAGS = int(OpenWord.DATA), int(OpenWord.INDEX), int(OpenWord.FLAGS)
OPEN_SEGMENT, OPEN_FIRST, OPEN_NEXT = int(OpenWord.SEGMENT), int(OpenWord.FIRST), int(OpenWord.NEXT)
OPEN_SHOWN, OPEN_START, OPEN_END = int(OpenWord.SHOWN), int(OpenWord.START), int(OpenWord.END)
OPEN_SESSION, OPEN_FEW, OPEN_MOST = int(OpenWord.SESSION), int(OpenWord.FEW), int(OpenWord.MOST)
OPEN_ROOM = int(OpenWord.ROOM)
SCRATCH_START = 16
"""Bytes at the beginning of a scratch buffer that the compiled loop uses for the ``iovec`` of its reads."""


class ListStop(enum.IntEnum):
    """Why `answer_lists` stopped."""

    DONE = 0
    """Every request is answered."""
    OTHER = 1
    """The next request cannot be answered from this segment, or needs the slow path."""
    FULL = 2
    """There is no room for the next answer."""


ANSWERED, OTHERWISE, NO_ROOM = int(ListStop.DONE), int(ListStop.OTHER), int(ListStop.FULL)


class RunColumn(enum.IntEnum):
    """Columns of a table of runs: consecutive appends of one client to one partition, all with locks or all without."""

    STOP = 0
    """Number of appends up to the end of this run, those of earlier runs included."""
    CLIENT = 1
    PARTITION = 2
    LOCKED = 3
    """1 when the appends have locks, else 0."""


RUN_COLUMNS = len(RunColumn)
RUN_STOP, RUN_CLIENT = int(RunColumn.STOP), int(RunColumn.CLIENT)
RUN_PARTITION, RUN_LOCKED = int(RunColumn.PARTITION), int(RunColumn.LOCKED)


class HeldColumn(enum.IntEnum):
    """Columns of a table of the locks of appends."""

    MARK = 0
    """The client's high-water mark."""
    STOP = 1
    """Number of locks up to the end of this append, those of earlier appends included."""


HELD_COLUMNS = len(HeldColumn)
HELD_MARK, HELD_STOP = int(HeldColumn.MARK), int(HeldColumn.STOP)

LOCK_BITS = 32
"""Bits of a lock's id in the word of a lock; the bits above are its kind."""
LOCK_MASK = (1 << LOCK_BITS) - 1
READ_LOCK, APPEND_LOCK = 1, 2
"""Kinds of locks, by the order of their lists in an append; write locks are 0."""
ADMITTED = -(1 << 63)
"""The verdict on an append that no transaction conflicts with, in place of a transaction id."""
CONTENDED = ADMITTED + 1
"""The verdict on an append that conflicts with a transaction in flight: it is refused once that one is committed."""


class SplitStatus(enum.IntEnum):
    """Why splitting stopped."""

    MORE = 0
    """The next frame is incomplete, or no bytes are left."""
    FULL = 1
    """Every row of the table is filled."""
    MAGIC = 2
    """The next frame has another magic byte."""
    VERSION = 3
    """The next frame has another version."""
    LENGTH = 4
    """The next frame's length is negative or above the bound."""
    SHORT = 5
    """The next frame's body is shorter than the prefix of every message."""


MORE, FULL, BAD_MAGIC = int(SplitStatus.MORE), int(SplitStatus.FULL), int(SplitStatus.MAGIC)
BAD_VERSION, BAD_LENGTH, SHORT = int(SplitStatus.VERSION), int(SplitStatus.LENGTH), int(SplitStatus.SHORT)


class FrameVerdict(enum.IntEnum):
    """The result of checking an append or a record."""

    DONE = 0
    """It is valid."""
    ORDER = 1
    """A record has another id than the expected one."""
    DATA_CHECKSUM = 2
    """The data checksum is wrong."""
    MALFORMED = 3
    """A field reaches beyond the body, a count or length is negative, or there are excess bytes."""
    TOO_LONG = 4
    """A record has more data than is allowed."""
    RECORD_CHECKSUM = 5
    """The checksum of a record on disk is wrong."""


FINE, BAD_ORDER, BAD_DATA = int(FrameVerdict.DONE), int(FrameVerdict.ORDER), int(FrameVerdict.DATA_CHECKSUM)
MALFORMED, TOO_LONG, BAD_RECORD = (
    int(FrameVerdict.MALFORMED),
    int(FrameVerdict.TOO_LONG),
    int(FrameVerdict.RECORD_CHECKSUM),
)
