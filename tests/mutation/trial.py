"""Trying slips out: a copy of the program with its tests, one slip at a time in it, and the tests that must notice."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.server import every_turn

ROOT = Path(__file__).resolve().parents[2]
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info")
_FAILED = 1
"""What pytest says when tests ran and some of them failed; anything else is no answer."""
PATIENCE = 120.0
"""Seconds after which tests count as ones that never end; those of a slip take some at most."""


@dataclass(frozen=True)
class Slip:
    """One thing that somebody could get wrong: in `file`, `new` instead of `old`, which stands there once.

    `noticed_by`: tests (a file, or ``file::test``) of which one at least must fail then.  `harm`: what it would do to a user.
    """

    file: str
    old: str
    new: str
    noticed_by: tuple[str, ...]
    harm: str

    @property
    def name(self) -> str:
        """File and first line of what is changed, for reports."""
        changed = [line.strip() for line in self.new.splitlines() if line not in self.old.splitlines()]
        return f"{self.file}: {(changed or self.new.strip().splitlines() or ['(nothing)'])[0][:90]}"


class Scratch:
    """A copy of the program and its tests, in which slips are made.  Not for two at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def copied(cls, path: Path) -> Scratch:
        """Copy everything that the tests of the engine need to `path`, which must not be there yet."""
        path.mkdir(parents=True)
        for name in ("formats", "engine", "waltzctl", "fixtures", "tests", "docs", "man"):
            shutil.copytree(ROOT / name, path / name, symlinks=True, ignore=_LEFT_OUT)
        for name in ("pyproject.toml", "pyspark_waltz.py", "pyspark_waltz_pipeline.py", "README.md", "CHANGELOG.md"):
            shutil.copy2(ROOT / name, path / name)
        return cls(path)

    @contextmanager
    def slipped(self, slip: Slip) -> Iterator[None]:
        """With the slip in the copy; as it was behind the block.  Raises ValueError where its text does not stand once."""
        file = self.path / slip.file
        text = file.read_text()
        if text.count(slip.old) != 1:
            raise ValueError(f"{slip.file}: stands there {text.count(slip.old)} times: {slip.old!r}")
        self._write(file, text.replace(slip.old, slip.new))
        try:
            yield
        finally:
            self._write(file, text)

    @staticmethod
    def _write(file: Path, text: str) -> None:
        """Compiled code is told from old one by second and length only, so it goes as well."""
        file.write_text(text)
        Path(importlib.util.cache_from_source(str(file))).unlink(missing_ok=True)

    def failing(self, tests: Sequence[str], patience: float | None = PATIENCE) -> str:
        """Run tests of the copy, up to the first that fails; the line that names it, empty when all pass.

        Tests that do not come to an end within `patience` seconds count as failed.  Raises RuntimeError when they could not be
        run.
        """
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "--no-header",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            *every_turn(self.path),
        ]
        environment = {name: text for name, text in os.environ.items() if not name.startswith("PYTEST_")}
        environment["PYTHONPATH"] = str(self.path)
        try:
            ended = subprocess.run(
                [*command, *tests],
                cwd=self.path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=patience,
            )
        except subprocess.TimeoutExpired:
            return f"FAILED {' '.join(tests)}: no end within {patience:g} s"
        if ended.returncode not in (0, _FAILED):
            raise RuntimeError(
                f"{' '.join(tests)}: pytest ended with {ended.returncode}:\n{ended.stdout[-3000:]}{ended.stderr}"
            )
        if ended.returncode == 0:
            return ""
        lines = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        if not any(line.startswith("FAILED") for line in lines):
            raise RuntimeError(f"{' '.join(tests)}: no test failed, but {lines}:\n{ended.stdout[-3000:]}")
        return lines[0]
