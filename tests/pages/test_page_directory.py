"""Versions of pages: what a snapshot sees, references, external pages, what is collected and what is kept; how small it is."""

from __future__ import annotations

import random

import pytest

from waltzctl.engine.errors import PageConflictError
from waltzctl.engine.pages.blob_stats import BlobSpan
from waltzctl.engine.pages.checkpoint import checkpoint_of
from waltzctl.engine.pages.judgement import BatchJudge
from waltzctl.engine.pages.log_replay import directory_of
from waltzctl.engine.pages.page_directory import LARGEST_PAGE, PageDirectory
from waltzctl.formats.pages.write_batch import Edit, EditType, FieldEntry, PageEntry, PageId, Version


class Pages:
    """A directory that is written to as a store does it, without bytes.  An entry is told by its offset."""

    def __init__(self) -> None:
        self.directory = PageDirectory()
        self.log: list[Edit] = []

    def write(self, *edits: Edit) -> int:
        """Raises PageConflictError."""
        made = BatchJudge(self.directory).judge(edits)
        sequence = self.directory.sequence + 1
        for edit in made:
            one = Edit(edit.type, edit.page, Version(sequence), edit.entry, edit.origin)
            self.directory.apply(one)
            self.log.append(one)
        return self.directory.sequence

    def at(self, page: int, sequence: int | None = None) -> int | str | None:
        found = self.directory.locate(PageId(0, page), sequence)
        if found is None:
            return None
        return "external" if found.entry is None else found.entry.offset

    def collect(self, *snapshots: int) -> list[int]:
        """Offsets of what is freed."""
        self.directory.collect_all(sorted(snapshots, reverse=True))
        return sorted(span.offset for span in self.directory.take_freed())


def put(page: int, offset: int, *, tag: int = 0) -> Edit:
    return Edit(EditType.PUT, PageId(0, page), Version(0), PageEntry(1, offset, 10, 0, tag))


def external(page: int) -> Edit:
    return Edit(EditType.PUT_EXTERNAL, PageId(0, page), Version(0))


def ref(page: int, origin: int) -> Edit:
    return Edit(EditType.REF, PageId(0, page), Version(0), origin=PageId(0, origin))


def delete(page: int) -> Edit:
    return Edit(EditType.DELETE, PageId(0, page), Version(0))


def test_the_example_of_the_document() -> None:
    directory = PageDirectory()
    for page, version, offset in (
        (1, Version(1), 1), (2, Version(1), 4), (100, Version(1), 7), (1, Version(2), 2), (2, Version(2), 5),
        (1, Version(3, 1), 3), (2, Version(5), 6), (100, Version(10, 2), 8),
    ):  # fmt: skip
        directory.apply(Edit(EditType.PUT, PageId(0, page), version, PageEntry(1, offset, 1, 0)))

    def seen(page: int, sequence: int) -> int | None:
        found = directory.locate(PageId(0, page), sequence)
        return None if found is None or found.entry is None else found.entry.offset

    assert seen(2, 2) == 5
    assert [seen(1, sequence) for sequence in (0, 1, 2, 3, 9)] == [None, 1, 2, 3, 3]
    assert [seen(100, sequence) for sequence in (9, 10)] == [7, 8]


def test_snapshot_isolation() -> None:
    pages = Pages()
    first = pages.write(put(1, 10), put(2, 20))
    second = pages.write(delete(1), put(2, 21), external(3))
    third = pages.write(put(1, 11), delete(3), ref(4, 2))
    assert [pages.at(page, first) for page in (1, 2, 3, 4)] == [10, 20, None, None]
    assert [pages.at(page, second) for page in (1, 2, 3, 4)] == [None, 21, "external", None]
    assert [pages.at(page, third) for page in (1, 2, 3, 4)] == [11, 21, None, 21]


def test_one_page_thrice_in_a_batch_the_last_wins() -> None:
    pages = Pages()
    assert pages.write(put(1, 10), put(1, 11), put(1, 12)) == 1
    assert pages.at(1) == 12
    assert pages.collect() == [10, 11]
    assert pages.directory.size.rows == 1


def test_delete_then_put_in_a_batch() -> None:
    pages = Pages()
    pages.write(put(1, 10))
    pages.write(delete(1), put(1, 11))
    assert (pages.at(1), pages.at(1, 1)) == (11, 10)
    pages.write(put(2, 20), delete(2))
    assert pages.at(2) is None


def test_put_on_a_reference_or_on_a_referenced_page_fails_and_later_writes_work() -> None:
    pages = Pages()
    pages.write(put(1, 10))
    pages.write(ref(2, 1))
    for edits in ([put(2, 20)], [put(1, 11)], [put(3, 30), put(1, 11)], [external(1)], [external(2)], [ref(1, 2)]):
        with pytest.raises(PageConflictError):
            pages.write(*edits)
    assert [pages.at(page) for page in (1, 2, 3)] == [10, 10, None]
    pages.write(delete(2), put(1, 11))
    assert [pages.at(page) for page in (1, 2)] == [11, None]


@pytest.mark.parametrize("state", ["none", "entry", "reference", "external", "deleted", "referenced"])
def test_what_may_be_done_to_a_page(state: str) -> None:
    """The table of `judgement`."""
    allowed = {
        "none": {"put": 1, "external": 1, "ref": 1, "delete": 0},
        "deleted": {"put": 1, "external": 1, "ref": 1, "delete": 0},
        "entry": {"put": 1, "external": None, "ref": None, "delete": 1},
        "referenced": {"put": None, "external": None, "ref": None, "delete": 1},
        "reference": {"put": None, "external": None, "ref": 0, "delete": 1},
        "external": {"put": None, "external": 0, "ref": None, "delete": 1},
    }[state]
    edits = {"put": put(1, 99), "external": external(1), "ref": ref(1, 7), "delete": delete(1)}
    made = {
        "none": [], "entry": [put(1, 10)], "reference": [ref(1, 7)], "external": [external(1)],
        "deleted": [put(1, 10)], "referenced": [put(1, 10), ref(2, 1)],
    }[state]  # fmt: skip
    for kind, changes in allowed.items():
        pages = Pages()
        pages.write(put(7, 70), put(8, 80))
        if made:
            pages.write(*made)
        if state == "deleted":
            pages.write(delete(1))
        before = len(pages.log)
        if changes is None:
            with pytest.raises(PageConflictError, match="page 0:1 cannot be written"):
                pages.write(edits[kind])
        else:
            pages.write(edits[kind])
        assert len(pages.log) - before == (changes or 0), kind


def test_a_reference_elsewhere_is_refused_until_it_is_deleted_and_then_retargeted() -> None:
    pages = Pages()
    pages.write(put(1, 10), put(2, 20), ref(3, 1))
    with pytest.raises(PageConflictError, match="refers to another page"):
        pages.write(ref(3, 2))
    before = pages.directory.sequence
    pages.write(delete(3))
    pages.write(ref(3, 2))
    assert (pages.at(3), pages.at(3, before)) == (20, 10)  # an older snapshot sees what it saw


def test_delete_the_origin_and_the_reference_is_readable_and_the_other_way() -> None:
    pages = Pages()
    pages.write(put(1, 10), ref(2, 1))
    pages.write(delete(1))
    assert pages.collect() == []
    assert [pages.at(page) for page in (1, 2)] == [None, 10]
    pages.write(delete(2))
    assert pages.collect() == [10]
    pages.write(put(5, 50), ref(6, 5))
    pages.write(delete(6))
    assert pages.collect() == []
    assert pages.at(5) == 50


def test_deleted_and_put_anew_while_a_reference_lives() -> None:
    """The released program frees the entry that the reference needs."""
    pages = Pages()
    pages.write(put(1, 10), ref(2, 1))
    pages.write(delete(1))
    pages.write(put(1, 11))
    assert pages.collect() == []
    assert [pages.at(page) for page in (1, 2)] == [11, 10]
    pages.write(ref(3, 2), put(1, 12))
    assert pages.collect() == [11]
    assert [pages.at(page) for page in (1, 2, 3)] == [12, 10, 10]
    restored = directory_of(checkpoint_of(pages.directory).all_edits)
    assert [restored.locate(PageId(0, page)).entry.offset for page in (1, 2, 3)] == [12, 10, 10]


def test_a_reference_to_a_reference_collapses() -> None:
    pages = Pages()
    pages.write(put(1, 10), ref(2, 1))
    pages.write(ref(3, 2))
    found = pages.directory.locate(PageId(0, 3))
    assert found is not None
    assert (found.page, found.origin, found.is_reference) == (PageId(0, 3), PageId(0, 1), True)
    pages.write(delete(2))
    assert (pages.collect(), pages.at(3)) == ([], 10)


def test_a_reference_that_is_replayed_twice_counts_once() -> None:
    """In the released program it counts twice, and the entry is never freed."""
    pages = Pages()
    pages.write(put(1, 10))
    pages.write(ref(2, 1))
    pages.directory.apply(pages.log[-1])
    assert pages.directory.live_references(PageId(0, 1)) == 1
    assert pages.at(2) == 10
    pages.write(delete(2), delete(1))
    assert pages.collect() == [10]


def test_a_reference_to_what_is_missing_fails() -> None:
    pages = Pages()
    pages.write(put(1, 10))
    pages.write(delete(1))
    for origin in (1, 2):
        with pytest.raises(PageConflictError, match=f"page 0:{origin}, which is not there"):
            pages.write(ref(3, origin))


def test_three_hops_after_deletes() -> None:
    pages = Pages()
    pages.write(put(1, 10), ref(2, 1))
    pages.write(delete(1), ref(3, 2))
    pages.write(delete(2), ref(4, 3))
    pages.write(delete(3))
    assert pages.collect() == []
    assert [pages.at(page) for page in (1, 2, 3, 4)] == [None, None, None, 10]
    assert pages.directory.locate(PageId(0, 4)).origin == PageId(0, 1)  # type: ignore[union-attr]
    pages.write(delete(4))
    assert pages.collect() == [10]
    assert (pages.directory.size.pages, pages.directory.size.rows) == (0, 0)


def test_an_external_page_is_revived_and_older_snapshots_see_what_they_saw() -> None:
    pages = Pages()
    first = pages.write(external(1))
    second = pages.write(delete(1))
    third = pages.write(external(1))
    assert [pages.at(1, sequence) for sequence in (first, second, third)] == ["external", None, "external"]
    assert pages.directory.alive_external_ids(0) == {1}
    pages.write(delete(1), put(1, 10))  # full MVCC: it may become a page with data
    assert [pages.at(1, sequence) for sequence in (first, second, third, 4)] == ["external", None, "external", 10]
    pages.collect()
    assert pages.directory.alive_external_ids(0) == set()


def test_an_external_page_lives_while_it_is_referred_to() -> None:
    pages = Pages()
    pages.write(external(1), ref(2, 1))
    pages.write(delete(1))
    pages.collect()
    assert (pages.at(2), pages.directory.alive_external_ids(0)) == ("external", {1})
    restored = directory_of(checkpoint_of(pages.directory).all_edits)
    assert restored.alive_external_ids(0) == {1}
    pages.write(delete(2))
    pages.collect()
    assert pages.directory.alive_external_ids(0) == set()


def test_only_what_a_live_snapshot_sees_is_kept_also_between_two() -> None:
    """The released program keeps everything above its oldest snapshot."""
    pages = Pages()
    for number in range(1, 11):
        pages.write(put(1, number * 10))
    assert pages.collect(2, 7) == [10, 30, 40, 50, 60, 80, 90]
    assert [pages.at(1, sequence) for sequence in (2, 7, 10)] == [20, 70, 100]
    assert pages.collect(7) == [20]
    assert pages.collect() == [70]


def test_collection_is_held_back_by_the_oldest_snapshot() -> None:
    pages = Pages()
    pages.write(put(1, 10), put(2, 20))
    pages.write(delete(1), put(2, 21))
    assert pages.collect(1) == []
    assert [pages.at(page, 1) for page in (1, 2)] == [10, 20]
    assert pages.collect(2) == [10, 20]
    assert pages.directory.size.pages == 1  # a delete with nothing in front of it is nothing


def test_a_moved_entry_keeps_its_references_and_its_fields() -> None:
    """Full GC writes the same sequence with the epoch raised."""
    pages = Pages()
    fields = (FieldEntry(0, 5), FieldEntry(4, 6))
    entry = PageEntry(1, 10, 10, 3, 4, fields)
    pages.write(Edit(EditType.PUT, PageId(0, 1), Version(0), entry), ref(2, 1))
    moved = PageEntry(7, 70, 10, 3, 4, fields)
    edit = Edit(EditType.UPSERT, PageId(0, 1), Version(1, 1), moved)
    pages.directory.apply(edit)
    assert pages.directory.take_freed() == [BlobSpan(1, 10, 10)]
    for page in (1, 2):
        found = pages.directory.locate(PageId(0, page))
        assert found is not None
        assert (found.version, found.entry) == (Version(1, 1), moved)
    assert pages.directory.live_references(PageId(0, 1)) == 1
    pages.write(delete(2), delete(1))
    assert pages.collect() == [70]
    pages.directory.apply(Edit(EditType.UPSERT, PageId(0, 1), Version(1, 2), moved))  # a deleted page stays deleted
    assert pages.at(1) is None


def test_dump_and_restore_at_five_successive_snapshots() -> None:
    pages = Pages()
    steps = [
        [put(1, 10, tag=1), put(2, 20), external(3)],
        [ref(4, 1), ref(5, 3), delete(2)],
        [delete(1), put(2, 21)],
        [put(1, 11), delete(3)],
        [delete(4), ref(6, 1), delete(2), delete(5)],
    ]
    for edits in steps:
        pages.write(*edits)
        seen = [pages.at(page) for page in range(1, 7)]
        for directory in (directory_of(checkpoint_of(pages.directory).all_edits), directory_of(pages.log)):
            restored = Pages()
            restored.directory = directory
            assert [restored.at(page) for page in range(1, 7)] == seen
            assert directory.sequence == pages.directory.sequence
            assert directory.highest_ids == pages.directory.highest_ids
            assert directory.size.rows == len({*seen} - {None}) + sum(
                1 for page in range(1, 7) if getattr(pages.directory.locate(PageId(0, page)), "is_reference", False)
            )


@pytest.mark.parametrize("turned", [False, True], ids=["deleted", "turned into a reference"])
@pytest.mark.parametrize("made", [put(1, 10), external(1)], ids=["entry", "external"])
def test_what_a_batch_writes_refers_to_and_deletes_stays_with_the_reference(made: Edit, *, turned: bool) -> None:
    """What is deleted, the delete, and the reference that may take its place all have one sequence."""
    pages = Pages()
    pages.write(put(3, 30), ref(5, 3))
    pages.write(delete(3))  # so that what refers to it stands in a dump in front of page 1
    pages.write(made, ref(2, 1), delete(1), *([ref(1, 5)] if turned else []))
    last = 30 if turned else None
    assert _seen(pages.directory) == [last, "external" if made.entry is None else 10, 30]
    move = [Edit(EditType.UPSERT, PageId(0, 1), Version(3, 1), PageEntry(2, 99, 10, 0))]  # of an external page nothing
    moved = [last, "external" if made.entry is None else 99, 30]
    dump = checkpoint_of(pages.directory).all_edits
    assert _seen(directory_of(dump)) == _seen(directory_of(pages.log)) == _seen(pages.directory)
    assert _seen(directory_of([*dump, *move])) == _seen(directory_of([*pages.log, *move])) == moved
    pages.collect()
    collected = checkpoint_of(pages.directory).all_edits
    assert _seen(directory_of(collected)) == _seen(pages.directory)
    for directory in (pages.directory, directory_of([*collected, *move])):
        pages.directory = directory
        pages.write(*map(delete, (1, 2, 5)))
        pages.collect()
        assert directory.size.rows == 0


def _seen(directory: PageDirectory) -> list[int | str | None]:
    pages = Pages()
    pages.directory = directory
    return [pages.at(page) for page in (1, 2, 5)]


def test_what_is_deleted_leaves_nothing_in_a_dump_but_its_id() -> None:
    pages = Pages()
    pages.write(put(1, 10), put(8, 80))
    pages.write(delete(1), delete(8))
    assert [edit.type for edit in checkpoint_of(pages.directory).all_edits] == [EditType.VAR_HIGHEST]
    assert directory_of(checkpoint_of(pages.directory).all_edits).highest_ids == {0: 8}


def test_pages_of_many_namespaces_are_found_and_forgotten() -> None:
    rng = random.Random(4)
    directory, present = PageDirectory(), dict[PageId, int]()
    for sequence in range(1, 6000):
        page = PageId(rng.randrange(5), rng.choice([rng.randrange(400), rng.getrandbits(64)]))
        if rng.random() < 0.45 and present:
            page = rng.choice(list(present)) if rng.random() < 0.02 else page
            directory.apply(Edit(EditType.DELETE, page, Version(sequence)))
            present.pop(page, None)
        else:
            directory.apply(Edit(EditType.PUT, page, Version(sequence), PageEntry(1, sequence, 1, 0)))
            present[page] = sequence
        if sequence % 500 == 0:
            directory.collect_all(())
            directory.take_freed()
            assert directory.page_ids() == sorted(present)
            assert directory.size.rows == len(present)
    assert {page: directory.locate(page).entry.offset for page in present} == present  # type: ignore[union-attr]


@pytest.mark.turns(10)
def test_a_page_with_three_versions_takes_at_most_200_bytes() -> None:
    """Without the pages' data, with room for growing, at any number of pages (the table is fullest and emptiest somewhere)."""
    directory = PageDirectory()
    worst = 0.0
    for page in range(20_000):
        for version in range(3):
            sequence = page * 3 + version + 1
            directory.apply(Edit(EditType.PUT, PageId(1, page), Version(sequence), PageEntry(1, sequence, 1, 0, 9)))
        if page >= 2000 and page % 97 == 0:
            assert directory.size.rows == 3 * (page + 1)
            worst = max(worst, directory.size.bytes / (page + 1))
    assert 150 < worst <= 200


def test_a_page_without_room_in_the_columns_is_refused() -> None:
    """Before the log has it: a replay would fail on it."""
    large = Edit(EditType.PUT, PageId(0, 1), Version(0), PageEntry(1, 0, LARGEST_PAGE + 1, 0))
    with pytest.raises(PageConflictError, match="a page has at most 4294967295"):
        Pages().write(large)


def test_pages_come_in_order_whatever_their_rows() -> None:
    """Ids and namespaces of 64 bits among them, and rows that are used again."""
    directory = PageDirectory()
    assert directory.page_ids() == []
    pages = [PageId(space, number) for space in (2, 0, 2**63, 1) for number in (7, 2**64 - 1, 0, 2**63, 5)]
    rows = [directory._find_or_add(page) for page in pages]
    for row in rows[3:6]:
        directory._drop_page(row)
    left = [*pages[:3], *pages[6:], PageId(2, 9)]
    directory._find_or_add(left[-1])
    assert directory.page_ids() == sorted(left)
    assert all(type(number) is int for page in directory.page_ids() for number in page)
    assert directory.page_ids(2) == sorted(page for page in left if page.namespace == 2)
    assert directory.page_ids(3) == []
