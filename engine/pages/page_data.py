"""The bytes of a page in its blob file: reading and checking them."""

from __future__ import annotations

import errno
from pathlib import Path, PurePath

from waltzctl.engine.durable.disk import read_range
from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Code, Finding, make_finding
from waltzctl.formats.checksums import Buffer, crc32c
from waltzctl.formats.pages.names import BLOB_DIRECTORY, blob_name
from waltzctl.formats.pages.write_batch import PageEntry, PageId

LOST_BYTES = (errno.EIO, errno.EUCLEAN, errno.EBADMSG)
"""Error numbers by which a disk or file system tells that it has lost these bytes; of other bytes they say nothing."""


def read_page(store: Path, entry: PageEntry) -> bytes:
    """The bytes of a page, unchecked; fewer if the file ends before, none if it does not exist.  Raises DiskReadError."""
    if not entry.size:
        return b""
    try:
        return read_range(store / BLOB_DIRECTORY / blob_name(entry.file_id), entry.offset, entry.size)
    except FileNotFoundError:
        return b""


def is_whole(entry: PageEntry, data: Buffer) -> bool:
    """Whether the bytes of a page have the right size and checksum."""
    return len(data) == entry.size and crc32c(data) == entry.checksum


def page_finding(
    store: PurePath, page: PageId, entry: PageEntry, offset: int, size: int, found: int, what: str = "it"
) -> Finding:
    """The finding for a page, or a field of it (`what`), with wrong bytes.  `found`: how many of `size` bytes the file has."""
    path = store / BLOB_DIRECTORY / blob_name(entry.file_id)
    if found < size:
        said = f"page {page}: {what} has {size} bytes, and the file has {found} of them"
        return make_finding(Code.PAGE_MISSING, path, said, storage_directory=store, offset=offset, length=size)
    said = f"page {page}: the checksum of {'its data' if what == 'it' else what} is wrong"
    return make_finding(Code.PAGE_CHECKSUM, path, said, storage_directory=store, offset=offset, length=size)


def unreadable_finding(store: PurePath, page: PageId, entry: PageEntry, error: DiskReadError) -> Finding:
    """The finding for a page that the disk cannot read, as of a lost sector: other pages, and its copy, may be intact.

    Raises `error` if it does not tell that bytes are lost (`LOST_BYTES`).
    """
    if error.errno not in LOST_BYTES:
        raise error
    said = f"page {page}: its data cannot be read: {error.message}"
    path = store / BLOB_DIRECTORY / blob_name(entry.file_id)
    return make_finding(Code.PAGE_CHECKSUM, path, said, storage_directory=store, offset=entry.offset, length=entry.size)


def read_checked(store: Path, page: PageId, entry: PageEntry) -> tuple[bytes, Finding | None]:
    """What can be read of a page, and the finding about it; None where that is the page.

    Raises DiskReadError as `unreadable_finding`.
    """
    try:
        data = read_page(store, entry)
    except DiskReadError as error:
        return b"", unreadable_finding(store, page, entry, error)
    if is_whole(entry, data):
        return data, None
    return data, page_finding(store, page, entry, entry.offset, entry.size, len(data))
