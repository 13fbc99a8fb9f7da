"""Findings of what a partition as a whole lacks: gaps, overlaps, a log that ends too early, missing files.

Code, severity and message of every loss (`engine.losses`) are chosen here only, so that every command reports it alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from waltzctl.engine.catalogue import Code, Severity
from waltzctl.engine.findings.finding import Finding, Where, make_finding
from waltzctl.engine.losses import (
    BelowMark,
    BelowProof,
    DataGone,
    DirectoryGone,
    Gap,
    GivenUp,
    Ids,
    Loss,
    NoSegment,
    Overlap,
    ShortHeader,
    count,
    covered,
    without,
)
from waltzctl.formats.segment import HEADER_SIZE, index_name, segment_name


def loss_finding(loss: Loss, where: Where, *, elsewhere: Iterable[Ids] = ()) -> Finding:
    """The finding for a loss.  `elsewhere`: ids that another finding counts as missing already; the first other one is told."""
    segment: int | None = getattr(loss, "segment", None)
    path, severity = where.directory, None
    if isinstance(loss, DataGone):
        severity = Severity.DAMAGE if loss.lost else Severity.REPAIRABLE
    elif isinstance(loss, NoSegment):
        severity = Severity.NOTE if loss.began is None else Severity.DAMAGE
    elif isinstance(loss, ShortHeader):
        severity = Severity.REPAIRABLE if loss.harmless else Severity.DAMAGE
    if segment is not None and (isinstance(loss, DataGone) or (isinstance(loss, BelowProof) and loss.by_index)):
        path = path / index_name(segment)
    elif segment is not None and not isinstance(loss, BelowProof):
        path = path / segment_name(segment)
    short = isinstance(loss, ShortHeader)
    counted = covered(elsewhere)
    rest = tuple(part for one in loss.ids for part in without(one, counted))
    first = None if short else segment
    if isinstance(loss, Overlap):
        first = loss.begins
    elif loss.ids:
        first = (rest or loss.ids)[0][0]
    return make_finding(
        _CODES[type(loss)],
        path,
        _sentence(loss, where),
        severity=severity,
        storage_directory=where.storage,
        partition=where.partition,
        segment=segment,
        transaction_id=first,
        offset=0 if short else None,
        length=loss.size if isinstance(loss, (DataGone, ShortHeader)) else None,
        missing=count(rest) if loss.ids else None,
    )


_CODES: dict[type[Loss], Code] = {
    Gap: Code.SEGMENT_GAP,
    Overlap: Code.SEGMENT_OVERLAP,
    BelowMark: Code.ACKNOWLEDGED_MISSING,
    BelowProof: Code.DURABLE_MISSING,
    DataGone: Code.INDEX_ORPHAN,
    GivenUp: Code.LOSS_ACCEPTED,
    DirectoryGone: Code.PARTITION_DIRECTORY_MISSING,
    NoSegment: Code.PARTITION_EMPTY,
    ShortHeader: Code.SEGMENT_HEADER_SHORT,
}


_OF_ENDS = frozenset({Code.SEGMENT_HEADER_SHORT, Code.TORN_TAIL})
"""What may count the ids behind the end of a segment, up to those of the next one: then no gap is told there."""


def told_of_end(findings: Iterable[Finding]) -> int:
    """How many ids behind the last record of a segment its own `findings` count as missing."""
    return sum(one.missing or 0 for one in findings if one.code in _OF_ENDS)


def counts_beyond_end(finding: Finding) -> bool:
    """Whether a finding about a segment's end counts ids as missing, which a segment in front of it may hold."""
    return finding.code in _OF_ENDS and bool(finding.missing) and finding.transaction_id is not None


def without_held(finding: Finding, reached: int) -> Finding:
    """A finding about the end of a segment without the ids below `reached`, which a segment in front of it holds.

    Nothing else of it changes: the segment is as damaged as it was.  Other findings stay as they are.
    """
    first, missing = finding.transaction_id, finding.missing
    if not counts_beyond_end(finding) or first is None or missing is None or reached <= first:
        return finding
    if reached < first + missing:
        return replace(finding, transaction_id=reached, missing=first + missing - reached)
    if finding.code is Code.TORN_TAIL:
        return replace(finding, missing=0)
    return replace(finding, transaction_id=None, missing=None)  # as of a file without a header that never held anything


def _sentence(loss: Loss, where: Where) -> str:
    match loss:
        case Gap():
            said = f"the partition's first segment begins at {loss.stop}"
            if loss.before is not None:
                known = ", though its index lists more" if loss.listed else ""
                said = f"segment {segment_name(loss.before)} ends before{known}, and this one begins at {loss.stop}"
            return f"{_many((loss.first, loss.stop))} missing: {said}"
        case Overlap():
            twice = loss.stop - loss.begins
            before = f"the one in front of it ends at {loss.stop - 1}"
            return f"the segment begins at transaction {loss.begins}, {before}: {twice} transactions may stand in both"
        case BelowMark():
            ends = f"the last transaction is {loss.first - 1}" if loss.first > 0 else "there is no transaction"
            lost = _many((loss.first, loss.mark + 1), "was", "were")
            return f"{ends}, but the local low-water mark is {loss.mark}: {lost} durable here once"
        case BelowProof():
            ids = loss.first, loss.stop
            why = f"a file of the partition is called after transaction {loss.stop}"
            if loss.by_index:
                last = loss.stop - 1
                why = f"the index has entries behind {last}, which are only written once everything up to there is durable"
            return f"{_many(ids)} missing at the end, and {_many(ids, 'was', 'were')} durable here once: {why}"
        case DataGone():
            return f"the index has no data file; it has {_listed_by(loss)}"
        case GivenUp():
            given = _many((loss.first, loss.stop), "was", "were")
            return f"{given} given up on {loss.time} ({loss.reason}); {_still(loss)}"
        case DirectoryGone():
            return f"partition {where.partition} belongs to this node, but its directory does not exist{_known(loss)}"
        case ShortHeader():
            return f"the file has {loss.size} bytes, a header has {HEADER_SIZE}; {_held(loss)}"
        case NoSegment():
            began = f", though session {loss.began} began in it"
            return f"there is no segment{': it never held anything' if loss.began is None else began}"


def _held(loss: ShortHeader) -> str:
    if loss.harmless:
        return "nothing was ever written to it"
    if loss.entries:
        return f"its index has {loss.entries} entries, so that records were in it"
    return "it is not the last segment, so that records were in it"


def _still(loss: GivenUp) -> str:
    if loss.disputed:
        return "other records bore these ids, too, and only an intact replica tells which are right"
    if loss.missing == ((loss.first, loss.stop),):
        return "still missing"
    parts = ", ".join(str(first) if stop - first == 1 else f"{first} to {stop - 1}" for first, stop in loss.missing)
    return f"{parts} still missing, the others are here again"


def _listed_by(loss: DataGone) -> str:
    if not loss.entries:
        return "no entries"
    if loss.unlike:
        return f"{loss.entries} entries, and what other segments hold under these ids is not what it lists"
    if not loss.lost:
        return f"{loss.entries} entries, and other segments hold these transactions"
    lost = loss.lost[0][0], loss.lost[-1][1]
    return f"{loss.entries} entries: {_many(lost, 'was', 'were')} in it and nowhere else"


def _known(loss: DirectoryGone) -> str:
    if loss.ids:
        return f"; transactions up to {loss.mark} were durable in it"
    return f"; session {loss.session} began in it" if loss.session is not None and loss.session >= 0 else ""


def _many(ids: Ids, one: str = "is", many: str = "are") -> str:
    first, stop = ids
    return f"transaction {first} {one}" if stop - first == 1 else f"transactions {first} to {stop - 1} {many}"
