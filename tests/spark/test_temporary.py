"""Temporary directories of a process that was killed: the next session of the same user removes them, and no others."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from waltzctl.engine.spark import java, temporary
from waltzctl.engine.spark.owner import OWNER, Owner, noted_owner, this_process, write_owner
from waltzctl.engine.spark.temporary import JAVA, SESSION, claim, clear_left

GONE = 2**22 + 5
"""No process has this id."""


def made(above: Path, name: str, owner: Owner | None) -> str:
    """A directory with contents and the note of its process; its name."""
    (above / name / "inside").mkdir(parents=True)
    if owner is not None:
        write_owner(above / name, owner)
    return name


def names(above: Path) -> set[str]:
    return {one.name for one in above.iterdir()}


def test_what_a_killed_process_left_is_removed_by_the_next_session(tmp_path: Path) -> None:
    """Each killed driver left one, with the code that it sent to a cluster, for as long as the machine ran."""
    code = (
        "import tempfile; from pathlib import Path; from waltzctl.engine.spark.temporary import SESSION, claim;"
        f"claim(Path(tempfile.mkdtemp(prefix=SESSION, dir={str(tmp_path)!r}))); print(flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (left,) = names(tmp_path)
        clear_left(tmp_path)
        assert names(tmp_path) == {left}, "it runs"
        process.send_signal(signal.SIGKILL)
    (mine := tmp_path / f"{JAVA}mine").mkdir()
    claim(mine)
    assert names(tmp_path) == {mine.name}
    assert noted_owner(mine) == this_process()
    clear_left(tmp_path)
    assert names(tmp_path) == {mine.name}


def test_only_what_is_known_to_be_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = replace(this_process(), pid=GONE)
    assert (gone.alive, gone.ended_here) == (False, True)
    left = {
        made(tmp_path, f"{SESSION}gone", gone),
        made(tmp_path, f"{JAVA}gone", gone),
        made(tmp_path, f"{SESSION}same-id", replace(gone, pid=os.getpid(), started=1)),
        made(tmp_path, f"{SESSION}x-gone", None),  # whose removal was interrupted
    }
    kept = {
        made(tmp_path, f"{SESSION}none", None),
        made(tmp_path, f"{SESSION}other-host", replace(gone, host="other")),
        made(tmp_path, f"{SESSION}other-container", replace(gone, namespace="pid:[1]")),
        made(tmp_path, f"{SESSION}other-boot", replace(gone, boot="other")),
        made(tmp_path, f"{SESSION}unknown", replace(gone, boot="", namespace="", machine="")),
        made(tmp_path, f"{SESSION}lives", this_process()),
        made(tmp_path, "somebody-else", gone),
    }
    elsewhere = tmp_path / made(tmp_path, "elsewhere", gone)
    (tmp_path / f"{SESSION}link").symlink_to(elsewhere)
    (tmp_path / f"{SESSION}file").touch()
    (tmp_path / made(tmp_path, f"{SESSION}odd", None) / OWNER).write_text('["no note"]')
    kept |= {elsewhere.name, f"{SESSION}link", f"{SESSION}file", f"{SESSION}odd"}
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        clear_left(tmp_path)
        assert names(tmp_path) == left | kept, "another user's"
    clear_left(tmp_path)
    assert names(tmp_path) == kept
    assert (elsewhere / "inside").is_dir()


def test_a_session_begins_where_it_can_neither_note_nor_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    left = made(tmp_path, f"{SESSION}gone", replace(this_process(), pid=GONE))
    for name in ("this_process", "names_in", "noted_owner"):
        with monkeypatch.context() as patch:
            patch.setattr(temporary, name, fails)
            if name == "this_process":
                patch.setattr(temporary, "clear_left", lambda _: None)
            (mine := tmp_path / f"mine-{name}").mkdir()
            claim(mine)
        assert (mine / OWNER).exists() == (name != "this_process")
        assert left in names(tmp_path)


def test_java_homes_are_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(java, "_remove_at_exit", lambda home: None)
    left = made(tmp_path, f"{JAVA}gone", replace(this_process(), pid=GONE))
    home = java._home_of(Path("/java"))
    assert noted_owner(home) == this_process()
    assert left not in names(tmp_path)
