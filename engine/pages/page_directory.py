"""Page directory: the versions of every page, what each version holds, and which one a snapshot sees.

A page has a chain of versions, newest first.  Each version is one of:

- an *entry*: data in a blob file;
- a *reference* to an entry or external page, usually of another page;
- an *external* page: its data is stored outside the store;
- a *delete*.

A chain may mix all of them, so what a snapshot sees never changes, whatever happens to the page later.  An entry or external page
is kept as long as a chain or a reference holds it.  It is *held* when only references hold it and its own page has no such
version any more.

Memory: there is no object per page.  A page is a row of 24 bytes, a version one of 48 bytes, in columns; pages are found through
a hash table of 4-byte slots (open addressing, linear probing).  Fields, which few pages have, are in a separate dictionary.

Not thread-safe: the caller holds a lock, and must not keep a view of a column after releasing it.
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
    """A page as a snapshot sees it.

    - `page`: the page that was asked for.
    - `origin`: the page that owns the data; differs from `page` if `page` is a reference.
    - `version`: that of the entry or external page.
    - `entry`: None for an external page.
    """

    page: PageId
    origin: PageId
    version: Version
    entry: PageEntry | None
    is_reference: bool

    @property
    def is_external(self) -> bool:
        """Whether its data is stored outside the store."""
        return self.entry is None


@dataclass(frozen=True, slots=True)
class DirectorySize:
    """Counts: `pages` with a chain or a held entry, `rows` of versions and held entries; `bytes` of all columns."""

    pages: int
    rows: int
    bytes: int


class PageDirectory:
    """Versions of pages.  `sequence` is the last published one: what reads without a snapshot see."""

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
        """The row of the newest version up to `sequence`, which may be a delete; NONE if there is none."""
        row, sequences, older = self.pages.head[page_row], self.rows.sequence, self.rows.older
        while row != NONE and sequences[row] > sequence:
            row = older[row]
        return row

    def locate(self, page: PageId, sequence: int | None = None) -> Located | None:
        """A page as of `sequence`, by default as of the last batch; None if it does not exist."""
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
        """The row that a reference points to; the row itself for any other version."""
        return self.rows.offset[row] if self.rows.file[row] == REFERENCE else row

    def version_of(self, row: int) -> Version:
        """The version in a row."""
        return Version(self.rows.sequence[row], self.rows.epoch[row])

    def entry_of(self, row: int) -> PageEntry | None:
        """The entry in a row, which is not a reference; None for an external page."""
        rows = self.rows
        if rows.file[row] == EXTERNAL:
            return None
        fields: tuple[FieldEntry, ...] = ()
        if row in self.fields:
            fields = tuple(map(FieldEntry._make, FIELD.struct.iter_unpack(self.fields[row])))
        return PageEntry(rows.file[row], rows.offset[row], rows.size[row], rows.checksum[row], rows.tag[row], fields)

    def page_ids(self, namespace: int | None = None) -> list[PageId]:
        """Ids of all pages that may have a version, sorted by namespace and id."""
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
        """Ids of the external pages that some version or reference still needs, whether or not a snapshot sees it."""
        files = np.frombuffer(self.rows.file, np.uint32)
        references = np.frombuffer(self.rows.references, np.uint32)
        found = np.flatnonzero((files == EXTERNAL) & (references > 0)).tolist()
        del files, references
        pages = (self.rows.page[row] for row in found)
        return {self.pages.id[page] for page in pages if self.pages.namespace[page] == namespace}

    # ---- queries of the conflict check (`engine.pages.judgement`) ----------------------------------------------------

    def head_of(self, page: PageId) -> int:
        """The row of a page's last version, published or not; NONE if there is none or it is a delete."""
        row = self.find(page)
        row = NONE if row == NONE else self.pages.head[row]
        return NONE if row == NONE or self.rows.file[row] == DELETED else row

    def target_of(self, row: int) -> int:
        """The row that a version's content comes from: the target of a reference, otherwise the row itself."""
        return self._target(row)

    def page_of(self, row: int) -> PageId:
        """The page that owns a version."""
        return self.page_id(self.rows.page[row])

    def is_external(self, row: int) -> bool:
        """Whether a version, which is not a reference, is an external page."""
        return self.rows.file[row] == EXTERNAL

    def live_references(self, page: PageId) -> int:
        """How many pages have, as their last version, a reference to the last version of this page."""
        row = self.find(page)
        return 0 if row == NONE else self.pages.live_references[row]

    # ---- changes -----------------------------------------------------------------------------------------------------

    def apply(self, edit: Edit) -> None:
        """Apply an edit: of a batch that passed the conflict check, of the log, or of a checkpoint.

        Raises ValueError for an edit that cannot be applied, which only a damaged log contains.
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
        row = self._add_version(edit, entry.file_id, entry.offset, entry.size, entry.checksum, entry.tag)
        if entry.fields:
            self.fields[row] = b"".join([FIELD.struct.pack(*field) for field in entry.fields])
        if edit.type is EditType.VAR_ENTRY:
            self._checkpoint_target[edit.page] = row

    def _apply_external(self, edit: Edit) -> None:
        row = self._add_version(edit, EXTERNAL)
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
        self.rows.references[target] += 1  # before the page's chain drops its old version, which may be the target
        row = self._add_version(edit, REFERENCE, target)
        self._count_reference(row, 1)

    def _apply_delete(self, edit: Edit) -> None:
        if self.head_of(edit.page) != NONE:
            self._add_version(edit, DELETED)

    def _apply_highest(self, edit: Edit) -> None:
        self.note_id(edit.page)

    def _apply_move(self, edit: Edit) -> None:
        page_row = self.find(edit.page)
        row = NONE if page_row == NONE else self.pages.head[page_row]
        while row != NONE and not self._is_entry_of(row, edit.version.sequence):
            row = self.rows.older[row]
        if row != NONE and edit.entry is not None:
            self.move(row, edit.entry, edit.version.epoch)

    def _is_entry_of(self, row: int, sequence: int) -> bool:
        """Whether a row is the entry of `sequence`; a delete or reference of the same batch may precede it in the chain."""
        return self.rows.sequence[row] == sequence and self.rows.file[row] < LAST_FILE_ID

    def move(self, row: int, entry: PageEntry, epoch: int) -> None:
        """Record that an entry's data was moved; its old space is freed.  Nothing else of the entry changes."""
        self._free(row)
        self.rows.file[row], self.rows.offset[row], self.rows.epoch[row] = entry.file_id, entry.offset, epoch

    def _count_reference(self, row: int, by: int) -> None:
        """Adjust the live references of a reference's target.

        `by`: 1 if the reference became its page's last version, -1 if it ceased to be.
        """
        target = self._target(row)
        page = self.rows.page[target]
        if self.pages.head[page] == target:
            self.pages.live_references[page] += by

    def note_id(self, page: PageId) -> None:
        """Raise the highest id of a namespace to that of a page, if it is lower."""
        if page.id > self.highest_ids.get(page.namespace, -1):
            self.highest_ids[page.namespace] = page.id

    def _add_version(
        self, edit: Edit, file: int, offset: int = 0, size: int = 0, checksum: int = 0, tag: int = 0
    ) -> int:
        """Add a version to a page's chain, normally as its head.

        A head of the same batch is replaced, unless another page refers to it.  A checkpoint may add an older version later: it
        is inserted below the newer ones.
        """
        page_row = self._find_or_add(edit.page)
        self.note_id(edit.page)
        pages, rows = self.pages, self.rows
        sequence, epoch = edit.version
        head = pages.head[page_row]
        if head != NONE and (rows.sequence[head] > sequence or self._is_older_than_reference(head, edit)):
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
            pages.rows[page_row] += 1  # otherwise releasing its only row would drop the page
            self._release(replaced)
            pages.rows[page_row] -= 1
        row = rows.add(head, page_row, sequence, min(epoch, LARGEST_PAGE), file, offset, size, checksum, tag, 1)
        pages.head[page_row] = row
        pages.rows[page_row] += 1
        return row

    def _is_older_than_reference(self, head: int, edit: Edit) -> bool:
        """Whether the head is a reference of a checkpoint that is newer than the entry of the same batch being added now.

        This occurs if a batch wrote a page, deleted it, and made it a reference, while another page refers to what it wrote.
        """
        rows = self.rows
        earlier = edit.type in (EditType.VAR_ENTRY, EditType.VAR_EXTERNAL)
        return earlier and rows.file[head] == REFERENCE and rows.sequence[head] == edit.version.sequence

    def _release(self, row: int) -> None:
        """Drop one hold on a row, by its chain or by a reference; the row is freed with the last one."""
        rows = self.rows
        unheld = [row]
        while unheld:
            row = unheld.pop()
            rows.references[row] -= 1
            if rows.references[row]:
                continue
            if rows.file[row] == REFERENCE:
                unheld.append(rows.offset[row])
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
        """Space that was freed since the last call."""
        freed, self.freed = self.freed, []
        return freed

    # ---- collecting versions -----------------------------------------------------------------------------------------

    def untidy_pages(self) -> list[int]:
        """Rows of pages that may have a version which nothing sees: more than one version, or a delete."""
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
        """Drop the versions of a page that neither the last batch nor a snapshot sees; returns how many.

        `snapshots`: their sequences, descending.
        """
        pages, rows = self.pages, self.rows
        if page_row >= len(pages.rows) or not pages.rows[page_row]:
            return 0
        head = pages.head[page_row]
        if head == NONE:
            return 0
        kept, dropped = [head], []
        remaining = iter(snapshots)
        sequence = next(remaining, None)
        row = rows.older[head]
        while sequence is not None and rows.sequence[head] <= sequence:
            sequence = next(remaining, None)
        while row != NONE:
            if sequence is not None and rows.sequence[row] <= sequence:
                kept.append(row)
                while sequence is not None and rows.sequence[row] <= sequence:
                    sequence = next(remaining, None)
            else:
                dropped.append(row)
            row = rows.older[row]
        while kept and rows.file[kept[-1]] == DELETED:  # a delete without an older version means the same as no version
            dropped.append(kept.pop())
        if not dropped:
            return 0
        for newer, older in itertools.pairwise([*kept, NONE]):
            rows.older[newer] = older
        pages.head[page_row] = kept[0] if kept else NONE
        for row in dropped:
            self._release(row)
        return len(dropped)

    def collect_all(self, snapshots: Sequence[int]) -> int:
        """`collect` of every page."""
        return sum(self.collect(page_row, snapshots) for page_row in self.untidy_pages())

    # ---- moving data -------------------------------------------------------------------------------------------------

    def rows_in(self, file_ids: Sequence[int]) -> list[int]:
        """Rows of entries whose data is in these blob files."""
        files = np.frombuffer(self.rows.file, np.uint32)
        alive = np.isin(files, np.array(file_ids, np.uint32)) & (np.frombuffer(self.rows.size, np.uint32) > 0)
        found: list[int] = np.flatnonzero(alive).tolist()
        return found

    def at(self, row: int) -> tuple[PageId, Version, PageEntry] | None:
        """The entry of a row, with its page and version; None if the row holds no data."""
        if self.rows.file[row] >= LAST_FILE_ID or not self.rows.references[row]:
            return None
        entry = self.entry_of(row)
        assert entry is not None
        return self.page_id(self.rows.page[row]), self.version_of(row), entry

    def spans(self) -> np.ndarray[Any, Any]:
        """File id, offset and size of every entry's data, ordered by file and offset."""
        columns = (self.rows.file, self.rows.offset, self.rows.size)
        table = (
            np.stack([np.array(column, np.int64) for column in columns], axis=1) if self.rows.used else np.empty((0, 3))
        )
        table = table[(table[:, 0] < LAST_FILE_ID) & (table[:, 0] != NO_FILE) & (table[:, 2] > 0)].astype(np.int64)
        ordered: np.ndarray[Any, Any] = table[np.lexsort((table[:, 1], table[:, 0]))]
        return ordered

    # ---- checkpoint and size -----------------------------------------------------------------------------------------

    def end_checkpoint(self) -> None:
        """End of the checkpoint: the edits applied from here on are those of logs."""
        self._checkpoint_target = {}

    @property
    def size(self) -> DirectorySize:
        """Number of pages and rows, and memory."""
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
