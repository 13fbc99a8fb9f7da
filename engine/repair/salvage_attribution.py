"""Attribution of carved runs to clusters and partitions, and detection of runs that cannot be trusted.  Pure, without files.

A record contains neither a cluster key nor a partition number, so other evidence is used (`AttributionReason`), the strongest
first:

1. *header*: the run is in the file of a segment header: directly after it, or after other runs of the same file, with no
   more ids missing than the bytes in between can have held (at least 40 bytes each).
2. *request id*: its third part is the partition for which the client created it.  Clients may write anything there, so this is
   used only if it agrees with the headers wherever both are known, or if there is no header at all.
3. *continuation*: the run's first id follows the last id of exactly one partition.  Alone it gives no run to another cluster
   than the one that is asked for: the run may be of that one, and what was in front of it lost.
4. *caller*: the partition that the caller asked for.

The data of a damaged record may contain bytes that look like records.  A run is doubtful for this reason when it follows a
damaged record whose id is the next one and whose length, unless contradicted, says that the run is its data.
"""

from __future__ import annotations

import bisect
import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol
from uuid import UUID

from waltzctl.engine.repair.salvage_headers import FoundHeader, HeaderKind
from waltzctl.engine.repair.salvage_runs import SalvageRun
from waltzctl.formats.segment import RECORD_OVERHEAD

FAR = 1 << 20
"""Bytes.  A header alone does not claim a run behind a larger gap."""
LINK_WINDOW = 256
"""How many preceding runs are tried as a run's predecessor in its file; more damage in one place ends a chain."""
PLACES = 16
"""How many places are tried as the end of a damaged record."""
TRUSTED_SHARE = 0.99
"""Share of the records behind headers whose request ids must name the header's partition, for request ids to be used."""
TRUSTED_SHARE_OF_MANY = 0.9
"""The same when request ids and headers agree on several partitions, which is no coincidence."""


class AttributionReason(enum.StrEnum):
    """The evidence by which a run is attributed to a partition, the strongest first."""

    HEADER = "header"
    REQUEST_ID = "request-id"
    CONTINUATION = "continuation"
    CALLER = "caller"


RANK = {witness: -place for place, witness in enumerate(AttributionReason)}


@dataclass(slots=True, eq=False)
class Chain:
    """Runs of one file, in order; `header`: the file's header, None when it was not found."""

    header: FoundHeader | None
    runs: list[SalvageRun] = field(default_factory=list)

    @property
    def records(self) -> int:
        """Number of records in all runs."""
        return sum(len(run) for run in self.runs)

    @property
    def request_partition(self) -> int | None:
        """The partition that all request ids name; None when they differ."""
        named = {run.request_partition for run in self.runs}
        return named.pop() if len(named) == 1 else None


@dataclass(frozen=True, slots=True, eq=False)
class Attributed:
    """A run with its cluster and partition.

    `cluster_key` None: that of the only cluster.  `support`: number of records in its chain.
    """

    run: SalvageRun
    cluster_key: UUID | None
    partition: int
    witness: AttributionReason
    support: int


@dataclass(frozen=True, slots=True, eq=False)
class Doubt:
    """A run that is not written, and why."""

    run: SalvageRun
    reason: str


class SourceEvidence(Protocol):
    """What the bytes of a source say about a damaged record.  Both methods may raise DiskReadError."""

    def claim(self, source: int, offset: int, transaction_id: int) -> int | None:
        """Where the record at `offset` ends by its own length; None unless it carries that id and a possible length."""

    def closes(self, source: int, offset: int, transaction_id: int, end: int) -> bool:
        """Whether the record's checksums prove that it ends at `end`, whatever its length says."""


@dataclass(frozen=True, slots=True, eq=False)
class HeaderStretch:
    """The bytes from one header to the next, or to the end of the source.

    `header`: the header at the beginning, None at the start of a source without one.  `end`: byte offset of the end.
    """

    header: FoundHeader | None
    runs: list[SalvageRun]
    end: int
    source_size: int

    @property
    def is_file(self) -> bool:
        """Whether the source is exactly one data file."""
        return self.header is not None and self.header.offset == 0 and self.end == self.source_size


def request_ids_agree(headers: Sequence[FoundHeader], runs: Sequence[SalvageRun]) -> bool | None:
    """Whether request ids name the partition of the header before them; None when no run follows a header directly."""
    behind = {(header.source, header.end): header for header in headers}
    agreeing: Counter[int] = Counter()
    total = 0
    for run in runs:
        header = behind.get((run.source, run.start))
        if header is not None:
            total += len(run)
            agreeing[header.number] += len(run) * (run.request_partition == header.number)
    share = TRUSTED_SHARE_OF_MANY if len(+agreeing) > 1 else TRUSTED_SHARE
    return agreeing.total() >= total * share if total else None


def _fits(run: SalvageRun, last_id: int, end: int, *, far: bool) -> bool:
    """Whether a run can follow the record `last_id` that ends at byte `end`: there is room for the missing ids.

    `far`: the distance may exceed FAR.
    """
    missing, room = run.first - last_id - 1, run.start - end
    return missing >= 0 and (room == 0 or missing * RECORD_OVERHEAD <= room) and (far or room <= FAR)


class _Joiner:
    """Joins the runs of one stretch to chains."""

    def __init__(self, stretch: HeaderStretch, trusted: bool, evidence: SourceEvidence) -> None:
        self._stretch = stretch
        self._trusted = trusted
        self._evidence = evidence
        self._boundaries = {stretch.end, *(run.start for run in stretch.runs)}
        self._sorted = sorted(self._boundaries)
        last = max(stretch.runs, key=lambda run: run.end, default=None)
        self._whole = last is not None and (
            last.end == stretch.end or evidence.claim(last.source, last.end, last.last + 1) is not None
        )
        """Whether the stretch ends with an intact record, or with a torn record of the next id."""

    def _named_by_request_ids(self, run: SalvageRun, partition: int | None) -> bool | None:
        """Whether the request ids attribute a run to a partition; None when they are no evidence."""
        if not self._trusted or partition is None or run.request_partition is None:
            return None
        return run.request_partition == partition

    def inside(self, run: SalvageRun, last_id: int, end: int) -> bool:
        """Whether a run lies inside a damaged record that begins at byte `end`, after the record `last_id`.

        Several damaged records may precede the run, each with the right id and a length that leads to the next one.  The run is
        inside one of them when

        - the record's length leads past the run's start, to a place where another run, record or the end begins; or
        - the record's checksums prove that it ends at such a place.

        It is not inside when the checksums prove that the record ends where the run begins.  A length that leads out of the
        stretch counts only if the source is exactly one data file whose records do not reach its end; in a disk image, files
        are fragmented.
        """
        expected = last_id + 1
        while end < run.start:
            claimed = self._evidence.claim(run.source, end, expected)
            if claimed is None or claimed > run.start:
                if self._evidence.closes(run.source, end, expected, run.start):
                    return False
                return (claimed is not None and self._believed(run.source, claimed, expected)) or any(
                    self._evidence.closes(run.source, end, expected, place) for place in self._places(run.start, end)
                )
            end, expected = claimed, expected + 1
        return False

    def _believed(self, source: int, claimed: int, transaction_id: int) -> bool:
        """Whether a damaged record's own length (its end: `claimed`) leads to a place where it may end."""
        if claimed > self._stretch.end:
            return self._stretch.is_file and not self._whole
        return claimed in self._boundaries or self._evidence.claim(source, claimed, transaction_id + 1) is not None

    def _places(self, behind: int, start: int) -> Sequence[int]:
        """The next few offsets after `behind` where a run or the stretch's end is, at most FAR bytes from `start`."""
        at = bisect.bisect_right(self._sorted, behind)
        return [place for place in self._sorted[at : at + PLACES] if place - start <= FAR]

    def _joins(self, run: SalvageRun, last_id: int, end: int, said: bool | None) -> bool:
        if said is False or not _fits(run, last_id, end, far=bool(said)):
            return False
        return not self.inside(run, last_id, end)

    def best(self, runs: Sequence[SalvageRun], header: FoundHeader | None) -> list[SalvageRun]:
        """The chain of runs with the most records that fits into one file; after `header`, if there is one."""
        partition = header.number if header is not None else None
        weights: list[int] = []  # records in the best chain that ends with each run; -1: no chain does
        highest: list[int] = []  # maximum of the weights so far
        previous: list[int | None] = []
        for place, run in enumerate(runs):
            said = self._named_by_request_ids(run, partition)
            best, link = 0 if header is None else -1, None
            for earlier in range(place - 1, max(-1, place - 1 - LINK_WINDOW), -1):
                if highest[earlier] <= best:
                    break
                before = runs[earlier]
                about = said if header is not None else self._named_by_request_ids(run, before.request_partition)
                if weights[earlier] > best and self._joins(run, before.last, before.end, about):
                    best, link = weights[earlier], earlier
            # Only for a run without a predecessor: the check from the header walks over all damage in between.
            if best < 0 and header is not None and self._joins(run, header.first - 1, header.end, said):
                best = 0
            weights.append(best + len(run) if best >= 0 else -1)
            highest.append(max(weights[-1], highest[-1] if highest else -1))
            previous.append(link)
        at: int | None = max(range(len(runs)), key=weights.__getitem__)
        if at is None or weights[at] < 0:
            return []
        chain: list[SalvageRun] = []
        while at is not None:
            chain.append(runs[at])
            at = previous[at]
        return chain[::-1]

    def within(self, run: SalvageRun, chain: Chain) -> bool:
        """Whether a run outside of a chain lies inside a damaged record of the chain's file."""
        behind = bisect.bisect_right(chain.runs, run.start, key=lambda one: one.end)  # the runs are in order
        if behind:
            return self.inside(run, chain.runs[behind - 1].last, chain.runs[behind - 1].end)
        header = chain.header
        return header is not None and self.inside(run, header.first - 1, header.end)


def _stretches(headers: Sequence[FoundHeader], runs: Sequence[SalvageRun], sizes: Sequence[int]) -> list[HeaderStretch]:
    """Each header with the runs up to the next header.  A control file header starts a stretch without a header."""
    items: list[FoundHeader | SalvageRun] = [*headers, *runs]
    items.sort(key=lambda item: (item.source, item.offset if isinstance(item, FoundHeader) else item.start))
    result: list[HeaderStretch] = []
    source = None
    for item in items:
        if isinstance(item, FoundHeader):
            if result and item.source == source:
                result[-1] = replace(result[-1], end=item.offset)
            header = item if item.kind is not HeaderKind.CONTROL else None
            result.append(HeaderStretch(header, [], sizes[item.source], sizes[item.source]))
        else:
            if item.source != source:
                result.append(HeaderStretch(None, [], sizes[item.source], sizes[item.source]))
            result[-1].runs.append(item)
        source = item.source
    return result


def find_chains(
    headers: Sequence[FoundHeader],
    runs: Sequence[SalvageRun],
    sizes: Sequence[int],
    trusted: bool,
    evidence: SourceEvidence,
) -> tuple[list[Chain], list[Doubt]]:
    """Join runs to chains, one per file, and find the runs that lie inside damaged records.

    `sizes`: bytes of each source; `trusted`: whether request ids agree with headers.  May raise DiskReadError.
    """
    chains: list[Chain] = []
    doubts: list[Doubt] = []
    for stretch in _stretches(headers, runs, sizes):
        joiner = _Joiner(stretch, trusted, evidence)
        left, root = stretch.runs, stretch.header
        while left:
            best = joiner.best(left, root)
            if not best and root is None:
                raise AssertionError("a run without a header always makes a chain of its own")
            chosen = set(map(id, best))
            chain = Chain(root, best)
            root = None  # runs that do not fit the header form chains without one
            if best:
                chains.append(chain)
            within = {id(run) for run in left if id(run) not in chosen and joiner.within(run, chain)}
            doubts += [Doubt(run, "lies inside a damaged record") for run in left if id(run) in within]
            gone = chosen | within
            left = [run for run in left if id(run) not in gone]
    return chains, doubts


@dataclass(frozen=True, slots=True)
class Question:
    """What attribution has to know: `keys` as `join_keys` returns them, and the cluster and partition the caller named."""

    keys: dict[UUID, UUID]
    cluster_key: UUID | None
    partition: int | None
    trusted: bool | None
    """Whether request ids agree with headers; None when nothing could be compared."""


def attribute(chains: Sequence[Chain], question: Question) -> tuple[list[Attributed], list[Doubt]]:
    """Attribute each chain to a cluster and partition.  `cluster_key` None in a result: that of the only cluster."""
    settled: list[Attributed] = []
    open_chains: list[Chain] = []
    for chain in chains:
        if chain.header is None:
            open_chains.append(chain)
            continue
        key = question.keys[chain.header.cluster_key]
        settled += _attribute_all(chain, key, chain.header.number, AttributionReason.HEADER)
    keys = {one.cluster_key for one in settled} or set(question.keys.values())
    only = next(iter(keys), question.cluster_key)
    single = len(keys) <= 1 and question.cluster_key in (None, only)
    named = {run.request_partition for chain in chains for run in chain.runs}
    heard = question.trusted or (question.trusted is None and question.partition in {None, *named})
    ends: dict[int, set[tuple[UUID | None, int]]] = {}
    for one in settled:
        ends.setdefault(one.run.last, set()).add((one.cluster_key, one.partition))
    doubts: list[Doubt] = []
    for chain in sorted(open_chains, key=lambda chain: chain.runs[0].first):
        spoken = chain.request_partition if heard else None
        found: tuple[UUID | None, int, AttributionReason] | None = None
        before = {end for end in ends.get(chain.runs[0].first - 1, ()) if spoken in (None, end[1])}
        if single and spoken is not None and spoken >= 0:
            found = only, spoken, AttributionReason.REQUEST_ID
        elif len(before) == 1:
            found = *next(iter(before)), AttributionReason.CONTINUATION
        elif single and question.partition is not None and spoken is None:
            found = only, question.partition, AttributionReason.CALLER
        if found is None:
            reason = "no header and no request id tells its partition" if single else "no header tells its cluster"
            doubts += [Doubt(run, reason) for run in chain.runs]
            continue
        if question.cluster_key not in (None, found[0]):
            reason = f"its ids alone continue partition {found[1]} of {found[0]}, and no header tells its cluster"
            doubts += [Doubt(run, reason) for run in chain.runs]
        else:
            settled += _attribute_all(chain, *found)
        ends.setdefault(chain.runs[-1].last, set()).add(found[:2])
    return settled, doubts


def _attribute_all(chain: Chain, key: UUID | None, partition: int, witness: AttributionReason) -> list[Attributed]:
    records = chain.records  # computed once, not per run
    return [Attributed(run, key, partition, witness, records) for run in chain.runs]
