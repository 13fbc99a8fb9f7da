"""The progress bar and -v: on stderr only, and only where somebody wants them."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.cli.damage import index_of
from tests.cli.running import invoke, on_terminal, run
from waltzctl.render import progress as bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    return stream


def test_a_bar_appears_once_work_goes_on_for_longer(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bar, "PATIENCE", -1.0)
    with bar.progress(quiet=False) as listener:
        listener.start("reading", 1000)
        listener.advance(400)
        listener.start("writing", 50)
        listener.advance(50)
    assert "reading" in terminal.getvalue()


def test_short_work_shows_no_bar(terminal: Terminal) -> None:
    with bar.progress(quiet=False) as listener:
        listener.start("reading", 1000)
        listener.advance(1000)
    assert terminal.getvalue() == ""


def test_no_bar_when_quiet_or_without_a_terminal(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(bar.progress(quiet=True), bar.NoProgress)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert isinstance(bar.progress(quiet=False), bar.NoProgress)


def test_a_small_directory_shows_no_bar_on_a_terminal(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 5})
    assert on_terminal("verify", storage).out.startswith("OK  no findings in 1 segment")


def test_verbose_says_more_on_stderr_and_nothing_else_on_stdout(tmp_path: Path) -> None:
    storage = build_directory(tmp_path / "s", {0: 60})
    quiet = run("dump", storage, "--format", "ndjson")
    told = run("dump", storage, "--format", "ndjson", "-v")
    assert (quiet.out, quiet.err) == (told.out, "")
    assert "waltzctl: done after " in told.err
    assert "to go through" in run("verify", storage, "-v").err
    index_of(storage).unlink()
    assert "waltzctl: plan " in invoke("rebuild-index", storage, "--yes", "-v").err
    assert (
        "transaction 61 and all before it are durable"
        in invoke("append", storage, "--partition", 0, "-v", given="a\nb\n").err
    )
