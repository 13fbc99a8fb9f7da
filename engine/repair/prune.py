"""Pruning the quarantine: deleting the kept copies of old repairs, which can then no longer be undone.

A pruned entry keeps its manifest, marked *pruned*, as a record of the repair; its copies are deleted.  Writing the manifest is
the commit point: before it the entry is complete, after it the copies are garbage.  The next writer deletes the copies that a
crash left.

Repairs of the same files can only be undone latest first.  So an entry is pruned only together with all earlier entries of the
same partitions: an earlier one could never be undone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.manifest import MANIFEST, QuarantineEntry, RepairState, quarantine_directory
from waltzctl.engine.durable.quarantine import Store, give_up, interrupted, list_entries, roll_back_interrupted
from waltzctl.engine.errors import InvalidRequestError, RefusedError, StalePlanError
from waltzctl.engine.repair.arguments import Arguments
from waltzctl.engine.repair.plan import Plan, Step
from waltzctl.engine.repair.store_kinds import store_of
from waltzctl.engine.storage.journal_state import refuse_marked
from waltzctl.engine.strict_json import canonical

COMMAND = "prune"
ACTION = "drop-kept-copies"


@dataclass(frozen=True, slots=True)
class Prune:
    """A plan to prune.

    `entries`: id and bytes of kept copies of each entry, oldest first.  `latest`: ids of the latest ones, which stay whatever
    their age: once one of them is taken back, an earlier one has its place.
    """

    plan: Plan
    storage: Path
    entries: tuple[tuple[str, int], ...]
    latest: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of all copies to be deleted."""
        return sum(size for _, size in self.entries)


def plan_prune(storage: Path, *, older_than: float, keep: int = 0) -> Prune:
    """Plan to prune the applied repairs that are at least `older_than` seconds old, except the latest `keep` of all.

    Also completes a prune that a crash cut short.  Read-only.  Raises InvalidRequestError for a negative number, RefusedError
    while a repair is interrupted or a commit journal is in force, DamageError for an unreadable entry, DiskReadError.
    """
    if not older_than >= 0 or keep < 0:
        raise InvalidRequestError(f"an age of {older_than} s or {keep} to keep cannot be meant")
    store = store_of(storage)
    _refuse_interrupted(storage, store)
    refuse_marked(storage)
    entries = list_entries(storage, store)
    applied = [entry for entry in entries if entry.state is RepairState.APPLIED]
    # pruned entries with copies left: an earlier prune that a crash cut short
    chosen = [entry for entry in entries if entry.state is RepairState.PRUNED and kept_bytes(entry)]
    chosen += _chosen(applied, len(applied) - keep, disk.now_ms() / 1000 - older_than)
    sizes = tuple((entry.id, kept_bytes(entry)) for entry in chosen)
    steps = tuple(_step(entry, size) for entry, (_, size) in zip(chosen, sizes, strict=True))
    body = {"command": COMMAND, "storage": str(storage.resolve()), "entries": [list(one) for one in sizes]}
    digest = hashlib.sha256(canonical(body)).hexdigest()
    latest = tuple(entry.id for entry in applied[max(0, len(applied) - keep) :])
    return Prune(Plan(digest, COMMAND, storage, Arguments(), steps, ()), storage, sizes, latest)


def _refuse_interrupted(storage: Path, store: Store) -> None:
    if left := interrupted(storage, store):
        raise RefusedError(
            f"{storage}: the repair {left[0].id} was interrupted; nothing is pruned before it is taken back",
            advice="take it back with undo",
        )


def _chosen(applied: Sequence[QuarantineEntry], most: int, before: float) -> list[QuarantineEntry]:
    """The entries to prune among the applied ones, oldest first; `before` in seconds since 1970."""
    chosen: list[QuarantineEntry] = []
    stay: set[str] = set()
    for place, entry in enumerate(applied):
        old = datetime.fromisoformat(entry.created).timestamp() <= before
        if old and place < most and not stay & _touched_names(entry):
            chosen.append(entry)
        else:
            stay |= _touched_names(entry)
    return chosen


def _touched_names(entry: QuarantineEntry) -> set[str]:
    """The top-level names that a repair changed: partition directories and files beside them; of a page store, the log's."""
    return {file.path.split("/")[0] for file in entry.files} | {str(move.partition) for move in entry.moves}


def _step(entry: QuarantineEntry, size: int) -> Step:
    reason = f"{entry.command} of {entry.created} can no longer be taken back; {size} bytes of kept copies come free"
    return Step(ACTION, entry.path, None, None, None, 0, size, reason, loses_data=True)


def kept_bytes(entry: QuarantineEntry) -> int:
    """Bytes of the copies that an entry keeps."""
    with os.scandir(entry.path) as found:
        return sum(one.stat(follow_symlinks=False).st_size for one in found if one.name != MANIFEST)


def prune(prepared: Prune) -> int:
    """Carry out a plan and return the number of bytes freed.  The caller has asked for confirmation.

    Takes the DirectoryLock.  After an interrupt each entry is either complete or pruned.  Raises DirectoryLockedError,
    RefusedError, StalePlanError when the quarantine is no longer what the plan was made for, DamageError, DiskError.
    """
    storage = prepared.storage
    if not prepared.entries:
        return 0
    store = store_of(storage)
    with store.lock(storage):
        _refuse_interrupted(storage, store)
        refuse_marked(storage)
        found = {
            entry.id: entry
            for entry in list_entries(storage, store)
            if entry.state in (RepairState.APPLIED, RepairState.PRUNED)
        }
        for name, size in prepared.entries:
            if name not in found or kept_bytes(found[name]) != size:
                raise _stale(storage, name)
        for name in prepared.latest:
            if name not in found or found[name].state is not RepairState.APPLIED:
                raise _stale(storage, name)
        roll_back_interrupted(storage, store)  # completes and cleans up after a crash
        for name, size in prepared.entries:
            if found[name].state is RepairState.APPLIED:
                give_up(found[name], size)
    return prepared.bytes


def _stale(storage: Path, name: str) -> StalePlanError:
    return StalePlanError(
        f"{quarantine_directory(storage) / name}: changed since the plan was made; nothing was modified",
        advice="make the plan again",
    )
