"""The progress bar and -v: on stderr only, and only where somebody wants them."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from tests.builders import build_directory
from tests.cli.damage import index_of
from tests.cli.running import invoke, on_terminal, run
from waltzctl.render import progress_bar as bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Stand in for stderr; called in the test itself, because pytest sets its own stream after the fixtures."""
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    return stream


def test_a_bar_appears_once_work_goes_on_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    monkeypatch.setattr(bar, "PATIENCE", -1.0)
    out = sys.stdout
    with bar.progress(quiet=False) as listener:
        assert isinstance(listener, bar.TerminalProgress)
        listener.start("reading", 1000)
        listener.advance(400)
        assert "reading" in shown.getvalue()
        assert sys.stdout is out, "results must not be led to stderr"
        with listener.paused():
            before = shown.getvalue()
            assert before.endswith("\x1b[2K"), "the bar's line is cleared"
        listener.start("writing", 50)
        listener.advance(50)
    assert "writing" in shown.getvalue()
    assert shown.getvalue().endswith("\x1b[2K")


def test_the_cursor_is_there_beside_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is stopped (Ctrl-Z) or killed meanwhile left the shell without one."""
    shown = terminal(monkeypatch)
    monkeypatch.setattr(bar, "PATIENCE", -1.0)

    def visible() -> bool:
        return shown.getvalue().rfind("\x1b[?25h") > shown.getvalue().rfind("\x1b[?25l") > -1

    with bar.progress(quiet=False) as listener:
        listener.start("reading", 1000)
        listener.advance(400)
        assert visible()
        with listener.paused():
            assert visible()
        assert visible()
        listener.advance(400)
        assert visible()
    assert visible()


def test_short_work_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    monkeypatch.setattr(bar, "PATIENCE", 1e9)
    with bar.progress(quiet=False) as listener:
        assert isinstance(listener, bar.TerminalProgress)
        listener.start("reading", 1000)
        listener.advance(1000)
    assert shown.getvalue() == ""


def test_no_bar_when_quiet_or_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal(monkeypatch)
    assert type(bar.progress(quiet=True)) is bar.NoProgress
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert type(bar.progress(quiet=False)) is bar.NoProgress


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
