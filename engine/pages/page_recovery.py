"""Recovery in place: make a store with a damaged log usable again, keeping what a recovery mode takes of the log.

What is kept is written as a checkpoint that replaces all logs; the logs go into the quarantine.  Both are one repair: after a
crash in between, the next process that opens the store rolls it back.  The repair can be undone, byte for byte, until the store
is opened for writing; after that, the space of dropped pages is reused.

Page ids and sequences continue after the highest ones in the log, including those of dropped pages and records: none is used
twice.  A page whose data is damaged is kept, and every verification reports it; it is dropped only if its bytes overlap those of
another page.
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
from waltzctl.engine.durable.file_status import names_in
from waltzctl.engine.durable.manifest import KeptFile, QuarantineEntry
from waltzctl.engine.durable.quarantine import (
    apply_edits,
    check_mounts,
    interrupted,
    list_entries,
    roll_back_interrupted,
    take_back,
)
from waltzctl.engine.durable.restore import Way, stamp, ways_back
from waltzctl.engine.durable.undoable import check_as_left, choose_applied
from waltzctl.engine.errors import DamageError, StalePlanError, with_roll_backs
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
"""The command's name in quarantine and journal."""
NAMED = 100
"""How many pages, or edits, are listed one by one; the rest is only counted."""


@dataclass(frozen=True, slots=True)
class StoreStep:
    """A change to a file, or data that is given up.  `offset` and `length`: bytes in the file as it is before the recovery."""

    action: str
    path: Path
    reason: str
    offset: int | None = None
    length: int | None = None
    loses_data: bool = False


@dataclass(frozen=True, slots=True)
class PageRecovery:
    """What recovery with a mode would do.  `roll_back`: the only step is to roll back an interrupted repair."""

    path: Path
    mode: RecoveryMode
    steps: tuple[StoreStep, ...]
    edits: tuple[Edit, ...]
    hash: str
    roll_back: bool = False

    @property
    def loses_data(self) -> bool:
        """Whether a step gives up data that was acknowledged, or may have been."""
        return any(step.loses_data for step in self.steps)


class AppliedRecovery(NamedTuple):
    """Result: the repair (None if no file was changed), the verification after it, and interrupted repairs rolled back first."""

    entry: QuarantineEntry | None
    verified: PageVerification
    taken_back: tuple[QuarantineEntry, ...]


class UndoneRecovery(NamedTuple):
    """Result: the repair that was undone, the verification after it, and the interrupted repairs rolled back first."""

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
        return _plan(path, mode, *_torn_tail_cut(contents))
    everything, not_applied = kept, left_out
    if mode is not RecoveryMode.SKIP_DAMAGED:  # that mode keeps everything readable already
        not_applied = []
        everything = restore(contents, RecoveryMode.SKIP_DAMAGED, lenient=True, left_out=not_applied)
    rebuilt = _rebuilt(kept, everything, not_applied, {(page, entry) for page, entry, _ in overlapping})
    number = contents.highest_number
    pages = checkpoint_of(rebuilt)
    checkpoint = contents.directory / str(LogName(number, CHECKPOINT_LEVEL))
    steps = [
        *(_given_up(one) for one in damage),
        *_dropped_records(contents, mode),
        *_limited_steps((f"page {one.page}: its {one.type.name.lower()} of sequence {one.version.sequence} cannot be made"
               for one in left_out), "drop-edit", contents.directory),
        *_page_steps(path, everything, rebuilt),
        StoreStep("write-checkpoint", checkpoint, f"holds the {_count(len(_current_pages(rebuilt)), 'page')} that are kept"),
    ]  # fmt: skip

    def parts() -> Iterator[bytes]:
        return checkpoint_parts(number, checkpoint_payloads(pages), twice=contents.written_twice)

    edits: list[Edit] = [Replace(checkpoint, parts, sum(map(len, parts())))]
    for file in contents.files:
        if file.path != checkpoint:
            steps.append(StoreStep("set-aside", file.path, "into the quarantine; undo brings it back", 0, file.size))
            edits.append(Remove(file.path))
    return _plan(path, mode, steps, edits)


def _torn_tail_cut(contents: WalContents) -> tuple[list[StoreStep], list[Edit]]:
    """Cut the torn tail that an interrupted write left, as opening the store does."""
    last = contents.last
    if last is None or contents.torn_from is None:
        return [], []
    said = "the last write was interrupted, and nobody was promised anything; kept in the quarantine"
    return [StoreStep("cut", last.path, said, last.end, last.size - last.end)], [Cut(last.path, last.end)]


def _plan(
    path: Path, mode: RecoveryMode, steps: Sequence[StoreStep], edits: Sequence[Edit], *, roll_back: bool = False
) -> PageRecovery:
    """A plan, with a hash of everything it depends on.  Raises RefusedError if an edit cannot be made where it is to be made."""
    check_edits(path, edits, STORE.state_files)
    body = {
        "command": COMMAND,
        "store": str(path.resolve()),
        "mode": mode.value,
        "roll_back": roll_back,
        "steps": [{**asdict(step), "path": os.path.relpath(step.path, path)} for step in steps],
        "log": [[name, _file_state(path / WAL_DIRECTORY / name)] for name in names_in(path / WAL_DIRECTORY) or ()],
    }
    digest = hashlib.sha256(canonical(body)).hexdigest()
    return PageRecovery(path, mode, tuple(steps), tuple(edits), digest, roll_back)


def _file_state(path: Path) -> list[object] | None:
    found = stamp(path)
    return None if found is None else [found.size, found.sha256, found.modified_ns]


# ---- what is given up --------------------------------------------------------------------------------------------------


def _given_up(finding: Finding) -> StoreStep:
    return StoreStep("give-up", Path(finding.path), finding.message, finding.offset, finding.length, loses_data=True)


def _dropped_records(contents: WalContents, mode: RecoveryMode) -> Iterator[StoreStep]:
    """Intact records that the mode does not take."""
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


def _page_steps(path: Path, everything: PageDirectory, rebuilt: PageDirectory) -> Iterator[StoreStep]:
    """How pages change, compared with everything that the log describes (`everything`)."""
    before, after = _current_pages(everything), _current_pages(rebuilt)
    gone = [page for page in before if page not in after]
    older = [page for page in before if page in after and before[page].version != after[page].version]
    back = [page for page in after if page not in before]
    yield from _limited_steps((f"page {page} is given up" for page in gone), "drop-page", path)
    yield from _limited_steps(
        (f"page {page} is what it was at sequence {after[page].version.sequence}, not {before[page].version.sequence}"
         for page in older), "revert-page", path,
    )  # fmt: skip
    yield from _limited_steps(
        (f"page {page} was deleted, and is there again" for page in back), "bring-back-page", path
    )


def _limited_steps(sentences: Iterable[str], action: str, path: Path) -> Iterator[StoreStep]:
    more = 0
    for number, said in enumerate(sentences):
        if number < NAMED:
            yield StoreStep(action, path, said, loses_data=True)
        more = max(0, number + 1 - NAMED)
    if more:
        yield StoreStep(action, path, f"and {more} more", loses_data=True)


def _current_pages(directory: PageDirectory) -> dict[PageId, Located]:
    return {page: found for page in directory.page_ids() if (found := directory.locate(page)) is not None}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _overlapping(path: Path, directory: PageDirectory) -> list[tuple[PageId, PageEntry, Finding]]:
    """Entries that are dropped because their bytes overlap those of another entry, each with its finding.

    Of overlapping entries, those whose checksum is right come first; each one is kept that overlaps none kept before it.  Two
    entries with right checksums hold the same bytes where they overlap, and two with wrong ones cannot be read: the first is
    kept.
    """
    found: list[tuple[PageId, PageEntry, Finding]] = []
    for group in _overlap_groups(entries_of(directory)):
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


def _overlap_groups(entries: Iterable[tuple[PageId, PageEntry]]) -> Iterator[list[tuple[PageId, PageEntry]]]:
    """Entries, which are ordered by file and offset, in groups; entries of different groups do not overlap."""
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
    """The kept directory without the entries `without` and the references to them.

    Highest ids and sequence are those of everything in the log.  A page whose last version is dropped is deleted, even if
    references hold an older version of it.
    """
    now = Version(max([kept.sequence, everything.sequence, *(one.version.sequence for one in left_out)]))
    edits: list[PageEdit] = []
    going = False
    for one in checkpoint_of(kept).all_edits:
        if one.type is not EditType.VAR_REF:  # a reference follows its target, and is kept or dropped with it
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


# ---- applying and undoing ------------------------------------------------------------------------------------------------


def apply_recovery(plan: PageRecovery, *, arguments: Sequence[str]) -> AppliedRecovery:
    """Apply a plan and verify the store, under its lock.  `arguments`: the command line, for the journal.

    Raises DirectoryLockedError, StalePlanError if the log changed since the plan was made, and what `apply_edits` raises.  After
    an error the store is as it was before, at the latest once it is opened.
    """
    path, entry = plan.path, None
    with STORE.lock(path):
        taken = roll_back_interrupted(path, STORE)
        with with_roll_backs(one.id for one in taken):
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
    """How the files of an applied repair are restored.

    Raises StalePlanError if it cannot be undone, because the store was opened for writing since, or because a file is not as the
    repair left it; RefusedError when the quarantine has been moved to another disk; DiskReadError.
    """
    names = [parse_log_name(Path(one.path).name) for one in entry.files]
    highest = max((name.number for name in names if name is not None), default=0)
    wal = entry.storage / WAL_DIRECTORY
    later = [name for name in map(parse_log_name, names_in(wal) or ()) if name is not None and name.number > highest]
    if later:
        raise StalePlanError(
            f"{wal / str(min(later))}: the store was opened for writing since the repair {entry.id}",
            advice=f"room of what was given up may hold other pages by now; the kept bytes are in {entry.path}",
        )
    check_as_left(entry, list_entries(entry.storage, STORE))
    check_mounts(entry)
    try:
        return ways_back(entry)
    except DamageError as error:
        raise StalePlanError(error.message, advice=error.advice) from error


def undo_repair(path: Path, entry_id: str) -> UndoneRecovery:
    """Undo a repair, byte for byte, and verify the store, under its lock; an interrupted repair is rolled back first.

    Raises DirectoryLockedError, InvalidRequestError for an unknown id, RefusedError if it was undone before, StalePlanError as
    `check_undo`, DiskError.
    """
    with STORE.lock(path):
        taken = roll_back_interrupted(path, STORE)
        with with_roll_backs(one.id for one in taken):
            meant = next((one for one in taken if one.id == entry_id), None)
            if meant is not None:
                return UndoneRecovery(
                    meant, verify_store(path, exclusive=True), tuple(one for one in taken if one != meant)
                )
            entry = choose_applied(path, list_entries(path, STORE), entry_id)
            done = take_back(entry, check_undo(entry))
            return UndoneRecovery(done, verify_store(path, exclusive=True), taken)
