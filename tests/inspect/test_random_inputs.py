"""Random and mutated inputs through every parser and through verify: an answer, never a traceback, in bounded memory."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.inspect.helpers import age
from waltzctl.engine.errors import NotWaltzError, WaltzError
from waltzctl.engine.findings import Finding
from waltzctl.engine.inspect.dump import dump_control, dump_index, dump_records, dump_segments
from waltzctl.engine.inspect.resume import ResumeState
from waltzctl.engine.inspect.status import storage_status
from waltzctl.engine.inspect.verify import VerifyOptions, VerifySummary, verify
from waltzctl.engine.scan.byte_source import BytesSource
from waltzctl.engine.scan.scanner import read_record_at, scan_records
from waltzctl.formats.control import CONTROL_HEADER, ControlHeader, Layout, PartitionInfo, decode_control
from waltzctl.formats.request_id import RequestId
from waltzctl.formats.segment import HEADER_SIZE, Record, SegmentHeader, parse_name

FEW, MANY = 1_500, 100_000
FEW_DIRECTORIES = 300
MEMORY = 48 << 20
SLOWEST = 30.0
"""Seconds for one input: a bound for a hang, far above what any takes."""

BOUNDARY = [0, 1, 2**7, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]


def start_measuring() -> int:
    """Forget the peak of this process's resident memory; what it is now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_memory()


def peak_memory() -> int:
    """Peak of this process's resident memory, in bytes."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10


def mutated(source: random.Random, data: bytes) -> bytes:
    """`data` with one to four changes of the kinds that disks, people and attackers make."""
    raw = bytearray(data)
    for _ in range(source.randrange(1, 5)):
        size = len(raw)
        kind = source.randrange(9)
        at = source.randrange(size) if size else 0
        if kind == 0 and size:
            raw[at] ^= 1 << source.randrange(8)
        elif kind == 1:
            del raw[at:]
        elif kind == 2:
            raw[at : at + source.randrange(64)] = source.randbytes(source.randrange(64))
        elif kind == 3:
            width = source.choice([4, 8])
            at = at // 4 * 4
            raw[at : at + width] = (source.choice(BOUNDARY) & ((1 << 8 * width) - 1)).to_bytes(width)
        elif kind == 4:
            raw += source.randbytes(source.randrange(200))
        elif kind == 5:
            raw[at : at + 64] = bytes(64)
        elif kind == 6 and size:
            other = source.randrange(size)
            raw[at : at + 100] = raw[other : other + 100]
        elif kind == 7:
            raw += bytes(source.randrange(300))
        else:
            raw[at : at + 1] = b""
    return bytes(raw)


def anything(source: random.Random, samples: list[bytes]) -> bytes:
    """Mostly mutated samples, sometimes nothing but noise."""
    if source.random() < 0.1:
        return source.randbytes(source.choice([0, 1, 36, 40, 127, 128, 129, 280, 1000]))
    return mutated(source, source.choice(samples))


def scan(data: bytes) -> None:
    for batch in scan_records(BytesSource(data), first_transaction_id=0, data=True):
        if hasattr(batch, "record_bytes"):
            for place in range(len(batch)):
                Record.decode(bytes(batch.record_bytes(place)))


def parsers(tmp_path: Path) -> list[tuple[str, Callable[[bytes], object]]]:
    """Every function that takes bytes or a file, and is allowed to say ValueError (or struct.error) to what is no such thing."""
    state = tmp_path / "state.json"

    def resume(data: bytes) -> None:
        state.write_bytes(data)
        ResumeState(state, VerifyOptions())

    return [
        ("control file", lambda data: decode_control(data) if len(data) >= CONTROL_HEADER.size else None),
        ("control header", lambda data: ControlHeader.decode(data.ljust(128, b"\0"))),
        ("partition info", lambda data: [PartitionInfo.decode(one, 0, data.ljust(76, b"\0")) for one in Layout]),
        ("segment header", lambda data: SegmentHeader.decode(data.ljust(128, b"\0"))),
        ("record", lambda data: _value_error(Record.decode, data)),
        ("request id", lambda data: RequestId.decode(data.ljust(16, b"\0")[:16])),
        ("name", lambda data: parse_name(data.decode("latin-1"))),
        ("scan", scan),
        ("single record", lambda data: read_record_at(BytesSource(data), min(HEADER_SIZE, len(data)), expected_id=0)),
        ("state file", lambda data: _waltz_error(resume, data)),
    ]


def _value_error(parse: Callable[[bytes], object], data: bytes) -> None:
    try:
        parse(data)
    except ValueError:
        return


def _waltz_error(parse: Callable[[bytes], object], data: bytes) -> None:
    try:
        parse(data)
    except WaltzError:
        return


def how_many(request: pytest.FixtureRequest, few: int) -> int:
    return MANY if request.config.getoption("--long") else few


def test_every_parser_answers_to_every_input(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Noise and mutations of real files."""
    storage = build_directory(tmp_path / "s", {0: 40, 1: 3}, per_segment=20)
    samples = [path.read_bytes() for path in storage.rglob("*") if path.is_file()]
    samples += [sample[HEADER_SIZE:] for sample in samples] + [b'{"schema": "waltzctl.verify-state/1", "segments": {}}']
    source, count, slowest = random.Random(1), how_many(request, FEW), 0.0
    every = parsers(tmp_path)
    start = start_measuring()
    for number in range(count):
        data = anything(source, samples)
        name, parse = every[number % len(every)]
        before = time.monotonic()
        try:
            parse(data)
        except Exception as error:
            raise AssertionError(f"{name}: input {number}: {data.hex()}") from error
        slowest = max(slowest, time.monotonic() - before)
    peak = peak_memory() - start
    print(f"{count} inputs through {len(every)} parsers; slowest {slowest:.3f} s, {peak >> 20} MiB more than before")
    assert peak < MEMORY
    assert slowest < SLOWEST


@pytest.mark.turns(8)
def test_verify_answers_to_every_directory(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """One to three files of a directory replaced; every inspecting function, in turn with verify, and nothing is written."""
    pristine = age(build_directory(tmp_path / "p", {0: 40, 1: 3}, per_segment=20, layout=Layout.RELEASED))
    storage = tmp_path / "s"
    shutil.copytree(pristine, storage)
    names = sorted(str(path.relative_to(pristine)) for path in pristine.rglob("*") if path.is_file())
    originals = {name: (pristine / name).read_bytes() for name in names}
    source, count, slowest = random.Random(2), how_many(request, FEW_DIRECTORIES), 0.0
    statuses: Counter[str] = Counter()
    other: list[tuple[str, Callable[[], object]]] = [
        ("records", lambda: list(dump_records(storage))),
        ("reverse", lambda: list(dump_records(storage, reverse=True))),
        ("index", lambda: list(dump_index(storage))),
        ("segments", lambda: list(dump_segments(storage))),
        ("control", lambda: dump_control(storage)),
        ("status", lambda: storage_status(storage)),
        ("quick", lambda: list(verify([storage], VerifyOptions(quick=True)))),
        ("sample", lambda: list(verify([storage], VerifyOptions(sample=0.5, sample_seed=0)))),
    ]
    start = start_measuring()
    for number in range(count):
        changed = source.sample(names, source.choice([1, 1, 1, 2, 3]))
        for name in changed:
            (storage / name).write_bytes(anything(source, [originals[name]]))
        age(storage)
        before = time.monotonic()
        what, call = other[number % len(other)]
        try:
            *findings, summary = verify([storage])
            assert isinstance(summary, VerifySummary)
            assert all(isinstance(one, Finding) for one in findings)
            assert summary.complete
            statuses[summary.status] += 1
            if number % 4 == 0:
                call()
        except Exception as error:
            kept = {name: (storage / name).read_bytes().hex() for name in changed}
            raise AssertionError(f"{what}: input {number}: {kept}") from error
        slowest = max(slowest, time.monotonic() - before)
        for name in changed:
            (storage / name).write_bytes(originals[name])
    peak = peak_memory() - start
    print(f"{count} directories: {dict(statuses)}; slowest {slowest:.3f} s, {peak >> 20} MiB more than before")
    assert statuses["damaged"] > count // 3
    assert peak < MEMORY
    assert slowest < SLOWEST


def test_paths_of_every_kind_are_answered(tmp_path: Path) -> None:
    """A pipe, a socket, a loop of links, a file where a directory should be: refused or named, never a hang."""
    storage = age(build_directory(tmp_path / "s", {0: 4}))
    os.mkfifo(storage / "0" / "0000000000000000099.seg")
    os.symlink(storage, storage / "0" / "loop")
    os.symlink("nowhere", storage / "0" / "0000000000000000098.idx")
    (storage / "1").write_text("no directory")
    *findings, _ = verify([storage])
    assert {one.code.value for one in findings if isinstance(one, Finding)} == {
        "special-file",
        "unknown-file",
    }
    assert len(findings) == 4
    for path in (storage / "1", storage / "0" / "0000000000000000099.seg", Path("/dev/null")):
        with pytest.raises(NotWaltzError):
            verify([path])
