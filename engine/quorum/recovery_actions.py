"""Actions of a recovery, for its caller to perform on storage nodes, the metadata and the session."""

from __future__ import annotations

from dataclasses import dataclass

from waltzctl.formats.znodes import ReplicaState


@dataclass(frozen=True, slots=True)
class Truncate:
    """Remove a replica's transactions above `transaction_id`."""

    node: str
    transaction_id: int


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Copy transactions `first` to `last` from replica `source` to replica `node`, checksums verified; a prefix will do."""

    node: str
    source: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Compare:
    """Compare transactions `first` to `last` of two replicas; a prefix will do.  Report a difference as `Failed`."""

    node: str
    other: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Exclude:
    """Disconnect a replica and report `Failed`: from `transaction_id` on it holds what replica `other` does not."""

    node: str
    other: str
    transaction_id: int


@dataclass(frozen=True, slots=True)
class SetLowWaterMark:
    """Begin the session on a replica with this low-water mark."""

    node: str
    low_water_mark: int


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Write these replica states to the metadata, if the session stored there is still this one."""

    replicas: tuple[ReplicaState, ...]


@dataclass(frozen=True, slots=True)
class Open:
    """Open the session: it appends above `high_water_mark`, to these replicas."""

    high_water_mark: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """Let a late replica take part: it holds every transaction up to the mark at which the session opened."""

    node: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the session: it cannot open, or cannot go on."""

    reason: str


Action = Truncate | Compare | Exclude | CatchUp | SetLowWaterMark | WriteMetadata | Open | Join | GiveUp
