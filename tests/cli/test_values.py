"""What people type is read as they mean it, and nonsense is refused with a hint."""

from __future__ import annotations

import threading

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from waltzctl.engine.amounts import parse_size, write_duration, write_size
from waltzctl.values import (
    format_ranges,
    human_bytes,
    human_duration,
    parse_duration,
    parse_percent,
    parse_ranges,
    parse_rate,
    printable,
)


@given(st.sets(st.integers(0, 5000), min_size=1, max_size=60))
def test_ranges_are_read_back_as_they_were_written(numbers: set[int]) -> None:
    assert set(parse_ranges(format_ranges(numbers))) == numbers


@given(st.one_of(st.integers(1, 1 << 59), st.integers(1, 5000).map(lambda n: n << 20)))
@example((1 << 53) + 1)
def test_sizes_are_read_back_as_they_were_written(size: int) -> None:
    assert parse_size(write_size(size)) == size


@given(
    st.one_of(
        st.integers(1, 10**6).map(float),
        st.integers(1, 10**12).map(lambda microseconds: microseconds / 10**6),
        st.integers(1, 999).map(lambda ms: ms / 1000),
    )
)
@example(100_000.5)
@example(1_234_567.5)
@example(1e-8)
def test_durations_are_read_back_as_they_were_written(seconds: float) -> None:
    assert parse_duration(write_duration(seconds)) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (write_size(64 << 20), "64MiB"),
        (write_size(1_000_000_000), "1GB"),
        (write_size(500_000), "500KB"),
        (write_size(1023), "1023"),
        (write_size(0), "0"),
        (write_duration(0.0), "0s"),
        (write_duration(60.0), "60s"),
        (write_duration(0.25), "250ms"),
        (write_duration(1500.0), "25m"),
        (write_duration(7200.0), "2h"),
    ],
)
def test_amounts_are_written_shortly(value: str, text: str) -> None:
    assert value == text


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-3,7", (0, 1, 2, 3, 7)), ("7,0-1,1", (0, 1, 7)), (" 2 - 3 , 5", (2, 3, 5)), ("0", (0,))]
)
def test_ranges(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_ranges(text) == numbers


@pytest.mark.parametrize(
    "text", ["", ",", "a", "-1", "3-1", "1-", "1--2", "0x1", "1.5", "2147483648", "0-2000000", "٣", "9" * 30, "0;1"]
)
def test_ranges_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(ValueError, match=r"range|partition|number"):
        parse_ranges(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("5m", 300), ("2h", 7200), ("1d", 86400), ("250ms", 0.25), ("1.5h", 5400), ("10", 10)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


def test_a_duration_that_no_call_of_the_system_waits_for() -> None:
    """Waiting for it was an OverflowError."""
    assert parse_duration("36500d") < threading.TIMEOUT_MAX
    for text in ("36500.1d", "110000d", "999999999999999999"):
        with pytest.raises(ValueError, match="must be at most 36500d"):
            parse_duration(text)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("100MiB", 100 << 20), ("1k", 1024), ("2GB", 2 * 10**9), ("512B", 512), ("1.5KiB", 1536), ("10MiB/s", 10 << 20)],
)
def test_rates(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["100", "1.5", " 100 ", "100/s"])
def test_a_rate_says_its_unit(text: str) -> None:
    with pytest.raises(ValueError, match=r"has no unit; write for instance [0-9.]+MiB, or [0-9.]+B for bytes"):
        parse_rate(text)


@pytest.mark.parametrize(("text", "share"), [("10%", 0.1), ("100", 1.0), ("0.5 %", 0.005)])
def test_percentages(text: str, share: float) -> None:
    assert parse_percent(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "0", "-3s", "1 week", "nan", "inf", "1e9", "s"])
def test_amounts_that_cannot_be_meant(text: str) -> None:
    for parse in (parse_duration, parse_rate):
        with pytest.raises(ValueError, match=r"write for instance|more than nothing"):
            parse(text)


def test_a_rate_of_nothing() -> None:
    with pytest.raises(ValueError, match="more than nothing"):
        parse_rate("0MiB")


@pytest.mark.parametrize("text", ["0%", "101%", "-1%", "nan%", "inf", "ten", ""])
def test_percentages_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(ValueError, match=r"percentage|sample"):
        parse_percent(text)


@given(st.text())
def test_printable_text_is_one_line_without_control_characters(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert "\n" not in shown


def test_printable_shows_the_bytes_of_a_name_that_is_no_utf8() -> None:
    assert printable("a\udcffb\x1b[31m\tc\u2028\U000e0001") == "a\\xffb\\x1b[31m\\tc\\u2028\\U000e0001"


def test_sizes_and_times_for_people() -> None:
    assert [human_bytes(n) for n in (0, 1023, 1024, 1536, 200 << 30, 5 << 40)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "200 GiB", "5.0 TiB"
    ]  # fmt: skip
    assert [human_duration(s) for s in (0.123, 42, 192, 3840)] == ["0.12s", "42s", "3m12s", "1h04m"]
