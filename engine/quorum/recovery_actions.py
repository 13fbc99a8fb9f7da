"""Actions of a recovery: what is to be done, with the storage nodes, the metadata and the session."""

from __future__ import annotations

from dataclasses import dataclass

from waltzctl.formats.znodes import ReplicaState


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut a replica behind a transaction."""

    node: str
    transaction_id: int


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Copy transactions `first` to `last` from one replica to another, their checksums verified; any beginning of it will do."""

    node: str
    source: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Compare:
    """Compare transactions `first` to `last` of two replicas; any beginning of it will do.  A difference is a `Failed`."""

    node: str
    other: str
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Exclude:
    """End the connection of a replica: from `transaction_id` on it holds what `other` does not.  It is a `Failed`."""

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
    """Write these replica states, if the stored session is still this one."""

    replicas: tuple[ReplicaState, ...]


@dataclass(frozen=True, slots=True)
class Open:
    """The session takes appends behind this transaction, with these replicas."""

    high_water_mark: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """A late replica holds everything up to the session's start, and takes part from now on."""

    node: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """This session will not open."""

    reason: str


Action = Truncate | Compare | Exclude | CatchUp | SetLowWaterMark | WriteMetadata | Open | Join | GiveUp
