"""Comparison of the headers of a data file and of its index with the control file, the directory, the name and each other.

Every reader of a segment checks the headers here; `engine.findings.headers` defines the faults and their findings.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Code, Finding, SegmentFiles
from waltzctl.engine.findings.headers import (
    FieldSource,
    HeaderFault,
    OtherVersion,
    ReservedByte,
    WrongField,
    code_of,
    header_finding,
)
from waltzctl.engine.log.index import MOST_HELD
from waltzctl.engine.log.places import open_source
from waltzctl.engine.log.view import read_header_of
from waltzctl.engine.scan.byte_source import ByteSource
from waltzctl.engine.scan.columns import RecordRun, RecordView
from waltzctl.engine.scan.scanner import read_record_at, summarise_records
from waltzctl.formats.segment import FORMAT_VERSION, HEADER_SIZE, SegmentHeader, segment_name


@dataclass(frozen=True, slots=True)
class Expected:
    """What a segment's headers must contain.  `first`: the id in the file name; `partition`, `cluster_key`: None if not known."""

    first: int
    partition: int | None
    cluster_key: uuid.UUID | None

    def met_by(self, header: SegmentHeader | None) -> bool:
        """Whether a header is as expected; reserved bytes and the time are not compared.  False for None."""
        return (
            header is not None
            and header.version == FORMAT_VERSION
            and self.cluster_key in (None, header.cluster_key)
            and self.partition in (None, header.partition)
            and self.first == header.first_transaction_id
        )


@dataclass(frozen=True, slots=True)
class HeaderVerdict:
    """The faults of a data file's header (`data`) and of its index file's header (`index`).

    `begins`: the id of the first record, as far as headers, name and first record show it.
    """

    data: tuple[HeaderFault, ...]
    index: tuple[HeaderFault, ...]
    begins: int

    @property
    def data_wrong(self) -> bool:
        """Whether the data file's header has a fault other than non-zero reserved bytes."""
        return any(not isinstance(one, ReservedByte) for one in self.data)

    def findings(self, files: SegmentFiles) -> tuple[Finding, ...]:
        """The findings about `files`, those of the data file first."""
        own = [header_finding(one, files, index=False) for one in self.data]
        return (*own, *(header_finding(one, files, index=True) for one in self.index))


def judge_headers(
    expected: Expected, data: SegmentHeader, index: SegmentHeader | None, records: ByteSource
) -> HeaderVerdict:
    """Check the header of a data file and, if there is one, of its index.  `records`: the bytes of the data file.

    Where name and header disagree about the first id, the first record decides: if its id is the header's, the file was renamed,
    and `begins` is the header's id.  A first record of more than MOST_HELD bytes of data is not read; the name counts then.
    Raises DiskReadError.
    """
    begins = expected.first
    if data.first_transaction_id != begins:
        found = read_record_at(records, HEADER_SIZE, expected_id=None, max_record=MOST_HELD)
        if isinstance(found, RecordView) and found.transaction_id == data.first_transaction_id:
            begins = data.first_transaction_id
    of_data, of_index = [*_alone(data)], [*_alone(index)]
    named = FieldSource.NAME if begins == expected.first else FieldSource.NAME_ALONE
    for name, source, wanted in (
        ("cluster_key", FieldSource.CONTROL_FILE, expected.cluster_key),
        ("partition", FieldSource.DIRECTORY, expected.partition),
        ("first_transaction_id", named, expected.first),
    ):
        here, there = getattr(data, name), None if index is None else getattr(index, name)
        if wanted not in (None, here):
            of_data.append(WrongField(name, here, wanted, source, there))
        # no second fault where the index only repeats the wrong value of the data file
        own, right = (FieldSource.DATA_FILE, here) if wanted is None else (source, wanted)
        if there not in (None, here, right):
            of_index.append(WrongField(name, there, right, own))
    return HeaderVerdict(tuple(of_data), tuple(of_index), begins)


def _alone(header: SegmentHeader | None) -> Iterator[HeaderFault]:
    """The faults that a header shows by itself: its version and its reserved bytes."""
    if header is not None and header.version != FORMAT_VERSION:
        yield OtherVersion(header.version)
    if header is not None and (reserved := ReservedByte.of(header.reserved)) is not None:
        yield reserved


@dataclass(frozen=True, slots=True)
class Beginning:
    """How a data file begins.

    `whole`: its header is as expected, and its first record intact, with the id in its name.  Also where it holds nothing: then
    nothing of it is damaged, and what was acknowledged is told as missing.  False where it cannot be read: then nothing is known
    of that record.
    `header`: the code of the first fault of the header, if that record is intact all the same; else None.
    """

    whole: bool
    header: Code | None = None


def beginning_behind(torn: int, directory: PurePath, following: int | None, expected: Expected) -> Beginning:
    """How the segment behind a torn tail begins, whose torn record is `torn`; it is opened only if that is the id in its name.

    `following`: the id in the name of the next data file, None without one.  `expected`: what the headers of the segment with
    the torn tail must contain.
    """
    if following != torn:
        return Beginning(True)
    return beginning_of(directory / segment_name(torn), replace(expected, first=torn))


def beginning_of(path: PurePath, expected: Expected) -> Beginning:
    """How a data file begins; `expected`: what its header must contain."""
    try:
        with open_source(path) as source:
            if source.size() <= HEADER_SIZE:
                return Beginning(True)
            header = read_header_of(source, source.size())
            scan = summarise_records(source, first_transaction_id=expected.first, most=1, check=_damaged)
            first = next(iter(scan), None)
            whole = isinstance(first, RecordRun) and first.first_transaction_id == expected.first
            if not whole or header is None or expected.met_by(header):
                return Beginning(whole)
            faults = judge_headers(expected, header, None, source).data
            return Beginning(False, next(code_of(one) for one in faults if not isinstance(one, ReservedByte)))
    except (DiskReadError, FileNotFoundError, _DamagedError):
        return Beginning(False)


class _DamagedError(Exception):
    """The first record is damaged; what stands behind it, in all of the file, is not searched for that."""


def _damaged() -> None:
    raise _DamagedError
