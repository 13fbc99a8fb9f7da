"""The limit of open files: what is left of it, and that it is raised where it is reached."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from waltzctl.engine.descriptor_limit import few_descriptors_left, raise_descriptor_limit, with_raised_limit
from waltzctl.engine.durable.disk import WritableFile
from waltzctl.engine.errors import DiskWriteError
from waltzctl.engine.scan.byte_source import FileSource


@pytest.fixture
def hard() -> Iterator[int]:
    """The hard limit; the test leaves both as they were."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(("spare", "few"), [(99, False), (100, True)])
def test_few_are_left_when_fewer_are_above_than_are_wanted(hard: int, spare: int, few: bool) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (1000, hard))
    assert few_descriptors_left(900, spare) is few  # 901 to 999 are free


@pytest.mark.parametrize(("descriptor", "few"), [(437, False), (438, True)])
def test_an_eighth_of_a_small_limit_is_spared(hard: int, descriptor: int, few: bool) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (500, hard))
    assert few_descriptors_left(descriptor, 100) is few


def test_the_limit_is_raised_once(hard: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
    assert raise_descriptor_limit()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    assert not raise_descriptor_limit()


def test_what_cannot_be_opened_for_want_of_descriptors_is_opened_again(tmp_path: Path, hard: int) -> None:
    with open(os.devnull) as last:
        next_free = last.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (next_free, hard))
    with pytest.raises(DiskWriteError, match="Too many open files"):
        WritableFile.create(tmp_path / "one")
    with with_raised_limit(lambda: WritableFile.create(tmp_path / "one")) as file:
        assert file.fileno() >= next_free


def test_any_other_failure_is_raised_and_changes_no_limit(tmp_path: Path, hard: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
    with pytest.raises(DiskWriteError, match="No such file"):
        with_raised_limit(lambda: WritableFile.create(tmp_path / "missing" / "one"))
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard - 1


def test_a_file_to_which_nothing_refers_is_closed(tmp_path: Path) -> None:
    """Also where the interpreter ends: nobody is told of it."""
    made = WritableFile.create(tmp_path / "one")
    descriptor = made.fileno()
    read = FileSource(tmp_path / "one")
    others = read.fileno()
    del made, read
    for one in (descriptor, others):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(one)
    program = f"""
import sys
from pathlib import Path
from waltzctl.engine.durable.disk import WritableFile
from waltzctl.engine.scan.byte_source import FileSource
sys.kept = [WritableFile.open(Path({str(tmp_path / "one")!r})), FileSource({str(tmp_path / "one")!r})]
sys.kept.append(sys.kept)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
