"""The measure: how many mutants of each room its tests notice.

``python -m tests.mutation.measure --room repair --sample 50 --seed 1``; without ``--sample`` every mutant of the room, which
takes hours.  Each mutant runs against those tests of its room that reach its line, quickest first, up to the first that fails.
What is judged equivalent (`tests.mutation.equivalent`) counts neither way; whatever else no test notices is listed, also
what none reaches.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from tests.mutation.collected import Collected
from tests.mutation.covering import Reach, record
from tests.mutation.equivalent import why_equivalent
from tests.mutation.mutants import Mutant, compiles, mutants_of, sampled
from tests.mutation.server import Answer, Server
from tests.mutation.trial import ROOT, Scratch

_AT_FIRST = 4.0
"""Seconds of tests, as recorded, that are tried at first: quick ones, which notice most."""
_SECONDS = "of tests, as recorded, that are tried on a mutant; what only slower tests notice counts as not noticed (%(default)s)"
_PATIENCE = 30.0
_TIMES = 6.0
"""A trial takes too long behind this many seconds and this many times what its tests took while they were recorded."""


@dataclass(frozen=True)
class Room:
    """Code that is measured together (not what lies below `without`), and the tests that answer for it."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    without: tuple[str, ...] = ()

    def files(self, root: Path) -> list[str]:
        """The source files, sorted."""
        return [file for file in _below(root, self.sources, "*.py") if not file.startswith(self.without)]

    def test_files(self, root: Path) -> list[str]:
        """The test files."""
        return _below(root, self.tests, "test_*.py")


def _below(root: Path, names: Sequence[str], pattern: str) -> list[str]:
    found = []
    for name in names:
        path = root / name
        found += [path] if path.is_file() else sorted(path.rglob(pattern))
    return sorted(str(path.relative_to(root)) for path in found)


_CRASH = "tests/crash/test_"
ROOMS = {
    "formats": Room(("formats",), ("tests/formats",), without=("formats/pages", "formats/vault.py")),
    "durable": Room(
        ("engine/durable",),
        ("tests/durable", "tests/storage", f"{_CRASH}quarantine.py", f"{_CRASH}simulated_disk.py", f"{_CRASH}truth.py"),
    ),
    "storage": Room(("engine/storage",), ("tests/storage", f"{_CRASH}storage.py", f"{_CRASH}damaged.py")),
    "repair": Room(
        ("engine/repair",), ("tests/repair", f"{_CRASH}prune.py", f"{_CRASH}quarantine.py", f"{_CRASH}repairs.py")
    ),
    "inspect": Room(
        ("engine/inspect",), ("tests/inspect", "tests/cli/test_verify.py", "tests/cli/test_verify_manifest.py")
    ),
    "scan": Room(("engine/scan",), ("tests/scan",)),
    "log": Room(("engine/log",), ("tests/log",)),
    "quorum": Room(("engine/quorum",), ("tests/quorum",)),
    "pages": Room(
        ("engine/pages", "formats/pages"),
        (
            "tests/pages",
            "tests/formats/pages",
            "tests/cli/test_pages.py",
            f"{_CRASH}pages.py",
            f"{_CRASH}page_recovery.py",
        ),
    ),
    "vault": Room(("engine/vault", "engine/backup", "formats/vault.py"), ("tests/vault", "tests/backup")),
    "compare": Room(("engine/compare",), ("tests/compare", "tests/cli/test_compare.py")),
    "net": Room(("engine/net",), ("tests/net", "tests/node")),
    "node": Room(("engine/node",), ("tests/node",)),
    "spark": Room(("engine/spark",), ("tests/spark",)),
    "pipeline": Room(("engine/pipeline",), ("tests/pipeline",)),
    "stats": Room(("engine/stats",), ("tests/stats",)),
    "metadata": Room(("engine/metadata",), ("tests/metadata",)),
    "server": Room(("engine/server",), ("tests/server", "tests/cluster")),
    "client": Room(("engine/client",), ("tests/client",)),
    "cluster": Room(("engine/cluster",), ("tests/cluster",)),
}
"""Tests of Spark and the pipeline here are those that need no Java process."""


@dataclass
class Score:
    """`survivors`: the mutants that no test noticed, with how they were tried."""

    tried: int = 0
    noticed: int = 0
    equivalent: int = 0
    survivors: list[tuple[Mutant, str]] = field(default_factory=list)

    def __str__(self) -> str:
        share = 100 * self.noticed / self.tried if self.tried else 100.0
        return f"{self.noticed} of {self.tried} noticed ({share:.1f} %), {self.equivalent} equivalent left out"


class Trials:
    """Tries mutants of one room in one copy, each on `most` seconds of tests (as recorded), quick ones first."""

    def __init__(self, copy: Path, reach: Reach, most: float) -> None:
        self._most = most
        self._server = Server(copy)
        self._collected = Collected(copy, sorted({test.partition("::")[0] for test in reach.seconds}))
        self._reach = reach
        self._sound: dict[str, bool] = {}

    def answer(self, mutant: Mutant) -> Answer:
        """What the tests that reach the mutant say."""
        source = (self._server.path / mutant.file).read_text()
        tests = [test for test in self._reach.tests(mutant.file, mutant.line, source) if self._sound.get(test, True)]
        if not tests:
            return Answer("", "passed")
        seconds = 0.0
        for part in self._parts(tests):
            timeout = _PATIENCE + _TIMES * sum(self._reach.seconds[test] for test in part)
            answer = self._run(mutant, source.encode(), part, timeout)
            seconds += answer.seconds
            if answer.noticed:
                if answer.failed in self._reach.seconds and not self._is_sound(answer.failed):
                    return self.answer(mutant)  # without the test that fails on its own
                return answer
        return Answer("", "passed", seconds)

    def _run(self, mutant: Mutant, source: bytes, tests: list[str], timeout: float) -> Answer:
        """In the tests that are collected where that does, otherwise in a process that imports the program anew."""
        with self._server.mutated(mutant):
            if not self._reach.at_import(mutant.file, mutant.line, source.decode()):
                answer = self._collected.run(mutant, source, tests, timeout)
                if answer is not None:
                    return answer
            return self._server.run(tests, timeout)

    def _is_sound(self, test: str) -> bool:
        """Whether a test passes without a mutant."""
        if test not in self._sound:
            answer = self._collected.run(None, b"", [test], _PATIENCE + _TIMES * self._reach.seconds[test])
            self._sound[test] = answer is not None and not answer.noticed
        return self._sound[test]

    def _parts(self, tests: list[str]) -> list[list[str]]:
        parts: list[list[str]] = [[], []]
        spent = 0.0
        for test in tests:
            spent += self._reach.seconds[test]
            if spent > self._most and (parts[0] or parts[1]):
                break
            parts[spent > _AT_FIRST and bool(parts[0])].append(test)
        return [_by_file(part) for part in parts if part]


def _by_file(tests: list[str]) -> list[str]:
    """File by file, as module fixtures want it; files in the order of their first test."""
    files = {file: at for at, file in reversed(list(enumerate(test.partition("::")[0] for test in tests)))}
    return sorted(tests, key=lambda test: files[test.partition("::")[0]])


def _reach(name: str, options: argparse.Namespace) -> Reach:
    """What the room's tests reach, at the lines of today's sources."""
    reach = Reach()
    for unit in ROOMS[name].tests:
        recorded = _recorded(unit, options)
        kept = {file for file in _below(ROOT, (unit,), "test_*.py") if not file.startswith(tuple(options.without))}
        reach = _joined(recorded, reach, kept)
    return reach


def _recorded(unit: str, options: argparse.Namespace) -> Reach:
    """What the tests of a file or directory reach, as recorded earlier as far as the test files are the same."""
    work, name = options.work, unit.replace("/", "-")
    stored, texts_file = work / f"{name}.json", work / f"{name}.tests.json"
    files = _below(ROOT, (unit,), "test_*.py")
    texts = {file: (ROOT / file).read_text() for file in files if not file.startswith(tuple(options.without))}
    reach, known = Reach(), {}
    if stored.exists() and texts_file.exists() and not options.again:
        reach, known = Reach.read(stored), json.loads(texts_file.read_text())
    changed = [file for file, text in texts.items() if known.get(file) != text]
    if not changed:
        return reach
    print(f"{unit}: recording what {len(changed)} files of tests reach", flush=True)
    with tempfile.TemporaryDirectory(prefix="mutation-") as place:
        copy = Scratch.copied(Path(place) / "copy").path
        recorded = record(copy, work / f"{name}.recording", changed, options.jobs)
    reach = _joined(reach, recorded, {file for file in known if file not in changed})
    reach.write(stored)
    texts_file.write_text(json.dumps({**known, **texts}))
    return reach


def _joined(old: Reach, new: Reach, kept: Collection[str]) -> Reach:
    """The new recording, and of the old one the tests of the files in `kept`, at the lines of today's sources."""
    for file, text in old.sources.items():
        now = ROOT / file
        if not now.exists():
            continue
        source = now.read_text()
        new.sources.setdefault(file, source)
        lines = new.lines.setdefault(file, {})
        for line in range(1, len(source.splitlines()) + 1) if text != source else old.lines.get(file, {}):
            tests = [test for test in old.at(file, line, source) if not test or test.partition("::")[0] in kept]
            if tests:
                lines[line] = sorted({*lines.get(line, ()), *tests})
    mine = {test: took for test, took in old.seconds.items() if test.partition("::")[0] in kept}
    new.seconds = {**mine, **new.seconds}
    return new


def chosen(name: str, seed: int, sample: int | None, only: Sequence[str] = ()) -> tuple[list[Mutant], int]:
    """The mutants of a room to try, and how many equivalent ones the sample had."""
    sources = {file: (ROOT / file).read_bytes() for file in ROOMS[name].files(ROOT) if not only or file in only}
    mutants = sampled((mutant for file, source in sources.items() for mutant in mutants_of(file, source)), seed)
    drawn: list[Mutant] = []
    for mutant in mutants:
        if sample is not None and len(drawn) == sample:
            break
        if compiles(mutant, sources[mutant.file]):
            drawn.append(mutant)
    left = [mutant for mutant in drawn if not why_equivalent(mutant)]
    return left, len(drawn) - len(left)


_TRIALS: list[Trials] = []


def _begin(place: str, stored: Path, most: float) -> None:
    """In a process of the pool: a copy of its own."""
    copy = Scratch.copied(Path(place) / f"copy-{os.getpid()}").path
    _TRIALS.append(Trials(copy, Reach.read(stored), most))


def _try(mutant: Mutant) -> tuple[Mutant, Answer]:
    return mutant, _TRIALS[0].answer(mutant)


def measure(name: str, options: argparse.Namespace) -> Score:
    """The score of a room; every mutant is printed as it is tried."""
    work, seed, jobs = options.work, options.seed, options.jobs
    reach = _reach(name, options)
    reach.write(work / f"{name}.room.json")
    mutants, equivalent = chosen(name, seed, options.sample, options.file)
    score = Score(equivalent=equivalent)
    begun = time.monotonic()
    print(f"{name}: {len(mutants)} mutants", flush=True)
    with tempfile.TemporaryDirectory(prefix="mutation-") as place:
        context = get_context("spawn")
        with context.Pool(jobs, _begin, (place, work / f"{name}.room.json", options.seconds)) as pool:
            for mutant, answer in pool.imap_unordered(_try, mutants):
                score.tried += 1
                if answer.noticed:
                    score.noticed += 1
                    print(f"  {score.tried:5} noticed  {answer.seconds:5.1f} s {mutant}: {answer.failed}", flush=True)
                    continue
                reached = reach.tests(mutant.file, mutant.line, (ROOT / mutant.file).read_text())
                how = f"{len(reached)} tests reach it" if reached else "no test reaches it"
                score.survivors.append((mutant, how))
                print(f"  {score.tried:5} SURVIVED {answer.seconds:5.1f} s {mutant}: {how}", flush=True)
    print(f"{name}: {score}, seed {seed}, {time.monotonic() - begun:.0f} s", flush=True)
    return score


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when a room has less than `--target`."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.measure", description=__doc__)
    parser.add_argument("--room", action="append", choices=sorted(ROOMS), help="one room (again for more); all without")
    parser.add_argument("--file", action="append", default=[], help="of the room only this file (again for more)")
    parser.add_argument("--sample", type=int, help="mutants of each room; every one without, which takes hours")
    parser.add_argument("--seed", type=int, default=1, help="which ones (%(default)s)")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="processes (%(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help=_SECONDS)
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "mutation", help="what was recorded (%(default)s)"
    )
    parser.add_argument(
        "--without", action="append", default=[], help="leave out tests below this path (again for more)"
    )
    parser.add_argument("--again", action="store_true", help="record anew what the tests reach")
    parser.add_argument("--target", type=float, default=0.0, help="per cent that each room must have (%(default)s)")
    options = parser.parse_args(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    scores = {}
    for name in options.room or ROOMS:
        scores[name] = measure(name, options)
    print("\nSurvivors")
    for score in scores.values():
        for mutant, how in sorted(score.survivors, key=lambda one: str(one[0])):
            print(f"  {mutant}: {how}")
    print("\nScore")
    for name, score in scores.items():
        print(f"  {name:8} {score}")
    return int(any(100 * score.noticed < options.target * score.tried for score in scores.values()))


if __name__ == "__main__":
    sys.exit(main())
