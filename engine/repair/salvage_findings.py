"""Findings about the records that a salvage has written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from uuid import UUID

from waltzctl.engine.findings import Code, Finding, SegmentFiles, Where, make_finding
from waltzctl.engine.findings.headers import strange_finding
from waltzctl.engine.log.places import open_source
from waltzctl.engine.log.view import view_partition
from waltzctl.engine.repair.salvage_output import WrittenSegment
from waltzctl.engine.repair.salvage_selection import RecordPiece
from waltzctl.engine.storage.belonging import stranger
from waltzctl.formats.segment import HEADER_SIZE, segment_name


def data_findings(
    to: Path, selected: Mapping[int, Sequence[RecordPiece]], written: Mapping[int, Sequence[WrittenSegment]]
) -> Iterable[Finding]:
    """A finding for each written record whose data does not match its data checksum."""
    for number, pieces in selected.items():
        for piece in pieces:
            for damaged in piece.run.data_damaged:
                if piece.first <= damaged <= piece.last:
                    yield _data_finding(to, number, damaged, pieces, written[number])


def foreign_findings(to: Path, written: Iterable[int], cluster_key: UUID) -> Iterable[Finding]:
    """A finding for each written segment whose records are another partition's, although the header before them said otherwise.

    Verify would report the same of the written directory.  Raises DiskReadError.
    """
    for number in written:
        directory = to / str(number)
        view = view_partition(directory, number)
        for segment in view.segments:
            with open_source(segment.data_path) as source:
                why = stranger(segment, source, number, cluster_key, view.segments)
            if why is not None:
                where = Where(to, number, directory)
                files = SegmentFiles(where, segment.first_transaction_id, segment.data_path, segment.index_path)
                yield strange_finding(why, files)


def _data_finding(
    to: Path, partition: int, damaged: int, pieces: Sequence[RecordPiece], segments: Sequence[WrittenSegment]
) -> Finding:
    segment = next(one for one in segments if one.first <= damaged <= one.last)
    offset, length = HEADER_SIZE, 0
    for piece in pieces:
        low, high = max(piece.first, segment.first), min(piece.last, damaged)
        if low <= high:
            offsets = piece.offsets()
            offset += int(offsets[high - piece.first] - offsets[low - piece.first])
            length = int(offsets[high - piece.first + 1] - offsets[high - piece.first])
            offset += length if high < damaged else 0
    return make_finding(
        Code.DATA_CHECKSUM,
        to / str(partition) / segment_name(segment.first),
        f"the data of transaction {damaged} does not agree with its own checksum; the record as a whole is intact",
        storage_directory=to,
        partition=partition,
        segment=segment.first,
        transaction_id=damaged,
        offset=offset,
        length=length,
    )
