"""Page directory: which versions every page has, what each says, and which of them a snapshot sees.

A page has a chain of versions, newest first.  A version is an *entry* (data in a blob file), a *reference* to an entry or an
external page, an *external* page (no data here), or a *delete*; a chain may hold all of them, so that what a snapshot sees
never changes, whatever becomes of the page.  An entry stays while a chain or a reference holds it, also when its own page has
no version of it any more: it is *held* then.

There is no object for a page.  A page is a row of 24 bytes in columns, a version one of 48, and pages are found through a table
of 4-byte slots (open addressing, linear probing).  What is rare stands beside: the fields of pages that have fields.

Not thread-safe: the caller holds a lock, and no view of a column outlives it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from waltzctl.engine.pages.blob_stats import BlobSpan
from waltzctl.engine.pages.page_columns import DELETED, EXTERNAL, REFERENCE, PageColumns, VersionColumns
from waltzctl.engine.pages.page_index import NONE, PageIndex
from waltzctl.formats.pages.write_batch import (
    FIELD,
    NO_FILE,
    Edit,
    EditType,
    FieldEntry,
    PageEntry,
    PageId,
    Version,
)

LAST_FILE_ID = 2**32 - 16
LARGEST_PAGE = 2**32 - 1


class Located(NamedTuple):
    """What a page is in a snapshot.

    `page`: as it was asked for; `origin`: the page that the data belongs to, another one where `page` is a reference.  `entry` is
    None for an external page.  `version` is that of the entry or external page.
    """

    page: PageId
    origin: PageId
    version: Version
    entry: PageEntry | None
    is_reference: bool

    @property
    def is_external(self) -> bool:
        """Whether its data is elsewhere."""
        return self.entry is None


@dataclass(frozen=True, slots=True)
class DirectorySize:
    """How many there are: pages with a chain or a held entry, versions in chains, rows of held entries; bytes of all columns."""

    pages: int
    rows: int
    bytes: int


class PageDirectory:
    """Versions of pages.  `sequence` is the last one that is published: what is read without a snapshot."""

    def __init__(self) -> None:
        self.sequence = 0
        self.highest_ids: dict[int, int] = {}
        self.pages = PageColumns()
        self.rows = VersionColumns()
        self.fields: dict[int, bytes] = {}
        self.index = PageIndex(self.pages.namespace, self.pages.id)
        self._checkpoint_target: dict[PageId, int] = {}
        self.freed: list[BlobSpan] = []

    # ---- pages ---------------------------------------------------------------------------------------------------------

    def find(self, page: PageId) -> int:
        """The row of a page, or NONE."""
        return self.index.find(page)

    def _find_or_add(self, page: PageId) -> int:
        row = self.index.find(page)
        if row == NONE:
            row = self.pages.add(NONE, page.namespace, page.id, 0, 0)
            self.index.add(row)
        return row

    def _drop_page(self, row: int) -> None:
        self.index.remove(row)
        self.pages.remove(row)

    def page_id(self, row: int) -> PageId:
        """The page of a row of pages."""
        return PageId(self.pages.namespace[row], self.pages.id[row])

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _visible(self, page_row: int, sequence: int) -> int:
        """The row of the newest version up to `sequence`, a delete as well; NONE where there is none."""
        row, sequences, older = self.pages.head[page_row], self.rows.sequence, self.rows.older
        while row != NONE and sequences[row] > sequence:
            row = older[row]
        return row

    def locate(self, page: PageId, sequence: int | None = None) -> Located | None:
        """What a page is as of `sequence`, or as of the last batch; None where there is none."""
        page_row = self.index.find(page)
        if page_row == NONE:
            return None
        row = self._visible(page_row, self.sequence if sequence is None else sequence)
        return None if row == NONE or self.rows.file[row] == DELETED else self._located(page, row)

    def _located(self, page: PageId, row: int) -> Located:
        if self.rows.file[row] != REFERENCE:
            return Located(page, page, self.version_of(row), self.entry_of(row), False)
        target = self.rows.offset[row]
        return Located(page, self.page_of(target), self.version_of(target), self.entry_of(target), True)

    def _target(self, row: int) -> int:
        """Where a reference leads; the row itself otherwise."""
        return self.rows.offset[row] if self.rows.file[row] == REFERENCE else row

    def version_of(self, row: int) -> Version:
        """The version in a row."""
        return Version(self.rows.sequence[row], self.rows.epoch[row])

    def entry_of(self, row: int) -> PageEntry | None:
        """What the version in a row says, which is no reference; None for an external page."""
        rows = self.rows
        if rows.file[row] == EXTERNAL:
            return None
        fields: tuple[FieldEntry, ...] = ()
        if row in self.fields:
            fields = tuple(map(FieldEntry._make, FIELD.struct.iter_unpack(self.fields[row])))
        return PageEntry(rows.file[row], rows.offset[row], rows.size[row], rows.checksum[row], rows.tag[row], fields)

    def page_ids(self, namespace: int | None = None) -> list[PageId]:
        """Of all pages that may have a version, in order."""
        namespaces, ids = np.frombuffer(self.pages.namespace, np.uint64), np.frombuffer(self.pages.id, np.uint64)
        rows = self.index.rows()
        if namespace is not None:
            rows = rows[namespaces[rows] == namespace]
        rows = rows[np.lexsort((ids[rows], namespaces[rows]))]
        return list(map(PageId, namespaces[rows].tolist(), ids[rows].tolist()))

    def versions(self, page: PageId) -> list[tuple[Version, Located | None]]:
        """Every version of a page, newest first; None for a delete."""
        row = self.find(page)
        row = NONE if row == NONE else self.pages.head[row]
        found: list[tuple[Version, Located | None]] = []
        while row != NONE:
            gone = self.rows.file[row] == DELETED
            found.append((self.version_of(row), None if gone else self._located(page, row)))
            row = self.rows.older[row]
        return found

    def alive_external_ids(self, namespace: int) -> set[int]:
        """External pages that a version or a reference, whoever sees it, still needs."""
        files = np.frombuffer(self.rows.file, np.uint32)
        references = np.frombuffer(self.rows.references, np.uint32)
        found = np.flatnonzero((files == EXTERNAL) & (references > 0)).tolist()
        del files, references
        pages = (self.rows.page[row] for row in found)
        return {self.pages.id[page] for page in pages if self.pages.namespace[page] == namespace}

    # ---- what a judge has to know ------------------------------------------------------------------------------------

    def head_of(self, page: PageId) -> int:
        """The row of a page's last version, whether published or not; NONE where there is none or it is a delete."""
        row = self.find(page)
        row = NONE if row == NONE else self.pages.head[row]
        return NONE if row == NONE or self.rows.file[row] == DELETED else row

    def target_of(self, row: int) -> int:
        """The row of what a version says: where a reference leads, or itself."""
        return self._target(row)

    def page_of(self, row: int) -> PageId:
        """The page that a version belongs to."""
        return self.page_id(self.rows.page[row])

    def is_external(self, row: int) -> bool:
        """Whether a version that is no reference is an external page."""
        return self.rows.file[row] == EXTERNAL

    def live_references(self, page: PageId) -> int:
        """How many pages refer to the last version of a page, as their last version."""
        row = self.find(page)
        return 0 if row == NONE else self.pages.live_references[row]

    # ---- changes -----------------------------------------------------------------------------------------------------

    def apply(self, edit: Edit) -> None:
        """Make an edit of a batch that was judged, of the log or of a checkpoint.

        Raises ValueError for one that cannot be, as only a damaged log has it.
        """
        _APPLY[edit.type](self, edit)
        self.sequence = max(self.sequence, edit.version.sequence)

    def _apply_entry(self, edit: Edit) -> None:
        entry = edit.entry
        if (
            entry is None
            or max(entry.size, entry.offset, entry.checksum) > LARGEST_PAGE
            or entry.file_id > LAST_FILE_ID
        ):
            raise ValueError(f"page {edit.page}: its entry {entry} cannot be")
        row = self._push(edit, entry.file_id, entry.offset, entry.size, entry.checksum, entry.tag)
        if entry.fields:
            self.fields[row] = b"".join([FIELD.struct.pack(*field) for field in entry.fields])
        if edit.type is EditType.VAR_ENTRY:
            self._checkpoint_target[edit.page] = row

    def _apply_external(self, edit: Edit) -> None:
        row = self._push(edit, EXTERNAL)
        if edit.type is EditType.VAR_EXTERNAL:
            self._checkpoint_target[edit.page] = row

    def _apply_reference(self, edit: Edit) -> None:
        assert edit.origin is not None
        if edit.type is EditType.VAR_REF:
            target = self._checkpoint_target.get(edit.origin, NONE)
        else:
            head = self.head_of(edit.origin)
            target = NONE if head == NONE else self._target(head)
        if target == NONE:
            raise ValueError(f"page {edit.page} refers to page {edit.origin}, which is not there")
        self.rows.references[target] += 1  # before the chain of the page lets go of what it had
        row = self._push(edit, REFERENCE, target)
        self._count_reference(row, 1)

    def _apply_delete(self, edit: Edit) -> None:
        if self.head_of(edit.page) != NONE:
            self._push(edit, DELETED)

    def _apply_highest(self, edit: Edit) -> None:
        self.note_id(edit.page)

    def _apply_move(self, edit: Edit) -> None:
        page_row = self.find(edit.page)
        row = NONE if page_row == NONE else self.pages.head[page_row]
        while row != NONE and not self._moves(row, edit.version.sequence):
            row = self.rows.older[row]
        if row != NONE and edit.entry is not None:
            self.move(row, edit.entry, edit.version.epoch)

    def _moves(self, row: int, sequence: int) -> bool:
        """Whether the entry of `sequence` stands in a row; a delete or reference of the same batch may stand in front of it."""
        return self.rows.sequence[row] == sequence and self.rows.file[row] < LAST_FILE_ID

    def move(self, row: int, entry: PageEntry, epoch: int) -> None:
        """An entry's data lies elsewhere now; where it lay is freed.  Nothing else of it changes."""
        self._free(row)
        self.rows.file[row], self.rows.offset[row], self.rows.epoch[row] = entry.file_id, entry.offset, epoch

    def _count_reference(self, row: int, by: int) -> None:
        """A reference became the last version of its page, or ceased to be."""
        target = self._target(row)
        page = self.rows.page[target]
        if self.pages.head[page] == target:
            self.pages.live_references[page] += by

    def note_id(self, page: PageId) -> None:
        """A page has this id: no lower one is the highest."""
        if page.id > self.highest_ids.get(page.namespace, -1):
            self.highest_ids[page.namespace] = page.id

    def _push(self, edit: Edit, file: int, offset: int = 0, size: int = 0, checksum: int = 0, tag: int = 0) -> int:
        """A new last version of a page.

        One of the same batch gives way, unless another page refers to it.  A checkpoint may bring an older one later.
        """
        page_row = self._find_or_add(edit.page)
        self.note_id(edit.page)
        pages, rows = self.pages, self.rows
        sequence, epoch = edit.version
        head = pages.head[page_row]
        if head != NONE and (rows.sequence[head] > sequence or self._stands_above(head, edit)):
            while rows.older[head] != NONE and rows.sequence[rows.older[head]] > sequence:
                head = rows.older[head]
            row = rows.add(
                rows.older[head], page_row, sequence, min(epoch, LARGEST_PAGE), file, offset, size, checksum, tag, 1
            )
            rows.older[head] = row
            pages.rows[page_row] += 1
            return row
        if head != NONE and rows.file[head] == REFERENCE:
            self._count_reference(head, -1)
        pages.live_references[page_row] = 0
        if head != NONE and rows.sequence[head] == sequence and rows.references[head] == 1:
            replaced, head = head, rows.older[head]
            pages.rows[page_row] += 1  # or the page would go with its only row
            self._let_go(replaced)
            pages.rows[page_row] -= 1
        row = rows.add(head, page_row, sequence, min(epoch, LARGEST_PAGE), file, offset, size, checksum, tag, 1)
        pages.head[page_row] = row
        pages.rows[page_row] += 1
        return row

    def _stands_above(self, head: int, edit: Edit) -> bool:
        """Whether a reference that a checkpoint brought is newer than an entry of the same batch that it brings now.

        The batch had to delete what it had written to make the page a reference, and another page refers to that.
        """
        rows = self.rows
        earlier = edit.type in (EditType.VAR_ENTRY, EditType.VAR_EXTERNAL)
        return earlier and rows.file[head] == REFERENCE and rows.sequence[head] == edit.version.sequence

    def _let_go(self, row: int) -> None:
        """One that held a row does so no longer: its chain, or a reference."""
        rows = self.rows
        waiting = [row]
        while waiting:
            row = waiting.pop()
            rows.references[row] -= 1
            if rows.references[row]:
                continue
            if rows.file[row] == REFERENCE:
                waiting.append(rows.offset[row])
            else:
                self._free(row)
            self.fields.pop(row, None)
            page_row = rows.page[row]
            rows.file[row] = DELETED
            rows.remove(row)
            self.pages.rows[page_row] -= 1
            if not self.pages.rows[page_row]:
                self._drop_page(page_row)

    def _free(self, row: int) -> None:
        rows = self.rows
        if rows.file[row] < LAST_FILE_ID and rows.size[row]:
            self.freed.append(BlobSpan(rows.file[row], rows.offset[row], rows.size[row]))

    def take_freed(self) -> list[BlobSpan]:
        """Where data lay that nothing needs any more; it is told once."""
        freed, self.freed = self.freed, []
        return freed

    # ---- collecting versions -----------------------------------------------------------------------------------------

    def untidy_pages(self) -> list[int]:
        """Rows of pages that have a version which perhaps nobody sees."""
        heads = np.frombuffer(self.pages.head, np.uint32)
        counts = np.frombuffer(self.pages.rows, np.uint32)
        candidates = np.flatnonzero(counts > 0)
        heads = heads[candidates]
        candidates, heads = candidates[heads != NONE], heads[heads != NONE]
        older = np.frombuffer(self.rows.older, np.uint32)[heads]
        deleted = np.frombuffer(self.rows.file, np.uint32)[heads] == DELETED
        found: list[int] = candidates[(older != NONE) | deleted].tolist()
        return found

    def collect(self, page_row: int, snapshots: Sequence[int]) -> int:
        """Let go of versions of a page that neither the last batch nor one of `snapshots` (falling) sees; how many went."""
        pages, rows = self.pages, self.rows
        if page_row >= len(pages.rows) or not pages.rows[page_row]:
            return 0
        head = pages.head[page_row]
        if head == NONE:
            return 0
        kept, dropped = [head], []
        waiting = iter(snapshots)
        sequence = next(waiting, None)
        row = rows.older[head]
        while sequence is not None and rows.sequence[head] <= sequence:
            sequence = next(waiting, None)
        while row != NONE:
            if sequence is not None and rows.sequence[row] <= sequence:
                kept.append(row)
                while sequence is not None and rows.sequence[row] <= sequence:
                    sequence = next(waiting, None)
            else:
                dropped.append(row)
            row = rows.older[row]
        while kept and rows.file[kept[-1]] == DELETED:  # with nothing older it says what no version says
            dropped.append(kept.pop())
        if not dropped:
            return 0
        for newer, older in itertools.pairwise([*kept, NONE]):
            rows.older[newer] = older
        pages.head[page_row] = kept[0] if kept else NONE
        for row in dropped:
            self._let_go(row)
        return len(dropped)

    def collect_all(self, snapshots: Sequence[int]) -> int:
        """`collect` of every page."""
        return sum(self.collect(page_row, snapshots) for page_row in self.untidy_pages())

    # ---- moving data -------------------------------------------------------------------------------------------------

    def rows_in(self, file_ids: Sequence[int]) -> list[int]:
        """Rows of entries whose data lies in these blob files."""
        files = np.frombuffer(self.rows.file, np.uint32)
        alive = np.isin(files, np.array(file_ids, np.uint32)) & (np.frombuffer(self.rows.size, np.uint32) > 0)
        found: list[int] = np.flatnonzero(alive).tolist()
        return found

    def at(self, row: int) -> tuple[PageId, Version, PageEntry] | None:
        """The entry of a row as it is now, or None where the row holds no data."""
        if self.rows.file[row] >= LAST_FILE_ID or not self.rows.references[row]:
            return None
        entry = self.entry_of(row)
        assert entry is not None
        return self.page_id(self.rows.page[row]), self.version_of(row), entry

    def spans(self) -> np.ndarray[Any, Any]:
        """File, offset and size of every entry's data, ordered by file and offset."""
        columns = (self.rows.file, self.rows.offset, self.rows.size)
        table = (
            np.stack([np.array(column, np.int64) for column in columns], axis=1) if self.rows.used else np.empty((0, 3))
        )
        table = table[(table[:, 0] < LAST_FILE_ID) & (table[:, 0] != NO_FILE) & (table[:, 2] > 0)].astype(np.int64)
        ordered: np.ndarray[Any, Any] = table[np.lexsort((table[:, 1], table[:, 0]))]
        return ordered

    # ---- the whole ---------------------------------------------------------------------------------------------------

    def end_checkpoint(self) -> None:
        """Whatever is applied from here on is no checkpoint."""
        self._checkpoint_target = {}

    @property
    def size(self) -> DirectorySize:
        """How much there is."""
        total = self.pages.bytes + self.rows.bytes + self.index.bytes
        return DirectorySize(self.pages.used, self.rows.used, total)


_APPLY: dict[EditType, Callable[[PageDirectory, Edit], None]] = {
    EditType.PUT: PageDirectory._apply_entry,
    EditType.VAR_ENTRY: PageDirectory._apply_entry,
    EditType.PUT_EXTERNAL: PageDirectory._apply_external,
    EditType.VAR_EXTERNAL: PageDirectory._apply_external,
    EditType.REF: PageDirectory._apply_reference,
    EditType.VAR_REF: PageDirectory._apply_reference,
    EditType.DELETE: PageDirectory._apply_delete,
    EditType.VAR_DELETE: PageDirectory._apply_delete,
    EditType.UPSERT: PageDirectory._apply_move,
    EditType.VAR_HIGHEST: PageDirectory._apply_highest,
}
