"""``verify --manifest``: write the manifest of a sound directory, or compare a directory with its manifest.

A manifest lists every regular file outside ``.waltzctl``, and the files of retired partitions inside of it.  Segments are hashed
while they are checked; the other files (indexes, control file, ...) are read once more for it.

A node may have gone on writing to the directory since, as a Waltz log only grows at its end.  Differences from the manifest are
growth (a note), or else damage:

==============================================  =============================================================
a file                                          growth
==============================================  =============================================================
data and index file of a partition's last       is longer, and begins with the bytes in the manifest
segment
data and index file of a later segment          is not in the manifest
the control file                                has higher sessions and marks, or its journal flag changed
==============================================  =============================================================
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.file_status import is_named
from waltzctl.engine.durable.relocation import retired_directories
from waltzctl.engine.errors import DiskReadError, InvalidRequestError, RefusedError
from waltzctl.engine.findings import Code, Finding, Severity, make_finding
from waltzctl.engine.inspect.digests import Digest, digest_file
from waltzctl.engine.inspect.directory_manifest import (
    DamagedManifestError,
    Manifest,
    ManifestFile,
    ManifestPartition,
    NoManifestError,
    decode_manifest,
)
from waltzctl.engine.inspect.read_limits import ReadLimits
from waltzctl.engine.inspect.resume import refuse_inside
from waltzctl.engine.inspect.segment_job import SegmentJob, SegmentReport
from waltzctl.engine.inspect.signing import SigningKey, load_key
from waltzctl.engine.inspect.targets import Scope
from waltzctl.engine.inspect.verification import ManifestRequest
from waltzctl.engine.log import places
from waltzctl.engine.log.partition_directories import partition_number
from waltzctl.engine.log.view import FileState, read_control
from waltzctl.engine.storage.assignment import names_put_aside, out_of_reach
from waltzctl.formats.adapters import format_time
from waltzctl.formats.control import CONTROL_FILE_NAME, ControlFile
from waltzctl.formats.segment import parse_name

_LIMIT = 1 << 30
_Segment = tuple[int, int]
"""Partition, first transaction id in the name."""


def listing(storage: PurePath) -> dict[str, FileState]:
    """The files that a manifest names, by name relative to the storage directory.  Raises DiskReadError."""
    found: dict[str, FileState] = {}
    aside = retired_directories(storage)[0]
    _collect(storage, "", found)
    if places.is_directory(aside):
        _collect(aside, aside.relative_to(storage).as_posix() + "/", found)
    return dict(sorted(found.items()))


def _collect(directory: PurePath, prefix: str, found: dict[str, FileState]) -> None:
    try:
        names = places.examined(directory)
    except OSError:  # it was removed meanwhile
        return
    for name, numbers in names.items():
        path = directory / name
        if numbers is not None:
            if not name.endswith(disk.TEMPORARY_SUFFIX):
                found[prefix + name] = FileState(path, *numbers)
        elif _descends_into(path, prefix):
            _collect(path, f"{prefix}{name}/", found)


def _descends_into(path: PurePath, prefix: str) -> bool:
    """Whether the files in a directory are listed; `.waltzctl` is not, except for retired partitions (see `listing`)."""
    if not prefix:  # a partition directory may be a link to another disk
        return path.name != disk.STATE_DIRECTORY and places.is_directory(path)
    followed = names_put_aside(prefix + path.name)  # other links below could form a cycle
    return places.is_directory(path) and (followed or not places.access(path).link(path))


def _segment_of(name: str) -> _Segment | None:
    """Partition and first id of a data or index file's name; None for any other file."""
    directory, _, file = name.partition("/")
    number, parsed = partition_number(directory), parse_name(file)
    return None if number is None or parsed is None else (number, parsed[0])


@dataclass(frozen=True, slots=True)
class _Control:
    """The control file, and the session and marks in force of each partition (see `PartitionStruct.marks`)."""

    control: ControlFile
    partitions: dict[int, tuple[int, int, int]]

    @classmethod
    def read(cls, path: PurePath) -> _Control | None:
        control = read_control(path)
        if control is None:
            return None
        current = ((info.partition, info.current_struct) for info in control.partitions)
        return cls(control, {number: one.marks for number, one in current if one is not None})


class Vouching:
    """The manifest of one verification: compared with if the file exists, else written.

    Order of calls: `hash_to` and `remember` for each segment that is checked, then `findings`, then `write`.

    `writing`: the file does not exist.  `outcome`: as `VerifySummary.manifest`.
    """

    def __init__(self, request: ManifestRequest, scopes: list[Scope]) -> None:
        """Raises InvalidRequestError, DiskReadError; RefusedError if a manifest is to be written of a directory in use."""
        whole = [scope.storage for scope in scopes if scope.whole and scope.storage is not None]
        if len(scopes) != 1 or not whole:
            raise InvalidRequestError(
                "a manifest is that of one whole storage directory", advice="name one, and nothing else"
            )
        (self._storage,) = whole
        self._request = request
        self._reports: dict[str, SegmentReport] = {}
        refuse_inside(request.path, [self._storage])
        self._key: SigningKey | None = None if request.key is None else load_key(request.key)
        self._manifest: Manifest | None = None
        self._unusable: Finding | None = None
        self.writing = not is_named(request.path)  # one that cannot be examined is not written over
        self.outcome = "not-written" if self.writing else "not-compared"
        if self.writing:
            self._check_writable()
        else:
            self._load()
        self._before = listing(self._storage)
        self._expected: dict[str, ManifestFile] = (
            {} if self._manifest is None else {one.name: one for one in self._manifest.files}
        )

    def _check_writable(self) -> None:
        path = self._request.path
        if self._key is not None and self._key.private is None:
            raise InvalidRequestError(
                f"{path}: there is no such manifest, and {self._key.path} holds a public key, which cannot sign one",
                advice="name the manifest to check, or the private key to write one",
            )
        if not places.is_directory(path.parent) or not os.access(path.parent, os.W_OK):
            raise InvalidRequestError(f"{path.parent}: no directory that can be written to")
        if places.lock_holder(self._storage, self._storage / CONTROL_FILE_NAME) is not None:
            raise RefusedError(
                f"{self._storage}: a process holds it, and a manifest is that of a directory at rest",
                advice="stop the node, or make the manifest of a snapshot; checking against one works at any time",
            )
        if left_out := out_of_reach(self._storage):
            # without anything in its place a partition of the documented layout that has marks is assigned, and lost
            directory = names_put_aside(left_out[0].relative_to(self._storage).as_posix())
            instead = "put an empty directory in the link's place" if directory else "remove the link"
            raise RefusedError(
                f"{left_out[0]}: a link that leads nowhere, so that the manifest would leave out what is put aside there",
                advice=f"mount what it leads to; or {instead}, if what it led to is meant to be gone",
            )

    def _load(self) -> None:
        path = self._request.path
        state = FileState.of(path)
        if state is None:
            raise InvalidRequestError(f"{path}: not a file that can be read", advice="name another one")
        try:
            self._manifest = decode_manifest(disk.read_range(path, 0, min(state.size, _LIMIT)))
        except NoManifestError as error:
            raise InvalidRequestError(
                f"{path}: not a manifest: {error}", advice="name another file; none is ever overwritten"
            ) from error
        except DamagedManifestError as error:
            self._reject(Code.MANIFEST_SIGNATURE, f"the manifest is damaged: {error}; nothing was compared with it")
            return
        if self._key is None:
            return
        objection = self._key.objection(self._manifest)
        if objection is not None:
            self._reject(
                Code.MANIFEST_SIGNATURE,
                f"the manifest is not what the owner of {self._key.path} signed: {objection}; nothing was compared with it",
            )
            self._manifest = None

    def _reject(self, code: Code, message: str) -> None:
        self._unusable = make_finding(code, self._request.path, message)

    def other_bytes(self) -> int:
        """Bytes of the files that are not data files, which are read for their hashes only."""
        return sum(one.size for name, one in self._before.items() if not name.endswith(".seg"))

    def hash_to(self, job: SegmentJob) -> int | None:
        """Number of bytes of a segment's data file to hash during its check; None for no hash."""
        if self.writing:
            return job.bytes
        expected = self._expected.get(self._name(job.data_path))
        return None if expected is None or expected.size > job.bytes else expected.size

    def remember(self, report: SegmentReport) -> None:
        """Keep the report, and the digest in it, of a segment that was checked."""
        self._reports[self._name(report.job.data_path)] = report

    def _name(self, path: PurePath) -> str:
        return path.relative_to(self._storage).as_posix()

    def _digest(self, name: str, size: int, limits: ReadLimits) -> Digest | None:
        """The digest of a file's first `size` bytes, read now unless its check hashed them.  Raises DiskReadError, CutShort."""
        report = self._reports.get(name)
        if report is not None and report.digest is not None and report.digest.size == size:
            return report.digest
        return digest_file(self._storage / name, size, limits)

    # --- comparing ---------------------------------------------------------------------------------------------------

    def findings(self, limits: ReadLimits) -> Iterator[Finding]:
        """The differences from the manifest; none if the manifest is to be written.  Raises CutShort."""
        if self._unusable is not None:
            self.outcome = "not-believed"
            yield self._unusable
            return
        if self._manifest is None:
            return
        manifest = self._manifest
        if manifest.signature is not None and self._key is None:
            yield make_finding(
                Code.MANIFEST_SIGNATURE,
                self._request.path,
                f"the manifest is signed by the key {manifest.signature.public_key}, and nothing was named to check that",
                severity=Severity.NOTE,
            )
        now = listing(self._storage)
        ends = self._ends()
        grown: dict[int, str] = {}
        differs = False
        for one in manifest.files:
            for finding in self._compare(one, now.get(one.name), ends, grown, limits):
                differs = differs or finding.severity is Severity.DAMAGE
                yield finding
        for name, state in now.items():
            if name in self._expected:
                continue
            segment = _segment_of(name)
            if segment is not None and self._came_later(segment, ends):
                grown.setdefault(segment[0], name)
                continue
            differs = True
            yield self._finding(Code.MANIFEST_EXTRA_FILE, state.path, "the manifest does not name this file", name)
        known = {one.partition: one for one in manifest.partitions}
        for number in sorted(grown):
            yield self._growth(number, ends, known.get(number))
        self.outcome = "differs" if differs else "matches"

    def _ends(self) -> dict[int, int]:
        """The first id of the last segment of each partition, in the manifest."""
        ends: dict[int, int] = {}
        for name in self._expected:
            segment = _segment_of(name)
            if segment is not None:
                ends[segment[0]] = max(segment[1], ends.get(segment[0], -1))
        return ends

    def _came_later(self, segment: _Segment, ends: dict[int, int]) -> bool:
        assert self._manifest is not None
        return segment[0] < self._manifest.header.num_partitions and segment[1] > ends.get(segment[0], -1)

    def _compare(
        self,
        wanted: ManifestFile,
        state: FileState | None,
        ends: dict[int, int],
        grown: dict[int, str],
        limits: ReadLimits,
    ) -> Iterator[Finding]:
        path = self._storage / wanted.name
        if state is None:
            said = f"the manifest names this file, of {wanted.size} bytes, and it is not here"
            yield self._finding(Code.MANIFEST_MISSING_FILE, path, said, wanted.name)
            return
        segment = _segment_of(wanted.name)
        last = segment is not None and ends[segment[0]] == segment[1]
        if state.size < wanted.size or (state.size > wanted.size and not last):
            said = f"the file has {state.size} bytes, the manifest says {wanted.size}"
            yield self._finding(Code.MANIFEST_DIFFERS, path, said, wanted.name)
            return
        try:
            found = self._digest(wanted.name, wanted.size, limits)
        except DiskReadError as error:
            yield self._finding(Code.READ_ERROR, path, str(error), wanted.name)
            return
        if found is not None and found.sha256 == wanted.sha256:
            if state.size > wanted.size:
                assert segment is not None  # nothing else may be longer
                grown.setdefault(segment[0], wanted.name)
            return
        if wanted.name == CONTROL_FILE_NAME and (risen := self._marks_risen(path)) is not None:
            yield self._finding(Code.MANIFEST_GROWN, path, risen, wanted.name)
            return
        what = "the file" if state.size == wanted.size else f"what the first {wanted.size} bytes hold"
        said = f"{what} is not what the manifest says: SHA-256 {'none' if found is None else found.sha256}, {wanted.sha256} there"
        yield self._finding(Code.MANIFEST_DIFFERS, path, said, wanted.name)

    def _marks_risen(self, path: PurePath) -> str | None:
        """The message about a control file that differs only by growth (see the module); None if it differs otherwise."""
        assert self._manifest is not None
        try:
            now = _Control.read(path)
        except DiskReadError:
            return None
        if (
            now is None
            or replace(now.control.header, journaled=False) != replace(self._manifest.header, journaled=False)
            or now.control.layout is not self._manifest.layout
        ):
            return None
        changed = []
        for one in self._manifest.partitions:
            marks, before = now.partitions.get(one.partition), one.marks
            if before is not None and (marks is None or any(a < b for a, b in zip(marks, before, strict=True))):
                return None
            if marks != before:
                changed.append(str(one.partition))
        which = "flags have changed"
        if changed:
            which = f"session and marks of partition {', '.join(changed)} have risen"
        elif now.control.header.journaled is not self._manifest.header.journaled:
            began = now.control.header.journaled
            which = "a commit journal came into force" if began else "the commit journal was written back"
        return f"the control file went on since the manifest was made: {which}"

    def _growth(self, number: int, ends: dict[int, int], known: ManifestPartition | None) -> Finding:
        last = None if known is None else known.last_transaction_id
        behind = "its records" if last is None else f"records behind transaction {last}"
        came = "went on being written" if number in ends else "came"
        return make_finding(
            Code.MANIFEST_GROWN,
            self._storage / str(number),
            f"partition {number} {came} since the manifest was made, which does not vouch for {behind}",
            storage_directory=self._storage,
            partition=number,
            transaction_id=None if last is None else last + 1,
        )

    def _finding(self, code: Code, path: PurePath, message: str, name: str) -> Finding:
        segment = _segment_of(name)
        return make_finding(
            code,
            path,
            message,
            storage_directory=self._storage,
            partition=None if segment is None else segment[0],
            segment=None if segment is None else segment[1],
        )

    # --- writing -----------------------------------------------------------------------------------------------------

    def write(self, limits: ReadLimits) -> None:
        """Write the manifest to a temporary file and rename it.  The caller has verified that the directory is sound.

        Raises RefusedError when the directory changed meanwhile, or the file was created by another process; DiskReadError,
        DiskWriteError, CutShort.
        """
        manifest = self._make(limits)
        if listing(self._storage) != self._before:
            raise self._changed()
        if is_named(self._request.path):
            raise RefusedError(
                f"{self._request.path}: somebody made it meanwhile; it was left as it is", advice="name another file"
            )
        disk.write_whole(self._request.path, manifest.encode())
        self.outcome = "written"

    def _changed(self) -> RefusedError:
        return RefusedError(
            f"{self._storage}: changed while it was read, so no manifest was written",
            advice="see that nobody writes there, and start again",
        )

    def _make(self, limits: ReadLimits) -> Manifest:
        control = _Control.read(self._storage / CONTROL_FILE_NAME)
        if control is None:  # a directory without one is not sound: it is gone since
            raise self._changed()
        files = []
        for name, state in self._before.items():
            found = self._digest(name, state.size, limits)
            # "": the file became shorter, for which `write` refuses the manifest
            files.append(ManifestFile(name, state.size, "" if found is None else found.sha256))
        reports: dict[int | None, list[SegmentReport]] = {}
        for report in self._reports.values():
            reports.setdefault(report.job.partition, []).append(report)
        numbers = range(len(control.control.partitions))
        partitions = [self._partition(number, control, reports.get(number, [])) for number in numbers]
        manifest = Manifest(
            format_time(disk.now_ms()) or "",
            self._request.tool,
            control.control.header,
            control.control.layout,
            tuple(partitions),
            tuple(files),
        )
        return manifest if self._key is None else self._key.sign(manifest)

    @staticmethod
    def _partition(number: int, control: _Control, reports: Sequence[SegmentReport]) -> ManifestPartition:
        first = min((one.begins for one in reports if one.last_id is not None), default=None)
        last = max((one.last_id for one in reports if one.last_id is not None), default=None)
        marks = control.partitions.get(number, (None, None, None))
        return ManifestPartition(number, first, last, *marks)
