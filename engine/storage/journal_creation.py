"""Making the file of a commit journal: what may stand at its path, and that of two processes only one makes it.

From then on the file is written by `engine.storage.commit_journal`; its layout: `formats.journal_file`.
"""

from __future__ import annotations

import errno
import logging
import os
import uuid
from collections.abc import Iterable
from pathlib import Path, PurePath

from waltzctl.engine.durable import disk, file_status
from waltzctl.engine.durable.directory_lock import hold_file
from waltzctl.engine.errors import RefusedError
from waltzctl.engine.storage.journal_recovery import is_written, remove_file, stands_in_segments
from waltzctl.engine.storage.journal_state import JournalState, kept_path, owner_of, write_state
from waltzctl.formats.journal_file import (
    AREAS,
    BLOCK,
    AreaHeader,
    decode_area_header,
    encode_area_header,
    header_offset,
)

_ZEROS = 1 << 20
"""Bytes per write while a new journal file is filled with zeros."""


def create_journal_file(
    storage: Path, path: Path, area_size: int, *, descriptors: int, log: logging.Logger
) -> tuple[JournalState, list[disk.WritableFile]]:
    """Make the file of a journal, and the state file that names it; both are durable on return.

    Returns what the state file says, and the descriptors of the journal, held against other processes.  `path` and what is
    refused there: `CommitJournal.create`.  If this fails, no journal is left that this process made.
    """
    owner, path = owner_of(storage), path.absolute()
    if ".." in path.parts:  # the path may begin with the storage directory and yet lead out of it
        path = path.parent.resolve() / path.name
    _clear_place(storage, path, owner, log)
    state = JournalState(path, uuid.uuid4())
    files: list[disk.WritableFile] = []
    try:
        with disk.replacing(path) as file:  # a later start would refuse to replace a half-written journal
            # before it has its name, so that nobody takes it for one that was left
            files += _open_and_hold(file.path, descriptors)
            for start in range(0, AREAS * area_size, _ZEROS):  # allocated blocks are flushed faster than new ones
                file.write_at(start, bytes(min(_ZEROS, AREAS * area_size - start)))
            for start, epoch in (0, 1), (area_size, 0):
                head = AreaHeader(state.journal_id, owner, area_size, epoch)
                file.write_at(start + header_offset(epoch), encode_area_header(head))
            # another process may have made one since, which is not to be replaced
            _clear_place(storage, path, owner, log)
        for one in files:
            one.path = path
        if not file_status.is_at(path, os.fstat(files[0].fileno())):
            raise _met(path)
        write_state(storage, state)
    except BaseException:
        # otherwise the one there is another process's
        if files and file_status.is_at(path, os.fstat(files[0].fileno())):
            remove_file(path)
        close_all(files)
        raise
    return state, files


def close_all(files: Iterable[disk.WritableFile]) -> None:
    """Close descriptors of a journal or of segments."""
    for file in files:
        file.close()


def _clear_place(storage: Path, path: Path, owner: uuid.UUID, log: logging.Logger) -> None:
    """Remove an earlier journal of the same directory from `path`, or move it (`kept_path`).  Raises RefusedError, DiskError.

    A directory is known by its path, so the journal may also be that of one that crashed and was then moved away, and that still
    needs it: it is moved unless all of its records are in this directory's segments.
    """
    try:
        header = decode_area_header(disk.read_range(path, 0, BLOCK))
    except FileNotFoundError:
        return
    if header is None or header.owner != owner:
        what = "a file that is no commit journal" if header is None else "the commit journal of another directory"
        raise RefusedError(f"{path}: {what} stands there", advice="name another path, or move the file away")
    if is_written(path):  # by a directory that was at this one's path, or is at the same path of another container
        raise RefusedError(
            f"{path}: another process is writing this commit journal",
            advice="name another path: a journal is for one node",
        )
    if stands_in_segments(storage, JournalState(path, header.journal_id)):
        disk.unlink(path)
        return
    kept = kept_path(path, header.journal_id)
    disk.rename(path, kept)
    disk.sync_directory(path.parent)
    log.warning(
        "%s: an earlier commit journal stood there, with records that are not in the segments of %s: it is kept as %s, where the"
        " directory finds it that it is of, if that was moved; remove it if there is none",
        path,
        storage,
        kept,
    )


def _open_and_hold(path: PurePath, descriptors: int) -> list[disk.WritableFile]:
    """The descriptors of a new journal, locked where that is possible.  Raises RefusedError, DiskWriteError."""
    try:
        files = [disk.WritableFile.open(path) for _ in range(descriptors)]
        hold_file(files[0].fileno())
    except OSError as error:  # others: the journal's device may have a file system without locks
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.ENOENT):
            raise _met(path) from error
    return files


def _met(path: PurePath) -> RefusedError:
    return RefusedError(
        f"{path}: another process made a commit journal there at the same moment", advice="name another path"
    )
