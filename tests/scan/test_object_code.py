"""Object files: what their names depend on, and what is refused."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from waltzctl.engine.scan import compiled, object_code, wire_compiled
from waltzctl.engine.scan.object_code import CodeUnavailableError, LoadedCode, code_name, compile_object, load_object
from waltzctl.engine.scan.wire_loops import new_state

llvmlite = pytest.importorskip("llvmlite", exc_type=ImportError)
import llvmlite.binding as llvm  # noqa: E402

SOURCES = ("kernel.py", "machine.py")


class _Features:
    def flatten(self) -> str:
        return "+everything"


CHANGES: dict[str, Callable[[pytest.MonkeyPatch, Path], object]] = {
    "nothing": lambda patch, here: None,
    "the compiler": lambda patch, here: patch.setattr(llvmlite, "__version__", "0.0"),
    "the processor": lambda patch, here: patch.setattr(llvm, "get_host_cpu_name", lambda: "another"),
    "what it can do": lambda patch, here: patch.setattr(llvm, "get_host_cpu_features", _Features),
    "a source": lambda patch, here: (here / "machine.py").write_text("changed"),
    "another source": lambda patch, here: (here / "kernel.py").write_text("changed"),
    "how it is compiled": lambda patch, here: (here / "object_code.py").write_text("changed"),
}


def test_a_name_depends_on_everything_that_code_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_code, "__file__", str(tmp_path / "object_code.py"))
    names = set()
    for change in CHANGES.values():
        for name in (*SOURCES, "object_code.py", "other.py"):
            (tmp_path / name).write_text(name)
        with monkeypatch.context() as patch:
            change(patch, tmp_path)
            names.add(code_name("kind", SOURCES))
    assert len(names) == len(CHANGES)
    assert all(re.fullmatch("kind-[0-9a-f]{32}", name) for name in names)
    assert code_name("other", SOURCES)[:6] == "other-"


def test_each_kind_of_code_has_its_name() -> None:
    kernels = {way: compiled._code_name(way).partition("-")[0] for way in compiled.WAYS}
    assert kernels == {way: "call" if way in ("isal", "zlib-ng") else way for way in compiled.WAYS}
    loops = {way: wire_compiled._name(way).rpartition("-")[0] for way in wire_compiled.WAYS}
    assert loops == {"isal": "wire-call", "zlib-ng": "wire-call", "table": "wire-table"}


def _text(body: str) -> str:
    return f"declare i64 @outside(i64)\n{body}\n"


ALONE = "define i64 @any(i64 %a) {\n  ret i64 %a\n}"
CALLING = "define i64 @any(i64 %a) {\n  %b = call i64 @outside(i64 %a)\n  ret i64 %b\n}"


def test_what_needs_something_from_outside_is_refused() -> None:
    with pytest.raises(CodeUnavailableError, match=r"^it calls something outside$"):
        compile_object({"it": _text(CALLING)})


def test_a_function_that_is_not_there_is_refused() -> None:
    code = compile_object({"one": ALONE, "two": ALONE})
    loaded: Any = load_object(code, ["one", "two"])
    assert len({*loaded.addresses.values()}) == 2
    assert set(loaded.addresses) == {"one", "two"}
    for names in (["one", "three"], ["three", "one"]):
        with pytest.raises(CodeUnavailableError, match="does not hold what it should"):
            load_object(code, names)


VECTORS = {
    "clmul512": ("vpclmulqdq", "avx512f", "avx512bw", "avx512vl"),
    "clmul256": ("vpclmulqdq", "avx2"),
    "clmul128": ("pclmul", "sse4.1"),
}


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[set[str], set[str]], list[str]]]:
    """The ways of a machine that can do some things and has some libraries."""

    def found(features: set[str], libraries: set[str]) -> list[str]:
        def address(way: str) -> int:
            if way not in libraries:
                raise CodeUnavailableError(way)
            return 1

        monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: dict.fromkeys(features, True) | {"mmx": False})
        monkeypatch.setattr(compiled, "_function_address", address)
        compiled.available_ways.cache_clear()
        return list(compiled.available_ways())

    yield found
    compiled.available_ways.cache_clear()


def test_a_machine_has_the_ways_for_which_it_can_do_everything(ways: Callable[..., list[str]]) -> None:
    every = {feature for features in VECTORS.values() for feature in features}
    assert ways(every, {"isal", "zlib-ng"}) == ["clmul512", "clmul256", "clmul128", "isal", "zlib-ng", "table"]
    assert ways(set(), {"zlib-ng"}) == ["zlib-ng", "table"]
    assert ways(set(), set()) == ["table"]
    for way, features in VECTORS.items():
        assert way in ways({*features}, set())
        for feature in features:
            assert way not in ways(every - {feature}, set())


@pytest.mark.parametrize("function", [("no_such_module", "f"), ("_struct", "no_such_function"), ("sys", "f")])
def test_a_library_that_is_not_there_is_no_way(function: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compiled._FUNCTIONS, "isal", function)
    with pytest.raises(CodeUnavailableError, match=r"^isal: "):
        compiled._function_address.__wrapped__("isal")


def test_a_loop_that_fails_is_an_error() -> None:
    """It has no way to; but nothing would be told then."""
    kernel = compiled.CompiledKernel("table", *_failing(2, 3))
    with pytest.raises(RuntimeError, match=r"^the compiled loop failed$"):
        kernel.lane(100, 1, wide=True, max_length=1).walk()
    address, function = _failing(5, 0)
    code = LoadedCode(dict.fromkeys(wire_compiled._ARGUMENTS, address), function)
    loops = wire_compiled.CompiledLoops("table", code)
    with pytest.raises(RuntimeError, match=r"^the compiled loop split failed$"):
        loops.split(new_state(), bytearray(8), np.zeros((1, 8), np.int64))


def _failing(pointers: int, words: int) -> tuple[int, Any]:
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * pointers, *[ctypes.c_int64] * words)
    function = kind(lambda *_: 1)
    return ctypes.cast(function, ctypes.c_void_p).value or 0, function


def test_a_way_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(CodeUnavailableError, match=r"^no such way$"):
        compiled.load("no such way")
