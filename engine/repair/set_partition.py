"""Setting the session, marks, assignment and availability of one partition in the control file and waltzctl's own state files.

Records are never changed.  As every update, this one writes only the struct of the pair that is not in force, so that a torn
write leaves the other one in force.  When the documented layout's rule (the higher marks win) would still choose the old struct,
because a mark is lowered, both structs are written.

Three changes need `allow_data_loss`:

- lowering the session or a mark, which takes back an acknowledgement;
- raising the local low-water mark above the last transaction, which claims transactions that are not here;
- setting a session below the fence, the highest session that a node here has accepted (`engine.storage.fences`).  The node would
  refuse such a session, so the fence is lowered too.

Assignment is a flag in the released layout.  In the documented layout it is the existence of the partition's directory, which is
moved to the directory of put-aside partitions, and back.
"""

from __future__ import annotations

from pathlib import Path, PurePath

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.edits import MoveDirectory, Overwrite, Replace
from waltzctl.engine.durable.file_status import is_named
from waltzctl.engine.durable.relocation import DELETING
from waltzctl.engine.errors import (
    BelowLowWaterMarkError,
    ConcurrentUpdateError,
    DamageError,
    InvalidRequestError,
    MarkWouldFallError,
    RefusedError,
)
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.segment_checks import check_segment
from waltzctl.engine.inspect.segment_job import SegmentJob
from waltzctl.engine.inspect.verification import ENDS_ONLY
from waltzctl.engine.log.places import local
from waltzctl.engine.log.target import TargetKind, resolve
from waltzctl.engine.log.view import check_partitions, view_partition, view_storage
from waltzctl.engine.repair.arguments import MARK_NAMES, Arguments, PartitionSetting
from waltzctl.engine.repair.content import Content, LiteralBytes
from waltzctl.engine.repair.plan import PlanDraft, Repair
from waltzctl.engine.shell_words import shell_quote
from waltzctl.engine.storage.assignment import is_retired, put_aside_path, retired_place
from waltzctl.engine.storage.availability_marks import (
    Availability,
    availability_path,
    combine,
    encode_marks,
    load_marks,
)
from waltzctl.engine.storage.fences import fence_path, stored_session
from waltzctl.engine.storage.retired import check_moved_offline
from waltzctl.formats.control import FLAG_ASSIGNED, FLAG_AVAILABLE, NEVER, ControlFile, PartitionInfo, PartitionStruct
from waltzctl.formats.fence import (
    FENCE_PAIR,
    FENCE_SLOT,
    encode_slot,
    pair_offset,
)
from waltzctl.formats.segment import FORMAT_VERSION, HEADER_SIZE, SegmentHeader, index_name, segment_name

COMMAND = "set-partition"


def plan_set_partition(
    path: PurePath, *, partition: int, setting: PartitionSetting, allow_data_loss: bool = False
) -> Repair:
    """Plan to set the fields of `setting` that are not None; no steps for values already in force.  Read-only.

    Raises InvalidRequestError for impossible values, RefusedError for a damaged control file, an interrupted repair, and an
    assignment that the files do not allow; ConcurrentUpdateError (session), MarkWouldFallError and BelowLowWaterMarkError (marks)
    for changes that need `allow_data_loss`; DamageError for an unreadable availability file; NotWaltzError, DiskReadError.
    """
    setting.check()
    target = resolve(path)
    if target.storage is None or target.kind is not TargetKind.STORAGE:
        raise InvalidRequestError(
            f"{path}: a {target.kind}, not a storage directory", advice="name the storage directory"
        )
    arguments = Arguments.of((partition,), allow_data_loss=allow_data_loss, settings=setting.chosen())
    draft = PlanDraft(COMMAND, path, local(target.storage), arguments)
    view = view_storage(target.storage, (partition,))
    control = view.control
    if control is None or not control.size_fits:
        raise RefusedError(f"{view.control_path}: no usable control file", advice="run verify, then recover")
    check_partitions(control, (partition,))
    draft.refuse_unsettled()
    draft.partitions.add(partition)
    _Planner(draft, view.control_path, control, partition, setting, allow_data_loss).plan()
    return draft.finish()


class _Planner:
    """Adds the steps and edits for one partition to a draft."""

    def __init__(
        self,
        draft: PlanDraft,
        path: PurePath,
        control: ControlFile,
        number: int,
        setting: PartitionSetting,
        allow_data_loss: bool,
    ) -> None:
        self._draft = draft
        self._path = path
        self._control = control
        self._number = number
        self._setting = setting
        self._allowed = allow_data_loss
        self._info = control.partitions[number]
        self._current = _in_force(draft, path, self._info)
        self._changes: dict[str, int] = {}
        self._struct_steps: list[tuple[str, str, bool]] = []
        """Steps of the struct: action, reason, whether it loses data."""

    @property
    def _directory(self) -> Path:
        return self._draft.storage / str(self._number)

    @property
    def _put_aside_directory(self) -> Path:
        return put_aside_path(self._draft.storage, self._number)

    @property
    def _released(self) -> bool:
        return self._control.layout.has_flags

    def plan(self) -> None:
        self._fence()
        self._session()
        self._marks()
        self._availability()
        if self._setting.assigned is not None:
            (self._assign if self._setting.assigned else self._unassign)()
        self._write_struct()

    def _where(self) -> str:
        return f"{self._draft.storage}: partition {self._number}"

    # --- session and marks ---------------------------------------------------------------------------------------------

    def _session(self) -> None:
        session, now = self._setting.session_id, self._current.session_id
        if session is None or session == now:
            return
        older = session < now
        if older and not self._allowed:
            raise ConcurrentUpdateError(
                f"{self._where()}: session {session} is older than session {now}, which is in force; a server that was"
                " replaced would be let in again",
                advice="add --allow-data-loss to go back all the same",
            )
        self._changes["session_id"] = session
        why = f"session {now} becomes {session}"
        self._struct_steps.append(("set-session", why + (": older servers are let in again" if older else ""), older))

    def _fence(self) -> None:
        session = self._setting.session_id
        if session is None:
            return
        path = fence_path(self._draft.storage)
        self._draft.reads(path)
        fence = _read_fence(self._draft.storage, self._control, self._number)
        if session >= fence:
            return
        if not self._allowed:
            raise ConcurrentUpdateError(
                f"{path}: partition {self._number}: a node here has let session {fence} in, and keeps session {session} out",
                advice=f"set session {fence} or a later one, or add --allow-data-loss to lower the fence as well",
            )
        data = bytes(FENCE_PAIR.size)
        if session >= 0:
            data = encode_slot(self._number, session) + bytes(FENCE_PAIR.size - FENCE_SLOT.size)
        offset = pair_offset(self._number)
        self._draft.step(
            "lower-session-fence", path, self._number,
            f"the fence falls from session {fence} to {session}: older servers are let in again",
            offset=offset, length=len(data), loses_data=True,
        )  # fmt: skip
        self._draft.edits.append(Overwrite(path, offset, data))

    def _marks(self) -> None:
        for field in ("low_water_mark", "local_low_water_mark"):
            value, now = getattr(self._setting, field), getattr(self._current, field)
            if value is None or value == now:
                continue
            name = MARK_NAMES[field]
            why, loses = f"the {name} {now} becomes {value}", value < now
            if loses:
                why += ": what it promised is given up"
                if not self._allowed:
                    raise MarkWouldFallError(
                        f"{self._where()}: the {name} would fall from {now} to {value}: it says what is acknowledged",
                        advice="add --allow-data-loss to lower it all the same",
                    )
            elif field == "local_low_water_mark" and value > (last := self._last_transaction()):
                why, loses = f"{why}, and the last transaction here is {last}: the others count as lost", True
                if not self._allowed:
                    raise BelowLowWaterMarkError(
                        f"{self._where()}: the {name} would be {value}, and the last transaction here is {last}: the partition"
                        " would promise what it does not have",
                        advice=f"set {last} or less, or add --allow-data-loss to let it count as lost",
                    )
            self._changes[field] = value
            self._struct_steps.append((f"set-{name.replace(' ', '-')}", why, loses))

    def _last_transaction(self) -> int:
        """The last transaction of the partition, put aside or not; -1 when there is none."""
        directory = next((path for path in (self._directory, self._put_aside_directory) if path.is_dir()), None)
        if directory is None:
            return -1
        segments = view_partition(directory, self._number).data_segments
        for segment in reversed(segments):
            assert segment.data is not None
            job = SegmentJob(
                directory, segment.first_transaction_id, partition=self._number, storage=self._draft.storage,
                bytes=segment.data.size,
            )  # fmt: skip
            report = check_segment(job, ENDS_ONLY, ReadLimits(exclusive=True))
            if report.last_id is not None:
                return report.last_id
        return segments[0].first_transaction_id - 1 if segments else -1

    # --- availability ------------------------------------------------------------------------------------------------

    def _availability(self) -> None:
        wanted = self._setting.available
        if wanted is None:
            return
        storage = self._draft.storage
        self._draft.reads(availability_path(storage))
        marks = load_marks(storage)
        after = Availability(wanted, wanted)
        if combine(self._control, marks, self._number) == after:
            return
        said = "may be read and written" if wanted else "may be neither read nor written"
        if self._released and self._current.available != wanted:
            self._flag(FLAG_AVAILABLE, wanted, "switch-on" if wanted else "switch-off", f"the partition {said}")
        # the availability file: in the documented layout it counts alone, in the released one it details a cleared flag
        if self._released and (wanted or marks.get(self._number, Availability()) in (Availability(), after)):
            return
        self._write_marks({**marks, self._number: after}, f"partition {self._number} {said}")

    def _write_marks(self, marks: dict[int, Availability], why: str) -> None:
        path, data = availability_path(self._draft.storage), encode_marks(marks)
        self._draft.step("write-availability", path, self._number, why, offset=0, length=len(data))
        self._draft.edits.append(Replace(path, lambda: [data], len(data)))

    def _flag(self, flag: int, value: bool, action: str, why: str) -> None:
        flags = self._changes.get("flags", self._current.flags)
        assert flags is not None  # the released layout has them
        self._changes["flags"] = flags | flag if value else flags & ~flag
        self._struct_steps.append((action, why, False))

    # --- assignment --------------------------------------------------------------------------------------------------

    def _assign(self) -> None:
        if self._released and not self._current.assigned:
            self._flag(FLAG_ASSIGNED, True, "assign", "the partition belongs to this node")
        if self._directory.is_dir():
            return
        deleting = retired_place(self._draft.storage, DELETING, self._number)
        if is_named(deleting):  # whoever finishes it drops fence, accepted losses and availability of the new partition
            raise RefusedError(
                f"{deleting}: the deletion of partition {self._number} is not finished",
                advice="start the node once, which finishes it, or tells which file the disk does not let go; then assign it",
            )
        if is_named(self._put_aside_directory):  # in either layout: it may date from before a conversion
            check_moved_offline(self._draft.storage, self._number)
            self._move(
                self._put_aside_directory,
                self._directory,
                "assign",
                "the partition belongs to this node: its files come back",
            )
            return
        mark = self._changes.get("local_low_water_mark", self._current.local_low_water_mark)
        if mark != -1:
            raise RefusedError(
                f"{self._directory}: the directory of partition {self._number} is missing, and its local low-water mark {mark}"
                " says that transactions were here",
                advice="bring the directory back first; to begin anew without them add --local-low-water-mark -1"
                " --allow-data-loss",
            )
        self._create_segment()

    def _create_segment(self) -> None:
        """Create the partition's directory with an empty segment and its index."""
        self._draft.sees(self._number, None)
        created, key = self._control.header.created, self._control.header.cluster_key
        header = SegmentHeader(FORMAT_VERSION, created, key, self._number, 0).encode()
        for name, action in ((segment_name(0), "create-segment"), (index_name(0), "create-index")):
            path = self._directory / name
            self._draft.step(
                action,
                path,
                self._number,
                "an assigned partition has at least one segment",
                offset=0,
                length=HEADER_SIZE,
            )
            self._draft.edits += Content(str(path), (LiteralBytes(header),)).edits(path, None)

    def _unassign(self) -> None:
        if self._released:
            if self._current.assigned:
                why = "the partition no longer belongs to this node; its files stay where they are"
                self._flag(FLAG_ASSIGNED, False, "unassign", why)
            return
        if self._directory.is_dir():
            if is_named(self._put_aside_directory):
                raise RefusedError(
                    f"{self._put_aside_directory}: files of partition {self._number} were put aside here before",
                    advice="move one of the two away by hand",
                )
            why = f"the partition no longer belongs to this node; its files are put aside in {disk.STATE_DIRECTORY}"
            self._move(self._directory, self._put_aside_directory, "unassign", why)
        elif not is_retired(self._draft.storage, self._number) and self._current.marks != NEVER:
            raise RefusedError(
                f"{self._directory}: the directory of partition {self._number} is lost (session {self._current.session_id},"
                f" local low-water mark {self._current.local_low_water_mark}), so that there is nothing to put aside",
                advice="bring it back first; run verify",
            )

    def _move(self, source: Path, target: Path, action: str, why: str) -> None:
        self._draft.step(action, source, self._number, why)
        self._draft.edits.append(MoveDirectory(source, target))

    # --- the pair ----------------------------------------------------------------------------------------------------

    def _write_struct(self) -> None:
        """Add one step per changed field, and one edit for all: the struct that is not in force, or both structs."""
        if not self._changes:
            return
        number, written = self._info.updated(**self._changes)
        layout = self._control.layout
        offset, data = layout.struct_offset(self._number, number), written.encode()
        if not _same_values(self._info.with_struct(number, written).current_struct, written):
            offset, data = layout.struct_offset(self._number, 1), data * 2
        for action, why, loses in self._struct_steps:
            self._draft.step(action, self._path, self._number, why, offset=offset, length=len(data), loses_data=loses)
        self._draft.edits.append(Overwrite(self._path, offset, data))


def _in_force(draft: PlanDraft, path: PurePath, info: PartitionInfo) -> PartitionStruct:
    current = info.current_struct
    if current is None or info.stored_partition != info.partition:
        raise RefusedError(
            f"{path}: partition {info.partition}: its info is damaged, so that nothing tells what holds now",
            advice=f"run waltzctl recover {shell_quote(str(draft.storage))} --partition {info.partition} first",
        )
    return current


def _same_values(chosen: PartitionStruct | None, written: PartitionStruct) -> bool:
    """Whether the struct in force after the write has the values that were written."""
    return chosen is not None and (chosen.marks, chosen.flags) == (written.marks, written.flags)


def _read_fence(storage: PurePath, control: ControlFile, partition: int) -> int:
    """The highest session that a node here has accepted; NO_SESSION, which is below all sessions, when there is no fence file.

    Raises RefusedError, DiskReadError.
    """
    try:
        return stored_session(storage, len(control.partitions), partition)
    except DamageError as error:
        raise RefusedError(error.message, advice=error.advice) from error
