"""Whether everything is there: the gaps of replicas, from the rows of `completeness` and `quarantine`.  Values in, values
out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from waltzctl.engine.catalogue import Code
from waltzctl.engine.pipeline.quarantine_rows import BAD_BYTES

MISSING, DAMAGED, BEHIND, UNDECIDED, NOWHERE = "missing", "damaged", "behind", "undecided", "nowhere"


@dataclass(frozen=True, slots=True)
class IncompleteRange:
    """Transactions that a replica lacks.

    `node` None: of no replica that was read.  `kind`: missing, damaged, behind (the end of the partition), undecided (the
    replicas do not agree) or nowhere.  `last_transaction_id` None: nobody knows how many there are.  `elsewhere`: another
    replica has all of them.
    """

    node: str | None
    partition: int
    kind: str
    first_transaction_id: int | None
    last_transaction_id: int | None
    finding: str | None
    remedy: str | None
    elsewhere: bool


@dataclass(frozen=True, slots=True)
class _Lack:
    node: str | None
    partition: int
    kind: str
    first: int
    stop: int | None
    finding: str | None
    remedy: str | None


def gaps(
    completeness: Sequence[Mapping[str, Any]],
    quarantine: Sequence[Mapping[str, Any]],
    taken: Collection[tuple[int, int, int]] = (),
) -> list[IncompleteRange]:
    """Every gap, by partition and place.

    `taken`: what was nowhere and has come since, as `table_rows.taken_since` tells it; no two of these meet.
    """
    nodes = {(row["node"], row["partition"]): row for row in completeness}
    lacks = [rest for one in _lacks(quarantine, nodes) for rest in _without(one, taken)] + [*_behind(completeness)]
    lacks.sort(key=lambda one: (one.partition, one.first, one.node or ""))
    return [
        IncompleteRange(
            one.node, one.partition, one.kind, one.first, None if one.stop is None else one.stop - 1, one.finding, one.remedy,
            elsewhere=_elsewhere(one, lacks, completeness),
        )
        for one in lacks
    ]  # fmt: skip


def _lacks(quarantine: Sequence[Mapping[str, Any]], nodes: Mapping[Any, Any]) -> Iterator[_Lack]:
    for row in quarantine:
        first, count, node = row["transaction_id"], row["missing"], row["node"]
        if first is None or row["partition"] is None or (node is not None and (node, row["partition"]) not in nodes):
            continue
        if row["finding"] == Code.REPLICA_DIFFERS:
            kind = UNDECIDED
        elif node is None:
            kind = NOWHERE
        elif row["finding"] in {one.value for one in BAD_BYTES}:
            kind = DAMAGED
        else:
            kind = MISSING
        stop = None if count is None else first + count
        yield _Lack(node, row["partition"], kind, first, stop, row["finding"], row["remedy"])


def _without(lack: _Lack, taken: Collection[tuple[int, int, int]]) -> Iterator[_Lack]:
    """What is left of a lack; of what a replica lacks nothing was taken."""
    first, stop = lack.first, lack.stop
    if lack.kind != NOWHERE or stop is None:
        yield lack
        return
    for partition, begins, ends in sorted(taken):
        if partition == lack.partition and begins < stop and ends > first:
            if begins > first:
                yield replace(lack, first=first, stop=begins)
            first = ends
    if first < stop:
        yield replace(lack, first=first)


def _behind(completeness: Sequence[Mapping[str, Any]]) -> Iterator[_Lack]:
    """What replicas do not have by now: of a log that is being written some are always read before others."""
    for row in completeness:
        first = max(row["expected"] - row["behind"], row["last_transaction_id"] + 1)
        if first < row["expected"]:
            remedy = "It catches up in the next session; see waltzctl compare."
            yield _Lack(row["node"], row["partition"], BEHIND, first, row["expected"], None, remedy)


def _elsewhere(lack: _Lack, lacks: Sequence[_Lack], completeness: Sequence[Mapping[str, Any]]) -> bool:
    """Whether another replica has, as far as it was read, everything in the range."""
    if lack.kind in (UNDECIDED, NOWHERE) or lack.stop is None:
        return False
    for row in completeness:
        if row["partition"] != lack.partition or row["node"] == lack.node:
            continue
        if row["expected"] - row["behind"] < lack.stop:
            continue
        meets = any(
            other.node == row["node"]
            and other.partition == lack.partition
            and other.first < (lack.stop or 0)
            and (other.stop is None or other.stop > lack.first)
            for other in lacks
        )
        if not meets:
            return True
    return False
