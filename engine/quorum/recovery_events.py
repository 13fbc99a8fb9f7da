"""Events of a recovery: connections, and outcomes of actions (`recovery_actions`), as its caller reports them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Connected:
    """A node admitted the session and reported its replica: session and low-water mark in force before, last transaction."""

    node: str
    session_id: int
    low_water_mark: int
    max_transaction_id: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A replica is not connected any more, or its action failed."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Truncated:
    """A `Truncate` is done; `max_transaction_id` is the last transaction left."""

    node: str
    max_transaction_id: int


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A `CatchUp` is done, or a prefix of it; `max_transaction_id` is the replica's last transaction now."""

    node: str
    max_transaction_id: int


@dataclass(frozen=True, slots=True)
class Compared:
    """A `Compare` is done, or a prefix of it; up to `last_equal` nothing differs."""

    node: str
    last_equal: int


@dataclass(frozen=True, slots=True)
class MarkSet:
    """A `SetLowWaterMark` is done."""

    node: str


@dataclass(frozen=True, slots=True)
class MetadataWritten:
    """A `WriteMetadata` is done."""


@dataclass(frozen=True, slots=True)
class MetadataLost:
    """A `WriteMetadata` failed for good, for instance because the partition has a later session."""

    reason: str


Event = Connected | Failed | Truncated | Compared | CaughtUp | MarkSet | MetadataWritten | MetadataLost
