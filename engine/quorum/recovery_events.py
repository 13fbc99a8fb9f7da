"""Events of a recovery: what has happened, as whoever performs it (`recovery_actions`) tells it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Connected:
    """A replica's node let the session in and told what it holds: the session and low-water mark before, the last transaction."""

    node: str
    session_id: int
    low_water_mark: int
    max_transaction_id: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A replica cannot be asked any more, or its action did not succeed."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Truncated:
    """A `Truncate` was done, and left this transaction as the last."""

    node: str
    max_transaction_id: int


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A `CatchUp` was done, all of it or the beginning, and this is the last transaction now."""

    node: str
    max_transaction_id: int


@dataclass(frozen=True, slots=True)
class Compared:
    """A `Compare` was done, all of it or the beginning, and up to here nothing differs."""

    node: str
    last_equal: int


@dataclass(frozen=True, slots=True)
class MarkSet:
    """A `SetLowWaterMark` was done."""

    node: str


@dataclass(frozen=True, slots=True)
class MetadataWritten:
    """A `WriteMetadata` was done."""


@dataclass(frozen=True, slots=True)
class MetadataLost:
    """A `WriteMetadata` was refused for good: the partition has a later session."""

    reason: str


Event = Connected | Failed | Truncated | Compared | CaughtUp | MarkSet | MetadataWritten | MetadataLost
