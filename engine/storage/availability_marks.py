"""Which partitions may be read and written: marks that an operator sets and that survive a restart.

The released layout has one flag, *available*, for both; the documented layout has none.  The rest is in
``.waltzctl/availability.json``, which is always replaced as a whole::

    {"version": 1, "partitions": {"3": {"readable": true, "writable": false}}}

===================  ==============================  =======================================
flag *available*     entry in the file               reading and writing
===================  ==============================  =======================================
set                  any, or none                    both allowed
cleared              an entry                        as the entry says
cleared              none                            both forbidden
(documented layout)  an entry                        as the entry says
(documented layout)  none                            both allowed
===================  ==============================  =======================================

So in the released layout a change takes effect with the flag, also for a released node that opens the directory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePath

from waltzctl.engine.durable import disk
from waltzctl.engine.errors import OTHER_PROGRAM, DamageError
from waltzctl.engine.log import places
from waltzctl.formats.control import ControlFile

AVAILABILITY_FILE_NAME = "availability.json"
_VERSION = 1
_LIMIT = 1 << 28
_JSON = {False: "false", True: "true"}


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a partition may be read and written."""

    readable: bool = True
    writable: bool = True

    @property
    def available(self) -> bool:
        """The released layout's flag for this state."""
        return self.readable and self.writable


OFF = Availability(False, False)
"""Meaning of a cleared flag of the released layout without an entry in the file."""


def availability_path(storage: PurePath) -> PurePath:
    """Path of the marks file of a storage directory, whether or not it exists."""
    return storage / disk.STATE_DIRECTORY / AVAILABILITY_FILE_NAME


def load_marks(storage: PurePath) -> dict[int, Availability]:
    """The marks in the file, by partition; empty when there is no file.  Raises DamageError, DiskReadError."""
    path = availability_path(storage)
    try:
        raw = places.read_range(path, 0, _LIMIT)
    except FileNotFoundError:
        return {}
    try:
        return dict(_marks_of(raw))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        again = "look which partitions were switched off, remove the file, and switch them off again"
        raise DamageError(
            f"{path}: cannot be understood: {error}",
            advice=OTHER_PROGRAM if isinstance(error, _OtherVersionError) else again,
        ) from error


@lru_cache(maxsize=1)
def _marks_of(raw: bytes) -> Mapping[int, Availability]:
    """The marks in the file's bytes; of the last ones they are kept: each of thousands of partitions asks when a node starts."""
    return _decode(json.loads(raw))


class _OtherVersionError(ValueError):
    """The file is of a version that this program does not know."""


def _decode(document: object) -> dict[int, Availability]:
    if not isinstance(document, dict) or (version := document.get("version")) != _VERSION:
        known = isinstance(document, dict) and isinstance(version, int)
        raise (_OtherVersionError if known else ValueError)(f"no object of version {_VERSION}")
    marks: dict[int, Availability] = {}
    for name, mark in document["partitions"].items():
        readable, writable = mark["readable"], mark["writable"]
        if not isinstance(readable, bool) or not isinstance(writable, bool):
            raise ValueError(f"partition {name}: the marks are no booleans")
        marks[int(name)] = Availability(readable, writable)
    return marks


def save_marks(storage: PurePath, marks: Mapping[int, Availability]) -> None:
    """Replace the file, durably; entries that allow both are left out.  Raises DiskWriteError."""
    disk.write_whole(availability_path(storage), encode_marks(marks))


def forget_availability(storage: PurePath, partition: int) -> None:
    """Drop the mark of a partition whose files are deleted, durably.  Raises DiskError.

    A damaged file stays as it is: reading a mark reports the damage.
    """
    try:
        marks = load_marks(storage)
    except DamageError:
        return
    if marks.pop(partition, None) is not None:
        save_marks(storage, marks)


def encode_marks(marks: Mapping[int, Availability]) -> bytes:
    """The file's bytes: JSON, indented by two blanks.

    Not by `json`, whose indented form is ten times as slow: with thousands of partitions each switch writes all of them.
    """
    entries = [
        f'    "{partition}": {{\n      "readable": {_JSON[mark.readable]},\n      "writable": {_JSON[mark.writable]}\n    }}'
        for partition, mark in sorted(marks.items())
        if not mark.available
    ]
    body = "{\n" + ",\n".join(entries) + "\n  }" if entries else "{}"
    return f'{{\n  "version": {_VERSION},\n  "partitions": {body}\n}}\n'.encode()


def combine(control: ControlFile, marks: Mapping[int, Availability], partition: int) -> Availability:
    """A partition's availability from its flag, where there is one, and the marks."""
    mark = marks.get(partition, Availability())
    if not control.layout.has_flags:
        return mark
    current = control.partitions[partition].current_struct
    if current is None or current.available:
        return Availability()
    return OFF if mark.available else mark


def read_availability(storage: PurePath, control: ControlFile) -> dict[int, Availability]:
    """Availability of every partition in the control file; read-only.

    Raises DamageError for a marks file that cannot be understood, DiskReadError.
    """
    marks = load_marks(storage)
    return {partition: combine(control, marks, partition) for partition in range(len(control.partitions))}
