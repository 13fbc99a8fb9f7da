"""Whether a repair can be undone, given what was written into the storage directory since.

Restoring the old files is right only if the log was not continued in between.  After a truncation, for example, a writer may have
appended, also to new segments that the repair did not know, and a session may have begun at the end that the repair left.
So a repair records how it left the partitions that it changed (`PartitionLeft` in its manifest).  Before an undo each partition
is judged as it would be afterwards, with restored files and newer files together:

=========================================  ==============================================================================
situation after the undo                   condition
=========================================  ==============================================================================
a newer data file (it came or grew since   the second one begins with the id after the last record of the first one, and
the repair) is next to a restored one      the first one ends without a torn tail
a newer data file is the first one         it is the first one now, too
the end of the log has moved               session and marks are still those that the repair left; otherwise older records
                                           would lie above the mark at which a newer session began, as if they were its own
a commit journal comes into force again    no partition has changed since the repair, and no later repair is applied: the
(undo of `recover --forget-journal`)       journal's records will be written over what is in their places
=========================================  ==============================================================================

Damage that the repair mended comes back with the undo, and is no reason to refuse it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath

from waltzctl.engine.durable.edits import Cut, Edit, Overwrite, Remove
from waltzctl.engine.durable.manifest import (
    KeptFile,
    Marks,
    PartitionLeft,
    QuarantineEntry,
    RepairState,
    Stamp,
    locate,
    partitions_of,
)
from waltzctl.engine.durable.restore import check_kept, read_chunks, same_contents, stamp_as
from waltzctl.engine.errors import DamageError, StalePlanError
from waltzctl.engine.log.view import read_control
from waltzctl.engine.repair.content import Content, FileSpan, Piece
from waltzctl.engine.repair.survey import begins_at, hint_of, survey
from waltzctl.engine.storage.store import file_sizes, marks_of, view_or_empty
from waltzctl.formats.control import CONTROL_FILE_NAME, CONTROL_HEADER, ControlHeader, decode_control
from waltzctl.formats.segment import HEADER_SIZE, INDEX_SUFFIX, SegmentHeader, parse_name

SET_ASIDE = "set-aside"
"""The command named by the quarantine entry that keeps files written since the repair."""
ADVICE = (
    "undo with --allow-data-loss takes what came since into the quarantine first, where a repair of its own keeps it"
)


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why an entry cannot be undone: the partition, the files that came or grew since the repair, and the reason in words."""

    partition: int
    paths: tuple[PurePath, ...]
    why: str


@dataclass(frozen=True, slots=True)
class MarkFall:
    """A session id or mark of the control file that the undo of an entry lowers: `now` and `then` (after the undo)."""

    partition: int
    name: str
    now: int
    then: int

    def __str__(self) -> str:
        return f"partition {self.partition}: the {self.name} goes back from {self.now} to {self.then}"


# --- the partitions as they will be ----------------------------------------------------------------------------------


def obstacles(entry: QuarantineEntry) -> Iterator[Obstacle]:
    """The obstacles to undoing an entry, by partition.  Read-only.

    The caller has checked that every file that the entry changed is as the entry left it.  Raises DiskReadError.
    """
    touched: dict[str, dict[str, KeptFile]] = {}  # by directory and name
    for file in entry.files:
        directory, _, name = file.path.partition("/")
        touched.setdefault(directory, {})[name] = file
    left_by = {state.partition: state for state in entry.partitions or ()}
    control = read_control(entry.storage / CONTROL_FILE_NAME)
    for number in sorted(partitions_of(entry)):
        left, files = left_by.get(number), touched.get(str(number), {})
        found = _Judgement(entry, number, left, files).obstacle(marks_of(control, number))
        if found is not None:
            yield found
    if brings_journal_back(entry):
        for left in entry.partitions or ():
            known, now = dict(left.files), file_sizes(entry.storage, left.partition)
            if known != now or marks_of(control, left.partition) != left.marks:
                came = tuple(entry.storage / str(left.partition) / name for name in now if now[name] != known.get(name))
                why = "it was written to since, and the commit journal would be written over it"
                yield Obstacle(left.partition, came, why)


def brings_journal_back(entry: QuarantineEntry) -> bool:
    """Whether a commit journal is in force after the undo of an entry, as its mark is set in the kept control file."""
    file = next((one for one in entry.files if one.path == CONTROL_FILE_NAME), None)
    if file is None or file.before is None or file.before.size < CONTROL_HEADER.size:
        return False
    return ControlHeader.decode(content_before(entry, file).read(0, CONTROL_HEADER.size)).journaled


def check_journal_comes_back(entry: QuarantineEntry, entries: Iterable[QuarantineEntry]) -> None:
    """Raise StalePlanError when an undo would bring a commit journal back into force although a later repair is applied."""
    if not brings_journal_back(entry):
        return
    for later in reversed(tuple(entries)):
        if later.number > entry.number and later.state is RepairState.APPLIED and later.command != SET_ASIDE:
            raise StalePlanError(
                f"the repair {entry.id} cannot be taken back: the commit journal would be written over what a later repair left",
                advice=f"undo {later.id} first",
            )


@dataclass(frozen=True, slots=True)
class _DataFile:
    """A data file at present or after the undo.

    `back`: the undo restores it.  `since`: it came or grew after the repair.
    """

    first: int
    path: PurePath
    content: Content
    back: bool
    since: bool = False


class _Judgement:
    """Judges one partition: its data files at present (`_now`) and after the undo (`_then`), in the order of their ids.

    `_left`: how the repair left the partition, None when its manifest does not say.  `_ends`: cache of `_end`, by object id.
    """

    def __init__(
        self, entry: QuarantineEntry, partition: int, left: PartitionLeft | None, files: dict[str, KeptFile]
    ) -> None:
        known = None if left is None else dict(left.files)
        self._number, self._left = partition, left
        self._now: list[_DataFile] = []
        self._then: list[_DataFile] = []
        for segment in view_or_empty(entry.storage, partition).data_segments:
            assert segment.data is not None
            path, size = segment.data.path, segment.data.size
            content = Content.of_file(path, size)
            # manifests of older versions do not say how the partition was left: then any file may be newer
            since = path.name not in files and (known is None or known.get(path.name) != size)
            as_is = _DataFile(segment.first_transaction_id, path, content, False, since)
            self._now.append(as_is)
            if path.name not in files:
                self._then.append(as_is)
        for name, file in files.items():
            parsed = parse_name(name)
            if parsed is not None and parsed[1] != INDEX_SUFFIX and file.before is not None:
                path = entry.storage / file.path
                self._then.append(_DataFile(parsed[0], path, content_before(entry, file), True))
        self._then.sort(key=lambda one: one.first)
        self._ends: dict[int, tuple[int, bool]] = {}

    def obstacle(self, marks: Marks | None) -> Obstacle | None:
        """Why the undo would leave the partition inconsistent; None when it would not."""
        came = tuple(one.path for one in self._now if one.since)
        foremost = self._then[0] if self._then else None
        if foremost is not None and foremost.since and foremost is not self._now[0]:
            why = f"nothing would be left in front of {foremost.path}, which came since"
            return Obstacle(self._number, came, why)
        for ahead, behind in pairwise(self._then):
            if not (ahead.since or behind.since) or self._joined_now(ahead, behind):
                continue
            following, clean = self._end(ahead)
            if following != behind.first or not clean:
                what = "would overlap" if following > behind.first else "would not join"
                why = (
                    f"{ahead.path} would end with transaction {following - 1}{'' if clean else ', torn,'} and"
                    f" {behind.path.name} begins with {behind.first}: they {what}"
                )
                return Obstacle(self._number, came, why)
        if self._left is not None and marks != self._left.marks and self._last(self._now) != self._last(self._then):
            began = (
                "that nothing is in force"
                if marks is None
                else f"session {marks[0]} with marks {marks[1]} and {marks[2]}"
            )
            was = self._left.marks
            before = "that nothing is" if was is None else f"session {was[0]} with marks {was[1]} and {was[2]}"
            why = (
                f"the control file says {began} now, and said {before} after the repair: a session began where the repair left"
                f" the log's end, at transaction {self._last(self._now)}, and would find it at {self._last(self._then)}"
            )
            return Obstacle(self._number, came, why)
        return None

    def _joined_now(self, ahead: _DataFile, behind: _DataFile) -> bool:
        """Whether the two files are neighbours already at present."""
        return (ahead, behind) in pairwise(self._now)

    def _last(self, files: list[_DataFile]) -> int:
        return self._end(files[-1])[0] - 1 if files else -1

    def _end(self, file: _DataFile) -> tuple[int, bool]:
        """The id after a file's last record, and whether the file ends with that record."""
        if id(file) not in self._ends:
            self._ends[id(file)] = _end_of(file)
        return self._ends[id(file)]


def _end_of(file: _DataFile) -> tuple[int, bool]:
    if file.content.size() < HEADER_SIZE:
        return file.first, False
    try:
        header = SegmentHeader.decode(file.content.read(0, HEADER_SIZE))
        begins = begins_at(file.content, file.first, header.first_transaction_id)
        with hint_of(None if file.back else file.path.with_suffix(INDEX_SUFFIX)) as hint:
            found = survey(file.content, begins, hint)
    except DamageError:
        return file.first, False
    return found.next_id, found.tail is None


def content_before(entry: QuarantineEntry, file: KeptFile) -> Content:
    """The content of a file before the repair, composed of its present bytes and the kept copies."""
    path, before = entry.storage / file.path, file.before
    if before is None:
        return Content(str(path), ())
    if file.kept is not None:
        return Content(str(path), (FileSpan(entry.path / file.kept, 0, before.size),))
    pieces: list[Piece] = []
    position = 0
    for one in sorted(file.ranges, key=lambda one: one.offset):
        pieces.append(FileSpan(path, position, min(one.offset, before.size)))
        if one.kept is not None:
            pieces.append(FileSpan(entry.path / one.kept, 0, one.length))
        position = one.offset + max(one.length, one.written)
    pieces.append(FileSpan(path, min(position, before.size), before.size))
    return Content(str(path), tuple(pieces))


def check_copies(entry: QuarantineEntry, files: Iterable[KeptFile]) -> None:
    """Raises StalePlanError when a kept copy of these files of a repair is missing or has other contents; DiskReadError."""
    try:
        check_kept(entry, files)
    except DamageError as error:
        raise StalePlanError(error.message, advice=error.advice) from error


def falling_marks(entry: QuarantineEntry) -> tuple[MarkFall, ...]:
    """The sessions and marks that the undo of an entry lowers; none of a repair that cannot be undone any more.

    Raises StalePlanError when the kept bytes of the control file are not what they were; DiskReadError.
    """
    if entry.state not in (RepairState.APPLIED, RepairState.UNDOING):
        return ()
    file = next((one for one in entry.files if one.path == CONTROL_FILE_NAME), None)
    now = read_control(entry.storage / CONTROL_FILE_NAME)
    if file is None or now is None or file.before is None or file.before.size < CONTROL_HEADER.size:
        return ()
    if same_contents(stamp_as(entry.storage / file.path, file.before), file.before):
        return ()  # an interrupted undo has restored it, and its copies are needed no more
    check_copies(entry, [file])
    then = decode_control(content_before(entry, file).read(0, file.before.size))
    found = []
    for number in range(len(now.partitions)):
        marks, others = marks_of(now, number), marks_of(then, number)
        if marks is not None and others is not None:
            names = ("session id", "low-water mark", "local low-water mark")
            found += [
                MarkFall(number, name, one, other)
                for name, one, other in zip(names, marks, others, strict=True)
                if other < one
            ]
    return tuple(found)


# --- setting aside ---------------------------------------------------------------------------------------------------


def set_aside(entry: QuarantineEntry) -> list[Edit]:
    """The edits that return the partitions to the state in which the entry left them.

    Newer files are removed, grown files are cut, sessions and marks are reset.  Empty when nothing was written since, not even a
    session.  Raises StalePlanError when that is impossible: a file is not an extension of what the repair left, or the repair
    changed the control file and it was changed again; DiskReadError.
    """
    edits: list[Edit] = []
    touched = {file.path: file.after for file in entry.files}
    for state in entry.partitions or ():
        known, now = dict(state.files), file_sizes(entry.storage, state.partition)
        for name, size in state.files:
            if not name.endswith(INDEX_SUFFIX) and now.get(name, -1) < size:
                raise StalePlanError(
                    f"{entry.storage / str(state.partition) / name}: has lost bytes since the repair {entry.id}",
                    advice=f"nothing was modified; the kept bytes are in {entry.path}",
                )
        for name, size in sorted(now.items(), reverse=True):
            path = locate(entry.storage, f"{state.partition}/{name}")
            if name not in known:
                edits.append(Remove(path))
            elif size > known[name]:
                after = touched.get(f"{state.partition}/{name}")
                if after is not None and not _begins_with(path, after):
                    raise StalePlanError(
                        f"{path}: was changed since the repair {entry.id}, not only made longer",
                        advice=f"the kept bytes are in {entry.path}",
                    )
                edits.append(Cut(path, known[name]))
    return [*edits, *_marks_as_left(entry)]


def _begins_with(path: PurePath, known: Stamp) -> bool:
    digest = hashlib.sha256()
    for part in read_chunks(path, known.start, known.size):
        digest.update(part)
    return digest.hexdigest() == known.sha256


def _marks_as_left(entry: QuarantineEntry) -> Iterator[Edit]:
    """The edits that reset the sessions and marks of the partitions to those that the entry left."""
    path = entry.storage / CONTROL_FILE_NAME
    control = read_control(path)
    for state in entry.partitions or ():
        if state.marks is None or marks_of(control, state.partition) in (None, state.marks):
            continue
        assert control is not None  # `marks_of` found marks in it
        after = next((file.after for file in entry.files if file.path == CONTROL_FILE_NAME), None)
        if after is not None and not same_contents(stamp_as(path, after), after):
            raise StalePlanError(
                f"{path}: the repair {entry.id} changed it, and it was changed since",
                advice=f"the kept bytes are in {entry.path}",
            )
        session_id, low, local = state.marks
        info = control.partitions[state.partition]
        number, written = info.updated(session_id=session_id, low_water_mark=low, local_low_water_mark=local)
        offset, data = control.layout.struct_offset(state.partition, number), written.encode()
        if not control.layout.has_flags:  # in the documented layout the higher marks win, so both structs are written
            offset, data = control.layout.struct_offset(state.partition, 1), data * 2
        yield Overwrite(path, offset, data)


def check_nothing_stands_in_the_way(entry: QuarantineEntry) -> None:
    """Raises StalePlanError, naming the newer files, when the undo of an entry has an obstacle; DiskReadError."""
    for one in obstacles(entry):
        names = ", ".join(str(path) for path in one.paths[:8]) + (", ..." if len(one.paths) > 8 else "")
        came = f"; since the repair came {names}" if one.paths else ""
        raise StalePlanError(
            f"the repair {entry.id} cannot be taken back: partition {one.partition}: {one.why}{came}",
            advice=f"nothing was modified; {ADVICE}" if entry.partitions is not None else None,
        )
