"""Whether the entries of an index lead to the records of a data file, by its middle one and its last one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.builders import make_records, segment_header
from waltzctl.engine.log import evidence
from waltzctl.engine.log.view import view_partition
from waltzctl.formats.segment import HEADER_SIZE, encode_entries, encode_records, index_name, segment_name


def leads(path: Path, sizes: Sequence[int], *, first: int = 0, beyond: int = 0, wrong: int | None = None) -> bool:
    """Whether the entries of an index lead to records with data of these sizes; one of them is `wrong` by a byte."""
    records = [one for n, size in enumerate(sizes) for one in make_records(1, first=first + n, size=size)]
    body, offsets = encode_records(records)
    entries = [HEADER_SIZE + offset for offset in offsets]
    entries += [HEADER_SIZE + len(body) + 1000 * n for n in range(beyond)]
    if wrong is not None:
        entries[wrong] += 1
    (path / "0").mkdir()
    header = segment_header(0, first).encode()
    (path / "0" / segment_name(first)).write_bytes(header + body)
    (path / "0" / index_name(first)).write_bytes(header + encode_entries(entries))
    (segment,) = view_partition(path / "0", 0).segments
    return evidence._leads_here(segment)


@pytest.mark.parametrize("first", [0, 30])
@pytest.mark.parametrize(
    ("sizes", "beyond", "expected"),
    [
        ([5] * 10, 0, False),
        ([5] * 10, 2, False),
        ([5], 0, False),
        ([5, 9], 0, False),
        ([5, 5, 9], 0, False),
        ([5, 9, 5], 0, True),
        ([5, 5, 9, 1], 0, True),
        ([5, 9, 5, 5], 0, True),
        ([5, 6, 7, 8, 9, 1, 2, 3], 0, True),
        ([5, 6, 7, 8, 9, 1, 2, 3], 1, True),
        ([5, 6, 7, 8, 9, 1, 2, 3], 5, True),
    ],
)
def test_records_that_an_index_leads_to(
    tmp_path: Path, sizes: list[int], beyond: int, expected: bool, first: int
) -> None:
    assert leads(tmp_path, sizes, beyond=beyond, first=first) == expected


@pytest.mark.parametrize(("wrong", "expected"), [(1, True), (3, True), (4, False), (5, True), (6, True), (7, False)])
def test_the_middle_one_and_the_last_one_are_looked_at(tmp_path: Path, wrong: int, expected: bool) -> None:
    assert leads(tmp_path, [5, 6, 7, 8, 9, 1, 2, 3], wrong=wrong) == expected
