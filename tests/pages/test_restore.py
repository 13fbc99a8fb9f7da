"""Restoring: many entries of a checkpoint at once come to what they come to one by one, and are found."""

from __future__ import annotations

import random

import numpy as np
import pytest

from waltzctl.engine.pages.checkpoint import load_entries
from waltzctl.engine.pages.log_replay import directory_of
from waltzctl.engine.pages.page_directory import LARGEST_PAGE, PageDirectory
from waltzctl.engine.pages.page_index import NONE
from waltzctl.engine.pages.space_map import SpaceMap
from waltzctl.formats.pages.write_batch import (
    Edit,
    EditType,
    FieldEntry,
    PageEntry,
    PageId,
    Version,
    decode_batch,
    encode_batch,
    plain_entries,
)


def entries(rng: random.Random, count: int) -> list[Edit]:
    """Of pages that are all different, some of them close to one another and some at the ends of the range."""
    pages = {
        PageId(rng.choice([0, 1, 2**64 - 1]), rng.choice([rng.randrange(4 * count), rng.getrandbits(64)]))
        for _ in range(count)
    }
    return [
        Edit(EditType.VAR_ENTRY, page, Version(rng.randrange(1, 10**12), rng.randrange(5)),
             PageEntry(1 + number % 3, number * 10, number % 10, rng.getrandbits(32), rng.getrandbits(64)))
        for number, page in enumerate(sorted(pages, key=lambda _: rng.random()))
    ]  # fmt: skip


def table_of(edits: list[Edit]) -> np.ndarray:  # type: ignore[type-arg]
    table = plain_entries(encode_batch(edits))
    assert table is not None
    return table


@pytest.mark.parametrize("count", [1, 2, 12, 13, 500, 5000])
def test_many_at_once_are_what_they_are_one_by_one(count: int) -> None:
    edits = entries(random.Random(count), count)
    loaded, applied = PageDirectory(), directory_of(edits)
    loaded.apply(Edit(EditType.PUT, PageId(5, 5), Version(1), PageEntry(1, 0, 0, 0)))  # something is there already
    applied.apply(Edit(EditType.PUT, PageId(5, 5), Version(1), PageEntry(1, 0, 0, 0)))
    assert load_entries(loaded, table_of(edits))
    assert loaded.page_ids() == applied.page_ids()
    for page in applied.page_ids():
        assert loaded.locate(page) == applied.locate(page)
    assert (loaded.sequence, loaded.highest_ids) == (applied.sequence, applied.highest_ids)
    assert loaded.size.rows == applied.size.rows == len(edits) + 1
    assert np.array_equal(loaded.spans(), applied.spans())
    assert loaded.find(PageId(3, 3)) == NONE
    for edit in edits[::2]:  # what was loaded changes as what was applied
        gone = Edit(EditType.DELETE, edit.page, Version(10**13))
        loaded.apply(gone)
        applied.apply(gone)
    loaded.collect_all(())
    applied.collect_all(())
    assert loaded.page_ids() == applied.page_ids()
    assert loaded.size.rows == applied.size.rows


def test_a_page_that_stands_twice_or_is_there_already_is_not_loaded() -> None:
    first, second, third = entries(random.Random(1), 3)
    directory = PageDirectory()
    for edits in ([first, second, first], [first, first]):
        assert not load_entries(directory, table_of(edits))
        assert (directory.page_ids(), directory.size.pages, directory.size.rows) == ([], 0, 0)
    assert load_entries(directory, table_of([first]))
    assert not load_entries(directory, table_of([second, third, first]))
    assert directory.page_ids() == [first.page]
    assert load_entries(directory, table_of([second, third]))
    assert len(directory.page_ids()) == 3


def test_what_has_no_room_in_the_columns_is_not_loaded() -> None:
    page = PageId(0, 1)
    for entry, version in (
        (PageEntry(1, LARGEST_PAGE + 1, 1, 0), Version(1)), (PageEntry(1, 0, LARGEST_PAGE + 1, 0), Version(1)),
        (PageEntry(1, 0, 1, LARGEST_PAGE + 1), Version(1)), (PageEntry(2**32 - 1, 0, 1, 0), Version(1)),
        (PageEntry(1, 0, 1, 0), Version(1, LARGEST_PAGE + 1)),
    ):  # fmt: skip
        assert not load_entries(PageDirectory(), table_of([Edit(EditType.VAR_ENTRY, page, version, entry)]))


def test_only_plain_entries_are_read_at_once() -> None:
    plain = entries(random.Random(2), 3)
    with_field = Edit(EditType.VAR_ENTRY, PageId(0, 1), Version(1), PageEntry(1, 0, 1, 0, 0, (FieldEntry(0, 0),)))
    referenced = Edit(EditType.VAR_ENTRY, PageId(0, 1), Version(1), PageEntry(1, 0, 1, 0), references=2)
    put = Edit(EditType.PUT, PageId(0, 1), Version(1), PageEntry(1, 0, 1, 0))
    for edits in ([with_field], [referenced], [*plain, put], [Edit(EditType.VAR_DELETE, PageId(0, 1), Version(1))], []):
        raw = encode_batch(edits)
        assert plain_entries(raw) is None
        assert decode_batch(raw) == edits
    raw = encode_batch(plain)
    for other in (raw[:-1], raw + b"\0", b"\1\0\0\0" + raw[4:], b"", raw[:3]):
        assert plain_entries(other) is None


def test_many_ranges_at_once_are_what_they_are_one_by_one() -> None:
    rng = random.Random(3)
    for _ in range(50):
        places = sorted(rng.sample(range(100), 20))
        ranges = [(one, other - one) for one, other in zip(places[::2], places[1::2], strict=True)]
        single, many = SpaceMap(100), SpaceMap(100)
        for start, size in ranges:
            assert single.mark_used(start, size)
        many.mark_many_used([start for start, _ in ranges], [size for _, size in ranges])
        assert (many.free_ranges(), many.valid, many.largest_free) == (
            single.free_ranges(),
            single.valid,
            single.largest_free,
        )
        assert many.take(3) == single.take(3)
    for offsets, sizes in (([0, 5], [6, 1]), ([95], [10]), ([5, 0], [1, 1])):
        with pytest.raises(ValueError, match="overlap"):
            SpaceMap(100).mark_many_used(offsets, sizes)
    with pytest.raises(ValueError, match="already"):
        many.mark_many_used([0], [1])
