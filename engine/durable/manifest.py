"""The manifest of a quarantine entry: the files that a repair touches, their contents before and after, and the kept copies.

``.waltzctl/quarantine/<id>/manifest.json`` is one JSON object: ``schema``, ``type``, ``sha256`` (of everything else, as
canonical JSON: sorted keys, no spaces, ASCII) and the fields of `QuarantineEntry`.  It is always replaced as a whole, by rename.
The entry's directory also has:

=============  =====================================================================================================
``range-N``    bytes that an edit in place removes (a cut tail, an overwritten range), copied before the edit
``old-N``      a file that was replaced or removed, moved here by rename, so that it keeps its modification time
``new-N``      the new file of a replacement, until it is renamed into place; or the bytes that an overwrite writes
=============  =====================================================================================================

A manifest is untrusted input: every field is checked, and no path may lead out of the storage directory.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
import json
import os
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from waltzctl.engine.durable import disk
from waltzctl.engine.durable.file_status import names_in
from waltzctl.engine.durable.relocation import UNASSIGNED
from waltzctl.engine.errors import DamageError, RefusedError
from waltzctl.engine.findings import Code, make_finding
from waltzctl.engine.strict_json import InvalidJsonError, StrictObject, canonical

SCHEMA = "waltzctl.quarantine-entry/1"
TYPE = "quarantine-entry"
MANIFEST = "manifest.json"
_LIMIT = 256 << 20
_TIME_BOUND = 2**63 * 10**9
"""Bound of a modification time in nanoseconds: 2**63 seconds, as any user can give a file any time that the system knows."""
_ID = re.compile(r"\d{8}T\d{6}Z-[a-z][a-z-]{0,40}(-\d{1,6})?")
_KEPT = re.compile(r"(range|old|new)-\d{1,9}")
_PARTITION = re.compile(r"0|[1-9]\d{0,9}")
_HEX = re.compile(r"[0-9a-f]{64}")


Marks = tuple[int, int, int]
"""Session id, low-water mark and local low-water mark in force."""


class RepairState(enum.StrEnum):
    """State of a repair, as its manifest records it.

    ================  ===================================================  ====================================================
    state             meaning                                              after a crash, the next writer
    ================  ===================================================  ====================================================
    PREPARING         nothing outside the entry has changed                removes the entry
    PREPARED          all copies are kept, files are being changed         rolls the repair back
    ROLLING_BACK      a roll-back was begun                                completes it
    UNDOING           an undo was begun                                    completes it
    APPLIED           the repair is complete; it may be undone or pruned
    UNDONE            an undo is complete (final)
    ROLLED_BACK       a roll-back is complete (final)
    PRUNED            the repair stands, its copies were deleted (final)
    ================  ===================================================  ====================================================
    """

    PREPARING = "preparing"
    PREPARED = "prepared"
    APPLIED = "applied"
    UNDOING = "undoing"
    UNDONE = "undone"
    ROLLING_BACK = "rolling-back"
    ROLLED_BACK = "rolled-back"
    PRUNED = "pruned"

    @property
    def why_final(self) -> str:
        """Why a repair in this state cannot be taken back, as the rest of a sentence."""
        if self is RepairState.PRUNED:
            return "what this repair kept was pruned, so it cannot be taken back any more"
        return f"this repair was taken back already ({self.value})"


INTERRUPTED = (RepairState.PREPARED, RepairState.ROLLING_BACK, RepairState.UNDOING)


@dataclass(frozen=True, slots=True)
class Stamp:
    """A file's contents: size in bytes, SHA-256 in hex, modification time in ns since 1970 (None: not yet known).

    The SHA-256 covers the bytes from `start` on; the manifest contains `start` only where it is not 0.
    """

    size: int
    sha256: str
    modified_ns: int | None
    start: int = 0


@dataclass(frozen=True, slots=True)
class KeptRange:
    """One edit in place: at byte `offset`, `length` bytes were removed and `written` bytes were written.

    `kept`: name of the copy of the removed bytes.  `built`: name of the copy of the written bytes.  None for no bytes.
    """

    offset: int
    length: int
    written: int
    kept: str | None
    kept_sha256: str | None
    built: str | None
    built_sha256: str | None


@dataclass(frozen=True, slots=True)
class KeptFile:
    """One file that a repair touches; `path` is relative to the storage directory, with slashes.

    `before`, `after`: contents before and after the repair; None where the file does not exist.  `ranges`: the edits in place.
    Without them, `kept` is the name of the old file once it is moved into the entry, and `built` that of the new file until it is
    moved into place.
    """

    path: str
    before: Stamp | None
    after: Stamp | None
    ranges: tuple[KeptRange, ...] = ()
    kept: str | None = None
    built: str | None = None

    @property
    def in_place(self) -> bool:
        """Whether the file stays and only ranges of it change."""
        return bool(self.ranges)


@dataclass(frozen=True, slots=True)
class KeptMove:
    """A partition's directory that was moved from `path` to `target`, both relative to the storage directory, with slashes.

    One of the two is the partition's own directory (``N``), the other the one where it is put aside (``.waltzctl/unassigned/N``).
    """

    path: str
    target: str

    @property
    def partition(self) -> int:
        """Number of the partition."""
        return int(self.path.rpartition("/")[2])


@dataclass(frozen=True, slots=True)
class PartitionLeft:
    """State in which a repair left a partition that it touched.

    `marks`: None where no struct is in force.  `files`: name and size in bytes of every data and index file.
    """

    partition: int
    marks: Marks | None
    files: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class QuarantineEntry:
    """The record of one repair.

    ==============  ==================================================================================================
    `path`          the entry's directory
    `number`        position in the order of repairs, from 1
    `created`       RFC 3339 in UTC
    `directories`   directories that were made for new files, relative to the storage directory
    `moves`         directories of partitions that were moved
    `partitions`    the partitions that the repair touched, as it left them; None until it is applied, and in manifests
                    of earlier versions
    ==============  ==================================================================================================
    """

    id: str
    number: int
    command: str
    arguments: tuple[str, ...]
    created: str
    plan_hash: str
    state: RepairState
    path: Path
    files: tuple[KeptFile, ...] = ()
    directories: tuple[str, ...] = ()
    moves: tuple[KeptMove, ...] = ()
    partitions: tuple[PartitionLeft, ...] | None = None

    @property
    def storage(self) -> Path:
        """The storage directory."""
        return self.path.parent.parent.parent


def check_name(name: str, state_files: Collection[str]) -> str:
    """Check a path relative to the storage directory: it must stay inside, and outside ``.waltzctl``.  Raises ValueError.

    `state_files`: the files in ``.waltzctl`` that a repair of this store may change nevertheless, as relative paths.
    """
    parts = name.split("/")
    if not name or "\0" in name or "\\" in name or {"", ".", ".."} & set(parts):
        raise ValueError(f"path {name!r} does not stay inside the storage directory")
    if parts[0] == disk.STATE_DIRECTORY and name not in state_files:
        raise ValueError(f"path {name!r} lies in {disk.STATE_DIRECTORY}, which no repair touches")
    return name


def locate(storage: Path, name: str) -> Path:
    """The file of a checked name.  Raises RefusedError when a symbolic link leads out of the storage directory."""
    path = storage / name
    above = name.split("/")[:-1]
    linked = any(os.path.islink(os.path.join(storage, *above[: count + 1])) for count in range(len(above)))
    real = Path(os.path.realpath(path.parent))  # a cycle of links is no error here
    if (linked and not real.is_relative_to(os.path.realpath(storage))) or path.is_symlink():
        raise RefusedError(
            f"{path}: a symbolic link leads out of {storage}",
            advice="repair and undo work only inside the storage directory: put what the link leads to in the link's place for"
            " that, or, where there is --partition, name the others",
        )
    return path


def partitions_of(entry: QuarantineEntry) -> frozenset[int]:
    """The partitions in whose directories a repair touched files, by the files' paths."""
    first = (
        name.split("/")[0] for name in (*(file.path for file in entry.files if "/" in file.path), *entry.directories)
    )
    numbers = (int(name) for name in first if name.isascii() and name.isdigit())
    return frozenset(numbers) | {move.partition for move in entry.moves}


def quarantine_directory(storage: Path) -> Path:
    """Directory of the quarantine entries."""
    return storage / disk.STATE_DIRECTORY / disk.QUARANTINE


def entry_name_valid(name: str) -> bool:
    """Whether a directory's name is a valid id of an entry."""
    return _ID.fullmatch(name) is not None


def write_entry(entry: QuarantineEntry) -> None:
    """Replace an entry's manifest, durably.

    Raises RefusedError, before anything is written, for a manifest that `decode_entry` would reject: with it, neither this entry
    could be restored nor another repair be made.  Raises DiskWriteError.
    """
    data = encode_entry(entry)
    own = {*(file.path for file in entry.files), *entry.directories}
    try:
        decode_entry(data[:_LIMIT], entry.path, own)  # its state files were checked with the edits
    except ValueError as error:
        message = f"{entry.path / MANIFEST}: not written, as it could not be read again: {error}"
        raise RefusedError(message, advice="everything is as it was; --partition leaves a partition out") from error
    disk.write_whole(entry.path / MANIFEST, data)


def encode_entry(entry: QuarantineEntry) -> bytes:
    """The manifest's bytes."""
    body = {"schema": SCHEMA, "type": TYPE, **_entry_object(entry)}
    body["sha256"] = _digest(body)
    return json.dumps(body, indent=1, sort_keys=True).encode() + b"\n"


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(canonical(body)).hexdigest()


def _stamp_object(stamp: Stamp | None) -> dict[str, Any] | None:
    if stamp is None:
        return None
    return {name: getattr(stamp, name) for name in Stamp.__slots__ if name != "start" or stamp.start}


def _entry_object(entry: QuarantineEntry) -> dict[str, Any]:
    files = [
        {
            "path": file.path,
            "before": _stamp_object(file.before),
            "after": _stamp_object(file.after),
            "ranges": [{name: getattr(one, name) for name in KeptRange.__slots__} for one in file.ranges],
            "kept": file.kept,
            "built": file.built,
        }
        for file in entry.files
    ]
    names = ("id", "number", "command", "created", "plan_hash")
    plain = {name: getattr(entry, name) for name in names}
    lists = {"arguments": list(entry.arguments), "directories": list(entry.directories)}
    found = {**plain, **lists, "state": entry.state.value, "files": files}
    if entry.moves:
        found["moves"] = [{"path": one.path, "target": one.target} for one in entry.moves]
    if entry.partitions is not None:
        found["partitions"] = [
            {"partition": one.partition, "marks": one.marks and list(one.marks), "files": dict(one.files)}
            for one in entry.partitions
        ]
    return found


def _stamp(source: StrictObject | None) -> Stamp | None:
    if source is None:
        return None
    size, sha256 = source.number("size"), source.text("sha256", _HEX.fullmatch)
    modified_ns = source.optional_number("modified_ns", _TIME_BOUND)
    stamp = Stamp(size, sha256, modified_ns, source.number("start") if "start" in source else 0)
    source.finish()
    if stamp.start > size:
        raise InvalidJsonError("a checksum begins behind the end of its file")
    return stamp


def _range(value: Any, where: str) -> KeptRange:
    source = StrictObject(value, where)
    one = KeptRange(
        source.number("offset"),
        source.number("length"),
        source.number("written"),
        source.optional_text("kept", _KEPT.fullmatch),
        source.optional_text("kept_sha256", _HEX.fullmatch),
        source.optional_text("built", _KEPT.fullmatch),
        source.optional_text("built_sha256", _HEX.fullmatch),
    )
    source.finish()
    if bool(one.length) != (one.kept is not None) or bool(one.written) != (one.built is not None):
        raise InvalidJsonError(f"{where}: lengths and copies do not agree")
    if (one.kept is None) != (one.kept_sha256 is None) or (one.built is None) != (one.built_sha256 is None):
        raise InvalidJsonError(f"{where}: copies and checksums do not agree")
    return one


def _file(value: Any, where: str, state_files: Collection[str]) -> KeptFile:
    source = StrictObject(value, where)
    name = check_name(source.text("path"), state_files)
    before, after = _stamp(source.child("before")), _stamp(source.child("after"))
    ranges = tuple(_range(one, f"{where}.ranges[{n}]") for n, one in enumerate(source.items("ranges")))
    kept = source.optional_text("kept", _KEPT.fullmatch)
    built = source.optional_text("built", _KEPT.fullmatch)
    source.finish()
    if ranges:
        if before is None or after is None or kept or built:
            raise InvalidJsonError(f"{where}: an edit in place needs a file before and after")
        if before.start != after.start or any(one.offset < before.start for one in ranges):
            raise InvalidJsonError(f"{where}: the checksums do not cover what was changed")
        taken = sorted((one.offset, one.offset + max(one.length, one.written)) for one in ranges)
        if any(end > start for (_, end), (start, _) in itertools.pairwise(taken)):
            raise InvalidJsonError(f"{where}: ranges overlap")
        if any(one.offset + one.length > before.size for one in ranges):
            raise InvalidJsonError(f"{where}: a range lies beyond the file")
    elif (before is None) != (kept is None) or (after is None) != (built is None) or not (before or after):
        raise InvalidJsonError(f"{where}: states and copies do not agree")
    return KeptFile(name, before, after, ranges, kept, built)


def check_move(path: str, target: str) -> KeptMove:
    """A move between a partition's own directory and the one where it is put aside.  Raises ValueError for any other."""
    move = KeptMove(path, target)
    for one, other in ((path, target), (target, path)):
        if _PARTITION.fullmatch(one) and other == f"{disk.STATE_DIRECTORY}/{UNASSIGNED}/{one}":
            return move
    raise ValueError(f"a directory never moves from {path!r} to {target!r}")


def _move(value: Any, where: str) -> KeptMove:
    source = StrictObject(value, where)
    move = check_move(source.text("path"), source.text("target"))
    source.finish()
    return move


def _partition(value: Any, where: str, state_files: Collection[str]) -> PartitionLeft:
    source = StrictObject(value, where)
    number, marks, files = source.number("partition"), source.optional_items("marks"), source.child("files")
    if files is None or (marks is not None and (len(marks) != 3 or not all(type(one) is int for one in marks))):
        raise InvalidJsonError(f"{where}: files or marks are not valid")
    sizes = tuple((check_name(name, state_files), files.number(name)) for name in files.names())
    source.finish()
    return PartitionLeft(number, None if marks is None else (marks[0], marks[1], marks[2]), sizes)


def decode_entry(data: bytes, path: Path, state_files: Collection[str]) -> QuarantineEntry:
    """The entry in directory `path` from its manifest's bytes.  Raises ValueError for anything this program did not write."""
    try:
        body = json.loads(data)
    except RecursionError as error:
        raise InvalidJsonError("nested too deeply") from error
    source = StrictObject(body, "manifest")
    source.text("schema", SCHEMA.__eq__)
    source.text("type", TYPE.__eq__)
    stored = source.text("sha256", _HEX.fullmatch)
    if _digest({key: value for key, value in body.items() if key != "sha256"}) != stored:
        raise InvalidJsonError("its SHA-256 is not that of its contents")
    arguments, directories = source.items("arguments"), source.items("directories")
    if not all(isinstance(one, str) for one in (*arguments, *directories)):
        raise InvalidJsonError("arguments and directories must be texts")
    entry = QuarantineEntry(
        source.text("id", path.name.__eq__),
        source.number("number"),
        source.text("command", re.compile(r"[a-z][a-z-]{0,40}").fullmatch),
        tuple(arguments),
        source.text("created", most=40),
        source.text("plan_hash", most=200),
        RepairState(source.text("state")),
        path,
        tuple(_file(one, f"files[{n}]", state_files) for n, one in enumerate(source.items("files"))),
        tuple(check_name(name, state_files) for name in directories),
        tuple(_move(one, f"moves[{n}]") for n, one in enumerate(source.items("moves") if "moves" in source else ())),
        tuple(_partition(one, f"partitions[{n}]", state_files) for n, one in enumerate(source.items("partitions")))
        if "partitions" in source
        else None,
    )
    source.finish()
    copies = [n for f in entry.files for n in (f.kept, f.built, *(m for r in f.ranges for m in (r.kept, r.built))) if n]
    if len({file.path for file in entry.files}) < len(entry.files) or len(set(copies)) < len(copies):
        raise InvalidJsonError("a file or a copy is named twice")
    return entry


def read_entry(path: Path, state_files: Collection[str]) -> QuarantineEntry | None:
    """The entry in directory `path`; None for an empty directory, which a crash right after its creation leaves.

    Raises DamageError when the manifest is missing, torn or not one that this program wrote; DiskReadError.
    """
    try:
        data = disk.read_range(path / MANIFEST, 0, _LIMIT)
        return decode_entry(data, path, state_files)
    except FileNotFoundError:
        # An entry begins with its manifest; the first write of one may have left its temporary file.
        if all(name == MANIFEST + disk.TEMPORARY_SUFFIX for name in names_in(path) or ()):
            return None
        raise unusable(path, "the manifest is missing") from None
    except ValueError as error:
        raise unusable(path, str(error)) from error


def unusable(path: Path, why: str) -> DamageError:
    """The error for an entry with an unusable manifest, which must not be changed."""
    message = f"{path / MANIFEST}: not a usable manifest: {why}"
    finding = make_finding(Code.REPAIR_INTERRUPTED, path, message)
    advice = (
        "nothing there was touched; bring the manifest back, or move the directory away once nothing in it is needed"
    )
    return DamageError(message, (replace(finding, remedy=None),), advice=advice)
