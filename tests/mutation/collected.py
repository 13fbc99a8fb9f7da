"""Tests that are collected once and run for many mutants: a process that has a room's test files, forked for each trial.

The mutant is made in memory: the functions that it changes get the code that they would have been compiled to.  It stands in the
file of the copy as well, so that processes which tests start have it.  What runs while a module is imported has run by then, so
that mutants of it are tried by `tests.mutation.server` instead (`applied` says so).
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from tests.mutation.mutants import Mutant
from tests.mutation.server import Answer, NotRunError, bounded, ended, every_turn, forget_ours

_FAILED = 1
_NOT_APPLIED = 71
_OWN_NAMES = 0x0001 | 0x0002
"""Flags of code whose names are its own (CO_OPTIMIZED, CO_NEWLOCALS): a function's, not a module's or a class's."""

Key = tuple[str, int]
"""A code object of a file: its qualified name and its first line."""


def _inner(code: CodeType) -> Iterator[CodeType]:
    return (one for one in code.co_consts if isinstance(one, CodeType))


def _itself(code: CodeType) -> object:
    """What a code object does, without what it defines."""
    values = tuple((type(one), repr(one)) for one in code.co_consts if not isinstance(one, CodeType))
    return code.co_code, values, code.co_names, code.co_varnames, code.co_freevars, code.co_exceptiontable


def replacements(old: CodeType, new: CodeType, live: Mapping[CodeType, object]) -> dict[CodeType, CodeType] | None:
    """Of two codes of one module, which of the `live` functions' are to be replaced by which.

    None where that would not do: something differs that ran when the module was imported.
    """
    replaced: dict[CodeType, CodeType] = {}

    def walk(before: CodeType, after: CodeType, inside: bool) -> bool | None:
        """Whether they differ; None for a difference that no live function has."""
        inside = inside or before in live
        inner, others = list(_inner(before)), list(_inner(after))
        differs = _itself(before) != _itself(after)
        if differs and not (inside and before.co_flags & _OWN_NAMES == _OWN_NAMES):
            return None
        if [one.co_qualname for one in inner] != [one.co_qualname for one in others]:
            if not inside:
                return None
            differs = True
        else:
            for one, other in zip(inner, others, strict=True):
                told = walk(one, other, inside)
                if told is None:
                    return None
                differs = differs or told
        if differs and before in live:
            replaced[before] = after
        return differs

    return replaced if walk(old, new, False) is not None else None


class _Program:
    """The functions of the copy's program that are there after collection, and what they remember."""

    def __init__(self, root: Path) -> None:
        self._functions: dict[str, list[FunctionType]] = {}
        self._remembering = []
        ours = f"{os.path.realpath(root)}/"
        for one in gc.get_objects():
            if type(one) is FunctionType:
                file = os.path.realpath(one.__code__.co_filename)
                if file.startswith(ours):
                    self._functions.setdefault(file, []).append(one)
            elif type(one) is functools._lru_cache_wrapper:  # isinstance would ask what a dead proxy stands for
                self._remembering.append(one)

    def apply(self, file: Path, before: bytes, after: bytes) -> bool:
        """Give the functions of a file the code of its changed text; whether that was possible."""
        functions = self._functions.get(os.path.realpath(file), [])
        if not functions:
            return False
        live: dict[CodeType, list[FunctionType]] = {}
        for one in functions:
            live.setdefault(one.__code__, []).append(one)
        name = functions[0].__code__.co_filename
        old = compile(before, name, "exec", dont_inherit=True)
        new = compile(after, name, "exec", dont_inherit=True)
        replaced = replacements(old, new, live)
        if not replaced:
            return False
        try:
            for code, other in replaced.items():
                for one in live[code]:
                    one.__code__ = other
        except ValueError:  # it closes over something else now
            return False
        for one in self._remembering:
            if getattr(one, "__module__", "").partition(".")[0] in ("waltzctl", "tests", "fixtures"):
                one.cache_clear()
        return True


class _Loop:
    """In place of running what was collected: answers trials, a line each, until there are no more."""

    def __init__(self, root: Path, asked: int, answers: int) -> None:
        self._root, self._asked, self._answers = root, asked, answers
        self._result: Path | None = None

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        program = _Program(self._root)
        gc.freeze()
        with os.fdopen(self._asked, "r") as asked, os.fdopen(self._answers, "w") as answers:
            answers.write("ready\n")
            answers.flush()
            for line in asked:
                answers.write(json.dumps(self._trial(items, program, json.loads(line))) + "\n")
                answers.flush()
        os._exit(0)

    def _trial(self, items: dict[str, pytest.Item], program: _Program, told: dict[str, object]) -> dict[str, object]:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="mutant-") as place:
            result = Path(place) / "result.json"
            child = os.fork()
            if not child:
                self._child(items, program, told, Path(place), result)
            status = ended(child, begun + float(str(told["timeout"])))
            answer: dict[str, object] = {"seconds": time.monotonic() - begun}
            if result.exists():
                return {**answer, "failed": json.loads(result.read_text())}
            log = (Path(place) / "log").read_text(errors="replace")[-2000:] if status == _NOT_APPLIED else ""
            return {**answer, "status": status, "log": log}

    def _child(
        self, items: dict[str, pytest.Item], program: _Program, told: dict[str, object], place: Path, result: Path
    ) -> None:
        """Never returns."""
        code = _NOT_APPLIED
        try:
            bounded(place / "log")
            if told["file"] is not None:
                file = self._root / str(told["file"])
                if not program.apply(file, str(told["before"]).encode(), file.read_bytes()):
                    os._exit(_NOT_APPLIED)
            chosen = [items[test] for test in told["tests"] if test in items]  # type: ignore[attr-defined]
            factory = chosen[0].config._tmp_path_factory  # type: ignore[attr-defined]
            factory._given_basetemp, factory._basetemp = place / "tmp", None
            self._result = result
            code = 0
            for item, behind in zip(chosen, [*chosen[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=behind)
                if result.exists():
                    code = _FAILED
                    break
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self._result is not None and not self._result.exists():
            self._result.write_text(json.dumps(report.nodeid))


class Collected:
    """A process that has collected test files of the copy at `path`.  One trial at a time."""

    def __init__(self, path: Path, files: Sequence[str]) -> None:
        self.path = path
        asked, answers = os.pipe(), os.pipe()
        self._child = os.fork()
        if not self._child:
            os.close(asked[1])
            os.close(answers[0])
            self._collect(files, asked[0], answers[1])
        os.close(asked[0])
        os.close(answers[1])
        self._asks, self._answers = os.fdopen(asked[1], "w"), os.fdopen(answers[0], "r")
        if self._answers.readline() != "ready\n":
            raise RuntimeError(f"tests were not collected, see {self.path / 'collecting.log'}")

    def _collect(self, files: Sequence[str], asked: int, answers: int) -> None:
        """Never returns."""
        try:
            os.setsid()
            log = os.open(self.path / "collecting.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for descriptor, standard in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
                os.dup2(descriptor, standard)
            forget_ours(self.path)
            import hypothesis

            hypothesis.settings.register_profile("mutants", database=None, print_blob=False)
            hypothesis.settings.load_profile("mutants")
            arguments = [
                "-q",
                "-s",
                *every_turn(self.path),
                "-p",
                "no:cacheprovider",
                "--tb=line",
                "--hypothesis-seed=0",
            ]
            arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
            pytest.main([*arguments, *files], plugins=[_Loop(self.path, asked, answers)])
        finally:
            os._exit(_FAILED)

    def run(self, mutant: Mutant | None, before: bytes, tests: Sequence[str], timeout: float) -> Answer | None:
        """Run tests up to the first that fails, with the mutant, which stands in the copy; `before` is its file without it.

        None where the mutant cannot be made in memory.
        """
        told = {"file": mutant and mutant.file, "before": before.decode(), "tests": list(tests), "timeout": timeout}
        self._asks.write(json.dumps(told) + "\n")
        self._asks.flush()
        line = self._answers.readline()
        if not line:
            raise NotRunError(f"the process with the tests ended, see {self.path / 'collecting.log'}")
        told = json.loads(line)
        seconds = told["seconds"]
        if "failed" in told:
            return Answer(told["failed"], "failed", seconds)
        status = told["status"]
        if status is None:
            return Answer("(too long)", "too long", seconds)
        if status == _NOT_APPLIED:
            if told["log"]:
                raise NotRunError(f"{' '.join(tests)[:500]}: not run:\n{told['log']}")
            return None
        return Answer("", "passed", seconds) if status == 0 else Answer(f"(ended with {status})", "died", seconds)

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(BrokenPipeError):
            self._asks.close()
        self._answers.close()
        os.waitpid(self._child, 0)
