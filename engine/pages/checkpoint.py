"""Checkpoints: the edits that rebuild a page directory, and loading the entries of a checkpoint in bulk."""

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
    """`edits`: in the order in which they are applied; `plain`: the entries of all other pages, as an array of `PUT_EDIT.dtype`.

    A plain entry has no fields, no references to it, and is the only version of its page.
    """

    edits: tuple[Edit, ...]
    plain: np.ndarray[Any, Any]

    @property
    def all_edits(self) -> list[Edit]:
        """`edits`, then the plain entries as edits."""
        return [*self.edits, *decode_batch(encode_batch(()) + self.plain.tobytes())]


_COLUMN_FIELDS = {
    "sequence": "version.sequence",
    "epoch": "version.epoch",
    "file": "entry.file_id",
    "offset": "entry.offset",
    "size": "entry.size",
    "checksum": "entry.checksum",
    "tag": "entry.tag",
}
"""Columns of version rows, and the fields of `PUT_EDIT.dtype` that hold their values."""


def checkpoint_of(directory: PageDirectory) -> Checkpoint:
    """A checkpoint of everything published.

    Superseded versions are left out.  So are deletes, except of pages that are gone but own a held entry.
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
    # held versions come before their pages' last versions
    for row in sorted(held, key=lambda row: (rows.page[row], rows.sequence[row])):
        edits += _checkpoint_edits(directory, row, references[row])
    edits += [
        Edit(EditType.VAR_DELETE, directory.page_id(page), now)
        for page in dict.fromkeys(rows.page[row] for row in held)
        if pages.head[page] == NONE or rows.file[pages.head[page]] == DELETED
    ]
    for row in others:
        edits += _checkpoint_edits(directory, row, references.get(row, ()))
    return Checkpoint(tuple(edits), _plain(directory, heads[plain]))


def _plain(directory: PageDirectory, chosen: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Entries without references and fields, encoded as edits."""
    table = np.zeros(len(chosen), PUT_EDIT.dtype)
    table["type"], table["references"] = EditType.VAR_ENTRY, 1
    owners = np.frombuffer(directory.rows.page, np.uint32)[chosen]
    table["page.id"] = np.frombuffer(directory.pages.id, np.uint64)[owners]
    table["page.namespace"] = np.frombuffer(directory.pages.namespace, np.uint64)[owners]
    for name, code in _COLUMN_FIELDS.items():
        column = directory.rows.columns[name]
        table[code] = np.frombuffer(column, f"u{column.itemsize}")[chosen]
    return table


def load_entries(directory: PageDirectory, table: np.ndarray[Any, Any]) -> bool:
    """Add the plain entries of a checkpoint in bulk.  `table`: of `PUT_EDIT.dtype`.

    Returns False, and changes nothing, if a value is out of range or a page exists already: the caller then applies them one by
    one.
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
        **{name: table[code] for name, code in _COLUMN_FIELDS.items()},
    )  # fmt: skip
    for namespace in np.unique(table["page.namespace"]).tolist():
        highest = int(table["page.id"][table["page.namespace"] == namespace].max())
        directory.note_id(PageId(namespace, highest))
    directory.sequence = max(directory.sequence, int(table["version.sequence"].max(initial=0)))
    return True


def _checkpoint_edits(directory: PageDirectory, row: int, references: Sequence[int]) -> Iterator[Edit]:
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
