"""Where the recovery of a partition stands: values, and what follows from them (see `engine.quorum.recovery`)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from waltzctl.engine.quorum.recovery_actions import Action
from waltzctl.engine.quorum.vote import quorum_of
from waltzctl.formats.znodes import UNRESOLVED, ReplicaState


class Phase(enum.Enum):
    """Where a replica stands."""

    ABSENT = "cannot be asked"
    CUTTING = "is cut to what is known to be clean"
    UNPROVEN = "holds transactions above its closing mark that no voter has confirmed"
    PUBLISHED = "has told what it holds"
    RECOVERED = "holds everything up to the mark"


_UNTOLD = "not connected yet"


def may_vote(last: ReplicaState, latest_session: int) -> bool:
    """Whether the metadata lets a replica vote: it was in the latest session that there was, which is not closed for it."""
    return last.session_id == latest_session and last.closing_high_water_mark == UNRESOLVED


@dataclass(frozen=True, slots=True)
class Replica:
    """One assigned replica.

    Attributes:
        last: its state in the metadata when the session began; None for a new one.
        high_water_mark: its last transaction; None while it cannot be asked.
        cut_to: where it has to be cut before it counts.
        proven_to: the last transaction of those above its closing mark that a voter holds, too; None: nothing is left to ask.
        marked: the session's low-water mark is set on it.
        in_session: it was so once.  Its storage is of this session from then on, and the metadata says so whatever becomes of it:
            what it alone holds beside a replica that is lost later may have been acknowledged.
        acting: the action under way.
        lost: its storage is older than the metadata's: it has lost what it held, and what it does not hold it may have
            acknowledged.
        joined: it takes part in the open session.
        reason: why it cannot be asked.
    """

    node: str
    last: ReplicaState | None
    phase: Phase = Phase.ABSENT
    votes: bool = False
    high_water_mark: int | None = None
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
        assert self.high_water_mark is not None, "it can be asked"
        return self.high_water_mark

    @property
    def is_gone(self) -> bool:
        """Whether it cannot be asked, and that is known: one that was not heard of in this session yet is no such."""
        return self.phase is Phase.ABSENT and self.reason != _UNTOLD

    @property
    def is_witness(self) -> bool:
        """Whether it holds at least what the last session began with, and what of that it holds is known."""
        return self.is_published and (self.votes or self.marked)

    @property
    def is_published(self) -> bool:
        """Whether it counts in the vote, or at least copies."""
        return self.phase in (Phase.PUBLISHED, Phase.RECOVERED)


@dataclass(frozen=True, slots=True)
class Recovery:
    """The recovery of one partition for one session.

    `last_replicas`: how many replicas the last session had; `voters_taken_away`: how many of them would vote, and are no longer
    assigned.  `resolved`: the high-water mark at which the session opens, None before the vote.  `keepers`: last replicas that
    keep it (see above).  `written`, `writing`: replica states in the metadata, and on their way there.  `ended`: it gave up.
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
        """How many of the replicas assigned now have to be recovered."""
        return quorum_of(len(self.replicas))

    @property
    def last_quorum(self) -> int:
        """How many of the last replicas have to hold a transaction."""
        return quorum_of(self.last_replicas)

    @property
    def counted(self) -> tuple[Replica, ...]:
        """The last replicas that have told what they hold."""
        return tuple(one for one in self.replicas.values() if one.last is not None and one.is_published)

    @property
    def absent(self) -> int:
        """How many last replicas have not told, those that are no longer assigned included."""
        return self.last_replicas - len(self.counted)

    @property
    def is_kept(self) -> bool:
        """Whether no later session can resolve less than what this one resolved."""
        mark = self.resolved
        if mark is None:
            return False
        wanted = self.last_quorum - len(self.keepers)
        if wanted <= 0:
            return True
        if wanted == 1 and self.voters_taken_away:
            return False  # one of them may be given back: who makes the quorum is marked first
        return all(one.is_published and (one.cut_to is not None or one.held >= mark) for one in self.voters)

    @property
    def voters(self) -> tuple[Replica, ...]:
        """The assigned replicas that may vote, by the metadata."""
        return tuple(
            one for one in self.replicas.values() if one.last is not None and may_vote(one.last, self.latest_session)
        )

    @property
    def recovered(self) -> tuple[str, ...]:
        """The replicas that hold everything up to the mark."""
        return tuple(node for node, one in self.replicas.items() if one.phase is Phase.RECOVERED)
