"""The compiled wire loops: loaded from the user's cache, or compiled once on a machine.

Checksums are computed by an installed library's function, called by its address, or by our own tables.  Before the loops are used
they must pass a self-test on generated input (`engine.scan.wire_trials`); if they fail, the next way is tried.
"""

from __future__ import annotations

import ctypes
import threading
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from waltzctl.engine.scan import code_cache, compiled, object_code
from waltzctl.engine.scan.object_code import CodeUnavailableError, LoadedCode
from waltzctl.engine.scan.wire_layout import FILLED, FUNCTION, POSITION, READ, RESULT, TABLES
from waltzctl.engine.scan.wire_loops import INTERPRETED, State, Table

WAYS = ("isal", "zlib-ng", "table")
"""Ways to compute checksums, fastest first."""

_SOURCES = (
    "kernel.py",
    "machine.py",
    "native.py",
    "crc_kernel.py",
    "compiled.py",
    "wire_layout.py",
    "wire_memory.py",
    "wire_loops.py",
    "list_loops.py",
    "client_loops.py",
    "lock_loops.py",
    "wire_native.py",
    "wire_compiled.py",
)
_ARGUMENTS: Mapping[str, tuple[int, int]] = {
    "split": (2, 0),
    "encode": (4, 0),
    "encode_groups": (5, 0),
    "to_list": (2, 1),
    "answer_lists": (6, 0),
    "take_appends": (6, 0),
    "number_records": (3, 0),
    "admit_appends": (5, 0),
    "settle_appends": (4, 0),
}
"""The arguments of each loop after its state: the number of pointers, and the number of words."""
_loaded: dict[str, CompiledLoops] = {}
_lock = threading.Lock()


_Byte = ctypes.c_char * 1


def _read_function() -> int:
    """Address of the system's ``preadv2``; where there is none, of a function that always fails."""
    function: Any = getattr(ctypes.CDLL(None), "preadv2", _CANNOT_READ)
    return ctypes.cast(function, ctypes.c_void_p).value or 0


_CANNOT_READ = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_int32
)(lambda *_: -1)
_READ = _read_function()


def _address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _pointer(memory: Any) -> Any:
    """A pointer argument to the start of `memory`, which the caller keeps alive; much faster than ``ndarray.ctypes``."""
    if type(memory) is bytes:
        return memory
    if type(memory) is array:
        return memory.buffer_info()[0]
    try:
        return _Byte.from_buffer(memory)
    except (TypeError, ValueError):  # read-only, or empty
        return _address(np.frombuffer(memory, np.uint8))


_SHORT = 32 << 10
"""Bytes of input up to which a loop keeps the interpreter lock: it is finished before another thread could use the lock."""


class CompiledLoops:
    """The loops as machine code.  Thread-safe; the interpreter lock is released for inputs of more than _SHORT bytes."""

    def __init__(self, way: str, code: LoadedCode) -> None:
        self.name = f"compiled, {way}"
        self._free, self._held = (
            {
                name: kind(ctypes.c_int32, *[ctypes.c_void_p] * (3 + pointers), *[ctypes.c_int64] * words)(
                    code.addresses[name]
                )
                for name, (pointers, words) in _ARGUMENTS.items()
            }
            for kind in (ctypes.CFUNCTYPE, ctypes.PYFUNCTYPE)
        )
        self._error = ctypes.c_void_p()
        self._keep = code.keep
        self._tables, self._function = compiled.inputs(way)
        self._tables_address = _address(self._tables)

    def _run(self, name: str, state: State, *arguments: Any) -> int:
        address, _ = state.buffer_info()
        state[TABLES], state[FUNCTION], state[READ] = self._tables_address, self._function, _READ
        call = (self._held if state[FILLED] - state[POSITION] <= _SHORT else self._free)[name]
        if call(address + 8 * RESULT, ctypes.addressof(self._error), address, *arguments):
            raise RuntimeError(f"the compiled loop {name} failed")  # cannot happen: the loops never raise
        return state[RESULT]

    def split(self, state: State, buffer: Any, table: Table) -> int:
        """See `engine.scan.wire_code.Loops.split`."""
        return self._run("split", state, _pointer(buffer), _pointer(table))

    def encode(self, state: State, buffer: Any, table: Table, offsets: Table, out: Any) -> int:
        """See `engine.scan.wire_code.Loops.encode`."""
        return self._run("encode", state, _pointer(buffer), _pointer(table), _pointer(offsets), _pointer(out))

    def encode_groups(self, state: State, buffer: Any, table: Table, groups: Table, offsets: Table, out: Any) -> None:
        """See `engine.scan.wire_code.Loops.encode_groups`."""
        self._run(
            "encode_groups",
            state,
            _pointer(buffer),
            _pointer(table),
            _pointer(groups),
            _pointer(offsets),
            _pointer(out),
        )

    def to_list(self, state: State, buffer: Any, out: Any, *, brief: bool) -> int:
        """See `engine.scan.wire_code.Loops.to_list`."""
        return self._run("to_list", state, _pointer(buffer), _pointer(out), int(brief))

    def answer_lists(
        self, state: State, buffer: Any, table: Table, segment: State, heads: bytes, scratch: Any, out: Any
    ) -> int:
        """See `engine.scan.wire_code.Loops.answer_lists`."""
        return self._run("answer_lists", state, *map(_pointer, (buffer, table, segment, heads, scratch, out)))

    def take_appends(
        self, state: State, buffer: Any, runs: Table, places: Table, held: Table, locks: Table, out: Any
    ) -> None:
        """See `engine.scan.wire_code.Loops.take_appends`."""
        self._run("take_appends", state, *map(_pointer, (buffer, runs, places, held, locks, out)))

    def number_records(self, state: State, records: bytearray, feed: bytes, out: bytearray) -> int:
        """See `engine.scan.wire_code.Loops.number_records`."""
        return self._run("number_records", state, _pointer(records), _pointer(feed), _pointer(out))

    def admit_appends(
        self, state: State, written: State, in_flight: State, appends: State, locks: State, verdicts: State
    ) -> int:
        """See `engine.scan.wire_code.Loops.admit_appends`."""
        return self._run("admit_appends", state, *map(_pointer, (written, in_flight, appends, locks, verdicts)))

    def settle_appends(self, state: State, written: State, in_flight: State, appends: State, locks: State) -> int:
        """See `engine.scan.wire_code.Loops.settle_appends`."""
        return self._run("settle_appends", state, *map(_pointer, (written, in_flight, appends, locks)))


def _kind(way: str) -> str:
    return way if way == "table" else "call"


def _name(way: str) -> str:
    return object_code.code_name(f"wire-{_kind(way)}", _SOURCES)


def _compile(way: str) -> bytes:
    from waltzctl.engine.scan import wire_native

    return object_code.compile_object(wire_native.translate(_kind(way)))


def load(way: str) -> CompiledLoops:
    """The loops that work in this way, compiled now if they have to be.  Raises CodeUnavailableError."""
    with _lock:
        if way not in _loaded:
            try:
                if way not in compiled.available_ways():
                    raise CodeUnavailableError(way)
                code = object_code.cached_object(_name(way), lambda: _compile(way))
                loops = CompiledLoops(way, object_code.load_object(code, list(_ARGUMENTS)))
            except Exception as error:  # any error of the compiler: the interpreted loops are the fallback
                raise CodeUnavailableError(f"{way}: {error}") from error
            if not _passes_self_test(loops):
                raise CodeUnavailableError(f"{way}: wrong answers")
            _loaded[way] = loops
        return _loaded[way]


def best(named: str | None, *, compile_now: bool) -> CompiledLoops | None:
    """The fastest available loops, or those of the way `named`; without `compile_now` from the cache only.  None: none."""
    ways = (named,) if named in WAYS else WAYS
    for way in ways:
        try:
            if compile_now or code_cache.contains(_name(way)):
                return load(way)
        except (CodeUnavailableError, ImportError):
            continue
    return None


def _passes_self_test(loops: CompiledLoops) -> bool:
    """Whether the loops give the same results as the interpreted ones, on valid and on damaged input."""
    from waltzctl.engine.scan.wire_trials import answers

    return answers(loops) == answers(INTERPRETED)
