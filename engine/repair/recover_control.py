"""Mending the control file from its own redundancy; what that does not prove is left to the operator.

=============================  ==========================================================================================
damage                         repair
=============================  ==========================================================================================
one struct of a pair invalid   copy of the valid one; in the released layout with the preceding sequence number, so that the
                               valid one stays in force
wrong stored partition id      rewritten as the info's place says, if the pair is valid
wrong number of partitions     follows from the file's length, if every info is sound and nothing shows that the file was
                               longer (a file cut after an info is sound too, and would lose its other partitions)
bytes behind the stated infos  cut off, if those are sound, and neither a directory nor a stored id says that what stands
                               behind them is the info of another partition
zeros after the infos          cut off: release 0.13.2 extends files of the documented layout when it fails to open them
=============================  ==========================================================================================

A file marked as having a commit journal (`engine.storage.journal_state`) is mended only as far as needed to open the directory,
and stays marked: the journal has to be written back before anything else is judged.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from waltzctl.engine.durable.edits import Cut, Overwrite
from waltzctl.engine.durable.file_status import special_kind
from waltzctl.engine.findings import Code, make_finding
from waltzctl.engine.findings.control_files import (
    control_missing,
    control_short,
    control_size,
    control_version,
    pair_findings,
)
from waltzctl.engine.log import places
from waltzctl.engine.log.partition_directories import partition_places
from waltzctl.engine.log.view import FileState, StorageView
from waltzctl.engine.repair.plan import PlanDraft
from waltzctl.engine.storage.journal_state import state_path
from waltzctl.formats.control import (
    CONTROL_HEADER,
    CONTROL_VERSION,
    FLAG_ASSIGNED,
    FLAG_AVAILABLE,
    MAX_PARTITIONS,
    Choice,
    ControlFile,
    PartitionInfo,
    PartitionStruct,
    decode_control,
    initial_info,
)


def plan_control(
    draft: PlanDraft, view: StorageView, partitions: Collection[int] | None, *, allow_data_loss: bool
) -> ControlFile | None:
    """Plan the repair of the control file; return it as repaired, or None when no partition can be planned for."""
    path, control = view.control_path, view.control
    if view.control_state is None and (kind := special_kind(path)) is not None:
        said = f"it is {kind}, not a regular file"
        draft.leave(make_finding(Code.SPECIAL_FILE, path, said, storage_directory=draft.storage))
        return None
    if view.control_state is None:
        draft.leave(control_missing(path, draft.storage), "sessions, marks and assignment are unknown")
        return None
    if control is None:
        draft.leave(control_short(path, view.control_state.size, draft.storage))
        return None
    mender = _Mender(draft, view, control, allow_data_loss=allow_data_loss)
    if control.extended:
        mender.cut_extension()
    if not control.size_fits and not mender.mend_size():
        return None
    if control.header.version != CONTROL_VERSION:
        mender.mend_version()
    if mender.control.header.journaled:
        draft.of_marked = True
        mender.finish()
        return None
    for info in mender.control.partitions:
        if partitions is None or info.partition in partitions:
            mender.mend_info(info)
    mender.finish()
    return mender.control


def opens(control: ControlFile) -> bool:
    """Whether a node opens a directory with this control file, apart from damage of single partitions."""
    return control.size_fits and control.header.version == CONTROL_VERSION


class _Mender:
    """Mends a copy of the control file in memory and collects the edits."""

    def __init__(self, draft: PlanDraft, view: StorageView, control: ControlFile, *, allow_data_loss: bool) -> None:
        from waltzctl.engine.durable import disk

        self.draft = draft
        self.view = view
        self.path = view.control_path
        self.allow = allow_data_loss
        self.data = bytearray(disk.read_range(self.path, 0, control.size))
        self.control = decode_control(self.data)
        self.writes: list[Overwrite] = []
        self.cut: int | None = None

    def _write(self, offset: int, data: bytes) -> None:
        self.data[offset : offset + len(data)] = data
        self.writes.append(Overwrite(self.path, offset, data))
        self.control = decode_control(self.data)

    def finish(self) -> None:
        """Add the collected edits to the draft."""
        if self.cut is not None:
            self.draft.edits.append(Cut(self.path, self.cut))
        self.draft.edits += self.writes

    def mend_size(self) -> bool:
        """Make the header's number of partitions and the file's length agree; False when the infos do not tell which is right."""
        control, stated = self.control, self.control.header.num_partitions
        layout, held = control.layout, len(self.control.partitions)
        offset, size = CONTROL_HEADER.offset_of("num_partitions"), CONTROL_HEADER.size_of("num_partitions")
        longer = self._was_longer(stated, held)
        if layout.file_size(held) == control.size and held and not longer and all(map(_sound, control.partitions)):
            # a marked header stores the number inverted; the journal's state file says as well that it was marked
            marked = control.header.journaled or FileState.of(state_path(self.draft.storage)) is not None
            turned = ", turned round as before: a commit journal is in force" if marked else ""
            self.draft.step(
                "write-num-partitions", self.path, None,
                f"the header says {stated} partitions, the file holds the sound infos of exactly {held}{turned}",
                offset=offset, length=size,
            )  # fmt: skip
            self._write(offset, (~held if marked else held).to_bytes(size, "big", signed=True))
            return True
        if 0 < stated <= held and len(control.infos) == stated and all(map(_sound, control.infos)):
            longer = longer or self._has_more(stated)
            if longer is None:
                self._cut(stated, f"bytes behind the infos of {stated} partitions, which are sound")
                return True
        said = f"the infos do not tell what is right{f'; {longer}' if longer else ''}"
        self.draft.leave(control_size(self.path, control, self.draft.storage), said)
        return False

    def _was_longer(self, stated: int, held: int) -> str | None:
        """Why the file may have had more than `held` infos, in words; None when only the header's number can be wrong."""
        beyond = [number for number in partition_places(self.path.parent) if number >= held]
        if beyond:
            return f"there is a directory of partition {beyond[-1]}: infos are missing at the file's end"
        if held < stated <= MAX_PARTITIONS and (stated ^ held).bit_count() > 1:
            return "more than one bit of the header would have to be wrong: infos may be missing at the file's end"
        return None

    def _has_more(self, stated: int) -> str | None:
        """Why what stands behind the first `stated` infos may be the info of a partition whose pair is lost, in words."""
        infos = self.control.partitions
        beyond = [one.partition for one in infos[stated:] if one.stored_partition == one.partition]
        beyond += [number for number in partition_places(self.path.parent) if stated <= number <= len(infos)]
        if beyond:
            return f"partition {min(beyond)} has an info or a directory, and its pair may be lost"
        return None

    def cut_extension(self) -> None:
        """Cut off the zeros that release 0.13.2 wrote after the infos of the documented layout."""
        self._cut(
            len(self.control.partitions),
            "zeros that release 0.13.2 put behind the infos of the documented layout when it failed to open the directory",
        )

    def _cut(self, partitions: int, reason: str) -> None:
        """Cut the file after the infos of the first `partitions` partitions."""
        self.cut = self.control.layout.file_size(partitions)
        self.draft.step(
            "cut-control-file", self.path, None, reason, offset=self.cut, length=self.control.size - self.cut
        )
        del self.data[self.cut :]
        self.control = decode_control(self.data)

    def mend_version(self) -> None:
        """Restore the version if any struct of the file is valid."""
        offset, size = CONTROL_HEADER.offset_of("version"), CONTROL_HEADER.size_of("version")
        version = self.control.header.version
        if any(struct.valid for info in self.control.partitions for struct in info.structs):
            reason = f"the version is {version}, but everything else is as in version {CONTROL_VERSION}"
            self.draft.step("write-version", self.path, None, reason, offset=offset, length=size)
            self._write(offset, CONTROL_VERSION.to_bytes(size, "big"))
        else:
            said = f"nothing in the file reads as version {CONTROL_VERSION}"
            self.draft.leave(control_version(self.path, self.control, self.draft.storage), said)

    def mend_info(self, info: PartitionInfo) -> None:
        """Mend one partition's info."""
        partition, layout = info.partition, self.control.layout
        if info.choice is Choice.NONE_VALID:
            self._pair_lost(info)
            return
        if info.choice is Choice.TIE:
            self._tie(info)
        elif info.current is not None and not info.structs[2 - info.current].valid:
            self._copy_struct(
                info, info.current, "write-control-struct", f"struct {3 - info.current} has a wrong checksum"
            )
        if info.stored_partition != partition:
            size = layout.info_schema.size_of("partition")
            reason = f"the id {info.stored_partition} is stored; the pair beside it is valid, its place is that of {partition}"
            self.draft.step(
                "write-partition-id", self.path, partition, reason, offset=layout.info_offset(partition), length=size
            )
            self._write(layout.info_offset(partition), partition.to_bytes(size, "big"))

    def _copy_struct(self, info: PartitionInfo, keep: int, action: str, why: str, *, loses_data: bool = False) -> None:
        layout, kept = self.control.layout, info.structs[keep - 1]
        older = kept.preceding()
        offset = layout.struct_offset(info.partition, 3 - keep)
        reason = f"{why}; it becomes a copy of struct {keep}, which is in force: session {kept.session_id}"
        self.draft.step(
            action, self.path, info.partition, reason, offset=offset, length=layout.struct_schema.size,
            loses_data=loses_data,
        )  # fmt: skip
        self._write(offset, older.encode())

    def _tie(self, info: PartitionInfo) -> None:
        if not self.allow:
            self._undecided(info)
            return
        first, second = info.structs
        keep = 1 if _marks(first) >= _marks(second) else 2
        self._copy_struct(
            info, keep, "decide-control-tie", f"nothing tells which struct is newer; {keep} has the higher marks",
            loses_data=True,
        )  # fmt: skip

    def _pair_lost(self, info: PartitionInfo) -> None:
        partition, layout = info.partition, self.control.layout
        found = self.view.partitions.get(partition)
        # it would no longer be assigned, whatever lies in it; a link may lead to a disk that is not mounted
        if found is None and places.still_named(self.view.path / str(partition)):
            said = "session and marks are lost, and what stands in its directory's place cannot be listed; move that away by hand"
            self._undecided(info, said, waits_for=Code.SPECIAL_FILE)
            return
        if not self.allow:
            self._undecided(info, "session and marks are lost")
            return
        written = initial_info(layout, partition)
        if layout.has_flags and found is not None and (found.segments or found.special or found.strays):
            flags = FLAG_AVAILABLE | FLAG_ASSIGNED
            pair = tuple(replace(one, flags=flags).sealed() for one in written.structs)
            written = replace(written, structs=(pair[0], pair[1]))
        self.draft.step(
            "reset-control-pair", self.path, partition,
            "neither struct is valid: session and marks begin anew at -1; the records stay",
            offset=layout.info_offset(partition), length=layout.info_schema.size, loses_data=True,
        )  # fmt: skip
        self._write(layout.info_offset(partition), written.encode())

    def _undecided(self, info: PartitionInfo, why: str | None = None, *, waits_for: Code | None = None) -> None:
        for finding in pair_findings(self.path, self.control.layout, info, self.draft.storage):
            self.draft.leave(replace(finding, waits_for=waits_for), why)


def _sound(info: PartitionInfo) -> bool:
    return info.stored_partition == info.partition and any(struct.valid for struct in info.structs)


def _marks(struct: PartitionStruct) -> tuple[int, int, int]:
    return struct.local_low_water_mark, struct.low_water_mark, struct.session_id
