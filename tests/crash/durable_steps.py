"""Tries what the engine's durable steps are for: leaves out each sync of a workload, and swaps each two that follow each other.

    python -m tests.crash.durable_steps [WORKLOAD ...] [--write] [--again]

A *step* is a sync with the changes that it makes durable.  Of a step that is left out, or comes after the next one, only the
crash states are looked at that the workload as it is does not have at that moment with the same promise, and only until the first
broken promise.  What a process leaves that dies, and what the next one does with it, is a workload as well: there the syncs are
tried that make durable what another process wrote.

The result stands in ``durable_steps.json`` (`tests.crash.durable_table`).  Without ``--again`` a step that is known to be needed
is not tried another time.
"""

from __future__ import annotations

import copy
import itertools
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.durable_table import Table
from tests.crash.harness import Checker, _moved, scratch_directory
from tests.crash.recorder import SYNCS, Moment, Promise, Recording, observing
from tests.crash.simdisk import Loss, Node, SimulatedDisk, Tree
from tests.crash.sites import calling_site
from tests.crash.workloads import WORKLOADS
from waltzctl.engine.durable import disk
from waltzctl.engine.durable.disk import Change

LOSS = Loss(torn_positions=1, random_states=2)
WRITES = ("write", "truncate", "rename", "unlink", "mkdir", "rmdir", "create")
Pair = tuple[str, str]


@dataclass
class Tried:
    """What a workload showed: for each step or pair, the message of the broken promise, or None where none broke."""

    syncs: dict[str, str | None] = field(default_factory=dict)
    pairs: dict[Pair, str | None] = field(default_factory=dict)
    states: int = 0


def _states(simulated: SimulatedDisk, number: int) -> Iterator[tuple[str, Tree]]:
    """Crash states of a moment, the same in every run."""
    return simulated.crashes(LOSS, random.Random(number))


class Trial:
    """The trials of one workload.  `known`: steps and pairs of which it need not be found out again that they are needed."""

    def __init__(
        self,
        checker: Checker[Any, Any],
        scratch: Path,
        known: Collection[str | Pair],
        only: Collection[str | Pair] | None = None,
    ) -> None:
        self._checker = checker
        self._scratch = scratch
        self._known = known
        self._only = only
        self._looks: dict[bytes, Any] = {}
        self._judged: dict[tuple[bytes, int], str | None] = {}
        self._truths: list[object] = []
        self._seen_recoveries: set[object] = set()
        self._pair_shapes: dict[object, int] = {}
        self.tried = Tried()

    def run(self, recording: Recording[Any], recoveries: bool = True) -> Tried:
        """Try the workload itself, then what is done after a process died in it, or the power failed."""
        self._try_recording(recording, None)
        if recoveries and self._something_left():
            for nested, simulated in self._recoveries(recording):
                self._try_recording(nested, simulated, _at_stake(simulated))
                if not self._something_left():
                    break
        return self.tried

    # --- looking ---------------------------------------------------------------------------------------------------

    def _number(self, truth: object) -> int:
        for number, one in enumerate(self._truths):
            if one is truth:
                return number
        self._truths.append(truth)
        return len(self._truths) - 1

    def _verdict(self, moment: Moment[Any], state: Tree, digest: bytes) -> str | None:
        key = digest, self._number(moment.truth)
        if key not in self._judged:
            if digest not in self._looks:
                self.tried.states += 1
                self._looks[digest] = self._look(state)
            messages = self._checker.judge(moment.truth, self._looks[digest], state)
            self._judged[key] = messages[0].strip().splitlines()[-1] if messages else None
        return self._judged[key]

    def _look(self, state: Tree) -> Any:
        root = self._scratch / "state"
        root.mkdir()
        try:
            state.write(root)
            with observing(lambda _: None):
                seen = self._checker.recover(root)
            return self._checker.examine(root, seen)
        finally:
            shutil.rmtree(root)

    # --- one recording -----------------------------------------------------------------------------------------------

    def _wanted(self, step: str | Pair) -> bool:
        found = self.tried.syncs.get(step) if isinstance(step, str) else self.tried.pairs.get(step)
        return found is None and step not in self._known and (self._only is None or step in self._only)

    def _something_left(self) -> bool:
        return self._only is None or any(self._wanted(site) for site in self._only)

    def _try_recording(
        self, recording: Recording[Any], simulated: SimulatedDisk | None, at_stake: tuple[str, ...] = ()
    ) -> None:
        changes = recording.changes
        places = [place for place, one in enumerate(changes) if id(one) in recording.sites]
        omitted = [place for place in places if self._wanted(recording.sites[id(changes[place])])]
        swapped = [
            (first, second)
            for first, second in itertools.pairwise(places)
            if self._wanted((recording.sites[id(changes[first])], recording.sites[id(changes[second])]))
        ]
        if not omitted and not swapped:
            return
        base = self._base(recording, simulated)
        ends = _ends(recording, simulated)
        for place in omitted:
            site = recording.sites[id(changes[place])]
            if self._wanted(site):
                mutant = Recording(
                    recording.root, recording.before, [e for e in recording.events if e is not changes[place]]
                )
                found = self._broken(mutant, simulated, base, place, ends[place] - 1)
                self.tried.syncs[site] = found
        for first, second in swapped:
            pair = recording.sites[id(changes[first])], recording.sites[id(changes[second])]
            swap = _swapped(recording, changes, first, second)
            if swap is None or not self._wanted(pair):
                continue
            events, start = swap
            shape = pair, at_stake, tuple((one.kind, one.path.suffix) for one in changes[start : second + 1])
            self._pair_shapes[shape] = self._pair_shapes.get(shape, 0) + 1
            if self._pair_shapes[shape] > 2:
                continue
            mutant = Recording(recording.root, recording.before, events)
            try:
                self.tried.pairs[pair] = self._broken(mutant, simulated, base, start + 1, second)
            except ValueError:
                continue  # the one makes what the other one uses

    def _fresh(self, recording: Recording[Any], simulated: SimulatedDisk | None) -> SimulatedDisk:
        return SimulatedDisk(recording.root, recording.before) if simulated is None else copy.deepcopy(simulated)

    def _base(self, recording: Recording[Any], simulated: SimulatedDisk | None) -> set[tuple[bytes, int]]:
        """The states that the workload as it is can leave, each with its promise."""
        fresh = self._fresh(recording, simulated)
        return {
            (state.digest(), self._number(moment.truth))
            for moment in recording.moments(fresh)
            for _, state in _states(fresh, moment.number)
        }

    def _broken(
        self,
        mutant: Recording[Any],
        simulated: SimulatedDisk | None,
        base: set[tuple[bytes, int]],
        first: int,
        last: int,
    ) -> str | None:
        """The first broken promise between the changes `first` and `last` of another order; None where there is none."""
        fresh = self._fresh(mutant, simulated)
        for moment in mutant.moments(fresh):
            if moment.number > last:
                break
            if moment.number < first:
                continue
            number = self._number(moment.truth)
            for model, state in _states(fresh, moment.number):
                digest = state.digest()
                if (digest, number) in base:
                    continue
                if (found := self._verdict(moment, state, digest)) is not None:
                    done = f"{moment.change.kind} {moment.change.path.name}" if moment.change else "nothing"
                    return f"after {done}, {model}: {found}"
        return None

    # --- recoveries --------------------------------------------------------------------------------------------------

    def _recoveries(self, recording: Recording[Any]) -> Iterator[tuple[Recording[Any], SimulatedDisk]]:
        """What the next process does after each crash, told apart by what it syncs and what is still at stake."""
        simulated = SimulatedDisk(recording.root, recording.before)
        looked: set[bytes] = set()
        for moment in recording.moments(simulated):
            for model, state in _states(simulated, moment.number):
                if model == "kept" and simulated.settled:
                    continue
                at_stake = _at_stake(simulated) if model == "kept" else ()
                digest = state.digest() + repr(at_stake).encode()
                if digest in looked:
                    continue
                looked.add(digest)
                nested = self._recovery(moment, state, recording.root)
                shape = at_stake, tuple(nested.sites.values())
                if nested.sites and shape not in self._seen_recoveries:
                    self._seen_recoveries.add(shape)
                    yield nested, copy.deepcopy(simulated) if model == "kept" else SimulatedDisk(recording.root, state)

    def _recovery(self, moment: Moment[Any], state: Tree, target: Path) -> Recording[Any]:
        root = self._scratch / "state"
        root.mkdir()
        changes: list[Change] = []
        sites: dict[int, str] = {}

        def listen(change: Change) -> None:
            changes.append(change)
            if change.kind in SYNCS:
                try:
                    sites[len(changes) - 1] = calling_site(change.kind == "sync-directory")
                except LookupError:
                    return

        try:
            state.write(root)
            with observing(listen):
                seen = self._checker.recover(root)
        finally:
            shutil.rmtree(root)
        moved = _moved(changes, root, target)
        nested: Recording[Any] = Recording(target, Tree({}, frozenset()))
        held = self._checker.narrowed(moment.truth, seen)
        nested.events = [Promise(moment.truth, settled=False), *moved, Promise(held, settled=True)]
        nested.sites = {id(moved[place]): site for place, site in sites.items()}
        return nested


def _at_stake(simulated: SimulatedDisk) -> tuple[str, ...]:
    """What a power loss would take, in short."""
    files = [f"{name} {len(node.pending)}" for name, node in simulated._unsynced()]
    names = [
        f"{'+' if one.added else '-'}{(one.added or one.removed or ('', ''))[1]}"
        for one in simulated._log
        if one.unsynced
    ]
    return (*files, *names)


def _ends(recording: Recording[Any], simulated: SimulatedDisk | None) -> dict[int, int]:
    """For each sync, by its place among the changes, the place behind the next one of the same file or directory."""
    fresh = SimulatedDisk(recording.root, recording.before) if simulated is None else copy.deepcopy(simulated)
    last: dict[int, int] = {}
    ends: dict[int, int] = {}
    nodes: list[Node | None] = []
    changes = recording.changes
    for place, change in enumerate(changes):
        if change.kind in SYNCS:
            node = fresh._lookup(fresh._relative(change.path)) or fresh._opened.get(fresh._relative(change.path))
            nodes.append(node)  # kept alive, so that no other one gets its id
            if id(node) in last:
                ends[last[id(node)]] = place + 1
            last[id(node)] = place
            ends[place] = len(changes) + 1
        fresh.apply(change)
    return ends


def _covered(change: Change, sync: Change) -> bool:
    """Whether a change is one that the sync makes durable."""
    if sync.kind == "sync":
        return change.kind in ("write", "truncate") and change.path == sync.path
    if change.kind in ("write", "truncate", "times", *SYNCS):
        return False
    return sync.path in (change.path.parent, None if change.target is None else change.target.parent)


def _swapped(
    recording: Recording[Any], changes: Sequence[Change], first: int, second: int
) -> tuple[list[Any], int] | None:
    """The events with two steps swapped, and the place of the first change that moved; None where they cannot be swapped.

    They belong to different acknowledged operations when something is promised between them.
    """
    one, other = changes[first], changes[second]
    begin = max((place for place in range(first) if changes[place].kind in SYNCS), default=-1) + 1
    places = {id(event): number for number, event in enumerate(recording.events)}
    start, stop = places[id(changes[begin])], places[id(other)]
    window = recording.events[start : stop + 1]
    if any(isinstance(event, Promise) for event in window[window.index(one) :]):
        return None
    before = changes[begin:first]
    same = (one.kind, one.path) == (other.kind, other.path)
    early = [] if same else [change for change in before if _covered(change, other)]
    late = [change for change in before if same or not _covered(change, other)]
    promises = [event for event in window if isinstance(event, Promise)]
    mixed = [*early, *changes[first + 1 : second], other, *late, one]
    return [*recording.events[:start], *promises, *mixed, *recording.events[stop + 1 :]], begin


def measure(
    name: str,
    known: Collection[str | Pair] = (),
    only: Collection[str | Pair] | None = None,
    *,
    recoveries: bool = True,
) -> Tried:
    """Record a workload and try its steps.  `only`: these syncs and pairs."""
    original, disk.now_ms = disk.now_ms, lambda: 1_700_000_500_000
    try:
        with tempfile.TemporaryDirectory() as place, scratch_directory() as scratch:
            recording, checker = WORKLOADS[name](Path(place))
            return Trial(checker, scratch, known, only).run(recording, recoveries)
    finally:
        disk.now_ms = original


def main(arguments: Sequence[str], say: Callable[[str], None] = print) -> None:
    """See the module."""
    names = [one for one in arguments if not one.startswith("--")] or list(WORKLOADS)
    for name in names:
        table = Table.load()
        known = () if "--again" in arguments else table.needed
        tried = measure(name, known)
        say(f"{name}: {len(tried.syncs)} syncs, {len(tried.pairs)} pairs, {tried.states} states")
        for step, message in (*tried.syncs.items(), *tried.pairs.items()):
            say(
                f"  {'NEEDED' if message else 'free  '} {step if isinstance(step, str) else ' -> '.join(step)}: {message}"[
                    :300
                ]
            )
        if "--write" in arguments:
            table = Table.load()
            table.add(name, tried.syncs, tried.pairs)
            table.save()


if __name__ == "__main__":
    main(sys.argv[1:])
