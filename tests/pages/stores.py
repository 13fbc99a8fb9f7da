"""Page stores for tests, and disks that fail under them."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from waltzctl.engine.pages.page_batch import WriteBatch
from waltzctl.engine.pages.page_storage import PageStorage
from waltzctl.engine.pages.snapshots import Snapshot


def disk_full_after(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """From here on `size` bytes can be written, and no more."""
    left = [size]
    pwrite, pwritev = os.pwrite, os.pwritev

    def room(wanted: int) -> int:
        if not left[0] and wanted:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        given = min(wanted, left[0])
        left[0] -= given
        return given

    def write(descriptor: int, data: bytes, offset: int) -> int:
        return pwrite(descriptor, memoryview(data)[: room(len(data))], offset)

    def write_pieces(descriptor: int, pieces: Sequence[memoryview], offset: int) -> int:
        whole = b"".join(pieces)
        return pwrite(descriptor, whole[: room(len(whole))], offset)

    del pwritev
    monkeypatch.setattr(os, "pwrite", write)
    monkeypatch.setattr(os, "pwritev", write_pieces)


def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on every flush fails."""

    def failing(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", failing)


def sector_lost(
    monkeypatch: pytest.MonkeyPatch, path: Path, offset: int, size: int = 1, error: int = errno.EIO
) -> None:
    """From here on these bytes of a file cannot be read, as those of a sector that a disk has lost."""
    pread, lost = os.pread, os.stat(path).st_ino

    def read(descriptor: int, length: int, begin: int) -> bytes:
        if begin < offset + size and offset < begin + length and os.fstat(descriptor).st_ino == lost:
            raise OSError(error, os.strerror(error))
        return pread(descriptor, length, begin)

    monkeypatch.setattr(os, "pread", read)


def put(store: PageStorage, page: int, data: bytes, *, namespace: int = 0, tag: int = 0) -> int:
    return store.write(WriteBatch(namespace).put_page(page, data, tag=tag))


def ref(store: PageStorage, page: int, origin: int) -> int:
    return store.write(WriteBatch().put_ref(page, origin))


def delete(store: PageStorage, *pages: int) -> int:
    batch = WriteBatch()
    for page in pages:
        batch.delete(page)
    return store.write(batch)


def data(store: PageStorage, page: int, snapshot: Snapshot | None = None) -> bytes | None:
    """A page's bytes; None where there is none, or it is external."""
    found = store.get_entry(page, snapshot=snapshot)
    return None if found is None or found.is_external else bytes(store.read(page, snapshot=snapshot).data)


def crash(store: PageStorage) -> None:
    """The process ends without a word; the system closes what it had open."""
    store.wal._file.close()
    store.blobs.close()
    store._lock.release()
