"""The compiled wire loops: they stay inside their memory, come from the cache, and are passed over when they are wrong."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec, module_from_spec
from inspect import signature
from itertools import chain, pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.golden import GOLDEN, needs_golden
from tests.scan.wire_support import WAYS, kept_object, loops_of, skip_unless_here, use
from waltzctl.engine.scan import (
    client_loops,
    code_cache,
    list_loops,
    lock_loops,
    object_code,
    wire_code,
    wire_compiled,
    wire_loops,
    wire_trials,
)
from waltzctl.engine.scan.frames import FrameColumn, FrameSplitter
from waltzctl.engine.scan.kernels import WAY_VARIABLE
from waltzctl.engine.scan.transcode import AppendEncoder, FrameVerdict
from waltzctl.engine.scan.wire_layout import (
    ADMITTED,
    BYTES,
    CONTENDED,
    FILLED,
    FOUND,
    LOCKS,
    NEEDED,
    POSITION,
    RECORDS,
    ROW,
    ROWS,
    RUNS,
    TAKEN,
    GroupColumn,
    ListStop,
    SplitStatus,
)
from waltzctl.engine.scan.wire_loops import INTERPRETED
from waltzctl.formats.segment import Record
from waltzctl.formats.wire.storage import AppendRequest, decode

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("isal", "table")
"""Ways with code of their own: those that call a function have the same."""


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )


@pytest.mark.turns(10)
@pytest.mark.parametrize(
    ("ways", "rounds"), [(KINDS, 300), *(pytest.param((way,), 40_000, marks=pytest.mark.long) for way in WAYS)]
)
def test_no_byte_outside_a_buffer_is_touched(ways: tuple[str, ...], rounds: int) -> None:
    """Buffers of exactly the right size, against pages that end the process when they are read or written."""
    for way in ways:
        loops_of(way)
    done = run("-m", "tests.scan.guarded", ",".join(ways), "1", str(rounds))
    assert (done.returncode, done.stdout) == (0, "nothing was touched\n"), done.stderr


def test_the_pages_are_really_guarded() -> None:
    """The program above would notice: a loop that is told of one byte too many dies."""
    script = (
        "from tests.scan.guarded import *\n"
        "guarded = Guarded(1)\n"
        "buffer = guarded.put(bytes(28), high=True)\n"
        "state = new_state()\n"
        "state[FILLED], state[ROWS] = 29 + 4096, 1\n"
        "print(buffer[-1])\n"
        "wire_compiled.load('table').to_list(state, buffer[-1:], buffer, brief=False)\n"
    )
    done = run("-c", script)
    assert done.stdout == "0\n"
    assert done.returncode < 0, done.stderr


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ways that were compiled; what comes of it was made in an earlier run, or now."""
    skip_unless_here("table")
    objects = {way: kept_object(wire_compiled, way) for way in wire_compiled.WAYS}
    compiled_ways: list[str] = []
    monkeypatch.setattr(wire_compiled, "_compile", lambda way: compiled_ways.append(way) or objects[way])
    return compiled_ways


@pytest.fixture
def fresh(made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory and a process in which nothing was looked for yet."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(WAY_VARIABLE, raising=False)
    monkeypatch.setattr(wire_code, "_ready", INTERPRETED)
    monkeypatch.setattr(wire_code, "_looked", False)
    monkeypatch.setattr(wire_compiled, "_loaded", {})
    return tmp_path


@pytest.mark.turns(10)
def test_prepared_loops_replace_the_interpreted_ones_in_what_is_there_already(fresh: Path) -> None:
    splitter = FrameSplitter(magic=0x53, max_body=100)
    assert splitter.loops == "interpreted"
    name = wire_code.prepare()
    assert name.startswith("compiled, ")
    assert splitter.loops == name
    assert AppendEncoder(max_data_length=5).loops == name
    assert FrameSplitter(magic=0x53, max_body=100, compiled=False).loops == "interpreted"


@pytest.mark.turns(10)
def test_the_cache_is_enough_and_needs_no_numba(fresh: Path) -> None:
    script = (
        "import os, sys\n"
        "from waltzctl.engine.scan import wire_code\n"
        "from waltzctl.engine.scan.frames import FrameSplitter\n"
        "def tell(): print(FrameSplitter(magic=1, max_body=1).loops, *(m in sys.modules for m in ('numba', 'llvmlite')))\n"
        f"os.environ[{WAY_VARIABLE!r}] = 'interpreted'\n"
        "wire_code.prepare()\n"
        "tell()\n"
        f"del os.environ[{WAY_VARIABLE!r}]\n"
        "wire_code._looked = False\n"
        "tell()\n"
        "if sys.argv[1] == 'prepare': wire_code.prepare()\n"
        "tell()\n"
    )
    first = run("-c", script, "prepare", XDG_CACHE_HOME=str(fresh)).stdout.splitlines()
    way = wire_code.prepare()
    assert first == ["interpreted False False", "interpreted False True", f"{way} True True"]
    again = run("-c", script, "-", XDG_CACHE_HOME=str(fresh)).stdout.splitlines()
    assert again == ["interpreted False False", f"{way} False True", f"{way} False True"]


@pytest.mark.parametrize(
    ("named", "runs", "compiles"),
    [("interpreted", "interpreted", []), ("table", "compiled, table", ["table"]), ("isal", "compiled, isal", ["isal"])],
)
def test_the_environment_names_the_only_way(
    named: str, runs: str, compiles: list[str], fresh: Path, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_unless_here(named) if compiles else None
    monkeypatch.setenv(WAY_VARIABLE, named)
    assert (FrameSplitter(magic=1, max_body=1).loops, made) == ("interpreted", [])
    assert (wire_code.prepare(), made) == (runs, compiles)


def test_the_cache_is_looked_into_once(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is found there; what is to be compiled now is looked for again."""
    looks: list[bool] = []
    monkeypatch.setattr(wire_compiled, "best", lambda named, *, compile_now: looks.append(compile_now))
    for _ in range(3):
        assert FrameSplitter(magic=0x53, max_body=100).loops == "interpreted"
    assert looks == [False]
    for _ in range(2):
        assert wire_code.prepare() == "interpreted"
    assert looks == [False, True, True]


def test_without_a_compiler_the_loops_are_interpreted(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "waltzctl.engine.scan.wire_compiled", None)
    monkeypatch.delattr("waltzctl.engine.scan.wire_compiled")
    assert wire_code.prepare() == "interpreted"
    for wanted in (True, None, False):
        assert wire_code.chooser(wanted)() is INTERPRETED


def test_loops_that_cannot_be_had_are_refused_by_name(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(object_code.CodeUnavailableError, match=r"^no such way: no such way$"):
        wire_compiled.load("no such way")

    def fail(_: str) -> bytes:
        raise RuntimeError("broken")

    monkeypatch.setattr(wire_compiled, "_compile", fail)
    with pytest.raises(object_code.CodeUnavailableError, match=r"^table: broken$"):
        wire_compiled.load("table")


def test_loops_that_are_ready_stay(fresh: Path, made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WAY_VARIABLE, "table")
    assert wire_code.prepare() == "compiled, table"
    monkeypatch.setenv(WAY_VARIABLE, "isal")
    assert (wire_code.prepare(), made) == ("compiled, table", ["table"])


def test_the_best_loops_are_the_fastest_that_can_be_had(fresh: Path, made: list[str]) -> None:
    skip_unless_here("isal")
    assert wire_compiled.best(None, compile_now=False) is None
    table, isal = (wire_compiled.best(way, compile_now=True) for way in ("table", "clmul512"))
    assert (table and table.name, isal and isal.name) == ("compiled, table", "compiled, isal"), "no name of a way: any"
    assert made == ["table", "isal"]
    assert wire_compiled.best(None, compile_now=False) is isal
    assert wire_compiled.best("table", compile_now=False) is table


def test_of_the_cache_the_fastest_is_taken_that_is_there(fresh: Path, made: list[str]) -> None:
    wire_compiled.load("table")
    found = wire_compiled.best(None, compile_now=False)
    assert (found and found.name, made) == ("compiled, table", ["table"])


def test_broken_code_in_the_cache_is_compiled_anew(fresh: Path, made: list[str]) -> None:
    code_cache.put("other", b"")
    (fresh / "waltzctl" / "code" / wire_compiled._name("table")).write_bytes(b"rubbish")
    assert wire_compiled.load("table").name == "compiled, table"
    assert code_cache.get(wire_compiled._name("table"))
    assert wire_compiled.load("table") is wire_compiled.load("table")
    assert made == ["table"]


@pytest.mark.turns(10)
def test_loops_that_answer_wrongly_are_passed_over(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it is the interpreted ones that are changed, which shows the same difference."""
    monkeypatch.setattr(wire_loops, "BODY_COLUMN", wire_loops.BODY_COLUMN + 1)
    with pytest.raises(object_code.CodeUnavailableError, match="table: wrong answers"):
        wire_compiled.load("table")
    monkeypatch.setenv(WAY_VARIABLE, "table")
    assert wire_code.prepare() == "interpreted"


_CONSTANTS = [
    "MAGIC_AT",
    "VERSION_AT",
    "BODY_LENGTH_AT",
    "FRAME_SIZE",
    "PREFIX_SIZE",
    "TYPE_AT",
    "SESSION_AT",
    "SEQUENCE_AT",
    "PARTITION_AT",
    "APPEND_HEAD",
    "APPEND_LEAST",
    "APPEND_TYPE",
    "HEAD",
    "DATA_LENGTH_AT",
    "WIRE_OVERHEAD",
    "DISK_HEAD",
    "DISK_OVERHEAD",
]
"""Those of `wire_loops`."""
_LIST_CONSTANTS = [
    "ANSWERED_AT",
    "BODY_LENGTH_AT",
    "BRIEF",
    "DATA_LENGTH_AT",
    "DISK_HEAD",
    "DISK_OVERHEAD",
    "ENTRY",
    "FRAME_SIZE",
    "HEAD",
    "HEADERS_TYPE",
    "INDEX_HEADER",
    "LIST_BODY",
    "LIST_COUNT_AT",
    "LIST_FIRST_AT",
    "LIST_HEAD",
    "OPEN_DATA",
    "OPEN_END",
    "OPEN_FEW",
    "OPEN_FIRST",
    "OPEN_FLAGS",
    "OPEN_INDEX",
    "OPEN_MOST",
    "OPEN_NEXT",
    "OPEN_ROOM",
    "OPEN_SEGMENT",
    "OPEN_SESSION",
    "OPEN_SHOWN",
    "OPEN_START",
    "PREFIX_SIZE",
    "RECORDS_TYPE",
    "WIRE_OVERHEAD",
    "WORD",
]
"""Those of `list_loops`."""
_CLIENT_CONSTANTS = [
    "MAGIC_AT",
    "VERSION_AT",
    "BODY_LENGTH_AT",
    "FRAME_SIZE",
    "CLIENT_APPEND",
    "CLIENT_TYPE_AT",
    "CLIENT_AT",
    "CLIENT_PARTITION_AT",
    "CLIENT_REQUEST_AT",
    "CLIENT_MARK_AT",
    "CLIENT_LOCKS_AT",
    "REQUEST_AT",
    "REST_AT",
    "REST_HEAD",
    "REST_LENGTH_AT",
    "DATA_LENGTH_AT",
    "WIRE_OVERHEAD",
    "WORD",
    "FEED_FRAME",
    "FEED_REQUEST_AT",
    "FEED_ID_AT",
    "FEED_HEADER_AT",
    "HELD_COLUMNS",
    "HELD_MARK",
    "HELD_STOP",
    "LOCK_BITS",
    "LOCK_MASK",
]
"""Those of `client_loops`, but for two sizes of what is copied: what goes too far is written over by what stands behind it."""
_LOCK_CONSTANTS = [
    "HELD_COLUMNS",
    "HELD_MARK",
    "HELD_STOP",
    "LOCK_BITS",
    "LOCK_MASK",
    "READ_LOCK",
    "APPEND_LOCK",
    "ADMITTED",
    "CONTENDED",
    "MULTIPLIER",
    "INCREMENT",
    "POSITIVE",
    "LINKS",
]
"""Those of `lock_loops`."""


@cache
def _right_answers() -> list[Any]:
    return wire_trials.answers(INTERPRETED)


@pytest.mark.turns(12)
@pytest.mark.parametrize(
    ("loops", "name"),
    [
        *(pytest.param(wire_loops, name, id=name) for name in _CONSTANTS),
        *(pytest.param(list_loops, name, id=f"list {name}") for name in _LIST_CONSTANTS),
        *(pytest.param(client_loops, name, id=f"client {name}") for name in _CLIENT_CONSTANTS),
        *(pytest.param(lock_loops, name, id=f"lock {name}") for name in _LOCK_CONSTANTS),
    ],
)
def test_the_trial_notices_a_constant_that_is_one_off(
    loops: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trial is real: whichever place a loop gets wrong, its answers differ, or it fails."""
    right = _right_answers()
    monkeypatch.setattr(loops, name, getattr(loops, name) + 1)
    with contextlib.suppress(struct.error, IndexError, ValueError):
        assert wire_trials.answers(INTERPRETED) != right


class _WrongLoops:
    """The interpreted loops, with one number that one of them delivers one too large: a word of its state, or of an array."""

    name = "wrong"

    def __init__(self, loop: str, word: int | None = None, array: int | None = None) -> None:
        self._wrong = loop, word, array

    def _spoilt(self, loop: str, status: int, state: Any, *arrays: Any) -> int:
        wrong, word, array = self._wrong
        if loop != wrong:
            return status
        if array is not None:
            arrays[array].reshape(-1)[0] += 1
        elif word is not None:
            state[word] += 1
        else:
            return status + 1
        return status

    def split(self, state: Any, buffer: Any, table: Any) -> int:
        return self._spoilt("split", INTERPRETED.split(state, buffer, table), state, table)

    def encode(self, state: Any, buffer: Any, table: Any, offsets: Any, out: Any) -> int:
        status = INTERPRETED.encode(state, buffer, table, offsets, out)
        return self._spoilt("encode", status, state, offsets, out)

    def encode_groups(self, state: Any, buffer: Any, table: Any, groups: Any, offsets: Any, out: Any) -> None:
        INTERPRETED.encode_groups(state, buffer, table, groups, offsets, out)
        told = [groups[-1, column : column + 1] for column in (2, 3, 4)]  # what is told of the last one
        self._spoilt("groups", 0, state, *told, offsets, out)

    def to_list(self, state: Any, buffer: Any, out: Any, *, brief: bool) -> int:
        status = INTERPRETED.to_list(state, buffer, out, brief=brief)
        return self._spoilt("headers" if brief else "records", status, state, out)

    def answer_lists(
        self, state: Any, buffer: Any, table: Any, segment: Any, heads: Any, scratch: Any, out: Any
    ) -> int:
        status = INTERPRETED.answer_lists(state, buffer, table, segment, heads, scratch, out)
        return self._spoilt("lists", status, state, np.frombuffer(out, np.uint8))

    def take_appends(self, state: Any, buffer: Any, runs: Any, places: Any, held: Any, locks: Any, out: Any) -> None:
        INTERPRETED.take_appends(state, buffer, runs, places, held, locks, out)
        told = [table[:, column : column + 1] for table in (runs, held) for column in range(table.shape[1])]
        self._spoilt("appends", 0, state, *told, places, locks, out)

    def number_records(self, state: Any, records: Any, feed: Any, out: Any) -> int:
        status = INTERPRETED.number_records(state, records, feed, out)
        arrays = (np.frombuffer(records, np.uint8), np.frombuffer(out, np.uint8))
        return self._spoilt("numbers", status, state, *arrays)

    def admit_appends(self, state: Any, written: Any, in_flight: Any, appends: Any, locks: Any, verdicts: Any) -> int:
        status = INTERPRETED.admit_appends(state, written, in_flight, appends, locks, verdicts)
        arrays = (np.frombuffer(words, np.int64) for words in (in_flight, verdicts))
        return self._spoilt("admit", status, state, *arrays)

    def settle_appends(self, state: Any, written: Any, in_flight: Any, appends: Any, locks: Any) -> int:
        status = INTERPRETED.settle_appends(state, written, in_flight, appends, locks)
        arrays = (np.frombuffer(words, np.int64) for words in (written, in_flight))
        return self._spoilt("settle", status, state, *arrays)


@pytest.mark.turns(8)
@pytest.mark.parametrize(
    "wrong",
    [
        *(("split",), ("split", POSITION), ("split", TAKEN), ("split", NEEDED), ("split", None, 0)),
        *(("encode",), ("encode", TAKEN), ("encode", RECORDS), ("encode", FOUND)),
        *(("encode", None, 0), ("encode", None, 1)),
        *(("groups", TAKEN), *(("groups", None, place) for place in range(5))),
        *(("headers",), ("headers", FOUND), ("headers", None, 0)),
        *(("records",), ("records", BYTES), ("records", None, 0)),
        *(("lists",), ("lists", ROW), ("lists", BYTES), ("lists", POSITION), ("lists", FILLED), ("lists", None, 0)),
        *(("appends", POSITION), ("appends", TAKEN), ("appends", BYTES), ("appends", RUNS), ("appends", LOCKS)),
        *(("appends", None, place) for place in range(9)),
        *(("numbers",), ("numbers", POSITION), ("numbers", TAKEN), ("numbers", None, 0), ("numbers", None, 1)),
        *(("admit",), ("admit", TAKEN), ("admit", RECORDS), ("admit", None, 0), ("admit", None, 1)),
        *(("settle",), ("settle", TAKEN), ("settle", None, 0), ("settle", None, 1)),
    ],
    ids=str,
)
def test_the_trial_notices_whatever_a_loop_gets_wrong(wrong: tuple[Any, ...]) -> None:
    assert wire_trials.answers(_WrongLoops(*wrong)) != _right_answers()


class _Asked:
    """The interpreted loops, which keep what they are asked (bytes; the table as a list; whether it is to be brief) and say."""

    name = "asked"

    def __init__(self) -> None:
        self.noted: list[tuple[bytes, int, list[list[int]]]] = []
        self.encoded: list[tuple[bytes, list[list[int]]]] = []
        self.listed: list[tuple[bytes, bool]] = []
        names = ("split", "encode", "list", "answers", "groups", "numbers", "admit", "settle")
        self.said: dict[str, set[int]] = {name: set() for name in names}
        self.groups: set[tuple[bool, ...]] = set()
        self.judged: set[str] = set()

    def split(self, state: Any, buffer: Any, table: Any) -> int:
        status = INTERPRETED.split(state, buffer, table)
        self.noted.append((bytes(buffer), len(table), table.tolist()))
        self.said["split"].add(status)
        return status

    def encode(self, state: Any, buffer: Any, table: Any, offsets: Any, out: Any) -> int:
        self.encoded.append((bytes(buffer), table.tolist()))
        status = INTERPRETED.encode(state, buffer, table, offsets, out)
        self.said["encode"].add(status)
        return status

    def encode_groups(self, state: Any, buffer: Any, table: Any, groups: Any, offsets: Any, out: Any) -> None:
        INTERPRETED.encode_groups(state, buffer, table, groups, offsets, out)
        self.said["groups"] |= set(groups[:, GroupColumn.VERDICT].tolist())
        self.groups |= {tuple(bool(verdict) for verdict in groups[:, GroupColumn.VERDICT])}

    def to_list(self, state: Any, buffer: Any, out: Any, *, brief: bool) -> int:
        self.listed.append((bytes(buffer), brief))
        status = INTERPRETED.to_list(state, buffer, out, brief=brief)
        self.said["list"].add(status)
        return status

    def answer_lists(
        self, state: Any, buffer: Any, table: Any, segment: Any, heads: Any, scratch: Any, out: Any
    ) -> int:
        status = INTERPRETED.answer_lists(state, buffer, table, segment, heads, scratch, out)
        self.said["answers"].add(status)
        return status

    def take_appends(self, state: Any, buffer: Any, runs: Any, places: Any, held: Any, locks: Any, out: Any) -> None:
        INTERPRETED.take_appends(state, buffer, runs, places, held, locks, out)

    def number_records(self, state: Any, records: Any, feed: Any, out: Any) -> int:
        status = INTERPRETED.number_records(state, records, feed, out)
        self.said["numbers"].add(status)
        return status

    def admit_appends(self, state: Any, written: Any, in_flight: Any, appends: Any, locks: Any, verdicts: Any) -> int:
        status = INTERPRETED.admit_appends(state, written, in_flight, appends, locks, verdicts)
        self.said["admit"].add(status)
        names = {ADMITTED: "admitted", CONTENDED: "contended"}
        self.judged |= {names.get(one, "refused") for one in verdicts[: state[TAKEN]]}
        if not status and state[TAKEN] < state[FILLED] and state[RECORDS] < state[ROWS]:
            self.judged.add("waits")
        return status

    def settle_appends(self, state: Any, written: Any, in_flight: Any, appends: Any, locks: Any) -> int:
        status = INTERPRETED.settle_appends(state, written, in_flight, appends, locks)
        self.said["settle"].add(status)
        return status


@pytest.fixture
def asked() -> _Asked:
    asked = _Asked()
    assert wire_trials.answers(asked) == _right_answers()
    return asked


def test_the_trial_meets_every_answer(asked: _Asked) -> None:
    """Only a record on disk has a checksum of its own."""
    verdicts = {*FrameVerdict}
    assert asked.said == {
        "split": {*SplitStatus},
        "encode": verdicts - {FrameVerdict.RECORD_CHECKSUM},
        "list": verdicts,
        "answers": {*ListStop},
        "groups": verdicts - {FrameVerdict.RECORD_CHECKSUM, FrameVerdict.TOO_LONG},
        **{name: {FrameVerdict.DONE, FrameVerdict.MALFORMED} for name in ("numbers", "admit", "settle")},
    }
    assert asked.judged == {"admitted", "refused", "contended", "waits"}
    between = any(
        shown[place : place + 3] == (False, True, False) for shown in asked.groups for place in range(len(shown))
    )
    assert between, "a group that is not right stands between two that are"


def _changes(right: Iterable[int], other: Iterable[int]) -> list[tuple[int, int]]:
    """What differs between two rows of numbers, from and to."""
    return [(a, b) for a, b in zip(right, other, strict=True) if a != b]


def test_the_trial_asks_about_frames_in_any_number_of_rows_and_about_each_damage(asked: _Asked) -> None:
    """What is damaged in one byte is encoded by the table that was told of it, and by that of the right bytes."""
    right, damaged = asked.noted[:3], asked.noted[3:]
    good, _, whole = right[-1]
    assert [(data, rows) for data, rows, _ in right] == [(good, rows) for rows in (1, 5, 64)]
    rows = [row for row in whole if row[FrameColumn.LENGTH]]
    headers = [b[0] - a[0] - a[1] for a, b in pairwise([[0, 0], *rows])]
    assert sorted(headers) == [7] * (len(rows) - 1) + [14], "a frame that keeps the connection alive stands between two"
    assert {row[FrameColumn.RECORDS] for row in whole} == {0, 1, 2, 3}
    assert {row[FrameColumn.OFFLINE] for row in whole} == {0, 1}
    assert {rows for _, rows, _ in damaged} == {64}
    assert [a ^ b for data, _, _ in damaged for a, b in _changes(good, data)] == [4] * len(damaged)
    own = [one for data, _, table in damaged for one in ((data, table), (data, whole))]
    assert asked.encoded[: len(own) + 3] == [*own, (good, whole), (good, whole), (good, right[0][2])]
    asked_of_tables = asked.encoded[len(own) + 3 :]
    steps = [b - a for _, table in asked_of_tables for a, b in _changes(chain(*whole), chain(*table))]
    assert {data for data, _ in asked_of_tables} == {good}
    assert len(steps) == len(asked_of_tables) == -(-sum(map(len, whole)) // 7)
    assert (set(steps[::2]), set(steps[1::2])) == ({5}, {-5})


def test_the_trial_asks_about_lists_brief_and_whole(asked: _Asked) -> None:
    *damaged, cut, whole, other = asked.listed
    disk = damaged[0][0]
    assert [brief for _, brief in damaged] == [False, True] * (len(damaged) // 2)
    assert [[a ^ b for a, b in _changes(disk, data)] for data, _ in damaged] == [[]] * 2 + [[1]] * (len(damaged) - 2)
    assert (cut, whole) == ((disk[:-1], False), (disk, False))
    record = Record.decode(other[0])
    assert (record.transaction_id, record.data, record.data_ok, record.record_ok) == (0, b"", False, True)


@pytest.mark.parametrize("way", WAYS)
@needs_golden
def test_frames_of_the_release(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every recorded conversation with a data port is split into the frames that were recorded, and every append encodes."""
    use(monkeypatch, way)
    assert GOLDEN is not None
    lines = (GOLDEN / "wire" / "storage-frames.jsonl").read_text().splitlines()
    frames = [json.loads(line) for line in lines]
    raw = [bytes.fromhex(f["hex"]) for f in frames if f["protocol"] == "S" and f["dir"] == "c2s"]
    whole = b"".join(raw)
    found = FrameSplitter(magic=0x53, max_body=1 << 20, rows=len(raw) + 1).split(whole, 0, len(whole), 0)
    assert [whole[row[0] - 7 : row[0] + row[1]] for row in found.table.tolist()] == [one for one in raw if len(one) > 7]
    appends = 0
    for row in found.table:
        message = decode(whole[row[FrameColumn.BODY] : row[FrameColumn.BODY] + row[FrameColumn.LENGTH]])
        assert (message.session_id, message.sequence, message.partition) == tuple(row[3:6])
        if isinstance(message, AppendRequest):
            appends += 1
            assert (row[FrameColumn.RECORDS], row[FrameColumn.OFFLINE]) == (len(message.records), message.offline)
            first = message.records[0].transaction_id if message.records else 0
            done = AppendEncoder(max_data_length=1 << 20).encode(whole, row[None, :], first)
            if all(record.data_ok for record in message.records) and done.verdict is not FrameVerdict.ORDER:
                made = [Record.make(r.transaction_id, r.request_id, r.header, r.data) for r in message.records]
                assert bytes(done.block.data) == b"".join(record.encode() for record in made)
    assert appends


def test_every_argument_of_a_compiled_loop_has_its_kind() -> None:
    """All are addresses but whether a list is to be brief; the first one is that of the state."""
    loops = (
        *(wire_loops.split, wire_loops.encode, wire_loops.encode_groups),
        *(list_loops.to_list, list_loops.answer_lists),
        *(client_loops.take_appends, client_loops.number_records),
        *(lock_loops.admit_appends, lock_loops.settle_appends),
    )
    kinds = {loop.__name__: [*signature(loop).parameters][1:] for loop in loops}
    assert {
        name: (sum(one != "brief" for one in names), names.count("brief")) for name, names in kinds.items()
    } == wire_compiled._ARGUMENTS


def test_a_process_looks_once_for_what_is_in_the_cache_and_whenever_it_is_told_to_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until there is something; and each call asks what is there by now."""
    asked: list[tuple[str | None, bool]] = []
    answer: list[Any] = [None]
    monkeypatch.setattr(
        wire_compiled, "best", lambda named, *, compile_now: asked.append((named, compile_now)) or answer[0]
    )
    monkeypatch.delenv(WAY_VARIABLE, raising=False)
    spec = find_spec("waltzctl.engine.scan.wire_code")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)  # as in a process of its own
    assert module.chooser(False)() is INTERPRETED
    assert asked == []
    first = module.chooser(None)
    assert (first(), asked) == (INTERPRETED, [(None, False)])
    assert (module.chooser(None)(), asked) == (INTERPRETED, [(None, False)])
    assert (module.chooser(True)(), asked) == (INTERPRETED, [(None, False), (None, True)])
    answer[0] = loops = _Asked()
    assert (module.prepare(), first(), module.chooser(None)()) == ("asked", loops, loops)
    assert (module.prepare(), asked[2:]) == ("asked", [(None, True)])
    assert module.chooser(False)() is INTERPRETED
