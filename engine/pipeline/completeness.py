"""The gaps of replicas, from the rows of the tables `completeness` and `quarantine`.  Values in, values out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from waltzctl.engine.catalogue import Code
from waltzctl.engine.pipeline.quarantine_rows import BAD_BYTES

MISSING, DAMAGED, BEHIND, UNDECIDED, NOWHERE = "missing", "damaged", "behind", "undecided", "nowhere"


@dataclass(frozen=True, slots=True)
class IncompleteRange:
    """Transactions that a replica does not have intact.

    =========  ==========================================================
    `kind`     the transactions are
    =========  ==========================================================
    missing    not in the replica
    damaged    in the replica, with bytes that cannot be trusted
    behind     at the end of the partition, which the replica has not reached
    undecided  different on the replicas, without a quorum
    nowhere    on none of the replicas
    =========  ==========================================================
    """

    node: str | None
    """The replica; None for the kind nowhere."""
    partition: int
    kind: str
    first_transaction_id: int | None
    last_transaction_id: int | None
    """Inclusive; None where the number of transactions is unknown."""
    finding: str | None
    remedy: str | None
    elsewhere: bool
    """Whether another replica has all of them."""


@dataclass(frozen=True, slots=True)
class _Gap:
    """An `IncompleteRange` whose `elsewhere` is not known yet; ids `first` to `stop` - 1, `stop` None: unknown."""

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

    `taken`: ranges (partition, first id, id behind the last) of quarantine's kind nowhere that were read since
    (`table_rows.taken_since`); no two of them overlap.
    """
    nodes = {(row["node"], row["partition"]): row for row in completeness}
    found = [rest for one in _quarantined_gaps(quarantine, nodes) for rest in _without_recovered(one, taken)] + [
        *_lagging(completeness)
    ]
    found.sort(key=lambda one: (one.partition, one.first, one.node or ""))
    return [
        IncompleteRange(
            one.node, one.partition, one.kind, one.first, None if one.stop is None else one.stop - 1, one.finding, one.remedy,
            elsewhere=_held_elsewhere(one, found, completeness),
        )
        for one in found
    ]  # fmt: skip


def _quarantined_gaps(quarantine: Sequence[Mapping[str, Any]], nodes: Mapping[Any, Any]) -> Iterator[_Gap]:
    for row in quarantine:
        first, count, node = row["transaction_id"], row["missing"], row["node"]
        if first is None or row["partition"] is None or (node is not None and (node, row["partition"]) not in nodes):
            continue
        if row["finding"] == Code.SPECIAL_FILE and _read_up_to(nodes[node, row["partition"]]) > first:
            continue  # it was told at the end of the partition, which is read on only when a file is there
        if row["finding"] == Code.REPLICA_DIFFERS:
            kind = UNDECIDED
        elif node is None:
            kind = NOWHERE
        elif row["finding"] in {one.value for one in BAD_BYTES}:
            kind = DAMAGED
        else:
            kind = MISSING
        stop = None if count is None else first + count
        yield _Gap(node, row["partition"], kind, first, stop, row["finding"], row["remedy"])


def _without_recovered(gap: _Gap, taken: Collection[tuple[int, int, int]]) -> Iterator[_Gap]:
    """A gap of the kind nowhere without the ranges that were read since; any other gap as it is."""
    first, stop = gap.first, gap.stop
    if gap.kind != NOWHERE or stop is None:
        yield gap
        return
    for partition, begins, ends in sorted(taken):
        if partition == gap.partition and begins < stop and ends > first:
            if begins > first:
                yield replace(gap, first=first, stop=begins)
            first = ends
    if first < stop:
        yield replace(gap, first=first)


def _lagging(completeness: Sequence[Mapping[str, Any]]) -> Iterator[_Gap]:
    """What is missing at each replica's end, by its last transaction as of now.

    The batches alone would not tell: of a log that is being written, some replicas are always read further than others.
    """
    for row in completeness:
        first = max(_read_up_to(row), row["last_transaction_id"] + 1)
        if first < row["expected"]:
            remedy = "It catches up in the next session; see waltzctl compare."
            yield _Gap(row["node"], row["partition"], BEHIND, first, row["expected"], None, remedy)


def _read_up_to(row: Mapping[str, Any]) -> int:
    """The id after the last one that was read of a replica's partition; `row`: of completeness."""
    return int(row["expected"] - row["behind"])


def _held_elsewhere(gap: _Gap, found: Sequence[_Gap], completeness: Sequence[Mapping[str, Any]]) -> bool:
    """Whether another replica has all transactions of the gap intact, as far as it was read."""
    if gap.kind in (UNDECIDED, NOWHERE) or gap.stop is None:
        return False
    for row in completeness:
        if row["partition"] != gap.partition or row["node"] == gap.node:
            continue
        if _read_up_to(row) < gap.stop:
            continue
        overlaps = any(
            other.node == row["node"]
            and other.partition == gap.partition
            and other.first < (gap.stop or 0)
            and (other.stop is None or other.stop > gap.first)
            for other in found
        )
        if not overlaps:
            return True
    return False
