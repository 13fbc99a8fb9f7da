"""A warm process that tries mutants: it has imported what is not the program, and forks for every trial.

The mutant stands in the file of a copy while its tests run, so that processes which tests start have it as well.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutation.mutants import Mutant

_WARM = (
    "aiohttp",
    "construct",
    "cryptography.x509",
    "hypothesis",
    "numba",
    "numpy",
    "prometheus_client",
    "pyarrow",
    "typer",
)
_OURS = frozenset({"formats", "engine", "waltzctl", "fixtures", "tests", "demo"})
_BROKEN = 70
_NO_ANSWER = (_BROKEN, pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED)
_MOST_MEMORY = 12 << 30
_LONGEST_FILE = 16 << 30
"""Bytes: a mutant that loops may fill neither the memory nor the disk of its machine."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What tests said: the first that failed (empty: none), and whether they took too long or could not be run."""

    failed: str = ""
    how: str = "passed"
    seconds: float = 0.0

    @property
    def noticed(self) -> bool:
        """Whether anything went wrong."""
        return self.how != "passed"


def every_turn(copy: Path) -> list[str]:
    """The option of pytest by which tests of a copy that take turns by days (`tests.turns`) run on every day."""
    return ["--every-turn"] if (copy / "tests" / "turns.py").exists() else []


class NotRunError(RuntimeError):
    """Tests could not be run, so that there is no answer."""


def ended(child: int, until: float) -> int | None:
    """Its exit status (negative: a signal); None when it had to be killed.  Its whole session goes with it."""
    status = None
    pause = 0.001
    while True:
        done, raw = os.waitpid(child, os.WNOHANG)
        if done:
            status = os.waitstatus_to_exitcode(raw)
            break
        if time.monotonic() > until:
            break
        time.sleep(pause)
        pause = min(0.02, pause * 1.5)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    if status is None:
        os.waitpid(child, 0)
    return status


def bounded(log: Path) -> None:
    """Make this process a session of its own that fills neither memory nor disk, and writes to `log`."""
    os.setsid()
    written = os.open(log, os.O_WRONLY | os.O_CREAT)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, standard in ((nothing, 0), (written, 1), (written, 2)):
        os.dup2(descriptor, standard)
    for which, most in ((resource.RLIMIT_AS, _MOST_MEMORY), (resource.RLIMIT_FSIZE, _LONGEST_FILE)):
        resource.setrlimit(which, (most, resource.getrlimit(which)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def forget_ours(copy: Path) -> None:
    """What is imported of the program from here on comes from the copy, in this process and in those that it starts."""
    os.chdir(copy)
    for name in [name for name in sys.modules if name.partition(".")[0] in _OURS]:
        del sys.modules[name]
    root = str(copy)
    sys.path[:] = [root, *(path for path in sys.path if path not in ("", root))]
    os.environ["PYTHONPATH"] = root
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


class Server:
    """Forks a process for each trial in the copy at `path`.  One trial at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for name in _WARM:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        with contextlib.suppress(ImportError):  # what a compiler does once takes longer than what most mutants change
            from numba import njit

            njit("int64(int64)")(lambda number: number + 1)

    @contextlib.contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """With the mutant in the copy; as it was behind the block."""
        file = self.path / mutant.file
        source = file.read_bytes()
        self._write(file, mutant.made_in(source))
        try:
            yield
        finally:
            self._write(file, source)

    @staticmethod
    def _write(file: Path, source: bytes) -> None:
        """Compiled code is told from old one by second and length only, so it goes as well."""
        file.write_bytes(source)
        Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)

    def run(self, tests: Sequence[str], timeout: float) -> Answer:
        """Run tests of the copy up to the first that fails.  Taking more than `timeout` seconds is a failure too."""
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="mutant-") as place:
            result = Path(place) / "result.json"
            child = os.fork()
            if not child:
                self._child(tests, Path(place), result)
            status = ended(child, begun + timeout)
            seconds = time.monotonic() - begun
            if status is None:
                return Answer("(too long)", "too long", seconds)
            if result.exists():
                return Answer(json.loads(result.read_text()), "failed", seconds)
            if status in _NO_ANSWER:
                raise NotRunError(f"{' '.join(tests)[:500]}: not run:\n{(Path(place) / 'log').read_text()[-3000:]}")
        return Answer("", "passed", seconds) if status == 0 else Answer(f"(ended with {status})", "died", seconds)

    def _child(self, tests: Sequence[str], place: Path, result: Path) -> None:
        """Never returns."""
        code = _BROKEN
        try:
            bounded(place / "log")
            forget_ours(self.path)
            os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(place / "hypothesis")
            arguments = ["-x", "-q", "-p", "no:cacheprovider", "--tb=line", "--hypothesis-seed=0"]
            arguments += [*every_turn(self.path), "-W", "ignore::pytest.PytestAssertRewriteWarning"]
            arguments.append(f"--basetemp={place / 'tmp'}")
            files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
            code = int(pytest.main([*arguments, *files], plugins=[_Chosen(tests, result)]))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)


class _Chosen:
    """Lets only the named tests run, in that order of files, and writes the first that fails to `result`."""

    def __init__(self, tests: Sequence[str], result: Path) -> None:
        self._place = {test: at for at, test in enumerate(tests)}
        self._result = result

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((one for one in items if one.nodeid in self._place), key=lambda one: self._place[one.nodeid])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and not self._result.exists():
            self._result.write_text(json.dumps(report.nodeid or "(collecting)"))
