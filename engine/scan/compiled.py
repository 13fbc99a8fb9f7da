"""The compiled kernel: machine code for the loop, made once on a machine and kept in the user's cache.

numba translates the loop (`engine.scan.native`) to LLVM IR, llvmlite compiles that to an object file, and later processes load
the file without numba, in a few hundredths of a second.  `WAYS` lists the ways to compute checksums, fastest first; which of them
are available depends on the CPU and on installed libraries.  Before a kernel is used, it must pass a self-test on generated
records; if it fails, the next way is tried.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import mmap
import threading
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from waltzctl.engine.scan import code_cache, crc_kernel, object_code
from waltzctl.engine.scan.columns import COLUMN_TYPES
from waltzctl.engine.scan.kernel import (
    INTERPRETED,
    MARGIN,
    RESULT,
    SLOTS,
    STRETCH,
    Kernel,
    Lane,
    Slot,
    answers,
    made_up_record,
)
from waltzctl.engine.scan.object_code import CodeUnavailableError as CodeUnavailableError

_FEATURES = {
    "clmul512": ("vpclmulqdq", "avx512f", "avx512bw", "avx512vl"),
    "clmul256": ("vpclmulqdq", "avx2"),
    "clmul128": ("pclmul", "sse4.1"),
}
_FUNCTIONS = {"isal": ("isal.isal_zlib", "crc32_gzip_refl"), "zlib-ng": ("zlib_ng.zlib_ng", "zng_crc32_z")}
WAYS = (*_FEATURES, *_FUNCTIONS, "table")
"""Ways to compute checksums: carry-less multiplication in vectors of 512, 256 or 128 bits, a library's function, our tables."""

_MOST_IDLE = 4
"""Lanes that are kept for later walks, at most; each takes a mebibyte or two."""
_LOOP_NAME = "walk_records"
_SOURCES = ("kernel.py", "machine.py", "native.py", "crc_kernel.py", "compiled.py")
_lock = threading.Lock()


class CompiledLane:
    """A lane of the compiled loop."""

    def __init__(
        self, loop: Callable[..., int], way: str, buffer_size: int, rows: int, *, wide: bool, max_length: int
    ) -> None:
        if buffer_size >= crc_kernel.LONGEST:
            raise ValueError(f"a buffer of {buffer_size} bytes is too large for the compiled loop")
        self.size, self.shape = buffer_size, (rows, wide)
        self._loop = loop
        self._buffer = mmap.mmap(-1, buffer_size + MARGIN)
        self.memory = memoryview(self._buffer)
        self._words = np.zeros(SLOTS + len(COLUMN_TYPES), np.int64)
        self.state = memoryview(self._words.data)
        self._tables, function = inputs(way)
        names = list(COLUMN_TYPES) if wide else ["offset", "data_ok"]
        self._columns = {name: np.empty(rows + STRETCH, COLUMN_TYPES[name]) for name in names}
        for place, name in enumerate(COLUMN_TYPES):
            if name in self._columns:
                self._words[SLOTS + place] = self._columns[name].ctypes.data
        self.state[Slot.CAPACITY] = rows
        self.state[Slot.WIDE] = int(wide)
        self.bound(max_length)
        self.state[Slot.TABLES] = self._tables.ctypes.data
        self.state[Slot.FUNCTION] = function
        self._notes = crc_kernel.aligned(crc_kernel.NOTES_SIZE)
        self.state[Slot.NOTES] = self._notes.ctypes.data
        state = self._words.ctypes.data
        memory = np.frombuffer(self._buffer, np.uint8).ctypes.data
        self._error = ctypes.c_void_p()
        self._arguments = (state + 8 * Slot.RESULT, ctypes.addressof(self._error), state, memory, state + 8 * SLOTS)

    def bound(self, max_length: int) -> None:
        """Set the bound for a record's data length."""
        self.state[Slot.MAX_LENGTH] = min(max_length, 2**31 - 1)

    def walk(self) -> int:
        """See `Lane.walk`.  The interpreter lock is not held while the loop runs."""
        if self._loop(*self._arguments):
            raise RuntimeError("the compiled loop failed")  # cannot happen: the loop never raises
        return int(self.state[RESULT])

    def push(self, row: tuple[int | bool, ...]) -> None:
        """See `Lane.push`."""
        place = self.state[Slot.ROW]
        for name, value in zip(COLUMN_TYPES, row, strict=True):
            if name in self._columns:
                self._columns[name][place] = value
        self.state[Slot.ROW] = place + 1

    def take(self, *, copy: bool) -> dict[str, np.ndarray[Any, Any]]:
        """See `Lane.take`."""
        rows = self.state[Slot.ROW]
        self.state[Slot.ROW] = 0
        return {name: column[:rows].copy() if copy else column[:rows] for name, column in self._columns.items()}


class CompiledKernel:
    """The loop as machine code."""

    def __init__(self, way: str, address: int, keep: object) -> None:
        self.name = f"compiled, {way}"
        self.way = way
        word, pointer = ctypes.c_int64, ctypes.c_void_p
        self._loop = ctypes.CFUNCTYPE(ctypes.c_int32, pointer, pointer, word, word, word)(address)
        self._keep = keep
        self._idle: deque[CompiledLane] = deque(maxlen=_MOST_IDLE)

    def lane(self, buffer_size: int, rows: int, *, wide: bool, max_length: int) -> Lane:
        """See `Kernel.lane`.  A lane that was given back is reused, with its memory and columns."""
        with contextlib.suppress(IndexError):  # another thread may take the last one
            for _ in range(len(self._idle)):
                idle = self._idle.pop()
                if idle.size >= buffer_size and idle.shape == (rows, wide):
                    idle.bound(max_length)
                    return idle
                self._idle.appendleft(idle)
        return CompiledLane(self._loop, self.way, buffer_size, rows, wide=wide, max_length=max_length)

    def give_back(self, lane: Lane) -> None:
        """See `Kernel.give_back`."""
        assert isinstance(lane, CompiledLane)
        self._idle.append(lane)


@cache
def _function_address(way: str) -> int:
    """Address of an installed library's checksum function.  Raises CodeUnavailableError."""
    module_name, symbol = _FUNCTIONS[way]
    try:
        module = importlib.import_module(module_name)
        function = getattr(ctypes.CDLL(module.__file__), symbol)
    except (ImportError, OSError, AttributeError) as error:
        raise CodeUnavailableError(f"{way}: {error}") from error
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def inputs(way: str) -> tuple[Any, int]:
    """The table of constants for a way, and the address of its checksum function; 0 for a way without one."""
    width = int(way[5:]) // 64 if way in _FEATURES else 8
    return crc_kernel.tables(width), _function_address(way) if way in _FUNCTIONS else 0


@cache
def available_ways() -> tuple[str, ...]:
    """The ways that can run on this machine, fastest first.  Imports llvmlite; raises ImportError without it."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    ways = []
    for way in WAYS:
        if way in _FEATURES and not all(features.get(feature, False) for feature in _FEATURES[way]):
            continue
        if way in _FUNCTIONS:
            try:
                _function_address(way)
            except CodeUnavailableError:
                continue
        ways.append(way)
    return tuple(ways)


def _code_name(way: str) -> str:
    """Name in the cache."""
    return object_code.code_name(_code_kind(way), _SOURCES)


def _code_kind(way: str) -> str:
    return "call" if way in _FUNCTIONS else way


def cached(way: str | None = None) -> bool:
    """Whether the cache has code for `way` (by default the fastest), so that loading it is quick."""
    try:
        return code_cache.contains(_code_name(way or available_ways()[0]))
    except ImportError:
        return False


def _compile(way: str) -> bytes:
    """An object file with the loop in it, under the name `_LOOP_NAME`, that needs nothing from outside."""
    from waltzctl.engine.scan import native

    return object_code.compile_object({_LOOP_NAME: native.translate(_code_kind(way))})


def _load(way: str) -> CompiledKernel:
    code = object_code.cached_object(_code_name(way), lambda: _compile(way))
    loaded = object_code.load_object(code, [_LOOP_NAME])
    return CompiledKernel(way, loaded.addresses[_LOOP_NAME], loaded.keep)


_loaded: dict[str, CompiledKernel] = {}


def load(way: str) -> Kernel:
    """The compiled kernel that works in this way, compiled now if it has to be.

    Raises CodeUnavailableError when it cannot be had here.
    """
    with _lock:
        if way not in _loaded:
            if way not in available_ways():
                raise CodeUnavailableError(way)
            try:
                kernel = _load(way)
            except Exception as error:  # any error of the compiler: the interpreted loop is the fallback
                raise CodeUnavailableError(f"{way}: {error}") from error
            if not _passes_self_test(kernel):
                raise CodeUnavailableError(f"{way}: wrong answers")
            _loaded[way] = kernel
        return _loaded[way]


def _passes_self_test(kernel: Kernel) -> bool:
    """Whether the kernel gives the same results as the interpreted loop, on valid and on damaged records."""
    lengths = (0, 1, 3, 4, 5, 27, 28, 29, 63, 64, 65, 100, 255, 256, 1023, 1024, 1025, 4095, 4096, 9001, 40000)
    good = b"".join(made_up_record(place, length) for place, length in enumerate(lengths))
    damaged: list[bytes | bytearray] = [good]
    for place in (7, 30, 33, 50, len(good) - 3, len(good) - 30000):
        data = bytearray(good)
        data[place] ^= 4
        damaged.append(data)
    return all(answers(kernel, data) == answers(INTERPRETED, data) for data in damaged)
