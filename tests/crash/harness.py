"""Runs a recorded workload into every crash, looks at what is left and counts.

For each moment of the recording and each loss model the state of the disk is laid out in a scratch directory, looked at by a
`Checker` and judged by what had been promised at that moment.  Equal states are looked at once and judged as often as the
promises differ; what the recovery of several states comes to alike, byte for byte, is examined once.  Where looking at a state
changes it (recovery, the roll-back of a repair), those changes are a workload too, and a crash within them is tried in the same
way: after a power loss from the state as it was left, and after the death of the process alone with everything un-synced still
at stake.
"""

from __future__ import annotations

import copy
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from tests.crash.recorder import Moment, Promise, Recording, observing
from tests.crash.simdisk import Loss, SimulatedDisk, Tree
from waltzctl.engine.durable.disk import Change

T = TypeVar("T")
S = TypeVar("S")
_SHARED_MEMORY = Path("/dev/shm")


class Checker(Protocol[T, S]):
    """Looks at crash states of one kind of workload.  Its functions depend on what they are given and on nothing else."""

    def recover(self, root: Path) -> S:
        """Do with the directory at `root` what a start after the crash does, and say what is there."""

    def examine(self, root: Path, seen: S) -> S:
        """Look again, as closely as wished: what a second start does, what inspection says, whether work can go on."""

    def judge(self, truth: T, seen: S, state: Tree) -> list[str]:
        """What breaks the promise; empty when nothing does."""

    def narrowed(self, truth: T, seen: S) -> T:
        """What must hold once `recover` has returned `seen`."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A crash state in which a promise was broken."""

    moment: int
    change: Change | None
    model: str
    messages: tuple[str, ...]
    state: Tree

    def __str__(self) -> str:
        done = f"{self.change.kind} {self.change.path.name}" if self.change else "nothing"
        return f"after change {self.moment} ({done}), {self.model}: " + "; ".join(self.messages)


@dataclass(slots=True)
class Report:
    """What a run came to.

    `moments`: places for a crash; `generated`: states that the loss models gave; `states`: distinct ones that were opened;
    `judged`: distinct pairs of a state and a promise.
    """

    workload: str
    moments: int = 0
    generated: int = 0
    states: int = 0
    judged: int = 0
    models: dict[str, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Effort:
    """How far a run goes.

    `recoveries`: how many states' recoveries are crashed as well (spread by chance; None: all); `failures`: stop after so many.
    `deaths`: the process alone dies, and only then, within the recovery, may the power fail.  `seed`: of what is drawn.
    """

    loss: Loss
    recoveries: int | None
    recovery_loss: Loss
    failures: int = 5
    deaths: bool = False
    seed: int = 0


def effort_of(day: int) -> Effort:
    """The default run's: what is drawn or picked out of many is another part of it on each day.

    Every moment is crashed in each of the ways that leave nothing to choose.
    """
    return Effort(Loss(torn_positions=2, random_states=1, turn=day), 2, Loss(1, 1, turn=day), seed=day)


DEATHS = Effort(Loss(torn_positions=1, random_states=0), None, Loss(torn_positions=1, random_states=0), deaths=True)
LONG = Effort(Loss(torn_positions=0, random_states=12), 60, Loss(torn_positions=3, random_states=3))


class Harness(Generic[T, S]):
    """One workload's run.  Use `run`."""

    def __init__(self, workload: str, checker: Checker[T, S], effort: Effort) -> None:
        self._checker = checker
        self._effort = effort
        self._rng = random.Random(f"{workload}.{effort.seed}")
        self._seen: dict[bytes, tuple[S, list[Change]]] = {}
        self._examined: dict[bytes, list[tuple[S, S]]] = {}
        self._judged: set[tuple[bytes, int]] = set()
        self._truths: list[T] = []
        self._recovered: list[tuple[SimulatedDisk, T, S, list[Change], str]] = []
        self._candidates = 0
        self.report = Report(workload)

    def run(self, recording: Recording[T], scratch: Path) -> Report:
        """Try every crash of the workload, then crashes within recoveries."""
        self._crash(recording, scratch, self._effort.loss, "", keep_recoveries=True)
        for disk, truth, seen, changes, label in self._recovered:
            nested: Recording[T] = Recording(recording.root, Tree({}, frozenset()))
            nested.events = [Promise(truth, settled=False), *_moved(changes, scratch / "state", recording.root)]
            nested.events.append(Promise(self._checker.narrowed(truth, seen), settled=True))
            self._crash(nested, scratch, self._effort.recovery_loss, f"recovery of {label}, then ", disk=disk)
        return self.report

    def _crash(
        self,
        recording: Recording[T],
        scratch: Path,
        loss: Loss,
        prefix: str,
        *,
        keep_recoveries: bool = False,
        disk: SimulatedDisk | None = None,
    ) -> None:
        simulated = disk or SimulatedDisk(recording.root, recording.before)
        for moment in recording.moments(simulated):
            self.report.moments += 1
            for model, state in simulated.crashes(loss, self._rng):
                if len(self.report.failures) >= self._effort.failures:
                    return
                if self._effort.deaths and keep_recoveries and model != "kept":
                    break
                self.report.generated += 1
                self._try(moment, prefix + model, state, scratch, simulated if keep_recoveries else None)

    def _try(self, moment: Moment[T], model: str, state: Tree, scratch: Path, simulated: SimulatedDisk | None) -> None:
        digest = state.digest()
        pair = digest, self._number(moment.truth)
        if pair in self._judged:
            return
        self._judged.add(pair)
        self.report.judged += 1
        self.report.models[model] = self.report.models.get(model, 0) + 1
        if digest not in self._seen:
            self.report.states += 1
            self._seen[digest] = self._look(state, scratch)
        seen, changes = self._seen[digest]
        messages = self._checker.judge(moment.truth, seen, state)
        if messages:
            self.report.failures.append(Failure(moment.number, moment.change, model, tuple(messages), state))
        elif simulated is not None:
            self._keep(moment.truth, seen, changes, model, state, simulated)

    def _number(self, truth: T) -> int:
        if not self._truths or self._truths[-1] is not truth:
            self._truths.append(truth)
        return len(self._truths)

    def _look(self, state: Tree, scratch: Path) -> tuple[S, list[Change]]:
        root = scratch / "state"
        root.mkdir()
        try:
            state.write(root)
            changes: list[Change] = []
            with observing(changes.append):
                seen = self._checker.recover(root)
            return self._examine(root, seen), changes
        finally:
            shutil.rmtree(root)

    def _examine(self, root: Path, seen: S) -> S:
        """A closer look; what is known of the same files, of which the same was seen, is not looked at again."""
        known = self._examined.setdefault(Tree.read(root).digest(), [])
        for before, after in known:
            if before == seen:
                return after
        after = self._checker.examine(root, seen)
        known.append((seen, after))
        return after

    def _keep(
        self, truth: T, seen: S, changes: list[Change], model: str, state: Tree, simulated: SimulatedDisk
    ) -> None:
        """Choose recoveries to crash, each with the same chance, without knowing how many there will be."""
        if not any(change.kind in ("write", "truncate", "rename", "unlink") for change in changes) and model != "kept":
            return
        self._candidates += 1
        limit = self._effort.recoveries
        place = len(self._recovered) if limit is None else self._rng.randrange(self._candidates)
        if limit is not None and len(self._recovered) >= limit and place >= limit:
            return
        disk = copy.deepcopy(simulated) if model == "kept" else SimulatedDisk(simulated.root, state)
        chosen = (disk, truth, seen, changes, model)
        if limit is None or len(self._recovered) < limit:
            self._recovered.append(chosen)
        else:
            self._recovered[place] = chosen


def _moved(changes: list[Change], source: Path, target: Path) -> list[Change]:
    """Changes seen below `source` as if they had been made below `target`."""
    return [
        Change(
            change.kind,
            target / change.path.relative_to(source),
            None if change.target is None else target / change.target.relative_to(source),
            change.offset,
            change.data,
            change.size,
        )
        for change in changes
    ]


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """An empty directory, in shared memory where there is some."""
    place = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="waltzctl-crash-", dir=place, ignore_cleanup_errors=True) as scratch:
        yield Path(scratch)


def try_crashes(workload: str, recording: Recording[T], checker: Checker[T, S], effort: Effort) -> Report:
    """Every crash of a recorded workload, in shared memory where there is some."""
    with scratch_directory() as scratch:
        return Harness(workload, checker, effort).run(recording, scratch)
