"""Notes for the next process that a sync failed: of a partition's last segment, the control file, or the session fences.

What such a sync did not bring to the disk may be in the page cache only, marked clean, and a sync by another process does not
fail.  So whoever finds a note writes the file again, with the bytes that are read, before anything relies on them.

A note need not be durable: after a power loss the files are read from the disk.  One that is left, or comes back, costs that the
file is written once more.
"""

from __future__ import annotations

import contextlib
from pathlib import Path, PurePath

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.file_status import is_named
from waltzctl.engine.errors import DiskError, DiskReadError

CONTROL = "control"
"""What stands for the control file in place of a partition's number."""
FENCES = "fences"
"""The same for the session fences."""
PIECE = 1 << 20
"""Bytes per read when a file is copied, or written again."""
_PAGE = 4096
"""Bytes of a page of the page cache, which is read from the disk as a whole."""


def note_failed_sync(storage: PurePath, what: int | str) -> None:
    """Leave a note that a sync failed, of a partition's last segment, the control file (`CONTROL`) or the fences (`FENCES`).

    Errors are ignored: on a disk that takes no file the one in question can most likely not be opened for writing, either.
    """
    with contextlib.suppress(DiskError):
        disk.WritableFile.create(_note(storage, what)).close()


def sync_failed(storage: PurePath, what: int | str) -> bool:
    """Whether there is a note, as far as the disk tells: where it does not, the file is written again."""
    return is_named(_note(storage, what))


def forget_failed_sync(storage: PurePath, what: int | str) -> None:
    """The file was written again, durably: remove the note."""
    with contextlib.suppress(DiskError):
        disk.unlink(_note(storage, what))


def write_again(file: disk.WritableFile) -> None:
    """Write a file again in its place, with the bytes that are read, durably.  Raises DiskWriteError.

    A page that cannot be read is left as it is: it is not in the page cache, so that nobody takes it for more than the disk has.
    """
    size = file.size()
    for begin in range(0, size, PIECE):
        end = min(begin + PIECE, size)
        try:
            file.write_at(begin, file.read_at(begin, end - begin))
        except DiskReadError:
            for at in range(begin, end, _PAGE):
                with contextlib.suppress(DiskReadError):
                    file.write_at(at, file.read_at(at, min(_PAGE, end - at)))
    file.sync()


def _note(storage: PurePath, what: int | str) -> Path:
    return Path(storage / disk.STATE_DIRECTORY / f"sync-failed-{what}")
