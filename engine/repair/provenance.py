"""Provenance: whether the records in a data file belong to the partition.  Every repair asks before it changes a file.

A wrong header has two explanations that call for opposite repairs: the header is damaged, or the file belongs elsewhere (it was
renamed, copied to the wrong place, or is of another cluster).  Rewriting the header of such a file would let foreign records into
the partition.  So a header is rewritten only when independent witnesses agree that the records belong here:

=================  ====================================================================================================
witness            what it proves
=================  ====================================================================================================
index entries      they point to where the records begin.  The index's header alone proves nothing: it is that of the
                   file that should be here
request ids        they carry the partition.  Released clients, servers and `append` write the partition's number, but
                   other programs may not: if the neighbouring segments do not name the partition either, no evidence
next segment       records that overlap with it are not those that were here
creation time      it is that of the index within a moment; used when only one field is wrong
replicas           each named replica: its records under the same ids, byte for byte
=================  ====================================================================================================

A single record proves less: it has the same offset in every data file, so an index proves nothing, and its request id proves
only the partition.

Behind a right header, records are another partition's when their request ids and a witness say so (`engine.storage.belonging`),
or when their request ids do and a replica holds other records.

A foreign file is reported; it is never cut, removed or rewritten.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

import numpy as np

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Code
from waltzctl.engine.log.evidence import MOMENT_MS
from waltzctl.engine.log.index import IndexReader
from waltzctl.engine.log.view import SegmentView, next_data_file, read_segment_header
from waltzctl.engine.repair.content import Content
from waltzctl.engine.repair.replicas import Agreement, ReplicaSegments
from waltzctl.engine.repair.survey import begins_at, hint_of
from waltzctl.engine.scan.byte_source import ByteSource, read_bytes
from waltzctl.engine.scan.columns import Damage, RecordView
from waltzctl.engine.scan.scanner import read_record_at, scan_records
from waltzctl.engine.storage.belonging import beside, named_instead, stranger
from waltzctl.formats.control import ControlFile
from waltzctl.formats.segment import (
    CHECKPOINT_INTERVAL,
    ENTRY_SIZE,
    FORMAT_VERSION,
    HEADER_SIZE,
    SegmentHeader,
    decode_entries,
    entry_position,
)

_RIGHT_PER_WRONG_ENTRY = 8
"""With at most one wrong index entry in so many, the entry is damaged and the index is still that of the file."""

_VERSION_PLAUSIBLE = "everything else reads as the only version there is"


@dataclass(frozen=True, slots=True)
class SegmentSurroundings:
    """What a segment's file is judged by: its place, the partition's segments by their ids, and the replicas that were named."""

    control: ControlFile
    partition: int
    segments: Sequence[SegmentView]
    replicas: Sequence[ReplicaSegments] = ()

    def following(self, first: int) -> int | None:
        """The id in the name of the next data file."""
        return next_data_file(self.segments, first)


@dataclass(frozen=True, slots=True)
class ProvenanceVerdict:
    """Whether a data file's records are the partition's own.

    ==========  =================================  ==================================================
    field       records are the partition's own    the operator must decide
    ==========  =================================  ==================================================
    `header`    what the header should be          None
    `codes`     what is wrong with the header      the unproven faults of the header
    `why`       what proves `header`               what contradicts it; empty when proof is missing
    ==========  =================================  ==================================================

    `sources`: files of replicas that were read.  `behind`: the header is right, but the records behind it are foreign.
    """

    header: SegmentHeader | None
    why: str = ""
    codes: tuple[Code, ...] = ()
    sources: frozenset[PurePath] = frozenset()
    behind: bool = False

    @property
    def own(self) -> bool:
        """Whether the file may be changed."""
        return self.header is not None


@dataclass(slots=True)
class _WitnessReport:
    """What the witnesses say: `proofs` that the records belong here, `against` that they do not; both in words.

    `indexed`: the index proves the records.  `named`: there is one record, and its request id names the partition.
    `replicated`: a replica holds the same records.  `records`: number of intact records.
    """

    proofs: list[str]
    against: list[str]
    indexed: bool = False
    named: bool = False
    replicated: bool = False
    records: int = 0


def judge(view: SegmentView, content: Content, around: SegmentSurroundings) -> ProvenanceVerdict:
    """Judge a data file that is not shorter than its header.  `content` gives its bytes.  Raises DiskReadError."""
    data, index, named = read_segment_header(view.data), read_segment_header(view.index), view.first_transaction_id
    if data is None:
        assert view.data is not None  # the caller's file has a header
        cause = OSError(errno.ENOENT, "the file, or its header, is gone since the directory was listed")
        raise DiskReadError(view.data.path, None, cause)
    key = around.control.header.cluster_key
    right = data.placed(key, around.partition, named)
    if data == right:
        return _judge_records(view, content, around, data)
    record = read_record_at(content, HEADER_SIZE, expected_id=None)
    first_record = record.transaction_id if isinstance(record, RecordView) else None
    reasons, wrong, unproven = _judge_fields(data, index, right, first_record)
    twin = index is not None and index == replace(right, created=index.created, reserved=index.reserved)
    apart = index is not None and abs(index.created - data.created) > MOMENT_MS
    only_version = data == replace(right, version=data.version)
    said, sources = _ask_witnesses(view, content, around, placed=only_version)
    # a zeroed header has no creation time; its partition 0 and first id 0 may be right by chance
    if apart and len(wrong) == 1 and data.created:
        said.against.append("it was not created when its index was")
    if Code.UNKNOWN_VERSION in unproven and said.records:  # later records are intact, only the first is damaged
        unproven.remove(Code.UNKNOWN_VERSION)
        reasons.append(_VERSION_PLAUSIBLE)
    named_wrongly = Code.SEGMENT_NAME in wrong and Code.SEGMENT_NAME not in unproven
    if named_wrongly and first_record is None and _ids_outside_name(content, data.first_transaction_id, around, named):
        unproven.append(Code.SEGMENT_NAME)  # a renamed file: a replica with its records does not prove the name
    placed = {Code.SEGMENT_KEY, Code.SEGMENT_PARTITION} & set(wrong)
    supported = said.indexed or (said.named and placed == {Code.SEGMENT_PARTITION})
    if placed and not (said.replicated or (supported and not placed & set(unproven))):
        unproven += [code for code in wrong if code in placed and code not in unproven]
    elif said.replicated:
        unproven = [code for code in unproven if code not in placed]
    if said.against or unproven:
        codes = tuple(code for code in wrong if code in unproven) or tuple(wrong)
        return ProvenanceVerdict(None, "; ".join(said.against), codes, sources)
    if index is not None and twin and apart:
        right = index  # the header's time is damaged too; both files were created together, so the index has it
        reasons.append("the creation time is the index header's")
    return ProvenanceVerdict(right, ", ".join(reasons + (said.proofs if placed else [])), tuple(wrong), sources)


def _ids_outside_name(content: Content, header_first: int, around: SegmentSurroundings, named: int) -> bool:
    """Whether intact records, after a damaged first one, have ids outside the range from this file's name to the next one's."""
    following = around.following(named)
    for item in scan_records(content, first_transaction_id=min(header_first, named)):
        if not isinstance(item, Damage):
            first = int(item.transaction_id[0])
            if first < named or (following is not None and first + len(item) > following):
                return True
    return False


def _judge_records(
    view: SegmentView, content: Content, around: SegmentSurroundings, header: SegmentHeader
) -> ProvenanceVerdict:
    """Judge records behind a right header: they are foreign only if their request ids and a witness say so."""
    partition, named = around.partition, view.first_transaction_id
    why = stranger(view, content, partition, header.cluster_key, around.segments)
    sources: set[PurePath] = set()
    if why is None and around.replicas and (other := named_instead(content, partition)) is not None:
        for replica in around.replicas:
            if replica.compare(partition, content, named) is Agreement.DIFFERS:
                why = f"the request ids of its records name partition {other}, and {replica.path} holds other records"
                why += " under these ids"
            sources |= {one.path for one in replica.segments(partition)}
    if why is None:
        return ProvenanceVerdict(header, sources=frozenset(sources))
    return ProvenanceVerdict(None, why, (Code.SEGMENT_PARTITION,), frozenset(sources), behind=True)


def _judge_fields(
    data: SegmentHeader, index: SegmentHeader | None, right: SegmentHeader, first_record: int | None
) -> tuple[list[str], list[Code], list[Code]]:
    """Judge each header field: reasons for the right values, codes of the wrong fields, codes of those without a reason."""
    reasons: list[str] = []
    wrong: list[Code] = []
    unproven: list[Code] = []
    named = right.first_transaction_id
    if data.first_transaction_id != named:
        wrong.append(Code.SEGMENT_NAME)
        if first_record == named:
            reasons.append("file name and first record agree on the first transaction id")
        elif first_record is None and index is not None and index.first_transaction_id == named:
            reasons.append("file name and index header agree on the first transaction id")
        else:
            unproven.append(Code.SEGMENT_NAME)
    if data.cluster_key != right.cluster_key:
        wrong.append(Code.SEGMENT_KEY)
        if index is not None and index.cluster_key == right.cluster_key:
            reasons.append("control file and index header agree on the cluster key")
        else:
            unproven.append(Code.SEGMENT_KEY)
    if data.partition != right.partition:
        wrong.append(Code.SEGMENT_PARTITION)
        if index is not None and index.partition == right.partition:
            reasons.append("directory and index header agree on the partition")
        else:
            unproven.append(Code.SEGMENT_PARTITION)
    if data.version != FORMAT_VERSION:
        wrong.append(Code.UNKNOWN_VERSION)
        if first_record is not None or (index is not None and index.version == FORMAT_VERSION):
            reasons.append(_VERSION_PLAUSIBLE)
        else:
            unproven.append(Code.UNKNOWN_VERSION)
    return reasons, wrong, unproven


def _ask_witnesses(
    view: SegmentView, content: Content, around: SegmentSurroundings, *, placed: bool
) -> tuple[_WitnessReport, frozenset[PurePath]]:
    """What the witnesses say, and the replica files that were read.

    `placed`: cluster key, partition and first id are right; then an overlap with the next segment is no objection.

    A replica with the same records overrides objections from the index, the request ids and the next segment.
    """
    named, partition = view.first_transaction_id, around.partition
    said = _WitnessReport([], [])
    sources: set[PurePath] = set()
    with hint_of(view.index_path) as hint:
        named_here, stop = _compare(content, named, hint, partition, said)
    behind = around.following(named)
    if behind is not None and stop > behind and not placed:
        said.against.append(f"it goes on to transaction {stop - 1}, and the next segment begins with {behind}")
    if said.records and not named_here and _named_beside(view, around):
        said.against.append(f"its request ids do not name partition {partition}")
    if not said.records:
        said.indexed = True  # without records nothing foreign can enter
    elif said.records == 1:
        said.named = named_here == 1  # the offset proves nothing: every data file has a record there
    differing: list[str] = []
    for replica in around.replicas:
        agreement = replica.compare(partition, content, named)
        sources |= {one.path for one in replica.segments(partition)}
        if agreement is Agreement.DIFFERS:
            differing.append(f"{replica.path} holds other records under these ids")
        elif agreement is Agreement.EQUAL:
            said.replicated = True
            said.proofs.append(f"{replica.path} holds the same records")
    said.against = differing + ([] if said.replicated else said.against)
    return said, frozenset(sources)


def _compare(
    content: Content, named: int, hint: ByteSource | None, partition: int, said: _WitnessReport
) -> tuple[int, int]:
    """Compare the records with the index; return how many request ids name the partition, and the id after the records."""
    named_here = agree = differ = compared = 0
    last = named
    for item in scan_records(content, first_transaction_id=named):
        if isinstance(item, Damage):
            continue
        said.records += len(item)
        first = int(item.transaction_id[0])
        last = first + len(item)
        named_here += int(np.count_nonzero(item.request_id_low >> 32 == partition))
        if hint is not None:
            raw = read_bytes(hint, entry_position(first, named), len(item) * ENTRY_SIZE)
            stored = decode_entries(raw)
            equal = stored == item.offset[: len(stored)]
            skipped = int(first == named and len(equal) > 0 and bool(equal[0]))  # every index begins with this entry
            compared += len(equal)
            agree += int(np.count_nonzero(equal)) - skipped
            differ += int(np.count_nonzero(~equal))
    if hint is not None:
        entries = IndexReader(hint, named).count()
        if differ * _RIGHT_PER_WRONG_ENTRY > agree:
            said.against.append(f"{differ} of {compared} entries of the index are not where its records begin")
        elif last - named - entries > CHECKPOINT_INTERVAL:
            # after a crash an index lags behind its data by at most the checkpoint interval
            said.against.append(f"the index lists {entries} records, and it has {last - named}")
        elif agree:
            said.indexed = True
            said.proofs.append("the entries of the index are where its records begin")
    return named_here, last


def _named_beside(view: SegmentView, around: SegmentSurroundings) -> bool:
    """Whether request ids are evidence here: those of the other segments name the partition, or there are no others."""
    key = around.control.header.cluster_key
    own, strange = beside(around.segments, view.first_transaction_id, around.partition, key)
    return own > 0 or not strange


def foreign(view: SegmentView, around: SegmentSurroundings) -> str | None:
    """Why a segment's data file is not proven to be the partition's own, in words; None when it is, or has no whole header.

    A file whose header and first record agree on another first id than its name was renamed, but is not foreign: None.  Raises
    DiskReadError: nothing is known then, neither of the file nor of whose it is.
    """
    if view.data is None:
        return None
    header = read_segment_header(view.data)
    if header is None:
        return None
    content = Content.of_file(view.data.path, view.data.size)
    verdict = judge(view, content, around)
    if verdict.own:
        return None
    if verdict.codes == (Code.SEGMENT_NAME,) and not verdict.why:
        begins = begins_at(content, view.first_transaction_id, header.first_transaction_id)
        if begins != view.first_transaction_id:
            return None
    return f"{', '.join(verdict.codes)}{': ' if verdict.why else ''}{verdict.why}"
