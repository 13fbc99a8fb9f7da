"""Ctrl-C during a change waits for the change."""

from __future__ import annotations

import os
import signal

import pytest

from waltzctl.interrupt import finishing, showing


def test_one_interrupt_waits_and_is_remembered(capsys: pytest.CaptureFixture[str]) -> None:
    done = False
    with finishing("the repair", "it is then taken back") as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        done = True
    assert done
    assert interrupt.wanted
    assert capsys.readouterr().err == (
        "waltzctl: the repair is being finished; Ctrl-C again stops at once: it is then taken back\n"
    )


def test_a_second_interrupt_stops_at_once() -> None:
    with finishing("x", "y") as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt.wanted
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_afterwards_an_interrupt_is_what_it_was() -> None:
    before = signal.getsignal(signal.SIGINT)
    with showing() as interrupt:
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
    assert not interrupt.wanted


def test_what_is_to_be_interrupted_by_nothing_is_not_either_during_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    """A script's job in the background ignores SIGINT; two of them, for what is in front, broke its repair off."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with finishing("the repair", "it is then taken back") as interrupt:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert not interrupt.wanted
    assert capsys.readouterr().err == ""
