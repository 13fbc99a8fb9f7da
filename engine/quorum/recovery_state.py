"""The state of a partition's recovery, and what is derived from it (see `engine.quorum.recovery`)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from waltzctl.engine.quorum.recovery_actions import Action
from waltzctl.engine.quorum.vote import quorum_of
from waltzctl.formats.znodes import UNRESOLVED, ReplicaState


class Phase(enum.Enum):
    """The progress of a replica."""

    ABSENT = "cannot be asked"
    CUTTING = "is cut to what is known to be clean"
    UNPROVEN = "holds transactions above its closing mark that no voter has confirmed"
    PUBLISHED = "has told what it holds"
    RECOVERED = "holds everything up to the mark"


_UNTOLD = "not connected yet"  # the reason before the first event


def may_vote(last: ReplicaState, latest_session: int) -> bool:
    """Whether a replica may vote by the metadata: it was in the latest session, and its closing high-water mark is unresolved."""
    return last.session_id == latest_session and last.closing_high_water_mark == UNRESOLVED


@dataclass(frozen=True, slots=True)
class Replica:
    """One assigned replica.

    Attributes:
        last: its state in the metadata when the session began; None for a new replica.
        votes: it takes part in the vote.
        high_water_mark: its last transaction; None while it is not connected.
        low_water_mark: the mark with which it connected.
        cut_to: the transaction above which it has to be cut before it counts; None if it is not cut.
        proven_to: the last transaction above its closing mark that a voter is known to hold as well; None if nothing is left to
            compare.
        marked: the session's low-water mark is set on it.
        in_session: the mark was set on it once.  Its storage belongs to this session from then on, and the metadata keeps saying
            so, also after it fails: transactions that it alone holds, beside a replica lost later, may have been acknowledged.
        acting: the action in progress.
        lost: the session in its storage is older than in the metadata: it has lost records, and may have acknowledged them.
        joined: it takes part in the open session.
        reason: why it is not connected.
    """

    node: str
    last: ReplicaState | None
    phase: Phase = Phase.ABSENT
    votes: bool = False
    high_water_mark: int | None = None
    low_water_mark: int = -1
    cut_to: int | None = None
    proven_to: int | None = None
    marked: bool = False
    in_session: bool = False
    acting: Action | None = None
    lost: bool = False
    joined: bool = False
    reason: str = _UNTOLD

    @property
    def held(self) -> int:
        """Its last transaction."""
        assert self.high_water_mark is not None, "it is connected"
        return self.high_water_mark

    @property
    def is_gone(self) -> bool:
        """Whether it is known to have failed: it is not connected, and not for lack of a first attempt."""
        return self.phase is Phase.ABSENT and self.reason != _UNTOLD

    @property
    def is_witness(self) -> bool:
        """Whether it holds at least what the last session began with: others are compared with it."""
        return self.is_published and (self.votes or self.marked)

    @property
    def is_published(self) -> bool:
        """Whether its last transaction counts: in the vote, or for copying."""
        return self.phase in (Phase.PUBLISHED, Phase.RECOVERED)


@dataclass(frozen=True, slots=True)
class Recovery:
    """The recovery of one partition for one session.

    Attributes:
        last_replicas: the number of replicas that the metadata names.
        latest_session: the latest session that any of these was in.
        voters_taken_away: how many of these may vote by the metadata, but are no longer assigned.
        replicas: the assigned replicas, by node.
        resolved: the high-water mark at which the session opens; None before the vote is decided.
        keepers: the last replicas that keep this mark, as `engine.quorum.recovery` defines it.
        written: the replica states in the metadata, as far as this recovery wrote them.
        writing: the replica states that are being written.
        ended: it gave up.
    """

    partition: int
    session_id: int
    last_replicas: int
    latest_session: int
    voters_taken_away: int = 0
    replicas: Mapping[str, Replica] = field(default_factory=dict)
    resolved: int | None = None
    keepers: frozenset[str] = frozenset()
    written: tuple[ReplicaState, ...] | None = None
    writing: tuple[ReplicaState, ...] | None = None
    is_open: bool = False
    ended: bool = False

    @property
    def quorum(self) -> int:
        """How many of the assigned replicas have to be recovered for the session to open."""
        return quorum_of(len(self.replicas))

    @property
    def last_quorum(self) -> int:
        """How many of the last replicas have to hold a transaction for the vote."""
        return quorum_of(self.last_replicas)

    @property
    def counted(self) -> tuple[Replica, ...]:
        """The last replicas whose last transaction is known and counts."""
        return tuple(one for one in self.replicas.values() if one.last is not None and one.is_published)

    @property
    def absent(self) -> int:
        """The number of last replicas that are not counted, including those that are no longer assigned."""
        return self.last_replicas - len(self.counted)

    @property
    def is_kept(self) -> bool:
        """Whether no later session can resolve a lower mark than this one, even if this one ends now."""
        mark = self.resolved
        if mark is None:
            return False
        wanted = self.last_quorum - len(self.keepers)
        if wanted <= 0:
            return True
        if wanted == 1 and self.voters_taken_away:
            return False  # once assigned again, such a voter could lower the next session's mark
        return all(one.is_published and (one.cut_to is not None or one.held >= mark) for one in self.voters)

    @property
    def voters(self) -> tuple[Replica, ...]:
        """The assigned replicas that may vote, by the metadata."""
        return tuple(
            one for one in self.replicas.values() if one.last is not None and may_vote(one.last, self.latest_session)
        )

    @property
    def recovered(self) -> tuple[str, ...]:
        """The nodes whose replicas hold every transaction up to the mark."""
        return tuple(node for node, one in self.replicas.items() if one.phase is Phase.RECOVERED)
