"""Values that the layouts share: UUIDs and times."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.settings import properties
from waltzctl.formats.adapters import Uuid, format_time


@properties
@given(st.uuids())
def test_uuid_is_sixteen_bytes_most_significant_first(value: uuid.UUID) -> None:
    assert Uuid.build(value) == value.int.to_bytes(16, "big")
    assert Uuid.parse(value.bytes) == value


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (-62_135_596_800_000, "0001-01-01T00:00:00.000Z"),
        (-62_135_596_800_001, None),
        (-30_610_224_000_001, "0999-12-31T23:59:59.999Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, None),
        (2**63 - 1, None),
        (-(2**63), None),
    ],
)
def test_times_are_rfc_3339_with_milliseconds_or_none_beyond_the_calendar(milliseconds: int, text: str | None) -> None:
    assert format_time(milliseconds) == text


@properties
@given(st.integers(-(2**63), 2**63 - 1))
def test_no_stored_time_raises(milliseconds: int) -> None:
    text = format_time(milliseconds)
    assert text is None or text.endswith("Z")
