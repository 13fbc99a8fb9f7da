"""Mutants of a source file: one small, well-formed change each, made in the text so that everything else keeps its line.

What is changed: comparisons (one step to each side, the opposite), ``and``/``or`` and their operands, ``not``, conditions (never
taken), integers (one more, one less), truth values, arithmetic, ``min``/``max``, ``any``/``all``, orders (``sorted``,
``reversed``), ``break``/``continue``; statements left out: calls, raises, assignments to attributes and elements; what is
returned.  What is not: annotations, decorators, texts, what is only said to a log, and guards
of programmers (`assert`, `zip(strict=)`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import PurePosixPath

_COMPARED: dict[type[ast.cmpop], tuple[str, str, int]] = {
    ast.Lt: ("<", "<=", -1),
    ast.LtE: ("<=", "<", 1),
    ast.Gt: (">", ">=", 1),
    ast.GtE: (">=", ">", -1),
    ast.Eq: ("==", "!=", 0),
    ast.NotEq: ("!=", "==", 0),
    ast.Is: ("is", "is not", 0),
    ast.IsNot: (r"is\s+not", "is", 0),
    ast.In: ("in", "not in", 0),
    ast.NotIn: (r"not\s+in", "in", 0),
}
"""The operator (as a pattern), what stands there instead, and the step of its right side that goes the other way."""
_ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}
_ORDERED = {"sorted": "list", "reversed": "iter"}
_SAID = frozenset({"debug", "info", "warning", "error", "exception", "log"})
_LOGS = re.compile(r"(^|[._])log(s|ger)?$", re.IGNORECASE)


@dataclass(frozen=True)
class Mutant:
    """One change of `file` (from the root, with ``/``): in `function` (qualified; empty outside of any), `new` for `old`.

    `old` and `new` are the changed lines without their indentation; `nth` counts equal changes of a function, from 1.  `start`
    and `end` are the bytes that `text` takes the place of, `line` the line of the first.
    """

    file: str
    function: str
    old: str
    new: str
    nth: int
    line: int
    start: int
    end: int
    text: str

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """What stays while code around it changes."""
        return self.file, self.function, self.old, self.new, self.nth

    def __str__(self) -> str:
        again = f" (#{self.nth})" if self.nth > 1 else ""
        return f"{self.file}:{self.line} {self.function}: {self.old}  ->  {self.new}{again}"

    def made_in(self, source: bytes) -> bytes:
        """The file's bytes with the change."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutants_of(file: str, source: bytes) -> list[Mutant]:
    """Every mutant of a file, in the order of the places.  A few would not compile; whoever tries them leaves those out."""
    seen: set[tuple[int, int, str]] = set()
    counts: dict[tuple[str, str, str], int] = {}
    mutants: list[Mutant] = []
    changes = _Changes(source)
    changes.visit(ast.parse(source, file))
    for start, end, text, function in sorted(changes.found):
        if (start, end, text) in seen or source[start:end] == text.encode():
            continue
        seen.add((start, end, text))
        begin = source.rfind(b"\n", 0, start) + 1
        behind = source.find(b"\n", end)
        old = _flat(source[begin:behind])
        new = _flat(source[begin:start] + text.encode() + source[end:behind])
        nth = counts[function, old, new] = counts.get((function, old, new), 0) + 1
        line = source.count(b"\n", 0, start) + 1
        mutants.append(Mutant(str(PurePosixPath(file)), function, old, new, nth, line, start, end, text))
    return mutants


def compiles(mutant: Mutant, source: bytes) -> bool:
    """Whether the mutant is a program."""
    try:
        compile(mutant.made_in(source), mutant.file, "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def _flat(lines: bytes) -> str:
    return " ".join(line.strip() for line in lines.decode().splitlines())


class _Changes(ast.NodeVisitor):
    """Collects (first byte, byte behind, text, function) of every change."""

    def __init__(self, source: bytes) -> None:
        self.found: list[tuple[int, int, str, str]] = []
        self._source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._names: list[str] = []
        self._returns: list[str] = []

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._lines[node.lineno - 1] + node.col_offset, self._lines[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr | ast.stmt) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _add(self, span: tuple[int, int], text: str) -> None:
        self.found.append((*span, text, ".".join(self._names)))

    def _replace(self, node: ast.expr | ast.stmt, text: str) -> None:
        self._add(self._span(node), text)

    def _between(self, left: ast.expr, right: ast.expr, pattern: str, text: str) -> None:
        """Put `text` for what `pattern` matches first between two operands."""
        start, end = self._span(left)[1], self._span(right)[0]
        uncommented = re.sub(rb"#[^\n]*", lambda comment: b" " * len(comment[0]), self._source[start:end])
        found = re.search(pattern.encode(), uncommented)
        if found:
            self._add((start + found.start(), start + found.end()), text)

    # What is left as it is.

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Texts."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """For readers and type checkers."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            if isinstance(node.target, ast.Attribute | ast.Subscript) and "__init__" not in self._names:
                self._replace(node, "pass")

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._names.append(node.name)
        self._returns.append("" if node.returns is None else self._text(node.returns))
        if node.name not in ("__repr__", "__str__"):
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    self.visit(default)
            for statement in node.body:
                self.visit(statement)
        self._names.pop()
        self._returns.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._names.append(node.name)
        for statement in node.body:
            self.visit(statement)
        self._names.pop()

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.body)

    # What is changed.

    def visit_Compare(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            pattern, other, step = _COMPARED[type(operator)]
            word = rf"\b{pattern}\b" if pattern[0].isalpha() else re.escape(pattern)
            self._between(left, right, word, other)
            if step and not isinstance(right, ast.Constant | ast.Tuple):
                self._replace(right, f"({self._text(right)}) {'+' if step > 0 else '-'} 1")
            elif step and isinstance(right, ast.Constant) and type(right.value) is int:
                self._replace(right, str(right.value + step))
            self.visit(left)
            left = right
        if not isinstance(node.ops[-1], ast.Lt | ast.LtE | ast.Gt | ast.GtE) or not isinstance(left, ast.Constant):
            self.visit(left)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        both = isinstance(node.op, ast.And)
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(left, right, r"\band\b" if both else r"\bor\b", "or" if both else "and")
        for value in node.values:
            self._replace(value, str(both))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            start, end = self._span(node)
            self._add((start, end), self._source[start + 3 : end].decode().strip())
        self.generic_visit(node)

    def _condition(self, test: ast.expr) -> None:
        if "TYPE_CHECKING" not in self._text(test) and not isinstance(test, ast.Constant):
            self._replace(test, "False")

    def visit_If(self, node: ast.If) -> None:
        if "TYPE_CHECKING" in self._text(node.test):
            return
        self._condition(node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._condition(node.test)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace(node, str(not node.value))
        elif isinstance(node.value, int):
            self._replace(node, str(node.value + 1))
            self._replace(node, str(node.value - 1) if node.value else "(-1)")

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in _ARITHMETIC and not any(self._says(side) for side in (node.left, node.right)):
            pattern, other = _ARITHMETIC[type(node.op)]
            self._between(node.left, node.right, re.escape(pattern), other)
        self.generic_visit(node)

    @staticmethod
    def _says(node: ast.expr) -> bool:
        """Whether it is a text or a type, of which there is no difference or quotient."""
        if isinstance(node, ast.Constant):
            return node.value is None or isinstance(node.value, str | bytes)
        name = node.id if isinstance(node, ast.Name) else ""
        return isinstance(node, ast.JoinedStr) or (name[:1].isupper() and not name.isupper())

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if type(node.op) in _ARITHMETIC and not self._says(node.value):
            pattern, other = _ARITHMETIC[type(node.op)]
            self._between(node.target, node.value, re.escape(pattern), other)
        self._replace(node, "pass")
        self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.targets[0], ast.Name) and node.targets[0].id in ("__all__", "__slots__"):
            return
        attribute = any(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
        if attribute and len(node.targets) == 1 and "__init__" not in self._names:
            self._replace(node, "pass")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call):
            called = call.func
            if isinstance(called, ast.Attribute) and called.attr in _SAID and _LOGS.search(self._text(called.value)):
                return
            self._replace(node, "pass")
        if not isinstance(node.value, ast.Constant):
            self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        self._replace(node, "pass")
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        kind = self._returns[-1] if self._returns else ""
        if node.value is None:
            return
        if kind == "bool":
            for truth in (True, False):
                self._replace(node.value, str(truth))
        elif kind == "int" and not isinstance(node.value, ast.Constant):
            self._replace(node.value, f"({self._text(node.value)}) + 1")
        elif kind != "None" and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._replace(node.value, "None")
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self._replace(node, "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace(node, "break")

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in _CALLED:
            self._replace(node.func, _CALLED[name])
        elif name in _ORDERED and len(node.args) == 1:
            self._replace(node, f"{_ORDERED[name]}({self._text(node.args[0])})")
        for each in (node.func, *node.args, *(word.value for word in node.keywords if word.arg != "strict")):
            self.visit(each)


def sampled(mutants: Iterable[Mutant], seed: int) -> list[Mutant]:
    """All of them, in an order that the seed gives and that mutants of other code do not change."""

    def rank(mutant: Mutant) -> bytes:
        return blake2b(repr((seed, mutant.key)).encode(), digest_size=8).digest()

    return sorted(mutants, key=rank)
