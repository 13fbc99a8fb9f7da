"""Places of the wire loops: fields of frames and records, from the compiled schemas, and the words that a loop works on."""

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
"""Bytes of an append in front of its records."""
APPEND_LEAST = APPEND_HEAD + 1
"""Bytes of an append without records: the flag *offline* stands behind them."""
HEAD = WIRE_RECORD_HEAD.size
"""Bytes of a record in front of its data on the wire: the same ones stand first in the record on disk."""
DATA_LENGTH_AT = WIRE_RECORD_HEAD.offset_of("data_length")
WORD = CHECKSUM.size
WIRE_OVERHEAD = HEAD + WORD
DISK_HEAD = RECORD_HEADER.size
DISK_OVERHEAD = RECORD_OVERHEAD
BRIEF = WIRE_RECORD_HEADER.size
"""Bytes of a record header in a list: what stands in front of the data length."""

RECORDS_TYPE, HEADERS_TYPE = RecordListRequest.TYPE, RecordHeaderListRequest.TYPE
LIST_BODY = PREFIX.size + LIST_RANGE.size
"""Bytes of a request for a list."""
LIST_FIRST_AT = PREFIX.size + LIST_RANGE.offset_of("first_transaction_id")
LIST_COUNT_AT = PREFIX.size + LIST_RANGE.offset_of("max_count")
LIST_HEAD = FRAME_HEADER.size + PREFIX.size + COUNT.size
"""Bytes of an answer with a list in front of its records: the frame's header, what every body begins with, their number."""
ANSWERED_AT = PREFIX.offset_of("session_id")
"""Where the part of an answer's body begins that is the request's."""
ENTRY, INDEX_HEADER = ENTRY_SIZE, HEADER_SIZE
"""Bytes of an entry of an index, and of what stands in front of the first one."""

CLIENT_APPEND = ClientAppend.TYPE
CLIENT_TYPE_AT = APPEND_FRONT.offset_of("type")
CLIENT_REQUEST_AT = APPEND_FRONT.offset_of("request_id")
CLIENT_AT = APPEND_FRONT.offset_of("request_id.client")
CLIENT_PARTITION_AT = APPEND_FRONT.offset_of("request_id.partition")
CLIENT_MARK_AT = APPEND_FRONT.offset_of("client_high_water_mark")
CLIENT_LOCKS_AT = APPEND_FRONT.size
"""Where the lists of locks of a client's append begin."""
REQUEST_AT = WIRE_RECORD_HEAD.offset_of("request_id")
REQUEST_SIZE = WIRE_RECORD_HEAD.size_of("request_id")
REST_AT = WIRE_RECORD_HEAD.offset_of("header")
"""Where the part of a record begins that stands behind the locks of a client's append as it is: header, data, checksum."""
REST_LENGTH_AT = DATA_LENGTH_AT - REST_AT
REST_HEAD = HEAD - REST_AT
FEED_FRAME = FEED_SIZE
FEED_REQUEST_AT = FEED_FRAME_SCHEMA.offset_of("request_id")
FEED_ID_AT = FEED_FRAME_SCHEMA.offset_of("transaction_id")
FEED_HEADER_AT = FEED_FRAME_SCHEMA.offset_of("header")
ID_SIZE = WIRE_RECORD_HEAD.size_of("transaction_id")


def _check_layouts() -> None:
    """The head of a record is copied as it is: the first fields on disk must be those on the wire."""
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
    """Places in a loop's state, 64-bit words."""

    POSITION = 0
    """In and out: where the next frame or record begins."""
    FILLED = 1
    """In: bytes of the buffer that may be read."""
    ROWS = 2
    """In: rows of the table; of a loop over disk records, records to go over."""
    TAKEN = 3
    """Out: rows filled, or rows or records that are done with."""
    MAGIC = 4
    """In: the magic that every frame must have."""
    VERSION = 5
    """In: the version that every frame must have."""
    LONGEST = 6
    """In: bound for a frame's body, or for a record's data."""
    NEEDED = 7
    """Out: whole size of the unfinished frame, 0 when its header is not whole."""
    EXPECTED = 8
    """In: the id that the next record must have."""
    RECORDS = 9
    """Out: records delivered.  In, of the loop over append requests: those that stand in front of what it delivers."""
    TABLES = kernel.TABLES
    """In: address of the checksum constants (compiled loops only)."""
    FUNCTION = kernel.FUNCTION
    """In: address of a checksum function (compiled loops only)."""
    RESULT = kernel.RESULT
    """Out: the status (compiled loops only)."""
    BYTES = 13
    """As RECORDS, in bytes."""
    FOUND = 14
    """Out, of the loop over append requests: id of the record that it stopped at, else -1."""
    ROW = 15
    """In, of the loop over append requests: the row that it begins with."""
    GROUPS = 16
    """In, of the loop over groups of append requests: how many there are."""
    LISTS = 17
    """In, of the loop over appends of clients: lists of locks that an append has in this version of the protocol."""
    MOST_LOCKS = 18
    """In, of the same: bound for each of the lists."""
    RUNS = 19
    """Out, of the same: rows of runs filled."""
    LOCKS = 20
    """Out, of the same: locks found.  In, of the loops over locks: how many there are."""
    SLOTS = 21
    """In, of the loops over locks: slots of the table."""
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
    """Of an append the number of records that it claims, -1 when its body has no place for that; else 0."""
    OFFLINE = 7
    """1 when the last byte of an append is 1, else 0."""


COLUMNS = len(FrameColumn)
BODY_COLUMN, LENGTH_COLUMN, TYPE_COLUMN = int(FrameColumn.BODY), int(FrameColumn.LENGTH), int(FrameColumn.TYPE)
SESSION_COLUMN, SEQUENCE_COLUMN = int(FrameColumn.SESSION), int(FrameColumn.SEQUENCE)
PARTITION_COLUMN, RECORDS_COLUMN = int(FrameColumn.PARTITION), int(FrameColumn.RECORDS)
OFFLINE_COLUMN = int(FrameColumn.OFFLINE)


class GroupColumn(enum.IntEnum):
    """Columns of a table of groups: consecutive rows of a table of frames, appends of one partition."""

    STOP = 0
    """In: the row behind its last one."""
    EXPECTED = 1
    """In: the id that its first record must have."""
    VERDICT = 2
    """Out: a FrameVerdict; of a group that is not right nothing is delivered."""
    RECORDS = 3
    """Out: records delivered up to the end of this group, those of the groups in front of it included."""
    BYTES = 4
    """As RECORDS, in bytes."""


GROUP_COLUMNS = len(GroupColumn)
STOP_COLUMN, EXPECTED_COLUMN = int(GroupColumn.STOP), int(GroupColumn.EXPECTED)
VERDICT_COLUMN, RECORDS_END_COLUMN = int(GroupColumn.VERDICT), int(GroupColumn.RECORDS)
BYTES_END_COLUMN = int(GroupColumn.BYTES)


class OpenWord(enum.IntEnum):
    """Places in what the loop over requests for lists is told of the open segment that it reads from, and of its bounds."""

    DATA = 0
    """Descriptor of the data file."""
    INDEX = 1
    """Descriptor of the index."""
    FLAGS = 2
    """Of ``preadv2``: how to read."""
    SEGMENT = 3
    """The id by which index and segment begin."""
    FIRST = 4
    """Id of the first record that may be read."""
    NEXT = 5
    """The id behind the last one."""
    SHOWN = 6
    """The id behind the last record of the whole log that is shown to anybody."""
    START = 7
    """Offset of the first record that may be read."""
    END = 8
    """Offset behind the last one."""
    SESSION = 9
    """The session whose requests are answered."""
    FEW = 10
    """Records that one list may have."""
    MOST = 11
    """Bytes on disk that they may have."""
    ROOM = 12
    """Bytes of the answers together."""


OPEN_WORDS = len(OpenWord)
OPEN_DATA, OPEN_INDEX, OPEN_FLAGS = int(OpenWord.DATA), int(OpenWord.INDEX), int(OpenWord.FLAGS)
OPEN_SEGMENT, OPEN_FIRST, OPEN_NEXT = int(OpenWord.SEGMENT), int(OpenWord.FIRST), int(OpenWord.NEXT)
OPEN_SHOWN, OPEN_START, OPEN_END = int(OpenWord.SHOWN), int(OpenWord.START), int(OpenWord.END)
OPEN_SESSION, OPEN_FEW, OPEN_MOST = int(OpenWord.SESSION), int(OpenWord.FEW), int(OpenWord.MOST)
OPEN_ROOM = int(OpenWord.ROOM)
SCRATCH_START = 16
"""Bytes in front of a scratch buffer's first that are the compiled loop's own: the ``iovec`` of what it reads."""


class ListStop(enum.IntEnum):
    """Why the loop over requests for lists stopped."""

    DONE = 0
    """Every request is answered."""
    OTHER = 1
    """The next one is not to be answered from this segment, or not so simply."""
    FULL = 2
    """There is no room for the next answer."""


ANSWERED, OTHERWISE, NO_ROOM = int(ListStop.DONE), int(ListStop.OTHER), int(ListStop.FULL)


class RunColumn(enum.IntEnum):
    """Columns of a table of runs: consecutive appends of one client to one partition, all with locks or all without."""

    STOP = 0
    """Appends up to the end of this run, those of the runs in front of it included."""
    CLIENT = 1
    PARTITION = 2
    LOCKED = 3
    """1 when they have locks, else 0."""


RUN_COLUMNS = len(RunColumn)
RUN_STOP, RUN_CLIENT = int(RunColumn.STOP), int(RunColumn.CLIENT)
RUN_PARTITION, RUN_LOCKED = int(RunColumn.PARTITION), int(RunColumn.LOCKED)


class HeldColumn(enum.IntEnum):
    """Columns of a table of what appends say about locks."""

    MARK = 0
    """The client's high-water mark."""
    STOP = 1
    """Locks up to the end of this append's, those of the appends in front of it included."""


HELD_COLUMNS = len(HeldColumn)
HELD_MARK, HELD_STOP = int(HeldColumn.MARK), int(HeldColumn.STOP)

LOCK_BITS = 32
"""A lock in a list of them: its id in so many bits, its kind above them."""
LOCK_MASK = (1 << LOCK_BITS) - 1
READ_LOCK, APPEND_LOCK = 1, 2
"""Kinds of locks, by the place of their list in an append; 0 are write locks."""
ADMITTED = -(1 << 63)
"""In place of a transaction: none is in the append's way."""


class SplitStatus(enum.IntEnum):
    """Why splitting stopped."""

    MORE = 0
    """The next frame is not wholly there; nothing may be left at all."""
    FULL = 1
    """Every row of the table is filled."""
    MAGIC = 2
    """The next frame has another magic."""
    VERSION = 3
    """The next frame has another version."""
    LENGTH = 4
    """The next frame's length is negative or above the bound."""
    SHORT = 5
    """The next frame's body is shorter than what every message begins with."""


MORE, FULL, BAD_MAGIC = int(SplitStatus.MORE), int(SplitStatus.FULL), int(SplitStatus.MAGIC)
BAD_VERSION, BAD_LENGTH, SHORT = int(SplitStatus.VERSION), int(SplitStatus.LENGTH), int(SplitStatus.SHORT)


class FrameVerdict(enum.IntEnum):
    """What was found of an append, or of a record."""

    DONE = 0
    """Nothing is wrong."""
    ORDER = 1
    """A record has another id than the next one."""
    DATA_CHECKSUM = 2
    """Data does not agree with the checksum that came with it."""
    MALFORMED = 3
    """A field reaches beyond the body, a count or length is negative, or bytes are left over."""
    TOO_LONG = 4
    """A record has more data than is allowed."""
    RECORD_CHECKSUM = 5
    """A record on disk does not agree with its checksum."""


FINE, BAD_ORDER, BAD_DATA = int(FrameVerdict.DONE), int(FrameVerdict.ORDER), int(FrameVerdict.DATA_CHECKSUM)
MALFORMED, TOO_LONG, BAD_RECORD = (
    int(FrameVerdict.MALFORMED),
    int(FrameVerdict.TOO_LONG),
    int(FrameVerdict.RECORD_CHECKSUM),
)
