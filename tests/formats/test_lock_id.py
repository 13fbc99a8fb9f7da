"""Lock ids as the release computes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzctl.formats.lock_id import lock_id


@pytest.mark.parametrize(
    ("name", "number", "found"),
    [
        ("test", 1, 3556499),
        ("lock", 0, 3327275),
        ("account", 1234567890123, -936865799),
        ("", 0, 0),
        ("", 1 << 32, 1),
        ("", -1, 0),
        ("", 0x80000000, -0x80000000),
        ("", 0x7FFFFFFF, 0x7FFFFFFF),
        ("\U0001f600", 0, 31 * 0xD83D + 0xDE00),
    ],
)
def test_lock_ids(name: str, number: int, found: int) -> None:
    assert lock_id(name, number) == found


@given(st.text(max_size=20), st.integers(-(2**63), 2**63 - 1))
def test_a_lock_id_travels(name: str, number: int) -> None:
    assert -(2**31) <= lock_id(name, number) < 2**31
    assert lock_id(name, number) == lock_id(name, number + 2**64)
