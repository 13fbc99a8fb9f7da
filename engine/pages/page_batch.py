"""Write batch: edits of pages of one namespace that are made atomically."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from waltzctl.engine.errors import InvalidRequestError
from waltzctl.formats.checksums import crc32c
from waltzctl.formats.pages.write_batch import Edit, EditType, FieldEntry, PageEntry, PageId, Version

UNWRITTEN = Version(0)
LAST_ID = 2**64 - 1
"""The highest page id, namespace and tag."""


@dataclass(frozen=True, slots=True)
class _Item:
    edit: Edit
    data: memoryview | None = None


class WriteBatch:
    """Edits in the order in which they are made; if a page has several, the last one counts.

    Data is not copied: it must not change before the batch is written.  A batch may be written again; that makes new versions.
    """

    def __init__(self, namespace: int = 0) -> None:
        if not 0 <= namespace <= LAST_ID:
            raise InvalidRequestError(f"namespace {namespace} is no number of 64 bits")
        self.namespace = namespace
        self._items: list[_Item] = []

    def __len__(self) -> int:
        return len(self._items)

    def _page(self, page: int) -> PageId:
        if not 0 <= page <= LAST_ID:
            raise InvalidRequestError(f"page id {page} is no number of 64 bits")
        return PageId(self.namespace, page)

    def put_page(
        self,
        page: int,
        data: bytes | bytearray | memoryview | Sequence[bytes | bytearray | memoryview],
        *,
        tag: int = 0,
        field_sizes: Sequence[int] = (),
    ) -> WriteBatch:
        """Add a page with data.

        A page has fields if `data` is a sequence of buffers, one field each, or if `field_sizes` are given, whose sum is the size
        of `data`.

        Raises InvalidRequestError.
        """
        if not isinstance(data, bytes | bytearray | memoryview):
            field_sizes = [memoryview(part).nbytes for part in data]
            data = b"".join(data)
        view = memoryview(data).cast("B")
        if field_sizes and (sum(field_sizes) != len(view) or min(field_sizes) < 0):
            raise InvalidRequestError(f"page {page}: its fields have {sum(field_sizes)} bytes, and it has {len(view)}")
        if not 0 <= tag <= LAST_ID:
            raise InvalidRequestError(f"page {page}: tag {tag} is no number of 64 bits")
        fields, start = [], 0
        for size in field_sizes:
            fields.append(FieldEntry(start, crc32c(view[start : start + size])))
            start += size
        entry = PageEntry(0, 0, len(view), crc32c(view), tag, tuple(fields))
        self._items.append(_Item(Edit(EditType.PUT, self._page(page), UNWRITTEN, entry), view))
        return self

    def put_external(self, page: int) -> WriteBatch:
        """Add an external page, whose data the caller stores elsewhere.  It has no tag: the log format has no field for it."""
        self._items.append(_Item(Edit(EditType.PUT_EXTERNAL, self._page(page), UNWRITTEN)))
        return self

    def put_ref(self, ref: int, origin: int) -> WriteBatch:
        """Make page `ref` a reference to what page `origin` shows now; it stays so after `origin` is deleted."""
        self._items.append(_Item(Edit(EditType.REF, self._page(ref), UNWRITTEN, origin=self._page(origin))))
        return self

    def delete(self, page: int) -> WriteBatch:
        """Delete a page; does nothing if it does not exist."""
        self._items.append(_Item(Edit(EditType.DELETE, self._page(page), UNWRITTEN)))
        return self

    @property
    def edits(self) -> list[Edit]:
        """The edits, in order; entries have sizes and checksums, but no location yet."""
        return [item.edit for item in self._items]

    @property
    def data(self) -> list[memoryview]:
        """Data of the pages that are put, in order."""
        return [item.data for item in self._items if item.data is not None]
