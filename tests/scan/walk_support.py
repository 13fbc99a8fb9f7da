"""One call of the loop over records in memory, and what it must tell, from the oracle."""

from __future__ import annotations

import numpy as np

from tests.scan.oracle import Row, parse
from waltzctl.engine.scan.kernel import BASE, EXPECTED, FILLED, POSITION, ROOM, ROW, Kernel, Status

BEFORE = 4096


def run(kernel: Kernel, data: bytes, *, filled: int | None = None, rows: int = 4096, first: int = 0, wide: bool = True):
    """Status, position, next id and rows after one call of the loop."""
    lane = kernel.lane(BEFORE + len(data), rows, wide=wide, max_length=1 << 20)
    end = BEFORE + len(data)
    lane.memory[BEFORE:end] = data
    given_end = end if filled is None else BEFORE + filled
    for slot, value in ((POSITION, BEFORE), (FILLED, given_end), (ROOM, end), (BASE, -BEFORE), (EXPECTED, first)):
        lane.state[slot] = value
    status = lane.walk()
    count = lane.state[ROW]
    columns = lane.take(copy=True)
    assert {*columns["data_ok"].view(np.uint8).tolist()} <= {0, 1}, "no other byte is a truth value"
    found = list(zip(*(column.tolist() for column in columns.values()), strict=True))
    assert len(found) == count
    return Status(status), lane.state[POSITION] - BEFORE, lane.state[EXPECTED], found


def expected(data: bytes, filled: int, rows: int, first: int) -> tuple[Status, int, int, list[Row]]:
    """The same, from the oracle."""
    found: list[Row] = []
    position = 0
    while True:
        if len(found) == rows:
            return Status.FULL, position, first + len(found), found
        if position + 36 > filled:
            return Status.MORE, position, first + len(found), found
        length = int.from_bytes(data[position + 28 : position + 32], signed=True)
        end = position + 40 + length
        status = None
        if length < 0 or length > 1 << 20 or end > len(data):
            status = Status.LENGTH
        elif end > filled:
            status = Status.MORE
        elif (row := parse(data, position)) is None:
            status = Status.CHECKSUM
        elif row[1] != first + len(found):
            status = Status.ORDER
        if status is not None:
            return status, position, first + len(found), found
        found.append(row)
        position = end
