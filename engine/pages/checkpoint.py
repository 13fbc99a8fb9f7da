"""A checkpoint: the edits that make a directory of pages anew, and the way back from the entries of one, many at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from waltzctl.engine.pages.page_columns import DELETED, REFERENCE
from waltzctl.engine.pages.page_directory import LARGEST_PAGE, LAST_FILE_ID, PageDirectory
from waltzctl.engine.pages.page_index import NONE
from waltzctl.formats.pages.write_batch import PUT_EDIT, Edit, EditType, PageId, Version, decode_batch, encode_batch


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


def checkpoint_of(directory: PageDirectory) -> Checkpoint:
    """What makes anew all that is published.

    Superseded versions are left out, and so are deletes, but where an entry is held whose page is gone.
    """
    rows, pages = directory.rows, directory.pages
    page_rows = np.flatnonzero(np.frombuffer(pages.rows, np.uint32))
    heads = np.frombuffer(pages.head, np.uint32)[page_rows]
    page_rows, heads = page_rows[heads != NONE], heads[heads != NONE]
    kinds = np.frombuffer(rows.file, np.uint32)[heads]
    references: dict[int, list[int]] = {}
    for head in heads[kinds == REFERENCE].tolist():
        references.setdefault(rows.offset[head], []).append(head)
    held = [row for row in references if pages.head[rows.page[row]] != row]
    special = np.fromiter((*references, *directory.fields), np.int64)
    of_held = np.fromiter((rows.page[row] for row in held), np.int64)
    plain = (kinds <= LAST_FILE_ID) & ~np.isin(heads, special) & ~np.isin(page_rows, of_held)
    others = heads[~plain & (kinds != REFERENCE) & (kinds != DELETED)].tolist()
    now = Version(directory.sequence)
    edits = [Edit(EditType.VAR_HIGHEST, PageId(*one), now) for one in directory.highest_ids.items()]
    for row in sorted(held, key=lambda row: (rows.page[row], rows.sequence[row])):  # before their pages' last versions
        edits += _var(directory, row, references[row])
    edits += [
        Edit(EditType.VAR_DELETE, directory.page_id(page), now)
        for page in dict.fromkeys(rows.page[row] for row in held)
        if pages.head[page] == NONE or rows.file[pages.head[page]] == DELETED
    ]
    for row in others:
        edits += _var(directory, row, references.get(row, ()))
    return Checkpoint(tuple(edits), _plain(directory, heads[plain]))


def _plain(directory: PageDirectory, chosen: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Entries without references and fields as the bytes of their edits."""
    table = np.zeros(len(chosen), PUT_EDIT.dtype)
    table["type"], table["references"] = EditType.VAR_ENTRY, 1
    owners = np.frombuffer(directory.rows.page, np.uint32)[chosen]
    table["page.id"] = np.frombuffer(directory.pages.id, np.uint64)[owners]
    table["page.namespace"] = np.frombuffer(directory.pages.namespace, np.uint64)[owners]
    for name, code in _PLAIN.items():
        column = directory.rows.columns[name]
        table[code] = np.frombuffer(column, f"u{column.itemsize}")[chosen]
    return table


def load_entries(directory: PageDirectory, table: np.ndarray[Any, Any]) -> bool:
    """Entries of a checkpoint, each the only version of its page, many at once.

    `table`: of `PUT_EDIT.dtype`.  False, and nothing is changed, where that cannot be: they are applied one by one then.
    """
    bounds = ("entry.offset", "entry.size", "entry.checksum", "version.epoch")
    if any(np.any(table[name] > LARGEST_PAGE) for name in bounds) or np.any(table["entry.file_id"] > LAST_FILE_ID):
        return False
    count, page_start, row_start = len(table), len(directory.pages.head), len(directory.rows.older)
    ones, none = np.ones(count, np.uint32), np.zeros(count, np.uint32)
    page_rows = np.arange(page_start, page_start + count, dtype=np.int64)
    directory.pages.extend(
        head=np.arange(row_start, row_start + count), namespace=table["page.namespace"], id=table["page.id"],
        rows=ones, live_references=none,
    )  # fmt: skip
    if not directory.index.add_many(page_rows):
        directory.pages.cut(page_start)
        return False
    directory.rows.extend(
        older=none + np.uint32(NONE), page=page_rows, references=ones,
        **{name: table[code] for name, code in _PLAIN.items()},
    )  # fmt: skip
    for namespace in np.unique(table["page.namespace"]).tolist():
        highest = int(table["page.id"][table["page.namespace"] == namespace].max())
        directory.note_id(PageId(namespace, highest))
    directory.sequence = max(directory.sequence, int(table["version.sequence"].max(initial=0)))
    return True


def _var(directory: PageDirectory, row: int, references: Sequence[int]) -> Iterator[Edit]:
    page, version, entry = (
        directory.page_id(directory.rows.page[row]),
        directory.version_of(row),
        directory.entry_of(row),
    )
    kind = EditType.VAR_EXTERNAL if entry is None else EditType.VAR_ENTRY
    yield Edit(kind, page, version, entry, references=1 + len(references))
    for one in references:
        yield Edit(
            EditType.VAR_REF, directory.page_id(directory.rows.page[one]), directory.version_of(one), origin=page
        )
