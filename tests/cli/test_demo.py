"""The demonstration runs to its end; it checks every exit status, digest and record itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[2] / "demo" / "demo.py"


@pytest.mark.long
def test_the_demonstration_succeeds_and_cleans_up(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO), "--directory", str(tmp_path / "data")],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert "Everything was as it should be" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_the_demonstration_fails_when_something_is_not_as_expected(tmp_path: Path) -> None:
    """A waltzctl that always succeeds and says nothing must not pass."""
    (tmp_path / "fake" / "waltzctl").mkdir(parents=True)
    (tmp_path / "fake" / "waltzctl" / "__init__.py").write_text("")  # without it a real one further on is taken
    (tmp_path / "fake" / "waltzctl" / "__main__.py").write_text("")
    copy = tmp_path / "fake" / "demo" / "demo.py"
    copy.parent.mkdir()
    for name in ("demo.py", "side_by_side.py", "stage.py"):
        (copy.parent / name).write_bytes((DEMO.parent / name).read_bytes())
    done = subprocess.run([sys.executable, str(copy)], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert "FAILED" in done.stderr
