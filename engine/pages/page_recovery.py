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
from dataclasses import dataclass
from pathlib import Path

from waltzctl.engine.durable.directory_lock import DirectoryLock
from waltzctl.engine.durable.edits import Cut, Edit, Remove, Replace
from waltzctl.engine.durable.execution import check_edits
from waltzctl.engine.durable.manifest import QuarantineEntry, RepairState
from waltzctl.engine.durable.quarantine import (
    apply_edits,
    interrupted,
    list_entries,
    roll_back_interrupted,
    take_back,
)
from waltzctl.engine.durable.restore import stamp, ways_back
from waltzctl.engine.errors import DamageError, InvalidRequestError, RefusedError, StalePlanError
from waltzctl.engine.findings import Finding, Severity
from waltzctl.engine.pages.inspection import PageVerification, entries_of, read_page, verify_store
from waltzctl.engine.pages.page_directory import Located, PageDirectory
from waltzctl.engine.pages.page_gc import checkpoint_payloads
from waltzctl.engine.pages.restore import directory_of, overlap_finding, restore
from waltzctl.engine.pages.torn_tail import STORE
from waltzctl.engine.pages.wal_reader import (
    RecoveryMode,
    WalContents,
    payloads_of,
    read_wal,
    refuse,
    wal_findings,
)
from waltzctl.engine.pages.wal_store import checkpoint_parts
from waltzctl.formats.checksums import crc32c
from waltzctl.formats.pages.names import CHECKPOINT_LEVEL, WAL_DIRECTORY, LogName, parse_log_name
from waltzctl.formats.pages.write_batch import BatchError, EditType, PageEntry, PageId, Version, decode_batch
from waltzctl.formats.pages.write_batch import Edit as PageEdit

COMMAND = "pages-recover"
"""As quarantine and journal know it."""
NAMED = 100
"""So many pages, or edits, are named one by one; the others are counted."""


@dataclass(frozen=True, slots=True)
class RecoveryStep:
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
    steps: tuple[RecoveryStep, ...]
    edits: tuple[Edit, ...]
    hash: str
    roll_back: bool = False

    @property
    def loses_data(self) -> bool:
        """Whether something is given up that somebody was promised, or may have been."""
        return any(step.loses_data for step in self.steps)


@dataclass(frozen=True, slots=True)
class PageRepair:
    """What came of a repair or an undo: its entry, None where nothing had to be kept, and what verify says afterwards."""

    entry: QuarantineEntry | None
    verified: PageVerification
    taken_back: tuple[str, ...] = ()

    @property
    def damaged(self) -> bool:
        """Whether damage is left."""
        return self.verified.count(Severity.DAMAGE) > 0


def plan_recovery(path: Path, mode: RecoveryMode) -> PageRecovery:
    """What recovery would do; read-only.

    Raises NotWaltzError, DamageError for what `mode` does not tolerate, DiskReadError.
    """
    if left := interrupted(path, STORE):
        steps = [
            RecoveryStep("roll-back", path, f"the repair {one.id} was interrupted; this comes first") for one in left
        ]
        return _plan(path, mode, steps, (), roll_back=True)
    contents = read_wal(path)
    refuse(contents, mode)
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
    everything = restore(contents, RecoveryMode.SKIP_DAMAGED, lenient=True)
    made = _rebuilt(kept, everything, {(page, entry) for page, entry, _ in overlapping})
    number = contents.highest_number
    checkpoint = contents.directory / str(LogName(number, CHECKPOINT_LEVEL))
    steps = [
        *(_given_up(one) for one in damage),
        *_dropped_records(contents, mode),
        *_few((f"page {one.page}: its {one.type.name.lower()} of sequence {one.version.sequence} cannot be made"
               for one in left_out), "drop-edit", contents.directory),
        *_page_steps(path, everything, made),
        RecoveryStep("write-checkpoint", checkpoint, f"holds the {_count(len(_live(made)), 'page')} that are kept"),
    ]  # fmt: skip

    def parts() -> Iterator[bytes]:
        return checkpoint_parts(number, checkpoint_payloads(made.checkpoint()))

    edits: list[Edit] = [Replace(checkpoint, parts, sum(map(len, parts())))]
    for file in contents.files:
        if file.path != checkpoint:
            steps.append(RecoveryStep("set-aside", file.path, "into the quarantine; undo brings it back", 0, file.size))
            edits.append(Remove(file.path))
    return _plan(path, mode, steps, edits)


def _torn(contents: WalContents) -> tuple[list[RecoveryStep], list[Edit]]:
    """Cut the end that an interrupted write left, as opening the store does."""
    last = contents.last
    if last is None or contents.torn_from is None:
        return [], []
    said = "the last write was interrupted, and nobody was promised anything; kept in the quarantine"
    return [RecoveryStep("cut", last.path, said, last.end, last.size - last.end)], [Cut(last.path, last.end)]


def _plan(
    path: Path, mode: RecoveryMode, steps: Sequence[RecoveryStep], edits: Sequence[Edit], *, roll_back: bool = False
) -> PageRecovery:
    """With a hash of all that it depends on.  Raises RefusedError where an edit cannot be made in its place."""
    check_edits(path, edits, STORE.state_files)
    digest = hashlib.sha256(repr((str(path.resolve()), mode.value, roll_back)).encode())
    for step in steps:
        digest.update(repr((step.action, str(step.path), step.reason, step.offset, step.length)).encode())
    for name in sorted(os.listdir(path / WAL_DIRECTORY)):
        digest.update(repr((name, stamp(path / WAL_DIRECTORY / name))).encode())
    return PageRecovery(path, mode, tuple(steps), tuple(edits), digest.hexdigest(), roll_back)


# ---- what is given up --------------------------------------------------------------------------------------------------


def _given_up(finding: Finding) -> RecoveryStep:
    return RecoveryStep("give-up", Path(finding.path), finding.message, finding.offset, finding.length, loses_data=True)


def _dropped_records(contents: WalContents, mode: RecoveryMode) -> Iterator[RecoveryStep]:
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
        dropped = file.records[taken[file.name] :]
        if dropped:
            said = f"{_count(len(dropped), 'whole record')} behind the first fault"
            first = dropped[0].offset
            yield RecoveryStep("drop-records", file.path, said, first, dropped[-1].end - first, loses_data=True)


def _page_steps(path: Path, everything: PageDirectory, made: PageDirectory) -> Iterator[RecoveryStep]:
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


def _few(sentences: Iterable[str], action: str, path: Path) -> Iterator[RecoveryStep]:
    more = 0
    for number, said in enumerate(sentences):
        if number < NAMED:
            yield RecoveryStep(action, path, said, loses_data=True)
        more = max(0, number + 1 - NAMED)
    if more:
        yield RecoveryStep(action, path, f"and {more} more", loses_data=True)


def _live(directory: PageDirectory) -> dict[PageId, Located]:
    return {page: found for page in directory.page_ids() if (found := directory.locate(page)) is not None}


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _overlapping(path: Path, directory: PageDirectory) -> list[tuple[PageId, PageEntry, Finding]]:
    """Entries that claim bytes of another one and are not the one that is there, each with the finding.

    Where both are whole, the one behind goes: both hold the same bytes there.
    """
    found: list[tuple[PageId, PageEntry, Finding]] = []
    group: list[tuple[PageId, PageEntry]] = []
    end = 0

    def settle() -> None:
        reach = 0
        whole = [(page, entry) for page, entry in group if crc32c(read_page(path, entry)) == entry.checksum]
        for page, entry in group:
            stays = len(group) == 1 or ((page, entry) in whole and entry.offset >= reach)
            if stays:
                reach = entry.offset + entry.size
            else:
                finding = overlap_finding(path, entry.file_id, entry.offset, entry.size)
                found.append((page, entry, finding))

    for page, entry in entries_of(directory):
        if not entry.size:
            continue
        if group and (entry.file_id != group[0][1].file_id or entry.offset >= end):
            settle()
            group, end = [], 0
        group.append((page, entry))
        end = max(end, entry.offset + entry.size)
    settle()
    return found


def _rebuilt(kept: PageDirectory, everything: PageDirectory, without: set[tuple[PageId, PageEntry]]) -> PageDirectory:
    """What is kept, without some entries and what refers to them; ids and sequences go on behind the highest of all."""
    edits = [one for one in kept.checkpoint().all_edits if one.entry is None or (one.page, one.entry) not in without]
    now = Version(max(kept.sequence, everything.sequence))
    edits += [PageEdit(EditType.VAR_HIGHEST, PageId(*one), now) for one in everything.highest_ids.items()]
    return directory_of(edits, lenient=True)


# ---- doing it, and taking it back ----------------------------------------------------------------------------------------


def apply_recovery(plan: PageRecovery, *, arguments: Sequence[str]) -> PageRepair:
    """Carry a plan out and verify the store, under its lock.  `arguments`: the command line, for the journal.

    Raises DirectoryLockedError, StalePlanError where the log is not as it was, what `apply_edits` raises; the store is as it was
    then, or is so once it is opened.
    """
    path, entry = plan.path, None
    with DirectoryLock.acquire(path, None):
        taken = roll_back_interrupted(path, STORE)
        if not plan.roll_back:
            now = plan_recovery(path, plan.mode)
            if now.hash != plan.hash:
                raise StalePlanError(
                    f"{path}: the log changed since the plan was made; nothing was modified",
                    advice="make the plan again",
                )
            if now.edits:
                entry = apply_edits(path, now.edits, STORE, command=COMMAND, arguments=arguments, plan_hash=plan.hash)
        return PageRepair(entry, verify_store(path), tuple(one.id for one in taken))


def repairs_of(path: Path) -> tuple[QuarantineEntry, ...]:
    """Every repair of a store, the oldest first: recoveries, and the torn ends that were cut when it was opened.

    Raises DamageError for a manifest that cannot be used, DiskReadError.
    """
    return list_entries(path, STORE)


def check_undo(entry: QuarantineEntry) -> None:
    """Raise StalePlanError unless an applied repair can be taken back: nobody has opened the store for writing since."""
    if entry.state is not RepairState.APPLIED:
        return
    names = [parse_log_name(Path(one.path).name) for one in entry.files]
    highest = max((name.number for name in names if name is not None), default=0)
    wal = entry.storage / WAL_DIRECTORY
    later = [name for name in map(parse_log_name, os.listdir(wal)) if name is not None and name.number > highest]
    if later:
        raise StalePlanError(
            f"{wal / str(min(later))}: the store was opened for writing since the repair {entry.id}",
            advice=f"room of what was given up may hold other pages by now; the kept bytes are in {entry.path}",
        )
    try:
        ways_back(entry)
    except DamageError as error:
        raise StalePlanError(error.message, advice=error.advice) from error


def undo_repair(path: Path, entry_id: str) -> PageRepair:
    """Take a repair back, byte for byte, and verify the store, under its lock; an interrupted one is taken back first.

    Raises DirectoryLockedError, InvalidRequestError for an unknown id, RefusedError for one that was taken back already,
    StalePlanError as `check_undo`, DiskError.
    """
    with DirectoryLock.acquire(path, None):
        taken = roll_back_interrupted(path, STORE)
        if entry_id in {one.id for one in taken}:
            return PageRepair(next(one for one in taken if one.id == entry_id), verify_store(path))
        entry = next((one for one in repairs_of(path) if one.id == entry_id), None)
        if entry is None:
            raise InvalidRequestError(f"{path}: there is no repair {entry_id!r}", advice="undo --list shows them")
        if entry.state is not RepairState.APPLIED:
            raise RefusedError(f"{entry_id}: {entry.state.why_final}")
        check_undo(entry)
        done = take_back(entry, ways_back(entry))
        return PageRepair(done, verify_store(path), tuple(one.id for one in taken))
