"""Whether a commit journal is in force in a storage directory, and where it is: the control file's mark and a state file.

===================  ==================================================================================================
the control file      what is in force
===================  ==================================================================================================
not marked            every acknowledged record is durable in its segment; no journal is looked at, whatever lies about
marked                some may be durable in the journal only; its file and id stand in ``.waltzctl/commit-journal.json``
===================  ==================================================================================================

The mark is durable before the first entry is written (`engine.storage.commit_journal`), and goes when every segment is durable.
It turns the number of partitions round (`formats.control`), so that release 0.13.2, which compares it with the cluster's, does
not open a directory as if nothing were missing.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from pathlib import Path, PurePath

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import DamageError, DiskReadError, RefusedError, SpecialFileError
from waltzctl.engine.log import places
from waltzctl.engine.log.view import read_control
from waltzctl.engine.strict_json import InvalidJsonError, StrictObject
from waltzctl.formats.control import CONTROL_FILE_NAME

STATE_NAME = "commit-journal.json"
"""In `disk.STATE_DIRECTORY`: where the journal of a marked directory is."""
GIVING_UP = "recover --forget-journal gives up what stands in the journal only"
"""The last way out, for messages."""
_STATE_VERSION = 1
_STATE_LIMIT = 1 << 20


@dataclass(frozen=True, slots=True)
class JournalState:
    """Where the journal of a storage directory is, and its id.

    `partitions`: those of which it still holds something; None for all of them.
    """

    path: Path
    journal_id: uuid.UUID
    partitions: tuple[int, ...] | None = None


def state_path(storage: PurePath) -> PurePath:
    """Where the state of a storage directory's journal is, or would be."""
    return storage / disk.STATE_DIRECTORY / STATE_NAME


def read_state(storage: PurePath) -> JournalState | None:
    """What the state file says; None where there is none.  Takes no lock, writes nothing.  Raises DamageError, DiskReadError."""
    path = state_path(storage)
    try:
        raw = places.read_range(path, 0, _STATE_LIMIT)
    except FileNotFoundError:
        return None
    try:
        document = StrictObject(json.loads(raw), "the file")
        if document.number("version") != _STATE_VERSION:
            raise InvalidJsonError(f"no file of version {_STATE_VERSION}")
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
    return JournalState(journal, journal_id, None if partitions is None else tuple(partitions))


@dataclass(frozen=True, slots=True)
class JournalOutlook:
    """What a marked directory tells of its journal, which is not opened.

    `state`: None where nothing tells.  `fault`: why what stands there cannot be written back, None where nothing speaks against
    it.
    """

    state: JournalState | None
    fault: str | None = None

    @property
    def path(self) -> Path | None:
        """Where the journal is; None where nothing tells."""
        return None if self.state is None else self.state.path


def look_at_journal(storage: PurePath) -> JournalOutlook:
    """What can be said of the journal of a marked directory by its state file, and by a look whether it is there.

    Takes no lock, writes nothing.
    """
    try:
        state = read_state(storage)
    except (DamageError, DiskReadError) as error:
        return JournalOutlook(None, error.message)
    if state is None:
        return JournalOutlook(None, f"{state_path(storage)}, which names it, is missing")
    if state.partitions is not None:
        which = f"partition{'s' if len(state.partitions) > 1 else ''} {', '.join(map(str, state.partitions))}"
        return JournalOutlook(state, f"those of {which} could not be written back when the directory was opened")
    if not places.on_this_machine(storage):
        return JournalOutlook(state)  # a path of the node's machine
    try:
        state.path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return JournalOutlook(state, "that file is not there")
    except OSError:
        pass  # whoever may not look there cannot say that it is gone
    return JournalOutlook(state)


def is_marked(storage: PurePath) -> bool:
    """Whether the control file says that a journal is in force; what cannot be read does not.  Raises DiskReadError."""
    try:
        control = read_control(storage / CONTROL_FILE_NAME)
    except SpecialFileError:
        return False
    return control is not None and control.header.journaled


def refuse_marked(storage: PurePath) -> None:
    """Raise RefusedError for a marked directory, which only `put_right` may change.

    What a repair reads there may not be what was acknowledged, and what it wrote the journal would be written over.
    """
    if not is_marked(storage):
        return
    found = look_at_journal(storage)
    where = "a commit journal" if found.path is None else f"the commit journal {found.path}"
    advice = f"start the node, or stop it where it runs, or run waltzctl append: each writes them back; {GIVING_UP}"
    if found.fault is not None:
        advice = f"{found.fault}: bring back what is missing, then start the node; {GIVING_UP}"
    raise RefusedError(
        f"{storage}: acknowledged records may stand in {where} and not in their segments; nothing was modified",
        advice=advice,
    )


def write_state(storage: Path, state: JournalState) -> None:
    """Say where the journal is, durably; the mark comes behind it.  Raises DiskWriteError."""
    inside = state.path.is_relative_to(storage.absolute())  # so that a directory can be moved with its journal
    document = {
        "version": _STATE_VERSION,
        "path": str(state.path.relative_to(storage.absolute()) if inside else state.path),
        "id": str(state.journal_id),
        "partitions": None if state.partitions is None else list(state.partitions),
    }
    disk.write_whole(state_path(storage), (json.dumps(document, indent=2) + "\n").encode())


def remove_state(storage: Path) -> None:
    """Nothing is said any more, durably, when the mark is gone.  Raises DiskWriteError."""
    if Path(state_path(storage)).exists():
        disk.unlink(state_path(storage))
        disk.sync_directory(state_path(storage).parent)


def owner_of(storage: Path) -> uuid.UUID:
    """What tells the journals of two directories apart, whatever links lead to them."""
    return uuid.uuid5(uuid.NAMESPACE_URL, storage.resolve().as_uri())
