"""Whose records a data file holds: the one judgement that every repair asks before it touches a file.

A wrong header has two explanations, and they ask for opposite repairs: the header was damaged, or the file is not the partition's
own (renamed, copied to the wrong place, of another cluster).  To take the second for the first lets in what is somebody else's.
So a header is rewritten only when witnesses that know nothing of it agree that the records belong here:

- The *entries* of the index, compared with where records really begin.  The index's header alone proves nothing: it is the index
  of the file that should lie here.
- The *request ids*, which carry the partition.  Released clients, servers and `append` write the partition's own number, but a
  program may write any: where the segments beside this one do not name the partition either, they say nothing.
- The *next segment*: records that reach into it are not those that were here.
- The *time of creation*, which is that of the index but for a moment, where there is one and the rest can be believed.
- Every *replica* that was named: its records under the same ids, byte for byte.

A single record stands at the same offset in every file: no index proves it, and its request id only its partition.

Behind a header that is right, records are another partition's where their request ids and a witness say so
(`engine.storage.belonging`), or a replica that holds other ones.

What is not the partition's own is named, and neither cut nor removed nor rewritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

import numpy as np

from waltzctl.engine.errors import DiskReadError
from waltzctl.engine.findings import Code
from waltzctl.engine.log.evidence import MOMENT_MS
from waltzctl.engine.log.index import IndexReader
from waltzctl.engine.log.view import SegmentView, read_segment_header
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

_STRAYS = 8
"""One wrong entry in so many is a damaged entry, and still an index of this file."""

_READS = "everything else reads as the only version there is"


@dataclass(frozen=True, slots=True)
class SegmentSurroundings:
    """What a segment's file is judged by: where it lies, what lies beside it, and the replicas that were named."""

    control: ControlFile
    partition: int
    segments: Sequence[SegmentView]
    replicas: Sequence[ReplicaSegments] = ()

    def following(self, first: int) -> int | None:
        """The id in the name of the next data file."""
        behind = (one.first_transaction_id for one in self.segments if one.data is not None)
        return min((name for name in behind if name > first), default=None)


@dataclass(frozen=True, slots=True)
class ProvenanceVerdict:
    """Whether a data file's records are the partition's own.

    `header` is what its header should be, None where a person must decide; then `codes` stand against it and `why` says what
    contradicts, or what is missing.  With a header, `codes` are what was wrong with it, and `why` what proves it.  `sources`:
    files of replicas that were read.  `behind`: the header is right, and what stands behind it is not the partition's own.
    """

    header: SegmentHeader | None
    why: str = ""
    codes: tuple[Code, ...] = ()
    sources: frozenset[PurePath] = frozenset()
    behind: bool = False

    @property
    def own(self) -> bool:
        """Whether it may be touched."""
        return self.header is not None


@dataclass(slots=True)
class _Testimony:
    """What the witnesses say: `proofs` that the records belong here, `against` that they do not.

    `indexed`: the index proves them; `named`: there is one record, and its request id names the partition.
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
    assert data is not None
    key = around.control.header.cluster_key
    right = SegmentHeader(FORMAT_VERSION, data.created, key, around.partition, named, data.reserved)
    if data == right:
        return _behind_right_header(view, content, around, data)
    record = read_record_at(content, HEADER_SIZE, expected_id=None)
    first_record = record.transaction_id if isinstance(record, RecordView) else None
    reasons, wrong, unproven = _fields(data, index, right, first_record)
    twin = index is not None and index == replace(right, created=index.created, reserved=index.reserved)
    apart = index is not None and abs(index.created - data.created) > MOMENT_MS
    said, sources = _testimony(view, content, around)
    # zeros are no time: of partition and first id 0 they are right by chance
    if apart and len(wrong) == 1 and data.created:
        said.against.append("it was not created when its index was")
    if Code.UNKNOWN_VERSION in unproven and said.records:  # though the first one is damaged
        unproven.remove(Code.UNKNOWN_VERSION)
        reasons.append(_READS)
    named_wrongly = Code.SEGMENT_NAME in wrong and Code.SEGMENT_NAME not in unproven
    if named_wrongly and first_record is None and _of_another_name(content, data.first_transaction_id, around, named):
        unproven.append(Code.SEGMENT_NAME)  # renamed: a replica may have the records, which says nothing of the name
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
        right = index  # little of the header is left, its time is gone as well; both files were created together
        reasons.append("the creation time is the index header's")
    return ProvenanceVerdict(right, ", ".join(reasons + (said.proofs if placed else [])), tuple(wrong), sources)


def _of_another_name(content: Content, header_first: int, around: SegmentSurroundings, named: int) -> bool:
    """Whether intact records behind a damaged first one do not lie between the file's name and that of the next data file."""
    following = around.following(named)
    for item in scan_records(content, first_transaction_id=min(header_first, named)):
        if not isinstance(item, Damage):
            first = int(item.transaction_id[0])
            if first < named or (following is not None and first + len(item) > following):
                return True
    return False


def _behind_right_header(
    view: SegmentView, content: Content, around: SegmentSurroundings, header: SegmentHeader
) -> ProvenanceVerdict:
    """Judge records behind a header that is right: they are the partition's own unless their request ids and a witness say no."""
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


def _fields(
    data: SegmentHeader, index: SegmentHeader | None, right: SegmentHeader, first_record: int | None
) -> tuple[list[str], list[Code], list[Code]]:
    """What the fields show by themselves: reasons to believe what each should be, the wrong ones, and those without a reason."""
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
            reasons.append(_READS)
        else:
            unproven.append(Code.UNKNOWN_VERSION)
    return reasons, wrong, unproven


def _testimony(
    view: SegmentView, content: Content, around: SegmentSurroundings
) -> tuple[_Testimony, frozenset[PurePath]]:
    """What the witnesses say, and the files of replicas that were read.  A replica that holds the same records outweighs what the
    index, the request ids and the next segment let suspect.
    """
    named, partition = view.first_transaction_id, around.partition
    said = _Testimony([], [])
    sources: set[PurePath] = set()
    with hint_of(view.index_path) as hint:
        named_here, stop = _compare(content, named, hint, partition, said)
    behind = around.following(named)
    if behind is not None and stop > behind:
        said.against.append(f"it goes on to transaction {stop - 1}, and the next segment begins with {behind}")
    if said.records and not named_here and _named_beside(view, around):
        said.against.append(f"its request ids do not name partition {partition}")
    if not said.records:
        said.indexed = True  # no record to let in
    elif said.records == 1:
        said.named = named_here == 1  # its offset says nothing: every data file has one there
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
    content: Content, named: int, hint: ByteSource | None, partition: int, said: _Testimony
) -> tuple[int, int]:
    """Compare the records with the index; return how many name the partition in their request ids, and the id behind them."""
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
            skipped = int(first == named and len(equal) > 0 and bool(equal[0]))  # every index begins alike
            compared += len(equal)
            agree += int(np.count_nonzero(equal)) - skipped
            differ += int(np.count_nonzero(~equal))
    if hint is not None:
        entries = IndexReader(hint, named).count()
        if differ * _STRAYS > agree:
            said.against.append(f"{differ} of {compared} entries of the index are not where its records begin")
        elif last - named - entries > CHECKPOINT_INTERVAL:
            # a crash leaves an index no further behind its data than that
            said.against.append(f"the index lists {entries} records, and it has {last - named}")
        elif agree:
            said.indexed = True
            said.proofs.append("the entries of the index are where its records begin")
    return named_here, last


def _named_beside(view: SegmentView, around: SegmentSurroundings) -> bool:
    """Whether request ids tell partitions apart here: the segments beside this one name theirs, or there is none."""
    key = around.control.header.cluster_key
    own, strange = beside(around.segments, view.first_transaction_id, around.partition, key)
    return own > 0 or not strange


def foreign(view: SegmentView, around: SegmentSurroundings) -> str | None:
    """Why a segment's data file is not surely the partition's own, in words; None when it is, or holds no whole header.

    A file whose header and first record agree on another first id than its name was renamed; that is no matter of whose it is.
    """
    if view.data is None:
        return None
    header = read_segment_header(view.data)
    if header is None:
        return None
    content = Content.of_file(view.data.path, view.data.size)
    try:
        verdict = judge(view, content, around)
    except DiskReadError as error:
        return str(error)
    if verdict.own:
        return None
    if verdict.codes == (Code.SEGMENT_NAME,) and not verdict.why:
        begins = begins_at(content, view.first_transaction_id, header.first_transaction_id)
        if begins != view.first_transaction_id:
            return None
    return f"{', '.join(verdict.codes)}{': ' if verdict.why else ''}{verdict.why}"
