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
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from waltzctl.engine.pages.blob_stats import BlobSpan
from waltzctl.engine.pages.page_index import NONE, PageIndex
from waltzctl.formats.pages.write_batch import (
    FIELD,
    NO_FILE,
    PUT_EDIT,
    Edit,
    EditType,
    FieldEntry,
    PageEntry,
    PageId,
    Version,
    decode_batch,
    encode_batch,
)

_DELETE, _REFERENCE, _EXTERNAL = 2**32 - 1, 2**32 - 2, 2**32 - 3
"""In the place of a blob file's id: what a version is that is no entry.  A reference's offset is its target's row."""
LAST_FILE_ID = 2**32 - 16
LARGEST_PAGE = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Located:
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


@dataclass(frozen=True)
class Checkpoint:
    """Edits in the order in which they are to be applied, and the entries of all other pages, of `PUT_EDIT.dtype`."""

    edits: tuple[Edit, ...]
    plain: np.ndarray[Any, Any]

    @property
    def all_edits(self) -> list[Edit]:
        """The others as edits too."""
        return [*self.edits, *decode_batch(encode_batch(()) + self.plain.tobytes())]


_PLAIN = {
    "sequence": "version.sequence",
    "epoch": "version.epoch",
    "file": "entry.file_id",
    "offset": "entry.offset",
    "size": "entry.size",
    "checksum": "entry.checksum",
    "tag": "entry.tag",
}
"""Columns of rows by the names that their values have in an edit."""


class _Columns:
    """Columns of equal length, and rows that are used again."""

    def __init__(self, **codes: str) -> None:
        self.columns = {name: array(code) for name, code in codes.items()}
        for name, column in self.columns.items():
            setattr(self, name, column)
        self._next_free = NONE
        self._free_link = self.columns[next(iter(codes))]
        self.used = 0

    def add(self, *values: int) -> int:
        """A row with these values, in the order of the columns."""
        self.used += 1
        if self._next_free != NONE:
            row = self._next_free
            self._next_free = self._free_link[row]
            for column, value in zip(self.columns.values(), values, strict=True):
                column[row] = value
            return row
        for column, value in zip(self.columns.values(), values, strict=True):
            column.append(value)
        return len(self._free_link) - 1

    def extend(self, **values: np.ndarray[Any, Any]) -> None:
        """Rows behind the last one, by columns."""
        for name, column in self.columns.items():
            column.frombytes(values[name].astype(f"u{column.itemsize}").tobytes())
        self.used += len(next(iter(values.values())))

    def cut(self, length: int) -> None:
        """Take back what was added behind the first `length` rows."""
        self.used -= len(self._free_link) - length
        for column in self.columns.values():
            del column[length:]

    def remove(self, row: int) -> None:
        """Make the row free; its first column is used for something else then."""
        self._free_link[row] = self._next_free
        self._next_free = row
        self.used -= 1

    @property
    def bytes(self) -> int:
        """Of memory, with what is kept for growing."""
        return sum(column.__sizeof__() for column in self.columns.values())


class _Pages(_Columns):
    head: array[int]
    namespace: array[int]
    id: array[int]
    rows: array[int]
    live_references: array[int]

    def __init__(self) -> None:
        super().__init__(head="I", namespace="Q", id="Q", rows="I", live_references="I")


class _Rows(_Columns):
    older: array[int]
    page: array[int]
    sequence: array[int]
    epoch: array[int]
    file: array[int]
    offset: array[int]
    size: array[int]
    checksum: array[int]
    tag: array[int]
    references: array[int]

    def __init__(self) -> None:
        super().__init__(
            older="I",
            page="I",
            sequence="Q",
            epoch="I",
            file="I",
            offset="I",
            size="I",
            checksum="I",
            tag="Q",
            references="I",
        )


class PageDirectory:
    """Versions of pages.  `sequence` is the last one that is published: what is read without a snapshot."""

    def __init__(self) -> None:
        self.sequence = 0
        self.highest_ids: dict[int, int] = {}
        self._pages = _Pages()
        self._rows = _Rows()
        self._fields: dict[int, bytes] = {}
        self._index = PageIndex(self._pages.namespace, self._pages.id)
        self._checkpoint_target: dict[PageId, int] = {}
        self.freed: list[BlobSpan] = []

    # ---- pages ---------------------------------------------------------------------------------------------------------

    def find(self, page: PageId) -> int:
        """The row of a page, or NONE."""
        return self._index.find(page)

    def _find_or_add(self, page: PageId) -> int:
        row = self._index.find(page)
        if row == NONE:
            row = self._pages.add(NONE, page.namespace, page.id, 0, 0)
            self._index.add(row)
        return row

    def _drop_page(self, row: int) -> None:
        self._index.remove(row)
        self._pages.remove(row)

    def _page_id(self, row: int) -> PageId:
        return PageId(self._pages.namespace[row], self._pages.id[row])

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _visible(self, page_row: int, sequence: int) -> int:
        """The row of the newest version up to `sequence`, a delete as well; NONE where there is none."""
        row, sequences, older = self._pages.head[page_row], self._rows.sequence, self._rows.older
        while row != NONE and sequences[row] > sequence:
            row = older[row]
        return row

    def locate(self, page: PageId, sequence: int | None = None) -> Located | None:
        """What a page is as of `sequence`, or as of the last batch; None where there is none."""
        page_row = self.find(page)
        if page_row == NONE:
            return None
        row = self._visible(page_row, self.sequence if sequence is None else sequence)
        return None if row == NONE or self._rows.file[row] == _DELETE else self._located(page, row)

    def _located(self, page: PageId, row: int) -> Located:
        target = self._target(row)
        origin = page if target == row else self.page_of(target)
        return Located(page, origin, self._version(target), self._entry(target), target != row)

    def _target(self, row: int) -> int:
        """Where a reference leads; the row itself otherwise."""
        return self._rows.offset[row] if self._rows.file[row] == _REFERENCE else row

    def _version(self, row: int) -> Version:
        return Version(self._rows.sequence[row], self._rows.epoch[row])

    def _entry(self, row: int) -> PageEntry | None:
        rows = self._rows
        if rows.file[row] == _EXTERNAL:
            return None
        fields: tuple[FieldEntry, ...] = ()
        if row in self._fields:
            fields = tuple(map(FieldEntry._make, FIELD.struct.iter_unpack(self._fields[row])))
        return PageEntry(rows.file[row], rows.offset[row], rows.size[row], rows.checksum[row], rows.tag[row], fields)

    def page_ids(self, namespace: int | None = None) -> list[PageId]:
        """Of all pages that may have a version, in order."""
        found = map(self._page_id, self._index)
        return sorted(page for page in found if namespace is None or page.namespace == namespace)

    def versions(self, page: PageId) -> list[tuple[Version, Located | None]]:
        """Every version of a page, newest first; None for a delete."""
        row = self.find(page)
        row = NONE if row == NONE else self._pages.head[row]
        found: list[tuple[Version, Located | None]] = []
        while row != NONE:
            gone = self._rows.file[row] == _DELETE
            found.append((self._version(row), None if gone else self._located(page, row)))
            row = self._rows.older[row]
        return found

    def alive_external_ids(self, namespace: int) -> set[int]:
        """External pages that a version or a reference, whoever sees it, still needs."""
        files = np.frombuffer(self._rows.file, np.uint32)
        references = np.frombuffer(self._rows.references, np.uint32)
        found = np.flatnonzero((files == _EXTERNAL) & (references > 0)).tolist()
        del files, references
        pages = (self._rows.page[row] for row in found)
        return {self._pages.id[page] for page in pages if self._pages.namespace[page] == namespace}

    # ---- what a judge has to know ------------------------------------------------------------------------------------

    def head_of(self, page: PageId) -> int:
        """The row of a page's last version, whether published or not; NONE where there is none or it is a delete."""
        row = self.find(page)
        row = NONE if row == NONE else self._pages.head[row]
        return NONE if row == NONE or self._rows.file[row] == _DELETE else row

    def target_of(self, row: int) -> int:
        """The row of what a version says: where a reference leads, or itself."""
        return self._target(row)

    def page_of(self, row: int) -> PageId:
        """The page that a version belongs to."""
        return self._page_id(self._rows.page[row])

    def is_external(self, row: int) -> bool:
        """Whether a version that is no reference is an external page."""
        return self._rows.file[row] == _EXTERNAL

    def live_references(self, page: PageId) -> int:
        """How many pages refer to the last version of a page, as their last version."""
        row = self.find(page)
        return 0 if row == NONE else self._pages.live_references[row]

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
            self._fields[row] = b"".join([FIELD.struct.pack(*field) for field in entry.fields])
        if edit.type is EditType.VAR_ENTRY:
            self._checkpoint_target[edit.page] = row

    def _apply_external(self, edit: Edit) -> None:
        row = self._push(edit, _EXTERNAL)
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
        self._rows.references[target] += 1  # before the chain of the page lets go of what it had
        row = self._push(edit, _REFERENCE, target)
        self._count_reference(row, 1)

    def _apply_delete(self, edit: Edit) -> None:
        if self.head_of(edit.page) != NONE:
            self._push(edit, _DELETE)

    def _apply_highest(self, edit: Edit) -> None:
        self._note_id(edit.page)

    def _apply_move(self, edit: Edit) -> None:
        page_row = self.find(edit.page)
        row = NONE if page_row == NONE else self._pages.head[page_row]
        while row != NONE and self._rows.sequence[row] != edit.version.sequence:
            row = self._rows.older[row]
        if row != NONE and edit.entry is not None and self._rows.file[row] < LAST_FILE_ID:
            self.move(row, edit.entry, edit.version.epoch)

    def move(self, row: int, entry: PageEntry, epoch: int) -> None:
        """An entry's data lies elsewhere now; where it lay is freed.  Nothing else of it changes."""
        self._free(row)
        self._rows.file[row], self._rows.offset[row], self._rows.epoch[row] = entry.file_id, entry.offset, epoch

    def _count_reference(self, row: int, by: int) -> None:
        """A reference became the last version of its page, or ceased to be."""
        target = self._target(row)
        page = self._rows.page[target]
        if self._pages.head[page] == target:
            self._pages.live_references[page] += by

    def _note_id(self, page: PageId) -> None:
        if page.id > self.highest_ids.get(page.namespace, -1):
            self.highest_ids[page.namespace] = page.id

    def _push(self, edit: Edit, file: int, offset: int = 0, size: int = 0, checksum: int = 0, tag: int = 0) -> int:
        """A new last version of a page; one of the same batch gives way.  A checkpoint may bring an older one later."""
        page_row = self._find_or_add(edit.page)
        self._note_id(edit.page)
        pages, rows = self._pages, self._rows
        sequence, epoch = edit.version
        head = pages.head[page_row]
        if head != NONE and rows.sequence[head] > sequence:
            while rows.older[head] != NONE and rows.sequence[rows.older[head]] > sequence:
                head = rows.older[head]
            row = rows.add(
                rows.older[head], page_row, sequence, min(epoch, LARGEST_PAGE), file, offset, size, checksum, tag, 1
            )
            rows.older[head] = row
            pages.rows[page_row] += 1
            return row
        if head != NONE and rows.file[head] == _REFERENCE:
            self._count_reference(head, -1)
        pages.live_references[page_row] = 0
        if head != NONE and rows.sequence[head] == edit.version.sequence:
            replaced, head = head, rows.older[head]
            pages.rows[page_row] += 1  # or the page would go with its only row
            self._let_go(replaced)
            pages.rows[page_row] -= 1
        row = rows.add(head, page_row, sequence, min(epoch, LARGEST_PAGE), file, offset, size, checksum, tag, 1)
        pages.head[page_row] = row
        pages.rows[page_row] += 1
        return row

    def _let_go(self, row: int) -> None:
        """One that held a row does so no longer: its chain, or a reference."""
        rows = self._rows
        waiting = [row]
        while waiting:
            row = waiting.pop()
            rows.references[row] -= 1
            if rows.references[row]:
                continue
            if rows.file[row] == _REFERENCE:
                waiting.append(rows.offset[row])
            else:
                self._free(row)
            self._fields.pop(row, None)
            page_row = rows.page[row]
            rows.file[row] = _DELETE
            rows.remove(row)
            self._pages.rows[page_row] -= 1
            if not self._pages.rows[page_row]:
                self._drop_page(page_row)

    def _free(self, row: int) -> None:
        rows = self._rows
        if rows.file[row] < LAST_FILE_ID and rows.size[row]:
            self.freed.append(BlobSpan(rows.file[row], rows.offset[row], rows.size[row]))

    def take_freed(self) -> list[BlobSpan]:
        """Where data lay that nothing needs any more; it is told once."""
        freed, self.freed = self.freed, []
        return freed

    # ---- collecting versions -----------------------------------------------------------------------------------------

    def untidy_pages(self) -> list[int]:
        """Rows of pages that have a version which perhaps nobody sees."""
        heads = np.frombuffer(self._pages.head, np.uint32)
        counts = np.frombuffer(self._pages.rows, np.uint32)
        candidates = np.flatnonzero(counts > 0)
        heads = heads[candidates]
        candidates, heads = candidates[heads != NONE], heads[heads != NONE]
        older = np.frombuffer(self._rows.older, np.uint32)[heads]
        deleted = np.frombuffer(self._rows.file, np.uint32)[heads] == _DELETE
        found: list[int] = candidates[(older != NONE) | deleted].tolist()
        return found

    def collect(self, page_row: int, snapshots: Sequence[int]) -> int:
        """Let go of versions of a page that neither the last batch nor one of `snapshots` (falling) sees; how many went."""
        pages, rows = self._pages, self._rows
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
        while kept and rows.file[kept[-1]] == _DELETE:  # with nothing older it says what no version says
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
        files = np.frombuffer(self._rows.file, np.uint32)
        alive = np.isin(files, np.array(file_ids, np.uint32)) & (np.frombuffer(self._rows.size, np.uint32) > 0)
        found: list[int] = np.flatnonzero(alive).tolist()
        return found

    def at(self, row: int) -> tuple[PageId, Version, PageEntry] | None:
        """The entry of a row as it is now, or None where the row holds no data."""
        if self._rows.file[row] >= LAST_FILE_ID or not self._rows.references[row]:
            return None
        entry = self._entry(row)
        assert entry is not None
        return self._page_id(self._rows.page[row]), self._version(row), entry

    def spans(self) -> np.ndarray[Any, Any]:
        """File, offset and size of every entry's data, ordered by file and offset."""
        columns = (self._rows.file, self._rows.offset, self._rows.size)
        table = (
            np.stack([np.array(column, np.int64) for column in columns], axis=1)
            if self._rows.used
            else np.empty((0, 3))
        )
        table = table[(table[:, 0] < LAST_FILE_ID) & (table[:, 0] != NO_FILE) & (table[:, 2] > 0)].astype(np.int64)
        ordered: np.ndarray[Any, Any] = table[np.lexsort((table[:, 1], table[:, 0]))]
        return ordered

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """What makes anew all that is published.

        Superseded versions are left out, and so are deletes, but where an entry is held whose page is gone.
        """
        rows, pages = self._rows, self._pages
        page_rows = np.flatnonzero(np.frombuffer(pages.rows, np.uint32))
        heads = np.frombuffer(pages.head, np.uint32)[page_rows]
        page_rows, heads = page_rows[heads != NONE], heads[heads != NONE]
        kinds = np.frombuffer(rows.file, np.uint32)[heads]
        references: dict[int, list[int]] = {}
        for head in heads[kinds == _REFERENCE].tolist():
            references.setdefault(rows.offset[head], []).append(head)
        held = [row for row in references if pages.head[rows.page[row]] != row]
        special = np.fromiter((*references, *self._fields), np.int64)
        of_held = np.fromiter((rows.page[row] for row in held), np.int64)
        plain = (kinds <= LAST_FILE_ID) & ~np.isin(heads, special) & ~np.isin(page_rows, of_held)
        others = heads[~plain & (kinds != _REFERENCE) & (kinds != _DELETE)].tolist()
        now = Version(self.sequence)
        edits = [Edit(EditType.VAR_HIGHEST, PageId(*one), now) for one in self.highest_ids.items()]
        for row in sorted(
            held, key=lambda row: (rows.page[row], rows.sequence[row])
        ):  # before their pages' last versions
            edits += self._var(row, references[row])
        edits += [
            Edit(EditType.VAR_DELETE, self._page_id(page), now)
            for page in dict.fromkeys(rows.page[row] for row in held)
            if pages.head[page] == NONE or rows.file[pages.head[page]] == _DELETE
        ]
        for row in others:
            edits += self._var(row, references.get(row, ()))
        return Checkpoint(tuple(edits), self._plain(heads[plain]))

    def _plain(self, chosen: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Entries without references and fields as the bytes of their edits."""
        table = np.zeros(len(chosen), PUT_EDIT.dtype)
        table["type"], table["references"] = EditType.VAR_ENTRY, 1
        owners = np.frombuffer(self._rows.page, np.uint32)[chosen]
        table["page.id"] = np.frombuffer(self._pages.id, np.uint64)[owners]
        table["page.namespace"] = np.frombuffer(self._pages.namespace, np.uint64)[owners]
        for name, code in _PLAIN.items():
            column = self._rows.columns[name]
            table[code] = np.frombuffer(column, f"u{column.itemsize}")[chosen]
        return table

    def load(self, table: np.ndarray[Any, Any]) -> bool:
        """Entries of a checkpoint, each the only version of its page, many at once.

        `table`: of `PUT_EDIT.dtype`.  False, and nothing is changed, where that cannot be: they are applied one by one then.
        """
        bounds = ("entry.offset", "entry.size", "entry.checksum", "version.epoch")
        if any(np.any(table[name] > LARGEST_PAGE) for name in bounds) or np.any(table["entry.file_id"] > LAST_FILE_ID):
            return False
        count, page_start, row_start = len(table), len(self._pages.head), len(self._rows.older)
        ones, none = np.ones(count, np.uint32), np.zeros(count, np.uint32)
        page_rows = np.arange(page_start, page_start + count, dtype=np.int64)
        self._pages.extend(
            head=np.arange(row_start, row_start + count), namespace=table["page.namespace"], id=table["page.id"],
            rows=ones, live_references=none,
        )  # fmt: skip
        if not self._index.add_many(page_rows):
            self._pages.cut(page_start)
            return False
        self._rows.extend(
            older=none + np.uint32(NONE), page=page_rows, references=ones,
            **{name: table[code] for name, code in _PLAIN.items()},
        )  # fmt: skip
        for namespace in np.unique(table["page.namespace"]).tolist():
            highest = int(table["page.id"][table["page.namespace"] == namespace].max())
            self._note_id(PageId(namespace, highest))
        self.sequence = max(self.sequence, int(table["version.sequence"].max(initial=0)))
        return True

    def _var(self, row: int, references: Sequence[int]) -> Iterator[Edit]:
        page, version, entry = self._page_id(self._rows.page[row]), self._version(row), self._entry(row)
        kind = EditType.VAR_EXTERNAL if entry is None else EditType.VAR_ENTRY
        yield Edit(kind, page, version, entry, references=1 + len(references))
        for one in references:
            yield Edit(EditType.VAR_REF, self._page_id(self._rows.page[one]), self._version(one), origin=page)

    def end_checkpoint(self) -> None:
        """Whatever is applied from here on is no checkpoint."""
        self._checkpoint_target = {}

    @property
    def size(self) -> DirectorySize:
        """How much there is."""
        total = self._pages.bytes + self._rows.bytes + self._index.bytes
        return DirectorySize(self._pages.used, self._rows.used, total)


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
