"""Cells of a table in which several values of an object stand together."""

from __future__ import annotations

from typing import Any

import pytest

from waltzctl.engine.columns import control_columns
from waltzctl.engine.columns.column_kinds import columns_named, hex32
from waltzctl.engine.columns.control_columns import PARTITION_INFO
from waltzctl.engine.columns.segment_columns import ids


@pytest.mark.parametrize(
    ("first", "last", "cell"), [(0, 9, "0..9"), (0, 0, "0..0"), (5, 9, "5..9"), (None, 9, "..9"), (3, None, "-")]
)
def test_ids_begin_at_nought_as_anywhere_else(first: int | None, last: int | None, cell: str) -> None:
    assert ids({"first_transaction_id": first, "last_transaction_id": last}) == cell


def struct(session: int, **changed: Any) -> dict[str, Any]:
    marks = {"session_id": session, "low_water_mark": 7, "local_low_water_mark": 6}
    return {**marks, "valid": True, "flags": 3, "assigned": True, "available": True, **changed}


def test_both_structs_of_a_pair_have_their_own_cell() -> None:
    shown = {"structs": [struct(4), struct(5, valid=False)], "current": 1}
    assert control_columns._first(shown) == "4/7/6"
    assert control_columns._second(shown) == "5/7/6 INVALID"


def test_flags_are_those_of_the_struct_in_force() -> None:
    pair = [struct(4, available=False), struct(5, assigned=False, available=False)]
    cells = [control_columns._flags({"structs": pair, "current": number}) for number in (1, 2, None)]
    assert cells == ["assigned", "none", "-"]
    unknown = struct(4, flags=None, assigned=None, available=None)
    assert control_columns._flags({"structs": [unknown, unknown], "current": 1}) == "-"


def test_columns_are_named_in_any_order_and_a_checksum_may_be_signed() -> None:
    names = ["stored_partition", "partition"]
    assert [one.name for one in columns_named(PARTITION_INFO.columns, names)] == names
    assert (hex32(-1), hex32(0x1F)) == ("ffffffff", "0000001f")
