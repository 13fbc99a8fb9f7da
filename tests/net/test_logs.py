"""The log: whole lines in either form, limited, never in the way of whoever logs."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import threading
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltzctl.engine.net import logs
from waltzctl.engine.net.logs import (
    BURST,
    LOGGER,
    QUEUED,
    WINDOW,
    Line,
    NodeLog,
    Throttle,
    goes_to_journal,
    human_line,
    journal_line,
    json_line,
)
from waltzctl.engine.net.monitoring_options import LogFormat, LogLevel

KEY = (LOGGER, logging.WARNING, "template")


class Stuck(io.StringIO):
    """A stream whose reader stands still until it is told to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def write(self, text: str) -> int:
        self.reached.set()
        assert self.go_on.wait(60)
        return super().write(text)


def written(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def test_a_line_for_people() -> None:
    stream = io.StringIO()
    with NodeLog(stream) as log:
        log.logger.info("partition %d is open", 3, extra={"records": 7})
    (line,) = written(stream)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO    partition 3 is open  records=7", line)


def test_a_line_for_programs() -> None:
    stream = io.StringIO()
    with NodeLog(stream, form=LogFormat.JSON) as log:
        log.logger.warning("€ %s", "two\nlines", extra={"partition": 3, "path": "/x"})
    shown = json.loads(stream.getvalue())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", shown.pop("time"))
    assert shown == {
        "schema": "waltzctl.log/1", "type": "log", "level": "warning", "logger": LOGGER, "message": "€ two\nlines",
        "fields": {"partition": 3, "path": "/x"}, "trace": None,
    }  # fmt: skip
    assert stream.getvalue().isascii()


def test_an_exception_brings_its_trace() -> None:
    def fail() -> None:
        raise KeyError("what")

    for form in LogFormat:
        stream = io.StringIO()
        with NodeLog(stream, form=form) as log:
            try:
                fail()
            except KeyError:
                log.logger.exception("it failed")
        if form is LogFormat.JSON:
            assert "in fail" in json.loads(stream.getvalue())["trace"]
        else:
            first, *trace = written(stream)
            assert first.endswith("ERROR   it failed")
            assert trace[-1] == "    KeyError: 'what'"
            assert all(line.startswith("    ") for line in trace)


@settings(max_examples=40)
@given(st.text(max_size=80))
def test_no_message_breaks_a_line_or_drives_a_terminal(message: str) -> None:
    line = Line(0, logging.INFO, LOGGER, message, {"peer": message})
    for form in (human_line, journal_line, json_line):
        text = form(line)
        assert len(text.splitlines()) == 1
        assert text.isprintable()
    assert json.loads(json_line(line))["message"] == message


def test_the_journal_gets_priorities_and_no_times() -> None:
    assert journal_line(Line(0, logging.WARNING, LOGGER, "careful")) == "<4>careful"
    assert journal_line(Line(0, logging.ERROR, LOGGER, "bad", trace="a\nb")) == "<3>bad\n<3>    a\n<3>    b"
    assert journal_line(Line(0, logging.DEBUG - 5, LOGGER, "deep")) == "<7>deep"
    stream = io.StringIO()
    with NodeLog(stream, journal=True) as log:
        log.logger.info("here")
    assert written(stream) == ["<6>here"]
    stream = io.StringIO()
    with NodeLog(stream, form=LogFormat.JSON, journal=True) as log:
        log.logger.info("here")
    assert json.loads(stream.getvalue())["message"] == "here", (
        "what was asked for by name is had in the journal as well"
    )


def test_the_journal_is_known_by_device_and_inode(tmp_path: os.PathLike[str]) -> None:
    with open(os.path.join(tmp_path, "stream"), "w") as stream:
        found = os.fstat(stream.fileno())
        assert goes_to_journal(stream, {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"})
        assert not goes_to_journal(stream, {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino + 1}"})
        assert not goes_to_journal(stream, {})
    assert not goes_to_journal(io.StringIO(), {"JOURNAL_STREAM": "1:2"})


def test_a_line_has_the_time_at_which_it_was_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what the log itself has to say the time at which it says it."""
    stream = io.StringIO()
    monkeypatch.setattr(logs.time, "time_ns", lambda: 1_700_000_000_987_654_321)
    with NodeLog(stream, throttle=Throttle(burst=1)) as log:
        for _ in range(2):
            record = logging.LogRecord(LOGGER, logging.INFO, __file__, 1, "here", (), None)
            record.created = 1_600_000_000.125
            log.handle(record)
    first, left_out = written(stream)
    assert first.startswith("2020-09-13T12:26:40.125Z INFO ")
    assert left_out.startswith("2023-11-14T22:13:20.987Z INFO ")


def test_the_level_can_change_while_it_is_open() -> None:
    stream = io.StringIO()
    with NodeLog(stream, level=LogLevel.WARNING) as log:
        log.logger.info("not heard")
        log.set_level(LogLevel.DEBUG)
        log.logger.debug("heard")
        log.set_level(LogLevel.ERROR)
        log.logger.warning("not heard either")
    assert [line.split()[-1] for line in written(stream)] == ["heard"]


def test_other_libraries_are_heard_from_warnings_on_and_so_are_warnings() -> None:
    stream = io.StringIO()
    with NodeLog(stream) as log:
        logging.getLogger("asyncio").info("not heard")
        logging.getLogger("asyncio").warning("a slow callback")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("mind this", stacklevel=1)
        assert log in logging.getLogger().handlers
    assert log not in logging.getLogger().handlers
    assert "a slow callback" in stream.getvalue()
    assert "mind this" in stream.getvalue()
    assert "not heard" not in stream.getvalue()


def test_an_argument_that_does_not_fit_loses_one_line_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    with NodeLog(stream) as log:
        log.handle(logging.LogRecord(LOGGER, logging.INFO, __file__, 1, "%d", ("no number",), None))
        log.logger.info("after")
    assert written(stream)[-1].endswith("after")
    assert "no number" in capsys.readouterr().err


# --- limits --------------------------------------------------------------------------------------------------------------


def test_lines_of_one_kind_are_limited_and_counted() -> None:
    stream = io.StringIO()
    with NodeLog(stream) as log:
        for number in range(BURST + 30):
            log.logger.warning("nonsense from %d", number)
        log.logger.warning("something else")
    lines = written(stream)
    assert len(lines) == BURST + 2
    assert lines[BURST].endswith("something else")
    assert lines[-1].endswith(f"30 more lines like this were left out: nonsense from {BURST + 29}")


@given(st.lists(st.floats(0, 30), max_size=200), st.integers(1, 5))
def test_a_throttle_never_admits_more_than_its_burst_in_a_window_and_counts_the_rest(
    steps: list[float], burst: int
) -> None:
    throttle = Throttle(burst, WINDOW)
    now = began = 0.0
    in_window = admitted = told = 0
    for step in steps:
        now += step / 10
        for _, count, _ in throttle.expired(now):
            told += count
        if now - began >= WINDOW or in_window == 0:
            began, in_window = now, 0
        passed = throttle.admit(KEY, "x", now)
        in_window += 1
        admitted += passed
        assert passed == (in_window <= burst)
    told += sum(count for _, count, _ in throttle.expired(now, all_of_them=True))
    assert admitted + told == len(steps)


def test_kinds_do_not_count_against_each_other_and_are_bounded() -> None:
    throttle = Throttle(1, WINDOW)
    for number in range(5000):
        assert throttle.admit((LOGGER, 30, f"template {number}"), "x", 0.0)
    assert not throttle.admit((LOGGER, 30, "template 0"), "x", 0.0)


@pytest.mark.turns(10)
def test_whoever_logs_never_waits_for_the_reader() -> None:
    stream = Stuck()
    log = NodeLog(stream, throttle=Throttle(10**9))
    with log:
        log.logger.info("the first")
        assert stream.reached.wait(60)
        for number in range(QUEUED + 50):  # returns although nothing is written
            log.logger.info("line %d", number)
        stream.go_on.set()
    lines = written(stream)
    assert any(line.endswith(" 50 lines were left out: the log was not read in time") for line in lines)
    assert lines[0].endswith("the first")
    assert len(lines) == 1 + QUEUED + 1


def test_closing_does_not_wait_for_ever_for_a_reader_that_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "CLOSING", 0.05)
    stream = Stuck()
    with NodeLog(stream) as log:
        log.logger.info("never read")
        assert stream.reached.wait(60)
        (writer,) = [one for one in threading.enumerate() if one.name == "log"]
    assert writer.is_alive()
    assert writer.daemon, "nor does the end of the process"
    stream.go_on.set()
    log.close()


def test_a_stream_that_is_closed_or_elsewhere_is_not_the_journal(tmp_path: os.PathLike[str]) -> None:
    with open(os.path.join(tmp_path, "log"), "w") as stream:
        found = os.fstat(stream.fileno())
        for device, inode, journal in ((0, 0, True), (1, 0, False), (0, 1, False)):
            named = f"{found.st_dev + device}:{found.st_ino + inode}"
            assert goes_to_journal(stream, {"JOURNAL_STREAM": named}) is journal
    assert not goes_to_journal(stream, {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"})
    assert not goes_to_journal(io.StringIO(), {"JOURNAL_STREAM": "1:1"})


def test_a_closed_stream_ends_no_thread() -> None:
    stream = io.StringIO()
    log = NodeLog(stream)
    stream.close()
    log.emit(logging.makeLogRecord({"msg": "m", "name": "x", "levelno": logging.INFO}))
    with log._waiting.mutex:
        assert log._writer.is_alive()
    log.close()
    assert not log._writer.is_alive()


def test_a_stream_that_is_gone_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    stream = os.fdopen(write, "w")
    with NodeLog(stream) as log:
        log.logger.info("to nobody")
        log.logger.info("to nobody again")
    with pytest.raises(BrokenPipeError):
        stream.close()
