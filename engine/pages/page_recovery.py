"""Recovery in place: a store whose log is damaged is opened again, with what a recovery mode takes of the log.

What is taken becomes a checkpoint, which stands for all logs there were; the logs go into the quarantine.  That is one repair: a
crash leaves it undone, and the next who opens the store takes it back.  As long as nobody has opened the store for writing since,
it can be undone, byte for byte; later the room of what was given up is used for other pages.

Ids of pages and sequences go on behind the highest ones that the log tells of, those that are given up included: none is given
away twice.  A page whose data is damaged stays, named by every verification, but where another one lies in its place.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from waltzctl.engine.durable.edits import Cut, Edit, Remove, Replace
from waltzctl.engine.durable.execution import check_edits
from waltzctl.engine.durable.manifest import KeptFile, QuarantineEntry
from waltzctl.engine.durable.quarantine import (
    apply_edits,
    interrupted,
    list_entries,
    roll_back_interrupted,
    take_back,
)
from waltzctl.engine.durable.restore import Way, stamp, ways_back
from waltzctl.engine.durable.undoable import check_as_left, choose_applied
from waltzctl.engine.errors import DamageError, StalePlanError, told_with
from waltzctl.engine.findings import Finding, Severity
from waltzctl.engine.pages.checkpoint import checkpoint_of
from waltzctl.engine.pages.inspection import PageVerification, entries_of, read_settled, verify_store
from waltzctl.engine.pages.log_replay import directory_of, overlap_finding, restore
from waltzctl.engine.pages.page_data import is_whole, read_page
from waltzctl.engine.pages.page_directory import Located, PageDirectory
from waltzctl.engine.pages.page_gc import checkpoint_payloads
from waltzctl.engine.pages.recovery_mode import RecoveryMode
from waltzctl.engine.pages.torn_tail import STORE
from waltzctl.engine.pages.wal_reader import WalContents, payloads_of, refuse, wal_findings
from waltzctl.engine.pages.wal_store import checkpoint_parts
from waltzctl.engine.strict_json import canonical
from waltzctl.formats.pages.names import CHECKPOINT_LEVEL, WAL_DIRECTORY, LogName, parse_log_name
from waltzctl.formats.pages.write_batch import BatchError, EditType, PageEntry, PageId, Version, decode_batch
from waltzctl.formats.pages.write_batch import Edit as PageEdit

COMMAND = "pages-recover"
"""As quarantine and journal know it."""
NAMED = 100
"""So many pages, or edits, are named one by one; the others are counted."""


@dataclass(frozen=True, slots=True)
class StoreStep:
    """What is done to a file, or given up.  `offset` and `length` are in bytes of it as it is before."""

    action: str
    path: Path
    reason: str
    offset: int | None = None
    length: int | None = None
    loses_data: bool = False


@dataclass(frozen=True, slots=True)
class PageRecovery:
    """What recovery with a mode would do.  `roll_back`: the only step is to take back a repair that was interrupted."""

    path: Path
    mode: RecoveryMode
    steps: tuple[StoreStep, ...]
    edits: tuple[Edit, ...]
    hash: str
    roll_back: bool = False

    @property
    def loses_data(self) -> bool:
        """Whether something is given up that somebody was promised, or may have been."""
        return any(step.loses_data for step in self.steps)


class AppliedRecovery(NamedTuple):
    """The repair, None where nothing had to be kept; what verify says then; which interrupted ones were taken back first."""

    entry: QuarantineEntry | None
    verified: PageVerification
    taken_back: tuple[QuarantineEntry, ...]


class UndoneRecovery(NamedTuple):
    """The repair that was taken back, what verify says then, and which interrupted ones were before."""

    entry: QuarantineEntry
    verified: PageVerification
    taken_back: tuple[QuarantineEntry, ...]


def plan_recovery(path: Path, mode: RecoveryMode) -> PageRecovery:
    """What recovery would do; read-only.

    Raises NotWaltzError, DamageError for what `mode` does not tolerate, DiskReadError.
    """
    if left := interrupted(path, STORE):
        steps = [StoreStep("roll-back", path, f"the repair {one.id} was interrupted; this comes first") for one in left]
        return _plan(path, mode, steps, (), roll_back=True)
    contents = read_settled(path)
    refuse(contents, mode)
    if contents.lost:
        found = wal_findings(contents, path)
        raise DamageError(
            f"{contents.directory}: {found[0].message}", found, advice="nothing was changed; bring it back from a copy"
        )
    tolerant = mode in (RecoveryMode.POINT_IN_TIME, RecoveryMode.SKIP_DAMAGED)
    left_out: list[PageEdit] = []
    kept = restore(contents, mode, lenient=tolerant, left_out=left_out)
    overlapping = _overlapping(path, kept)
    if overlapping and not tolerant:
        raise DamageError(
            f"{overlapping[0][2].path}: {overlapping[0][2].message}",
            [overlapping[0][2]],
            advice=f"--mode {RecoveryMode.SKIP_DAMAGED.value} gives up the page that is not whole",
        )
    damage = [one for one in wal_findings(contents, path) if one.severity is Severity.DAMAGE]
    if not (damage or left_out or overlapping):
        return _plan(path, mode, *_torn(contents))
    everything, told = kept, left_out
    if mode is not RecoveryMode.SKIP_DAMAGED:  # which takes all that there is already
        told = []
        everything = restore(contents, RecoveryMode.SKIP_DAMAGED, lenient=True, left_out=told)
    made = _rebuilt(kept, everything, told, {(page, entry) for page, entry, _ in overlapping})
    number = contents.highest_number
    pages = checkpoint_of(made)
    checkpoint = contents.directory / str(LogName(number, CHECKPOINT_LEVEL))
    steps = [
        *(_given_up(one) for one in damage),
        *_dropped_records(contents, mode),
        *_few((f"page {one.page}: its {one.type.name.lower()} of sequence {one.version.sequence} cannot be made"
               for one in left_out), "drop-edit", contents.directory),
        *_page_steps(path, everything, made),
        StoreStep("write-checkpoint", checkpoint, f"holds the {_count(len(_live(made)), 'page')} that are kept"),
    ]  # fmt: skip

    def parts() -> Iterator[bytes]:
        return checkpoint_parts(number, checkpoint_payloads(pages), twice=contents.written_twice)

    edits: list[Edit] = [Replace(checkpoint, parts, sum(map(len, parts())))]
    for file in contents.files:
        if file.path != checkpoint:
            steps.append(StoreStep("set-aside", file.path, "into the quarantine; undo brings it back", 0, file.size))
            edits.append(Remove(file.path))
    return _plan(path, mode, steps, edits)


def _torn(contents: WalContents) -> tuple[list[StoreStep], list[Edit]]:
    """Cut the end that an interrupted write left, as opening the store does."""
    last = contents.last
    if last is None or contents.torn_from is None:
        return [], []
    said = "the last write was interrupted, and nobody was promised anything; kept in the quarantine"
    return [StoreStep("cut", last.path, said, last.end, last.size - last.end)], [Cut(last.path, last.end)]


def _plan(
    path: Path, mode: RecoveryMode, steps: Sequence[StoreStep], edits: Sequence[Edit], *, roll_back: bool = False
) -> PageRecovery:
    """With a hash of all that it depends on.  Raises RefusedError where an edit cannot be made in its place."""
    check_edits(path, edits, STORE.state_files)
    body = {
        "command": COMMAND,
        "store": str(path.resolve()),
        "mode": mode.value,
        "roll_back": roll_back,
        "steps": [{**asdict(step), "path": os.path.relpath(step.path, path)} for step in steps],
        "log": [[name, _state(path / WAL_DIRECTORY / name)] for name in sorted(os.listdir(path / WAL_DIRECTORY))],
    }
    digest = hashlib.sha256(canonical(body)).hexdigest()
    return PageRecovery(path, mode, tuple(steps), tuple(edits), digest, roll_back)


def _state(path: Path) -> list[object] | None:
    found = stamp(path)
    return None if found is None else [found.size, found.sha256, found.modified_ns]


# ---- what is given up --------------------------------------------------------------------------------------------------


def _given_up(finding: Finding) -> StoreStep:
    return StoreStep("give-up", Path(finding.path), finding.message, finding.offset, finding.length, loses_data=True)


def _dropped_records(contents: WalContents, mode: RecoveryMode) -> Iterator[StoreStep]:
    """Whole records that the mode does not take."""
    if mode is not RecoveryMode.POINT_IN_TIME:
        return
    taken: Counter[LogName] = Counter()
    for file, payload in payloads_of(contents, mode):
        try:
            decode_batch(payload)
        except BatchError:
            break
        taken[file.name] += 1
    for file in contents.files:
        dropped = [record for record in file.records if not record.is_copy][taken[file.name] :]
        if dropped:
            said = f"{_count(len(dropped), 'whole record')} behind the first fault"
            first = dropped[0].offset
            yield StoreStep("drop-records", file.path, said, first, dropped[-1].end - first, loses_data=True)


def _page_steps(path: Path, everything: PageDirectory, made: PageDirectory) -> Iterator[StoreStep]:
    """What becomes of pages, against all that the log tells."""
    before, after = _live(everything), _live(made)
    gone = [page for page in before if page not in after]
    older = [page for page in before if page in after and before[page].version != after[page].version]
    back = [page for page in after if page not in before]
    yield from _few((f"page {page} is given up" for page in gone), "drop-page", path)
    yield from _few(
        (f"page {page} is what it was at sequence {after[page].version.sequence}, not {before[page].version.sequence}"
         for page in older), "revert-page", path,
    )  # fmt: skip
    yield from _few((f"page {page} was deleted, and is there again" for page in back), "bring-back-page", path)


def _few(sentences: Iterable[str], action: str, path: Path) -> Iterator[StoreStep]:
    more = 0
    for number, said in enumerate(sentences):
        if number < NAMED:
            yield StoreStep(action, path, said, loses_data=True)
        more = max(0, number + 1 - NAMED)
    if more:
        yield StoreStep(action, path, f"and {more} more", loses_data=True)


def _live(directory: PageDirectory) -> dict[PageId, Located]:
    return {page: found for page in directory.page_ids() if (found := directory.locate(page)) is not None}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _overlapping(path: Path, directory: PageDirectory) -> list[tuple[PageId, PageEntry, Finding]]:
    """Entries that give way to others in the same bytes, each with the finding.

    The one that is there stays, as its checksum tells.  Of two that agree with it both hold the same bytes there, and of two that
    do not neither can be read: the first one stays.
    """
    found: list[tuple[PageId, PageEntry, Finding]] = []
    for group in _touching(entries_of(directory)):
        if len(group) == 1:
            continue
        whole = [one for one in group if is_whole(one[1], read_page(path, one[1]))]
        stay: list[PageEntry] = []
        for page, entry in [*whole, *(one for one in group if one not in whole)]:
            if any(entry.offset < one.offset + one.size and one.offset < entry.offset + entry.size for one in stay):
                found.append((page, entry, overlap_finding(path, entry.file_id, entry.offset, entry.size)))
            else:
                stay.append(entry)
    return found


def _touching(entries: Iterable[tuple[PageId, PageEntry]]) -> Iterator[list[tuple[PageId, PageEntry]]]:
    """Entries in the order in which they lie, in groups that no other one reaches into."""
    group: list[tuple[PageId, PageEntry]] = []
    end = 0
    for page, entry in entries:
        if group and (entry.file_id != group[0][1].file_id or entry.offset >= end):
            yield group
            group, end = [], 0
        group.append((page, entry))
        end = max(end, entry.offset + entry.size)
    if group:
        yield group


def _rebuilt(
    kept: PageDirectory,
    everything: PageDirectory,
    left_out: Sequence[PageEdit],
    without: set[tuple[PageId, PageEntry]],
) -> PageDirectory:
    """What is kept, without some entries and what refers to them; ids and sequences go on behind the highest of all.

    A page whose last version goes is gone, whatever older one a reference holds.
    """
    now = Version(max([kept.sequence, everything.sequence, *(one.version.sequence for one in left_out)]))
    edits: list[PageEdit] = []
    going = False
    for one in checkpoint_of(kept).all_edits:
        if one.type is not EditType.VAR_REF:  # which follows what it refers to
            going = one.entry is not None and (one.page, one.entry) in without
        if not going:
            edits.append(one)
    for page, entry in sorted(without, key=lambda one: one[0]):
        last = kept.locate(page)
        if last is not None and not last.is_reference and last.entry == entry:
            edits.append(PageEdit(EditType.VAR_DELETE, page, now))
    named = {*(PageId(*one) for one in everything.highest_ids.items()), *(one.page for one in left_out)}
    edits += [PageEdit(EditType.VAR_HIGHEST, page, now) for page in sorted(named)]
    return directory_of(edits)


# ---- doing it, and taking it back ----------------------------------------------------------------------------------------


def apply_recovery(plan: PageRecovery, *, arguments: Sequence[str]) -> AppliedRecovery:
    """Carry a plan out and verify the store, under its lock.  `arguments`: the command line, for the journal.

    Raises DirectoryLockedError, StalePlanError where the log is not as it was, what `apply_edits` raises; the store is as it was
    then, or is so once it is opened.
    """
    path, entry = plan.path, None
    with STORE.lock(path):
        taken = roll_back_interrupted(path, STORE)
        with told_with(one.id for one in taken):
            if not plan.roll_back:
                now = plan_recovery(path, plan.mode)
                if now.hash != plan.hash:
                    raise StalePlanError(
                        f"{path / WAL_DIRECTORY}: the log changed since the plan was made; nothing was modified",
                        advice="make the plan again",
                    )
                if now.edits:
                    entry = apply_edits(
                        path, now.edits, STORE, command=COMMAND, arguments=arguments, plan_hash=plan.hash
                    )
            return AppliedRecovery(entry, verify_store(path, exclusive=True), taken)


def check_undo(entry: QuarantineEntry) -> list[tuple[KeptFile, Way]]:
    """How an applied repair can be taken back.

    Raises StalePlanError where it cannot: somebody has opened the store for writing since, or a file is not as the repair left
    it; DiskReadError.
    """
    names = [parse_log_name(Path(one.path).name) for one in entry.files]
    highest = max((name.number for name in names if name is not None), default=0)
    wal = entry.storage / WAL_DIRECTORY
    later = [name for name in map(parse_log_name, os.listdir(wal)) if name is not None and name.number > highest]
    if later:
        raise StalePlanError(
            f"{wal / str(min(later))}: the store was opened for writing since the repair {entry.id}",
            advice=f"room of what was given up may hold other pages by now; the kept bytes are in {entry.path}",
        )
    check_as_left(entry, list_entries(entry.storage, STORE))
    try:
        return ways_back(entry)
    except DamageError as error:
        raise StalePlanError(error.message, advice=error.advice) from error


def undo_repair(path: Path, entry_id: str) -> UndoneRecovery:
    """Take a repair back, byte for byte, and verify the store, under its lock; an interrupted one is taken back first.

    Raises DirectoryLockedError, InvalidRequestError for an unknown id, RefusedError for one that was taken back already,
    StalePlanError as `check_undo`, DiskError.
    """
    with STORE.lock(path):
        taken = roll_back_interrupted(path, STORE)
        with told_with(one.id for one in taken):
            meant = next((one for one in taken if one.id == entry_id), None)
            if meant is not None:
                return UndoneRecovery(
                    meant, verify_store(path, exclusive=True), tuple(one for one in taken if one != meant)
                )
            entry = choose_applied(path, list_entries(path, STORE), entry_id)
            done = take_back(entry, check_undo(entry))
            return UndoneRecovery(done, verify_store(path, exclusive=True), taken)
