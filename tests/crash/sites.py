"""Where in the engine a sync is called: a name for each place that does not hang on line numbers.

``engine/storage/segment_files.py ActiveSegment.append 1 sync`` is the first call in that function that syncs.  A call of one of
the `COMPOSED` functions is several syncs, each with a name of its own: ``... 1 write_whole/file`` and
``... 1 write_whole/directory``.
What such a function does inside is told as its callers'.
"""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType

import waltzctl.engine

ENGINE = Path(waltzctl.engine.__file__).parent
COMPOSED: dict[str, tuple[str, ...]] = {
    "write_whole": ("/file", "/directory"),
    "replacing": ("/file", "/directory"),
    "move_directory": ("/made", "/target", "/source"),
}
"""Functions of `engine.durable.disk` that sync, and how many times."""
CALLS = {"sync", "sync_file", "sync_directory", "sync_index", "make_directories_above", *COMPOSED}
INSIDE = {
    ("engine/durable/disk.py", name)
    for name in (
        *COMPOSED,
        "make_directories_above",
        "sync_file",
        "sync_directory",
        "WritableFile.sync",
        "_changed",
        "WritableFile.write_at",
    )
} | {
    ("engine/storage/segment_files.py", "ActiveSegment.sync_index"),
    ("engine/storage/partition_recovery.py", "sync_file"),
}
"""Functions that sync for others: a call of one of them is the place that counts."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call that syncs: the place's name without a part, and its lines."""

    name: str
    function: str
    kind: str
    first: int
    last: int

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of its syncs."""
        return tuple(self.name + part for part in COMPOSED.get(self.kind, ("",)))


class _Visitor(ast.NodeVisitor):
    def __init__(self, file: str) -> None:
        self._file = file
        self._names: list[str] = []
        self._counts: dict[str, int] = {}
        self.calls: list[Call] = []

    def _inside(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        self._names.append(node.name)
        self.generic_visit(node)
        self._names.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._inside(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._inside(node)

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        kind = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if kind in CALLS:
            function = ".".join(self._names)
            order = self._counts[function] = self._counts.get(function, 0) + 1
            name = f"{self._file} {function} {order} {kind}"
            self.calls.append(Call(name, function, kind, node.lineno, node.end_lineno or node.lineno))


_PARSING = threading.Lock()
"""Two threads that make syntax trees at once disturb each other in CPython 3.11: it counts the depth for both together."""


@cache
def calls_in(file: str) -> tuple[Call, ...]:
    """The calls of one file of the engine, ``engine/...``, those of `INSIDE` as well."""
    visitor = _Visitor(file)
    with _PARSING:
        tree = ast.parse((ENGINE.parent / file).read_text())
    visitor.visit(tree)
    return tuple(visitor.calls)


def all_sites() -> Iterator[str]:
    """Every place of the engine that syncs."""
    for path in sorted(ENGINE.rglob("*.py")):
        file = path.relative_to(ENGINE.parent).as_posix()
        for call in calls_in(file):
            if (file, call.function) not in INSIDE:
                yield from call.sites


@cache
def _file_of(filename: str) -> str | None:
    path = Path(filename)
    return path.relative_to(ENGINE.parent).as_posix() if path.is_relative_to(ENGINE) else None


def _call_at(file: str, line: int) -> Call | None:
    return next((call for call in calls_in(file) if call.first <= line <= call.last), None)


def calling_site(directory: bool) -> str:
    """The place whose sync is being observed; `directory`: whether it is that of a directory.  Raises LookupError."""
    frame: FrameType | None = sys._getframe(1)
    inner = 0
    while frame is not None:
        file = _file_of(frame.f_code.co_filename)
        if file is not None:
            call = _call_at(file, frame.f_lineno)
            if call is None:
                if (file, frame.f_code.co_qualname) not in INSIDE:
                    raise LookupError(f"{file}, line {frame.f_lineno}: no call of {sorted(CALLS)} is known here")
            elif (file, call.function) not in INSIDE:
                parts = COMPOSED.get(call.kind, ("",))
                return call.name + (
                    parts[inner] if call.kind == "move_directory" else parts[directory * (len(parts) > 1)]
                )
            elif call.function == "move_directory":
                inner = int(call.name.split()[2]) - 1
        frame = frame.f_back
    raise LookupError("nobody in the engine has called this sync")
