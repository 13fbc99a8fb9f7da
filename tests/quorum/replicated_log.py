"""A partition's replicas as lists, on which the actions of a recovery are performed; and sessions that append to them.

What stands under an id is a number of its own for each append, so that two versions of one transaction are told apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from waltzctl.engine.quorum import recovery, recovery_actions, recovery_events
from waltzctl.engine.quorum.recovery_state import Recovery
from waltzctl.engine.quorum.vote import quorum_of
from waltzctl.formats.znodes import PartitionMetadata

BATCH = 20


@dataclass
class Node:
    """One storage.  `log[n]` is what stands under id n."""

    log: list[int]
    session_id: int = -1
    low_water_mark: int = -1
    available: bool = True

    @property
    def last(self) -> int:
        return len(self.log) - 1


@dataclass
class Session:
    """One store session: a recovery whose events come in any order, and appends behind it."""

    nodes: dict[str, Node]
    metadata: PartitionMetadata
    assigned: tuple[str, ...]
    session_id: int
    chance: Random
    batch: int = BATCH
    state: Recovery = field(init=False)
    pending: list[recovery_actions.Action] = field(default_factory=list)
    joined: list[str] = field(default_factory=list)
    opened_at: int | None = None
    appended: list[int] = field(default_factory=list)
    gave_up: str = ""
    refused: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.metadata = PartitionMetadata(self.metadata.generation, self.session_id, self.metadata.replicas)
        self.state = recovery.begin(0, self.session_id, self.metadata, self.assigned)

    def tell(self, event: recovery_events.Event) -> None:
        self.state, actions = recovery.step(self.state, event)
        for action in actions:
            match action:
                case recovery_actions.Open(mark, nodes):
                    assert self.opened_at is None
                    self.opened_at = mark
                    self.joined = list(nodes)
                case recovery_actions.Join(node):
                    assert node not in self.joined
                    self.joined.append(node)
                case recovery_actions.GiveUp(reason):
                    self.gave_up = reason
                case _:
                    self.pending.append(action)

    def connect(self, name: str) -> None:
        node = self.nodes[name]
        self.tell(recovery_events.Connected(name, node.session_id, node.low_water_mark, node.last))

    def lose(self, name: str) -> None:
        """The connection to a node ends; what was under way on it may or may not have happened."""
        for action in [one for one in self.pending if getattr(one, "node", "") == name]:
            self.pending.remove(action)
            if self.chance.random() < 0.5:
                self.perform(action)
        if name in self.joined:
            self.joined.remove(name)
        self.tell(recovery_events.Failed(name, "lost"))

    def perform(self, action: recovery_actions.Action) -> recovery_events.Event:
        match action:
            case recovery_actions.Truncate(name, to):
                node = self.nodes[name]
                del node.log[to + 1 :]
                return recovery_events.Truncated(name, node.last)
            case recovery_actions.CatchUp(name, source, first, last):
                node, ahead = self.nodes[name], self.nodes[source]
                assert first == node.last + 1
                last = min(last, first + self.batch - 1, ahead.last)
                node.log += ahead.log[first : last + 1]
                return recovery_events.CaughtUp(name, node.last)
            case recovery_actions.Compare(name, other, first, last):
                last = min(last, first + self.batch - 1)
                node, ahead = self.nodes[name], self.nodes[other]
                if node.log[first : last + 1] != ahead.log[first : last + 1]:
                    self.refused[name] = f"differs from {other}"
                    return recovery_events.Failed(name, self.refused[name])
                return recovery_events.Compared(name, last)
            case recovery_actions.Exclude(name, other):
                self.refused[name] = f"differs from {other}"
                return recovery_events.Failed(name, self.refused[name])
            case recovery_actions.SetLowWaterMark(name, mark):
                node = self.nodes[name]
                assert node.last <= mark
                node.session_id, node.low_water_mark = self.session_id, mark
                return recovery_events.MarkSet(name)
            case recovery_actions.WriteMetadata(replicas):
                self.metadata = PartitionMetadata(self.metadata.generation, self.session_id, replicas)
                return recovery_events.MetadataWritten()
            case _:
                raise AssertionError(action)

    def advance(self) -> bool:
        """Perform one of the actions under way; False when there is none."""
        if not self.pending:
            return False
        action = self.pending.pop(self.chance.randrange(len(self.pending)))
        self.tell(self.perform(action))
        return True

    def run(self, names: Iterable[str] | None = None) -> None:
        """Connect these, or whatever is available, in any order, and go on until nothing is left to do."""
        waiting = [one for one in self.assigned if self.nodes[one].available] if names is None else list(names)
        self.chance.shuffle(waiting)
        while waiting or self.pending:
            if waiting and (not self.pending or self.chance.random() < 0.3):
                self.connect(waiting.pop())
            else:
                self.advance()

    def append(self, values: Sequence[int]) -> bool:
        """Write a batch to the replicas that take part, as far as each gets; True when a quorum has all of it."""
        assert self.opened_at is not None
        begin = self.opened_at + 1 + len(self.appended)
        self.appended += values
        complete = 0
        for name in self.joined:
            node = self.nodes[name]
            if node.last + 1 != begin:
                continue  # it is behind, and would catch up
            count = self.chance.choice((0, len(values), len(values), self.chance.randrange(len(values) + 1)))
            node.log += values[:count]
            complete += count == len(values)
        return complete >= quorum_of(len(self.assigned))
