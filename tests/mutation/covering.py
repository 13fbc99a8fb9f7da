"""Which tests reach which line: a plugin of pytest that records it, and the map that comes of it.

``python -m pytest -p tests.mutation.covering`` with the place of the answer in ``MUTATION_COVERING`` (a JSON file).  Processes
that a test starts are recorded under the name of the test as well, as far as they end by themselves.
"""

from __future__ import annotations

import ast
import difflib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import pytest

from tests.mutation.server import every_turn

_ANSWER = "MUTATION_COVERING"
_TEST = "MUTATION_TEST"
_IMPORT = ""
"""Stands for the test where a line ran outside of any."""
_QUICK = 0.1
"""Seconds of a test, as recorded, that is tried on a mutant before slower ones that are nearer to it."""
JAVA = frozenset({"spark", "spark_session", "cluster", "program"})
"""Fixtures that start a Java process, which a mutant would have to wait for."""


@dataclass
class Reach:
    """`lines`: by file and line (from 1) the tests that run it; `seconds`: how long each test took while it was recorded.

    `sources`: the recorded text of each file, to find the lines again when the file has changed.
    """

    lines: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)

    def tests(self, file: str, line: int, text: str) -> list[str]:
        """The tests that reach a line of the file as it is now, quickest first.

        What runs while a module is imported is reached by all, for what it did is kept: of the quick ones, and then of the
        others, first come the tests that call it themselves, then those that reach anything else of the file.
        """
        found = self.at(file, line, text)
        if body := _body_behind(text, line):  # a default is a part of its function, whoever imports it
            found = sorted({test for each in body for test in self.at(file, each, text)})
        if _IMPORT not in found:
            return sorted(found, key=self._took)
        near = {test for tests in self.lines[file].values() for test in tests if test}
        distance = {test: (test not in found) + (test not in near) for test in self.seconds}
        return sorted(self.seconds, key=lambda test: (self._took(test) > _QUICK, distance[test], self._took(test)))

    def at_import(self, file: str, line: int, text: str) -> bool:
        """Whether a line runs while tests are collected: what it did is kept then."""
        return _IMPORT in self.at(file, line, text)

    def at(self, file: str, line: int, text: str) -> list[str]:
        """What was recorded for a line of the file as it is now."""
        recorded = self.sources.get(file, text)
        if recorded != text:
            line = _line_before(recorded, text, line)
        return self.lines.get(file, {}).get(line, [])

    def _took(self, test: str) -> float:
        return self.seconds.get(test, 0.0)

    def add(self, other: Reach) -> None:
        """Take over what was recorded elsewhere of the same sources."""
        for file, lines in other.lines.items():
            mine = self.lines.setdefault(file, {})
            for line, tests in lines.items():
                mine[line] = sorted({*mine.get(line, ()), *tests})
        self.seconds.update(other.seconds)

    def write(self, path: Path) -> None:
        """As JSON; each test is named once."""
        names = sorted(
            {test for lines in self.lines.values() for tests in lines.values() for test in tests} | {*self.seconds}
        )
        number = {name: at for at, name in enumerate(names)}
        lines = {
            file: {line: [number[test] for test in tests] for line, tests in lines.items()}
            for file, lines in self.lines.items()
        }
        path.write_text(json.dumps({"names": names, "lines": lines, "seconds": self.seconds, "sources": self.sources}))

    @classmethod
    def read(cls, path: Path) -> Reach:
        """What `write` wrote."""
        stored = json.loads(path.read_text())
        names = stored["names"]
        lines = {
            file: {int(line): [names[at] for at in tests] for line, tests in lines.items()}
            for file, lines in stored["lines"].items()
        }
        return cls(lines, stored["seconds"], stored["sources"])


@lru_cache(maxsize=4)
def _functions(text: str) -> list[tuple[int, int, int]]:
    """Each function's first line, that of its first statement, and its last."""
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [(one.lineno, one.body[0].lineno, one.end_lineno or one.lineno) for one in found]


def _body_behind(text: str, line: int) -> range:
    """The lines of the function in whose signature a line stands; none for any other line."""
    return next((range(body, end + 1) for start, body, end in _functions(text) if start <= line < body), range(0))


@lru_cache(maxsize=4)
def _equal_lines(then: str, now: str) -> list[difflib.Match]:
    blocks = difflib.SequenceMatcher(None, then.splitlines(), now.splitlines(), autojunk=False).get_matching_blocks()
    return [block for block in reversed(blocks) if block.size]


def _line_before(then: str, now: str, line: int) -> int:
    """The line of `then` that stands in `now` at `line`, or the last before it that does."""
    for block in _equal_lines(then, now):
        if block.b < line:
            return block.a + min(line - block.b, block.size)
    return line


def record(copy: Path, work: Path, tests: Sequence[str], jobs: int) -> Reach:
    """Run tests (files of `copy`) in `jobs` processes and say what they reach of the copy.  Tests that fail are left out."""
    work.mkdir(parents=True, exist_ok=True)
    by_size = sorted(tests, key=lambda test: -(copy / test).stat().st_size)
    parts = [part for part in (by_size[job::jobs] for job in range(jobs)) if part]
    running = []
    for job, part in enumerate(parts):
        answer = work / f"reach-{job}.json"
        environment = dict(os.environ, PYTHONPATH=str(copy), **{_ANSWER: str(answer)})
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-m", "pytest", "-q", *every_turn(copy), "--no-header", "-p", "no:cacheprovider"]
        command += ["-p", "tests.mutation.covering", *part]
        with (work / f"reach-{job}.log").open("wb") as log:
            running.append((answer, subprocess.Popen(command, cwd=copy, env=environment, stdout=log, stderr=log)))
    reach = Reach()
    for answer, process in running:
        if process.wait() not in (0, 1):
            log = answer.with_suffix(".log").read_text()
            raise RuntimeError(
                f"what tests reach could not be recorded, pytest ended with {process.returncode}:\n{log[-3000:]}"
            )
        reach.add(Reach.read(answer))
    reach.sources = {file: (copy / file).read_text() for file in reach.lines}
    return reach


_FAILED: set[str] = set()
_SECONDS: dict[str, float] = {}


def _rules(answer: Path) -> Path:
    rules = answer.with_suffix(".coveragerc")
    rules.write_text(
        f"[run]\nsource = {Path.cwd() / 'formats'},{Path.cwd() / 'engine'}\ndata_file = {answer.with_suffix('.coverage')}\n"
        f"context = ${{{_TEST}-}}\nparallel = true\nsigterm = true\nconcurrency = thread,multiprocessing\n"
        "disable_warnings = no-data-collected,module-not-measured,module-not-imported,already-imported\n"
    )
    return rules


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Begin before any module of the program is imported, as those of the tests' fixtures are."""
    import coverage

    answer = Path(os.environ[_ANSWER])
    for old in answer.parent.glob(f"{answer.stem}.coverage*"):
        if old.suffix != ".coveragerc":
            old.unlink()
    rules = _rules(answer)
    os.environ[_TEST] = ""
    os.environ["COVERAGE_PROCESS_START"] = str(rules)
    early_config.stash[_RECORDER] = recorder = coverage.Coverage(config_file=str(rules))
    recorder.start()


_RECORDER = pytest.StashKey["coverage.Coverage"]()  # type: ignore[name-defined]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    recorder = item.config.stash[_RECORDER]
    os.environ[_TEST] = item.nodeid
    recorder.switch_context(item.nodeid)
    begun = time.monotonic()
    try:
        return (yield)
    finally:
        _SECONDS[item.nodeid] = time.monotonic() - begun
        os.environ[_TEST] = ""
        recorder.switch_context("")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if not JAVA & {*getattr(item, "fixturenames", ())}]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if not report.passed:
        _FAILED.add(report.nodeid)


def pytest_unconfigure(config: pytest.Config) -> None:
    import coverage

    recorder = config.stash[_RECORDER]
    recorder.stop()
    recorder.save()
    answer = Path(os.environ[_ANSWER])
    data = coverage.CoverageData(str(answer.with_suffix(".joined")))
    data.erase()
    root = Path.cwd()
    for part in sorted(answer.parent.glob(f"{answer.stem}.coverage.*")):
        one = coverage.CoverageData(str(part))
        try:
            one.read()
        except coverage.CoverageException:  # its process was killed while it wrote
            continue
        data.update(one)
        part.unlink()
    reach = Reach(seconds={test: seconds for test, seconds in _SECONDS.items() if test not in _FAILED})
    for file in sorted(data.measured_files()):
        lines = {}
        for line, contexts in data.contexts_by_lineno(file).items():
            tests = sorted(test for test in contexts if test in reach.seconds or test == _IMPORT)
            if tests:
                lines[line] = tests
        if Path(file).is_relative_to(root):
            reach.lines[str(Path(file).relative_to(root))] = lines
    reach.write(answer)
