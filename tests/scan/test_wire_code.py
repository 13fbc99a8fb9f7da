"""The compiled wire loops: they stay inside their memory, come from the cache, and are passed over when they are wrong."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden import GOLDEN, needs_golden
from tests.scan.wire_support import WAYS, loops_of, use
from waltzctl.engine.scan import code_cache, object_code, wire_code, wire_compiled, wire_loops, wire_trials
from waltzctl.engine.scan.frames import FrameColumn, FrameSplitter
from waltzctl.engine.scan.kernels import WAY_VARIABLE
from waltzctl.engine.scan.transcode import AppendEncoder, FrameVerdict
from waltzctl.engine.scan.wire_loops import INTERPRETED
from waltzctl.formats.segment import Record
from waltzctl.formats.wire.storage import AppendRequest, decode

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("rounds", [400, pytest.param(40_000, marks=pytest.mark.long)])
def test_no_byte_outside_a_buffer_is_touched(way: str, rounds: int) -> None:
    """Buffers of exactly the right size, against pages that end the process when they are read or written."""
    loops_of(way)
    done = run("-m", "tests.scan.guarded", way, "1", str(rounds))
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
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory and a process in which nothing was looked for yet."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(WAY_VARIABLE, raising=False)
    monkeypatch.setattr(wire_code, "_ready", INTERPRETED)
    monkeypatch.setattr(wire_code, "_looked", False)
    monkeypatch.setattr(wire_compiled, "_loaded", {})
    return tmp_path


def test_prepared_loops_replace_the_interpreted_ones_in_what_is_there_already(fresh: Path) -> None:
    splitter = FrameSplitter(magic=0x53, max_body=100)
    assert splitter.loops == "interpreted"
    name = wire_code.prepare()
    assert name.startswith("compiled, ")
    assert splitter.loops == name
    assert AppendEncoder(max_data_length=5).loops == name
    assert FrameSplitter(magic=0x53, max_body=100, compiled=False).loops == "interpreted"


def test_the_cache_is_enough_and_needs_no_numba(fresh: Path) -> None:
    script = (
        "import sys\n"
        "from waltzctl.engine.scan import wire_code\n"
        "from waltzctl.engine.scan.frames import FrameSplitter\n"
        "if sys.argv[1] == 'prepare': wire_code.prepare()\n"
        "print(FrameSplitter(magic=1, max_body=1).loops, 'numba' in sys.modules, 'llvmlite' in sys.modules)\n"
    )
    environment = {"XDG_CACHE_HOME": str(fresh)}
    assert run("-c", script, "-", **environment).stdout == "interpreted False True\n"
    first = run("-c", script, "prepare", **environment).stdout
    assert first.endswith(" True True\n")
    assert run("-c", script, "-", **environment).stdout == first.replace("True True", "False True")
    assert run("-c", script, "prepare", **environment, **{WAY_VARIABLE: "interpreted"}).stdout.startswith(
        "interpreted False"
    )
    assert run("-c", script, "prepare", **environment, **{WAY_VARIABLE: "table"}).stdout.startswith(
        "compiled, table True"
    )


def test_broken_code_in_the_cache_is_compiled_anew(fresh: Path) -> None:
    code_cache.put("other", b"")
    (fresh / "waltzctl" / "code" / wire_compiled._name("table")).write_bytes(b"rubbish")
    assert wire_compiled.load("table").name == "compiled, table"
    assert code_cache.get(wire_compiled._name("table"))


def test_loops_that_answer_wrongly_are_passed_over(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(wire_loops, "BODY_COLUMN", wire_loops.BODY_COLUMN + 1)
        code = wire_compiled._compile("table")
    code_cache.put(wire_compiled._name("table"), code)
    with pytest.raises(object_code.CodeUnavailableError, match="wrong answers"):
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
    "BRIEF",
]


@pytest.mark.parametrize("name", _CONSTANTS)
def test_the_trial_notices_a_constant_that_is_one_off(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial is real: whichever place a loop gets wrong, its answers differ, or it fails."""
    right = wire_trials.answers(INTERPRETED)
    monkeypatch.setattr(wire_loops, name, getattr(wire_loops, name) + 1)
    with contextlib.suppress(struct.error, IndexError, ValueError):
        assert wire_trials.answers(INTERPRETED) != right


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
