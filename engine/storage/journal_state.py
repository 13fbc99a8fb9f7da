"""Whether a commit journal is in force in a storage directory, and where it is: the control file's mark and a state file.

=============  ======================================================================================================
control file   acknowledged records
=============  ======================================================================================================
not marked     are durable in their segments; a journal file is not read, even if there is one
marked         may be durable in the journal only; ``.waltzctl/commit-journal.json`` (the state file) has the journal's
               path and id
=============  ======================================================================================================

The mark is durable before the first entry is written (`engine.storage.commit_journal`), and is cleared when every segment is
durable.  It inverts the number of partitions in the header (`formats.control`): release 0.13.2 compares that number with the
cluster's, and so refuses a marked directory, whose segments may lack records.
"""

from __future__ import annotations

import errno
import json
import os
import uuid
from dataclasses import dataclass
from pathlib import Path, PurePath

from waltzctl.engine.durable import disk, file_status
from waltzctl.engine.errors import OTHER_PROGRAM, DamageError, DiskReadError, RefusedError, SpecialFileError
from waltzctl.engine.log import places
from waltzctl.engine.log.view import read_control
from waltzctl.engine.strict_json import InvalidJsonError, StrictObject
from waltzctl.formats.control import CONTROL_FILE_NAME

STATE_NAME = "commit-journal.json"
"""Name of the state file, in `disk.STATE_DIRECTORY`."""
GIVING_UP = "recover --forget-journal gives up what stands in the journal only"
"""Advice of last resort, in error messages."""
BRING_BACK = "bring back what is missing"
"""What lets a journal that is lost be written back again, in advice."""
_STATE_VERSION = 1
_STATE_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class JournalState:
    """Contents of the state file: path and id of the storage directory's journal.

    `partitions`: the partitions whose entries still have to be written back; None for all partitions.
    """

    path: Path
    journal_id: uuid.UUID
    partitions: tuple[int, ...] | None = None


def kept_path(journal: Path, journal_id: uuid.UUID) -> Path:
    """Where a journal is moved in whose place another one is made, although a directory may need it: see `journal_creation`.

    Its name with its id, or with the id alone where the file system has no names of that length.
    """
    kept = journal.with_name(f"{journal.name}.{journal_id}")
    try:
        os.lstat(kept)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return journal.with_name(f"commit-journal.{journal_id}")
    return kept


def state_path(storage: PurePath) -> PurePath:
    """Path of a storage directory's state file, whether or not it exists."""
    return storage / disk.STATE_DIRECTORY / STATE_NAME


class _OtherVersionError(DamageError):
    """The state file is of a version that this program does not know."""


def read_state(storage: PurePath) -> JournalState | None:
    """Read the state file; None where there is none.  Takes no lock, writes nothing.

    Raises DamageError, also for a file of another version, DiskReadError.
    """
    path = state_path(storage)
    try:
        raw = places.read_range(path, 0, _STATE_LIMIT)
    except FileNotFoundError:
        return None
    try:
        document = StrictObject(json.loads(raw), "the file")
        if (version := document.number("version")) != _STATE_VERSION:
            raise _OtherVersionError(
                f"{path}: it is of version {version}, and only version {_STATE_VERSION} is known",
                advice=f"{OTHER_PROGRAM}: it writes back what stands in the journal; {GIVING_UP}",
            )
        journal = Path(storage, document.text("path"))
        journal_id = uuid.UUID(document.text("id"))
        partitions = document.optional_items("partitions")
        document.finish()
        if partitions is not None and not all(type(one) is int for one in partitions):
            raise InvalidJsonError("the partitions are no numbers")
    except (ValueError, RecursionError) as error:
        raise DamageError(
            f"{path}: cannot be understood: {error}", advice=f"put back what stood there; {GIVING_UP}"
        ) from error
    if places.on_this_machine(storage):
        journal = _place_of(journal, journal_id)
    return JournalState(journal, journal_id, None if partitions is None else tuple(partitions))


def _place_of(journal: Path, journal_id: uuid.UUID) -> Path:
    """Where a journal is that was made at `journal`: there, or where it was moved (`kept_path`)."""
    kept = kept_path(journal, journal_id)
    if not file_status.is_named(kept):
        return journal
    # where nothing can be examined (a failing device, no permission), nothing tells that it was moved
    return kept if file_status.is_examinable(kept) or file_status.is_examinable(journal) else journal


@dataclass(frozen=True, slots=True)
class JournalOutlook:
    """What is known of a marked directory's journal without reading it.

    `state`: None when the state file cannot be read.  `fault`: why the journal cannot be written back; None when no reason is
    known.  `mend`: what is to be done about that.
    """

    state: JournalState | None
    fault: str | None = None
    mend: str = BRING_BACK

    @property
    def path(self) -> Path | None:
        """Path of the journal; None when the state file cannot be read."""
        return None if self.state is None else self.state.path


def look_at_journal(storage: PurePath) -> JournalOutlook:
    """Outlook for the journal of a marked directory, by its state file and by whether the journal file exists.

    Takes no lock, writes nothing.
    """
    try:
        state = read_state(storage)
    except (DamageError, DiskReadError) as error:
        return JournalOutlook(
            None, error.message, OTHER_PROGRAM if isinstance(error, _OtherVersionError) else BRING_BACK
        )
    if state is None:
        return JournalOutlook(None, f"{state_path(storage)}, which names it, is missing")
    if state.partitions is not None:
        which = f"partition{'s' if len(state.partitions) > 1 else ''} {', '.join(map(str, state.partitions))}"
        return JournalOutlook(state, f"those of {which} could not be written back when the directory was opened")
    if not places.on_this_machine(storage):
        return JournalOutlook(state)  # the path is one on the node's machine
    try:
        state.path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return JournalOutlook(state, "that file is not there")
    except OSError:
        pass  # without permission to look there, the file cannot be called missing
    return JournalOutlook(state)


def is_marked(storage: PurePath) -> bool:
    """Whether the control file is marked; False without a readable control file.  Raises DiskReadError."""
    try:
        control = read_control(storage / CONTROL_FILE_NAME)
    except SpecialFileError:
        return False
    return control is not None and control.header.journaled


def refuse_marked(storage: PurePath) -> None:
    """Raise RefusedError for a marked directory, which only `journal_recovery.write_back_journal` may change.

    A repair would read segments that lack acknowledged records, and the next write-back would overwrite its changes.
    """
    if not is_marked(storage):
        return
    found = look_at_journal(storage)
    where = "a commit journal" if found.path is None else f"the commit journal {found.path}"
    advice = f"start the node, or stop it where it runs, or run waltzctl append: each writes them back; {GIVING_UP}"
    if found.fault is not None:
        advice = f"{found.fault}: {found.mend}, then start the node; {GIVING_UP}"
    raise RefusedError(
        f"{storage}: acknowledged records may stand in {where} and not in their segments; nothing was modified",
        advice=advice,
    )


def write_state(storage: Path, state: JournalState) -> None:
    """Write the state file, durably; the caller sets the mark after that.  Raises DiskWriteError."""
    inside = state.path.is_relative_to(storage.absolute())  # so that a directory can be moved with its journal
    document = {
        "version": _STATE_VERSION,
        "path": str(state.path.relative_to(storage.absolute()) if inside else state.path),
        "id": str(state.journal_id),
        "partitions": None if state.partitions is None else list(state.partitions),
    }
    disk.write_whole(state_path(storage), (json.dumps(document, indent=2) + "\n").encode())


def remove_state(storage: Path) -> None:
    """Remove the state file, durably; the caller has cleared the mark before.  Raises DiskWriteError."""
    if Path(state_path(storage)).exists():
        disk.unlink(state_path(storage))
        disk.sync_directory(state_path(storage).parent)


def owner_of(storage: Path) -> uuid.UUID:
    """Id of a storage directory by its resolved path, stored in the journal's headers; the same through symbolic links."""
    return uuid.uuid5(uuid.NAMESPACE_URL, storage.resolve().as_uri())
