"""Mutants that do what the code does, or nothing that a promise is about; each with the reason.  The measure leaves them out."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.mutation.mutants import Mutant


@dataclass(frozen=True)
class Equivalent:
    """A mutant as `Mutant.key` names it, and why no test could notice it, or none should."""

    file: str
    function: str
    old: str
    new: str
    reason: str
    nth: int = 1

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """The key of its mutant."""
        return self.file, self.function, self.old, self.new, self.nth


_SIZES = "how much is taken at once, or a cost: another number gives the same answers at another speed"
_INVENTED = "which input is made up for a comparison: the next number is as good"
_STATES, _VOTE = "engine/compare/states.py", "engine/quorum/vote.py"
_FORK = "fork = not agreed or agreed[-1].first < self.outvoted[-1][0]"
_WITHIN = "if not run.first <= number < run.stop:  # before the first run, or after the last"
_POSSIBLE = "version = possible[0]"
_LEAST = "least = sessions[quorum - 1] if len(sessions) >= quorum else None"
_COMPARE = (
    Equivalent(
        _STATES,
        "_Replica.state",
        "beyond = [one for one in self.held if one.first >= kept]",
        "beyond = [one for one in self.held if one.first >= (kept) - 1]",
        "the last run that is kept is not undecided",
    ),
    *(
        Equivalent(
            _STATES,
            "_Replica.mended",
            _FORK,
            new,
            "a run that is agreed on ends in front of what is outvoted, or begins behind it",
        )
        for new in (_FORK.replace("<", "<="), _FORK.replace("[0]", "[1]"), _FORK.replace("[0]", "[(-1)]"))
    ),
    Equivalent(
        _STATES,
        "_Replica.same",
        _WITHIN,
        _WITHIN.replace("< run", "<= run"),
        "behind the last run it is only asked for what ends with that one and is damaged here",
    ),
    Equivalent(
        _STATES,
        "_Replica.same",
        _WITHIN,
        _WITHIN.replace("<= number", "<= (number) + 1"),
        "in front of all runs the last one is compared, and it is at the beginning only where it is alone, and damaged here",
    ),
    Equivalent(
        _VOTE,
        "_Vote.judge",
        _POSSIBLE,
        _POSSIBLE.replace("[0]", "[(-1)]"),
        "there is one, or it is left open",
    ),
    Equivalent(
        _VOTE,
        "_Forks.go_on",
        "if not self.pairs and not run.differs:  # as nearly always",
        "if False:  # as nearly always",
        "where nothing differs and nothing is forked the loop finds nothing either",
    ),
    Equivalent(_VOTE, "", "DAMAGED = -2", "DAMAGED = -3", "any number below that of ABSENT"),
    Equivalent(
        _VOTE,
        "voters_of",
        _LEAST,
        _LEAST.replace(">=", ">"),
        "of just a quorum none has an older session than the last of them",
    ),
    Equivalent(
        "engine/compare/directories.py",
        "Directories._member",
        "known = mark is not None or proven > 0",
        "known = mark is not None or proven >= 0",
        "held up to -1 is held up to nothing: no run lies below it, and no border comes of it",
    ),
    Equivalent(
        "engine/compare/plans.py",
        "_not_to_be_trusted",
        "begin = 0 if own.last_transaction_id is None else own.last_transaction_id + 1",
        "begin = (-1) if own.last_transaction_id is None else own.last_transaction_id + 1",
        "it is only asked whether ids lie behind it, and none lies in front of 0",
    ),
    Equivalent(
        "engine/compare/compare.py",
        "_PartitionResults.joined",
        "for one in joints(sorted(own, key=lambda one: one.begins), 0):",
        "for one in joints(sorted(own, key=lambda one: one.begins), (-1)):",
        "no segment begins in front of 0, which is expected then as well",
    ),
    Equivalent(
        "engine/quorum/recovery_state.py",
        "Replica",
        "marked: bool = False",
        "marked: bool = True",
        "it is asked of replicas that have connected, which settles it",
    ),
)

_COUNTED = "two numbers of truncations are only ever compared for being the same"
_HERE = "and examination.contiguous_next >= max(proven.mark, proven.names, proven.with_data)"
_MAY_BE_CUT = 'whole = torn.proof == "end" and torn.end == self.size'
_EXAMINED = "examination = Examination(directory, place, view, tuple(states), short, (), False, proven)"
_SPANS = "spans = [(one.offset, one.offset + max(one.length, one.written)) for one in file.ranges] or [(0, start)]"
_HALVED = "while low < high:  # binary search for the last checkpoint whose entry lies inside the data file"
_ENTRY = "return offset if HEADER_SIZE <= offset <= self.size - RECORD_OVERHEAD else None"
_STORAGE = (
    Equivalent(
        "engine/storage/fences.py",
        "stored_session",
        "data = places.read_range(path, 0, size + 1)",
        "data = places.read_range(path, 0, size + 2)",
        "a byte more than there should be tells as much as two",
    ),
    Equivalent(
        "engine/storage/orphans.py",
        "_alike",
        "compared += high - low",
        "compared += high + low",
        "only whether there are any is asked",
    ),
    Equivalent(
        "engine/storage/batch.py",
        "batch_of_blocks",
        "if only.first_transaction_id == following and _agrees(only):",
        "if False:",
        "the long way makes the same of the only one; this one is quicker",
    ),
    Equivalent(
        "engine/storage/segment_recovery.py",
        "_Examination._last_checkpoint",
        _HALVED,
        _HALVED.replace("< high:", "< (high) - 1:"),
        "one more checkpoint is tried, and not believed",
    ),
    *(
        Equivalent(
            "engine/storage/partition_recovery.py",
            function,
            old,
            old.replace(f"{name}.index is not None", "True"),
            "one without a data file is there for its index",
        )
        for function, name, old in (
            (
                "_data_gone",
                "orphan",
                "if orphan.data is None and orphan.index is not None and orphan.data_path not in view.special:",
            ),
            ("_orphans", "segment", "if segment.data is None and segment.index is not None:"),
        )
    ),
    Equivalent(
        "engine/storage/segment_recovery.py",
        "_Examination._entry",
        _ENTRY,
        _ENTRY.replace("size -", "size +"),
        "around the end of the file stands no record, and none is believed; a checkpoint in front of it is tried next",
    ),
    Equivalent(
        "engine/storage/partition_log.py",
        "PartitionLog._extent_of",
        "end = max((segment.next_transaction_id for segment in self._segments), default=0)",
        "end = max((segment.next_transaction_id for segment in self._segments), default=(-1))",
        "what is lost ends at 0 or behind it, which is the greater one",
    ),
    Equivalent(
        "engine/storage/control_file.py",
        "OpenControlFile.reset",
        "first = 3 - (info.current or 1)",
        "first = 3 - (info.current or 2)",
        "where neither is in force either may be written first",
    ),
    Equivalent(
        "engine/storage/partition_recovery.py",
        "examine_partition",
        _EXAMINED,
        _EXAMINED.replace("False", "True"),
        "stands in for what is known in the end",
    ),
    *(
        Equivalent(
            "engine/storage/store.py",
            "_infos_touched",
            _SPANS,
            _SPANS.replace("(0, start)", new),
            "anything in front of the first info stands for the header",
        )
        for new in ("(1, start)", "((-1), start)")
    ),
    *(
        Equivalent("engine/storage/partition_log.py", function, old, new, _COUNTED)
        for function, old, new in (
            ("PartitionLog.__init__", "self._truncations = 0", "self._truncations = 1"),
            ("PartitionLog.__init__", "self._truncations = 0", "self._truncations = (-1)"),
            ("PartitionLog.end_with", "self._truncations += 1", "self._truncations -= 1"),
            ("PartitionLog.end_with", "self._truncations += 1", "self._truncations += 2"),
        )
    ),
    Equivalent(
        "engine/storage/segment_reader.py",
        "",
        "READ_AHEAD = 256 << 10",
        "READ_AHEAD = 256 >> 10",
        "that is none: where nothing is read ahead each record is read by itself, which costs more",
    ),
    Equivalent(
        "engine/storage/partition_log.py",
        "PartitionLog.read",
        "found = self.read_range(transaction_id, 1)",
        "found = self.read_range(transaction_id, 2)",
        "the second one is not handed out, and if it is damaged the list ends in front of it",
    ),
    Equivalent(
        "engine/storage/loss_ledger.py",
        "still_lost",
        "mark = -1 if local_low_water_mark is None else local_low_water_mark",
        "mark = -2 if local_low_water_mark is None else local_low_water_mark",
        "no loss ends below transaction 0",
    ),
    Equivalent(
        "engine/durable/disk.py",
        "",
        "_MOST_PIECES = 1024",
        "_MOST_PIECES = 1023",
        "fewer at once is as good; more than 1024 the system refuses",
    ),
    Equivalent(
        "engine/log/evidence.py",
        "evidence",
        "if segment.entries and first + segment.entries > without_data:",
        "if segment.entries and first + segment.entries >= without_data:",
        "an index that lists as much and no more proves nothing new, which the next line says again",
    ),
    Equivalent(
        "engine/storage/partition_log.py",
        "PartitionLog.__init__",
        "self._lost_below = lost_below or 0",
        "self._lost_below = lost_below or (-1)",
        "no transaction has a negative id",
    ),
    Equivalent(
        "engine/storage/batch.py",
        "parts_of",
        "if only is not None:  # the common case",
        "if False:  # the common case",
        "where the quick way is not taken the long one makes the same single part",
    ),
    Equivalent(
        "engine/storage/segment_reader.py",
        "SegmentReader._walk_to",
        "if start <= run.first_transaction_id:",
        "if start < run.first_transaction_id:",
        "the first record's entry leads to the beginning of the run, or is wrong, and then the beginning is gone from",
    ),
    Equivalent(
        "engine/storage/segment_files.py",
        "ActiveSegment.cut_back",
        "if self.index.size() > checkpoint:",
        "if self.index.size() > (checkpoint) + 1:",
        "part of an entry proves nothing",
    ),
    Equivalent(
        "engine/storage/belonging.py",
        "_stands_in",
        "found = _record(source, offset, number) if offset >= HEADER_SIZE else None",
        "found = _record(source, offset, number) if offset >= (HEADER_SIZE) - 1 else None",
        "no record begins one byte in front of where records begin",
    ),
    Equivalent(
        "engine/storage/segment_reader.py",
        "SegmentReader._span",
        "if few[0] < run.start or few[-1] > run.end or any(b - a < RECORD_OVERHEAD for a, b in pairwise(few)):",
        "if few[0] < (run.start) - 1 or few[-1] > run.end or any(b - a < RECORD_OVERHEAD for a, b in pairwise(few)):",
        "no record begins one byte in front of the run, which the careful way tells",
    ),
    Equivalent(
        "engine/storage/segment_reader.py",
        "SegmentReader._span",
        "if offsets[0] < run.start or offsets[-1] > run.end or (np.diff(offsets) < RECORD_OVERHEAD).any():",
        "if offsets[0] < (run.start) - 1 or offsets[-1] > run.end or (np.diff(offsets) < RECORD_OVERHEAD).any():",
        "no record begins one byte in front of the run, which the careful way tells",
    ),
    *(
        Equivalent(
            "engine/storage/orphans.py",
            "listed_in",
            "if begins >= stop:",
            new,
            "of a data file that begins behind them no record is compared anyway, only later",
        )
        for new in ("if begins > stop:", "if False:")
    ),
    Equivalent(
        "engine/storage/partition_log.py",
        "PartitionLog._extent_of",
        "if transaction_id < 0 or transaction_id >= self._shown_below:",
        "if transaction_id < 0 or transaction_id > self._shown_below:",
        "readers ask in front of the next one; whoever a truncation overtakes asks for a later one",
    ),
    *(
        Equivalent(
            "engine/storage/segment_recovery.py",
            "_Examination._entry",
            "return offset if HEADER_SIZE <= offset <= self.size - RECORD_OVERHEAD else None",
            new,
            "no record stands there, which reading it tells as well",
        )
        for new in (
            "return offset if HEADER_SIZE <= offset <= (self.size - RECORD_OVERHEAD) + 1 else None",
            "return offset if HEADER_SIZE <= (offset) + 1 <= self.size - RECORD_OVERHEAD else None",
        )
    ),
    Equivalent(
        "engine/storage/partition_log.py",
        "PartitionLog.read",
        "return found[0] if found else None",
        "return found[(-1)] if found else None",
        "there is one at most",
    ),
    Equivalent(
        "engine/storage/batch.py",
        "parts_of",
        "if size > threshold and size > HEADER_SIZE:",
        "if size > threshold and size > (HEADER_SIZE) + 1:",
        "a segment has its header alone, or a record of 40 bytes behind it",
    ),
    *(
        Equivalent(
            "engine/storage/segment_recovery.py",
            "_Examination.__init__",
            "self.index_size = index.size() if index is not None else 0",
            f"self.index_size = index.size() if index is not None else {size}",
            "any size is as good that no whole index has; without one it is compared with nothing else",
        )
        for size in ("(-1)", "1")
    ),
    *(
        Equivalent(
            "engine/storage/segment_recovery.py",
            "_Examination._may_be_cut",
            _MAY_BE_CUT,
            _MAY_BE_CUT.replace(part, "True"),
            reason,
        )
        for part, reason in (
            ('torn.proof == "end"', "a scan that gives up calls nothing torn today; what is cut must not hang on that"),
            ("torn.end == self.size", "nobody appends while a partition is examined: its directory is locked"),
        )
    ),
    Equivalent(
        "engine/storage/orphans.py",
        "_alike",
        "if low >= high:",
        "if low > high:",
        "of no records all lengths agree, and their number is 0",
    ),
    *(
        Equivalent(
            "engine/storage/partition_recovery.py",
            "examine_partition",
            _HERE,
            new,
            "what is proven and not there is one of the losses above, too: the log is kept closed whatever they are called",
        )
        for new in (
            "and True",
            _HERE.replace("max", "min"),
            "and examination.contiguous_next >= (max(proven.mark, proven.names, proven.with_data)) - 1",
        )
    ),
)
_BOTH = "both structs of a pair are of one layout, so that both have a sequence number or none"
_INFO_SCHEMA = "schema = self.structs[0].layout.info_schema"
_LINE = "if first.sequence is not None and second.sequence is not None:"
_CUT_AWAY = "what is packed for the checksum is cut away before the checksum is made"
_HANDED_BACK = "what a construct hands back while it builds is for members that refer to it, and none does"
_FORMATS = (
    *(
        Equivalent("formats/control.py", "choose_current", _LINE, new, _BOTH)
        for new in (
            "if True and second.sequence is not None:",
            "if first.sequence is not None and True:",
            "if first.sequence is not None or second.sequence is not None:",
        )
    ),
    *(
        Equivalent(
            "formats/control.py", "PartitionInfo.encode", _INFO_SCHEMA, _INFO_SCHEMA.replace("[0]", other), _BOTH
        )
        for other in ("[1]", "[(-1)]")
    ),
    Equivalent(
        "formats/control.py",
        "choose_current",
        "return (1 if first.session_id > second.session_id else 2), Choice.NEWER",
        "return (1 if first.session_id >= second.session_id else 2), Choice.NEWER",
        "the two differ there",
    ),
    Equivalent(
        "formats/control.py",
        "_wrapped",
        "return (sequence + 2**31) % 2**32 - 2**31",
        "return (sequence - 2**31) % 2**32 - 2**31",
        "half the circle forward is half the circle back",
    ),
    Equivalent(
        "formats/control.py",
        "PartitionStruct.encode",
        'covered = schema.struct.pack(*values, 0)[: schema.offset_of("checksum")]',
        'covered = schema.struct.pack(*values, 1)[: schema.offset_of("checksum")]',
        _CUT_AWAY,
    ),
    Equivalent(
        "formats/fence.py",
        "encode_slot",
        'raw = FENCE_SLOT.struct.pack(session_id, partition, 0)[: FENCE_SLOT.offset_of("checksum")]',
        'raw = FENCE_SLOT.struct.pack(session_id, partition, 1)[: FENCE_SLOT.offset_of("checksum")]',
        _CUT_AWAY,
    ),
    Equivalent(
        "formats/fence.py",
        "encode_fence_header",
        "raw = FENCE_HEADER.struct.pack(FENCE_MAGIC, FENCE_VERSION, num_partitions, _RESERVED, 0)",
        "raw = FENCE_HEADER.struct.pack(FENCE_MAGIC, FENCE_VERSION, num_partitions, _RESERVED, 1)",
        _CUT_AWAY,
    ),
    Equivalent(
        "formats/jks.py",
        "_combine",
        "for _ in range(0, len(data), DIGEST_SIZE):",
        "for _ in range((-1), len(data), DIGEST_SIZE):",
        "a block too many is cut away",
    ),
    Equivalent(
        "formats/jks.py",
        "_sha1",
        "return hashlib.sha1(data, usedforsecurity=False).digest()",
        "return hashlib.sha1(data, usedforsecurity=True).digest()",
        "it lets a build of Python that knows approved algorithms only compute this one, too",
    ),
    Equivalent("formats/wire/primitives.py", "ListOf._build", "return obj", "return None", _HANDED_BACK),
    Equivalent("formats/wire/primitives.py", "ByteArrayOf._build", "return obj", "return None", _HANDED_BACK),
)

_PROBE = "engine/scan/probe.py"
_KEPT = "_shift = lru_cache(maxsize=64)(shift_operator)"
_ROOMIER = "more room than is filled"
_SEED = "what runs in front of a span cancels out, as its end continues its beginning with the same start value"
_NOTHING_HELD = (
    "nothing is held yet, and no place lies in nothing; the first long span begins anew wherever the origin is"
)
_HELD = "if length and not self._cache_at <= offset <= offset + length <= self._cache_at + len(self._cache):"
_ORDER = "engine/scan/order.py"
_HEAD = "if head is not None and head.transaction_id > expected and not self._beyond(run, expected, head):"
_RISEN = "if one.transaction_id <= expected or self._out_of_reach(expected, one):"
_WORD_AT = "order = [15 - at if 12 <= at < 16 else 8 * width for at in range(8 * width)]"
_ENOUGH = "if records < 0 or records > length or records * WIRE_OVERHEAD > length - APPEND_LEAST:"
_FITS = "keep = (lengths >= 0) & (lengths <= self._probe.max_record) & (at + places + OVERHEAD + lengths <= self._stop)"
_CELLS = "cells = [0] * (state[ROWS] * COLUMNS)"
_WHOLE_STEPS = "what is left is gone through byte by byte"
_IN_GROUP = "if place + lane < count:"
_HELD_LOCK = "call = (self._held if state[FILLED] - state[POSITION] <= _SHORT else self._free)[name]"
_TWICE = "whether data is passed over twice, or two checksums are joined: the checksum is the same"
_PASSES = (
    ("engine/scan/kernel.py", "note", "if length < _TWO_PASSES:"),
    ("engine/scan/wire_memory.py", "joined", "if length < _TWO_PASSES:"),
    ("engine/scan/native.py", "note_calls", "if length < TWO_PASSES:"),
    ("engine/scan/wire_native.py", "joined", "if length < TWO_PASSES or length >= JOINED:"),
)
_NOTED_DATA = "store(notes + AT_DATA + place_in_stretch * 64, xor(data, rest))"
_WITHIN_BUFFER = "if body < 0 or length < APPEND_LEAST or body > filled - length:"
_SHIFTED = "if not 0 < lower < count or self._repeated(found, end, lower):"
_SHIFTED_TO_THE_END = (
    "if 0 < lower < count and not self._repeated(found, end, lower) and self._as_indexed(found, expected, count):"
)
_BY_THE_DOZEN = "if here.transaction_id < expected:  # as one run: a part of the log may have been written twice"
_PASSED_OVER = "a row that ends in front of the id that is expected is judged in the same way when it is passed over"
_NOT_THAT_ID = "the id that is expected is not out of order"
_CROWDED = "if run.behind is not None or run.ones[-1].transaction_id <= expected:"
_PAIRS = "a, b = (builder.insert_element(ir.Constant(_PAIR, [0, 0]), word, zero) for word in arguments)"
_TRIED = "engine/scan/wire_trials.py"
_FLAG = 'body = prefix + COUNT.struct.pack(len(records)) + b"".join(records) + bytes([sequence & 1])'
_FITS_ALL = "if length + OVERHEAD > self._block - PAGE:"
_FRAMES_TRIED = "state[FILLED], state[ROWS], state[LONGEST] = len(data), rows, 100_000"
_FIRST_COLUMN = "put(table, cell + BODY_COLUMN, body)"
_READ_SOME = "count = source.read_into(offset, memoryview(data)) if length else 0"
_CANDIDATES = "candidates = Candidates(probe, offset + 1, stop, expected, expected + SLACK, offset)"
_SUPPORTED = "return any(c.reached for c in chains), any(c.led for c in chains), sum(c.count for c in chains)"
_LOOKED_AT = "count = min(CACHE // 2, self._stop - OVERHEAD + 1 - at)"
_WINDOW = "window = np.frombuffer(self._probe.read(at, count + OVERHEAD - 1), np.uint8)"
_RISEN_ID = "risen = (at + count - self._origin) // OVERHEAD if self._origin is not None else 0"
_FIRST_OF_LENGTH = "mask = window[LENGTH_AT : LENGTH_AT + count] <= self._probe.max_record >> 24"
_OPENED = "descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)"
_CREATED = "beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600, dir_fd=directory"
_INPUTS = "return crc_kernel.tables(width), _function_address(way) if way in _FUNCTIONS else 0"
_WIDTH = "width = int(way[5:]) // 64 if way in _FEATURES else 8"
_MEMORY = "self.memory = memoryview(bytearray(size) if size <= _SMALL else mmap.mmap(-1, size))"
_JOINED = "if length < TWO_PASSES or length >= JOINED:"
_WAYS = 'ways = {"crc": crc_sliced if kind == "table" else crc_called, "TWO_PASSES": 512 if kind == "table" else 4096}'
_TRIED_ROOM = "out, offsets = np.zeros(2 * len(data), np.uint8), np.zeros(4 * len(_LENGTHS), np.int64)"
_TRIED_DISK = "for place, change in ((0, 0), *((place, 1) for place in _ON_DISK)):"
_READ_CODE = 'data = b"".join(iter(lambda: os.read(descriptor, 1 << 20), b""))'
_RISING = "rising = _rising(x_power(31), LENGTHS + 64) << np.uint64(32)"
_WORDS_OF_HEADER = "while place > 64 - HEADER - BLOCK:"
_NO_WAIT = 'NO_WAIT = getattr(os, "RWF_NOWAIT", 1 << 30)'
_COPIED = "builder.call(function, [*pointers, arguments[2], ir.Constant(ir.IntType(1), 0)])"
_IF_CONSTANT = "return _constant(builder, value) if constant else value"
_CONSTANT_LOADS = (
    'load_64, load_fixed = _load("=64"), _load("=64", constant=True)',
    'load_fixed32, load_8 = _load("=32", constant=True, signed=False), _load("=8", signed=False)',
)
_WORDS = "words = ir.Constant(ir.VectorType(I32, 2 * width), [0] * 2 * width)"
_UNPACKED = (
    *(
        ("wire_memory", f"{name}_at", f"return _{name}(memory, position)[0]  # type: ignore[no-any-return]")
        for name in ("byte", "half", "word", "unsigned", "long")
    ),
    ("kernel", "transaction_id", "return _read_id(memory, position)[0]  # type: ignore[no-any-return]"),
    ("kernel", "data_length", "return _read_length(memory, position + LENGTH_AT)[0]  # type: ignore[no-any-return]"),
    ("kernel", "note", "data_ok = data_sum == _read_word(memory, position + DATA_CHECKSUM_AT)[0]"),
    ("kernel", "note", "state[NOTES].append((record_sum == _read_word(memory, end)[0], data_ok))"),
)
_AT_HAND = "if 0 <= place <= len(self._cache) - HEADER:  # the common case, in few steps: the record is in the cache"
_ONLY_ZEROS = "if not window.any():  # all zero is not a record: the checksum of zeros is not zero"
_OF_ONE = (
    ("upper_word.generate", "return builder.extract_element(arguments[0], ir.Constant(I32, 1))"),
    ("Vectors.__init__.loader.load.generate", "value = _loaded(builder, arguments[0], vector)"),
    (
        "Vectors.__init__.lane_sum",
        "return VectorType(2)(kind), lambda _, builder, signature, arguments: _sum_lanes(builder, arguments[0])",
    ),
    ("Vectors.__init__.lane_sums.generate", "place = builder.add(arguments[0], ir.Constant(I64, 64 * lane))"),
    ("Vectors.__init__.last_word.generate", "octets = builder.bitcast(arguments[0], ir.VectorType(I8, size))"),
    ("Vectors.__init__.word_at.generate", "word = _loaded(builder, arguments[0], I32)"),
    (
        "Vectors.__init__.complement",
        "return kind(kind), lambda _, builder, signature, arguments: builder.xor(arguments[0], every)",
    ),
    (
        "Vectors.__init__.from_high_word.generate",
        "return builder.insert_element(ir.Constant(vector, [0] * width), arguments[0], ir.Constant(I32, 1))",
    ),
    (
        "Vectors.__init__.undivided.generate",
        "kept = builder.and_(arguments[0], ir.Constant(vector, [1 << 63, 0x7FFFFFFF] * (width // 2)))",
    ),
)
"""Primitives of one argument, with what takes it."""
_NEIGHBOURS = "if neighbours or (head is behind and one.transaction_id < behind.transaction_id):"
_SCAN = (
    Equivalent(
        _PROBE,
        "Candidates._search",
        "mask &= window[place : place + count] == low[place]",
        "pass",
        "the ids are compared with both bounds below; this spares most of it",
    ),
    Equivalent(
        _ORDER,
        "OrderJudge._rising",
        _NEIGHBOURS,
        _NEIGHBOURS.replace("behind.transaction_id):", "(behind.transaction_id) - 1):"),
        "the one in front of its id is its neighbour",
    ),
    *(
        Equivalent(
            "engine/scan/wire_compiled.py",
            "",
            "_Byte = ctypes.c_char * 1",
            f"_Byte = ctypes.c_char * {size}",
            "it is only pointed to; memory that is shorter is pointed to in the other way",
        )
        for size in (0, 2)
    ),
    Equivalent(
        "engine/scan/wire_loops.py",
        "split",
        _FIRST_COLUMN,
        _FIRST_COLUMN.replace("cell + ", "cell - "),
        "it is 0, the first column",
    ),
    Equivalent(
        "engine/scan/wire_loops.py",
        "encode",
        "body = get(table, cell + BODY_COLUMN)",
        "body = get(table, cell - BODY_COLUMN)",
        "it is 0, the first column",
    ),
    *(
        Equivalent(
            "engine/scan/byte_source.py",
            "read_bytes",
            _READ_SOME,
            _READ_SOME.replace("else 0", f"else {other}"),
            "of nothing nothing is cut off",
        )
        for other in ("1", "(-1)")
    ),
    *(
        Equivalent(_TRIED, "answers", line, line.replace(*change), "a record that is too long, whichever it is")
        for line in (
            "_encode(loops, good, tables[-1], results, max(_LENGTHS) - 1)",
            "_list(loops, disk, False, results, max(_LENGTHS) - 1)",
        )
        for change in (("- 1)", "- 2)"), ("max", "min"))
    ),
    Equivalent(_TRIED, "_append", _FLAG, _FLAG.replace("&", "|"), "a byte that is 1 for some and not for others"),
    *(
        Equivalent(_TRIED, "", "_LETTER, _VERSION = 0x53, 1", f"_LETTER, _VERSION = {letter}, 1", _INVENTED)
        for letter in (82, 84)
    ),
    *(
        Equivalent(
            "engine/scan/walk.py",
            "RecordWalk._more",
            _FITS_ALL,
            _FITS_ALL.replace(*change),
            "as many bytes fit from any place in a page on; one that is read in pieces says the same",
        )
        for change in ((">", ">="), ("self._block - PAGE", "(self._block - PAGE) + 1"))
    ),
    *(
        Equivalent(
            "engine/scan/list_answers.py",
            "",
            _NO_WAIT,
            _NO_WAIT.replace("1 << 30", flag),
            "for a system without such a flag; Linux has it",
        )
        for flag in ("0 << 30", "2 << 30", "1 >> 30", "1 << 31", "1 << 29")
    ),
    Equivalent(
        "engine/scan/resync.py",
        "Resynchroniser._search_behind",
        "and 0 <= header.data_length <= probe.max_record",
        "and 0 < header.data_length <= probe.max_record",
        "behind a record without data that reaches beyond the end there is no room for another",
    ),
    *(
        Equivalent(_TRIED, "_split", _FRAMES_TRIED, _FRAMES_TRIED.replace("100_000", size), "no frame is as long")
        for size in ("99999", "100001")
    ),
    Equivalent(
        _ORDER,
        "OrderJudge._pass_over",
        _BY_THE_DOZEN,
        _BY_THE_DOZEN.replace("< expected:", "< (expected) - 1:"),
        "one of them is told as one",
    ),
    *(
        Equivalent(_ORDER, "OrderJudge._shifted", line, line.replace("lower < count", "lower <= count"), _PASSED_OVER)
        for line in (_SHIFTED, _SHIFTED_TO_THE_END)
    ),
    *(
        Equivalent(_ORDER, "OrderJudge._shifted", line, line.replace(" 0 <", other), _NOT_THAT_ID)
        for line in (_SHIFTED, _SHIFTED_TO_THE_END)
        for other in (" 0 <=", " (-1) <")
    ),
    *(
        Equivalent(
            _ORDER,
            "OrderJudge._crowded",
            _CROWDED,
            _CROWDED.replace(*change),
            "it saves a search: behind an id that is not larger nothing larger follows by one",
        )
        for change in (
            ("[-1]", "[-0]"),
            ("<= expected", "< expected"),
            ("run.ones[-1].transaction_id <= expected", "False"),
        )
    ),
    *(
        Equivalent(
            "engine/scan/resync.py",
            "Resynchroniser.follow",
            old,
            new,
            "what a walk is made with before it is told where to begin; and columns that nobody takes",
        )
        for old, new in (
            ("start=0,", "start=1,"),
            ("start=0,", "start=(-1),"),
            ("expected=0,", "expected=1,"),
            ("expected=0,", "expected=(-1),"),
            ("wide=False,", "wide=True,"),
        )
    ),
    *(
        Equivalent(file, "", _KEPT, _KEPT.replace("64", size), "how many are kept, and no other answer")
        for file in ("engine/scan/kernel.py", "engine/scan/wire_memory.py")
        for size in ("63", "65")
    ),
    *(
        Equivalent(
            "engine/scan/kernel.py",
            "",
            "MARGIN = 64",
            f"MARGIN = {size}",
            "more than is loaded there: the length of a record whose header begins with the buffer's end",
        )
        for size in (63, 65)
    ),
    *(
        Equivalent(
            "engine/scan/columns.py",
            "RecordBatch",
            "data_base: int = 0",
            f"data_base: int = {other}",
            "where there is no data nobody asks where it begins",
        )
        for other in ("1", "(-1)")
    ),
    Equivalent(
        _PROBE,
        "Candidates._search",
        "mask &= window[place : place + count] == low[place]",
        "mask |= window[place : place + count] == low[place]",
        "it only saves work: whole ids are compared behind it",
    ),
    *(
        Equivalent(
            "engine/scan/machine.py",
            "multiply_words.generate",
            _PAIRS,
            _PAIRS.replace("[0, 0]", pair),
            "the lower word is put in, and the upper one is not multiplied",
        )
        for pair in ("[1, 0]", "[(-1), 0]", "[0, 1]", "[0, (-1)]")
    ),
    Equivalent(
        "engine/scan/machine.py",
        "_load.load.generate",
        "value = _loaded(builder, arguments[0], kind)",
        "value = _loaded(builder, arguments[(-1)], kind)",
        "there is one",
    ),
    *(
        Equivalent(
            "engine/scan/machine.py",
            "copy_bytes.generate",
            _COPIED,
            _COPIED.replace("IntType(1), 0)", f"IntType(1), {bit})"),
            "a copy that counts as volatile is the same copy",
        )
        for bit in ("1", "(-1)")
    ),
    Equivalent(
        "engine/scan/native.py",
        "bind",
        "bound.__module__ = module",
        "pass",
        "a part of the name by which a compiler knows it",
    ),
    Equivalent(
        "engine/scan/scanner.py",
        "_Scan._explain",
        "if status is Status.SHORT:  # there is no room for a record, and nothing to search",
        "if False:  # there is no room for a record, and nothing to search",
        "it saves a search, which finds nothing in fewer bytes than a record has",
    ),
    Equivalent(
        "engine/scan/transcode.py",
        "list_form",
        "out = np.empty(most * BRIEF if headers else len(disk), np.uint8)",
        "out = np.empty(most * BRIEF if False else len(disk), np.uint8)",
        _ROOMIER,
    ),
    Equivalent(
        "engine/scan/transcode.py",
        "AppendEncoder.encode",
        "out, offsets = np.empty(size, np.uint8), np.empty(records + 1, np.int64)",
        "out, offsets = np.empty(size, np.uint8), np.empty(records + 2, np.int64)",
        _ROOMIER,
    ),
    Equivalent("engine/scan/kernel.py", "Slot", "RESULT = 12", "RESULT = 13", "any word that is free"),
    Equivalent("engine/scan/kernel.py", "Status", "SHORT = 6", "SHORT = 7", "any number that is free"),
    Equivalent(
        "engine/scan/native.py",
        "note_vectors",
        _NOTED_DATA,
        _NOTED_DATA.replace("notes + AT", "notes - AT"),
        "it is 0, the first place in the notes",
    ),
    Equivalent(
        "engine/scan/native.py",
        "settle_vectors",
        "data = lane_sums(notes + AT_DATA + place * 64)",
        "data = lane_sums(notes - AT_DATA + place * 64)",
        "it is 0, the first place in the notes",
    ),
    *(
        Equivalent("engine/scan/wire_loops.py", "split", line, line.replace(" + ", " - "), "it is 0, the first byte")
        for line in (
            "if byte_at(memory, position + MAGIC_AT) != magic:",
            "kind = byte_at(memory, body + TYPE_AT)",
        )
    ),
    *(
        Equivalent(
            "engine/scan/code_cache.py",
            "get",
            _READ_CODE,
            _READ_CODE.replace("1 << 20", size),
            "how much is read at once; it is read to the end",
        )
        for size in ("2 << 20", "1 << 19", "1 << 21")
    ),
    *(
        Equivalent("engine/scan/walk.py", function, line, line.replace(*change), reason)
        for function, line, change, reason in (
            ("RecordWalk.restart", "self._lane.take(copy=False)", ("False", "True"), "nobody looks at them"),
            (
                "RecordWalk.take_run",
                "columns = self._lane.take(copy=False)",
                ("False", "True"),
                "whether the buffers are used again; nobody may count on it",
            ),
            ("RecordWalk._more", "if held >= HEADER:", (">=", ">"), "its length is looked at when more of it is held"),
            (
                "RecordWalk.seek",
                "if self._carry <= position <= state[FILLED]:  # still in the buffer",
                ("<= state", "< state"),
                "behind the last byte of the buffer all that follows is read either way",
            ),
        )
    ),
    *(
        Equivalent(
            "engine/scan/resync.py",
            "Resynchroniser._search_behind",
            _CANDIDATES,
            _CANDIDATES.replace("offset + 1", place),
            "one that begins in the place of the damage is not right, and what begins in front of it is passed over",
        )
        for place in ("offset - 1", "offset + 0")
    ),
    *(
        Equivalent(_PROBE, "Candidates._search", line, new, reason)
        for line, news, reason in (
            (
                _LOOKED_AT,
                (
                    _LOOKED_AT.replace("// 2", "* 2"),
                    _LOOKED_AT.replace("// 2", "// 1"),
                    _LOOKED_AT.replace("- OVERHEAD + 1", "- OVERHEAD + 2"),
                    _LOOKED_AT.replace("- OVERHEAD", "+ OVERHEAD"),
                ),
                "how much is looked at at once; it ends with the data",
            ),
            (
                _WINDOW,
                (_WINDOW.replace("- 1", "- 0"), _WINDOW.replace("- 1", "+ 1")),
                "a place or two are looked at twice",
            ),
            ("if count <= 0:", ("if count < 0:",), "of no places none is found"),
            (
                _RISEN_ID,
                (_RISEN_ID.replace("- self", "+ self"), _RISEN_ID.replace("//", "*")),
                "it only saves work: each id is compared with the bound of its own place below",
            ),
            (
                _FIRST_OF_LENGTH,
                (
                    _FIRST_OF_LENGTH.replace("self._probe.max_record >> 24", "(self._probe.max_record >> 24) + 1"),
                    _FIRST_OF_LENGTH.replace("24", "23"),
                ),
                "it only saves work: whole lengths are compared behind it",
            ),
            (
                "for place in range(8):",
                ("for place in range(7):",),
                "it only saves work: whole ids are compared behind it",
            ),
        )
        for new in news
    ),
    *(
        Equivalent(file, function, line, line.replace("2**63", limit), "no search costs as much")
        for file, function, line in (
            (
                "engine/scan/scanner.py",
                "_Scan._damage",
                "probe.budget = SearchBudget(2**63)",
            ),
            (
                "engine/scan/carve.py",
                "carve_records",
                "probe = Probe(source, stop, max_record, SearchBudget(2**63) if budget is None else budget)",
            ),
        )
        for limit in ("3**63", "2**64", "2**62")
    ),
    *(
        Equivalent(file, function, line, line.replace("stop - start", "stop + start"), "which kernel runs")
        for file, function, line in (
            ("engine/scan/carve.py", "carve_records", "kernels.choose(stop - start, compiled),"),
            (
                "engine/scan/scanner.py",
                "_Scan.__init__",
                "self.kernel: Kernel = kernels.choose(stop - start, compiled)",
            ),
        )
    ),
    Equivalent(
        "engine/scan/wire_compiled.py",
        "_pointer",
        "if type(memory) is bytes:",
        "if False:",
        "what is read may be pointed to in the other way as well, which takes longer",
    ),
    Equivalent(
        _ORDER,
        "OrderJudge._repeated",
        "for at in range(0, size, _COMPARED):",
        "for at in range(1, size, _COMPARED):",
        "the first byte is that of an id, which is the same where all the others are",
    ),
    Equivalent(
        "engine/scan/code_cache.py",
        "_directory",
        "break",
        "continue",
        "the same directory is asked about again, with the same answer",
    ),
    *(
        Equivalent("engine/scan/code_cache.py", function, line, line.replace(*change), reason)
        for function, line, change, reason in (
            ("get", _OPENED, ("RDONLY |", "RDONLY &"), "the interpreter opens no file that is inherited"),
            ("put", _CREATED, ("EXCL |", "EXCL &"), "no other file has a name that was drawn by lot"),
            ("put", _CREATED, ("CLOEXEC |", "CLOEXEC &"), "what must not be there is no link either"),
        )
    ),
    *(
        Equivalent(
            "engine/scan/compiled.py",
            "inputs",
            _INPUTS,
            _INPUTS.replace("else 0", f"else {other}"),
            "where no function is called nobody asks for its address",
        )
        for other in ("1", "(-1)")
    ),
    *(
        Equivalent("engine/scan/compiled.py", "inputs", _WIDTH, _WIDTH.replace(*change), reason)
        for change, reason in (
            (("else 8", "else 7"), "without vectors only tables are taken that are the same for every width"),
            (("// 64", "// 63"), "512, 256 and 128 bits have 8, 4 and 2 words either way"),
        )
    ),
    *(
        Equivalent("engine/scan/crc_kernel.py", "", line, line.replace(*change), "more room than notes are taken in")
        for line, changes in (
            ("NOTED = STRETCH + 8", (("8", "7"), ("8", "9"))),
            ("AT_HEAD = AT_DATA + NOTED * 64", (("64", "63"), ("64", "65"))),
            ("AT_VERDICT = AT_HEAD + NOTED * 64", (("64", "63"), ("64", "65"))),
        )
        for change in changes
    ),
    *(
        Equivalent(
            "engine/scan/crc_kernel.py",
            "_multiples",
            "while len(values) < count:",
            new,
            "they are doubled to a power of two, and as many are taken as are asked for: 4095 or 4096",
        )
        for new in ("while len(values) <= count:", "while len(values) < (count) - 1:")
    ),
    Equivalent(
        "engine/scan/crc_kernel.py",
        "_inverse_series",
        "generator, inverse, rest = 0x104C11DB7, 0, 1",
        "generator, inverse, rest = 0x104C11DB7, 1, 1",
        "the first place is set in the first step",
    ),
    *(
        Equivalent("engine/scan/kernel.py", "InterpretedLane.__init__", _MEMORY, new, "where memory comes from")
        for new in (
            _MEMORY.replace("size <= _SMALL", "False"),
            _MEMORY.replace("<=", "<"),
            _MEMORY.replace("<= _SMALL", "<= (_SMALL) + 1"),
        )
    ),
    Equivalent(
        "engine/scan/scanner.py",
        "read_record_at",
        "if size <= len(raw):",
        "if size < len(raw):",
        "where nothing is left to be read nothing is read",
    ),
    *(
        Equivalent("engine/scan/scanner.py", "scan_records", line, line.replace("if borrowed", "if False"), _SIZES)
        for line in ("block=LENT_BLOCK if borrowed else BLOCK,", "rows=LENT_ROWS if borrowed else BATCH_ROWS,")
    ),
    *(
        Equivalent(
            "engine/scan/scanner.py",
            "summarise_records",
            f"{name}=False,",
            f"{name}=True,",
            "columns and bytes that nobody takes",
        )
        for name in ("wide", "keep_data")
    ),
    Equivalent(
        "engine/scan/crc_kernel.py",
        "_inverse_series",
        "for place in range(64):",
        "for place in range(65):",
        "the series has no power there",
    ),
    *(
        Equivalent("engine/scan/native.py", function, old, new, reason)
        for function, old, news, reason in (
            (
                "note_vectors",
                "if length <= BLOCKS * BLOCK:",
                ("if False:", "if length < BLOCKS * BLOCK:", "if length <= BLOCKS // BLOCK:"),
                "one sum in two ways, of which the one that folds takes longer for little",
            ),
            (
                "note_vectors",
                "while place >= start:",
                ("while place > start:",),
                "the first block, where it is whole, is taken as one of which all is meant",
            ),
            (
                "note_vectors",
                "if place > start - BLOCK:",
                ("if place >= start - BLOCK:",),
                "of a block that lies in front of the data nothing is taken",
            ),
            (
                "note_vectors",
                "while place < end:",
                ("while place < (end) - 1:",),
                "places go by whole groups and end where the data does",
            ),
            (
                "settle_vectors",
                "while place < count:",
                ("while place <= count:",),
                "verdicts behind the last record are nobody's; there is room for them",
            ),
            (
                "multiply_reduced",
                "for _ in range(32):",
                ("for _ in range(33):",),
                "behind its last bit the factor has none",
            ),
            (
                "translate",
                "names = Vectors(int(way[5:]) // 64).names",
                ("names = Vectors(int(way[5:]) // 63).names",),
                "512, 256 and 128 bits have 8, 4 and 2 words either way",
            ),
        )
        for new in news
    ),
    *(
        Equivalent("engine/scan/wire_native.py", "joined", _JOINED, _JOINED.replace(*change), _TWICE)
        for change in (("length < TWO_PASSES", "False"), ("JOINED", "(JOINED) - 1"))
    ),
    Equivalent("engine/scan/wire_native.py", "", "JOINED = LENGTHS * LENGTHS", "JOINED = LENGTHS // LENGTHS", _TWICE),
    *(
        Equivalent("engine/scan/wire_native.py", "translate", _WAYS, _WAYS.replace(*change), _TWICE)
        for change in (
            ("512", "511"),
            ("512", "513"),
            ("4096", "4095"),
            ("4096", "4097"),
            ('512 if kind == "table"', "512 if False"),
            ('512 if kind == "table"', '512 if kind != "table"'),
        )
    ),
    Equivalent(
        "engine/scan/crc_kernel.py",
        "tables",
        "block[AT_SLICES:AT_POWERS] = slicing_tables().view(np.uint8).reshape(-1)",
        "block[AT_SLICES:AT_POWERS] = slicing_tables().view(np.uint8).reshape(-2)",
        "any number below zero stands for as many as there are",
    ),
    *(
        Equivalent(_PROBE, "", "FORGET_AFTER = 1 << 30", f"FORGET_AFTER = {size}", "what is given up is computed again")
        for size in ("0 << 30", "1 >> 30")
    ),
    *(
        Equivalent(_TRIED, "_encode", _TRIED_ROOM, _TRIED_ROOM.replace(*change), _ROOMIER)
        for change in (("2 *", "3 *"), ("2 *", "1 *"), ("4 *", "5 *"), ("4 *", "3 *"))
    ),
    *(
        Equivalent(_TRIED, "answers", _TRIED_DISK, _TRIED_DISK.replace("((0, 0)", f"(({place}, 0)"), _INVENTED)
        for place in ("1", "(-1)")
    ),
    *(
        Equivalent(_ORDER, function, line, line.replace(*change), reason)
        for function, line, change, reason in (
            (
                "OrderJudge._as_indexed",
                "if here is None or here.offset != entry:",
                ("here is None", "False"),
                "they were followed a moment ago",
            ),
            (
                "OrderJudge._pass_over",
                "if passed == count and here.transaction_id < expected:",
                ("<", "<="),
                "the first one has not the id that is expected",
            ),
        )
    ),
    *(
        Equivalent("engine/scan/index_mask.py", "inside_index", old, new, reason)
        for old, new, reason in (
            ("continue", "break", "from the next byte on there are no more entries"),
            ("if len(entries) < LEAST_ENTRIES:", "if False:", "a row of so few is none all the same"),
            (
                "if len(entries) < LEAST_ENTRIES:",
                "if len(entries) < (LEAST_ENTRIES) - 1:",
                "a row of so few is none all the same",
            ),
        )
    ),
    *(
        Equivalent(
            f"engine/scan/{file}.py",
            function,
            "if left < 0:",
            "if left < -1:",
            "where one byte is missing the length is there, and leads beyond what is left",
        )
        for file, function in (("wire_loops", "encode"), ("list_loops", "to_list"))
    ),
    Equivalent(
        "engine/scan/carve.py",
        "carve_records",
        "position = max(walk.offset, place + 1)",
        "position = max(walk.offset, place + 2)",
        "the walk is behind the record, unless that was written over meanwhile",
    ),
    Equivalent(
        "engine/scan/walk.py",
        "following",
        "return (transaction_id + 1 + 2**63) % 2**64 - 2**63",
        "return (transaction_id + 1 - 2**63) % 2**64 - 2**63",
        "half of the whole more or less is the same remainder",
    ),
    Equivalent("engine/scan/walk.py", "", "CARRY = 128 << 10", "CARRY = 128 >> 10", "what is not moved is read again"),
    Equivalent("engine/scan/kernel.py", "", "_SMALL = 128 << 10", "_SMALL = 128 >> 10", "where memory comes from"),
    Equivalent(
        "engine/scan/object_code.py",
        "load_object",
        "engine.finalize_object()",
        "pass",
        "whoever asks for an address has it done",
    ),
    *(
        Equivalent("engine/scan/transcode.py", "room_for", "if len(table) <= _FEW:", new, "the same sums in two ways")
        for new in ("if False:", "if len(table) < _FEW:", "if len(table) <= (_FEW) + 1:")
    ),
    Equivalent(
        "engine/scan/resync.py",
        "_support",
        _SUPPORTED,
        _SUPPORTED.replace("any(c.reached", "all(c.reached"),
        "none of several reaches the end: behind the first that does nothing is searched for",
    ),
    Equivalent(
        "engine/scan/walk.py",
        "RecordWalk._stream",
        "while done < size:",
        "while done < (size) - 1:",
        "what is done ends in front of the checksum, which is read alone, or behind it",
    ),
    *(
        Equivalent(
            "engine/scan/walk.py",
            "RecordWalk._more",
            "if held > carry - PAGE:",
            new,
            "whether that much is moved or read again; there is room for it in front of the block",
        )
        for new in ("if held >= carry - PAGE:", "if held > (carry - PAGE) + 1:")
    ),
    *(
        Equivalent(
            "engine/scan/crc_kernel.py",
            "tables",
            _RISING,
            _RISING.replace("64)", size),
            "more powers than are taken: the header begins 32 bytes in front of its last word",
        )
        for size in ("63)", "65)")
    ),
    *(
        Equivalent("engine/scan/crc_kernel.py", "aligned", line, line.replace("64", size), "more room than is taken")
        for line in ("raw = np.zeros(size + 64, np.uint8)",)
        for size in ("63", "65")
    ),
    *(
        Equivalent(
            "engine/scan/machine.py", function, line, line.replace("arguments[0]", "arguments[(-1)]"), "there is one"
        )
        for function, line in _OF_ONE
    ),
    *(
        Equivalent(
            "engine/scan/native.py",
            "note_vectors",
            _WORDS_OF_HEADER,
            new,
            "places go by whole blocks of 16 bytes or more, and the header's first byte is none of their ends",
        )
        for new in (
            _WORDS_OF_HEADER.replace("> 64", ">= 64"),
            _WORDS_OF_HEADER.replace("64", "63"),
            _WORDS_OF_HEADER.replace("64", "65"),
            "while place > (64 - HEADER - BLOCK) + 1:",
        )
    ),
    *(
        Equivalent("engine/scan/machine.py", function, old, new, "a hint to the compiler that a load may be saved")
        for function, old, new in (
            ("_constant", 'instruction.set_metadata("invariant.load", builder.module.add_metadata([]))', "pass"),
            ("_load.load.generate", "if constant:", "if False:"),
            ("_load.load.generate", "_constant(builder, value)", "pass"),
            ("Vectors.__init__.loader.load.generate", _IF_CONSTANT, _IF_CONSTANT.replace("if constant", "if False")),
            (
                "Vectors.__init__",
                '"load_constant": loader(constant=True),',
                '"load_constant": loader(constant=False),',
            ),
            *(("", line, line.replace("constant=True", "constant=False")) for line in _CONSTANT_LOADS),
        )
    ),
    *(
        Equivalent(
            "engine/scan/machine.py",
            "Vectors.__init__.word_at.generate",
            _WORDS,
            _WORDS.replace("[0]", other),
            "the first one is put in, and of the others no byte is picked",
        )
        for other in ("[1]", "[(-1)]")
    ),
    *(
        Equivalent(file, "", f"{name} = 0{rest}", f"{name} = {other}{rest}", "bound before anything is translated")
        for file, name, rest in (
            ("engine/scan/native.py", "BLOCK = LANES", ""),
            ("engine/scan/wire_native.py", "TWO_PASSES", "  # bound by `translate`"),
        )
        for other in ("1", "(-1)")
    ),
    *(
        Equivalent(f"engine/scan/{file}.py", function, line, line.replace("[0]", "[(-1)]"), "there is one")
        for file, function, line in _UNPACKED
    ),
    Equivalent(
        _PROBE,
        "Probe.check",
        _AT_HAND,
        _AT_HAND.replace("place <= len", "place < len"),
        "where no record ends in what was read, it is read anew",
    ),
    Equivalent(
        "engine/scan/crc_kernel.py",
        "tables",
        "fold[0:width:2] = x_power(8 * GROUP * size + 63) << 32",
        "fold[0:width:1] = x_power(8 * GROUP * size + 63) << 32",
        "every other one is written over in the next line",
    ),
    Equivalent(
        "engine/scan/byte_source.py",
        "only_zeros",
        "count = source.read_into(offset, memoryview(buffer)) if offset < end else 0",
        "count = source.read_into(offset, memoryview(buffer)) if offset < end else 1",
        "the first byte of the buffer is zero, or it was said before that it is not",
    ),
    Equivalent(
        _PROBE,
        "Candidates._search",
        _ONLY_ZEROS,
        _ONLY_ZEROS.replace("not window.any()", "False"),
        "it only saves work: what is blank is left out below",
    ),
    *(
        Equivalent(
            "engine/scan/wire_loops.py",
            "encode",
            "if data < 0 or data > left:",
            new,
            "what reaches beyond the request leaves no room for another record, or does not end where the request does",
        )
        for new in ("if data < 0 or False:", "if data < 0 or data > (left) + 1:")
    ),
    Equivalent(
        "engine/scan/wire_loops.py",
        "encode",
        "break",
        "continue",
        "the request is gone over once more, and left in front of its checksums",
        nth=7,
    ),
    Equivalent("engine/scan/object_code.py", "_machine", "opt=3,", "opt=2,", "how hard a compiler tries"),
    *(
        Equivalent(
            "engine/scan/compiled.py",
            "_function_address",
            "return ctypes.cast(function, ctypes.c_void_p).value or 0",
            f"return ctypes.cast(function, ctypes.c_void_p).value or {other}",
            "no function of a library stands at no address",
        )
        for other in ("1", "(-1)", "False")
    ),
    Equivalent(
        "engine/scan/resync.py",
        "Resynchroniser._search_behind",
        "and 0 <= header.data_length <= probe.max_record",
        "and 1 <= header.data_length <= probe.max_record",
        "behind a record without data that reaches beyond the end there is no room for another",
    ),
    Equivalent(
        "engine/scan/wire_loops.py",
        "encode",
        _WITHIN_BUFFER,
        _WITHIN_BUFFER.replace("length < APPEND_LEAST", "False"),
        "in fewer bytes there is room for less than no record, which the next line asks",
    ),
    Equivalent(
        _PROBE,
        "Candidates._search",
        "count = min(CACHE // 2, self._stop - OVERHEAD + 1 - at)",
        "count = min(CACHE // 3, self._stop - OVERHEAD + 1 - at)",
        "how much is looked at at once",
    ),
    *(
        Equivalent(
            "engine/scan/native.py",
            "settle_vectors",
            _IN_GROUP,
            new,
            "behind the last record of a stretch: what is handed back then is no less than their number, and what is stored "
            "there nobody takes",
        )
        for new in ("if place - lane < count:", "if place + lane <= count:")
    ),
    *(
        Equivalent(
            "engine/scan/wire_compiled.py",
            "CompiledLoops._run",
            _HELD_LOCK,
            _HELD_LOCK.replace(old, new),
            "whether the interpreter lock is held meanwhile",
        )
        for old, new in (
            ("] - state", "] + state"),
            ("<=", "<"),
            ("_SHORT", "(_SHORT) + 1"),
            ("state[FILLED] - state[POSITION] <= _SHORT", "False"),
        )
    ),
    *(
        Equivalent(file, function, line, line.replace(*change), _TWICE)
        for file, function, line in _PASSES
        for change in (("<", "<="), ("TWO_PASSES", "(TWO_PASSES) - 1"), ("_TWO_PASSES", "(_TWO_PASSES) - 1"))
        if ("_TWO" in line) is ("_TWO" in change[0]) or change[0] == "<"
    ),
    *(
        Equivalent(file, function, line, "if False:", _TWICE)
        for file, function, line in _PASSES
        if file != "engine/scan/wire_native.py"
    ),
    *(
        Equivalent(file, "", "_TWO_PASSES = 16 << 10", "_TWO_PASSES = 16 >> 10", _TWICE)
        for file in ("engine/scan/kernel.py", "engine/scan/wire_memory.py")
    ),
    Equivalent(
        _ORDER,
        "OrderJudge._shifted",
        "most = lower + ORDER_WINDOW if lower > 0 else None",
        "most = lower + ORDER_WINDOW if lower >= 0 else None",
        "the id that is expected is not out of order",
    ),
    *(
        Equivalent(
            "engine/scan/wire_loops.py",
            "encode",
            _ENOUGH,
            _ENOUGH.replace(old, new),
            "of the counts that cannot be it refuses at once; every record's place is looked at below all the same",
        )
        for old, new in (
            ("> length - APPEND_LEAST", "> (length - APPEND_LEAST) + 1"),
            ("> length or", ">= length or"),
            ("> length or", "> (length) + 1 or"),
        )
    ),
    *(
        Equivalent(
            _PROBE, "Candidates._search", _FITS, _FITS.replace(old, new), "whoever asks for candidates checks them"
        )
        for old, new in (
            ("<= self._probe.max_record", "<= (self._probe.max_record) + 1"),
            ("<= self._stop", "<= (self._stop) + 1"),
        )
    ),
    *(
        Equivalent(
            "engine/scan/machine.py",
            function,
            line,
            line.replace("align=1", "align=2"),
            "half words are loaded and stored by the same instructions at any address",
        )
        for function, line in (
            ("_loaded", "return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)"),
            ("_stored", "builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=1)"),
        )
    ),
    Equivalent(
        "engine/scan/machine.py",
        "Vectors.__init__.word_at.generate",
        _WORD_AT,
        _WORD_AT.replace("12 <=", "11 <="),
        "the byte behind the word is zero there",
    ),
    *(
        Equivalent("engine/scan/native.py", "crc_sliced", "while address + 16 <= end:", new, _WHOLE_STEPS)
        for new in ("while address + 16 < end:", "while address + 17 <= end:", "while False:")
    ),
    *(
        Equivalent(
            "engine/scan/wire_loops.py",
            "InterpretedLoops.split",
            _CELLS,
            _CELLS.replace("[0]", other),
            "of the cells only those that are filled are taken",
        )
        for other in ("[1]", "[(-1)]")
    ),
    Equivalent(
        _ORDER,
        "OrderJudge._as_indexed",
        "entries = self._search.indexed(expected, count + 1)",
        "entries = self._search.indexed(expected, count + 2)",
        "one entry more says as much as two",
    ),
    Equivalent(
        _ORDER,
        "OrderJudge.judge",
        _HEAD,
        _HEAD.replace("> expected", ">= expected"),
        "where the id that is expected stands, the sequence has gone on",
    ),
    Equivalent(
        _ORDER,
        "OrderJudge._rising",
        _RISEN,
        _RISEN.replace("<=", "<"),
        "where the id that is expected stands, the sequence has gone on",
    ),
    Equivalent(
        _PROBE, "Probe.__init__", 'self._checkpoints = array("I", [0])', 'self._checkpoints = array("I", [1])', _SEED
    ),
    Equivalent(
        _PROBE,
        "Probe.crc",
        'self._origin, self._checkpoints = start, array("I", [0])',
        'self._origin, self._checkpoints = start, array("I", [1])',
        _SEED,
    ),
    Equivalent(
        _PROBE,
        "Probe.forget",
        'self._origin, self._checkpoints = before, array("I", [0])',
        'self._origin, self._checkpoints = before, array("I", [1])',
        _SEED,
    ),
    *(
        Equivalent(_PROBE, "Probe.__init__", f"self.{name} = 0", f"self.{name} = {other}", _NOTHING_HELD)
        for name in ("_cache_at", "_origin")
        for other in ("1", "(-1)")
    ),
    Equivalent(
        _PROBE,
        "Probe.read",
        _HELD,
        _HELD.replace("offset <= offset +", "offset < offset +"),
        "the length is not 0 there",
    ),
    *(
        Equivalent(
            _PROBE,
            "",
            "_shift = lru_cache(maxsize=256)(shift_operator)",
            f"_shift = lru_cache(maxsize={size})(shift_operator)",
            "how many are kept, and no other answer",
        )
        for size in (255, 257)
    ),
)
_WHOLE = "if rest >= floor and seam - end <= len(head):"
_DIFFER = (
    "if np.array_equal(a - a[0], b - b[0]) and _same_bytes(one, int(a[0]), other, int(b[0]), length):",
    "the same bytes hold records in the same places, and what is not taken at once is compared one by one",
)
_BEST = "weights.append(best + len(run) if best >= 0 else -1)"
_HIGHEST = "highest.append(max(weights[-1], highest[-1] if highest else -1))"
_LOW_HIGH = "low, high = first, stop - 1  # binary search: proven up to `low` (exclusive), not proven up to `high` + 1"
_OVERLAPS = "if before is not None and self.expected is not None and part.first < self.expected:"
_IN_TURN = "if known is None or known[0] is not found:"
_BUFFER = "buffer = memoryview(bytearray(min(BLOCK, stop - position)))"
_PIECE = "yield piece.read(at, min(CHUNK, len(piece) - at))"
_SHIFTED = "part.shifted |= len(found) != loss.end - loss.offset"
_ONLY_A_HINT = "an index that lies where the new one will be is only ever a hint, which the records must bear out"
_TAKEN = "if context.taken(loss.stop) or FileState.of(path) is not None:"
_ENDS = "place = next((end for end in ends if end > place), loss.end)"
_INDEXED = "if HEADER_SIZE <= offset < segment.size:"
_ASKED = "if why is None and around.replicas and (other := named_instead(content, partition)) is not None:"
_IN_ORDER = "for verdict in sorted(verdicts, key=lambda one: (one.first or 0, one.stray.data.path)):"
_FOUND = "return found if found is not None and found.transaction_id >= least else None"
_HERE = "here = 0 if limit is not None or part is None or tail is None else self._whole_tail_end(part, tail)"
_NO_STATE = "if file is None or now is None or file.before is None or file.before.size < CONTROL_HEADER.size:"
_SOME_PARTITIONS = "if not 0 < header.num_partitions <= MAX_PARTITIONS:"
_REACHED = "self.expected = max(self.expected or 0, found.reached)"
_LOST_BYTES = "if not name.endswith(INDEX_SUFFIX) and now.get(name, -1) < size:"
_SPLIT_HEADER = (
    "if first_seam < end + RECORD_HEADER.size:  # the header itself is split: its length is known only with the rest"
)
_NEVER_MORE = "the largest weight so far only ends a search that would find nothing more"
_FAILED = "self.unreadable[failed] = max(end - failed, self.unreadable.get(failed, 0))"
_LEFT = "findings.append(seen if ran is None else left_by(seen, storage, ran, mended))"
_UNUSED_FLAGS = "unknown = {one.flags or 0 for info in control.partitions for one in info.structs}"
_SPOKEN = "if self._partition is not None and not (batch.request_id_low >> 32 == self._partition).all():"
_TOLD = "told = max((one.control.header.num_partitions for one in controls.found), default=0)"
_MARKS = "marks=info.current_struct.marks if info and info.current_struct else NEVER,"
_BEHIND_KEPT = (
    "behind = (one.first_transaction_id for one in data if one.first_transaction_id > kept.first_transaction_id)"
)
_FURTHER_READ = "if not self.strict and offset + done > self._furthest:"
_WANTED = "done, wanted = 0, min(len(buffer), max(0, self._size - offset))"
_ENTRIES_DIFFER = "if position and found != part[: len(found)]:"
_WORKERS = (
    'for found in (executor or LocalExecutor(1)).map(_plan_segment, tasks, weights=weights, what="rebuild-index"):'
)
_INSIDE = "entry = old if before < old < span.end else max(span.offset, span.end - 1)"
_DIGEST = 'digest = hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()'
_NO_PLACE = "what is a storage directory has its own path"
_REPAIR = (
    *(
        Equivalent(
            "engine/repair/salvage_control.py",
            "carve_control",
            _SOME_PARTITIONS,
            _SOME_PARTITIONS.replace("0 <", other),
            "where there are no partitions, none proves the file",
        )
        for other in ("(-1) <",)
    ),
    *(
        Equivalent("engine/repair/salvage_selection.py", "_Selector._differing", old, new, reason)
        for old, new, reason in (
            (
                "a = ours[start - first.first : stop - first.first + 1]",
                "a = ours[start - first.first : stop - first.first + 2]",
                "the records are compared one by one then",
            ),
            (
                "b = theirs[start - second.first : stop - second.first + 1]",
                "b = theirs[start - second.first : stop - second.first + 2]",
                "the records are compared one by one then",
            ),
            (
                "for start in range(low, high + 1, CHUNK):",
                "for start in range(low, high + 2, CHUNK):",
                "a piece without a record has no difference",
            ),
        )
    ),
    Equivalent(
        "engine/repair/undo_conditions.py",
        "falling_marks",
        _NO_STATE,
        _NO_STATE.replace("size <", "size <="),
        "a header alone has no partition",
    ),
    Equivalent(
        "engine/repair/rebuild_index.py",
        "IndexPlan._lost_end",
        "many = max(0, self.ceiling - following)",
        "many = max(0, self.ceiling + following)",
        "the index has no entry from there on",
    ),
    *(
        Equivalent(
            "engine/repair/convert.py",
            "plan_convert",
            "if size < control.size:",
            f"if size {other}:",
            "the infos of one layout have several bytes more than those of the other",
        )
        for other in ("<= control.size", "< (control.size) - 1")
    ),
    Equivalent(
        "engine/repair/salvage_fragments.py",
        "join",
        _SPLIT_HEADER,
        _SPLIT_HEADER.replace("<", "<="),
        "where the seam is right behind the header, both ways put the same together",
    ),
    Equivalent(
        "engine/repair/undo_conditions.py",
        "set_aside",
        _LOST_BYTES,
        _LOST_BYTES.replace("-1", "-2"),
        "less than the size of any file",
    ),
    Equivalent(
        "engine/repair/recover_partition.py",
        "_Walk._join",
        _REACHED,
        _REACHED.replace("or 0", "or (-1)"),
        "no id is in front of 0",
    ),
    Equivalent(
        "engine/repair/set_partition.py",
        "_Planner._session",
        "older = session < now",
        "older = session <= now",
        "where it is the same nothing is set",
    ),
    *(
        Equivalent(
            "engine/repair/replicas.py", "_listed", old, new, "a scan finds the record in the same place, at a cost"
        )
        for old, new in (
            ("if hint is not None:", "if False:"),
            ("if len(raw) == ENTRY_SIZE:", "if False:"),
            (_INDEXED, "if False:"),
            (_INDEXED, _INDEXED.replace("E <=", "E <")),
            (_INDEXED, _INDEXED.replace("offset <", "(offset) + 1 <")),
            (_INDEXED, _INDEXED.replace("< segment", "<= segment")),
            (_INDEXED, _INDEXED.replace("segment.size", "(segment.size) - 1")),
        )
    ),
    Equivalent(
        "engine/repair/provenance.py",
        "_judge_records",
        _ASKED,
        _ASKED.replace("around.replicas", "True"),
        "without a replica there is none to ask",
    ),
    *(
        Equivalent(
            "engine/repair/recover_strays.py",
            "plan_strays",
            _IN_ORDER,
            _IN_ORDER.replace("or 0", f"or {other}"),
            "what begins with 0, or with nothing that is known, comes before all others",
        )
        for other in ("(-1)", "False")
    ),
    *(
        Equivalent(
            "engine/repair/recover_strays.py",
            "_why_not_taken",
            old,
            new,
            "nothing stands in its own place",
        )
        for old, new in (
            (
                "before = next((part for part in reversed(ordered) if part.first < first), None)",
                "before = next((part for part in reversed(ordered) if part.first <= first), None)",
            ),
            (
                "behind = next((part for part in ordered if part.first > first), None)",
                "behind = next((part for part in ordered if part.first >= first), None)",
            ),
        )
    ),
    Equivalent(
        "engine/repair/witnesses.py",
        "Witnesses._at",
        "if stop is None or offset >= one.survey.end:",
        "if stop is None or offset >= (one.survey.end) - 1:",
        "no record stands in the last byte",
    ),
    Equivalent(
        "engine/repair/witnesses.py",
        "Witnesses._at",
        _FOUND,
        _FOUND.replace("found is not None", "True"),
        "behind losses, and in front of the end, a record stands",
    ),
    Equivalent(
        "engine/repair/recover_losses.py",
        "LossPlanner.end",
        _HERE,
        _HERE.replace("part is None", "False"),
        "no segment has no end",
    ),
    *(
        Equivalent(
            "engine/repair/recover_losses.py",
            f"LossPlanner.{function}",
            f"{word} tail is not None and part is not None:",
            f"{word} tail is not None and True:",
            "an end is that of a segment",
            nth,
        )
        for function, word, nth in (
            ("_end_lost", "if", 1),
            ("_end_lost", "if", 2),
            ("gap", "if", 1),
            ("end", "elif", 1),
        )
    ),
    Equivalent(
        "engine/repair/recover_losses.py",
        "LossPlanner._longest_proven",
        "middle = (low + high + 1) // 2",
        "middle = (low + high + 2) // 2",
        "any place behind the lower end, up to the upper one, will do",
    ),
    Equivalent(
        "engine/repair/recover_losses.py",
        "LossPlanner.end",
        _HERE,
        _HERE.replace("here = 0", "here = (-1)"),
        "no id is below 0",
    ),
    *(
        Equivalent(f"engine/repair/{file}.py", function, old, new, reason)
        for file, function, old, new, reason in (
            (
                "apply",
                "verify_again",
                _LEFT,
                _LEFT.replace("ran is None", "False"),
                "what no command has left has the remedy that it had",
            ),
            (
                "convert",
                "_in_words",
                _UNUSED_FLAGS,
                _UNUSED_FLAGS.replace("or 0", "or 1"),
                "that flag is one that a release uses",
            ),
            ("convert", "_in_words", _UNUSED_FLAGS, _UNUSED_FLAGS.replace("or 0", "or False"), "it is 0"),
            (
                "convert",
                "plan_convert",
                "if target.kind is not TargetKind.STORAGE or target.storage is None:",
                "if target.kind is not TargetKind.STORAGE or False:",
                _NO_PLACE,
            ),
            (
                "set_partition",
                "plan_set_partition",
                "if target.storage is None or target.kind is not TargetKind.STORAGE:",
                "if False or target.kind is not TargetKind.STORAGE:",
                _NO_PLACE,
            ),
            (
                "rebuild_index",
                "IndexPlan._lost",
                _INSIDE,
                _INSIDE.replace("old < span.end", "old < (span.end) - 1"),
                "in the last byte it would be put there all the same",
            ),
            *(
                (
                    "truncate",
                    "_refuse_foreign",
                    "cut = reached[-1].first_transaction_id if reached else 0",
                    f"cut = reached[-1].first_transaction_id if reached else {other}",
                    "where none is reached all begin behind 0",
                )
                for other in ("1", "(-1)")
            ),
            (
                "truncate",
                "plan_truncate",
                _BEHIND_KEPT,
                _BEHIND_KEPT.replace("> kept.first_transaction_id", "> (kept.first_transaction_id) + 1"),
                "in front of a segment that begins with the next id only one record is asked for, the first",
            ),
            (
                "truncate",
                "_last",
                "if header is None or segment.data is None:",
                "if header is None or False:",
                "without a data file there is no header",
            ),
            (
                "salvage_output",
                "_SegmentWriter.add",
                "while position < stop:",
                "while position <= stop:",
                "nothing more is asked for",
            ),
            *(
                (
                    "salvage_sources",
                    "OpenFiles.__init__",
                    "def __init__(self, limit: int = 64) -> None:",
                    f"def __init__(self, limit: int = {other}) -> None:",
                    "a limit that was chosen; another one is as good",
                )
                for other in (63, 65)
            ),
            (
                "salvage_sources",
                "SalvageSource.read_into",
                _FURTHER_READ,
                _FURTHER_READ.replace("done >", "done >="),
                "that it is no further is told as well",
            ),
            (
                "salvage_sources",
                "SalvageSource.read_into",
                _WANTED,
                _WANTED.replace("max(0", "max((-1)"),
                "neither is more than nothing",
            ),
            *(
                (
                    "rebuild_index",
                    "IndexPlan.differs",
                    _ENTRIES_DIFFER,
                    new,
                    "a header that is wrong is told before any entry, and the same entries do not differ",
                )
                for new in (
                    _ENTRIES_DIFFER.replace(" and ", " or "),
                    _ENTRIES_DIFFER.replace("position", "True"),
                    _ENTRIES_DIFFER.replace("found != part[: len(found)]", "True"),
                )
            ),
            (
                "salvage_selection",
                "_Selector._differing",
                "if first.source == second.source and first.start == second.start:",
                "if False:",
                "what is compared with itself is the same",
            ),
            *(
                ("salvage_attribution", "_Joiner.best", old, new, "every chain begins with as much")
                for old, new in (
                    (
                        "best, link = 0 if header is None else -1, None",
                        "best, link = 1 if header is None else -1, None",
                    ),
                    ("best = 0", "best = 1"),
                )
            ),
            (
                "salvage_attribution",
                "_Joiner.best",
                "best, link = 0 if header is None else -1, None",
                "best, link = 0 if header is None else -2, None",
                "any weight below 0 says that no chain ends there",
            ),
            (
                "set_partition",
                "_Planner._fence",
                "if session >= 0:",
                "if session >= -1:",
                "a slot that says none is read as none, as zeros are",
            ),
            (
                "salvage_runs",
                "_Builder.__init__",
                "self._partition: int | None = int(batch.request_id_low[0]) >> 32",
                "self._partition: int | None = int(batch.request_id_low[(-1)]) >> 32",
                "where they do not all say the same it is none",
            ),
            (
                "rebuild_index",
                "plan_rebuild_index",
                "continue  # the number is beyond the cluster's partitions: verify notes it",
                "break  # the number is beyond the cluster's partitions: verify notes it",
                "partitions are in order, and behind it are others of nobody",
            ),
            (
                "rebuild_index",
                "plan_rebuild_index",
                _WORKERS,
                _WORKERS.replace("(1)", "(2)"),
                "two workers make the same indexes",
            ),
            (
                "rebuild_index",
                "plan_rebuild_index",
                "elif found.wanted is not None and found.why is not None:",
                "elif True and found.why is not None:",
                "what is not left to anybody has an index",
            ),
            ("salvage_control_file", "_choose_key", "return keys[0]", "return keys[(-1)]", "all are the same"),
            (
                "plan",
                "PlanDraft.finish",
                _DIGEST,
                _DIGEST.replace("sort_keys=True", "sort_keys=False"),
                "the keys are made in the same order each time",
            ),
            (
                "salvage_selection",
                "_Selector._differing",
                "b = theirs[start - second.first : stop - second.first + 1]",
                "b = theirs[start - second.first : stop + second.first + 1]",
                _DIFFER[1],
            ),
            (
                "salvage_runs",
                "_candidates",
                "if len(window) < HEADER_SIZE:",
                "if len(window) < (HEADER_SIZE) - 1:",
                "in fewer bytes there is no place for one",
            ),
            (
                "plan",
                "_edit_key",
                'return ["remove", name]',
                "return None",
                "the binding names every file that an edit touches, and no other edit is nothing",
            ),
            ("salvage", "_choose_cluster", "return holding[0]", "return holding[(-1)]", "there is one"),
            (
                "salvage",
                "salvage",
                "stack.callback(offsets_of.cache_clear)",
                "pass",
                "what is kept is of runs that nobody asks for again",
            ),
            (
                "salvage",
                "_Probes._probe",
                "if number not in self._probes:",
                "if False:",
                "made anew, it answers the same",
            ),
            ("salvage", "_count_partitions", _TOLD, _TOLD.replace("=0", "=(-1)"), "one partition at least is needed"),
            (
                "salvage",
                "_salvaged_partition",
                _MARKS,
                _MARKS.replace("and info.current_struct", "and True"),
                "infos are proven",
            ),
            *(
                (
                    "salvage_findings",
                    "_data_finding",
                    "offset, length = HEADER_SIZE, 0",
                    f"offset, length = HEADER_SIZE, {other}",
                    "the record stands in one of the pieces, which gives the length",
                )
                for other in ("1", "(-1)")
            ),
            (
                "salvage_control",
                "carve_control",
                "if not 0 < header.num_partitions <= MAX_PARTITIONS:",
                "if not 0 <= header.num_partitions <= MAX_PARTITIONS:",
                "of no partition there is no info that would prove it",
            ),
            (
                "salvage_runs",
                "_Builder.add",
                _SPOKEN,
                _SPOKEN.replace("self._partition is not None", "True"),
                "no number is the one that is not there, and it stays so",
            ),
            *(
                (
                    "salvage_sources",
                    "SalvageSource.read_into",
                    _FAILED,
                    _FAILED.replace("failed, 0)", f"failed, {other})"),
                    "a stretch that failed has a byte at least",
                )
                for other in ("1", "(-1)")
            ),
            ("salvage_attribution", "_Joiner.best", "if highest[earlier] <= best:", "if False:", _NEVER_MORE),
            (
                "salvage_attribution",
                "_Joiner.best",
                "if highest[earlier] <= best:",
                "if highest[earlier] < best:",
                _NEVER_MORE,
            ),
            ("salvage_attribution", "_Joiner.best", "break", "continue", _NEVER_MORE),
            ("salvage_attribution", "_Joiner.best", _HIGHEST, _HIGHEST.replace("else -1", "else -2"), _NEVER_MORE),
            ("salvage_attribution", "_Joiner.best", _HIGHEST, _HIGHEST.replace("else -1", "else -0"), _NEVER_MORE),
        )
    ),
    *(
        Equivalent(
            "engine/repair/witnesses.py",
            "Witnesses._rows_of",
            _IN_TURN,
            _IN_TURN.replace("[0]", other),
            "the rows are made anew, and are the same",
        )
        for other in ("[1]", "[(-1)]")
    ),
    Equivalent(
        "engine/repair/salvage_output.py",
        "_SegmentWriter.add",
        _BUFFER,
        _BUFFER.replace("stop -", "stop +"),
        "a larger buffer is not filled further",
    ),
    Equivalent(
        "engine/repair/content.py",
        "Content.chunks",
        _PIECE,
        _PIECE.replace("len(piece) - at", "len(piece) + at"),
        "no piece has more than its own bytes",
    ),
    *(
        Equivalent("engine/repair/recover_losses.py", function, old, new, _ONLY_A_HINT)
        for function, old, new in (
            ("LossPlanner.inner", _SHIFTED, "pass"),
            ("LossPlanner.inner", _SHIFTED, _SHIFTED.replace("!=", "==")),
            ("LossPlanner._remove_bytes", "part.shifted = True", "pass"),
            ("LossPlanner._remove_bytes", "part.shifted = True", "part.shifted = False"),
        )
    ),
    *(
        Equivalent(
            "engine/repair/recover_losses.py",
            "LossPlanner._split",
            _TAKEN,
            new,
            "a data file that is there is a segment, and none that is only planned begins inside another one",
        )
        for new in (_TAKEN.replace(" or ", " and "), _TAKEN.replace("FileState.of(path) is not None", "False"))
    ),
    Equivalent(
        "engine/repair/set_partition.py",
        "_Planner._marks",
        'why, loses = f"the {name} {now} becomes {value}", value < now',
        'why, loses = f"the {name} {now} becomes {value}", value <= now',
        "what stays as it is has been passed over",
    ),
    Equivalent(
        "engine/repair/rivals.py",
        "Rivals.only_here",
        _ENDS,
        _ENDS.replace("end > place", "end >= place"),
        "the same place is looked at again, and the next end is taken then",
    ),
    Equivalent(
        "engine/repair/rivals.py",
        "Rivals.only_here",
        "while place < loss.end:",
        "while place < (loss.end) - 1:",
        "no record stands in the last byte",
    ),
    Equivalent(
        "engine/repair/rivals.py",
        "Rivals.settle",
        "if first < stop:",
        "if first <= stop:",
        "of no ids there is but one place, so that nothing is told of it",
    ),
    *(
        Equivalent(
            "engine/repair/rebuild_index.py",
            "IndexPlan._entries",
            old,
            old.replace("None, 0", other),
            "it is told with each span",
        )
        for old in ("following, span, damaged_from = self.begins, None, 0",)
        for other in ("None, 1", "None, (-1)")
    ),
    *(
        Equivalent(
            f"engine/repair/{file}.py",
            "",
            f"{name} = {number}",
            f"{name} = {other}",
            "a limit that was chosen; another one is as good",
        )
        for file, name, number, others in (
            ("rivals", "MOST_COMPARED", "10_000", ("9999", "10001")),
            ("survey", "MAX_PLACES", "100_000", ("99999", "100001")),
            ("planners", "_LIMIT", "64 << 20", ("63 << 20", "65 << 20", "64 << 19", "64 << 21")),
            ("salvage_attribution", "FAR", "1 << 20", ("2 << 20", "1 << 19", "1 << 21")),
            ("salvage_attribution", "PLACES", "16", ("15", "17")),
            ("salvage_control", "PROBED", "4096", ("4095", "4097")),
            ("salvage_output", "SPARE", "1 << 20", ("2 << 20", "1 << 19", "1 << 21")),
            ("salvage_sources", "SECTOR", "4096", ("4095", "4097")),
            ("salvage_fragments", "LARGEST", "1 << 20", ("2 << 20", "1 << 19", "1 << 21")),
            ("salvage_fragments", "MOST", "256 << 20", ("255 << 20", "257 << 20", "256 << 19", "256 << 21")),
        )
        for other in others
    ),
    *(
        Equivalent(
            "engine/repair/recover_losses.py",
            "LossPlanner._longest_proven",
            _LOW_HIGH,
            _LOW_HIGH.replace("stop - 1", other),
            "what reaches as far as what no replica proves, or further, is not proven either",
        )
        for other in ("stop + 1", "stop - 0")
    ),
    *(
        Equivalent(
            "engine/repair/salvage.py", "", "UNLIMITED = 2**63", f"UNLIMITED = {other}", "more than any source has"
        )
        for other in ("2**62", "2**64", "3**63")
    ),
    Equivalent(
        "engine/repair/replicas.py",
        "_listed",
        "if isinstance(found, RecordView):",
        "if False:",
        "a scan finds the record in the same place, at a cost",
    ),
    Equivalent(
        "engine/repair/salvage.py",
        "_Probes._probe",
        "self._probes.clear()  # sources are queried one after the other, so one probe is enough",
        "pass  # sources are queried one after the other, so one probe is enough",
        "what is kept for longer gives the same answers",
    ),
    Equivalent(
        "engine/repair/salvage_attribution.py",
        "_Joiner.best",
        "if at is None or weights[at] < 0:",
        "if False or weights[at] < 0:",
        "there is a run, and so the place of one",
    ),
    Equivalent(
        "engine/repair/replica_records.py",
        "ReplicaRecords.hold",
        "if loss.stop is None:",
        "if False:",
        "behind what reaches to the end of the file no record stands, and without one nobody is asked",
    ),
    *(
        Equivalent(
            "engine/repair/recover_partition.py",
            "_Walk.run",
            _OVERLAPS,
            _OVERLAPS.replace(old, "True"),
            "without a segment in front nothing is expected, or 0, in front of which no segment begins",
        )
        for old in ("before is not None", "self.expected is not None")
    ),
    Equivalent(
        "engine/repair/recover_control.py",
        "_Mender._was_longer",
        "if held < stated <= MAX_PARTITIONS and (stated ^ held).bit_count() > 1:",
        "if held <= stated <= MAX_PARTITIONS and (stated ^ held).bit_count() > 1:",
        "the same number has no bit that is another",
    ),
    Equivalent(
        "engine/repair/rivals.py",
        "Rivals.settle",
        "for part in self.context.segments if loss.disputed and self.replicas else ():",
        "for part in self.context.segments if loss.disputed and True else ():",
        "without a replica nothing is proven, so that nothing is settled",
    ),
    Equivalent(
        "engine/repair/salvage_attribution.py",
        "_Joiner.best",
        "if at is None or weights[at] < 0:",
        "if at is None or weights[at] <= 0:",
        "a run has a record at least, and weighs more than 0 with it",
    ),
    Equivalent(
        "engine/repair/salvage_sources.py",
        "SalvageSource.read_into",
        "while done < wanted:",
        "while done <= wanted:",
        "nothing more is asked for, nothing comes, and that ends it",
    ),
    *(
        Equivalent(
            "engine/repair/recover_losses.py",
            "LossPlanner._split",
            "behind.shifted = True",
            new,
            "an index that lies where the new one will be is only ever a hint, which the records must bear out",
        )
        for new in ("pass", "behind.shifted = False")
    ),
    *(
        Equivalent(
            "engine/repair/salvage_fragments.py",
            "join",
            _WHOLE,
            new,
            "pieces that are not all there are shorter than the record that they would make, which is refused",
        )
        for new in (
            "if rest >= (floor) - 1 and seam - end <= len(head):",
            "if rest >= floor or seam - end <= len(head):",
            "if rest >= floor and seam - end <= (len(head)) + 1:",
            "if True and seam - end <= len(head):",
            "if rest >= floor and True:",
        )
    ),
    *(
        Equivalent("engine/repair/salvage_selection.py", "_Selector._differing", _DIFFER[0], new, _DIFFER[1])
        for new in (
            "if False:",
            *(
                _DIFFER[0].replace("np.array_equal(a - a[0], b - b[0])", other)
                for other in (
                    "True",
                    *(f"np.array_equal({one}, b - b[0])" for one in ("a + a[0]", "a - a[1]", "a - a[(-1)]")),
                    *(f"np.array_equal(a - a[0], {one})" for one in ("b + b[0]", "b - b[1]", "b - b[(-1)]")),
                )
            ),
        )
    ),
    Equivalent(
        "engine/repair/salvage_attribution.py",
        "_Joiner.best",
        _BEST,
        _BEST.replace("else -1", "else -2"),
        "any weight below 0 says that no chain ends there",
    ),
)

_COMPARISON = "engine/log/index_comparison.py"
_PROVEN_BELOW = "by_index = proven.with_data if too_long and segment == proven.index_with_data else 0"
_GOOD = "good = rising & (stored >= tail.offset) & (stored < size)"
_FURTHER = (
    "if found is not None and found.offset > bounds[-1].offset and found.transaction_id > bounds[-1].transaction_id:"
)
_LEADS_INTO_THE_FILE = (
    "low, high = (middle + 1, high) if 0 <= entry(middle) <= size - RECORD_OVERHEAD else (low, middle)"
)
_NO_ENTRY = "if transaction_id < self.begins or count <= 0 or transaction_id - self.begins > _FARTHEST:"
_NO_BYTES = "if transaction_id < self.begins or transaction_id - self.begins > _FARTHEST:"
_LOG = (
    Equivalent(
        "engine/log/index.py",
        "IndexReader.entries",
        _NO_ENTRY,
        _NO_ENTRY.replace("count <= 0", "count < 0"),
        "no entry is read where none is asked for",
    ),
    *(
        Equivalent(
            "engine/log/index.py",
            function,
            old,
            old.replace(bound, other),
            "no file has as many entries",
        )
        for function, old in (("IndexReader.entries", _NO_ENTRY), ("IndexReader.read_into", _NO_BYTES))
        for bound, other in (("> _FARTHEST", ">= _FARTHEST"), ("_FARTHEST", "(_FARTHEST) + 1"))
    ),
    Equivalent(
        "engine/log/index.py",
        "IndexReader.entry",
        "found = self.entries(transaction_id, 1)",
        "found = self.entries(transaction_id, 2)",
        "only the first is looked at",
    ),
    Equivalent(
        "engine/log/view.py",
        "view_partition",
        "elif state is not None or places.still_named(path / name):",
        "elif False or places.still_named(path / name):",
        "what is a regular file has a name, and asking for it once more costs a request",
    ),
    Equivalent(
        "engine/log/evidence.py",
        "written_entries",
        "start = max(0, count - chunk)",
        "start = min(0, count - chunk)",
        "whoever reads from the beginning finds the same end, and reads more",
    ),
    *(
        Equivalent(
            "engine/log/evidence.py",
            "_leads_here",
            _LEADS_INTO_THE_FILE,
            _LEADS_INTO_THE_FILE.replace("0 <=", new),
            "no record begins in a header",
        )
        for new in ("0 <", "1 <=")
    ),
    Equivalent(
        "engine/log/parts.py",
        "cut",
        _FURTHER,
        _FURTHER.replace("found.offset >", "found.offset >="),
        "at one place stands one record, with one id",
    ),
    Equivalent(
        "engine/log/index.py",
        "IndexReader.entry",
        "return int(found[0]) if len(found) else None",
        "return int(found[(-1)]) if len(found) else None",
        "it is the only one",
    ),
    Equivalent(
        "engine/log/evidence.py",
        "evidence",
        "if segment.entries and first + segment.entries > without_data:",
        "if segment.entries and True:",
        "an index that lists less proves less, which the next lines say again",
    ),
    Equivalent(
        "engine/log/evidence.py",
        "_leads_here",
        "if offset < HEADER_SIZE:",
        "if offset <= HEADER_SIZE:",
        "the record behind the header is the first, and the first is not asked for",
    ),
    Equivalent(
        "engine/log/assess.py",
        "joints",
        "if expected is not None and one.begins > expected:",
        "if expected is not None and one.begins >= expected:",
        "where it begins as expected the lower of the two is what it was",
    ),
    Equivalent(
        "engine/log/parts.py",
        "cut",
        _FURTHER,
        _FURTHER.replace("bounds[-1].offset", "(bounds[-1].offset) + 1"),
        "two records do not begin one byte apart",
    ),
    Equivalent(
        "engine/log/parts.py",
        "cut",
        _FURTHER,
        _FURTHER.replace("bounds[-1].transaction_id", "bounds[-0].transaction_id"),
        "shares rise, so that what is above the first of them is above the last",
    ),
    *(
        Equivalent(
            "engine/log/assess.py", name, old, old.replace("= 0", "= (-1)"), "an id that is expected is 0 or more"
        )
        for name, old in (
            (
                "joints",
                "def joints(stretches: Iterable[Stretch], expected: int | None, reached: int = 0) -> Iterator[Joint]:",
            ),
            ("joint", "def joint(before: Stretch, behind: Stretch, reached: int = 0) -> Gap | Overlap | None:"),
        )
    ),
    Equivalent(
        "engine/log/evidence.py",
        "_leads_here.entry",
        "return int(INDEX_ENTRY.struct.unpack(raw)[0]) if len(raw) == ENTRY_SIZE else -1",
        "return int(INDEX_ENTRY.struct.unpack(raw)[0]) if len(raw) == ENTRY_SIZE else -2",
        "either is in front of every file",
    ),
    Equivalent(
        "engine/log/evidence.py",
        "_leads_here",
        "if low < 3:",
        "if low < 2:",
        "of two records one length is known, and one length equals itself",
    ),
    Equivalent(
        "engine/log/view.py",
        "_control_bytes",
        "limit = Layout.RELEASED.file_size(MAX_PARTITIONS) + 1",
        "limit = Layout.RELEASED.file_size(MAX_PARTITIONS) + 2",
        "however much more is read, it is more than may be there",
    ),
    *(
        Equivalent(
            "engine/log/index.py",
            "last_proven",
            "number = max(1, count + 1 - back)",
            f"number = max(1, count {other} - back)",
            "the entries above the first one that proves its record are searched all the same",
        )
        for other in ("+ 0", "- 1", "+ 2")
    ),
    Equivalent(
        "engine/log/assess.py",
        "joints",
        "if gap and expected is not None:",
        "if gap and True:",
        "there is a gap only where an id is expected",
    ),
    Equivalent(
        "engine/log/assess.py",
        "end",
        "following = max(last, -1 if mark is None else mark) + 1",
        "following = max(last, -2 if mark is None else mark) + 1",
        "the last id is -1 or more",
    ),
    Equivalent(
        "engine/log/assess.py",
        "end",
        _PROVEN_BELOW,
        _PROVEN_BELOW.replace("else 0", "else (-1)"),
        "it counts only where it is more than what the names prove, which is 0 or more",
    ),
    Equivalent(
        _COMPARISON,
        "IndexComparison.__init__",
        "self._buffer: Offsets = np.empty(0, np.int64)",
        "self._buffer: Offsets = np.empty(1, np.int64)",
        "it grows to what is asked for",
    ),
    Equivalent(
        _COMPARISON,
        "IndexComparison._read_into_buffer",
        "if len(self._buffer) < count:",
        "if len(self._buffer) <= count:",
        "a new buffer of the same size",
    ),
    Equivalent(
        _COMPARISON,
        "IndexComparison._read_into_buffer",
        'return stored.byteswap(inplace=True) if sys.byteorder == "little" else stored',
        'return stored.byteswap(inplace=False) if sys.byteorder == "little" else stored',
        "the same numbers, in a copy",
    ),
    Equivalent(
        _COMPARISON,
        "IndexComparison.explained_by_tail",
        _GOOD,
        _GOOD.replace("tail.offset)", "(tail.offset) - 1)"),
        "the first entry is the tail's offset, and those behind it rise by more than 1",
    ),
    Equivalent(
        _COMPARISON,
        "_end_inside",
        "inside = np.flatnonzero(reader.entries(start, end - start) < size)",
        "inside = np.flatnonzero(reader.entries(start, end + start) < size)",
        "what stands behind has been looked at, and none of it leads inside",
    ),
)

_RELEASED = "engine/inspect/released_start.py"
_PROBED = "header = Probe(source, source.size(), MAX_DATA_LENGTH, SearchBudget(2**63)).header(offset)"
_READ_SHORT = "if position < HEADER_SIZE or entries.read_into(position, memoryview(raw)) < ENTRY_SIZE:"
_MADE = "_paths: tuple[PurePath, PurePath] | None = field(default=None, init=False, repr=False, compare=False)"
_WORK_AHEAD = "while waiting and (pool is None or segments > _AHEAD * self._threads):"
_FAR_APART = "if stop - start.offset > 4 * CHUNK:"
_IN_FRONT = "if not _meets(span, (0, max(1, first.first))):"
_WHOLE_SCOPES = "whole = [scope.storage for scope in scopes if scope.whole and scope.storage is not None]"
_LATER = "return segment[0] < self._manifest.header.num_partitions and segment[1] > ends.get(segment[0], -1)"
_AT_THE_STOP = "of what begins there nothing is taken"
_LAST_NAME = "ends[segment[0]] = max(segment[1], ends.get(segment[0], -1))"
_FURTHER_CLAIM = "if claimed is not None and claimed > stop:"
_SAME_ID = 'if int.from_bytes(raw, signed=True) == number and len(raw) == RECORD_HEADER.size_of("transaction_id"):'
_THREADS = "self._threads = threads if self._total >= _WORTH_THREADS and executor is None else 1"
_CLAIMED = "probe = Probe(self._scan.source, self._size, MAX_DATA_LENGTH, SearchBudget(2**63))"
_IN_ORDER = (
    'return tuple(sorted(findings, key=lambda one: (not str(one.path).endswith(".seg"), one.offset or 0, one.code)))'
)
_NONE_GONE = "if not gone and not tuple(run.ends(reports, run.context, run.proven())):"
_WHOLE_STATE = "return disk.read_range(path, 0, 1 if state is None else state.size)"
_NEAR_BEGINNING = "if reader is None or wanted <= HEADER_SIZE:"
_INSPECT = (
    Equivalent(
        "engine/inspect/verify.py",
        "_Verification.run",
        "pool.shutdown(wait=True, cancel_futures=True)",
        "pool.shutdown(wait=True, cancel_futures=False)",
        "the limits are stopped by then, so that what has not begun ends when it begins",
    ),
    Equivalent(
        "engine/inspect/digests.py",
        "HashingSource.read_into",
        "if self._done < offset <= min(self._done + _NEAR, self._length):",
        "if self._done < offset < min(self._done + _NEAR, self._length):",
        "what is not hashed now is read for it in the end",
    ),
    Equivalent(
        "engine/inspect/resume.py",
        "refuse_inside",
        "if not places.on_this_machine(directory):",
        "if False:",
        "no file lies below what a URL or a backup would be as a path",
    ),
    Equivalent(
        "engine/inspect/dump_chunks.py",
        "ChunkReader._chunk_before",
        "return self._proven(reader.first_from(wanted + 1) - 1, stop)",
        "return self._proven(reader.first_from(wanted + 2) - 1, stop)",
        "a piece begins a byte further on, and has the same records",
    ),
    Equivalent(
        "engine/inspect/segment_checks.py",
        "SegmentCheck._open",
        "elif self.index_state is None and (kind := places.special(job.index_path)) is not None:",
        "elif True and (kind := places.special(job.index_path)) is not None:",
        "a file whose state is known is a regular one, and nothing special",
    ),
    Equivalent(
        "engine/inspect/segment_checks.py",
        "SegmentCheck.run",
        "fraction = None if options.quick else options.sample",
        "fraction = None if False else options.sample",
        "a quick check has no sample",
    ),
    *(
        Equivalent(
            "engine/inspect/record_checks.py",
            "",
            "MAX_LISTED = 10_000",
            f"MAX_LISTED = {other}",
            "any bound will do for a list that nobody reads to its end: what is beyond it is counted",
        )
        for other in (9999, 10001)
    ),
    Equivalent(
        "engine/inspect/segment_job.py",
        "SegmentReport",
        "torn: bool = False",
        "torn: bool = True",
        "it is asked only where an index is too long, and whoever tells that tells this as well",
    ),
    Equivalent(
        "engine/inspect/unread_losses.py",
        "losses_in_front",
        "if not run.look_again():",
        "if False:",
        "a directory that is gone is looked at a few times more, in vain",
    ),
    *(
        Equivalent(
            "engine/inspect/unread_losses.py",
            "losses_in_front",
            _IN_FRONT,
            _IN_FRONT.replace(*change),
            "the first segment is looked at, and what is not wanted is left out afterwards",
        )
        for change in (("(0,", "((-1),"), ("max(1", "max(2"))
    ),
    Equivalent(
        "engine/inspect/unread_losses.py",
        "_at_the_end",
        "for attempt in range(ATTEMPTS + 1):",
        "for attempt in range(ATTEMPTS + 2):",
        "the attempt in front of it is the last",
    ),
    Equivalent(
        "engine/inspect/unread_losses.py",
        "_at_the_end",
        "gone = any(one.gone for one in reports)",
        "gone = all(one.gone for one in reports)",
        "there is one at most; without any the directory is looked at once more",
    ),
    *(
        Equivalent("engine/inspect/vouching.py", function, old, new, reason)
        for function, old, new, reason in (
            (
                "Vouching.__init__",
                _WHOLE_SCOPES,
                _WHOLE_SCOPES.replace("scope.storage is not None", "True"),
                "what is looked at as a whole is a storage directory",
            ),
            (
                "Vouching._came_later",
                _LATER,
                _LATER.replace("-1", "-2"),
                "the first id in a name is 0 or more",
            ),
            (
                "Vouching._make",
                'format_time(disk.now_ms()) or "",',
                "format_time(disk.now_ms()) or False,",
                "the present time can be written",
            ),
        )
    ),
    Equivalent(
        "engine/inspect/unread_losses.py",
        "_gap_in_front",
        "return next((one for one in joints(stretches[:1], 0) if isinstance(one, Gap)), None)",
        "return next((one for one in joints(stretches[:1], (-1)) if isinstance(one, Gap)), None)",
        "no segment begins in front of 0",
    ),
    Equivalent(
        "engine/inspect/vouching.py",
        "Vouching._load",
        "self._manifest = decode_manifest(disk.read_range(path, 0, min(state.size, _LIMIT)))",
        "self._manifest = decode_manifest(disk.read_range(path, 0, max(state.size, _LIMIT)))",
        "nothing is read behind the end of a file, and no manifest is larger than the limit",
    ),
    *(
        Equivalent(
            "engine/inspect/live.py",
            "",
            old,
            new,
            "any few looks will do: behind them what is new counts as being written",
        )
        for old, new in (
            ("LOOKS_WHEN_HELD = 4", "LOOKS_WHEN_HELD = 3"),
            ("LOOKS_WHEN_HELD = 4", "LOOKS_WHEN_HELD = 5"),
            ("LOOKS = 40", "LOOKS = 39"),
            ("LOOKS = 40", "LOOKS = 41"),
        )
    ),
    Equivalent(
        "engine/inspect/dump_chunks.py",
        "ChunkReader._subdivide",
        "continue",
        "break",
        "behind damage one piece is longer, and has the same records",
    ),
    Equivalent(
        "engine/inspect/signing.py",
        "SigningKey",
        "private: Ed25519PrivateKey | None = field(default=None, repr=False)",
        "private: Ed25519PrivateKey | None = field(default=None, repr=True)",
        "the key's own representation tells nothing of it either",
    ),
    *(
        Equivalent(
            "engine/inspect/segment_checks.py",
            "SegmentCheck.__init__",
            "self.size = 0",
            f"self.size = {other}",
            "it is opened before anybody asks",
        )
        for other in ("1", "(-1)")
    ),
    *(
        Equivalent(
            "engine/inspect/dump_chunks.py",
            "ChunkReader._chunk_before",
            _NEAR_BEGINNING,
            _NEAR_BEGINNING.replace(*change),
            "where a piece begins a little further in front it holds the same records",
        )
        for change in (("<= HEADER_SIZE", "<= (HEADER_SIZE) + 1"), ("<=", "<"))
    ),
    Equivalent(
        "engine/inspect/digests.py",
        "HashingSource.read_into",
        "if offset <= self._done < offset + count:",
        "if offset <= self._done <= offset + count:",
        "where nothing was read that is not hashed yet nothing is hashed",
    ),
    *(
        Equivalent(
            "engine/inspect/resume.py",
            "_read_whole",
            _WHOLE_STATE,
            _WHOLE_STATE.replace("1 if", f"{other} if"),
            "there is no file to read, however much is asked for",
        )
        for other in (0, 2)
    ),
    Equivalent(
        "engine/inspect/unread_losses.py",
        "_at_the_end",
        _NONE_GONE,
        "if False:",
        "it saves a second look: nothing that is there is asked for more by it",
    ),
    *(
        Equivalent(
            "engine/inspect/segment_job.py",
            "SegmentJob",
            _MADE,
            _MADE.replace(f"{name}=False", f"{name}=True"),
            "it is made of the other fields, and shown to programmers only",
        )
        for name in ("repr", "compare")
    ),
    *(
        Equivalent(
            "engine/inspect/verify.py",
            "_Verification._own_findings",
            _WORK_AHEAD,
            _WORK_AHEAD.replace(old, new),
            "how many segments are begun before the first is reported",
        )
        for old, new in (
            ("> _AHEAD", ">= _AHEAD"),
            ("_AHEAD * self._threads", "(_AHEAD * self._threads) + 1"),
            ("segments > _AHEAD * self._threads", "False"),
        )
    ),
    Equivalent(
        "engine/inspect/verify.py",
        "_Verification.__init__",
        _THREADS,
        _THREADS.replace("else 1", "else 0"),
        "without a pool nobody asks how many",
    ),
    *(
        Equivalent(
            "engine/inspect/partition_runs.py",
            "PartitionRun.__init__",
            "0,",
            other,
            "the id is that of a template, which every job replaces",
        )
        for other in ("1,", "(-1),")
    ),
    Equivalent(
        "engine/inspect/unread_losses.py",
        "losses_behind",
        "if run.whole and _meets(span, *given_up):",
        "if run.whole and True:",
        "what is not wanted is left out afterwards",
    ),
    *(
        Equivalent("engine/inspect/dump_chunks.py", "ChunkReader._subdivide", "break", "continue", _AT_THE_STOP, nth)
        for nth in (1, 2)
    ),
    *(
        Equivalent("engine/inspect/dump_chunks.py", "ChunkReader._subdivide", f"if {old}", f"if {new}", _AT_THE_STOP)
        for old, new in (
            ("run.offset >= stop:", "run.offset > stop:"),
            ("run.start >= stop:", "run.start > stop:"),
            ("run.start >= stop:", "False:"),
            ("run.offset >= stop:", "run.offset >= (stop) - 1:"),
            ("run.start >= stop:", "run.start >= (stop) - 1:"),
        )
    ),
    *(
        Equivalent(
            "engine/inspect/unread_losses.py",
            "losses_behind",
            f"first = finding.{name} or 0",
            f"first = finding.{name} or False",
            "False counts as 0",
        )
        for name in ("segment", "transaction_id")
    ),
    Equivalent(
        "engine/inspect/dump_index.py",
        "entry_findings",
        _SAME_ID,
        _SAME_ID.replace("signed=True", "signed=False"),
        "no id that is looked for is negative",
    ),
    Equivalent(
        "engine/inspect/partial.py",
        "PartialScan._end",
        _FURTHER_CLAIM,
        _FURTHER_CLAIM.replace("claimed > stop", "claimed >= stop"),
        "the same bytes once more",
    ),
    *(
        Equivalent(
            "engine/inspect/vouching.py",
            "Vouching._ends",
            _LAST_NAME,
            _LAST_NAME.replace("-1", other),
            "the first id in a name is 0 or more",
        )
        for other in ("-0", "-2")
    ),
    Equivalent(
        "engine/inspect/unread_losses.py",
        "_at_the_end",
        "if attempt == ATTEMPTS or not run.look_again():",
        "if attempt == ATTEMPTS or False:",
        "a directory that is gone is looked at a few times more, in vain",
    ),
    *(
        Equivalent(
            "engine/inspect/dump_chunks.py",
            "ChunkReader._subdivide",
            _FAR_APART,
            _FAR_APART.replace(old, new),
            "pieces of one size or of another hold the same records",
        )
        for old, new in ((">", ">="), ("4 * CHUNK", "(4 * CHUNK) + 1"), ("4", "3"), ("4", "5"), ("*", "//"), ("-", "+"))
    ),
    *(
        Equivalent(
            "engine/inspect/segment_checks.py",
            "in_order",
            _IN_ORDER,
            _IN_ORDER.replace("offset or 0", f"offset or {other}"),
            reason,
        )
        for other, reason in (("False", "False counts as 0"), ("(-1)", "no finding but one of the whole file is at 0"))
    ),
    *(
        Equivalent(
            "engine/inspect/partial.py",
            "PartialScan._claimed_end",
            _CLAIMED,
            _CLAIMED.replace("2**63", other),
            "a look at one header asks for no budget",
        )
        for other in ("1**63", "3**63", "2**62", "2**64")
    ),
    Equivalent(
        "engine/inspect/partial.py",
        "PartialScan.run",
        "if rising is not None and scan.comparison is not None:",
        "if rising is not None and True:",
        "where there is an index there is a comparison with it",
    ),
    Equivalent(
        "engine/inspect/digests.py",
        "HashingSource._read_to",
        "buffer = memoryview(bytearray(min(_CHUNK, stop - self._done)))",
        "buffer = memoryview(bytearray(max(_CHUNK, stop - self._done)))",
        "what is read beyond the end that was asked for is hashed in its turn, or cut away",
    ),
    Equivalent(
        "engine/inspect/live.py",
        "Watch._age",
        "return time.time() - max(times, default=0) / 1e9",
        "return time.time() - max(times, default=1) / 1e9",
        "a billionth of a second of half a century",
    ),
    Equivalent(
        "engine/inspect/digests.py",
        "HashingSource.read_into",
        "if self._done < offset <= min(self._done + _NEAR, self._length):",
        "if self._done <= offset <= min(self._done + _NEAR, self._length):",
        "up to where it is hashed already there is nothing to read",
    ),
    Equivalent(
        "engine/inspect/segment_checks.py",
        "SegmentCheck.finish_parts",
        "break",
        "continue",
        "at the end of the file there is nothing left to read",
    ),
    *(
        Equivalent(
            _RELEASED,
            "_PartitionStart._check_length",
            _PROBED,
            _PROBED.replace("2**63", other),
            "a look at one header asks for no budget",
        )
        for other in ("1**63", "3**63", "2**62", "2**64")
    ),
    Equivalent(
        _RELEASED,
        "_Start._in_force",
        "current = max(valid, key=lambda one: one.sequence or 0)",
        "current = max(valid, key=lambda one: one.sequence or False)",
        "False counts as 0",
    ),
    Equivalent(
        _RELEASED,
        "_PartitionStart._orphans",
        "if segment.data is None and segment.index is not None and segment.index.size:",
        "if segment.data is None and True and segment.index.size:",
        "a segment without data has an index",
    ),
    Equivalent(
        _RELEASED,
        "_PartitionStart._recover",
        "if highest > self.mark:",
        "if highest >= self.mark:",
        "the mark is no less than the checkpoint in front of it",
    ),
    Equivalent(
        _RELEASED,
        "_PartitionStart._entry",
        _READ_SHORT,
        _READ_SHORT.replace("< HEADER_SIZE", "< (HEADER_SIZE) - 1"),
        "entries are 8 bytes apart from the header's end on",
    ),
    Equivalent(
        _RELEASED,
        "_PartitionStart._entry",
        _READ_SHORT,
        _READ_SHORT.replace("< ENTRY_SIZE", "< (ENTRY_SIZE) - 1"),
        "no entry that the file has only a part of is asked for",
    ),
    Equivalent(
        _RELEASED,
        "_PartitionStart._scan",
        "if _position(number, begins) < 0:  # of the first entry that it writes, or of the index's end",
        "if _position(number, begins) < -1:  # of the first entry that it writes, or of the index's end",
        "entries are 8 bytes apart, and so are their distances from the file's beginning",
    ),
)

_WEIGHTS = 'SparkExecutor(session).map(describe_worker, range(count), weights=[1 << 30] * count, what="start workers")'
_ALL_ALIKE = "weights that are all alike make the same packets, and nobody listens to this progress"
_ONLY_ONE = "there is one"
_BEHIND = "behind = packet[place + 1] if place + 1 < len(packet) else None"
_ONE_BATCH = "joined = parts[0] if len(parts) == 1 else np.concatenate(parts)"
_BEGINS = "if header is None or header.first_transaction_id == job.first:"
_BUILT = "one for one in verify([built], VerifyOptions(quick=True, exclusive=True)) if isinstance(one, Finding)"
_KNOWN = "and known.transaction_id > (-1 if found is None else found.transaction_id)"
_QUERIED = "elif last is not None and anchor.identified and last.transaction_id == anchor.transaction_id:"
_FIRST_INTACT = "if self._history.at_or_before(partition, middle, start).transaction_id > start.transaction_id:"
_LITTLE = 'first, second = (0, 1) if sys.byteorder == "big" else (1, 0)'
_WRAPPED = "return [(0, 0, p, (t + 2**31) % 2**32 - 2**31) for p, t in zip(partitions, ids, strict=True)]"
_HEX_DIGITS = "places = np.arange(1 << 16)[:, np.newaxis] >> np.array([12, 8, 4, 0])"
_DECIMALS = "return wanted.precision - wanted.scale >= _DIGITS.get(kind.simpleString(), wanted.precision + 1)"
_MARK_OF_NODE = "lost = -1 if reading.local_low_water_mark is None else reading.local_low_water_mark"
_SPARK = (
    Equivalent(
        "engine/spark/record_arrays.py",
        "Gathering.add",
        "size = 0 if batch.data is None else len(batch.data)",
        "size = (-1) if batch.data is None else len(batch.data)",
        "of one gathering all batches have data or none, and without any their bytes are no bound",
    ),
    Equivalent(
        "engine/spark/record_plan.py",
        "record_parts",
        "if missing is not None and run.jobs:",
        "if True and run.jobs:",
        "whoever has segments has a task that looks for what is missing",
    ),
    Equivalent(
        "engine/spark/stream_reader.py",
        "WaltzStreamReader._check_present",
        _QUERIED,
        _QUERIED.replace("last is not None", "True"),
        "without a last one what was read is gone, which is said in front of it",
    ),
    Equivalent(
        "engine/spark/stream_reader.py",
        "WaltzStreamReader._end_within",
        _FIRST_INTACT,
        _FIRST_INTACT.replace("start.transaction_id:", "(start.transaction_id) + 1:"),
        "the one behind the start is known not to be intact",
    ),
    Equivalent(
        "engine/spark/stream_places.py",
        "from_proven",
        "if found is None or found.offset is None:",
        "if found is None or False:",
        "what is proven stands somewhere",
    ),
    *(
        Equivalent(
            "engine/spark/record_arrays.py",
            "_request_ids",
            _LITTLE,
            _LITTLE.replace("(0, 1)", new),
            "of machines with the other order of bytes, of which there are none here",
        )
        for new in ("(1, 1)", "((-1), 1)", "(0, 2)", "(0, 0)")
    ),
    Equivalent(
        "engine/spark/run_writing.py",
        "_request_ids",
        _WRAPPED,
        _WRAPPED.replace("t +", "t -"),
        "2**31 more or less is the same of 2**32",
    ),
    Equivalent(
        "engine/spark/stream_reader.py",
        "",
        "ADMISSION = False",
        "ADMISSION = True",
        "of PySpark 4.1, and there is a later one here",
    ),
    Equivalent(
        "engine/spark/wanted_types.py",
        "handed_on",
        "if batch.schema.equals(schema):",
        "if False:",
        "the same columns under the same names and types",
    ),
    Equivalent(
        "engine/spark/wanted_types.py",
        "_cast",
        "lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)",
        "lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=True)",
        "where no null is left nothing has to be copied",
    ),
    Equivalent(
        "engine/spark/directory_views.py",
        "read_view",
        "if any(isinstance(item, (PartitionTask, ChunkTask)) for item in items):",
        "if all(isinstance(item, (PartitionTask, ChunkTask)) for item in items):",
        "whichever kernel checks the records says the same of them",
    ),
    Equivalent(
        "engine/spark/shipping.py",
        "write_archive",
        "entry = zipfile.ZipInfo(str(path.relative_to(root())), (1980, 1, 1, 0, 0, 0))",
        "entry = zipfile.ZipInfo(str(path.relative_to(root())), (1980, 1, 1, 0, 0, 1))",
        "an archive has every other second",
    ),
    Equivalent(
        "engine/spark/writer.py",
        "check_columns",
        "if sorted(names) != sorted(_REQUEST_ID) or any(one.dataType.simpleString() not in _WHOLE for one in found):"
        "  # type: ignore[attr-defined]",
        "if sorted(names) != list(_REQUEST_ID) or any(one.dataType.simpleString() not in _WHOLE for one in found):"
        "  # type: ignore[attr-defined]",
        "they are named in this order",
    ),
    *(
        Equivalent(
            "engine/spark/finding_tasks.py",
            "ChunkTask._joins",
            "if any(end(row, proven, context.local_low_water_mark)):",
            "if all(end(row, proven, context.local_low_water_mark)):",
            "where nothing is missing more is looked at, and still nothing is",
            nth,
        )
        for nth in (1, 2)
    ),
    *(
        Equivalent(
            "engine/spark/segment_parts.py",
            "",
            "_NEAR = (64, 8, 1)",
            f"_NEAR = {new}",
            "whichever record in front is taken, those from there lead up to the place or do not",
        )
        for new in ("(63, 8, 1)", "(65, 8, 1)", "(64, 7, 1)", "(64, 9, 1)")
    ),
    *(
        Equivalent(
            "engine/spark/record_rows.py",
            "read_packet",
            _BEHIND,
            _BEHIND.replace(old, new),
            "the header of the segment behind is read once more, and says the same",
        )
        for old, new in (
            ("place + 1]", "place + 0]"),
            ("place + 1]", "place - 1]"),
            ("if place + 1 < len(packet)", "if False"),
            ("+ 1 <", "+ 2 <"),
            ("len(packet)", "(len(packet)) - 1"),
        )
    ),
    *(
        Equivalent(
            "engine/spark/record_arrays.py",
            "_Joined.__getattr__",
            _ONE_BATCH,
            _ONE_BATCH.replace(old, new),
            "a copy of the only one",
        )
        for old, new in (("len(parts) == 1", "False"), ("== 1", "== 0"), ("[0]", "[(-1)]"))
    ),
    *(
        Equivalent(
            "engine/spark/record_arrays.py",
            "_hex",
            "offsets = np.arange(0, 8 * rows + 1, 8, dtype=np.int32)",
            f"offsets = np.arange(0, {new}, 8, dtype=np.int32)",
            "what stands behind the last offset is not looked at",
        )
        for new in ("9 * rows + 1", "8 * rows + 2")
    ),
    Equivalent(
        "engine/spark/record_arrays.py",
        "_request_ids",
        "halves = [np.ascontiguousarray(word).view(np.int32).reshape(-1, 2) for word in (high, low)]",
        "halves = [np.ascontiguousarray(word).view(np.int32).reshape(-2, 2) for word in (high, low)]",
        "any negative number stands for what is left",
    ),
    *(
        Equivalent(
            "engine/spark/stream_places.py",
            "PartitionPlaces._in_segment",
            _KNOWN,
            _KNOWN.replace(old, new),
            "the same record is looked at, or one more is read; a record that stands somewhere has an id from 0 on",
        )
        for old, new in ((">", ">="), ("-1", "-0"), ("-1", "-2"))
    ),
    *(
        Equivalent(
            "engine/spark/stream_directory.py",
            "DirectoryHistory._ranges",
            f"{old},",
            f"{old.partition('=')[0]}={new},",
            "stands in for what each range says itself",
        )
        for old, *others in (
            ("segment=0", "1", "(-1)"),
            ("first=0", "1", "(-1)"),
            ("last=-1", "-0", "-2"),
            ("start_id=0", "1", "(-1)"),
        )
        for new in others
    ),
    *(
        Equivalent(
            "engine/inspect/segment_checks.py",
            "begins_with",
            _BEGINS,
            new,
            "the check says the same of it, and reads more",
        )
        for new in ("if header is None or False:", "if False:")
    ),
    Equivalent(
        "engine/spark/spark_executor.py",
        "_make_imports_absolute",
        "if all(os.path.isabs(one) for one in sys.path if one):",
        "if False:",
        "what is absolute stays as it is",
    ),
    Equivalent(
        "engine/spark/cluster_history.py",
        "_anchor",
        "return anchor_of(records[0])",
        "return anchor_of(records[(-1)])",
        _ONLY_ONE,
    ),
    *(
        Equivalent(
            "engine/spark/writer.py",
            "StorageWriter._check",
            _BUILT,
            _BUILT.replace(f"{name}=True", f"{name}=False"),
            "the tasks have read their records back, and nobody else knows the place: it only takes longer",
        )
        for name in ("quick", "exclusive")
    ),
    *(
        Equivalent(
            "engine/spark/table_files.py",
            "_worded",
            "options = VerifyOptions(partitions=partitions or None)",
            f"options = VerifyOptions(partitions={new})",
            "more is looked at than is asked for",
        )
        for new in ("False or None", "partitions and None")
    ),
    *(
        Equivalent(
            "engine/spark/stream_reader.py",
            "WaltzStreamReader._row_limit",
            f"if ADMISSION and isinstance(limit, {name}):",
            f"if True and isinstance(limit, {name}):",
            "with PySpark 4.2 and later it is; with 4.1 the name is not there, and no stream begins",
        )
        for name in ("ReadMaxRows", "ReadAllAvailable")
    ),
    *(
        Equivalent("engine/spark/handshake.py", "check_workers", _WEIGHTS, _WEIGHTS.replace("1 << 30", new), _ALL_ALIKE)
        for new in ("1 >> 30", "1 << 29", "1 << 31", "0 << 30", "2 << 30")
    ),
    *(
        Equivalent(
            "engine/spark/handshake.py",
            "describe_worker",
            "kernels.choose(1 << 30)  # the compiled kernel, while nobody waits for it",
            f"kernels.choose({new})  # the compiled kernel, while nobody waits for it",
            "whenever the compiled kernel is loaded, it is there when it is needed",
        )
        for new in ("2 << 30", "1 << 31", "1 << 29", "1 >> 30", "0 << 30")
    ),
    *(
        Equivalent(
            "engine/spark/progress_messages.py",
            "_own_address",
            "probe.connect((host, 9))  # sends nothing: it only chooses the way",
            f"probe.connect((host, {port}))  # sends nothing: it only chooses the way",
            "the way to a machine does not depend on the port",
        )
        for port in (8, 10)
    ),
    Equivalent(
        "engine/spark/progress_messages.py",
        "Receiver.done",
        "data = self._socket.recv(_MESSAGE.size + 1)",
        "data = self._socket.recv(_MESSAGE.size + 2)",
        "one byte more than a message has is enough to tell a longer one",
    ),
    Equivalent(
        "engine/spark/progress_messages.py",
        "Receiver.done",
        "self._done[packet] = max(amount, self._done.get(packet, 0))",
        "self._done[packet] = max(amount, self._done.get(packet, (-1)))",
        "an amount is not negative",
    ),
    *(
        Equivalent(
            "engine/spark/spark_executor.py",
            "SparkExecutor.run",
            "raise self._explain(failed[0]) from failed[0]",
            f"raise self._explain({one}) from {other}",
            _ONLY_ONE,
        )
        for one, other in (("failed[(-1)]", "failed[0]"), ("failed[0]", "failed[(-1)]"))
    ),
    Equivalent(
        "engine/spark/spark_executor.py", "SparkExecutor.run", "return found[0]", "return found[(-1)]", _ONLY_ONE
    ),
    Equivalent(
        "engine/spark/spark_executor.py",
        "SparkExecutor.run",
        "thread.join(_PROGRESS_INTERVAL)",
        "pass",
        "it looks more often",
    ),
    Equivalent(
        "engine/spark/stream_places.py",
        "_look",
        "if anchor.offset is None or anchor.offset < HEADER_SIZE or anchor.size is None:",
        "if anchor.offset is None or anchor.offset <= HEADER_SIZE or anchor.size is None:",
        "where a record stood is a hint; without it the index or a scan leads to it",
    ),
    Equivalent(
        "engine/spark/stream_reader.py",
        "WaltzStreamReader._check_present",
        "if behind and anchor.identified and self._options.up_to != INTACT and last is not None:",
        "if True and anchor.identified and self._options.up_to != INTACT and last is not None:",
        "the record is looked at before the batch is planned, and says the same there",
    ),
    *(
        Equivalent(
            "engine/spark/start.py",
            "_quiet_start",
            'error.add_note(kept.read(1 << 16).decode(errors="replace"))',
            f'error.add_note(kept.read({new}).decode(errors="replace"))',
            "more than Java says",
        )
        for new in ("1 << 17", "2 << 16", "1 << 15")
    ),
    Equivalent(
        "engine/spark/stream_directory.py",
        "DirectoryHistory.latest",
        "if mark < last.transaction_id:",
        "if mark <= last.transaction_id:",
        "the last record at or before its own id is looked up, and is that one",
    ),
    Equivalent(
        "engine/spark/stream_directory.py",
        "DirectoryHistory._end",
        "if self._promised(number).proven.required - 1 <= last.transaction_id:",
        "if self._promised(number).proven.required - 1 < last.transaction_id:",
        "the files are looked at a second time, and show the same",
    ),
    Equivalent(
        "engine/spark/writer.py",
        "StorageWriter._finish",
        "present = range(count) if options.assign_all else sorted(joined)",
        "present = range(count) if options.assign_all else list(joined)",
        "any order will do; this one is the same every time",
    ),
    *(
        Equivalent(
            "engine/spark/record_rows.py",
            "_look_behind",
            old,
            old.replace("[]", "None"),
            "there is nothing to tell in either",
        )
        for old in (
            "return []  # a gap or overlap would be of ids that are not wanted",
            "return []  # the task that reads the segment reports it",
        )
    ),
    Equivalent("engine/spark/segment_parts.py", "", "LOOKBACK = 4 << 20", "LOOKBACK = 4 >> 20", _SIZES),
    *(
        Equivalent(
            "engine/spark/segment_parts.py",
            "Range",
            "skip: int = 0",
            f"skip: int = {skip}",
            "nothing begins in a header",
        )
        for skip in (1, "(-1)")
    ),
    *(
        Equivalent(
            "engine/spark/segment_parts.py",
            "_leads",
            "if start is None or not HEADER_SIZE <= start < stop:",
            f"if start is None or not HEADER_SIZE <= {new}:",
            "no record begins in the header's last byte, and one byte in front of the end there is room for none",
        )
        for new in ("(start) + 1 < stop", "start < (stop) - 1")
    ),
    Equivalent(
        "engine/spark/record_arrays.py",
        "_digits",
        _HEX_DIGITS,
        _HEX_DIGITS.replace("<< 16", "<< 17"),
        "behind those of sixteen bits nobody looks",
    ),
    Equivalent(
        "engine/spark/stream_node.py",
        "NodeHistory.latest",
        "low = min(-1 if mark is None else mark for mark in marks)",
        "low = min(-2 if mark is None else mark for mark in marks)",
        "there is no transaction at either, and none in front of them",
    ),
    *(
        Equivalent("engine/spark/stream_node.py", "NodeHistory._fetch", one, one.replace("[0]", "[(-1)]"), _ONLY_ONE)
        for one in (
            "if not records or records[0].transaction_id != transaction_id:",
            "return anchor_of(records[0])",
        )
    ),
    *(
        Equivalent(
            file,
            function,
            old,
            old.replace("0", "(-1)"),
            "a log begins with 0 at the least, which is reached with nothing",
        )
        for file, function, old in (
            ("engine/spark/finding_tasks.py", "ChunkTask._joined", "expected = 0 if self.first else None"),
            ("engine/storage/partition_recovery.py", "examine_partition", "joined = tuple(joints(stretches, 0))"),
        )
    ),
    Equivalent(
        "engine/spark/wanted_types.py",
        "fits",
        _DECIMALS,
        _DECIMALS.replace("+ 1", "+ 2"),
        "of what is no number any sum above the precision is too much",
    ),
    Equivalent(
        "engine/spark/wanted_types.py",
        "_cast",
        "if array.type.equals(kind):",
        "if False:",
        "what has its type already is made anew, and is the same",
    ),
    Equivalent(
        "engine/spark/table_files.py",
        "_worded",
        "by_spark = executor if isinstance(executor, SparkExecutor) else None",
        "by_spark = executor if False else None",
        "whoever looks for the findings words them alike",
    ),
    Equivalent(
        "engine/spark/stream_node.py",
        "NodeHistory.latest",
        _MARK_OF_NODE,
        _MARK_OF_NODE.replace("-1 if", "-2 if"),
        "a last transaction is -1 at the least, and only what is beyond it is lost",
    ),
)

_COMMIT, _ANSWERS = "engine/node/commit.py", "engine/node/answers.py"
_QUICK = "the long way makes the same of the only one; this one is quicker"
_STOP = "stop = max(start + 1, int(np.searchsorted(times, self._last_tick + TICK_SECONDS)))"
_ONE_BY_ONE = "events of one interval are then counted one by one, which takes longer"
_ROUNDED = (
    "a guard: but for rounding, and for times out of order, the first one always belongs to the interval of its tick"
)
_ENDED = "nothing is left of what was received, so that nobody asks how long the next frame is"
_ONE_MORE = "however much more is read, it is more than may be there"
_NODE = (
    Equivalent(
        "engine/durable/disk.py",
        "_read_fully",
        "while length > 0:",
        "while length >= 0:",
        "where nothing is wanted nothing comes, which ends it as well",
    ),
    Equivalent("engine/durable/flusher.py", "Flusher.flush", "if len(files) <= 1:", "if len(files) < 1:", _QUICK),
    Equivalent(
        "engine/net/metrics.py",
        "Sample.quantile",
        "break",
        "continue",
        "no weight is negative, so that all others are left out as well",
    ),
    *(
        Equivalent("engine/net/metrics.py", "Meter.mark_all", _STOP, _STOP.replace(*change), why)
        for change, why in (
            (("max(", "min("), _ONE_BY_ONE),
            (("tick +", "tick -"), _ONE_BY_ONE),
            (("start + 1", "start - 1"), _ROUNDED),
            (("start + 1", "start + 0"), _ROUNDED),
        )
    ),
    Equivalent(
        "engine/net/metrics.py",
        "Timer.update_all",
        "kept = (values >= 0) & (counts > 0)",
        "kept = (values >= 0) & (counts >= 0)",
        "what happened zero times adds nothing anywhere; a guard against less than that",
    ),
    Equivalent(
        "engine/net/connection.py",
        "Pause",
        "NOTHING = 0",
        "NOTHING = 1",
        "a flag that is always set says nothing either, and is what everybody compares with",
    ),
    Equivalent(
        "engine/net/executor.py",
        "Executor._work",
        "break",
        "continue",
        "there is no job, which ends the loop as well",
    ),
    *(
        Equivalent(
            "engine/net/connection.py",
            "Connection.__init__",
            "self._bytes_written = 0",
            f"self._bytes_written = {new}",
            "only whether it grows is looked at",
        )
        for new in ("1", "(-1)")
    ),
    Equivalent(_COMMIT, "_chunks", "if len(runs) == 1:", "if False:", _QUICK),
    Equivalent(_COMMIT, "GroupCommit._bounds", "if count == 1:", "if False:", _QUICK),
    Equivalent(_ANSWERS, "failure_frames", "if count == 1:", "if False:", _QUICK),
    Equivalent(
        _ANSWERS,
        "failure_frames",
        "first = table[0].tolist()",
        "first = table[(-1)].tolist()",
        "what differs between the rows is written over",
    ),
    Equivalent(
        "engine/node/data_port.py",
        "DataConnection._dispatch",
        "if appends and (partitions == first).all():",
        "if False:",
        _QUICK,
    ),
    Equivalent(
        "engine/node/partition_service.py",
        "PartitionService.run",
        "self._under_way = 0",
        "pass",
        "every request of a batch was counted off when it was answered; a guard",
    ),
    Equivalent(
        "engine/node/admin_port.py",
        "AdminPort._execute",
        'raise AssertionError(f"{type(message).__name__} is no request")',
        "pass",
        "a guard of programmers: every message that can be decoded here has its case",
    ),
    *(
        Equivalent(
            "engine/node/data_port.py",
            "DataConnection._dispatch",
            "first = int(partitions[0])",
            f"first = int(partitions[{other}])",
            "it only counts where all are the same",
        )
        for other in ("1", "(-1)")
    ),
    *(
        Equivalent(file, function, "return end, 0", f"return end, {other}", _ENDED, nth)
        for file, function, count in (
            ("engine/node/admin_port.py", "AdminConnection._messages", 1),
            ("engine/node/data_port.py", "DataConnection._messages", 2),
        )
        for other in ("1", "(-1)")
        for nth in range(1, count + 1)
    ),
    Equivalent(
        "engine/net/service_settings.py", "", "NEXT_PORT = -1", "NEXT_PORT = -2", "no port has a negative number either"
    ),
    *(
        Equivalent(
            "engine/net/tls.py",
            "load_material",
            "password = secrets.token_urlsafe(24)",
            f"password = secrets.token_urlsafe({size})",
            "nobody guesses a password of that length within the moment that it is for",
        )
        for size in (23, 25)
    ),
    *(
        Equivalent(
            "engine/net/port.py",
            "Port.limits",
            "needed = _CHUNK + limits.big_frame + 64",
            f"needed = _CHUNK + limits.big_frame + {more}",
            _ROOMIER,
        )
        for more in (63, 65)
    ),
    Equivalent(
        "engine/net/http_port.py",
        "HttpPort.start",
        "name = server.sockets[0].getsockname()",
        "name = server.sockets[(-1)].getsockname()",
        "where there are several, the library has them in any order",
    ),
    Equivalent("engine/net/logs.py", "_escaped", "if text.isprintable():", "if False:", _QUICK),
    Equivalent(
        "engine/net/logs.py",
        "NodeLog.close",
        "super().close()",
        "pass",
        "the library forgets a handler with the last that refers to it as well",
    ),
    Equivalent(
        "engine/net/small_file.py",
        "read_small_file",
        "data = file.read(most + 1)",
        "data = file.read(most + 2)",
        _ONE_MORE,
    ),
    Equivalent(
        "engine/net/small_file.py",
        "_password_file",
        "return file.read(MAX_LINE + 1)",
        "return file.read(MAX_LINE + 2)",
        _ONE_MORE,
    ),
)

_HEADERS_BEHIND = "known = next((one for one in others if one.segment is not None and one.segment >= least), None)"
_FEED_WATCH = "engine/client/feed_watch.py"
_ANSWER_LENGTH = "length = len(outcome.data) if isinstance(outcome, wire.TransactionData) else 0"
_BEGIN_TASK = "def begin_task(self, work: Coroutine[Any, Any, None], *, parked: int = 0) -> asyncio.Task[None]:"
_EXIT = "status = connection.recv(1)  # if the daemon was killed, the runner holds the other end until it ends"
_NEWEST = (
    Equivalent(
        "engine/findings/obstacles.py",
        "Obstacles._in_front_of",
        _HEADERS_BEHIND,
        _HEADERS_BEHIND.replace("one.segment is not None", "True"),
        "a finding about the header of a data file names its segment",
    ),
    *(
        Equivalent(
            _FEED_WATCH,
            "FeedWatch.__init__",
            "self._seen = -1",
            new,
            "it is set before it is looked at",
        )
        for new in ("self._seen = -0", "self._seen = -2")
    ),
    Equivalent(
        _FEED_WATCH,
        "FeedWatch.answered",
        "self._answer = None",
        "pass",
        "a watchdog may be stopped twice",
    ),
    Equivalent(
        _FEED_WATCH,
        "FeedWatch._came",
        "return True",
        "return False",
        "the watchdog that asks has been stopped: it does not bark, whatever it hears",
    ),
    *(
        Equivalent(
            "engine/server/data_requests.py",
            "Asker.begin_task",
            _BEGIN_TASK,
            _BEGIN_TASK.replace("= 0", f"= {new}"),
            "a protocol's default is its implementation's",
        )
        for new in ("1", "(-1)")
    ),
    *(
        Equivalent("engine/spark/runner_daemon.py", "", "_LENGTH = 4", f"_LENGTH = {new}", "both sides have the same")
        for new in (3, 5)
    ),
    Equivalent(
        "engine/spark/runner_daemon.py",
        "_handed_over",
        _EXIT,
        _EXIT.replace("(1)", "(2)"),
        "it is one byte",
    ),
    Equivalent(
        "engine/spark/runner_daemon.py",
        "_handed_over",
        "return status[0] if status else 1",
        "return status[(-1)] if status else 1",
        "it is one byte",
    ),
    *(
        Equivalent(
            "engine/server/data_requests.py",
            "DataRequests._answer_read",
            _ANSWER_LENGTH,
            _ANSWER_LENGTH.removesuffix("0") + new,
            "an answer counts as one byte at least",
        )
        for new in ("1", "(-1)")
    ),
    Equivalent(
        _FEED_WATCH,
        "FeedWatch.stop",
        "self._round = None",
        "pass",
        "a timer may be cancelled twice",
    ),
)

EQUIVALENT: tuple[Equivalent, ...] = (
    *_COMPARE,
    *_FORMATS,
    *_INSPECT,
    *_LOG,
    *_NEWEST,
    *_NODE,
    *_REPAIR,
    *_SCAN,
    *_SPARK,
    *_STORAGE,
)


TUNED: dict[str, tuple[str, ...]] = {
    "formats/control.py": ("_SCORED",),
    "engine/compare/differences.py": ("_BATCH",),
    "engine/compare/ranges.py": ("RANGE",),
    "engine/inspect/distributed_checks.py": ("SHARES",),
    "engine/inspect/digests.py": ("_CHUNK", "_NEAR"),
    "engine/inspect/dump_chunks.py": ("CHUNK",),
    "engine/log/index_comparison.py": ("CHUNK",),
    "engine/log/index.py": ("_FARTHEST",),
    "engine/inspect/split_segments.py": ("PART",),
    "engine/inspect/targets.py": ("_HEADERS_COMPARED",),
    "engine/inspect/verify.py": ("_WORTH_THREADS", "_AHEAD"),
    "engine/inspect/vouching.py": ("_LIMIT",),
    "engine/net/http_port.py": ("_BACKLOG",),
    "engine/net/port.py": ("_BACKLOG", "_CHUNK", "_ALL_CHUNKS", "_SMALLEST_CHUNK", "_ACCEPTED_AT_ONCE"),
    "engine/net/output_budget.py": ("_MODERATE",),
    "engine/repair/content.py": ("CHUNK", "IN_PLACE_LIMIT"),
    "engine/repair/rebuild_index.py": ("_CHUNK",),
    "engine/durable/disk.py": ("_CHUNK",),
    "engine/durable/manifest.py": ("_LIMIT",),
    "engine/durable/restore.py": ("CHUNK",),
    "engine/repair/salvage_output.py": ("BLOCK",),
    "engine/repair/salvage_attribution.py": ("LINK_WINDOW",),
    "engine/repair/salvage_runs.py": ("WINDOW",),
    "engine/repair/salvage_selection.py": ("BLOCK", "CHUNK"),
    "engine/scan/carve.py": ("BATCH_ROWS",),
    "engine/scan/code_cache.py": ("_LIMIT",),
    "engine/scan/crc_kernel.py": ("BLOCKS",),
    "engine/scan/kernels.py": ("LOAD_FROM", "COMPILE_FROM"),
    "engine/scan/order.py": ("_COMPARED",),
    "engine/scan/native.py": ("TWO_PASSES",),
    "engine/scan/kernel.py": ("_TWO_PASSES", "SLOTS", "_SMALL", "STRETCH"),
    "engine/scan/probe.py": ("GRANULE", "CACHE", "FORGET_AFTER", "CROWD", "FLAT_CHARGE"),
    "engine/scan/resync.py": ("FOLLOW_BLOCK",),
    "engine/scan/scanner.py": ("BATCH_ROWS", "RUN_ROWS", "FIRST_READ"),
    "engine/scan/byte_source.py": ("_LOOK",),
    "engine/scan/list_answers.py": ("ROOM",),
    "engine/scan/transcode.py": ("_FEW",),
    "engine/scan/walk.py": ("PAGE", "BLOCK", "CARRY"),
    "engine/scan/wire_compiled.py": ("_SHORT",),
    "engine/scan/wire_layout.py": ("WORDS",),
    "engine/scan/wire_memory.py": ("_TWO_PASSES",),
    "engine/spark/cluster_history.py": ("_AT_ONCE", "_ROWS", "_BYTES"),
    "engine/spark/spark_executor.py": ("PACKET", "FLAT", "WAVE"),
    "engine/spark/run_writing.py": ("_FLUSH", "_HELD"),
    "engine/inspect/segment_order.py": ("_SLACK",),
    "engine/spark/segment_parts.py": ("_TRIES", "LOOKBACK", "SEARCH_BUDGET"),
    "engine/spark/splits.py": ("FLAT",),
    "engine/spark/stream_node.py": (
        "_LEAST_RECORD_SIZE",
        "_SEARCH_BACK",
        "_BATCH_ROWS",
        "_BATCH_BYTES",
        "RANGE_RECORDS",
    ),
    "engine/spark/stream_places.py": ("SPLIT_BYTES",),
    "engine/spark/stream_reader.py": ("TASK_WEIGHT",),
    "engine/spark/directory_views.py": ("_CHUNK",),
    "engine/storage/availability_marks.py": ("_LIMIT",),
    "engine/storage/append.py": ("DEFAULT_BATCH", "BATCH_BYTES"),
    "engine/storage/loss_ledger.py": ("_LIMIT",),
    "engine/log/evidence.py": ("_CHUNK",),
    "engine/storage/partition_log.py": ("CAREFUL_RECORDS",),
    "engine/storage/partition_recovery.py": ("KNOWN_BEFORE_CUT",),
    "engine/storage/failed_syncs.py": ("PIECE",),
    "engine/log/url_access.py": ("SMALL", "LARGE"),
    "engine/storage/segment_reader.py": ("READ_AHEAD", "LIST_BYTES", "_FEW"),
    "engine/storage/segment_recovery.py": ("CHECKPOINTS_TRIED",),
}
"""Constants of modules that only say how much is taken at once, or what something is taken to cost."""
_CONSTANT = re.compile(r"(_?[A-Z_]+)(?:: int)? = ([-0-9_() ]+|[-0-9_() ]+(?:<<|>>|\*\*?|//) [-0-9_() ]+?)(?: *#.*)?")


MADE_UP: dict[str, tuple[str, ...]] = {
    "engine/scan/compiled.py": ("_passes_self_test",),
    "engine/scan/wire_trials.py": ("", "_append", "_stream", "_of_other_data"),
}
"""Functions (empty: outside of any) that make up input for one way of computing to be compared with another: of a mutant that
is another number there nothing follows but other input, for both."""
_NUMBER = re.compile(r"\(-1\)|[0-9]+")


def why_equivalent(mutant: Mutant) -> str:
    """The reason, empty where it is not."""
    known = _BY_KEY.get(mutant.key)
    if known is not None:
        return known.reason
    if mutant.function in MADE_UP.get(mutant.file, ()) and _NUMBER.sub("#", mutant.old) == _NUMBER.sub("#", mutant.new):
        return _INVENTED
    named = _CONSTANT.fullmatch(mutant.new) if not mutant.function else None
    if named is None or named[1] not in TUNED.get(mutant.file, ()):
        return ""
    return _SIZES if eval(named[2], {"__builtins__": {}}) > 1 else ""


_BY_KEY = {one.key: one for one in EQUIVALENT}
